"""Right and false names of slow ranks: one that is slower by 5, 10 or 20 %, and none.

    orch lab up --nodes 4 --gpus-per-node 0 && orch lab exec -- python benchmarks/slow_ranks.py [--how sleep,work,quota]
    orch lab up --nodes 1 --gpus-per-node 2 && orch lab exec -- python benchmarks/slow_ranks.py --how kernel --repeats 1

A trial is a bench of some repeats in which one rank, another one each time, is slower: with
`sleep`, a rank of `simulated` sleeps longer on four nodes; with `work`, a rank of `pytorch_lm` on
two nodes computes longer in its forward pass, by a share of its own processor time
(slowed/sitecustomize.py); with `quota`, its node may use less of a processor (cpu.max), by 1/1.2
for 20 %, which binds only where the machine has a processor free for each rank. Ranks that compute
are bound to a processor each. With `kernel`, on a node with two GPUs, another process
(slowed/busy_device.py) takes that share of the time of one GPU; the excess of a clean trial is the
difference between the two GPUs. Its trials with the same rank are the cells of one bench, by their
seed: new processes for each, and one deployment for all. With `--jobs`, that many trials of `sleep`
and `work` run at the same time, each on nodes and processors of its own: `orch lab up --nodes 32`
has eight times four nodes, and a trial of `work` takes two. A trial is right if exactly that rank
is named, by its computing time or its processor time, or none where none is slower. The machine's
load is an average of the last minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator import lab
from orchestrator.lab import cgroups
from tests.support import faults

HOW: dict[str, tuple[int, str]] = {
    "sleep": (
        4,
        "resnet50 -f simulated --steps 74 --warmup-steps 10 --set compute_ms=20 --set gradient_mb=0.1",
    ),
    "work": (
        2,
        "gpt-tiny -f pytorch_lm --steps 56 --warmup-steps 8 --batch-size 48 --set solo_steps=0",
    ),
    "quota": (
        2,
        "gpt-tiny -f pytorch_lm --steps 17 --warmup-steps 3 --batch-size 256 --set solo_steps=0",
    ),
    "kernel": (
        1,
        "gpt2-124m -f pytorch_lm --gpus 2 --steps 76 --warmup-steps 10 --set compile=false --set solo_steps=0",
    ),
}
"""By how a rank is slowed: the number of nodes, and the words of the bench."""
TOGETHER = ("sleep", "work")
"""The ways that slow nothing but the trial itself."""
QUOTA_PERIOD_US = 10_000
"""A tenth of the usual one and a small part of a forward pass, which otherwise ends before the
share is used up.
"""


def main() -> None:
    """Run the trials, printing a line for each, and print a row for each way and share."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--how", default="sleep,work,quota", help=f"several with commas, of {', '.join(HOW)}"
    )
    parser.add_argument("--percent", default="0,5,10,20")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=1, help="trials at the same time, of sleep and work"
    )
    asked = parser.parse_args()
    rows = []
    for how in asked.how.split(","):
        for percent in map(float, asked.percent.split(",")):
            rows.append(
                row(how, percent, [*trials(how, percent, asked.trials, asked.repeats, asked.jobs)])
            )
    excesses = "excess of the rank, % | width, % | excess of its processor time, % | width, %"
    print(f"| slowed by | percent | trials | right | other ranks named | {excesses} | load |")
    print("|---|---:|---:|---:|---:|---|---:|---|---:|---|")
    print("\n".join(rows))


def trials(
    how: str, percent: float, count: int, repeats: int, jobs: int
) -> Iterator[dict[str, Any]]:
    """Yield what was said of each trial that has a number; the slow rank changes from trial to
    trial.
    """
    ranks = 2 if how == "kernel" else HOW[how][0]
    if how == "kernel":
        for rank in range(min(ranks, count)):
            yield from bench(how, percent, rank, repeats, range(rank, count, ranks))
        return
    free: SimpleQueue[int] = SimpleQueue()  # one trial at a time has the nodes of each place
    together = jobs if how in TOGETHER else 1
    for place in range(together):
        free.put(place)

    def trial(number: int) -> list[dict[str, Any]]:
        place = free.get()
        try:
            return [*bench(how, percent, number % ranks, repeats, place=place)]
        finally:
            free.put(place)

    with ThreadPoolExecutor(together) as pool:
        for made in pool.map(trial, range(count)):
            yield from made


def bench(
    how: str, percent: float, rank: int, repeats: int, seeds: Sequence[int] = (), *, place: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield what was said of each cell of a bench with one slow rank, the only cell or one for each
    seed.
    """
    nodes, words = HOW[how]
    if how == "quota":
        limit(rank, percent)
    with TemporaryDirectory() as project, busy(rank, percent if how == "kernel" else 0.0):
        inventory = Path(project) / "cluster.yaml"
        text = inventory_with(rank, percent if how == "work" else 0.0, nodes, place)
        inventory.write_text(text, encoding="utf-8")
        argv = [
            "bench",
            *words.split(),
            "--hosts",
            str(inventory),
            "--nodes",
            str(nodes),
            "--no-baseline",
            "--json",
        ]
        argv += ["--repeats", str(repeats)]
        if how == "sleep":
            argv += ["--set", f"slow_rank={rank}", "--set", f"slow_percent={percent}"]
        if seeds:
            argv += ["--set", f"seed={','.join(map(str, seeds))}"]
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *argv],
            env={**os.environ, "ORCH_PROJECT": project},
            capture_output=True,
            text=True,
            check=False,
        )
    rows = (
        [row for row in json.loads(done.stdout)["rows"] if row["ranks"]]
        if done.stdout.startswith("{")
        else []
    )
    numbers = [row for row in rows if row["n"]]
    missing = max(len(seeds), 1) - len(numbers)
    if missing:
        print(
            f"{how} {percent:g} % rank {rank}: {missing} without a number, {done.stderr[-300:]!r}",
            flush=True,
        )
    for cell in numbers:
        yield said_of(cell, how, percent, rank)


def said_of(cell: dict[str, Any], how: str, percent: float, rank: int) -> dict[str, Any]:
    """Print a line for a trial, and return what counts of it."""
    load = os.getloadavg()[0]
    named = [slow["words"] for slow in cell["slow"] if slow["part"] in ("compute", "processor")]
    right = [text for text in named if percent and text.startswith(f"rank {rank} on ")]
    excess, of_processor = (cell["ranks"][rank][name] for name in ("excess", "cpu_excess"))
    waits = [
        f"{share:.0%}" for share in (own["gpu_waits"] for own in cell["ranks"]) if share is not None
    ]
    of_gpus = f", GPUs wait in {', '.join(waits)} of the steps" if waits else ""
    print(
        f"{how} {percent:g} % rank {rank}, load {load:.0f}, {shown(excess)}, {shown(of_processor)}{of_gpus}: {named}",
        flush=True,
    )
    excesses = {"excess": excess, "of_processor": of_processor}
    return {
        "right": bool(right) if percent else not named,
        "others": len(named) - len(right),
        "load": load,
        **excesses,
    }


def shown(excess: dict[str, float] | None) -> str:
    """Return an excess and its interval as text."""
    return (
        f"{excess['value']:+.1%} ({excess['low']:.1%} to {excess['high']:.1%})" if excess else "–"
    )


@contextmanager
def busy(device: int, percent: float) -> Iterator[None]:
    """Let another process take a share of a GPU's time while the context lasts."""
    if not percent:
        yield
        return
    program = str(Path(__file__).parent / "slowed" / "busy_device.py")
    with subprocess.Popen(
        [sys.executable, program, str(device), str(percent)], stdout=subprocess.PIPE
    ) as other:
        try:
            if other.stdout is None or not other.stdout.readline():
                sys.exit(f"{program}: expected a line once it computes, got none")
            yield
        finally:
            other.kill()


def running() -> lab.Lab:
    """Return the lab that this program was started in."""
    return lab.load(Path(os.environ["ORCH_HOSTS"]).parents[2])


def limit(rank: int, percent: float) -> None:
    """Let the node of a rank use a processor for less of the time, and all others as they like."""
    cgroups.release(running())
    if percent:
        faults.cpu(running(), f"node{rank + 1}", 100 / (1 + percent / 100), QUOTA_PERIOD_US)


def inventory_with(rank: int, percent: float, ranks: int, place: int) -> str:
    """Return the lab's inventory with the nodes of one place.

    Each rank is bound to a processor of its own, and one node's rank computes longer.
    """
    inventory = yaml.safe_load(Path(os.environ["ORCH_HOSTS"]).read_text(encoding="utf-8"))
    processors = sorted(os.sched_getaffinity(0))
    hosts = {}
    for number in range(ranks):
        ordinal = place * ranks + number
        slowed = str(percent if number == rank else 0.0)
        variables = {
            "SLOWED_CPU": str(processors[ordinal % len(processors)]),
            "SLOWED_PERCENT": slowed,
        }
        env = {"PYTHONPATH": str(Path(__file__).parent / "slowed"), **variables}
        hosts[f"node{ordinal + 1}"] = {**inventory["hosts"][f"node{ordinal + 1}"], "env": env}
    return str(yaml.safe_dump({**inventory, "hosts": hosts}))


def row(how: str, percent: float, made: Sequence[dict[str, Any]]) -> str:
    """Return a row of the table."""
    if not made:
        return f"| {how} | {percent:g} | 0 | | | | | | | |"
    loads = [outcome["load"] for outcome in made]
    right, others = (
        sum(outcome["right"] for outcome in made),
        sum(bool(outcome["others"]) for outcome in made),
    )
    reach = " | ".join(
        spread([outcome[name] for outcome in made if outcome[name]])
        for name in ("excess", "of_processor")
    )
    return f"| {how} | {percent:g} | {len(made)} | {right} | {others} | {reach} | {min(loads):.0f} to {max(loads):.0f} |"


def spread(excesses: Sequence[dict[str, float]]) -> str:
    """Return the cells of a table for the values of excesses and the typical width of their
    intervals, in %.
    """
    if not excesses:
        return "– | –"
    values = [100 * excess["value"] for excess in excesses]
    width = statistics.median(100 * (excess["high"] - excess["low"]) for excess in excesses)
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f}) | {width:.1f}"


if __name__ == "__main__":
    main()
