"""Accuracy of the learned start of the steady state, on series of step times whose start is known.

    PYTHONPATH=. python benchmarks/steady_start.py [--runs 500] [--steps 120] [--warmup-steps 20]

Step times have the noise named in the first column (see benchmarks/steadiness.py) and the warm-up
named in the head of each other column. Each field has the share of runs, in %, that are said to
begin their window before their steady state, and behind it the 5th, 50th and 95th percentile of the
learned first step of the steady state. In the columns with a declared warm-up that is long enough,
the first number is the share of false alarms.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

from benchmarks.steadiness import NOISES
from orchestrator.results.numbers.steady_start import steady_start
from orchestrator.results.numbers.throughput import Stretch

WARM_UPS: dict[str, Callable[[int], float]] = {
    "none": lambda step: 1.0,
    "step 1 50 times as long": lambda step: 50.0 if step == 1 else 1.0,
    "steps 1-10 20 % slower": lambda step: 1.2 if step <= 10 else 1.0,
    "steps 1-40 20 % slower": lambda step: 1.2 if step <= 40 else 1.0,
    "steps 1-40 10 % slower": lambda step: 1.1 if step <= 40 else 1.0,
    "steps 1-40 5 % slower": lambda step: 1.05 if step <= 40 else 1.0,
    "1 + 0.5 exp(-step/15)": lambda step: 1 + 0.5 * math.exp(-step / 15),
    "steps 60-75 20 % slower": lambda step: 1.2 if 60 <= step <= 75 else 1.0,
}
"""How many times as long as usual a step takes. With the exponential, steps from 49 on are less
than 2 % slower.
"""


def main() -> None:
    """Print a row per noise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--warmup-steps", type=int, default=20)
    asked = parser.parse_args()
    print(f"| | {' | '.join(WARM_UPS)} |")
    print(f"|---|{'---:|' * len(WARM_UPS)}")
    for name, noise in NOISES.items():
        cells = []
        for warm_up in WARM_UPS.values():
            chance, firsts, alarms = random.Random(7), [], 0
            for _ in range(asked.runs):
                times = [
                    time * warm_up(step)
                    for step, time in enumerate(noise(chance, asked.steps), start=1)
                ]
                start = steady_start(
                    [Stretch(step, 1, time) for step, time in enumerate(times, start=1)]
                )
                assert start
                alarms += not start.holds_from(asked.warmup_steps + 1)
                firsts.append(math.inf if start.first_step is None else start.first_step)
            ordered = sorted(firsts)
            low, middle, high = (
                ordered[min(len(ordered) - 1, int(part * len(ordered)))]
                for part in (0.05, 0.5, 0.95)
            )
            cells.append(f"{100 * alarms / asked.runs:.1f} ({low:.0f} {middle:.0f} {high:.0f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
