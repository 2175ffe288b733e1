"""Schedule the runs of a bench, block by block, within its time: `stop_rule` decides, this module
asks and records.

Decisions depend only on the bench directory, so a controller that continues a bench decides as the
previous one would have. Added runs are listed in ``bench.json`` before the first of them starts.
"""

from __future__ import annotations

import copy
import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.controller.deterministic import DeterministicFailure, deterministic_failure
from orchestrator.controller.events import BlockOver, Decided, Observer, RunsPlanned
from orchestrator.controller.stop_rule import (
    decide,
    end_words,
    find_hopeless_cells,
    left_out_words,
    widest,
)
from orchestrator.errors import OrchError, RunError
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.record import BenchDir
from orchestrator.record.journal import Event
from orchestrator.record.pending_work import add_block, leave_out, supersede
from orchestrator.results import RunResult
from orchestrator.results.progress_so_far import Tally, longest


class BlockScheduler:
    """The runs of a bench, one after another, until it has measured enough or its budget is used
    up.

    ``expected`` are cells with the seconds that a run took in earlier benches. ``errors`` names
    cells for which the budget allowed no run at all. Unless it is to ``keep_going``, runs that
    would fail as an earlier one did are not made; they stay planned, so that a later controller
    makes them.
    """

    def __init__(
        self,
        bench: BenchDir,
        plan: Bench,
        expected: Sequence[tuple[RunSpec, float]],
        observe: Observer,
        clock: Callable[[], float] = time.monotonic,
        *,
        keep_going: bool = False,
    ) -> None:
        self.bench = bench
        self.plan = plan
        self.errors: list[RunError] = []
        self._expected = expected
        self._observe = observe
        self.tally = Tally(bench, clock)
        self._all: list[PlannedRun] = []
        self._keep_going = keep_going
        self._made: list[RunResult] = []
        self._failures: list[DeterministicFailure] = []
        self._not_made: dict[str, DeterministicFailure] = {}
        self._anew: list[PlannedRun] = []

    def needs(self, owed: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return a run of every kind that may follow: the owed ones, and a block if further blocks
        may be added.
        """
        return [*owed, *(self.plan.block(1) if self.plan.schedule.until_ci is not None else ())]

    def select_errors(self, errors: Sequence[OrchError]) -> list[OrchError]:
        """Return the errors of runs, each with how many other runs were not made because of it,
        and of cells without time for a run."""
        notes = {failure.run_id: self._not_made_words(failure) for failure in self._failures}
        return [*(_with_note(error, notes.get(error.run_id, "")) for error in errors), *self.errors]

    def runs(self, owed: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield the runs that are owed, then further blocks; each run is over when the next
        one is requested.
        """
        waiting = self._all = list(owed)
        self._observe(RunsPlanned(self._all))
        while waiting or (waiting := self._further()):
            block = [run for run in waiting if run.repeat == waiting[0].repeat]
            in_time = self._in_time(block)  # an incomplete block gives no pairs
            for run in block:
                if not (in_time and self._in_time([run])):
                    self._end("budget", waiting)
                    return
                waiting = waiting[1:]
                if failure := self._failure_of(run.spec):
                    self._not_made[run.run_id] = failure
                    continue
                yield run
                if self._anew:
                    waiting, self._anew = (
                        sorted([*self._anew, *waiting], key=lambda run: run.repeat),
                        [],
                    )
                    break
                self._look_at(run, waiting)
            else:
                if self.plan.schedule.adapts:
                    self._show_block(block[0].repeat)

    def again(self, run: PlannedRun, concerned: Callable[[RunSpec], bool]) -> int | None:
        """Plan new attempts of all finished runs of the specs that are concerned, and of ``run`` if
        it is over and of these.

        They come next, or after ``run`` if it is about to begin. Returns their number; None, and
        nothing is planned, if the budget has no time for them or no table counts the run.
        """
        record = self.bench.record()
        entries = {name: entry for name in record.runs if (entry := (record.plan or {}).get(name))}
        if run.run_id not in entries:
            return None
        runs = []
        for name, entry in entries.items():
            spec, result = record.cells[entry.cell], self.tally.result(name)
            if (
                concerned(spec)
                and result
                and (name == run.run_id or result.state == Event.FINISHED)
            ):
                runs.append(
                    PlannedRun(
                        name, entry.repeat, spec, self.plan.folders[spec.framework], run.bench_id
                    )
                )
        if not self._in_time(runs):
            return None
        self._anew = [supersede(self.bench, concerned_run) for concerned_run in runs]
        self._all = [*self._all, *self._anew]
        self._observe(RunsPlanned(self._all))
        return len(runs)

    def _look_at(self, run: PlannedRun, waiting: Sequence[PlannedRun]) -> None:
        """Judge by the result of a run that is over whether others would fail in the same way."""
        result = self.tally.result(run.run_id)
        if result is None or self._keep_going:
            return
        self._made.append(result)
        if result.is_good:
            return
        failure = deterministic_failure(
            run, self.bench.run(run.run_id), self._made, self.tally.results()
        )
        if failure and not self._failure_of(run.spec):
            self._failures.append(failure)
            skipped = [other.run_id for other in waiting if failure.concerns(other.spec)]
            self.bench.event(Event.DECIDED, reason="deterministic failure", runs=skipped)
            if skipped:
                counted = f"{len(skipped)} runs are" if len(skipped) > 1 else "1 run is"
                self._observe(Decided([f"  {counted} not started: {failure.reason}"]))

    def _failure_of(self, spec: RunSpec) -> DeterministicFailure | None:
        return next((failure for failure in self._failures if failure.concerns(spec)), None)

    def _not_made_words(self, failure: DeterministicFailure) -> str:
        count = sum(other is failure for other in self._not_made.values())
        if not count:
            return ""
        runs = f"{count} further runs were" if count > 1 else "1 further run was"
        resume = "orch resume --retry-failed" if failure.is_crash else "orch resume"
        again = f"after the repair: {resume} {shlex.quote(self.bench.path.name)}; --keep-going runs them anyway"
        return f"{runs} not started: {failure.reason}; {again}"

    def _results(self) -> list[RunResult]:
        """Return the results of all configurations that may have further runs."""
        return [
            result
            for result in self.tally.results()
            if not (result.spec and self._failure_of(result.spec))
        ]

    def _further(self) -> list[PlannedRun]:
        """Return the runs of another block, recorded as owed; an empty list at the end of the
        bench.
        """
        record, schedule = self.bench.record(), self.plan.schedule
        if record.left_out:
            self._note_cells_without_runs()
            return []
        if schedule.until_ci is None:
            self._end("planned", [])
            return []
        blocks = record.blocks
        if all(map(self._failure_of, self.plan.cells)):
            return []
        lost = find_hopeless_cells(self._results())
        block = [
            run
            for run in self.plan.block(blocks + 1)
            if run.spec not in lost and not self._failure_of(run.spec)
        ]
        used_s, block_s = self.tally.used_s(), self._time_of(block)
        decision = decide(
            schedule, widest(self._results()), blocks=blocks, used_s=used_s, block_s=block_s
        )
        if not decision.goes_on:
            self._end(decision.reason, [])
            return []
        add_block(self.bench, self.plan, block)
        self._note(decision.reason, blocks, runs=[run.run_id for run in block])
        self._all = [*self._all, *block]
        self._observe(RunsPlanned(self._all))
        return block

    def _in_time(self, runs: Sequence[PlannedRun]) -> bool:
        return self.plan.schedule.budget_s is None or self.plan.schedule.fits(
            self.tally.used_s(), self._time_of(runs)
        )

    def _time_of(self, runs: Sequence[PlannedRun]) -> float:
        """Return the expected seconds of the runs: each as the longest of its cell in this or else
        an earlier bench, else 0.
        """
        measured = longest(self.bench)
        times_s = []
        for run in runs:
            times_s.append(
                next((took for spec, took in (*measured, *self._expected) if spec == run.spec), 0.0)
            )
        return sum(times_s)

    def _show_block(self, repeat: int) -> None:
        schedule = self.plan.schedule
        left_s = None
        if schedule.budget_s is not None:
            left_s = max(0.0, schedule.budget_s - self.tally.used_s())
        self._observe(BlockOver(repeat, widest(self._results()), schedule, left_s))

    def _end(self, reason: str, waiting: Sequence[PlannedRun]) -> None:
        """Record why an adaptive bench ends now, and the runs that it leaves out."""
        schedule = self.plan.schedule
        if not schedule.adapts:
            return
        measured = self.tally.results()
        blocks = max((run.repeat for run in measured), default=0)
        words = [end_words(schedule, reason, widest(measured), blocks)]
        words += [left_out_words(schedule, [run.spec.shape for run in waiting])]
        notes = [text for text in words if text]
        leave_out(self.bench, [run.run_id for run in waiting], notes)
        self._note(reason, blocks)
        self._observe(Decided(notes))
        self._note_cells_without_runs()

    def _note(self, reason: str, blocks: int, **fields: Any) -> None:
        """Write a decision to the journal, with the values that it is based on."""
        width = widest(self.tally.results())
        share = width.share if width and math.isfinite(width.share) else None
        self.bench.event(
            Event.DECIDED,
            reason=reason,
            blocks=blocks,
            widest=share,
            used_s=round(self.tally.used_s(), 3),
            **fields,
        )

    def _note_cells_without_runs(self) -> None:
        schedule, measured = self.plan.schedule, self.tally.results()
        for spec in self.plan.cells:
            if not any(run.spec and run.spec.is_run_of(spec) for run in measured):
                message = f"the budget of {schedule.budget_s:g} s was used up before the first run of {spec.shape} {spec.dtype}"
                self.errors.append(
                    RunError(
                        message,
                        kind="budget_over",
                        hint="use a larger --budget, or fewer configurations",
                    )
                )


def _with_note(error: OrchError, note: str) -> OrchError:
    """Return an error with a note as the last line of its hint; the original belongs to a result."""
    if note:
        error = copy.copy(error)
        error.hint = f"{error.hint}\n{note}" if error.hint else note
    return error
