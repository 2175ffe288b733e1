"""How often a 95 % interval holds the truth, ours beside the usual ways, in simulated campaigns whose truth is known.

    python benchmarks/coverage.py [--campaigns 2000] [--repeats 3,5,10]

A campaign is a baseline and a cell that is three times as fast, each with so many repeats of 100 steps, in blocks as
`orch bench` runs them: every repeat visits both. The logarithm of a step's time has a part of its run (1 %) and one of its own
(5 %, half of it carried over from the step before). `drift`: the machine slows down by 3 % from the first block to the last.
`outliers`: one run in twenty is 8 % slower, one step in a hundred takes three times as long. `violent`: one step in two hundred
takes ten times as long. The truth is the geometric mean of runs in the middle of the campaign. Beside ours: percentiles of a
bootstrap over repeats, and mean ± 1.96 standard errors of all steps as if they were independent. Shown are the share of
intervals that hold the truth and their median width.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from orchestrator.intervals import Interval, interval, ratio_interval

STEPS, BATCH, RESAMPLES, TRUTHS = 100, 128, 1000, 40_000
RUN_NOISE, STEP_NOISE, CARRIED = 0.01, 0.05, 0.5
Values = NDArray[np.float64]
WORLDS = {
    "clean": (0.0, 0.0, 0.0, 1),
    "drift": (0.03, 0.0, 0.0, 1),
    "outliers": (0.0, 0.05, 0.01, 3),
    "both": (0.03, 0.05, 0.01, 3),
    "violent": (0.0, 0.05, 0.005, 10),
}
"""By name: the drift in all, the share of slow runs, that of slow steps, and how many times as long these take."""


def times_of(step_s: float, places: Values, world: Sequence[float], chance: np.random.Generator) -> Values:
    """Return step times in seconds, with an axis more than ``places``: those of runs between -0.5 and 0.5 of a campaign."""
    drift, slow_runs, slow_steps, times = world
    slow = 0.08 * (chance.random(places.shape) < slow_runs)
    logs = np.log(step_s) + drift * places + chance.normal(0, RUN_NOISE, places.shape) + slow
    noise = lfilter([1.0], [1.0, -CARRIED], chance.normal(0, STEP_NOISE, (*places.shape, STEPS)))
    hiccup = 1 + (times - 1) * (chance.random((*places.shape, STEPS)) < slow_steps)
    return np.asarray(np.exp(logs[..., None] + noise) * hiccup)


def speeds_of(times: Values) -> Values:
    """Return the throughput of runs in samples/s."""
    return np.asarray(BATCH * STEPS / times.sum(-1))


def ours(found: Sequence[Interval | None]) -> Values:
    """Return (low, high) of intervals, one row each."""
    return np.array([(one.low, one.high) for one in found if one])


def bootstrap(values: Values, chance: np.random.Generator) -> Values:
    """Return, for each row, the 2.5th and 97.5th percentile of the means of resampled values."""
    chosen = chance.integers(0, values.shape[1], (RESAMPLES, values.shape[1]))
    return np.array([np.percentile(row[chosen].mean(1), [2.5, 97.5]) for row in values])


def of_steps(times: Values) -> Values:
    """Return, for each campaign, mean ± 1.96 standard errors of the speeds of all steps."""
    speeds = (BATCH / times).reshape(len(times), -1)
    centre, error = speeds.mean(1), speeds.std(1, ddof=1) / np.sqrt(speeds.shape[1])
    return np.stack([centre - 1.96 * error, centre + 1.96 * error], 1)


def main() -> None:
    """Run the campaigns and print a line for each world, number of repeats and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--repeats", default="3,5,10")
    asked = parser.parse_args()
    chance = np.random.default_rng(7)
    for name, world in WORLDS.items():
        middle = np.zeros(TRUTHS)
        logs = (np.log(speeds_of(times_of(step_s, middle, world, chance))) for step_s in (1.0, 1 / 3))
        true, true_fast = (float(np.exp(one.mean())) for one in logs)
        for repeats in map(int, asked.repeats.split(",")):
            places = np.tile(np.linspace(-0.5, 0.5, repeats), (asked.campaigns, 1))
            base, fast = (times_of(step_s, places, world, chance) for step_s in (1.0, 1 / 3))
            slow_speeds, fast_speeds = speeds_of(base), speeds_of(fast)
            pairs = [(dict(enumerate(f)), dict(enumerate(b))) for f, b in zip(fast_speeds, slow_speeds, strict=True)]
            for way, found, truth in (
                ("speed, ours", ours([interval(row) for row in slow_speeds]), true),
                ("speed, bootstrap", bootstrap(slow_speeds, chance), true),
                ("speed, steps", of_steps(base), true),
                ("speedup, ours", ours([ratio_interval(*pair) for pair in pairs]), true_fast / true),
                ("speedup, bootstrap", bootstrap(fast_speeds / slow_speeds, chance), true_fast / true),
            ):
                held = ((found[:, 0] <= truth) & (truth <= found[:, 1])).mean()
                width = np.median(found[:, 1] - found[:, 0]) / truth
                print(f"{name:9} {repeats:3} repeats  {way:19} {held:6.1%} hold the truth, {width:.2%} wide", flush=True)


if __name__ == "__main__":
    main()
