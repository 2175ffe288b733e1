"""The cost of sampling, and its joules compared with nvidia-smi's.

    orch lab exec -- python benchmarks/telemetry.py --rounds 10 -- resnet50 -f simulated --set compute_ms=60 --steps 300
    python benchmarks/telemetry.py --rounds 10 -- resnet50 --gpus 1 --steps 400 --warmup-steps 100
    python benchmarks/telemetry.py --within 6 -- resnet50 --gpus 1 --steps 4000 --warmup-steps 100

Each round is a run with the sampler and one without, in turn first and second; the words after
``--`` are for `orch bench`. Printed are the ratio of the speeds with its 95 % interval, the
processor time of the sampling process in percent of one core, its start included, and where GPUs
were sampled on this machine, their joules per sample beside nvidia-smi's, whose readings of power
are taken by a process of its own ten times a second and integrated over the same window.

With ``--within SECONDS`` there is one run, on this machine, whose sampler is stopped and continued
by turns of so many seconds each, and each ratio compares consecutive turns: differences from run to
run cancel out. One ratio is of the steps per second, which hiccups of the machine scatter; the
other of the typical step, the median of a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from orchestrator.record import Project, RunDir
from orchestrator.record.telemetry import TELEMETRY, telemetry_of
from orchestrator.results import RunResult, median
from orchestrator.results.numbers.intervals import ratio_interval
from orchestrator.results.read import read_run
from orchestrator.results.telemetry.over_window import mean_over

EDGE_S = 0.5
QUERY = [
    "nvidia-smi",
    "--query-gpu=uuid,timestamp,power.draw",
    "--format=csv,noheader,nounits",
    "--loop-ms=100",
]


def one_run(words: list[str], sampled: bool) -> tuple[RunResult, Path]:
    """Make one run and return its result and its folder."""
    more = [
        "--repeats",
        "1",
        "--no-baseline",
        "--json",
        "--telemetry" if sampled else "--no-telemetry",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "bench", *words, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"orch bench ended with {done.returncode}: {done.stderr[-2000:]}")
    return result_of(done.stdout)


def result_of(output: str) -> tuple[RunResult, Path]:
    """Return the result of the one run of a bench, and its folder, from what `orch bench --json`
    has printed.
    """
    run_id = json.loads(output)["rows"][0]["run_ids"][0]
    (folder,) = Project.here(os.environ).runs.glob(f"*/{run_id}")
    return read_run(RunDir(folder)), folder


def costs(folder: Path) -> list[tuple[str, float, float]]:
    """Return (host, seconds of a processor, seconds of sampling) of each node's sampling process."""
    rows = []
    for path in sorted(folder.glob(f"logs/*/{TELEMETRY}")):
        if samples := telemetry_of(path.read_bytes(), path.parent.name):
            seconds = samples.times[-1] - samples.times[0]
            if samples.cost is not None:
                rows.append((path.parent.name, samples.cost * seconds, seconds))
    return rows


def joules_by_smi(log: Path, run: RunResult) -> float | None:
    """Return the joules per sample by nvidia-smi's readings on this machine, over the window of a
    run on it.
    """
    if not run.tempo or run.tempo.clock is None or not run.throughput or not run.use:
        return None
    begin = run.tempo.clock + time.time() - time.monotonic()
    uuids = {gpu.uuid for node in run.use.nodes for gpu in node.gpus}
    powers: dict[str, list[tuple[float, float]]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        uuid, _, rest = line.partition(", ")
        at, _, watts = rest.rpartition(", ")
        try:
            point = datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp(), float(watts)
        except ValueError:
            continue
        powers.setdefault(uuid, []).append(point)
    means = [
        mean_over(powers.get(uuid, []), begin, begin + run.throughput.seconds) for uuid in uuids
    ]
    return (
        sum(watts or 0.0 for watts in means) / (run.speed or 1.0) if means and all(means) else None
    )


def samplers() -> list[int]:
    """Return the sampling processes of this machine."""
    paths = (path for path in Path("/proc").glob("[0-9]*/comm"))
    return [int(path.parent.name) for path in paths if _text(path) == "orch-sampler\n"]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def turns_within(bench: subprocess.Popen[str], seconds: float) -> list[tuple[bool, float, float]]:
    """Stop and continue the sampler of a bench by turns until it ends. Return (sampled, begin, end)
    of each turn.
    """
    turns: list[tuple[bool, float, float]] = []
    while bench.poll() is None:
        running = samplers()
        sampled = len(turns) % 2 == 0
        if not running:
            time.sleep(0.1)
            continue
        begin = time.monotonic()
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if sampled else signal.SIGSTOP)
        with suppress(subprocess.TimeoutExpired):
            bench.wait(seconds)
        turns.append((sampled, begin, time.monotonic()))
    return turns


def within(words: list[str], seconds: float) -> None:
    """Print the ratio of the steps per second with the sampler to those without, within one run."""
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "bench",
        *words,
        "--repeats",
        "1",
        "--no-baseline",
        "--json",
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "power.csv")
        with log.open("wb") as file, Path(folder, "json").open("w+") as output:
            smi = subprocess.Popen(QUERY, stdout=file) if shutil.which(QUERY[0]) else None
            bench = subprocess.Popen(command, stdout=output, text=True)
            turns = turns_within(bench, seconds)
            if smi:
                smi.terminate()
                smi.wait()
            output.seek(0)
            run, where = result_of(output.read())
        assert run.speed, run.error
        path = next(where.glob("logs/*/rank-0.out"))
        instants = [
            float(at)
            for at in re.findall(r"^orch step=\d+ t=(\S+)", path.read_text(), re.MULTILINE)
        ]
        assert run.spec
        warm = instants[run.spec.warmup_steps]
        rates: list[tuple[bool, float, float]] = []
        for sampled, begin, end in turns:
            inside = [at for at in instants if max(warm, begin + EDGE_S) <= at <= end - EDGE_S]
            if len(inside) > 10 and begin > warm and end < instants[-1]:
                typical = median(
                    [later - earlier for earlier, later in zip(inside, inside[1:], strict=False)]
                )
                rates.append((sampled, (len(inside) - 1) / (inside[-1] - inside[0]), 1 / typical))
        pairs = [(a, b) if a[0] else (b, a) for a, b in zip(rates[::2], rates[1::2], strict=False)]
        print(f"{len(rates)} turns of {seconds:g} s")
        for place, name in ((1, "steps per second"), (2, "typical step")):
            with_it, without = (
                dict(enumerate(float(pair[side][place]) for pair in pairs)) for side in (0, 1)
            )
            interval = ratio_interval(with_it, without)
            around = f", 95 % {interval.low:.5f} to {interval.high:.5f}" if interval else ""
            ratio = median([with_it[number] / without[number] for number in with_it])
            print(
                f"speed with the sampler over that without, by {name}: median {ratio:.5f}{around}"
            )
        for host, core_s, lasted in costs(where):
            print(f"{host}: {100 * core_s / lasted:.3f} % of one core over {lasted:.0f} s")
        own = run.use.energy_per_sample if run.use else None
        if own and (theirs := joules_by_smi(log, run)):
            print(
                f"J per sample: {own:.4f}, nvidia-smi {theirs:.4f}, apart {own / theirs - 1:+.2%}"
            )


def main() -> None:
    """Print the ratio of the speeds, the cost of sampling, and joules per sample."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help="in one run, by turns of so many seconds"
    )
    parser.add_argument("words", nargs="+", help="the words of orch bench, after --")
    asked = parser.parse_args()
    if asked.within:
        within(asked.words, asked.within)
        return
    speeds: dict[bool, dict[int, float]] = {True: {}, False: {}}
    used: dict[str, list[tuple[float, float]]] = {}
    joules: list[tuple[float, float]] = []
    for number in range(asked.rounds):
        for sampled in (number % 2 == 0, number % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                log = Path(folder, "power.csv")
                with log.open("wb") as file:
                    smi = (
                        subprocess.Popen(QUERY, stdout=file)
                        if sampled and shutil.which(QUERY[0])
                        else None
                    )
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
        print(
            f"round {number + 1}: {speeds[True][number] / speeds[False][number]:.5f} of the speed without",
            flush=True,
        )
    ratios = [speeds[True][number] / speeds[False][number] for number in speeds[True]]
    interval = ratio_interval(speeds[True], speeds[False])
    reach = f", 95 % {interval.low:.5f} to {interval.high:.5f}" if interval else ""
    print(
        f"speed with the sampler over that without: median {median(ratios):.5f}{reach}, {len(ratios)} rounds"
    )
    for host, of_host in used.items():
        shares = [100 * core_s / seconds for core_s, seconds in of_host if seconds]
        runs = f"{len(of_host)} runs of {median([seconds for _, seconds in of_host]):.0f} s"
        print(f"{host}: {median(shares):.3f} % of one core, at most {max(shares):.3f} %, {runs}")
    if joules:
        apart = [own / theirs - 1 for own, theirs in joules]
        print(
            f"J per sample: {median([own for own, _ in joules]):.4f}, nvidia-smi {median([t for _, t in joules]):.4f}"
        )
        print(f"apart: median {median(apart):+.2%}, {min(apart):+.2%} to {max(apart):+.2%}")


if __name__ == "__main__":
    main()
