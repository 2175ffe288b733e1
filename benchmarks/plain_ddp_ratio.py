"""The PyTorch trainer compared with a plain DistributedDataParallel script (plain_ddp.py) on this machine.

    python benchmarks/plain_ddp_ratio.py [--gpus 1,2,4,8] [--dtype fp16] [--batch-size 256] [--rounds 3]
                                         [--modes eager,compiled,graphs,best]
    python benchmarks/plain_ddp_ratio.py --device cpu --gpus 1,2 --dtype fp32 --batch-size 4 --image-size 64 --steps 8 \
                                         --warmup-steps 3

Needs PyTorch and nothing else. Both run under torchrun with the same type, batch size per GPU and steps; a mode says how. They
alternate, because a warm GPU is slower than an idle one. The output has medians in images/s of all GPUs together, the ratio of
ours (orch's trainer) to plain with its minimum and maximum over all rounds, and the efficiency of each if one GPU was measured.
A run whose loss did not fall ends the benchmark, and so does a plain script compiled in pieces. In the mode `best`, each side
has all that it offers.
"""

from __future__ import annotations

import argparse
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
PROGRAMS = {"plain": HERE / "plain_ddp.py", "ours": HERE.parent / "remote" / "train_pytorch.py"}
STEP = re.compile(r"^orch step=(\d+) .*?step_time_s=([0-9.]+) samples=(\d+) loss=(\S+)", re.M)
PLAIN = re.compile(r"^images/s: ([0-9.]+)$", re.M)
GRAPHS = re.compile(r"^compiled graphs: ([0-9]+)$", re.M)
MODES = {
    "eager": ("", "--compile none"),
    "compiled": ("--compile", "--compile default"),
    "graphs": ("--compile --cuda-graphs", "--compile reduce-overhead"),
    "best": ("--compile --cuda-graphs --compile-level tuned --max-pool gathered", "--compile max-autotune"),
}
"""By mode: the arguments of ours and those of plain."""


def main() -> None:
    """Run the rounds, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1", help="of this machine, several with commas; on cpu processes")
    parser.add_argument("--modes", default="eager", help=f"several with commas, of {', '.join(MODES)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default="", help="another script with the arguments and the lines of plain_ddp.py")
    asked = parser.parse_args()
    counts, modes = [int(count) for count in asked.gpus.split(",")], asked.modes.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        sys.exit(f"--modes: expected some of {', '.join(MODES)}, got {', '.join(unknown)}")
    if asked.device == "cuda" and max(counts) > torch.cuda.device_count():
        sys.exit(f"--gpus: expected at most the {torch.cuda.device_count()} that PyTorch finds, got {max(counts)}")
    speeds: dict[tuple[str, str, int], list[float]] = {}
    for number in range(asked.rounds):
        for mode in modes:
            for gpus in counts:
                for name in PROGRAMS:
                    speeds.setdefault((name, mode, gpus), []).append(speed(name, mode, gpus, asked))
                plain, ours = (speeds[name, mode, gpus][-1] for name in PROGRAMS)
                print(
                    f"round {number + 1}, {mode}, {gpus}: plain {plain:.2f}, ours {ours:.2f}, {ours / plain:.3f}x", flush=True
                )
    print(f"{asked.device}, {asked.dtype}, batch {asked.batch_size} each, medians of {asked.rounds}, images/s:")
    for mode in modes:
        for gpus in counts:
            pairs = zip(speeds["ours", mode, gpus], speeds["plain", mode, gpus], strict=True)
            ratios = [ours / plain for ours, plain in pairs]
            print(
                f"  {mode:9} {gpus:3d}  " + "   ".join(said(name, mode, gpus, speeds) for name in PROGRAMS),
                f"  ours {statistics.median(ratios):.3f}x ({min(ratios):.3f} to {max(ratios):.3f})",
            )


def speed(name: str, mode: str, gpus: int, asked: argparse.Namespace) -> float:
    """Return images/s of all GPUs after the warm-up. Ends this program if the trainer failed or did not train."""
    script = asked.peer if name == "plain" and asked.peer else str(PROGRAMS[name])
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(gpus), script]
    for option in ("device", "dtype", "batch_size", "image_size", "steps", "warmup_steps"):
        argv += [f"--{option.replace('_', '-')}", str(getattr(asked, option))]
    of_mode = shlex.split(MODES[mode][name == "plain"])
    done = subprocess.run([*argv, *of_mode], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}, {mode}, on {gpus}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    if name == "plain":
        for graphs in GRAPHS.findall(done.stdout) if mode != "eager" else ():
            if graphs != "1":
                sys.exit(f"{name}, {mode}, on {gpus}: expected one compiled graph, got {graphs}: as such it is no peer")
        return float(PLAIN.findall(done.stdout)[0])
    steps = [(int(at), float(took), int(samples), float(loss)) for at, took, samples, loss in STEP.findall(done.stdout)]
    losses = [loss for at, _, _, loss in steps if at > 0]
    if not losses[-1] < losses[0]:
        sys.exit(f"{name}, {mode}, on {gpus}: expected a loss below {losses[0]:.4f}, got {losses[-1]:.4f}")
    window = [(took, samples) for at, took, samples, _ in steps if at > asked.warmup_steps]
    return sum(samples for _, samples in window) / sum(took for took, _ in window)


def said(name: str, mode: str, gpus: int, speeds: dict[tuple[str, str, int], list[float]]) -> str:
    """Return the median, and the efficiency if one GPU was measured."""
    speed = statistics.median(speeds[name, mode, gpus])
    if gpus == 1 or (name, mode, 1) not in speeds:
        return f"{name} {speed:.2f}"
    return f"{name} {speed:.2f} ({speed / (gpus * statistics.median(speeds[name, mode, 1])):.1%})"


if __name__ == "__main__":
    main()
