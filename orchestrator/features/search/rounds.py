"""A bench whose cells come round by round: a tune and a bisect.

A round (rung) is listed in ``bench.json`` before its first run starts, and decisions depend only on
the bench directory, so a controller that continues such a bench ends it as the previous one would
have. A block, one run of every candidate of a round and of its default, has a repeat number that is
unique in the bench, so a value is compared only with those of its own block.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.controller.events import Decided, Observer, RunsPlanned
from orchestrator.errors import ConfigError, OrchError
from orchestrator.features.search.record import Candidate, RungRecord, add_rung, end_search
from orchestrator.inventory import Host
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import Bench, PlannedRun, order_cells, plan_run
from orchestrator.plural import plural
from orchestrator.record import BenchDir
from orchestrator.record.bench_parts import PlanEntry
from orchestrator.record.journal import Event
from orchestrator.record.pending_work import leave_out
from orchestrator.results.progress_so_far import Tally

__all__ = ["Rounds"]

_OF_A_CANDIDATE = ("rank_failed", "run_timeout", "output_limit", "result_invalid", "log_unmatched")
"""Failures that a setting may cause; any other failure is one of the bench itself."""


class Rounds(ABC):
    """The runs of such a bench, one after another, until no further round follows or its budget is
    used up.

    Where ``hosts`` are given, the files of each candidate are rendered for them before it is
    planned: a template may refuse it.
    """

    noun = "bench"

    def __init__(
        self,
        bench: BenchDir,
        plan: Bench,
        observe: Observer,
        clock: Callable[[], float] = time.monotonic,
        *,
        hosts: Sequence[Host] = (),
    ) -> None:
        self.bench = bench
        self.plan = plan
        self.errors: list[OrchError] = []
        self.tally = Tally(bench, clock)
        self._hosts = hosts
        self._observe = observe
        self._all: list[PlannedRun] = []

    @abstractmethod
    def needs(self, owed: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return a run of every kind that may follow."""

    def counted(self, errors: Sequence[OrchError]) -> list[OrchError]:
        """Return the errors of the bench itself; the failure of a candidate is a result, not an
        error.
        """
        harmless = {run_id for run_id, entry in self._entries().items() if self._may_fail(entry)}
        kept = [
            error
            for error in errors
            if error.run_id not in harmless or error.kind not in _OF_A_CANDIDATE
        ]
        return [*kept, *self.errors]

    def runs(self, owed: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield the runs that are owed, then those of further rounds; each is over when the next is
        requested.
        """
        waiting = self._all = list(owed)
        self._observe(RunsPlanned(self._all))
        while waiting or (waiting := self._further()):
            if not self._in_time(waiting[0]):
                self._leave(waiting)
                waiting = []
                continue
            run, *waiting = waiting
            yield run

    def again(self, run: PlannedRun, concerned: Callable[[RunSpec], bool]) -> int | None:
        """Plan nothing anew: decisions between rounds rest on the runs so far."""
        return None

    @abstractmethod
    def _further(self) -> list[PlannedRun]:
        """Return the runs of another round, recorded as owed; an empty list at the end."""

    @abstractmethod
    def _in_time(self, run: PlannedRun) -> bool:
        """Return True if there is time for a run."""

    def _may_fail(self, entry: PlanEntry) -> bool:
        """Return True for a run of a candidate, of which a failure is a result."""
        return entry.rung is not None

    def _begun(self, block: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Announce the runs of a round and return them."""
        self._all = [*self._all, *block]
        self._observe(RunsPlanned(self._all))
        return list(block)

    def _recorded(
        self,
        cells: Sequence[RunSpec],
        order: str,
        seed: int,
        made: Callable[[tuple[int, ...]], RungRecord],
        repeats: int,
    ) -> list[PlannedRun]:
        """Record the runs of a round as owed and return them; ``made`` returns its record from the
        places of its cells.
        """
        record = self.bench.record()
        self.plan = replace(
            self.plan,
            cells=(*self.plan.cells, *(cell for cell in cells if cell not in self.plan.cells)),
        )
        number, block = len(record.plan or {}), record.blocks
        runs = [
            self.plan.run(cells[cell], block + repeat, number + place)
            for place, (cell, repeat) in enumerate(
                order_cells(len(cells), repeats, order, seed), start=1
            )
        ]
        add_rung(
            self.bench, self.plan, runs, made(tuple(self.plan.cells.index(cell) for cell in cells))
        )
        return runs

    def _possible(
        self, candidates: Sequence[Candidate], spec_of: Callable[[Candidate], RunSpec]
    ) -> tuple[dict[Candidate, RunSpec], dict[Candidate, str]]:
        """Return the specs of the candidates that can be run, and for each other candidate why it
        cannot.
        """
        specs, refused = {}, {}
        for candidate in candidates:
            try:
                spec = spec_of(candidate)
                if self._hosts:
                    folder = self.plan.folders[spec.framework]
                    plan_run(folder, spec, self._hosts)
            except ConfigError as error:
                refused[candidate] = (
                    f"{error.where}: {error.message}" if error.where else error.message
                )
                continue
            specs[candidate] = spec
        return specs, refused

    def _entries(self) -> Mapping[str, PlanEntry]:
        return self.bench.record().plan or {}

    def _leave(self, waiting: Sequence[PlannedRun]) -> None:
        notes = [
            f"left out for the budget of {self.plan.schedule.budget_s:g} s: {plural(len(waiting), 'run')} of the last round"
        ]
        leave_out(self.bench, [run.run_id for run in waiting], notes)
        self._observe(Decided(notes))

    def _end(self, why: str) -> None:
        end_search(self.bench, why)
        self.bench.event(Event.DECIDED, reason=why, used_s=round(self.tally.used_s(), 3))
        self._observe(Decided([f"the {self.noun} ends: {why}"]))

    def _show(self, notes: Sequence[str]) -> None:
        self._observe(Decided(list(notes)))
