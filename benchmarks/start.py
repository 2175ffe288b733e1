"""The time before the second step: the PyTorch trainer and a plain script (plain_ddp.py) started on
this machine.

    python benchmarks/start.py [--dtype fp16] [--batch-size 256] [--rounds 3]
    python benchmarks/start.py --device cpu --dtype fp32 --batch-size 4 --image-size 64

Needs PyTorch and nothing else. One rank under torchrun, 8 steps. The conditions alternate, after
one start that is not counted and brings the libraries into the page cache. Prints medians in
seconds: the whole run, the first step of the trainer (a plain script prints none), processor time
of all its processes.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAINERS = HERE.parent / "remote" / "trainers"
TRAINER, PLAIN = TRAINERS / "torch" / "train_pytorch.py", HERE / "plain_ddp.py"
FIRST_STEP = re.compile(r"^orch step=1 .*?step_time_s=([0-9.]+)", re.M)
NEW_DIRECTORY = "trainer, a new directory"
CONDITIONS: dict[str, tuple[Path, list[str], dict[str, str]]] = {
    "plain script": (PLAIN, [], {}),
    "trainer": (TRAINER, [], {}),
    NEW_DIRECTORY: (TRAINER, [], {}),
    "trainer, cuDNN's first choice": (TRAINER, ["--cudnn-benchmark", "false"], {}),
    "trainer, no compute cache": (TRAINER, [], {"CUDA_CACHE_DISABLE": "1"}),
    "trainer, one thread": (TRAINER, [], {"OMP_NUM_THREADS": "1"}),
}


def main() -> None:
    """Run the rounds, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch-size", default="256")
    parser.add_argument("--image-size", default="224")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    run("plain script", options)
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONDITIONS}
    for _ in range(options.rounds):
        for name, taken in rows.items():
            taken.append(run(name, options))
            print(f"{name}: {taken[-1][0]:.2f} s, first step {taken[-1][1]:.2f} s", flush=True)
    print(
        f"{'medians in s':30}  {'run':>6}  {'min':>6}  {'max':>6}  {'first step':>10}  {'processors':>10}"
    )
    for name, taken in rows.items():
        walls, firsts, busy = zip(*taken, strict=True)
        figures = f"{statistics.median(walls):6.2f}  {min(walls):6.2f}  {max(walls):6.2f}"
        print(
            f"{name:30}  {figures}  {statistics.median(firsts):10.2f}  {statistics.median(busy):10.2f}"
        )


def run(name: str, options: argparse.Namespace) -> tuple[float, float, float]:
    """Return seconds of a run, of its first step (NaN if it prints none) and of processors. Ends
    this program if it failed.
    """
    program, words, variables = CONDITIONS[name]
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "1",
        str(program),
    ]
    for option in ("device", "dtype", "batch_size", "image_size"):
        argv += [f"--{option.replace('_', '-')}", getattr(options, option)]
    argv += ["--steps", "8", "--warmup-steps", "4", *words]
    began, busy_before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as new:
        cwd = new if name == NEW_DIRECTORY else None
        environment = os.environ | {"PYTHONPATH": str(TRAINERS / "common")} | variables
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, cwd=cwd, env=environment
        )
    wall, busy = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{name}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    first = FIRST_STEP.search(done.stdout)
    processors = busy.ru_utime + busy.ru_stime - busy_before.ru_utime - busy_before.ru_stime
    return wall, float(first[1]) if first else float("nan"), processors


if __name__ == "__main__":
    main()
