"""Coverage of the truth by 95 % intervals, orch's and usual ones, in simulated campaigns of known
truth.

    python benchmarks/coverage.py [--campaigns 2000] [--repeats 3,5,10] [--cells 2] [--worlds NAME,NAME] [--until-ci 0.5%,1%,2%]

A campaign is a baseline and configurations, the last three times as fast, each with the given
number of repeats of 100 steps. `orch bench`'s own plan gives the order of the runs, and `orch
summarize`'s own table the intervals; only the speeds of the runs are made up. The logarithm of a
step's time has noise per run (1 %) and per step (5 %, half of it carried over from the previous
step). The truth is the geometric mean of runs in the middle of the campaign. orch's intervals are
compared with the percentiles of a bootstrap over repeats, and with mean ± 1.96 standard errors of
all steps as if they were independent. The output has the share of intervals that contain the truth,
the median width of orch's, and the share of tables with a note on drift, spread or an outlier.

With ``--until-ci`` each campaign begins with the given number of repeats and continues, as `orch
bench --until-ci` decides, until the intervals of all speeds and speedups are narrow enough, or
after 30 repeats; the truth is then taken in the middle of the measured part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from orchestrator.controller.stop_rule import decide, widest
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import open_framework
from orchestrator.plan.option_values import share, words
from orchestrator.plan.schedule import MOST, ORDERS, Schedule
from orchestrator.plan.spec import RunSpec
from orchestrator.results.entries import Row
from orchestrator.results.numbers.throughput import Throughput
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Summary, summarize

STEPS, BATCH, RESAMPLES, TRUTHS = 100, 128, 1000, 40_000
RUN_NOISE, STEP_NOISE, CARRIED, FASTER = 0.01, 0.05, 0.5, 3.0
SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8))
SPEC = RunSpec("simulated", "resnet50", 1, 1, "cpu", BATCH, "fp32", "synthetic", STEPS, 0, 1.0, {})
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class World:
    """The disturbances of a campaign.

    These are the total ``drift`` of the logarithm of a step's time; the share of slower runs, and
    their slowdown; the share of steps that take ``times`` as long; run noise that all runs of a
    block have in common; whether the noise of a run has the tails of Student's t with 3 degrees of
    freedom; the amplitude of a ``wave``, which is one period of a sine over the campaign; and the
    share of a run's noise that is ``carried`` over from the run before.
    """

    drift: float = 0.0
    slow_runs: float = 0.0
    slower: float = 0.0
    slow_steps: float = 0.0
    times: float = 1.0
    block_noise: float = 0.0
    heavy: bool = False
    wave: float = 0.0
    carried: float = 0.0


WORLDS = {
    "noise only": World(),
    "t with 3 degrees": World(heavy=True),
    "drift of 3 %": World(drift=0.03),
    "drift of 5 %": World(drift=0.05),
    "drift of 10 %": World(drift=0.1),
    "outliers": World(slow_runs=0.05, slower=0.08, slow_steps=0.01, times=3),
    "drift of 3 % and outliers": World(
        drift=0.03, slow_runs=0.05, slower=0.08, slow_steps=0.01, times=3
    ),
    "single steps ten times as long": World(
        slow_runs=0.05, slower=0.08, slow_steps=0.005, times=10
    ),
    "one run in three 3 % slower": World(slow_runs=1 / 3, slower=0.03),
    "1 % noise per block": World(block_noise=0.01),
    "wave of ±1 %": World(wave=0.01),
    "wave of ±3 %": World(wave=0.03),
    "0.6 of the noise carried to the next run": World(carried=0.6),
}


def plan_of(schedule: Schedule, cells: int) -> Bench:
    """Return the plan of a campaign."""
    specs = tuple(replace(SPEC, nodes=nodes, gpus=gpus) for nodes, gpus in SHAPES[:cells])
    return Bench("simulation", specs, {SPEC.framework: open_framework(SPEC.framework)}, schedule)


def slots_of(plan: Bench, repeats: int) -> list[tuple[int, int]]:
    """Return (configuration, repeat from 0) of each run in the order in which the plan runs them."""
    return [
        (plan.cells.index(run.spec), repeat - 1)
        for repeat in range(1, repeats + 1)
        for run in plan.block(repeat)
    ]


def times_of(
    step_s: Values, places: Values, blocks: Values, world: World, chance: np.random.Generator
) -> Values:
    """Return step times in seconds, of shape ``step_s.shape + (STEPS,)``. ``places`` and ``blocks``
    have the shape of ``step_s``: the place of a run, -0.5 to 0.5 of a campaign, and the noise of
    its block in standard deviations.
    """
    shape = step_s.shape
    noise = chance.standard_t(3, shape) if world.heavy else chance.normal(0, 1, shape)
    if world.carried and noise.ndim > 1:
        noise = carried_over(noise, places, world.carried)
    slow = world.slower * (chance.random(shape) < world.slow_runs)
    slowly = world.drift * places + world.wave * np.sin(2 * np.pi * places)
    logs = np.log(step_s) + slowly + RUN_NOISE * noise + world.block_noise * blocks + slow
    steps = lfilter([1.0], [1.0, -CARRIED], chance.normal(0, STEP_NOISE, (*shape, STEPS)))
    hiccup = 1 + (world.times - 1) * (chance.random((*shape, STEPS)) < world.slow_steps)
    return np.asarray(np.exp(logs[..., None] + steps) * hiccup)


def carried_over(noise: Values, places: Values, share: float) -> Values:
    """Return noise of runs (campaign, configuration, repeat) of which a share comes from the run
    before; its scatter stays.
    """
    order = np.argsort(places[0].ravel())
    fresh = noise.reshape(len(noise), -1)[:, order]
    fresh[:, 1:] *= np.sqrt(1 - share**2)
    in_order = lfilter([1.0], [1.0, -share], fresh)
    return np.asarray(in_order[:, np.argsort(order)].reshape(noise.shape))


def speeds_of(times: Values) -> Values:
    """Return the throughput of runs in samples/s."""
    return np.asarray(BATCH * STEPS / times.sum(-1))


def campaign_times(
    plan: Bench, repeats: int, campaigns: int, world: World, chance: np.random.Generator
) -> Values:
    """Return step times by campaign, configuration, repeat and step."""
    slots = slots_of(plan, repeats)
    cells = len(plan.cells)
    places = np.zeros((cells, repeats))
    for place, (cell, repeat) in enumerate(slots):
        places[cell, repeat] = place / max(1, len(slots) - 1) - 0.5
    step_s = np.ones((campaigns, cells, repeats))
    step_s[:, -1] /= FASTER
    blocks = np.repeat(chance.normal(0, 1, (campaigns, 1, repeats)), cells, 1)
    return times_of(step_s, np.broadcast_to(places, step_s.shape), blocks, world, chance)


def truth_of(world: World, chance: np.random.Generator) -> tuple[float, float]:
    """Return the typical speed of the baseline and the typical speedup in the middle of a campaign."""
    still = np.zeros(TRUTHS)
    base, fast = (
        np.log(speeds_of(times_of(np.full(TRUTHS, step_s), still, still, world, chance)))
        for step_s in (1.0, 1 / FASTER)
    )
    return float(np.exp(base.mean())), float(np.exp(fast.mean() - base.mean()))


def results_of(plan: Bench, speeds: Values, repeats: int) -> list[RunResult]:
    """Return the results of a campaign: ``speeds`` by configuration and repeat, places as the plan
    orders the runs.
    """
    runs = [run for repeat in range(1, repeats + 1) for run in plan.block(repeat)]
    return [
        RunResult(
            run.run_id,
            run.repeat,
            run.spec,
            False,
            "finished",
            Throughput(speed, 1, 1 / speed, 1, STEPS),
            place=place,
        )
        for place, run in enumerate(runs)
        if (speed := float(speeds[plan.cells.index(run.spec), run.repeat - 1]))
    ]


def ends(row: Row) -> tuple[Row, tuple[float, float], tuple[float, float]]:
    """Return a row with the ends of its intervals of speed and speedup."""
    assert row.interval
    ratio = row.speedup_interval
    return (
        row,
        (row.interval.low, row.interval.high),
        (ratio.low, ratio.high) if ratio else (1.0, 1.0),
    )


def bootstrap(values: Values, chance: np.random.Generator) -> Values:
    """Return, for each row, the 2.5th and 97.5th percentile of the means of resampled values."""
    chosen = chance.integers(0, values.shape[1], (RESAMPLES, values.shape[1]))
    return np.array([np.percentile(row[chosen].mean(1), [2.5, 97.5]) for row in values])


def of_steps(times: Values) -> Values:
    """Return, for each campaign, mean ± 1.96 standard errors of the speeds of all steps."""
    speeds = (BATCH / times).reshape(len(times), -1)
    centre, error = speeds.mean(1), speeds.std(1, ddof=1) / np.sqrt(speeds.shape[1])
    return np.stack([centre - 1.96 * error, centre + 1.96 * error], 1)


def remarks(table: Summary) -> list[str]:
    """Return what a table says about the scatter of its numbers."""
    texts = [*table.notes, *(text for row in table.rows for text in row.qualifications)]
    kinds = {"drift": "during the bench", "spread": "repeats spread", "outlier": "than the others"}
    return [kind for kind, words in kinds.items() if any(words in text for text in texts)]


@dataclass(slots=True)
class Score:
    """The score of campaigns of one kind."""

    campaigns: int = 0
    speed: int = 0
    ratio: int = 0
    outside: int = 0
    speed_widths: list[float] | None = None
    ratio_widths: list[float] | None = None
    said: list[str] | None = None

    def add(self, table: Summary, speed: float, ratio: float) -> None:
        """Count one table. ``speed`` and ``ratio`` are the truth."""
        (base, base_ends, _), (fast, _, ratio_ends) = ends(table.rows[0]), ends(table.rows[-1])
        assert base.value and fast.speedup
        self.campaigns += 1
        self.speed += base_ends[0] <= speed <= base_ends[1]
        self.ratio += ratio_ends[0] <= ratio <= ratio_ends[1]
        is_inside = (
            base_ends[0] <= base.value <= base_ends[1]
            and ratio_ends[0] <= fast.speedup <= ratio_ends[1]
        )
        self.outside += not is_inside
        self.speed_widths = [*(self.speed_widths or []), (base_ends[1] - base_ends[0]) / speed]
        self.ratio_widths = [*(self.ratio_widths or []), (ratio_ends[1] - ratio_ends[0]) / ratio]
        self.said = [*(self.said or []), *remarks(table)]

    def share(self, count: int) -> float:
        """Return a count as % of all campaigns."""
        return 100 * count / self.campaigns


def score(
    world: World,
    repeats: int,
    campaigns: int,
    seed: int = 7,
    cells: int = 2,
    order: str = ORDERS[0],
) -> tuple[Score, Values, float, float]:
    """Return how orch's intervals came out, the step times of all campaigns, and the true speed and
    speedup.
    """
    chance = np.random.default_rng(seed)
    true, true_ratio = truth_of(world, chance)
    plan = plan_of(Schedule(order=order, repeats=repeats), cells)
    times = campaign_times(plan, repeats, campaigns, world, chance)
    result = Score()
    for speeds in speeds_of(times):
        result.add(summarize(results_of(plan, speeds, repeats)), true, true_ratio)
    return result, times, true, true_ratio


def until(world: World, schedule: Schedule, campaigns: int, seed: int = 7) -> str:
    """Return as text how often the intervals at the stop contain the truth."""
    chance = np.random.default_rng(seed)
    true, true_ratio = truth_of(world, chance)
    plan = plan_of(schedule, 2)
    speeds = speeds_of(campaign_times(plan, MOST, campaigns, world, chance))
    result, counts = Score(), []
    for campaign in speeds:
        for blocks in range(schedule.repeats, schedule.max_repeats + 1):
            results = results_of(plan, campaign, blocks)
            if not decide(
                schedule, widest(results), blocks=blocks, used_s=0.0, block_s=0.0
            ).goes_on:
                break
        # The middle of the measured part, where a part of the drift has passed.
        middle = (2 * blocks - 1) / 2 / (2 * MOST - 1) - 0.5
        result.add(summarize(results), true * float(np.exp(-world.drift * middle)), true_ratio)
        counts.append(blocks)
    held = f"speed {result.share(result.speed):.1f}, speedup {result.share(result.ratio):.1f} hold the truth"
    return f"{held}, {np.median(counts):.0f} repeats"


def rows(
    worlds: Sequence[str], repeats: Sequence[int], campaigns: int, cells: int, order: str
) -> Iterator[str]:
    """Yield the rows of the table."""
    for name in worlds:
        for number in repeats:
            result, times, true, true_ratio = score(
                WORLDS[name], number, campaigns, cells=cells, order=order
            )
            chance, speeds = np.random.default_rng(8), speeds_of(times)
            held = [
                100 * ((bounds[:, 0] <= truth) & (truth <= bounds[:, 1])).mean()
                for bounds, truth in (
                    (bootstrap(speeds[:, 0], chance), true),
                    (of_steps(times[:, 0]), true),
                    (bootstrap(speeds[:, -1] / speeds[:, 0], chance), true_ratio),
                )
            ]
            said = [
                f"{kind} {result.share((result.said or []).count(kind)):.0f}"
                for kind in ("drift", "spread", "outlier")
            ]
            widths = [
                100 * float(np.median(widths or [0.0]))
                for widths in (result.speed_widths, result.ratio_widths)
            ]
            yield (
                f"| {name if number == repeats[0] else ''} | {number} | **{result.share(result.speed):.1f}** | {widths[0]:.1f} "
                f"| {held[0]:.1f} | {held[1]:.1f} | **{result.share(result.ratio):.1f}** | {widths[1]:.1f} | {held[2]:.1f} "
                f"| {result.share(result.outside):.1f} | {', '.join(said)} |"
            )


def main() -> None:
    """Run the campaigns and print a row per world and number of repeats."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--repeats", default="3,5,10")
    parser.add_argument("--cells", type=int, default=2)
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0])
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--until-ci", default="")
    asked = parser.parse_args()
    worlds, repeats = asked.worlds.split(","), [int(number) for number in asked.repeats.split(",")]
    if asked.until_ci:
        for name in worlds:
            for aim in words(asked.until_ci, "--until-ci"):
                for least in repeats:
                    schedule = Schedule(repeats=least, until_ci=share(aim, "--until-ci"))
                    print(
                        f"{name:30} ±{aim} from {least}: {until(WORLDS[name], schedule, asked.campaigns)}",
                        flush=True,
                    )
        return
    print(
        "| | repeats | speed | width | percentiles | all steps | speedup | width | percentiles | headline outside | remarks |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for row in rows(worlds, repeats, asked.campaigns, asked.cells, asked.order):
        print(row, flush=True)


if __name__ == "__main__":
    main()
