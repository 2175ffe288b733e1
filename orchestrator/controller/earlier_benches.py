"""Values from earlier benches, or from an earlier part of the same one: a usable baseline, and how
long runs take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.inventory import Host
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import Bench
from orchestrator.plan.containers import container_of
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.record import RunDir
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.record.rundir import benches
from orchestrator.results.progress_so_far import longest
from orchestrator.results.read import read_run


def usable_baseline(
    root: Path, spec: RunSpec, folder: FrameworkFolder, hosts: Sequence[Host], repeats: int
) -> list[RunDir]:
    """Return the newest bench's good runs of exactly this spec, at least ``repeats`` of them, or an
    empty list.

    A usable run has the same framework folder and payload byte for byte, ran on a host of the
    selection, in the same image if in any, and is finished and verified. Differences of driver and
    versions show in its facts, and the summary notes them.
    """
    names = {host.name: host for host in hosts}

    def is_usable(run: RunDir, manifest: Manifest) -> bool:
        master = manifest.slots[0]
        return (
            manifest.digest == folder.framework.digest
            and manifest.payload == folder.payload_digests
            and manifest.spec == spec
            and master.host in names
            and names[master.host].address == master.address
            and _started_in(manifest.facts.get(master.host, {}))
            == _starts_in(names[master.host], spec)
            and read_run(run).throughput is not None
        )

    for bench in benches(root):
        try:
            good = [run for run in bench.runs() if is_usable(run, read_manifest(run))]
        except OrchError:  # a bench with a damaged run cannot be a baseline
            continue
        if len(good) >= repeats:
            return good
    return []


def _started_in(facts: Mapping[str, Any]) -> str:
    container = facts.get("container")
    if not isinstance(container, Mapping):
        return ""
    return str(container.get("what"))


def _starts_in(host: Host, spec: RunSpec) -> str:
    container = container_of(host, spec.container)
    return container.description if container else ""


def find_times(root: Path, cells: Sequence[RunSpec]) -> list[tuple[RunSpec, float]]:
    """Return each cell that an earlier bench has run, with the seconds of its longest run in the
    newest such bench.
    """
    durations: list[tuple[RunSpec, float]] = []
    for bench in benches(root):
        known = [spec for spec, _ in durations]
        missing = [cell for cell in cells if cell not in known]
        if not missing:
            break
        try:
            durations += [(cell, took) for cell, took in longest(bench) if cell in missing]
        except OrchError:
            continue
    return durations


def earlier_times(root: Path, plan: Bench) -> list[tuple[RunSpec, float]]:
    """Return `find_times` for the cells of a plan with a budget; an empty list without one."""
    if plan.schedule.budget_s is None:
        return []
    return find_times(root, plan.cells)
