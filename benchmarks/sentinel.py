"""False alarms of the node test, and the looks that it needs to find a slow device, in fleets whose
truth is known.

    PYTHONPATH=.:remote python benchmarks/sentinel.py [--nodes 1000] [--days 90] [--looks 6]

Every node has `--devices` devices, and is looked at `--looks` times a day at random times, with two
metrics. The logarithm of a value is the sum of

- a lasting difference of the device, of 0.7 % (standard deviation)
- a wave of a day, up to 2 % high and different for each node, and a tenth of it for each device
- a drift of the node, a random walk of 0.3 % a day
- the noise of the row

In half of the nodes all devices are healthy for all days. In the others one device becomes slower
by 3, 5, 10 or 20 % on a day of the second third. Printed are, for each kind of noise: healthy
node-days, false alarms of devices that are healthy, in 10,000 node-days, with the upper end of
their 95 % interval (Poisson); and for each slowdown the share found, and the median and nine-tenths
of the looks from its beginning until it was named.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.clusters import MEASURED

evidence: Any = import_module("noderun.evidence")  # which has no types, for Python 3.6
METRICS = ("gemm", "memory")
FIND, ALARMS_PER_DAY, LOOKS_PER_DAY = 0.05, 1e-4, 96
SLOWER = (0.03, 0.05, 0.10, 0.20)
DAY_S = 86400.0


@dataclass(slots=True)
class SlowPeriods:
    """Noise of a device that something else slows down for a while."""

    often_days: float
    hours: float
    slower: float
    until: float = 0.0
    next: float = -1.0

    def draw(self, generator: random.Random, now: float) -> float:
        """Return the noise of a look at a time in seconds."""
        if self.next < 0:
            self.next = generator.expovariate(1 / (self.often_days * DAY_S))
        if now >= self.next:
            self.until = self.next + generator.expovariate(1 / (self.hours * 3600))
            self.next = self.until + generator.expovariate(1 / (self.often_days * DAY_S))
        return measured(generator, now) + (self.slower if now < self.until else 0.0)


def measured(generator: random.Random, _now: float, times: float = 1.0) -> float:
    """Return a residual of our own measurements."""
    return times * generator.choice(MEASURED) / 100


def sometimes(generator: random.Random, now: float, share: float, slower: float) -> float:
    """Return such noise, with a share of the looks slower."""
    return measured(generator, now) + (slower if generator.random() < share else 0.0)


Draw = Callable[[random.Random, float], float]
NOISE: Mapping[str, Callable[[], Draw]] = {
    "measured": lambda: measured,
    "measured, five times": lambda: partial(measured, times=5.0),
    "normal, 1 %": lambda: lambda generator, _: generator.gauss(0, 0.01),
    "normal, 2 %": lambda: lambda generator, _: generator.gauss(0, 0.02),
    "one in 20 slower by 10 %": lambda: partial(sometimes, share=0.05, slower=0.1),
    "one in 10 slower by 6 %": lambda: partial(sometimes, share=0.1, slower=0.06),
    "an hour a week slower by 10 %": lambda: SlowPeriods(7, 1, 0.1).draw,
    "six hours a month slower by 10 %": lambda: SlowPeriods(30, 6, 0.1).draw,
}


@dataclass(slots=True)
class Outcome:
    """Outcome of some nodes: healthy node-days, devices named though healthy, and for each slowdown
    the looks that found it, infinite if none did.
    """

    healthy_days: float = 0.0
    false: int = 0
    found: dict[float, list[float]] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Add the outcome of other nodes."""
        self.healthy_days += other.healthy_days
        self.false += other.false
        for slower, looks in other.found.items():
            self.found.setdefault(slower, []).extend(looks)


def node(args: argparse.Namespace, noise: str, number: int) -> Outcome:
    """Return the outcome of one node."""
    generator = random.Random(f"{args.seed} {noise} {number}")
    names = [str(place) for place in range(args.devices)]
    known: dict[str, Any] = {name: {"name": "GPU", "metrics": {}} for name in names}
    lasting = {(name, metric): generator.gauss(0, 0.007) for name in names for metric in METRICS}
    draws = {key: NOISE[noise]() for key in lasting}
    height, phase = generator.uniform(0, 0.02), generator.random()
    own_wave = {name: generator.gauss(0, 0.1) * height for name in names}
    slower = SLOWER[number % len(SLOWER)] if number >= args.nodes / 2 else 0.0
    slow_from = generator.uniform(args.days / 3, 2 * args.days / 3) * DAY_S if slower else math.inf
    limit = evidence.score_limit(len(names), len(METRICS), LOOKS_PER_DAY, ALARMS_PER_DAY)
    outcome, named, drift, last, looks = Outcome(), set[str](), 0.0, 0.0, 0
    times = sorted(
        generator.uniform(0, args.days * DAY_S) for _ in range(round(args.days * args.looks))
    )
    for now in times:
        drift += generator.gauss(0, 0.003 * math.sqrt((now - last) / DAY_S))
        last = now
        wave = math.sin(2 * math.pi * (now / DAY_S + phase))
        values: dict[str, dict[str, float]] = {}
        for (name, metric), own in lasting.items():
            slow = math.log1p(slower) if name == "0" and now >= slow_from else 0.0
            time_log = own + drift + wave * (height + own_wave[name]) + slow
            time_log += draws[name, metric](generator, now)
            values.setdefault(name, {})[metric] = math.exp(-time_log)
        evidence.add_look(known, values, now, FIND, limit)
        looks += now >= slow_from
        for name in names:
            scores = [
                score
                for state in known[name]["metrics"].values()
                for score in state["scores"].values()
            ]
            if name not in named and any(score["named"] for score in scores):
                named.add(name)
                if name == "0" and now >= slow_from:
                    outcome.found[slower] = [looks]
                else:
                    outcome.false += 1
    outcome.healthy_days = args.days
    if slower and slower not in outcome.found:
        outcome.found[slower] = [math.inf]
    return outcome


def most_alarms(count: int) -> float:
    """Return the upper end of the 95 % interval of a Poisson count (F. Garwood, 1936), by
    bisection.
    """
    low, high = float(count), count + 10 * math.sqrt(count + 1) + 10
    for _ in range(60):
        mean = (low + high) / 2
        at_most = sum(
            math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count + 1)
        )
        low, high = (mean, high) if at_most > 0.025 else (low, mean)
    return high


def row(args: argparse.Namespace, noise: str, pool: ProcessPoolExecutor) -> str:
    """Return the line of one kind of noise."""
    total = Outcome()
    for outcome in pool.map(partial(node, args, noise), range(args.nodes), chunksize=8):
        total.add(outcome)
    per_days = 1e4 / total.healthy_days
    cells = []
    for slower in SLOWER:
        looks = sorted(total.found[slower])
        found = sum(map(math.isfinite, looks)) / len(looks)
        nine = looks[min(len(looks) - 1, math.ceil(0.9 * len(looks)) - 1)]
        cells.append(f"{found:4.0%} {looks[len(looks) // 2]:4g} {nine:4g}")
    alarms = (
        f"{total.false:3d} {total.false * per_days:6.2f} {most_alarms(total.false) * per_days:6.2f}"
    )
    return f"{noise:34} {total.healthy_days:7.0f} {alarms}   {'   '.join(cells)}"


def main() -> None:
    """Simulate, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name, default in (("nodes", 1000), ("days", 90), ("looks", 6), ("devices", 8), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--noise", default="", help="rows whose names contain one of these words")
    args = parser.parse_args()
    began = time.monotonic()
    limit = evidence.score_limit(args.devices, len(METRICS), LOOKS_PER_DAY, ALARMS_PER_DAY)
    print(
        f"{args.nodes} nodes of {args.devices} devices, {args.days} days, {args.looks} looks a day; "
        f"a device is named after {evidence.slow_looks(limit)} slow looks or more"
    )
    heads = "   ".join(f"{slower:4.0%} slower    " for slower in SLOWER)
    print(f"{'noise':34} {'days':>7} {'n':>3} {'/10k d':>6} {'<':>6}   {heads}")
    words = args.noise.split(",")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for noise in NOISE:
            if any(word in noise for word in words):
                print(row(args, noise, pool), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
