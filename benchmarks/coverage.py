"""How often a 95 % interval contains the truth, for orch's intervals and usual ones, in simulated campaigns of known truth.

    python benchmarks/coverage.py [--campaigns 2000] [--repeats 3,5,10] [--until-ci 0.5%,1%,2%]

A campaign is a baseline and a configuration that is three times as fast, each with the given number of repeats of 100 steps,
in blocks as in `orch bench`: every block runs both. The logarithm of a step's time has noise per run (1 %) and per step (5 %,
half of it carried over from the previous step). `drift`: the machine slows down by 3 % from the first block to the last.
`outliers`: one run in twenty is 8 % slower, one step in a hundred takes three times as long. `violent`: one step in two
hundred takes ten times as long. The truth is the geometric mean of runs in the middle of the campaign. orch's intervals are
compared with the percentiles of a bootstrap over repeats, and with mean ± 1.96 standard errors of all steps as if they were
independent. The output has the share of intervals that contain the truth, and their median width.

With ``--until-ci`` each campaign begins with the given number of repeats and continues, as `orch bench --until-ci` decides,
until the intervals of both speeds and of the speedup are narrow enough, or after 30 repeats; the truth is then that of the
middle of the measured part.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from orchestrator.controller.stopping import Width, decide
from orchestrator.plan.schedule import MOST, Schedule
from orchestrator.plan.words import share, words
from orchestrator.results.numbers.intervals import Interval, interval, ratio_interval

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
"""By name: the total drift, the share of slow runs, the share of slow steps, and how many times as long slow steps take."""


def times_of(step_s: float, places: Values, world: Sequence[float], chance: np.random.Generator) -> Values:
    """Return step times in seconds, of shape ``places.shape + (STEPS,)``; ``places`` of runs: -0.5 to 0.5 of a campaign."""
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
    """Return the bounds of intervals as rows of (low, high)."""
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


def stopped(fast: Values, slow: Values, schedule: Schedule) -> tuple[int, Interval, Interval]:
    """Return the number of repeats at which a campaign stops, and the intervals of the slow speed and of the ratio."""
    for blocks in range(schedule.repeats, schedule.max_repeats + 1):
        pair = (dict(enumerate(fast[:blocks])), dict(enumerate(slow[:blocks])))
        found = [interval(slow[:blocks]), interval(fast[:blocks]), ratio_interval(*pair)]
        middles = np.median(slow[:blocks]), np.median(fast[:blocks]), np.median(fast[:blocks]) / np.median(slow[:blocks])
        width = max((one.high - one.low) / 2 / middle for one, middle in zip(found, middles, strict=True) if one)
        if not decide(schedule, Width("", float(width)), blocks=blocks, used_s=0.0, block_s=0.0).goes_on:
            break
    assert found[0] and found[2]
    return blocks, found[0], found[2]


def until(world: Sequence[float], schedule: Schedule, campaigns: int, chance: np.random.Generator) -> str:
    """Return as text how often the intervals at the stop contain the truth."""
    places = np.tile(np.linspace(-0.5, 0.5, MOST), (campaigns, 1))
    slow, fast = (speeds_of(times_of(step_s, places, world, chance)) for step_s in (1.0, 1 / 3))
    still = np.zeros(TRUTHS)
    true, true_fast = (np.log(speeds_of(times_of(step_s, still, world, chance))).mean() for step_s in (1.0, 1 / 3))
    held, ratio_held, counts = 0, 0, []
    for one_fast, one_slow in zip(fast, slow, strict=True):
        count, speed, ratio = stopped(one_fast, one_slow, schedule)
        held += speed.low <= np.exp(true - world[0] * places[0, :count].mean()) <= speed.high
        ratio_held += ratio.low <= np.exp(true_fast - true) <= ratio.high
        counts.append(count)
    return (
        f"speed {held / campaigns:6.1%}, speedup {ratio_held / campaigns:6.1%} hold the truth, {np.median(counts):.0f} repeats"
    )


def main() -> None:
    """Run the campaigns and print a line per world, number of repeats and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--repeats", default="3,5,10")
    parser.add_argument("--until-ci", default="")
    asked = parser.parse_args()
    chance = np.random.default_rng(7)
    if asked.until_ci:
        for name, world in WORLDS.items():
            for aim in words(asked.until_ci):
                for least in map(int, words(asked.repeats)):
                    schedule = Schedule(repeats=least, until_ci=share(aim, "--until-ci"))
                    print(f"{name:9} ±{aim} from {least}: {until(world, schedule, asked.campaigns, chance)}", flush=True)
        return
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
