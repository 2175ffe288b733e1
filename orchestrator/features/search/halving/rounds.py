"""Which run of a tune comes next, and whether there is time for it: `schedule` decides, this module
asks and records.

A tune is a bench that begins with one run of the default, the pilot, and adds further cells round
by round (`rounds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from orchestrator.errors import DataError, RunError
from orchestrator.features.search.halving import State, state_of
from orchestrator.features.search.halving.answer import unit_of
from orchestrator.features.search.halving.candidates import applied, written
from orchestrator.features.search.halving.schedule import (
    Rung,
    Times,
    TuneSchedule,
    following,
    least_s,
    ranked,
    reserve_s,
)
from orchestrator.features.search.record import (
    CONFIRMED,
    DEFAULT_FASTEST,
    NO_GOOD_RUN,
    NOT_CONFIRMED,
    NOTHING_APPLIES,
    TOO_SHORT,
    Candidate,
    RungRecord,
    tune_of,
)
from orchestrator.features.search.rounds import Rounds
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import PlannedRun
from orchestrator.plural import plural
from orchestrator.results import RunResult
from orchestrator.results.progress_so_far import durations

__all__ = ["Search"]

_PATIENCE, _LEAST_LIMIT_S = 4.0, 60.0
"""Time limit of a candidate: a multiple of the pilot's time, and a minimum in seconds."""


class Search(Rounds):
    """The runs of a tune, one after another, until its answer is confirmed or its budget is used
    up.
    """

    noun = "tune"

    def needs(self, owed: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return a run of every kind that may follow; all are like the pilot."""
        return [*owed, *self.plan.block(1)[:1]]

    def _further(self) -> list[PlannedRun]:
        """Return the runs of another round, recorded as owed; an empty list at the end of the tune."""
        state = self._state()
        # Without a schedule the pilot has failed, and its error says why. A budget that was too
        # short for one candidate is the same after a resume.
        if state.schedule is None or state.ended not in ("", TOO_SHORT):
            if state.ended == TOO_SHORT:
                self._refuse_all()
            return []
        self._show_leaders(state)
        budget_s = self.plan.schedule.budget_s or float("inf")
        times, left_s = self._times(), budget_s - self.tally.used_s()
        rung = (
            following(state.schedule, state.rungs, times, left_s) if state.schedule.knobs else None
        )
        if rung is None and state.schedule.knobs and not state.rungs:
            self._refuse(times, state.schedule.steps)
            return []
        if rung is None:
            self._end(_why(state))
            return []
        block = self._planned(state.schedule, rung)
        kind = (
            f"confirmation: {written(state.schedule.knobs, rung.candidates[0])} against the default"
            if rung.confirms
            else f"round {len(state.rungs) + 1}: {plural(len(rung.candidates), 'candidate')} and the default"
        )
        took = len(block) * times.run_s(rung.steps)
        self._show(
            [
                f"{kind}; {plural(rung.steps, 'step')}, {plural(rung.repeats, 'repeat')}, about {took:.0f} s of {left_s:.0f} s"
            ]
        )
        return self._begun(block)

    def _planned(self, schedule: TuneSchedule, rung: Rung) -> list[PlannedRun]:
        """Record the runs of a round as owed and return them, in blocks of random order."""
        tune = tune_of(self.bench.record())
        begun = len(tune.rungs) if tune else 0
        default = replace(self.plan.cells[0], steps=rung.steps, timeout_s=self._limit_s())
        framework = self.plan.folders[default.framework].framework

        def spec_of(candidate: Candidate) -> RunSpec:
            spec = applied(default, framework, schedule.knobs, candidate)
            return replace(spec, timeout_s=self._timeout_s(spec))

        specs, refused = self._possible(rung.candidates, spec_of)

        def made(places: tuple[int, ...]) -> RungRecord:
            return RungRecord(
                tuple(specs),
                rung.repeats,
                rung.steps,
                rung.confirms,
                places,
                tuple(refused.items()),
            )

        return self._recorded(
            [default, *specs.values()], "random", schedule.seed + begun, made, rung.repeats
        )

    def _limit_s(self) -> float:
        """Return the time limit of a candidate's run in seconds."""
        pilot = self.bench.record().runs[0]
        took = durations(self.bench.events()).get(pilot, _LEAST_LIMIT_S)
        return min(self.plan.cells[0].timeout_s, max(_LEAST_LIMIT_S, round(_PATIENCE * took)))

    def _timeout_s(self, spec: RunSpec) -> float:
        """Return the time limit of a candidate: that of the default, times how much more a step of
        it computes.
        """
        default = self.plan.cells[0]
        return min(
            default.timeout_s,
            round(self._limit_s() * max(1.0, spec.global_batch / default.global_batch)),
        )

    # -- time

    def _in_time(self, run: PlannedRun) -> bool:
        """Return True if a run may start: it would end within the budget and leave time for the
        confirmation.
        """
        budget_s, used_s = self.plan.schedule.budget_s, self.tally.used_s()
        rung = self._entries()[run.run_id].rung
        if budget_s is None or rung is None:
            return budget_s is None or used_s < budget_s
        times = self._times()
        tune = tune_of(self.bench.record())
        kept_s = (
            0.0
            if tune and tune.rungs[rung].confirms
            else reserve_s(times, self.plan.cells[0].steps)
        )
        default = self.plan.cells[0]
        alike = self._good(
            lambda spec: replace(
                spec, steps=run.spec.steps, timeout_s=run.spec.timeout_s
            ).is_run_of(run.spec)
        )
        # Until it has run, a step that computes twice as much is expected to take twice as long.
        more = max(1.0, run.spec.global_batch / default.global_batch)
        step_s = max([times.step_s, *map(_step_s, alike)]) if alike else times.step_s * more
        return used_s + times.start_s + step_s * run.spec.steps + kept_s <= budget_s

    def _times(self) -> Times:
        """Return the times of runs: medians over all good runs so far."""
        took = durations(self.bench.events())
        good = self._good(lambda _: True)
        starts = [
            took[run.run_id] - _step_s(run) * run.spec.steps
            for run in good
            if run.spec and run.run_id in took
        ]
        return Times(
            max(0.0, median(starts)) if starts else 0.0, median(map(_step_s, good)) if good else 0.0
        )

    def _good(self, fits: Callable[[RunSpec], bool]) -> list[RunResult]:
        return [
            run for run in self.tally.results() if run.throughput and run.spec and fits(run.spec)
        ]

    # -- measurements, and messages about them

    def _state(self) -> State:
        return state_of(self.bench, self.tally.result)

    def _show_leaders(self, state: State) -> None:
        """Show the fastest candidates of the round that has just ended."""
        if not state.rungs or state.schedule is None:
            return
        speeds, notes = state.rungs[-1].speeds, []
        base = [speed for speed in speeds[state.schedule.default].values() if speed]
        for candidate in ranked(speeds)[:3]:
            mean = median(speed for speed in speeds[candidate].values() if speed)
            relative = (
                f", {mean / median(base):.3f} of the default" if base and any(candidate) else ""
            )
            default_spec = self.plan.cells[0]
            speed = f"{mean * default_spec.items:.1f} {unit_of(default_spec)}"
            notes.append(f"  {speed}{relative}: {written(state.schedule.knobs, candidate)}")
        self._show(notes)

    def _refuse(self, times: Times, steps: int) -> None:
        message = f"a run takes {times.run_s(steps):.0f} s, so the budget is too small to try and confirm a candidate"
        needed_s = self.tally.used_s() + least_s(times, steps)
        hint = f"start a new orch tune with --budget {math.ceil(1.2 * needed_s / 60)}m or more, or fewer --steps"
        self.errors.append(RunError(message, kind="budget_over", hint=hint))
        self._end(TOO_SHORT)

    def _refuse_all(self) -> None:
        message = (
            f"the budget of {self.plan.schedule.budget_s:g} s was used up before the first run"
        )
        self.errors.append(
            RunError(
                message, kind="budget_over", hint="start a new orch tune with a larger --budget"
            )
        )

    def _leave(self, waiting: Sequence[PlannedRun]) -> None:
        super()._leave(waiting)
        entries = self._entries()
        if all(entries[run.run_id].rung is None for run in waiting):
            self._end(TOO_SHORT)


def _why(state: State) -> str:
    """Return why no further round follows."""
    if not state.rungs:
        return NOTHING_APPLIES
    if state.rungs[-1].rung.confirms:
        return CONFIRMED
    order = ranked(state.rungs[-1].speeds)
    if not any(map(any, order)):
        return NO_GOOD_RUN
    return NOT_CONFIRMED if any(order[0]) else DEFAULT_FASTEST


def _step_s(run: RunResult) -> float:
    """Return the mean seconds of a step of a good run."""
    if run.throughput is None or run.spec is None:
        raise DataError("expected a run with a number", kind="result_invalid", run_id=run.run_id)
    return run.throughput.seconds / (run.spec.steps - run.spec.warmup_steps)
