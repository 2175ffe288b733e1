"""The trainer of language models compared with a plain script (lm_floor.py) on this machine, in
alternating rounds.

    python benchmarks/language_models.py [--cells gpt2-124m,llama3-8b] [--gpus 1] [--rounds 4] [--ours "--clip 0"]
    python benchmarks/language_models.py --device cpu --cells gpt-tiny,llama-tiny --window 6 --rounds 2

Needs PyTorch and nothing else. Both train the same shape on random tokens, with the same
micro-batch, types, clipping and optimizer; --ours and --floor pass further arguments to each. On
one GPU on which both fit, they are started once and then take turns: one is stopped (SIGSTOP) while
the other trains, so that each compiles once, and the first steps of every turn are left out.
Otherwise each round starts both anew, in alternating order, each with a cache of compiled graphs of
its own.

The output has medians over rounds of tokens/s and TFLOP/s per GPU and of MFU (6 N + 12·L·d·T
operations per token, N all weights of matrix products), and the ratio of ours to the floor with its
minimum and maximum over rounds. A program whose loss does not fall ends the benchmark with status
1.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TRAINERS = HERE.parent / "remote" / "trainers"
PROGRAMS = {"floor": HERE / "lm_floor.py", "ours": TRAINERS / "torch" / "train_lm.py"}
LINES = {
    "floor": re.compile(r"^floor step=(\d+) seconds=([0-9.]+) loss=(\S+)$"),
    "ours": re.compile(
        r"^orch step=(\d+) t=\S+ step_time_s=([0-9.]+) samples=\d+ loss=(\S+) skipped="
    ),
}
MEMORY = {
    "floor": re.compile(r"^floor memory_bytes=(\d+)"),
    "ours": re.compile(r'^orch done .*"max_memory_bytes": (\d+)'),
}
PEAK_TFLOPS = {"H100": 989.5, "H200": 989.5, "GH200": 989.5, "A100": 312.0, "B200": 2250.0}
"""Dense bf16 peaks, from NVIDIA's data sheets; the first name that the device's own contains."""
DROPPED = 5
"""Steps at the start of a turn that do not count: up to two that were queued when the turn before
ended, one with the pause in it, and those beside what the other program had still queued."""
GPT: dict[str, Any] = {"family": "gpt", "vocab": 50257, "tied": "true"}
LLAMA: dict[str, Any] = {"family": "llama", "vocab": 128256, "tied": "false"}


@dataclass(frozen=True)
class Cell:
    """A shape, its tokens, and how it is run. ``gib``: of memory that both programs need on one GPU
    at once.
    """

    sizes: dict[str, Any]
    seq_len: int
    batch_size: int
    window: int = 20
    weights: str = "fp32"
    floor_compile: str = "blocks"
    gib: float = 0.0

    def flops_per_token(self) -> float:
        """Return 6 N + 12·L·d·T, see docs/metrics.md."""
        s = self.sizes
        width, kv_share = s["width"], s.get("kv_heads", s["heads"]) / s["heads"]
        mlp = (3 if s["family"] == "llama" else 2) * width * s["mlp"]
        matrices = s["layers"] * (width * width * (2 + 2 * kv_share) + mlp) + width * s["vocab"]
        return float(6 * matrices + 12 * s["layers"] * width * self.seq_len)


GPT2_124M = {**GPT, "layers": 12, "width": 768, "heads": 12, "mlp": 3072}
GPT2_1_5B = {**GPT, "layers": 48, "width": 1600, "heads": 25, "mlp": 6400}
GPT_1_3B = {**GPT, "layers": 24, "width": 2048, "heads": 16, "mlp": 8192}
LLAMA_8B = {**LLAMA, "layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "mlp": 14336}
LLAMA_3B = {
    **LLAMA,
    "layers": 28,
    "width": 3072,
    "heads": 24,
    "kv_heads": 8,
    "mlp": 8192,
    "tied": "true",
}
LLAMA_SLICE = {**LLAMA_8B, "layers": 3, "vocab": 32768}
CELLS = {
    "gpt2-124m": Cell(GPT2_124M, 1024, 64, floor_compile="whole", gib=64),
    "gpt2-124m-16": Cell(GPT2_124M, 1024, 16, window=40, floor_compile="whole", gib=22),
    "gpt-1.3b": Cell(GPT_1_3B, 2048, 8, gib=93),
    "gpt-1.3b-4096": Cell(GPT_1_3B, 4096, 4, gib=93),
    "gpt2-1.5b": Cell(GPT2_1_5B, 1024, 8, gib=84),
    "gpt2-1.5b-2048": Cell(GPT2_1_5B, 2048, 4, gib=84),
    "llama3-8b": Cell(LLAMA_8B, 4096, 2, window=10, weights="bf16", gib=177),
    "llama3-8b-1": Cell(LLAMA_8B, 4096, 1, window=12, weights="bf16", gib=149),
    "llama3-3b": Cell(LLAMA_3B, 4096, 2, window=12, weights="bf16", gib=90),
    "llama3-slice": Cell(LLAMA_SLICE, 4096, 2, weights="bf16", gib=25),
    "gpt-tiny": Cell(
        {**GPT, "vocab": 500, "layers": 2, "width": 64, "heads": 4, "mlp": 256}, 64, 4
    ),
    "llama-tiny": Cell(
        {**LLAMA, "vocab": 512, "layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "mlp": 192},
        64,
        4,
    ),
}
DEFAULT = "gpt2-124m,gpt2-124m-16,gpt2-1.5b,llama3-8b"


def arguments(name: str, cell: Cell, asked: argparse.Namespace, steps: int) -> list[str]:
    """Return the arguments of a program."""
    values = {key: value for key, value in cell.sizes.items() if key != "family"}
    values |= {
        "device": asked.device,
        "batch_size": cell.batch_size,
        "seq_len": cell.seq_len,
        "weights": cell.weights,
    }
    values |= {
        "steps": steps,
        "dtype": asked.dtype,
        "learning_rate": asked.learning_rate,
        "clip": asked.clip,
    }
    compiled = asked.device == "cuda" and asked.compile == "true"
    gpt = cell.sizes["family"] == "gpt"
    if name == "floor":
        values |= {
            "family": cell.sizes["family"],
            "compile": cell.floor_compile if compiled else "false",
        }
        values["parallel"] = "none" if asked.gpus == 1 else asked.parallel
    else:
        values |= {
            "compile": str(compiled).lower(),
            "parallel": "auto" if asked.gpus == 1 else asked.parallel,
        }
        values |= (
            {"norm": "layer", "positions": "learned", "bias": "true", "max_positions": cell.seq_len}
            if gpt
            else {}
        )
        values |= {} if gpt else {"norm": "rms", "positions": "rotary", "gated": "true"}
        values["solo_steps"] = 0
    words = [
        word for key, value in values.items() for word in (f"--{key.replace('_', '-')}", str(value))
    ]
    return [*words, *shlex.split(getattr(asked, name))]


def as_run(option: str, cell: Cell, asked: argparse.Namespace) -> str:
    """Return what both programs are given for an option, or what each is: the last of its arguments
    counts, as with --ours.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{option}")
    values = {
        name: getattr(parser.parse_known_args(arguments(name, cell, asked, 0))[0], option)
        for name in PROGRAMS
    }
    return (
        values["ours"]
        if values["ours"] == values["floor"]
        else f"{values['ours']} (floor {values['floor']})"
    )


@dataclass
class Program:
    """A running program: its ranks, and the lines of its rank 0 as they come."""

    name: str
    ranks: list[subprocess.Popen[str]]
    errors: Path
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)
    losses: list[float] = field(default_factory=list)
    memory: int = 0

    def listen(self) -> None:
        """Pass on what rank 0 prints; None at the end."""
        stream = self.ranks[0].stdout
        assert stream
        for line in stream:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def next_step(self) -> float:
        """Return the seconds of the next step. Ends this program if there is none."""
        while (line := self.lines.get(timeout=900)) is not None:
            if step := LINES[self.name].match(line):
                if int(step[1]) == 0:
                    continue
                self.losses.append(float(step[3]))
                return float(step[2])
        sys.exit(f"{self.name}: expected more steps, it ended\n{self.errors.read_text()[-3000:]}")

    def warm(self, steps: int, pause: bool = True) -> None:
        """Let it compile and take its first steps."""
        for _ in range(steps):
            self.next_step()
        if pause:
            self.pause()

    def turn(self, steps: int) -> list[float]:
        """Let it train; return the seconds of ``steps`` steps after those at the start that do not
        count.
        """
        self.send(signal.SIGCONT)
        for _ in range(DROPPED):
            self.next_step()
        return [self.next_step() for _ in range(steps)]

    def pause(self) -> None:
        """Stop it, and drop the lines of steps that it took meanwhile."""
        self.send(signal.SIGSTOP)
        time.sleep(0.1)  # what the pipe still holds; a GPU's queue runs empty in this time
        for _ in range(self.lines.qsize()):
            self.next_step()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all ranks."""
        for rank in self.ranks:
            rank.send_signal(number)

    def rest(self) -> None:
        """Let it train to its end. Ends this program if it failed, or if its loss has not fallen."""
        self.send(signal.SIGCONT)
        while (line := self.lines.get(timeout=900)) is not None:
            if step := LINES[self.name].match(line):
                self.losses.append(float(step[3]))
            if memory := MEMORY[self.name].match(line):
                self.memory = int(memory[1])
        if any([rank.wait() for rank in self.ranks]):
            sys.exit(
                f"{self.name}: exit status {self.ranks[0].returncode}\n{self.errors.read_text()[-3000:]}"
            )
        first, last = (
            statistics.mean(self.losses[1:3]),
            statistics.mean(self.losses[-2:]),
        )  # two batches take turns
        if not last < first:
            sys.exit(
                f"{self.name}: expected a loss that falls, got {first:.4f} at first and {last:.4f} at last"
            )

    def end(self) -> None:
        """Leave nothing behind."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()


def started(name: str, cell: Cell, asked: argparse.Namespace, steps: int, folder: Path) -> Program:
    """Start a program on all GPUs, one process each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cache = folder / name / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    errors = folder / name / "errors.txt"
    ranks = []
    for rank in range(asked.gpus):
        identity = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": asked.gpus,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        environment = {**os.environ, **{key: str(value) for key, value in identity.items()}}
        environment |= {
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(TRAINERS / "common"),
        }
        environment.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(asked.gpus))))
        out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        with errors.open("w" if rank == 0 else "a") as stream:
            command = [
                sys.executable,
                "-u",
                str(PROGRAMS[name]),
                *arguments(name, cell, asked, steps),
            ]
            ranks.append(
                subprocess.Popen(command, env=environment, stdout=out, stderr=stream, text=True)
            )
    program = Program(name, ranks, errors)
    threading.Thread(target=program.listen, daemon=True).start()
    return program


def together(
    cell: Cell, asked: argparse.Namespace, window: int, folder: Path
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return mean seconds of a step in each round, and peak memory, of programs that take turns."""
    steps = asked.warmup_steps + (asked.rounds + 1) * (
        DROPPED + window + 4
    )  # 4: until a stop takes effect
    programs: dict[str, Program] = {}
    means: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    try:
        for name in PROGRAMS:
            programs[name] = started(name, cell, asked, steps, folder)
        with (
            ThreadPoolExecutor() as pool
        ):  # both compile at the same time, and each stops when it is warm
            list(pool.map(lambda program: program.warm(asked.warmup_steps), programs.values()))
        for number in range(asked.rounds):
            for name in list(PROGRAMS)[:: -1 if number % 2 else 1]:
                means[name].append(statistics.mean(programs[name].turn(window)))
                programs[name].pause()
            said_round(number, means)
        for program in programs.values():
            program.rest()
    finally:
        for program in programs.values():
            program.end()
    return means, {name: program.memory for name, program in programs.items()}


def apart(
    cell: Cell, asked: argparse.Namespace, window: int, folder: Path
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the same of programs that are started anew for each round, because a GPU has room for
    one or because ranks would wait for each other on it."""
    means: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    memory = {}
    for number in range(asked.rounds_apart):
        for name in list(PROGRAMS)[:: -1 if number % 2 else 1]:
            program = started(name, cell, asked, asked.warmup_steps + window, folder)
            try:
                program.warm(asked.warmup_steps, pause=False)
                means[name].append(statistics.mean([program.next_step() for _ in range(window)]))
                program.rest()
            finally:
                program.end()
            memory[name] = program.memory
        said_round(number, means)
    return means, memory


def said_round(number: int, means: dict[str, list[float]]) -> None:
    """Print a round."""
    floor, ours = means["floor"][-1], means["ours"][-1]
    print(
        f"  round {number + 1}: floor {floor * 1e3:.2f} ms, ours {ours * 1e3:.2f} ms, {floor / ours:.4f}x",
        flush=True,
    )


def said(
    name: str, cell: Cell, means: dict[str, list[float]], memory: dict[str, int], peak: float
) -> None:
    """Print the table of a cell."""
    for program, seconds in means.items():
        speeds = sorted(cell.batch_size * cell.seq_len / mean_s for mean_s in seconds)
        tokens_per_s = statistics.median(speeds)
        tflops = tokens_per_s * cell.flops_per_token() / 1e12
        mfu = f"{tflops / peak:6.1%} MFU" if peak else "no peak known"
        spread = f"({speeds[0]:,.0f} to {speeds[-1]:,.0f})"
        gib = f"{memory[program] / 2**30:.1f} GiB" if memory[program] else ""
        print(
            f"  {name:15s} {program:5s} {tokens_per_s:>12,.0f} tokens/s {spread:24s} {tflops:8.2f} TFLOP/s {mfu} {gib}"
        )
    ratios = sorted(floor / ours for floor, ours in zip(means["floor"], means["ours"], strict=True))
    print(
        f"  {name:15s} ours {statistics.median(ratios):.4f}x ({ratios[0]:.4f} to {ratios[-1]:.4f}), n={len(ratios)}",
        flush=True,
    )


def main() -> None:
    """Run the cells, print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default=DEFAULT, help=f"some of {', '.join(CELLS)}")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--gpus", type=int, default=1, help="of this machine; on cpu processes")
    parser.add_argument(
        "--parallel", choices=["ddp", "fsdp"], default="ddp", help="with several GPUs"
    )
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--compile", choices=["true", "false"], default="true", help="on cuda")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--rounds-apart", type=int, default=2, help="of cells of which one program fits at a time"
    )
    parser.add_argument(
        "--window", type=int, default=0, help="steps of a round, 0: those of the cell"
    )
    parser.add_argument("--warmup-steps", type=int, default=5)
    parser.add_argument(
        "--peak-tflops", type=float, default=0.0, help="dense bf16, 0: by the name of the device"
    )
    parser.add_argument("--floor", default="", help="more arguments of lm_floor.py, in one word")
    parser.add_argument("--ours", default="", help="more arguments of the trainer, in one word")
    asked = parser.parse_args()
    names = asked.cells.split(",")
    if unknown := [name for name in names if name not in CELLS]:
        sys.exit(f"--cells: expected some of {', '.join(CELLS)}, got {', '.join(unknown)}")
    device, gib = "cpu", math.inf
    if asked.device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        first = subprocess.run(
            query, capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
        device, gib = first.rpartition(", ")[0], float(first.rpartition(", ")[2]) / 1024
    peak = asked.peak_tflops or next(
        (value for name, value in PEAK_TFLOPS.items() if name in device), 0.0
    )
    for name in names:
        cell, began = CELLS[name], time.monotonic()
        window = asked.window or cell.window
        dtype, weights = (as_run(option, cell, asked) for option in ("dtype", "weights"))
        print(
            f"{name}: {device}, {asked.gpus} at once, {dtype}, weights {weights}, {cell.seq_len} tokens, ",
            end="",
        )
        print(f"micro-batch {cell.batch_size}, windows of {window} steps", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            take_turns = cell.gib <= gib and asked.gpus == 1
            means, memory = (together if take_turns else apart)(cell, asked, window, Path(folder))
        said(name, cell, means, memory, peak)
        print(f"  {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
