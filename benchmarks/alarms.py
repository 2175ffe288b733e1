"""False and missed alarms of comparisons: the rule of `orch compare` and usual ones, on two benches
with and without a difference.

    python benchmarks/alarms.py [--campaigns 2000] [--repeats 4,5,7] [--cells 1]

A campaign consists of some configurations in two benches, with the given number of runs each, in
blocks that run forwards and backwards in turn. The logarithm of a run's speed has noise of its own
(1 %). `drift`: the machine slows down by 3, 5 or 10 % during each bench. `outliers`: one run in
twenty is 8 % slower. `apart`: one bench as a whole differs from the other by 0.5 % or 1 % at random
(one standard deviation), as if the machine were warmer, or the job placed differently, than the day
before. In the second bench the first configuration is as fast, 3 %, 5 % or 10 % slower; all others
are as fast. The table shows the share of campaigns, in percent, in which any configuration is
reported as faster or slower: by the rule, by the rule without its margin, by two 95 % intervals
that do not overlap, and by medians that differ by 3 %.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.analysis.compare.cells import MARGIN, compare_cells
from orchestrator.plan.spec import RunSpec
from orchestrator.results.cells import Cell, cells_of
from orchestrator.results.numbers.intervals import interval
from orchestrator.results.numbers.throughput import Throughput, median
from orchestrator.results.run import RunResult

NOISE, THRESHOLD = 0.01, 0.03
WORLDS = {
    "noise only": (0.0, 0.0, 0.0),
    "drift of 3 %": (0.03, 0.0, 0.0),
    "drift of 5 %": (0.05, 0.0, 0.0),
    "drift of 10 %": (0.1, 0.0, 0.0),
    "outliers": (0.0, 0.05, 0.0),
    "0.5 % apart": (0.0, 0.0, 0.005),
    "1 % apart": (0.0, 0.0, 0.01),
}
"""By name: drift during a bench, share of slow runs, standard deviation of a whole bench."""
SPEC = RunSpec("simulated", "resnet50", 1, 1, "cpu", 1, "fp32", "synthetic", 2, 1, 1.0, {})


def cells_of_bench(
    bench: str,
    typical: Sequence[float],
    repeats: int,
    world: Sequence[float],
    chance: random.Random,
) -> list[Cell]:
    """Return the configurations of one bench with these typical speeds."""
    drift, slow_runs, apart = world
    whole = chance.gauss(0, apart / math.sqrt(2))
    runs: list[RunResult] = []
    last = max(repeats * len(typical) - 1, 1)
    for repeat in range(repeats):
        cells = range(len(typical)) if repeat % 2 == 0 else range(len(typical) - 1, -1, -1)
        for cell in cells:
            slow = 0.08 * (chance.random() < slow_runs)
            place = len(runs)
            speed = typical[cell] * math.exp(
                whole + chance.gauss(0, NOISE) - drift * (place / last - 0.5) - slow
            )
            measured = Throughput(speed, 1, 1 / speed, 2, 2)
            spec = replace(SPEC, nodes=cell + 1)
            runs.append(
                RunResult(
                    f"{bench}{cell}-{repeat}",
                    repeat,
                    spec,
                    False,
                    "finished",
                    measured,
                    place=place,
                )
            )
    return cells_of(runs)


def verdicts(before: Sequence[Cell], after: Sequence[Cell]) -> tuple[bool, ...]:
    """Return whether any configuration is reported as different: by the rule, without margin, by
    intervals, by medians.
    """
    pairs = list(zip(before, after, strict=True))
    ours, bare = (
        any(pair.verdict in ("faster", "slower") for pair in compare_cells(pairs, margin))
        for margin in (MARGIN, 0.0)
    )
    intervals = [(interval(first.values), interval(second.values)) for first, second in pairs]
    apart = any(a and b and (a.high < b.low or b.high < a.low) for a, b in intervals)
    changes = [median(second.values) / median(first.values) - 1 for first, second in pairs]
    return ours, bare, apart, any(abs(change) > THRESHOLD for change in changes)


def main() -> None:
    """Run the campaigns and print a row per world, number of repeats and true difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--repeats", default="4,5,7")
    parser.add_argument("--cells", type=int, default=1)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    asked = parser.parse_args()
    print(
        "| | repeats | truly slower by | rule | without margin | intervals apart | medians 3 % apart |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in asked.worlds.split(","):
        for repeats in map(int, asked.repeats.split(",")):
            for slower in (0.0, 0.03, 0.05, 0.10):
                chance = random.Random(f"{name} {repeats} {slower}")
                typical = [100.0] * asked.cells
                changed = [100.0 * (1 - slower), *typical[1:]]
                outcomes = [
                    verdicts(
                        cells_of_bench("a", typical, repeats, WORLDS[name], chance),
                        cells_of_bench("b", changed, repeats, WORLDS[name], chance),
                    )
                    for _ in range(asked.campaigns)
                ]
                shares = " | ".join(
                    f"{100 * sum(way) / len(outcomes):.1f}" for way in zip(*outcomes, strict=True)
                )
                print(f"| {name} | {repeats} | {slower:.0%} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
