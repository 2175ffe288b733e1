"""What a row of the fault suite is, and how one trial of it is run and judged.

A row is a function that takes a `Trial`: it starts the real program in a lab, breaks something, and
asserts with the judge's own clock, process counts and checksums what must be true then. Whatever it
leaves broken is mended afterwards; a process of ours that is still on a node when the function has
returned fails the trial, whatever the tool said about it.
"""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from orchestrator import lab as labs
from orchestrator.errors import RunError
from orchestrator.lab import Lab
from orchestrator.plan.framework import run_path
from tests.e2e.rig import Controller
from tests.support import judge
from tests.support.faultlab import mend

__all__ = ["ROWS", "Result", "Row", "Trial", "row", "run_trial"]

_DOWN_S = 60.0


@dataclass(slots=True)
class Trial:
    """One injection of one fault: the controller to use, chance with a printed seed, and what is
    measured on the way.

    ``full`` is false in a short run, where rows that last minutes take a fraction of them. Seconds
    are the judge's.
    """

    controller: Controller
    random: random.Random
    scratch: Path
    full: bool = True
    detected_s: float | None = None
    stopped_s: float | None = None
    left: int = 0
    """How many containers and processes a row itself has counted as left, before the lab was
    mended.
    """
    lost_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def lab(self) -> Lab:
        """The lab of the trial."""
        return self.controller.lab

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return [node.name for node in self.lab.nodes]

    def rival(self, name: str = "rival") -> Controller:
        """Return a second controller: another project on the same machine."""
        project = self.scratch / name
        project.mkdir(exist_ok=True)
        made = Controller(self.lab, project)
        made.started = self.controller.started  # so that the trial's end lets go of these as well
        return made

    @contextmanager
    def own_lab(self, *, nodes: int = 4, **wishes: object) -> Iterator[Controller]:
        """Have a controller with a lab of its own, for rows that need other nodes than the shared
        four.
        """
        directory = self.scratch / "lab"
        lab = labs.up(directory, nodes=nodes, gpus_per_node=0, say=lambda _: None, **wishes)  # type: ignore[arg-type]
        project = self.scratch / "own"
        project.mkdir(exist_ok=True)
        made = Controller(lab, project)
        try:
            yield made
            rest = judge.ours(lab)
            assert not rest, f"left on nodes: {rest}"
        finally:
            made.let_go()
            _down(directory)

    def clean_within(self, seconds: float) -> None:
        """Wait until no process of ours is left on any node, and note how long that took as the
        time to stop.
        """
        self.stopped_s = judge.wait_until_clean(self.lab, seconds)

    def keep(self, *hosts: str, controller: Controller | None = None) -> None:
        """Count the bytes of every run's logs that are on these nodes (all of them) and not, alike,
        in the project; those of a node that was lost are there once it is back and they are
        collected.
        """
        owner = controller or self.controller
        manifests = list(owner.project.glob("runs/*/*/manifest.json"))
        if any('"node_lost"' in path.read_text() for path in manifests):
            owner.orch("collect")
        for manifest in manifests:
            for host in hosts or self.nodes:
                top = owner.shared or owner.lab.node(host).home / ".orch-node"
                there = top / run_path(host, manifest.parent.name) / "logs"
                for path in there.glob("*") if there.is_dir() else ():
                    here = manifest.parent / "logs" / host / path.name
                    if not here.is_file() or judge.sha256(here) != judge.sha256(path):
                        self.lost_bytes += max(1, path.stat().st_size)
                        self.notes.append(f"{host}: {path.name} is not here as it is there")


def _down(directory: Path) -> None:
    """End a lab, however long the kernel takes for it: beside labs of a thousand nodes, minutes."""
    deadline = time.monotonic() + _DOWN_S
    while True:
        try:
            labs.down(directory)
            return
        except RunError:  # still alive some seconds after SIGKILL
            if time.monotonic() > deadline:
                raise


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, what must be true when it happens, and how often that is tried.

    ``limit_s`` bounds one trial; ``skip`` says why the fault cannot be injected on this machine,
    nothing where it can.
    """

    name: str
    fault: str
    act: Callable[[Trial], None]
    trials: int
    limit_s: float
    short: bool
    skip: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Result:
    """How one trial went. ``text`` says why it failed, or what there is to note."""

    row: str
    number: int
    seed: int
    passed: bool
    seconds: float
    detected_s: float | None
    stopped_s: float | None
    leftovers: int
    lost_bytes: int
    text: str


ROWS: dict[str, Row] = {}


def row(
    name: str,
    fault: str,
    *,
    trials: int = 20,
    limit_s: float = 120.0,
    short: bool = True,
    skip: Callable[[], str] = lambda: "",
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Enter a function as a row. ``short``: one trial of it runs with all other tests."""

    def enter(act: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert name not in ROWS, f"row {name} is there twice"
        ROWS[name] = Row(name, fault, act, trials, limit_s, short, skip)
        return act

    return enter


def run_trial(name: str, number: int, seed: int, lab: Lab, scratch: Path, *, full: bool) -> Result:
    """Run one trial in a lab, mend the lab, and return how it went; a trial never raises."""
    row = ROWS[name]
    project = scratch / "project"
    project.mkdir(parents=True)
    trial = Trial(Controller(lab, project), random.Random(f"{seed}/{name}/{number}"), scratch, full)
    begin, words, leftovers = time.monotonic(), "", 0
    try:
        with _limit(row.limit_s * judge.patience):
            row.act(trial)
        leftovers = len(judge.ours(lab))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            trial.controller.let_go()  # before the folder is removed into which they write
            raise
        words = _why(error)
    seconds = time.monotonic() - begin
    trial.controller.let_go()
    left = mend(lab)
    if not words and leftovers:
        words = f"{leftovers} processes of ours were left on nodes"
    leftovers = max(leftovers, len(left)) + trial.left
    words = words or ("bytes were lost" if trial.lost_bytes else "")
    text = "; ".join([words, *trial.notes] if words else trial.notes)
    times = trial.detected_s, trial.stopped_s
    return Result(name, number, seed, not words, seconds, *times, leftovers, trial.lost_bytes, text)


def _why(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)
    ours = [
        frame for frame in last if "faults" in frame.filename and "suite.py" not in frame.filename
    ]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{place} {type(error).__name__}: {str(error)[:2000]}".strip()


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """End a trial that hangs, so that a hang is a failure and not the end of the suite."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the trial was not over within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def select(names: Sequence[str]) -> list[Row]:
    """Return the rows of these names, or those whose names begin with one that is no row itself;
    all where none is given.
    """
    unknown = [name for name in names if not any(row.startswith(name) for row in ROWS)]
    if unknown:
        raise SystemExit(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    begun = tuple(name for name in names if name not in ROWS)
    return [
        row for row in ROWS.values() if not names or row.name in names or row.name.startswith(begun)
    ]
