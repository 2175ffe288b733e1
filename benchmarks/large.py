"""The whole life of a run on as wide a cluster as a lab can simulate, repeated: failures, and the
controller's resources.

    orch lab up --nodes 256 && orch lab exec -- python benchmarks/large.py --nodes 256 [--rounds 10] [--watch-s 30]

With --light a rank is a loop of bash that prints the same lines, because Python programs for ranks
and their wrappers need 12 MiB a node; everything else of a run stays as it is.

A round is deploy, bench (the simulated framework, one rank per node), collect and summarize, in a
project of its own. The output has the seconds of each command, and for the bench the longest
silence of any node, the peak resident memory, the peak number of threads, and the controller's
share of one core while all nodes run and it only watches: from 5 s after the start to 5 s before
the end. Processor seconds count the controller alone. All nodes share this machine, so wall-clock
seconds count the whole machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ORCH = [sys.executable, "-m", "orchestrator"]
STEP_MS = 500
MARGIN_S = 5.0
LIGHT = """\
#!/bin/bash
set -euo pipefail
. ./env.sh
exec > logs/rank-{{ node.first_rank }}.out
exec 9<> <(:)
echo orch rank={{ node.first_rank }} local_rank=0 world_size={{ spec.world_size }} node_rank={{ node.node_rank }} \\
  host="$HOSTNAME" pid=$$ device=simulated
for ((step = 0; step <= {{ spec.steps }}; step++)); do
  {% if node.first_rank == 0 %}
  echo orch step=$step t=$EPOCHREALTIME step_time_s=0.5 samples=$((step ? {{ spec.world_size * spec.batch_size }} : 0)) loss=nan
  {% endif %}
  read -rt 0.5 -u 9 || :
done
{% if node.first_rank == 0 %}
echo 'orch done {"simulated": true, "world_size": {{ spec.world_size }}}'
{% endif %}
"""
assert STEP_MS == 500


@dataclass
class Usage:
    """Resources of one command: processor seconds by instant, peak memory in MiB, peak number of
    threads.
    """

    seconds: float = 0.0
    processor_s: float = 0.0
    processor: list[tuple[float, float]] = field(default_factory=list)
    memory_mib: float = 0.0
    threads: int = 0

    def sample(self, pid: int) -> None:
        """Sample the process once."""
        status = Path(f"/proc/{pid}/status").read_text()
        values = {
            line.split(":")[0]: line.split()[1]
            for line in status.splitlines()
            if len(line.split()) > 1
        }
        self.memory_mib = max(self.memory_mib, int(values.get("VmHWM", 0)) / 1024)
        self.threads = max(self.threads, int(values.get("Threads", 0)))
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.processor.append(
            (time.time(), (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"))
        )

    def share(self, begin: float, end: float) -> float:
        """Return the share of one core between two instants, as a fraction."""
        inside = [(at, took) for at, took in self.processor if begin <= at <= end]
        return (
            (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
            if len(inside) > 1
            else float("nan")
        )


def main() -> None:
    """Run the rounds and print their resources."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--watch-s", type=float, default=30.0, help="seconds that a run takes, about"
    )
    parser.add_argument("--light", action="store_true", help="ranks are loops of bash")
    asked = parser.parse_args()
    failed, shares, memory, threads = 0, [], [], []
    for number in range(1, asked.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                words, share, usage = one_round(Path(folder), asked)
            except subprocess.CalledProcessError as error:
                failed += 1
                print(
                    f"round {number}: FAILED {' '.join(error.cmd[2:4])}, {error.returncode}: {error.stderr[-1500:]}",
                    flush=True,
                )
                continue
        shares.append(share)
        memory.append(usage.memory_mib)
        threads.append(usage.threads)
        print(f"round {number}: {words}", flush=True)
    print(
        f"{asked.nodes} nodes, {asked.rounds} rounds, {failed} failed, load {os.getloadavg()[0]:.1f}"
    )
    if shares:
        print(
            f"  memory {max(memory):.0f} MiB at most, {max(threads)} threads at most, {max(threads) / asked.nodes:.2f} a node"
        )
        print(f"  watching: {statistics.median(shares):.1%} of one core, {max(shares):.1%} at most")


def one_round(project: Path, asked: argparse.Namespace) -> tuple[str, float, Usage]:
    """Run the four commands. Returns a text about them, the share of a core while watching, and the
    bench's resources.
    """
    hosts = ["--hosts", f"node[1-{asked.nodes}]"]
    steps = max(4, round(asked.watch_s * 1000 / STEP_MS))
    bench = [
        "bench",
        "resnet50",
        "--framework",
        "simulated",
        "--nodes",
        str(asked.nodes),
        "--gpus",
        "1",
        "--no-baseline",
    ]
    bench += ["--repeats", "1", "--steps", str(steps), "--warmup-steps", "2"]
    bench += ["--set", f"compute_ms={STEP_MS}", "--set", "gradient_mb=0.001"]
    if asked.light:
        folder = project / "templates" / "simulated"
        shutil.copytree(Path(__file__).parents[1] / "templates" / "simulated", folder)
        (folder / "launch.sh.j2").write_text(LIGHT)
        bench += ["--templates", str(folder.parent)]
    deployed = run(project, "deploy", "--framework", "simulated", *hosts)
    measured = run(project, *bench, *hosts)
    collected, summarized = run(project, "collect"), run(project, "summarize")
    (events,) = project.glob("runs/*/events.jsonl")
    at = {event["event"]: event["at"] for event in map(json.loads, events.read_text().splitlines())}
    (manifest,) = project.glob("runs/*/*/manifest.json")
    told = json.loads(manifest.read_text())
    silence_s = max(answer["longest_silence_s"] for answer in told["outcome"]["answers"].values())
    share = measured.share(at["started"] + MARGIN_S, at["finished"] - MARGIN_S)
    took = f"deploy {deployed.seconds:.1f} s ({deployed.processor_s:.1f} processor)"
    took += f", bench {measured.seconds:.1f} s ({measured.processor_s:.1f} processor)"
    took += f" ({at['started'] - at['planned']:.1f} to the start, {at['finished'] - at['started']:.1f} running,"
    took += (
        f" {at['collected'] - at['finished']:.1f} to bring home), collect {collected.seconds:.1f} s"
    )
    took += f", summarize {summarized.seconds:.1f} s; skew {told['start']['skew_s'] * 1e3:.1f} ms"
    took += f", longest silence {silence_s:.1f} s"
    return (
        took + f"; {measured.memory_mib:.0f} MiB, {measured.threads} threads, watching {share:.1%}",
        share,
        measured,
    )


def run(project: Path, *words: str) -> Usage:
    """Run one command of `orch` and sample it five times a second. Raises CalledProcessError."""
    argv, usage, began = [*ORCH, *words], Usage(), time.monotonic()
    with (project / "said").open("w+") as said:
        environment = {**os.environ, "ORCH_PROJECT": str(project)}
        child = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
        )
        while child.poll() is None:
            try:
                usage.sample(child.pid)
            except (OSError, IndexError):
                continue
            time.sleep(0.2)
        usage.seconds = time.monotonic() - began
        usage.processor_s = usage.processor[-1][1]
        if child.returncode:
            said.seek(0)
            raise subprocess.CalledProcessError(child.returncode, argv[1:], stderr=said.read())
    return usage


if __name__ == "__main__":
    main()
