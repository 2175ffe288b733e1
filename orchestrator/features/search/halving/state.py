"""The state of a tune as recorded in its bench: knobs, rounds, and their measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.features.search.evidence import (
    candidates_by_cell,
    failure_of,
    record_missing,
    refuse_unknown_runs,
)
from orchestrator.features.search.halving.candidates import applicable, written
from orchestrator.features.search.halving.schedule import Rung, RungResult, TuneSchedule
from orchestrator.features.search.record import Candidate, RungRecord, TuneRecord, tune_of
from orchestrator.inventory import Host
from orchestrator.plan import Knob
from orchestrator.record import BenchDir
from orchestrator.record.bench_parts import PlanEntry
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
    record = bench.record()
    tune, entries = tune_of(record), record.plan
    if tune is None or entries is None:
        raise record_missing(bench, "tune")
    runs = [
        (entries[run_id], result)
        for run_id in record.runs
        if run_id in entries and (result := read(run_id))
    ]
    pilot = next((result for entry, result in runs if entry.rung is None), None)
    if pilot is None or pilot.throughput is None or pilot.spec is None:
        return State(pilot, None, (), {}, (), tune.ended)
    knobs = applicable(tune.knobs, pilot.observed, pilot.spec, tune.held, numerics=tune.numerics)
    schedule = TuneSchedule(knobs, tune.seed, pilot.spec.warmup_steps, pilot.spec.steps)
    failures: dict[str, str] = {}
    with refuse_unknown_runs(bench, "tune"):
        rungs = [
            _measured(schedule, kept, [run for run in runs if run[0].rung == number], failures)
            for number, kept in enumerate(tune.rungs)
        ]
    last = len(rungs) - 1 if rungs and rungs[-1].rung.confirms else None
    confirming = tuple(result for entry, result in runs if last is not None and entry.rung == last)
    return State(pilot, schedule, tuple(rungs), failures, confirming, tune.ended)


def _measured(
    schedule: TuneSchedule,
    kept: RungRecord,
    runs: Sequence[tuple[PlanEntry, RunResult]],
    failures: dict[str, str],
) -> RungResult:
    """Return a round with the speeds of its runs; add the reasons of failures to ``failures``."""
    rung = Rung(kept.candidates, kept.repeats, kept.steps, kept.confirms)
    by_cell = candidates_by_cell(kept, schedule.default)
    speeds: dict[Candidate, dict[int, float | None]] = {
        candidate: {} for candidate in by_cell.values()
    }
    for candidate, reason in kept.refused:
        speeds[candidate] = {}
        failures.setdefault(written(schedule.knobs, candidate), reason)
    for entry, result in runs:
        candidate = by_cell[entry.cell]
        speeds[candidate][entry.repeat] = (
            result.throughput.samples_per_s if result.throughput else None
        )
        if result.error:
            failures.setdefault(written(schedule.knobs, candidate), failure_of(result))
    return RungResult(rung, speeds)
