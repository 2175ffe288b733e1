"""The state of a tune as recorded in its bench: knobs, rounds, and their measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.features.search.evidence import (
    candidate_of,
    candidates_by_cell,
    failure_of,
    read_search,
)
from orchestrator.features.search.halving.candidates import applicable, written
from orchestrator.features.search.halving.schedule import Rung, RungResult, TuneSchedule
from orchestrator.features.search.record import Candidate, RungRecord, TuneRecord, tune_of
from orchestrator.inventory import Host
from orchestrator.plan import Knob
from orchestrator.record import BenchDir
from orchestrator.results import RunResult

__all__ = ["State", "state_of", "tune_record"]


def tune_record(
    knobs: Sequence[Knob], hosts: Sequence[Host], seed: int, *, numerics: bool, output: str
) -> TuneRecord:
    """Return the record of a tune in ``bench.json`` before its start. ``output``: path of the
    result; empty: in the bench.
    """
    shared = set.intersection(*(set(host.env.items()) for host in hosts))
    held = {
        name: value for name, value in sorted(shared) if any(name in knob.env for knob in knobs)
    }
    return TuneRecord(tuple(knobs), seed, numerics, output, held)


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a tune, from its evidence alone: the pilot's result, None before its end; the
    rounds that were started.

    ``schedule`` is None without a good pilot. ``failures`` maps the settings of a candidate, as text, to the reason why a run
    of it has no number. ``confirming`` are the runs of the confirmation.
    """

    pilot: RunResult | None
    schedule: TuneSchedule | None
    rungs: tuple[RungResult, ...]
    failures: Mapping[str, str]
    confirming: tuple[RunResult, ...]
    ended: str


def state_of(bench: BenchDir, read: Callable[[str], RunResult | None]) -> State:
    """Return the progress of a tune; ``read`` returns the result of a finished run. Raise DataError
    for an invalid record.
    """
    tune, runs = read_search(bench, tune_of, "tune", read)
    pilot = next((result for entry, result in runs if entry.rung is None), None)
    if pilot is None or pilot.throughput is None or pilot.spec is None:
        return State(pilot, None, (), {}, (), tune.ended)
    knobs = applicable(tune.knobs, pilot.observed, pilot.spec, tune.held, numerics=tune.numerics)
    schedule = TuneSchedule(knobs, tune.seed, pilot.spec.warmup_steps, pilot.spec.steps)
    failures: dict[str, str] = {}
    by_rung: list[list[tuple[Candidate, int, RunResult]]] = [[] for _ in tune.rungs]
    for entry, result in runs:
        if entry.rung is not None:
            candidate = candidate_of(bench, "tune", entry, tune.rungs, (schedule.default,))
            by_rung[entry.rung].append((candidate, entry.repeat, result))
    rungs = [
        _measure(schedule, kept, of_rung, failures)
        for kept, of_rung in zip(tune.rungs, by_rung, strict=True)
    ]
    last = len(rungs) - 1 if rungs and rungs[-1].rung.confirms else None
    confirming = tuple(result for entry, result in runs if last is not None and entry.rung == last)
    return State(pilot, schedule, tuple(rungs), failures, confirming, tune.ended)


def _measure(
    schedule: TuneSchedule,
    kept: RungRecord,
    runs: Sequence[tuple[Candidate, int, RunResult]],
    failures: dict[str, str],
) -> RungResult:
    """Return a round with the speeds of its runs; add the reasons of failures to ``failures``."""
    rung = Rung(kept.candidates, kept.repeats, kept.steps, kept.confirms)
    speeds: dict[Candidate, dict[int, float | None]] = {
        candidate: {} for candidate in candidates_by_cell(kept, schedule.default).values()
    }
    for candidate, reason in kept.refused:
        speeds[candidate] = {}
        failures.setdefault(written(schedule.knobs, candidate), reason)
    for candidate, repeat, result in runs:
        speeds[candidate][repeat] = result.throughput.samples_per_s if result.throughput else None
        if result.error:
            failures.setdefault(written(schedule.knobs, candidate), failure_of(result))
    return RungResult(rung, speeds)
