"""What earlier benches, and the earlier part of one, tell a bench: a usable baseline, and how long its runs take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.inventory import Host
from orchestrator.library import FrameworkFolder
from orchestrator.results import read_run
from orchestrator.rundir import BenchDir, RunDir
from orchestrator.spec import RunSpec
from orchestrator.summary import RunResult

__all__ = ["Tally", "durations", "expected", "longest", "spent_s", "usable_baseline"]


class Tally:
    """What a bench has used and come to so far: seconds since its start, and results of runs that are over, each read once.
    ``read`` has those that were."""

    def __init__(self, bench: BenchDir, clock: Callable[[], float]) -> None:
        self._bench = bench
        self._clock = clock
        self._began = clock() - spent_s(bench.events())
        self.read: dict[str, RunResult] = {}

    def used_s(self) -> float:
        """Return the seconds that all controllers of the bench have spent on it."""
        return self._clock() - self._began

    def result(self, run_id: str) -> RunResult | None:
        """Return the result of a run, None where it is not over."""
        if run_id not in self.read:
            run = self._bench.run(run_id)
            if not run.path.is_dir() or not run.manifest().get("outcome"):
                return None
            self.read[run_id] = read_run(run)
        return self.read[run_id]

    def results(self) -> list[RunResult]:
        """Return the results of all runs that are over, in execution order."""
        return [found for run in self._bench.runs() if (found := self.result(run.run_id))]


def usable_baseline(root: Path, spec: RunSpec, folder: FrameworkFolder, hosts: Sequence[Host], repeats: int) -> list[RunDir]:
    """Return the newest bench's good runs of exactly this spec, at least ``repeats`` of them, or nothing.

    Usable means: the same framework folder and payload byte for byte, on a host of the selection, finished and verified.
    Whether driver and versions are the same shows in the facts, and the summary says so where they are not.
    """
    names = {host.name: host.address for host in hosts}
    for path in sorted(root.glob("*/bench.json"), reverse=True):
        good = []
        try:
            for run in BenchDir.open(path.parent).runs():
                manifest = run.manifest()
                slots = manifest["placement"]["slots"]
                if (
                    manifest["framework"]["digest"] == folder.framework.digest
                    and manifest["payload"] == folder.payload_digests
                    and manifest["spec"] == spec.as_dict()
                    and names.get(slots[0]["host"]) == slots[0]["address"]
                    and read_run(run).throughput is not None
                ):
                    good.append(run)
        except (OrchError, LookupError, TypeError, AttributeError):
            # A damaged bench is no baseline; whoever summarises it is told what is wrong with it.
            continue
        if len(good) >= repeats:
            return good
    return []


def expected(root: Path, cells: Sequence[RunSpec]) -> list[tuple[RunSpec, float]]:
    """Return each cell that an earlier bench has run, with the seconds of its longest run in the newest such bench."""
    found: list[tuple[RunSpec, float]] = []
    for path in sorted(root.glob("*/bench.json"), reverse=True):
        missing = [cell for cell in cells if all(cell != known for known, _ in found)]
        if not missing:
            break
        try:
            found += [(cell, took) for cell, took in longest(BenchDir.open(path.parent)) if cell in missing]
        except OrchError:
            continue
    return found


def longest(bench: BenchDir) -> list[tuple[RunSpec, float]]:
    """Return the cells of which runs have ended, each with the seconds that its longest run took from its plan to its logs."""
    record, events = bench.bench(), bench.events()
    by_cell: dict[int, float] = {}
    try:
        for run_id, seconds in durations(events).items():
            cell = record["plan"][run_id]["cell"]
            by_cell[cell] = max(seconds, by_cell.get(cell, 0.0))
        return [(RunSpec(**record["cells"][cell]["spec"]), seconds) for cell, seconds in by_cell.items()]
    except (LookupError, TypeError):  # damaged, or of an earlier version
        return []


def spent_s(events: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds that the controllers before the present one have spent on a bench, from its journal."""
    spans: list[list[float]] = []
    for event in events:
        if event["event"] == "begun":
            spans.append([event["at"], event["at"]])
        elif spans:
            spans[-1][1] = event["at"]
    return sum(max(0.0, last - first) for first, last in spans[:-1])


def durations(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of each run that one controller has seen from its plan to its end, failed ones as well."""
    planned: dict[str, float] = {}
    found = {}
    for event in events:
        run = str(event.get("run"))
        if event["event"] == "begun":
            planned.clear()
        elif event["event"] == "planned":
            planned.setdefault(run, event["at"])
        elif event["event"] in ("finished", "failed", "collected") and run in planned:
            found[run] = max(0.0, event["at"] - planned[run])
    return found
