"""The result of a tune, from the files of its bench alone: an answer, and the evidence for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, multimode
from typing import Any

from orchestrator.features.search.evidence import Change, reader_of
from orchestrator.features.search.halving.candidates import Settings, settings, written
from orchestrator.features.search.halving.schedule import RungResult, gain, ranked
from orchestrator.features.search.halving.state import State, state_of
from orchestrator.features.search.record import OUT_OF_TIME, Candidate, tune_of
from orchestrator.plan import RunSpec
from orchestrator.plan.measures import SAMPLES_PER_S, TOKENS_PER_S
from orchestrator.record import BenchDir
from orchestrator.results import RunResult

__all__ = ["FASTER", "Tried", "Tuned", "compared", "tuned", "unit_of"]

FASTER, DEFAULT, UNCONFIRMED, UNFINISHED = "faster", "default", "unconfirmed", "unfinished"
_VERSIONS = ("framework_version", "cuda", "cudnn", "nccl")


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate in one round: its speeds, in the unit of the tune, and their median over the
    default's, None if either has no speed.

    ``failure``: why a run of the candidate, in any round, has no number, or why none could be made.
    """

    rung: int
    steps: int
    confirms: bool
    settings: str
    speeds: tuple[float, ...]
    failed: int
    of_default: float | None
    failure: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result. ``verdict``: ``faster`` with the settings, ``default`` if no candidate was
    faster, ``unconfirmed`` if time or good runs were too few to decide, or ``unfinished``. ``gain``
    is that of the confirmation, whatever its outcome. ``chosen`` are the options from the command
    line, ``batch_size`` is None if it stays that of the spec. ``global_batches`` are those that the
    default and the best candidate trained with, most often if runs find their own batch size.
    Speeds are in ``unit``: samples/s, or tokens/s of a language model."""

    bench_id: str
    created: str
    verdict: str
    why: str
    spec: Mapping[str, Any]
    chosen: Mapping[str, Any]
    hosts: tuple[str, ...]
    inventory: str
    networks: tuple[str, ...]
    versions: Mapping[str, Any]
    best: str
    env: Mapping[str, str]
    options: Mapping[str, Any]
    batch_size: int | None
    global_batches: tuple[int, int]
    unit: str
    gain: Change | None
    median_speed: float | None
    default_speed: float | None
    evidence: tuple[str, ...]
    tried: tuple[Tried, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON; speeds are unrounded."""
        return {"schema": 1, **asdict(self)}


def unit_of(spec: RunSpec) -> str:
    """Return the unit in which the speeds of a spec are compared."""
    return (TOKENS_PER_S if spec.step.tokens else SAMPLES_PER_S).unit


def tuned(bench: BenchDir, results: Sequence[RunResult] | None = None) -> Tuned:
    """Return the result of a tune; ``results`` are those of its runs if already read. Raise
    DataError for a damaged record.
    """
    record = bench.record()
    state = state_of(bench, reader_of(bench, results))
    last = state.rungs[-1] if state.rungs and state.rungs[-1].rung.confirms else None
    measured = gain(last) if last else None
    best: Candidate = last.rung.candidates[0] if last else ()
    knobs = state.schedule.knobs if state.schedule else ()
    chosen = settings(knobs, best) if last else Settings({}, {})
    default = record.cells[0]
    best_speed, base = (
        _median(last.speeds[who].values(), default) if last else None
        for who in (best, (0,) * len(best))
    )
    tune = tune_of(record)
    fastest = record.cells[tune.rungs[-1].cells[1]] if last and tune else default
    observed = state.pilot.observed if state.pilot else {}
    return Tuned(
        bench_id=record.bench_id,
        created=record.created,
        verdict=_verdict(state, measured),
        why=state.ended,
        spec=default.as_dict(),
        chosen={
            name: value
            for name, value in default.options.items()
            if default.origins.get(f"options.{name}") == "command line"
        },
        hosts=tuple(record.planned_with.hosts if record.planned_with else ())[: default.nodes],
        inventory=record.inventory,
        networks=tuple(observed.get("networks", ())),
        versions={name: observed[name] for name in _VERSIONS if observed.get(name)},
        best=written(knobs, best) if last else "",
        env=chosen.env,
        options=chosen.options,
        batch_size=chosen.batch_size,
        global_batches=(
            _global_batch(default, state.confirming),
            _global_batch(fastest, state.confirming),
        ),
        unit=unit_of(default),
        gain=measured,
        median_speed=best_speed,
        default_speed=base,
        evidence=tuple(run.run_id for run in state.confirming),
        tried=tuple(_tried(state, default)),
    )


def compared(bench: BenchDir, results: Sequence[RunResult]) -> tuple[list[RunResult], int]:
    """Return the runs of the last round with a best candidate, of that and of the default, and the
    number of other candidates; all runs and 0 if no candidate has a good run. Raise DataError for a
    damaged record."""
    record, state = bench.record(), state_of(bench, reader_of(bench, results))
    tune = tune_of(record)
    ahead = [
        (number, best) for number, measured in enumerate(state.rungs) if (best := _best(measured))
    ]
    if not ahead or tune is None or record.plan is None:
        return list(results), 0
    number, best = ahead[-1]
    default = (0,) * len(best)
    rung = tune.rungs[number]
    cells = dict(zip((default, *state.rungs[number].rung.candidates), rung.cells, strict=True))
    places = {run_id: (entry.rung, entry.cell) for run_id, entry in record.plan.items()}
    others = {candidate for measured in state.rungs for candidate in measured.speeds} - {
        default,
        best,
    }
    return [
        run
        for run in results
        if places.get(run.run_id) in ((number, cells[default]), (number, cells[best]))
    ], len(others)


def _best(measured: RungResult) -> Candidate | None:
    """Return the fastest candidate of a round except the default, or the one it confirms; None if
    no candidate has a speed.
    """
    if measured.rung.confirms:
        confirmed = measured.rung.candidates[0]
        return confirmed if any(measured.speeds[confirmed].values()) else None
    return next(filter(any, ranked(measured.speeds)), None)


def _verdict(state: State, measured: Change | None) -> str:
    if not state.ended:
        return UNFINISHED
    confirms = bool(state.rungs) and state.rungs[-1].rung.confirms
    if confirms and measured and measured.is_faster:
        return FASTER
    if (confirms and not (measured and measured.decides)) or state.ended in OUT_OF_TIME:
        return UNCONFIRMED
    return DEFAULT


def _global_batch(planned: RunSpec, runs: Sequence[RunResult]) -> int:
    """Return the global batch of those of ``runs`` that are of a planned spec: they may have found
    their batch size themselves. If repeats found different ones, the most frequent; the planned one
    if none has a number."""
    batches = [
        run.spec.global_batch
        for run in runs
        if run.is_good and run.spec and run.spec.is_run_of(planned)
    ]
    return min(multimode(batches), default=planned.global_batch)


def _tried(state: State, default: RunSpec) -> list[Tried]:
    rows = []
    for number, measured in enumerate(state.rungs, start=1):
        base = _median(
            measured.speeds[(0,) * len(state.schedule.knobs if state.schedule else ())].values(),
            default,
        )
        for candidate, by_repeat in measured.speeds.items():
            words = written(state.schedule.knobs if state.schedule else (), candidate)
            speeds = tuple(speed * default.items for speed in by_repeat.values() if speed)
            middle = median(speeds) if speeds else None
            ratio = middle / base if middle and base and any(candidate) else None
            rung, failed = measured.rung, len(by_repeat) - len(speeds)
            failure = state.failures.get(words, "") if failed or not by_repeat else ""
            rows.append(
                Tried(number, rung.steps, rung.confirms, words, speeds, failed, ratio, failure)
            )
    return rows


def _median(samples_per_s: Iterable[float | None], spec: RunSpec) -> float | None:
    good = [speed for speed in samples_per_s if speed]
    return median(good) * spec.items if good else None
