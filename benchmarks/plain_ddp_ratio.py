"""The PyTorch trainer compared with a plain DistributedDataParallel script (plain_ddp.py) on this machine.

    python benchmarks/plain_ddp_ratio.py [--gpus 1,2,4,8] [--dtype fp16] [--batch-size 256] [--rounds 3]
                                         [--modes eager,compiled,graphs,tuned] [--limit-s 300]
    python benchmarks/plain_ddp_ratio.py --device cpu --gpus 1,2 --dtype fp32 --batch-size 4 --image-size 64 --steps 8 \
                                         --warmup-steps 3

Needs PyTorch and nothing else. Both run under torchrun with the same type, batch size per GPU and steps; a mode says how. They
alternate, because a warm GPU is slower than an idle one. The output has medians in images/s of all GPUs together, the ratio of
ours (orch's trainer) to plain with its minimum and maximum over all rounds, the same for the fastest mode of each ("best"), and
the efficiency of each if one GPU was measured. A run whose loss did not fall ends the benchmark, and so does a plain script
compiled in pieces. A program that has not ended after --limit-s is killed and not run again in that mode: the search of the
mode `tuned` takes minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
TRAINERS = HERE.parent / "remote" / "trainers"
PROGRAMS = {"plain": HERE / "plain_ddp.py", "ours": TRAINERS / "torch" / "train_pytorch.py"}
STEP = re.compile(r"^orch step=(\d+) .*?step_time_s=([0-9.]+) samples=(\d+) loss=(\S+)", re.M)
PLAIN = re.compile(r"^images/s: ([0-9.]+)$", re.M)
GRAPHS = re.compile(r"^compiled graphs: ([0-9]+)$", re.M)
MODES = {
    "eager": ("", "--compile none"),
    "compiled": ("--compile", "--compile default"),
    "graphs": ("--compile --cuda-graphs", "--compile reduce-overhead"),
    "tuned": ("--compile --cuda-graphs --compile-level tuned", "--compile tuned"),
}
"""By mode: the arguments of our trainer and of the plain script."""
Speeds = dict[tuple[str, str, int], list[float]]
"""By program, mode and GPUs: images/s of each round."""


def main() -> None:
    """Run the rounds, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus", default="1", help="of this machine, several with commas; on cpu processes"
    )
    parser.add_argument(
        "--modes", default="eager", help=f"several with commas, of {', '.join(MODES)}"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--limit-s",
        type=float,
        default=600.0,
        help="longest time of a program, compilation included",
    )
    parser.add_argument(
        "--peer", default="", help="another script with the arguments and the lines of plain_ddp.py"
    )
    asked = parser.parse_args()
    counts, modes = [int(count) for count in asked.gpus.split(",")], asked.modes.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        sys.exit(f"--modes: expected some of {', '.join(MODES)}, got {', '.join(unknown)}")
    if asked.device == "cuda" and max(counts) > torch.cuda.device_count():
        sys.exit(
            f"--gpus: expected at most the {torch.cuda.device_count()} that PyTorch finds, got {max(counts)}"
        )
    speeds: Speeds = {
        (name, mode, gpus): [] for name in PROGRAMS for mode in modes for gpus in counts
    }
    for number in range(asked.rounds):
        for mode in modes:
            for gpus in counts:
                for name in PROGRAMS:
                    measure(name, mode, gpus, asked, number, speeds)
    print(
        f"{asked.device}, {asked.dtype}, batch {asked.batch_size} each, medians of {asked.rounds}, images/s:"
    )
    for gpus in counts:
        for mode in modes:
            print(f"  {mode:9} {gpus:3d}  {compared(dict.fromkeys(PROGRAMS, mode), gpus, speeds)}")
        if len(modes) > 1 and all(
            any(speeds[name, mode, gpus] for mode in modes) for name in PROGRAMS
        ):
            best = {name: fastest(name, modes, gpus, speeds) for name in PROGRAMS}
            of_which = ", ".join(f"{name} {mode}" for name, mode in best.items())
            print(f"  {'best':9} {gpus:3d}  {compared(best, gpus, speeds)}  ({of_which})")


def measure(
    name: str, mode: str, gpus: int, asked: argparse.Namespace, number: int, speeds: Speeds
) -> None:
    """Run a program in a round, keep and print its speed, and its ratio to plain's of that round.
    Does nothing if the program did not end in an earlier round."""
    kept = speeds[name, mode, gpus]
    if len(kept) < number:
        return
    began = time.monotonic()
    reached = speed(name, mode, gpus, asked)
    heading, seconds = (
        f"round {number + 1}, {mode}, {gpus}: {name}",
        f"{time.monotonic() - began:.0f} s",
    )
    if reached is None:
        print(f"{heading} was killed after {seconds}", flush=True)
        return
    kept.append(reached)
    plain = speeds["plain", mode, gpus]
    ratio = f", {reached / plain[number]:.3f}x" if name == "ours" and len(plain) > number else ""
    print(f"{heading} {reached:.2f}{ratio} ({seconds})", flush=True)


def speed(name: str, mode: str, gpus: int, asked: argparse.Namespace) -> float | None:
    """Return images/s of all GPUs after the warm-up, None if that took too long. Ends this program
    if the trainer failed or did not train."""
    script = asked.peer if name == "plain" and asked.peer else str(PROGRAMS[name])
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(gpus),
        script,
    ]
    for option in ("device", "dtype", "batch_size", "image_size", "steps", "warmup_steps"):
        argv += [f"--{option.replace('_', '-')}", str(getattr(asked, option))]
    argv += shlex.split(MODES[mode][name == "plain"])
    environment = {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
        **os.environ,
        "PYTHONPATH": str(TRAINERS / "common"),
    }
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(argv, stdout=out, stderr=errors, env=environment)
        try:
            process.wait(asked.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)
        out.seek(0)
        errors.seek(0)
        stdout, stderr = out.read(), errors.read()
    if process.returncode:
        sys.exit(f"{name}, {mode}, on {gpus}: exit status {process.returncode}\n{stderr[-2000:]}")
    if name == "plain":
        for graphs in GRAPHS.findall(stdout) if mode != "eager" else ():
            if graphs != "1":
                sys.exit(
                    f"{name}, {mode}, on {gpus}: expected one compiled graph, got {graphs}: as such it is no peer"
                )
        return float(PLAIN.findall(stdout)[0])
    steps = [
        (int(at), float(took), int(samples), float(loss))
        for at, took, samples, loss in STEP.findall(stdout)
    ]
    losses = [loss for at, _, _, loss in steps if at > 0]
    if not losses[-1] < losses[0]:
        sys.exit(
            f"{name}, {mode}, on {gpus}: expected a loss below {losses[0]:.4f}, got {losses[-1]:.4f}"
        )
    window = [(took, samples) for at, took, samples, _ in steps if at > asked.warmup_steps]
    return sum(samples for _, samples in window) / sum(took for took, _ in window)


def end(process: subprocess.Popen[bytes]) -> None:
    """End torchrun, which ends its ranks when it is terminated, if it has not ended."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def fastest(name: str, modes: list[str], gpus: int, speeds: Speeds) -> str:
    """Return the mode in which a program is fastest by its median."""
    medians = {
        mode: statistics.median(speeds[name, mode, gpus])
        for mode in modes
        if speeds[name, mode, gpus]
    }
    return max(medians, key=medians.__getitem__)


def compared(modes: dict[str, str], gpus: int, speeds: Speeds) -> str:
    """Return the medians of both programs, each in its mode, and the ratio of ours to plain over
    the rounds.
    """
    ran = {name: speeds[name, mode, gpus] for name, mode in modes.items()}
    medians = [said(name, mode, gpus, speeds) for name, mode in modes.items() if ran[name]]
    ratios = [ours / plain for ours, plain in zip(ran["ours"], ran["plain"], strict=False)]
    if ratios:
        medians.append(
            f"ours {statistics.median(ratios):.3f}x ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return "   ".join(medians) or "no result"


def said(name: str, mode: str, gpus: int, speeds: Speeds) -> str:
    """Return the median, and the efficiency if one GPU was measured."""
    speed = statistics.median(speeds[name, mode, gpus])
    if gpus == 1 or not speeds.get((name, mode, 1)):
        return f"{name} {speed:.2f}"
    return f"{name} {speed:.2f} ({speed / (gpus * statistics.median(speeds[name, mode, 1])):.1%})"


if __name__ == "__main__":
    main()
