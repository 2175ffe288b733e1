"""False and missed reports of unsteady windows.

    python benchmarks/steadiness.py [--windows 1000] [--steps 100]

Step times have the noise named in the first column, and in the window the change named in the head
of each other column. `white`: independent, log-normal, 2 %. `carried`: 2 %, of which the given
share is carried over from the previous step. `t with 3 degrees`: heavy tails, 2 %. `exponential`:
steps are up to twice as long, on average 5 %. `every tenth 15 % longer`: such as writing a
checkpoint. `coarse`: white, printed with two digits. The table shows the share of windows that are
reported, in %; in the column `steady` these are false alarms.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

from orchestrator.results.numbers.steadiness import unsteady
from orchestrator.results.numbers.throughput import Stretch

TYPICAL_S = 0.25
Times = list[float]


def carried(share: float, noise: float = 0.02) -> Callable[[random.Random, int], Times]:
    """Return a source of step times with noise of which a share is carried over."""

    def times(chance: random.Random, steps: int) -> Times:
        last = chance.gauss(0, noise / math.sqrt(1 - share * share))
        logs = [last := share * last + chance.gauss(0, noise) for _ in range(steps)]
        return [TYPICAL_S * math.exp(log) for log in logs]

    return times


def heavy(chance: random.Random, steps: int) -> Times:
    """Return step times with the tails of Student's t."""
    values = (chance.gauss(0, 1) / math.sqrt(chance.gammavariate(1.5, 2) / 3) for _ in range(steps))
    return [TYPICAL_S * math.exp(0.02 * value) for value in values]


def exponential(chance: random.Random, steps: int) -> Times:
    """Return step times that are only ever longer than the typical one."""
    return [TYPICAL_S * (1 + chance.expovariate(20)) for _ in range(steps)]


def every_tenth(chance: random.Random, steps: int) -> Times:
    """Return step times of which every tenth is longer."""
    return [
        time * (1.15 if step % 10 == 0 else 1)
        for step, time in enumerate(carried(0)(chance, steps))
    ]


def coarse(chance: random.Random, steps: int) -> Times:
    """Return step times as some programs print them."""
    return [round(time, 2) for time in carried(0)(chance, steps)]


NOISES = {
    "white": carried(0.0),
    "white, 5 %": carried(0.0, 0.05),
    "carried by 0.3": carried(0.3),
    "carried by 0.5": carried(0.5),
    "carried by 0.7": carried(0.7),
    "t with 3 degrees": heavy,
    "exponential": exponential,
    "every tenth 15 % longer": every_tenth,
    "coarse": coarse,
}
CHANGES: dict[str, tuple[float, float, float]] = {
    "steady": (0, 0, 1),
    "second half 10 % slower": (0.5, 1, 1.1),
    "last 30 % 20 % slower": (0.7, 1, 1.2),
    "first 30 % 20 % slower": (0, 0.3, 1.2),
    "middle 30 % 20 % slower": (0.4, 0.7, 1.2),
    "second half 5 % slower": (0.5, 1, 1.05),
    "15 % ten times as long": (0.3, 0.45, 10),
}
"""By name: where a change begins and ends, as shares of the window, and how many times as long
these steps take.
"""


def share(
    noise: Callable[[random.Random, int], Times],
    change: tuple[float, float, float],
    windows: int,
    steps: int,
) -> float:
    """Return the share of windows that are reported, in %."""
    chance, reported = random.Random(7), 0
    first, last = (round(part * steps) for part in change[:2])
    for _ in range(windows):
        times = [
            time * (change[2] if first <= step < last else 1)
            for step, time in enumerate(noise(chance, steps))
        ]
        reported += bool(
            unsteady([Stretch(step, 1, time) for step, time in enumerate(times, start=1)])
        )
    return 100 * reported / windows


def stall(noise: Callable[[random.Random, int], Times], windows: int, steps: int) -> float:
    """Return the share of windows with one stall, as long as all other steps, that are reported, in
    %.
    """
    chance, reported = random.Random(7), 0
    for _ in range(windows):
        times = noise(chance, steps)
        times[chance.randrange(steps)] *= steps
        reported += bool(
            unsteady([Stretch(step, 1, time) for step, time in enumerate(times, start=1)])
        )
    return 100 * reported / windows


def main() -> None:
    """Print a row per noise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args()
    print(f"| | {' | '.join(CHANGES)} | one stall |")
    print(f"|---|{'---:|' * (len(CHANGES) + 1)}")
    for name, noise in NOISES.items():
        cells = [share(noise, change, asked.windows, asked.steps) for change in CHANGES.values()]
        shares = " | ".join(
            f"{cell:.1f}" for cell in (*cells, stall(noise, asked.windows, asked.steps))
        )
        print(f"| {name} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
