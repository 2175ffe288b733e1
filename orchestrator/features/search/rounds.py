"""A bench whose cells come round by round: this module asks a `Strategy`, keeps the time and
records.

A round (rung) is listed in ``bench.json`` before its first run starts, and decisions depend only on
the bench directory, so a controller that continues such a bench ends it as the previous one would
have. A block, one run of every candidate of a round and of its default, has a repeat number that is
unique in the bench, so a value is compared only within its own block.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.controller.events import Decided, Observer, RunsPlanned
from orchestrator.errors import ConfigError, OrchError
from orchestrator.features.search.reading import open_search
from orchestrator.features.search.record import Candidate, Rung, add_rung, end_search
from orchestrator.features.search.strategy import Strategy, Times
from orchestrator.inventory import Host
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import Bench, PlannedRun, order_cells, plan_run
from orchestrator.plural import plural
from orchestrator.record import BenchDir
from orchestrator.record.journal import Event
from orchestrator.record.pending_work import leave_out
from orchestrator.results import RunResult, mean
from orchestrator.results.progress_so_far import Tally, durations

_OF_A_CANDIDATE = ("rank_failed", "run_timeout", "output_limit", "result_invalid", "log_unmatched")
"""Failures that a setting may cause; any other failure is one of the bench itself."""
_SHOWN = 12
"""Lines about the round that has just ended."""


class Rounds:
    """The runs of such a bench, one after another, until no further round follows or its budget is
    used up.

    Where ``hosts`` are given, the files of each candidate are rendered for them before it is
    planned: a template may refuse it.
    """

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

    def needs(self, owed: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return a run of every kind that may follow: all are like the first cells."""
        return [*owed, *self.plan.block(1)[:2]]

    def select_errors(self, errors: Sequence[OrchError]) -> list[OrchError]:
        """Return the errors of the bench itself; the failure of a candidate is a result, not an
        error.
        """
        search, plan = open_search(self.bench, self.tally.results()), self.bench.record().plan or {}
        sides = len(search.state.sides)
        harmless = {run_id for run_id, entry in plan.items() if entry.cell >= sides}
        kept = [
            error
            for error in errors
            if error.run_id not in harmless or error.kind not in _OF_A_CANDIDATE
        ]
        return [*kept, *self.errors]

    def runs(self, owed: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield the pending runs, then the runs of further rounds; each is over when the next is
        requested.
        """
        waiting = self._all = list(owed)
        self._observe(RunsPlanned(self._all))
        while waiting or (waiting := self._further()):
            results = self.tally.results()
            search = open_search(self.bench, results)
            if search.state.failed or not self._in_time(search, results, waiting[0]):
                self._leave(search, waiting)
                waiting = []
                continue
            run, *waiting = waiting
            yield run

    def again(self, run: PlannedRun, concerned: Callable[[RunSpec], bool]) -> int | None:
        """Plan nothing anew: decisions between rounds rest on the runs so far."""
        return None

    def _further(self) -> list[PlannedRun]:
        """Return the runs of another round, recorded as owed; an empty list at the end."""
        results = self.tally.results()
        search, times = open_search(self.bench, results), self._times(results)
        if search.state.failed:
            return []
        tables = search.outcome(self.bench.record()).tables
        if tables and not search.ended:
            self._show(*tables[-1][:_SHOWN])
        while not search.ended:
            step = search.following(times, self._left_s())
            if isinstance(step, str):
                self._end(search, step)
            elif runs := self._begin_round(search, step, times):
                return runs
            search = open_search(self.bench, results)
        if fault := search.fault(self.tally.used_s(), times):
            self.errors.append(fault)
        return []

    def _begin_round(self, search: Strategy, rung: Rung, times: Times) -> list[PlannedRun]:
        """Record a round and return its runs, which are owed from now on; none, with the reasons
        recorded, if nothing that it is about can be run.
        """
        sides = search.state.sides
        rung = replace(rung, steps=rung.steps or self.plan.cells[0].steps)
        specs = {side: search.spec_of(self.plan, rung, side, times) for side in sides}
        refused: dict[Candidate, str] = {}
        for candidate in rung.candidates:
            try:
                spec = search.spec_of(self.plan, rung, candidate, times)
                if self._hosts:
                    plan_run(self.plan.folders[spec.framework], spec, self._hosts)
                specs[candidate] = spec
            except ConfigError as error:
                place = f"{error.where}: " if error.where else ""
                refused[candidate] = place + error.message
        count = len(specs) - len(sides)
        if refused and (rung.candidates[0] in refused if rung.confirms else not count):
            specs = {side: specs[side] for side in sides}
            rung = replace(rung, repeats=0, confirms=False)
        else:
            self._show(self._round_words(search, rung, count, times))
        runs = self._record_round(search, rung, specs, refused)
        if runs:
            self._all = [*self._all, *runs]
            self._observe(RunsPlanned(self._all))
        return runs

    def _round_words(self, search: Strategy, rung: Rung, count: int, times: Times) -> str:
        if rung.confirms:
            words = f"verification: {search.words(rung.candidates[0])} against {search.beside}"
        elif count:
            number = len(search.state.rounds) + 1
            words = f"round {number}: {plural(count, 'candidate')} and {search.beside}"
        else:
            words = f"{search.beside} again"
        took_s = (count + len(search.state.sides)) * rung.repeats * times.run_s(rung.steps)
        size = f"{plural(rung.steps, 'step')}, {plural(rung.repeats, 'repeat')}"
        return f"{words}; {size}, about {took_s:.0f} s of {self._left_s():.0f} s"

    def _record_round(
        self,
        search: Strategy,
        rung: Rung,
        specs: Mapping[Candidate, RunSpec],
        refused: Mapping[Candidate, str],
    ) -> list[PlannedRun]:
        """Record a round with what it runs, and return its runs, in blocks."""
        record, cells = self.bench.record(), tuple(specs.values())
        new = tuple(cell for cell in cells if cell not in self.plan.cells)
        self.plan = replace(self.plan, cells=(*self.plan.cells, *new))
        seed = search.seed + len(search.state.rounds)
        order = order_cells(len(cells), rung.repeats, search.order, seed)
        runs = [
            self.plan.run(cells[cell], record.blocks + repeat, number)
            for number, (cell, repeat) in enumerate(order, start=len(record.plan or {}) + 1)
        ]
        verifies = rung.candidates[0] if rung.confirms else ()
        rung = replace(rung, candidates=tuple(specs)[1:], verifies=verifies)
        places = tuple(map(self.plan.cells.index, cells))
        rung = replace(rung, cells=places, refused=tuple(refused.items()))
        add_rung(self.bench, self.plan, runs, rung)
        return runs

    def _end(self, search: Strategy, why: str) -> None:
        end_search(self.bench, why)
        self.bench.event(Event.DECIDED, reason=why, used_s=round(self.tally.used_s(), 3))
        self._show(f"the {search.noun} ends: {why}")

    def _leave(self, search: Strategy, waiting: Sequence[PlannedRun]) -> None:
        why = f"because a run failed ({search.state.failed})"
        if not search.state.failed:
            why = f"for the budget of {self.plan.schedule.budget_s:g} s"
        note = f"left out {why}: {plural(len(waiting), 'run')} of the last round"
        leave_out(self.bench, [run.run_id for run in waiting], [note])
        self._show(note)

    def _show(self, *notes: str) -> None:
        self._observe(Decided(notes))

    # -- time

    def _left_s(self) -> float:
        budget_s = self.plan.schedule.budget_s
        if budget_s is None:
            return math.inf
        return budget_s - self.tally.used_s()

    def _in_time(self, search: Strategy, results: Sequence[RunResult], run: PlannedRun) -> bool:
        """Return True if a run would end within the budget and leave the reserved time."""
        times, default = self._times(results), self.plan.cells[0]
        alike = []
        for _, spec, step_s in _good(results):
            same = replace(spec, steps=run.spec.steps, timeout_s=run.spec.timeout_s)
            if same.is_run_of(run.spec):
                alike.append(step_s)
        # Until it has run, a step that computes twice as much is expected to take twice as long.
        more = 1.0 if alike else max(1.0, run.spec.global_batch / default.global_batch)
        took_s = times.start_s + max([times.step_s, *alike]) * more * run.spec.steps
        rung = (self.bench.record().plan or {})[run.run_id].rung
        return took_s + search.reserve_s(rung, times) < self._left_s()

    def _times(self, results: Sequence[RunResult]) -> Times:
        """Return the times of runs: means over all good runs so far."""
        took, good = durations(self.bench.events()), _good(results)
        if not good:
            return Times()
        starts = [took[name] - step_s * spec.steps for name, spec, step_s in good if name in took]
        start_s = max(0.0, mean(starts)) if starts else 0.0
        first_s = took.get(self.bench.record().runs[0], 0.0)
        return Times(start_s, mean([step_s for _, _, step_s in good]), first_s)


def _good(results: Sequence[RunResult]) -> list[tuple[str, RunSpec, float]]:
    """Return the good runs with their specs and the mean seconds of a step, 0 without steps."""
    runs = []
    for run in results:
        if run.is_good and run.spec:
            window = run.spec.steps - run.spec.warmup_steps
            step_s = run.throughput.seconds / window if run.throughput else 0.0
            runs.append((run.run_id, run.spec, step_s))
    return runs
