"""gemm.py and memory_bandwidth.py against loops of a few lines, on one device and in one process,
in alternation.

    python3 benchmarks/devices.py

For each type and kernel: what the program prints, what the loop reaches, both the median of the
rounds, and the median ratio of the two in a round. Each side runs for the same time, the warm-up
included, with numbers of the same distribution; the sides change places from round to round. On a
GPU the exit status is 1 if a ratio is off by more than 1 %, on a CPU, where another program may
interfere, by more than 10 %. Needs PyTorch, and no part of orch but its remote/.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "remote" / "trainers" / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "remote" / "trainers" / "torch"))

import gemm
import memory_bandwidth
from torch_ranks import CAPABILITY, World, claim, identity, join

STEPS, WARMUP_STEPS, STEP_SECONDS = 15, 5, 0.1
SIDES = ("program", "loop")


def seconds_per_call(device: torch.device, call: Callable[[], Any]) -> float:
    """Return the seconds of a call, as one measures them by hand: warm up, then many calls between
    two looks at the clock.
    """

    def idle() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(3):
        call()
    begin = idle()
    for _ in range(5):
        call()
    calls = max(5, int(STEP_SECONDS / ((idle() - begin) / 5)))
    for _ in range(calls * WARMUP_STEPS):
        call()
    begin = idle()
    for _ in range(calls * (STEPS - WARMUP_STEPS)):
        call()
    return (idle() - begin) / (calls * (STEPS - WARMUP_STEPS))


def gemm_by_hand(device: torch.device, dtype: str, size: int) -> float:
    """Return TFLOP/s of a loop of products."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    if dtype == "fp8":
        x, y, one = (
            a.to(torch.float8_e4m3fn),
            b.to(torch.float8_e4m3fn).t(),
            torch.tensor(1.0, device=device),
        )
        taken = seconds_per_call(
            device,
            lambda: torch._scaled_mm(x, y, one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
        )
    else:
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(dtype, torch.float32)
        x, y = a.to(kind), b.to(kind)
        taken = seconds_per_call(device, lambda: torch.matmul(x, y))
    return 2 * size * size * size / taken / 1e12


def memory_by_hand(device: torch.device, kernel: str, size: int) -> float:
    """Return GB/s of a loop of one kernel of STREAM."""
    a, b, c = (torch.rand(size // 8, device=device, dtype=torch.float64) for _ in range(3))
    call: Callable[[], Any] = {
        "copy": lambda: c.copy_(a),
        "scale": lambda: torch.mul(c, 3.0, out=b),
        "add": lambda: torch.add(a, b, out=c),
        "triad": lambda: torch.add(b, c, alpha=3.0, out=a),
    }[kernel]
    return (
        {"copy": 2, "scale": 2, "add": 3, "triad": 3}[kernel]
        * size
        / seconds_per_call(device, call)
        / 1e9
    )


def printed(program: ModuleType, world: World, flags: list[str], pattern: str) -> list[float]:
    """Run a program's measurement in this process and return the numbers that a pattern finds in
    what it prints.
    """
    sys.argv = [program.__name__, "--device", world.device.type, *flags]
    sys.argv += [
        "--steps",
        str(STEPS),
        "--warmup-steps",
        str(WARMUP_STEPS),
        "--step-seconds",
        str(STEP_SECONDS),
    ]
    with redirect_stdout(io.StringIO()) as out:
        program.cases(program.arguments(), world)
    return [float(text) for text in re.findall(pattern, out.getvalue())]


def types(device: torch.device) -> list[str]:
    """Return the types that this device multiplies."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    capability = torch.cuda.get_device_capability(device)
    return [dtype for dtype in gemm.TYPES if capability >= CAPABILITY.get(dtype, (0, 0))]


def main() -> None:
    """Measure both sides in every round, and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--size", type=int, default=0, help="rows of the matrices; 8192 on cuda, 512 on cpu"
    )
    parser.add_argument(
        "--size-bytes", type=int, default=0, help="bytes of an array; 1 GiB on cuda, 128 MiB on cpu"
    )
    asked = parser.parse_args()
    cuda = asked.device == "cuda"
    size, size_bytes = (
        asked.size or (8192 if cuda else 512),
        asked.size_bytes or (1 << 30 if cuda else 128 << 20),
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    options = argparse.Namespace(device=asked.device, threads=1, backend="auto", timeout_s=120.0)
    me = identity()
    world = join(options, me, claim(options, me.local_rank))
    cases: dict[str, dict[str, Callable[[], list[float]]]] = {}
    for dtype in types(world.device):
        cases[f"gemm {dtype} {size}, TFLOP/s"] = {
            "program": lambda d=dtype: printed(  # type: ignore[misc]
                gemm, world, ["--dtype", d, "--sizes", str(size)], r" tflops=([\d.]+)"
            ),
            "loop": lambda d=dtype: [gemm_by_hand(world.device, d, size)],  # type: ignore[misc]
        }
    cases[f"memory {size_bytes}, GB/s"] = {
        "program": lambda: printed(
            memory_bandwidth, world, ["--sizes", str(size_bytes)], r" gb_per_s=([\d.]+)"
        ),
        "loop": lambda: [
            memory_by_hand(world.device, kernel, size_bytes)
            for kernel in ("copy", "scale", "add", "triad")
        ],
    }
    print(f"{world.name}, PyTorch {torch.__version__}, {asked.rounds} rounds")
    furthest = 0.0
    for name, sides in cases.items():
        by_side: dict[str, list[list[float]]] = {side: [] for side in SIDES}
        for number in range(asked.rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                by_side[side].append(sides[side]())
        for at, label in enumerate(
            ("copy", "scale", "add", "triad") if name.startswith("memory") else ("",)
        ):
            program, loop = ([values[at] for values in by_side[side]] for side in SIDES)
            ratios = [own / other for own, other in zip(program, loop, strict=True)]
            ratio = statistics.median(ratios)
            furthest = max(furthest, abs(ratio - 1))
            print(
                f"{name} {label:5} program {statistics.median(program):9.3f}  loop {statistics.median(loop):9.3f}"
                f"  ratio {ratio:.4f} ({min(ratios):.4f} to {max(ratios):.4f})",
                flush=True,
            )
    sys.stdout.flush()
    os._exit(int(furthest > (0.01 if cuda else 0.1)))


if __name__ == "__main__":
    main()
