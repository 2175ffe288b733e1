"""The PyTorch trainer compared with a plain DistributedDataParallel script (plain_ddp.py) on this machine.

    python benchmarks/plain_ddp_ratio.py [--gpus 1,2,4,8] [--dtype fp16] [--batch-size 256] [--rounds 3]
                                         [--ours "--cuda-graphs"] [--plain "--compile"]
    python benchmarks/plain_ddp_ratio.py --device cpu --gpus 1,2 --dtype fp32 --batch-size 4 --image-size 64 --steps 8 \
                                         --warmup-steps 3

Needs PyTorch and nothing else. Both run under torchrun with the same type, batch size per GPU and steps; --ours and --plain
pass further arguments to each. The two alternate, because a warm GPU is slower than an idle one. The output has medians in
images/s of all GPUs together, the ratio of ours (orch's trainer) to plain with its minimum and maximum over all rounds, and,
if one GPU was measured, the efficiency of each.
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
STEP = re.compile(r"^orch step=(\d+) .*?step_time_s=([0-9.]+) samples=(\d+) ", re.M)
PLAIN = re.compile(r"^images/s: ([0-9.]+)$", re.M)


def main() -> None:
    """Run the rounds, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1", help="of this machine, several with commas; on cpu processes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours", default="", help="more arguments of the trainer, in one word")
    parser.add_argument("--plain", default="", help="more arguments of plain_ddp.py, in one word")
    asked = parser.parse_args()
    counts = [int(each) for each in asked.gpus.split(",")]
    if asked.device == "cuda" and max(counts) > torch.cuda.device_count():
        sys.exit(f"--gpus: expected at most the {torch.cuda.device_count()} that PyTorch finds, got {max(counts)}")
    speeds: dict[tuple[str, int], list[float]] = {(name, gpus): [] for gpus in counts for name in PROGRAMS}
    for number in range(asked.rounds):
        for gpus in counts:
            for name in PROGRAMS:
                speeds[name, gpus].append(speed(name, gpus, asked))
            plain, ours = (speeds[name, gpus][-1] for name in PROGRAMS)
            print(f"round {number + 1}, {gpus}: plain {plain:.2f}, ours {ours:.2f}, {ours / plain:.3f}x", flush=True)
    print(f"{asked.device}, {asked.dtype}, batch {asked.batch_size} each, medians of {asked.rounds}, images/s:")
    for gpus in counts:
        ratios = [ours / plain for ours, plain in zip(speeds["ours", gpus], speeds["plain", gpus], strict=True)]
        print(
            f"  {gpus:3d}  " + "   ".join(said(name, gpus, speeds) for name in PROGRAMS),
            f"  ours {statistics.median(ratios):.3f}x ({min(ratios):.3f} to {max(ratios):.3f})",
        )


def speed(name: str, gpus: int, asked: argparse.Namespace) -> float:
    """Return images/s of all GPUs after the warm-up. Ends this program if the trainer failed."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(gpus), str(PROGRAMS[name])]
    for option in ("device", "dtype", "batch_size", "image_size", "steps", "warmup_steps"):
        argv += [f"--{option.replace('_', '-')}", str(getattr(asked, option))]
    done = subprocess.run([*argv, *shlex.split(getattr(asked, name))], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} on {gpus}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    if name == "plain":
        return float(PLAIN.findall(done.stdout)[0])
    steps = [(float(took), int(samples)) for at, took, samples in STEP.findall(done.stdout) if int(at) > asked.warmup_steps]
    return sum(samples for _, samples in steps) / sum(took for took, _ in steps)


def said(name: str, gpus: int, speeds: dict[tuple[str, int], list[float]]) -> str:
    """Return the median, and the efficiency if one GPU was measured."""
    found = statistics.median(speeds[name, gpus])
    if gpus == 1 or (name, 1) not in speeds:
        return f"{name} {found:.2f}"
    return f"{name} {found:.2f} ({found / (gpus * statistics.median(speeds[name, 1])):.1%})"


if __name__ == "__main__":
    main()
