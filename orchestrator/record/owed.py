"""What a bench owes: read back so that another process can go on, and changed as it goes on.

What a plan depends on may have changed since: inventory, template, trainer. Then nothing goes on; the difference is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.errors import ConfigError, DataError
from orchestrator.inventory import Host, Inventory, open_inventory
from orchestrator.plan import Limits
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.plan.folders import open_framework
from orchestrator.record.bench_parts import PlannedWith, RungRecord
from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import damaged

__all__ = ["Reopened", "add_block", "add_rung", "end_tune", "leave_out", "reopen", "supersede"]


@dataclass(frozen=True, slots=True)
class Reopened:
    """A bench read back: its runs by id in execution order, without borrowed ones, and all that they need."""

    plan: Bench
    runs: Mapping[str, PlannedRun]
    hosts: tuple[Host, ...]
    inventory: Inventory
    limits: Limits


def reopen(bench: BenchDir) -> Reopened:
    """Read a bench back with today's inventory and frameworks.

    Raises DataError plan_changed naming every difference, state_damaged for a record that is none, ConfigError where the
    inventory or a framework cannot be read any more.
    """
    record, path = bench.record(), bench.path / "bench.json"
    if record.plan is None or record.limits is None or record.planned_with is None:
        message = "it does not say what its runs were planned with; an earlier orch made it"
        raise damaged(path, message, "orch collect brings home what ran")
    order = [run_id for run_id in record.runs if run_id not in record.borrowed]
    if lost := [run_id for run_id in order if run_id not in record.plan]:
        raise damaged(path, f"plan: expected every run of the bench, {lost[0]} is missing")
    folders = {spec.framework: open_framework(spec.framework, record.templates) for spec in record.cells}
    inventory = open_inventory(record.inventory)
    try:
        hosts = inventory.of(list(record.planned_with.hosts))
    except ConfigError as error:
        raise _changed([error.message], str(path)) from error
    now = PlannedWith.of(hosts, inventory.secrets, folders)
    before = record.planned_with.without(inventory.secrets)  # what was no secret when it was planned may be one now
    if changes := list(_differences(asdict(before), json.loads(json.dumps(asdict(now))))):
        raise _changed(changes, str(path))
    runs = {}
    for run_id in order:
        entry = record.plan[run_id]
        spec = record.cells[entry.cell]
        runs[run_id] = PlannedRun(run_id, entry.repeat, spec, folders[spec.framework], record.bench_id)
    return Reopened(Bench(record.bench_id, record.cells, folders, record.schedule), runs, hosts, inventory, record.limits)


def add_block(bench: BenchDir, plan: Bench, runs: Sequence[PlannedRun]) -> None:
    """Write down further runs that a bench owes from now on."""
    bench.change(lambda record: record.planned(plan, runs))


def add_rung(bench: BenchDir, plan: Bench, runs: Sequence[PlannedRun], rung: RungRecord) -> None:
    """Write down the next rung of a tune, all cells of the bench with those that it brings, and the runs that it owes."""
    bench.change(lambda record: record.with_rung(plan, runs, rung))


def end_tune(bench: BenchDir, why: str) -> None:
    """Write down why a tune has ended."""
    bench.change(lambda record: replace(record, tune=replace(record.tune, ended=why) if record.tune else None))


def leave_out(bench: BenchDir, names: Sequence[str], notes: Sequence[str]) -> None:
    """Write down that a bench ends without these runs, and what its tables say of that."""
    bench.change(lambda record: record.without(names, notes))


def supersede(bench: BenchDir, run: PlannedRun) -> PlannedRun:
    """Put a fresh attempt in the place of a run that does not count. What the old one left stays where it is."""
    record = bench.change(lambda record: record.attempted_anew(run.run_id))
    name = record.superseded[run.run_id]
    bench.event(Event.SUPERSEDED, run=run.run_id, by=name)
    return replace(run, run_id=name)


def _differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        digests = "frameworks" in where.split(".", 1)[:1]
        yield f"{where}: another file than planned" if digests else f"{where}: planned {old!r}, now {new!r}"


def _changed(changes: Sequence[str], where: str) -> DataError:
    return DataError(
        f"expected what it was planned with, {'; '.join(changes)}",
        kind="plan_changed",
        where=where,
        hint="put it back to go on, or start a new bench; orch collect brings home what ran",
    )
