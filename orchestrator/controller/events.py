"""Progress events of a running bench: one type per event, with its fields.

Campaign, launch, watch and scheduler send them, `orchestrator.api.progress` puts them into words.
They decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.checks import Check
from orchestrator.controller.stop_rule import Width
from orchestrator.errors import OrchError
from orchestrator.plan import Schedule
from orchestrator.plan.bench import PlannedRun
from orchestrator.results import RunResult


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The plan of the bench, as text."""

    words: str


@dataclass(frozen=True, slots=True)
class RunsPlanned:
    """All runs planned so far, finished ones included."""

    runs: Sequence[PlannedRun]


@dataclass(frozen=True, slots=True)
class Checked:
    """The checks of preflight on the nodes."""

    checks: Sequence[Check]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The bench waits for nodes that other runs hold; ``holders`` has the run and its owner in
    words, by host.
    """

    holders: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunBegun:
    """A run is being staged. ``index`` is its position among the runs of this controller, from 0."""

    index: int
    run: PlannedRun


@dataclass(frozen=True, slots=True)
class Started:
    """Every node has started; ``skew_s`` is the estimated time from the first to the last, off by
    ``bound_s`` at most.
    """

    hosts: Sequence[str]
    skew_s: float
    bound_s: float = 0.0

    @property
    def skew(self) -> str:
        """The start skew for a text: what it was at most, and the estimate only where it is larger
        than its error.

        >>> Started(["a", "b"], 1e-4, 0.066).skew, Started(["a", "b"], 0.012, 0.001).skew, Started(["a"], 0.0, 0.0).skew
        (', skew ≤ 66.1 ms', ', skew 12.0 ms, ≤ 13.0 ms', '')
        """
        most = f"≤ {(self.skew_s + self.bound_s) * 1e3:.1f} ms"
        if len(self.hosts) < 2:
            return ""
        if self.bound_s >= self.skew_s:
            return f", skew {most}"
        return f", skew {self.skew_s * 1e3:.1f} ms, {most}"


@dataclass(frozen=True, slots=True)
class TakingOver:
    """The nodes are asked for the state of a run that another controller abandoned."""

    run: PlannedRun


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The abandoned run continues, on these nodes."""

    hosts: Sequence[str]


@dataclass(frozen=True, slots=True)
class LogGrew:
    """New bytes of the log that is shown."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Stalled:
    """The run does not go on: a suspicion in words, which ends nothing."""

    words: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run goes on after a suspicion; ``silent_s`` is how long it did not."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class FilesSilent:
    """The file system of a run, in words, has not answered a node for so long."""

    host: str
    mount: str
    seconds: float


@dataclass(frozen=True, slots=True)
class FilesAnswer:
    """It answers again, after so long."""

    host: str
    mount: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """The run is being stopped on every node."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A node has ended its part; ``state`` as in its exit record."""

    host: str
    state: str


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Processes (process id, name) that a program left on a node when it ended well, and that were
    ended there.
    """

    host: str
    processes: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Stuck:
    """Processes (process id, name) of a run that no signal ends, because they wait in the kernel."""

    host: str
    processes: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Names in a node's log folder that are not logs and are not collected."""

    host: str
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class RunOver:
    """A run is over and collected. ``result`` is derived from its logs, None if they have not been
    read.
    """

    index: int
    run: PlannedRun
    state: str
    error: OrchError | None
    result: RunResult | None = None


@dataclass(frozen=True, slots=True)
class BlockOver:
    """A repeat of every cell is over; ``width`` is the widest interval so far, ``left_s`` the
    remaining seconds of the budget."""

    repeat: int
    width: Width | None
    schedule: Schedule
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Decided:
    """Decisions about further runs, as text."""

    notes: Sequence[str]


ProgressEvent = (
    PlanMade
    | RunsPlanned
    | Checked
    | Waiting
    | RunBegun
    | Started
    | TakingOver
    | TakenOver
    | LogGrew
    | Stalled
    | Resumed
    | FilesSilent
    | FilesAnswer
    | Stopping
    | NodeEnded
    | LeftOut
    | LeftOver
    | Stuck
    | RunOver
    | BlockOver
    | Decided
)
Observer = Callable[[ProgressEvent], None]
