"""Which run of a bisect comes next, and whether there is time for it: `steps` decides, this module
asks and records.

A bisect is a bench of two cells, A and B as they are, that adds further cells round by round
(`rounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from orchestrator.features.search.bisection.answer import recorded_change
from orchestrator.features.search.bisection.shares import change, share
from orchestrator.features.search.bisection.state import BisectState, applied, bisect_state, setting
from orchestrator.features.search.bisection.steps import CONFIRMED, Limit, Step, following
from orchestrator.features.search.record import Candidate, RungRecord
from orchestrator.features.search.rounds import Rounds
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import PlannedRun
from orchestrator.plural import plural
from orchestrator.record.bench_parts import PlanEntry
from orchestrator.record.pending_work import leave_out
from orchestrator.results import mean
from orchestrator.results.progress_so_far import durations

__all__ = ["FAILED", "Bisection"]

FAILED = "A or B has no number"


class Bisection(Rounds):
    """The runs of a bisect, one after another, until its answer is verified, the change is gone, or
    its budget is used up.
    """

    noun = "bisect"

    def needs(self, owed: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return a run of every kind that may follow: each is of A, of B, or between them."""
        return [*owed, *self.plan.block(1)[:2]]

    def _may_fail(self, entry: PlanEntry) -> bool:
        return entry.cell > 1

    def _further(self) -> list[PlannedRun]:
        state = self._state()
        if state.failed_side:
            if not state.record.ended:
                self._end(FAILED)
            return []
        # What ended because a side had failed goes on once that run has been repeated.
        if state.record.ended not in ("", FAILED):
            return []
        if state.record.rungs and state.record.rungs[-1].confirms:
            self._end(CONFIRMED)
            return []
        self._show_shares(state)
        count, recorded = state.count, recorded_change(state.record.before, state.record.after)
        limit = self._limit()
        step = following(count, state.speeds, limit, state.refused, recorded)
        while isinstance(step, Step):
            if block := self._planned(state, step, limit):
                return block
            state = self._state()
            step = following(count, state.speeds, limit, state.refused, recorded)
        self._end(step)
        return []

    def _planned(self, state: BisectState, step: Step, limit: Limit) -> list[PlannedRun]:
        """Record the runs of a round as owed and return them; none, with the reasons recorded, if
        no candidate can be run.
        """
        a, b = self.plan.cells[0], self.plan.cells[1]
        framework = self.plan.folders[a.framework].framework
        origins = (f"A, {state.record.before.bench}", f"B, {state.record.after.bench}")
        all_taken: Candidate = (1,) * state.count

        def spec_of(candidate: Candidate) -> RunSpec:
            return applied(
                a, framework, dict(zip(state.record.differences, candidate, strict=True)), origins
            )

        others = [candidate for candidate in step.candidates if candidate != all_taken]
        specs, refused = self._possible(others, spec_of)
        verifies = step.candidates[0] if step.confirms else ()
        if verifies in refused:  # nothing is verified by runs of other sets alone
            specs, verifies = {}, ()
        is_empty = bool(others) and not specs and verifies != all_taken

        def made(places: tuple[int, ...]) -> RungRecord:
            kept, repeats = (all_taken, *specs), 0 if is_empty else step.repeats
            why_not = tuple(refused.items())
            return RungRecord(
                kept, repeats, a.steps, bool(verifies), places, why_not, verifies, step.is_early
            )

        cells = [a, b, *specs.values()]
        if is_empty:
            self._recorded(cells, "balanced", 0, made, 0)
            return []
        took = len(cells) * step.repeats * limit.run_s
        self._show(
            [
                f"{_round(state, step)}; {plural(step.repeats, 'block')}, about {took:.0f} s of {limit.left_s:.0f} s"
            ]
        )
        return self._begun(self._recorded(cells, "balanced", 0, made, step.repeats))

    def _in_time(self, run: PlannedRun) -> bool:
        limit = self._limit()
        return limit.left_s > 0 and limit.run_s <= limit.left_s and not self._state().failed_side

    def _leave(self, waiting: Sequence[PlannedRun]) -> None:
        if not self._state().failed_side:
            super()._leave(waiting)
            return
        notes = [f"left out, because {FAILED}: {plural(len(waiting), 'run')}"]
        leave_out(self.bench, [run.run_id for run in waiting], notes)
        self._show(notes)

    def _state(self) -> BisectState:
        return bisect_state(self.bench, self.tally.result)

    def _limit(self) -> Limit:
        """Return the mean seconds of a run so far, 0 before the first, and those that are left."""
        took = list(durations(self.bench.events()).values())
        budget_s = self.plan.schedule.budget_s
        left_s = float("inf") if budget_s is None else budget_s - self.tally.used_s()
        return Limit(mean(took) if took else 0.0, left_s)

    def _show_shares(self, state: BisectState) -> None:
        """Show what is known so far: the change from A to B, and the shares of the last round's
        candidates.
        """
        all_taken: Candidate = (1,) * state.count
        notes = []
        if whole := change(state.speeds, all_taken, (0,) * state.count):
            ends = f"{whole.interval.low - 1:+.1%} to {whole.interval.high - 1:+.1%}"
            notes.append(
                f"  B against A: {whole.ratio - 1:+.1%} ({ends}), {plural(whole.pairs, 'pair')}"
            )
        last = state.record.rungs[-1].candidates if state.record.rungs else ()
        for candidate in last:
            explained = share(state.speeds, candidate) if candidate != all_taken else None
            if explained and isfinite(explained.low):
                words = " ".join(
                    setting(difference)
                    for difference, taken in zip(state.record.differences, candidate, strict=True)
                    if taken
                )
                notes.append(
                    f"  {words}: {explained.value:.0%} ({explained.low:.0%} to {explained.high:.0%}) of the change"
                )
        self._show(notes)


def _round(state: BisectState, step: Step) -> str:
    if step.confirms:
        chosen = dict(zip(state.record.differences, step.candidates[0], strict=True))
        return f"verification: {' '.join(setting(difference) for difference, taken in chosen.items() if taken)} against A and B"
    if not step.candidates:
        return "A and B again"
    return f"round {len(state.record.rungs) + 1}: {len(step.candidates)} of B's differences or sets of them, A and B"
