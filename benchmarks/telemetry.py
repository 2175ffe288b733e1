"""What sampling costs, and whether its joules are those of nvidia-smi.

    orch lab exec -- python benchmarks/telemetry.py --rounds 10 -- resnet50 -f simulated --set compute_ms=60 --steps 300
    python benchmarks/telemetry.py --rounds 10 -- resnet50 --gpus 1 --steps 400 --warmup-steps 100

Each round is a run with the sampler and one without, in turn first and second; the words after ``--`` are those of `orch
bench`. Printed are the ratio of the speeds with its 95 % interval, the processor time of the sampling process in percent of
one core, its start included, and where GPUs were sampled on this machine, their joules per sample beside those of nvidia-smi,
whose readings of power are taken by a process of its own ten times a second and integrated over the same window.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from orchestrator.record import Project, RunDir
from orchestrator.record.telemetry import TELEMETRY, telemetry_of
from orchestrator.results import RunResult, median
from orchestrator.results.numbers.intervals import ratio_interval
from orchestrator.results.read import read_run
from orchestrator.results.telemetry.over_window import mean_over

QUERY = ["nvidia-smi", "--query-gpu=uuid,timestamp,power.draw", "--format=csv,noheader,nounits", "--loop-ms=100"]


def one_run(words: list[str], sampled: bool) -> tuple[RunResult, Path]:
    """Make one run and return its result and its folder."""
    more = ["--repeats", "1", "--no-baseline", "--json", "--telemetry" if sampled else "--no-telemetry"]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "bench", *words, *more], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"orch bench ended with {done.returncode}: {done.stderr[-2000:]}")
    run_id = json.loads(done.stdout)["rows"][0]["run_ids"][0]
    (folder,) = Project.here(os.environ).runs.glob(f"*/{run_id}")
    return read_run(RunDir(folder)), folder


def costs(folder: Path) -> list[tuple[str, float, float]]:
    """Return (host, seconds of a processor, seconds of sampling) of each node's sampling process."""
    found = []
    for path in sorted(folder.glob(f"logs/*/{TELEMETRY}")):
        if samples := telemetry_of(path.read_bytes(), path.parent.name):
            seconds = samples.times[-1] - samples.times[0]
            found.append((path.parent.name, (samples.cost or 0.0) * seconds, seconds))
    return found


def joules_by_smi(log: Path, run: RunResult) -> float | None:
    """Return the joules per sample by nvidia-smi's readings on this machine, over the window of a run on it."""
    if not run.tempo or run.tempo.clock is None or not run.throughput or not run.use:
        return None
    begin = run.tempo.clock + time.time() - time.monotonic()
    wanted = {gpu.uuid for node in run.use.nodes for gpu in node.gpus}
    powers: dict[str, list[tuple[float, float]]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        uuid, _, rest = line.partition(", ")
        at, _, watts = rest.rpartition(", ")
        try:
            point = datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp(), float(watts)
        except ValueError:
            continue
        powers.setdefault(uuid, []).append(point)
    means = [mean_over(powers.get(uuid, []), begin, begin + run.throughput.seconds) for uuid in wanted]
    return sum(watts or 0.0 for watts in means) / (run.speed or 1.0) if means and all(means) else None


def main() -> None:
    """Print the ratio of the speeds, the cost of sampling, and joules per sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("words", nargs="+", help="the words of orch bench, after --")
    asked = parser.parse_args()
    speeds: dict[bool, dict[int, float]] = {True: {}, False: {}}
    used: dict[str, list[tuple[float, float]]] = {}
    joules: list[tuple[float, float]] = []
    for number in range(asked.rounds):
        for sampled in (number % 2 == 0, number % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                log = Path(folder, "power.csv")
                with log.open("wb") as file:
                    smi = subprocess.Popen(QUERY, stdout=file) if sampled and shutil.which(QUERY[0]) else None
                    run, where = one_run(asked.words, sampled)
                    if smi:
                        smi.terminate()
                        smi.wait()
                assert run.speed, run.error
                speeds[sampled][number] = run.speed
                for host, core_s, seconds in costs(where):
                    used.setdefault(host, []).append((core_s, seconds))
                own = run.use.energy_per_sample if run.use else None
                if own and (theirs := joules_by_smi(log, run)):
                    joules.append((own, theirs))
        print(f"round {number + 1}: {speeds[True][number] / speeds[False][number]:.5f} of the speed without", flush=True)
    ratios = [speeds[True][number] / speeds[False][number] for number in speeds[True]]
    interval = ratio_interval(speeds[True], speeds[False])
    reach = f", 95 % {interval.low:.5f} to {interval.high:.5f}" if interval else ""
    print(f"speed with the sampler over that without: median {median(ratios):.5f}{reach}, {len(ratios)} rounds")
    for host, each in used.items():
        shares = [100 * core_s / seconds for core_s, seconds in each if seconds]
        runs = f"{len(each)} runs of {median([seconds for _, seconds in each]):.0f} s"
        print(f"{host}: {median(shares):.3f} % of one core, at most {max(shares):.3f} %, {runs}")
    if joules:
        apart = [own / theirs - 1 for own, theirs in joules]
        print(f"J per sample: {median([own for own, _ in joules]):.4f}, nvidia-smi {median([t for _, t in joules]):.4f}")
        print(f"apart: median {median(apart):+.2%}, {min(apart):+.2%} to {max(apart):+.2%}")


if __name__ == "__main__":
    main()
