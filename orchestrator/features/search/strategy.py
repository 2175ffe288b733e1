"""A search so far, and what makes it a tune or a bisect: `Strategy`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.errors import RunError
from orchestrator.features.search.record import Candidate, Rung
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import Bench
from orchestrator.record import BenchDir
from orchestrator.record.bench_record import BenchRecord
from orchestrator.results import Interval, RunResult
from orchestrator.results.numbers.intervals import LEVEL, geometric_mean, ratio_interval

ENOUGH_PAIRS = 3
"""Pairs of runs from which a candidate may be called faster."""
MOST_FAILURES = 2
"""Failed runs of a candidate after which it is not run again."""

Values = Mapping[Candidate, Mapping[int, float | None]]
"""The numbers of runs by candidate and block, None for a failed run."""
Speeds = Mapping[Candidate, Mapping[int, float]]
"""The numbers of good runs, all above 0, by candidate and block."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a run: seconds before and after its steps, and seconds per step.

    ``first_s`` is the duration of the first run.
    """

    start_s: float = 0.0
    step_s: float = 0.0
    first_s: float = 0.0

    def run_s(self, steps: int) -> float:
        """Return the seconds of a run with ``steps`` steps."""
        return self.start_s + steps * self.step_s


@dataclass(frozen=True, slots=True)
class Round:
    """A round that was begun: the numbers of its runs, and these runs with their candidates."""

    rung: Rung
    values: dict[Candidate, dict[int, float | None]]
    runs: list[tuple[Candidate, RunResult]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a search, from its evidence alone.

    ``sides`` run in every round: the default of a tune, A and B of a bisect. ``opening`` are their
    numbers before the first round, ``first`` is the first of these runs, None before its end.
    ``failures`` are the reasons why runs of a candidate have no number, ``failed`` is why a side
    has none.
    """

    sides: tuple[Candidate, ...]
    first: RunResult | None = None
    opening: Values = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    failures: Mapping[Candidate, Sequence[str]] = field(default_factory=dict)
    failed: str = ""

    @property
    def verification(self) -> Round | None:
        """The last round, if its runs alone are the evidence for the answer."""
        last = self.rounds[-1] if self.rounds else None
        return last if last and last.rung.confirms else None

    @property
    def evidence(self) -> tuple[str, ...]:
        """The runs of the verification."""
        final = self.verification
        if not final:
            return ()
        return tuple(run.run_id for _, run in final.runs)

    @property
    def speeds(self) -> Speeds:
        """The numbers before the verification."""
        parts = [each.values for each in self.rounds if not each.rung.confirms]
        return good(self.opening, *parts)

    @property
    def refused(self) -> dict[Candidate, str]:
        """Candidates that cannot be run, or have failed too often, and why."""
        refused: dict[Candidate, str] = {}
        for each in self.rounds:
            refused |= dict(each.rung.refused)
        for candidate, reasons in self.failures.items():
            if len(reasons) >= MOST_FAILURES and candidate not in self.sides:
                refused[candidate] = reasons[-1]
        return refused


def good(*parts: Values) -> Speeds:
    """Return the numbers of good runs of all parts together."""
    speeds: dict[Candidate, dict[int, float]] = {}
    for part in parts:
        for candidate, by_block in part.items():
            for block, number in by_block.items():
                if number:
                    speeds.setdefault(candidate, {})[block] = number
    return speeds


@dataclass(frozen=True, slots=True)
class Change:
    """The ratio of one candidate's typical value to another's, from ``pairs`` of consecutive runs."""

    ratio: float
    interval: Interval
    pairs: int

    @property
    def is_certain(self) -> bool:
        """Return whether the interval is on one side of 1."""
        return not self.interval.low <= 1 <= self.interval.high

    @property
    def decides(self) -> bool:
        """Return whether there are enough pairs to decide if the candidate is faster."""
        return self.pairs >= ENOUGH_PAIRS

    @property
    def is_faster(self) -> bool:
        """Return whether the candidate is certainly faster, by enough pairs."""
        return self.decides and self.interval.low > 1


def change(
    speeds: Speeds, after: Candidate, before: Candidate, level: float = LEVEL
) -> Change | None:
    """Return the change from one candidate to another; None with fewer than two blocks in common."""
    base, others = speeds.get(before, {}), speeds.get(after, {})
    ends = ratio_interval(others, base, level)
    if ends is None:
        return None
    ratios = [speed / base[block] for block, speed in others.items() if block in base]
    return Change(geometric_mean(ratios), ends, len(ratios))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a search in words: tables of its runs, the answer in one sentence, open
    questions.

    The last table shows the last round. ``result`` is the same for programs.
    """

    result: Any
    tables: Sequence[Sequence[str]]
    answer: str
    left_open: Sequence[str] = ()


class Strategy(ABC):
    """Decides the next round of a search, and its result, from its state alone.

    ``beside`` names the candidates that run in every round, ``order`` describes the order of a
    round's runs, and ``ended`` says why no round follows, empty before that.
    """

    noun: ClassVar[str]
    beside: ClassVar[str]
    order: ClassVar[str]
    state: State
    ended: str
    seed = 0

    @abstractmethod
    def following(self, times: Times, left_s: float) -> Rung | str:
        """Return the next round within the remaining seconds, or why there is none."""

    @abstractmethod
    def spec_of(self, plan: Bench, rung: Rung, candidate: Candidate, times: Times) -> RunSpec:
        """Return the spec of a candidate in a round. Raise ConfigError if that is impossible."""

    @abstractmethod
    def words(self, candidate: Candidate) -> str:
        """Return the changes of a candidate, as text."""

    @abstractmethod
    def outcome(self, record: BenchRecord) -> Outcome:
        """Return the result so far."""

    def reserve_s(self, rung: int | None, times: Times) -> float:
        """Return the seconds that runs of a round leave for later ones."""
        return 0.0

    def fault(self, used_s: float, times: Times) -> RunError | None:
        """Return the error that the end of the search is, None if it is a result."""
        return None

    def apply(self, bench: BenchDir) -> tuple[Sequence[Path], str]:
        """Write the files that apply the answer; return them, and the command that uses them."""
        return (), ""
