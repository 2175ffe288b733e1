"""A tune as a search: a pilot of the default, then rounds as `schedule` decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.features.search.halving.answer import Tuned, answer, answer_of, rungs
from orchestrator.features.search.halving.candidates import (
    applicable,
    apply_candidate,
    format_candidate,
)
from orchestrator.features.search.halving.schedule import (
    TOO_SHORT,
    TuneSchedule,
    following,
    least_s,
    reserve_s,
)
from orchestrator.features.search.record import Candidate, Rung, TuneRecord
from orchestrator.features.search.strategy import Outcome, State, Strategy, Times
from orchestrator.plan import Knob, RunSpec
from orchestrator.plan.bench import Bench
from orchestrator.record import BenchDir
from orchestrator.record.bench_record import BenchRecord
from orchestrator.results import RunResult

_PATIENCE, _LEAST_LIMIT_S = 4.0, 60.0
"""Time limit of a candidate: a multiple of the pilot's time, and a minimum in seconds."""


class Halving(Strategy):
    """A tune: successive halving, and the confirmation of its best candidate."""

    noun = "tune"
    beside = "the default"
    order = "random"

    def __init__(self, search: TuneRecord, state: State) -> None:
        self.search = search
        self.state = state
        self.ended = search.ended
        self.seed = search.seed
        self.knobs = _knobs(search, state.first)

    @staticmethod
    def sides(search: TuneRecord, first: RunResult | None) -> tuple[Candidate, ...]:
        """Return the default."""
        return ((0,) * len(_knobs(search, first)),)

    @staticmethod
    def number(run: RunResult) -> float | None:
        """Return the speed of a run in samples/s."""
        return run.throughput.samples_per_s if run.throughput else None

    def following(self, times: Times, left_s: float) -> Rung | str:
        """Return the next round, or why there is none."""
        first = self.state.first
        if first is None or first.spec is None:
            return TOO_SHORT
        spec = first.spec
        schedule = TuneSchedule(self.knobs, self.seed, spec.warmup_steps, spec.steps)
        return following(schedule, self.state.rounds, times, left_s)

    def spec_of(self, plan: Bench, rung: Rung, candidate: Candidate, times: Times) -> RunSpec:
        """Return the default with the steps of the round and the settings of a candidate; its time
        limit grows with what a step of it computes.
        """
        default = plan.cells[0]
        pilot_s = times.first_s or _LEAST_LIMIT_S
        limit_s = min(default.timeout_s, max(_LEAST_LIMIT_S, round(_PATIENCE * pilot_s)))
        framework = plan.folders[default.framework].framework
        spec = apply_candidate(replace(default, steps=rung.steps), framework, self.knobs, candidate)
        more = max(1.0, spec.global_batch / default.global_batch)
        return replace(spec, timeout_s=min(default.timeout_s, round(limit_s * more)))

    def words(self, candidate: Candidate) -> str:
        """Return the settings of a candidate."""
        return format_candidate(self.knobs, candidate)

    def outcome(self, record: BenchRecord) -> Outcome:
        """Return the result so far."""
        result = self._result(record)
        return Outcome(result, rungs(result), answer(result))

    def _result(self, record: BenchRecord) -> Tuned:
        return answer_of(record, self.search, self.state, self.knobs)

    def reserve_s(self, rung: int | None, times: Times) -> float:
        """Return the seconds that are reserved for the confirmation."""
        spec = self.state.first.spec if self.state.first else None
        if rung is None or spec is None or self.state.rounds[rung].rung.confirms:
            return 0.0
        return reserve_s(times, spec.steps)

    def fault(self, used_s: float, times: Times) -> RunError | None:
        """Return an error if the budget was too small."""
        if self.ended != TOO_SHORT:
            return None
        spec = self.state.first.spec if self.state.first else None
        steps = spec.steps if spec else 0
        run = f"a run takes {times.run_s(steps):.0f} s, so " if spec else ""
        minutes = math.ceil(1.2 * (used_s + least_s(times, steps)) / 60)
        return RunError(
            f"{run}the budget is too small to try and confirm a candidate",
            kind="budget_over",
            hint=f"start a new orch tune with --budget {minutes}m or more, or fewer --steps",
        )

    def apply(self, bench: BenchDir) -> tuple[Sequence[Path], str]:
        """Write the inventory and the run file of a faster candidate."""
        from orchestrator.features.search.halving.files import command, write

        record = bench.record()
        result = self._result(record)
        files = write(bench, result, self.search.output)
        return files, command(result, files, record) if files else ""


def _knobs(search: TuneRecord, first: RunResult | None) -> tuple[Knob, ...]:
    """Return the parameters that apply, which the first run shows."""
    if first is None or first.throughput is None or first.spec is None:
        return ()
    return applicable(
        search.knobs, first.observed, first.spec, search.held, numerics=search.numerics
    )
