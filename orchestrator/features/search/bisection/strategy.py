"""A bisect as a search: A and B as they are, then rounds as `steps` decides."""

from __future__ import annotations

from orchestrator.features.search.bisection.answer import (
    answer,
    answer_of,
    left_open,
    list_attempts,
    measure_change,
)
from orchestrator.features.search.bisection.differences import apply_candidate, settings
from orchestrator.features.search.bisection.steps import CONFIRMED, Limit, following
from orchestrator.features.search.record import BisectRecord, Candidate, Rung
from orchestrator.features.search.strategy import Outcome, State, Strategy, Times
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import Bench
from orchestrator.record.bench_record import BenchRecord
from orchestrator.results import RunResult

_RESUMED = "A or B has no number"
"""What earlier versions recorded as the end of a bisect that goes on once that run is repeated."""


class Bisection(Strategy):
    """A bisect: the smallest set of differences that explains the change, and its verification."""

    noun = "bisect"
    beside = "A and B"
    order = "balanced"

    def __init__(self, search: BisectRecord, state: State) -> None:
        self.search = search
        self.state = state
        self.ended = "" if search.ended == _RESUMED else search.ended

    @staticmethod
    def sides(search: BisectRecord) -> tuple[Candidate, ...]:
        """Return A and B."""
        count = len(search.differences)
        return (0,) * count, (1,) * count

    @staticmethod
    def number(search: BisectRecord, run: RunResult) -> float | None:
        """Return the value of a run that is compared; None without one above 0."""
        for value in run.values if run.is_good else ():
            if (value.metric, tuple(value.key)) == (search.metric, search.key):
                return value.number if value.number and value.number > 0 else None
        return None

    def following(self, times: Times, left_s: float) -> Rung | str:
        """Return the next round, or why there is none."""
        state, search = self.state, self.search
        if state.verification:
            return CONFIRMED
        spec = state.first.spec if state.first else None
        limit = Limit(times.run_s(spec.steps if spec else 0), left_s)
        recorded = measure_change(search.before, search.after)
        return following(len(search.differences), state.speeds, limit, state.refused, recorded)

    def spec_of(self, plan: Bench, rung: Rung, candidate: Candidate, times: Times) -> RunSpec:
        """Return A or B as they are, or A with the differences of a candidate."""
        if candidate in self.state.sides:
            return plan.cells[self.state.sides.index(candidate)]
        a = plan.cells[0]
        return apply_candidate(a, plan.folders[a.framework].framework, self.search, candidate)

    def words(self, candidate: Candidate) -> str:
        """Return the settings that a candidate takes from B."""
        return " ".join(settings(self.search.differences, candidate))

    def outcome(self, record: BenchRecord) -> Outcome:
        """Return the result so far."""
        result = answer_of(record.bench_id, self.search, self.state)
        return Outcome(result, list_attempts(result), answer(result), left_open(result))
