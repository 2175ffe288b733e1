"""Planned runs of a bench, and which of them have a number: every output shows missing results
beside the measured ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import DataError
from orchestrator.notes import Note
from orchestrator.plan import Skipped
from orchestrator.plan.expectations import Expectation
from orchestrator.record import BenchDir, holder
from orchestrator.record.manifest import read_manifest
from orchestrator.results.notes import IN_PROGRESS, INCOMPLETE
from orchestrator.results.run import NEVER_RUN, REREAD, RESUME, RETRY, RUNNING, RunResult


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of planned runs, and how many of them have a number (``measured``), have
    ``failed``, were ``interrupted`` before their end, are ``running``, or were never started
    (``never_run``)."""

    planned: int
    measured: int
    failed: int
    interrupted: int
    running: int
    never_run: int

    def words(self) -> list[str]:
        """Return the counts of runs without a number, each with its name; zeros are left out."""
        names = ("failed", "interrupted", "running", "never_run")
        return [
            f"{count} {name.replace('_', ' ')}" for name in names if (count := getattr(self, name))
        ]


@dataclass(frozen=True, slots=True)
class Planned:
    """The planned runs of a bench: a result for each, their counts, and a ``note`` on missing
    results.

    ``note`` is None if nothing is missing. ``skipped`` are the configurations that the bench left
    out because they are impossible, ``label`` is its own, and ``expect`` are its expectations.

    Runs that were never started are in the counts, but have no result if no run of their framework
    shows what it measures.
    """

    results: tuple[RunResult, ...]
    counts: Counts
    note: Note | None
    label: str = ""
    skipped: tuple[Skipped, ...] = ()
    expect: tuple[Expectation, ...] = ()


def count_runs(results: Sequence[RunResult]) -> Counts:
    """Return the counts of these runs."""
    states = [result.state for result in results]
    return Counts(
        planned=len(results),
        measured=sum(result.is_good for result in results),
        failed=sum(result.has_failed for result in results),
        interrupted=sum(result.is_interrupted for result in results),
        running=states.count(RUNNING),
        never_run=states.count(NEVER_RUN),
    )


def planned_runs(bench: BenchDir, results: Sequence[RunResult]) -> Planned:
    """Return the planned runs of a bench in execution order; ``results`` are the runs with files.

    A run without an outcome is running while a controller holds the bench.
    """
    record, by_id = bench.record(), {result.run_id: result for result in results}
    is_held = holder(bench) is not None
    planned, unknown = [], 0
    for run_id in record.runs:
        result = by_id.get(run_id)
        if result is not None:
            planned.append(_running(result) if is_held and not _is_over(bench, result) else result)
            continue
        entry = (record.plan or {}).get(run_id)
        spec = record.cells[entry.cell] if entry else None
        alike = [
            result
            for result in results
            if result.spec and spec and result.spec.framework == spec.framework
        ]
        if entry is None or not alike:
            unknown += 1
            continue
        pattern = next(
            (result for result in alike if result.spec and spec and result.spec.is_run_of(spec)),
            alike[0],
        )
        run = RunResult(
            run_id,
            entry.repeat,
            spec,
            pattern.simulated,
            NEVER_RUN,
            measure=pattern.measure,
            metrics=pattern.metrics,
        )
        planned.append(replace(run, repeated_by=RESUME))
    planned = _with_found_batch_sizes(planned)
    counts = count_runs(planned)
    counts = replace(counts, planned=len(record.runs), never_run=counts.never_run + unknown)
    note = _note(record.bench_id, planned, counts, is_held)
    return Planned(tuple(planned), counts, note, record.label, record.skipped, record.expect)


def _with_found_batch_sizes(results: Sequence[RunResult]) -> list[RunResult]:
    """Return the results, those without a number beside the others of their configuration where
    runs find the batch size.
    """
    specs = [
        run.spec for run in results if run.is_good and run.spec and run.spec.step.batch_size_up_to
    ]

    def place(run: RunResult) -> RunResult:
        spec = run.spec
        alike = {
            other.batch_size: other for other in specs if other and spec and other.is_run_of(spec)
        }
        if len(alike) == 1 and not run.is_good:
            return replace(run, spec=next(iter(alike.values())))
        return run

    return list(map(place, results))


def _is_over(bench: BenchDir, result: RunResult) -> bool:
    try:
        return read_manifest(bench.run(result.run_id)).outcome is not None
    except DataError:
        return True


def _running(result: RunResult) -> RunResult:
    """Return a run that is under way without what its evidence gives so far: that is no number, and
    its gaps are no fault.
    """
    return replace(
        result,
        state=RUNNING,
        repeated_by="",
        throughput=None,
        metric_values=(),
        readings=(),
        error=None,
        qualifications=(),
        step_times=None,
        unsteady=(),
        tempo=None,
        digests=(),
    )


def _note(
    bench_id: str, results: Sequence[RunResult], counts: Counts, is_held: bool
) -> Note | None:
    if counts.measured == counts.planned:
        return None
    words = [f"{counts.measured} of {counts.planned} planned runs measured", *counts.words()]
    commands = _commands(shlex.quote(bench_id), results, counts, is_held)
    return (IN_PROGRESS if is_held else INCOMPLETE)(counts="; ".join([", ".join(words), *commands]))


def _commands(
    bench: str, results: Sequence[RunResult], counts: Counts, is_held: bool
) -> Iterator[str]:
    """Yield commands that add the missing runs."""
    if is_held:
        yield f"orch attach {bench} follows it"
        return
    again = {result.repeated_by for result in results if not result.is_good}
    if RESUME in again or counts.never_run:
        yield f"{RESUME} {bench} continues it"
    if RETRY in again:
        yield f"{RETRY} {bench} repeats failed runs"
    if REREAD in again:
        yield f"{REREAD} {bench} reads the logs again after a correction of the log grammar"
    if "" in again:
        yield "runs that finished without a valid number are measured again only by a new orch bench"
