"""What earlier benches, and the earlier part of one, tell a bench: a usable baseline, and how long its runs take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.spec import RunSpec
from orchestrator.record.rundir import BenchDir, RunDir
from orchestrator.results.read import read_run
from orchestrator.results.tally import longest

__all__ = ["earlier_times", "expected", "usable_baseline"]


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


def earlier_times(root: Path, plan: Bench) -> list[tuple[RunSpec, float]]:
    """Return as `expected` what runs of a plan took in earlier benches, where it has a budget; nothing without one."""
    return expected(root, plan.cells) if plan.schedule.budget_s is not None else []
