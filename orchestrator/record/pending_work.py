"""The remaining work of a bench: read back so that another process can continue it, and updated as
the bench goes on.

If the plan's inputs have changed since (inventory, template, trainer), the bench does not continue;
the differences are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, DataError
from orchestrator.inventory import Host, Inventory, open_inventory
from orchestrator.inventory.devices import with_devices
from orchestrator.inventory.secrets import SHOWN
from orchestrator.plan import Limits
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.record.bench_parts import PlannedWith
from orchestrator.record.bench_record import BenchRecord, find_inventory
from orchestrator.record.grammar_override import folders_of
from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import state_error


@dataclass(frozen=True, slots=True)
class Reopened:
    """A bench read back: its runs by id in execution order, without borrowed ones, and everything
    they need. ``spares`` are those that have not taken the place of another host yet."""

    plan: Bench
    runs: Mapping[str, PlannedRun]
    hosts: tuple[Host, ...]
    inventory: Inventory
    limits: Limits
    spares: tuple[Host, ...] = ()


def reopen(bench: BenchDir) -> Reopened:
    """Read a bench back with the current inventory and frameworks, whose log grammars may differ
    from the planned ones.

    Raises DataError plan_changed naming every difference, state_damaged for an invalid record, and
    ConfigError if the inventory or a framework can no longer be read.
    """
    record, path = bench.record(), bench.path / "bench.json"
    if record.plan is None or record.limits is None or record.planned_with is None:
        message = (
            "expected the files and hosts that its runs were planned with, found none; an "
            "earlier version of orch wrote it"
        )
        raise state_error(path, message, "orch collect fetches the logs of its runs")
    order = [run_id for run_id in record.runs if run_id not in record.borrowed]
    missing_runs = [run_id for run_id in order if run_id not in record.plan]
    if missing_runs:
        raise state_error(
            path, f"plan: expected every run of the bench, {missing_runs[0]} is missing"
        )
    folders = folders_of(bench, ())
    inventory = open_inventory(find_inventory(record))
    try:
        hosts = inventory.of(record.hosts)
        hosts = tuple(
            with_devices(host, record.devices[host.name]) if host.name in record.devices else host
            for host in hosts
        )
    except ConfigError as error:
        raise _plan_error([error.message], str(path)) from error
    before = record.planned_with.without(
        inventory.secrets
    )  # a variable may have been declared secret since it was planned
    before = replace(before, hosts={host.name: before.hosts[host.name] for host in hosts})
    _compare(before, PlannedWith.of(hosts, inventory.secrets, folders), path)
    runs = {}
    for run_id in order:
        entry = record.plan[run_id]
        spec = record.cells[entry.cell]
        runs[run_id] = PlannedRun(
            run_id, entry.repeat, spec, folders[spec.framework], record.bench_id
        )
    plan = Bench(
        record.bench_id,
        record.cells,
        folders,
        record.schedule,
        record.skipped,
        record.label,
        record.expect,
        record.extra,
    )
    members, spares = _members(record, hosts)
    return Reopened(plan, runs, members, inventory, record.limits, spares)


def check_frameworks(bench: BenchDir) -> None:
    """Compare the frameworks of a bench with those that it was planned with: what `reopen` can
    refuse before it has hosts.

    Raises DataError plan_changed naming every difference, and ConfigError if a framework can no
    longer be read.
    """
    if planned_with := bench.record().planned_with:
        _compare(
            replace(planned_with, hosts={}),
            PlannedWith.of((), (), folders_of(bench, ())),
            bench.path / "bench.json",
        )


def _compare(before: PlannedWith, now: PlannedWith, path: Path) -> None:
    changes = list(
        _differences(asdict(before), json.loads(json.dumps(asdict(now.as_launched(before)))))
    )
    if changes:
        raise _plan_error(changes, str(path))


def _members(
    record: BenchRecord, hosts: Sequence[Host]
) -> tuple[tuple[Host, ...], tuple[Host, ...]]:
    """Return the hosts of a bench, with spares in the places that they have taken, and the spares
    that are left.
    """
    by_name = {host.name: host for host in hosts}
    members = []
    for name in record.planned_with.hosts if record.planned_with else ():
        if name not in record.spares:
            while name in record.replaced:
                name = record.replaced[name]
            members.append(by_name[name])
    taken = {*record.replaced, *record.replaced.values()}
    return tuple(members), tuple(
        host for host in hosts if host.name in record.spares and host.name not in taken
    )


def add_block(bench: BenchDir, plan: Bench, runs: Sequence[PlannedRun]) -> None:
    """Record additional runs for a bench."""
    bench.change(lambda record: record.with_runs(plan, runs))


def leave_out(bench: BenchDir, names: Sequence[str], notes: Sequence[str]) -> None:
    """Record that a bench ends without these runs, with notes about that for its tables."""
    bench.change(lambda record: record.without(names, notes))


def supersede(bench: BenchDir, run: PlannedRun) -> PlannedRun:
    """Replace a run that does not count by a new attempt and return it. The files of the old run
    stay.
    """
    record = bench.change(lambda record: record.with_attempt(run.run_id))
    name = record.superseded[run.run_id]
    bench.event(Event.SUPERSEDED, run=run.run_id, by=name)
    return replace(run, run_id=name)


def _differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(
                old.get(key), new.get(key), f"{where}.{key}" if where else str(key)
            )
    elif old != new and not (
        str(old).startswith(SHOWN) and str(new).startswith(SHOWN)
    ):  # a secret may be renewed
        digests = "frameworks" in where.split(".", 1)[:1]
        yield (
            f"{where}: the file has changed"
            if digests
            else f"{where}: planned {old!r}, now {new!r}"
        )


def _plan_error(changes: Sequence[str], where: str) -> DataError:
    return DataError(
        f"expected the files and hosts that the bench was planned with, got {'; '.join(changes)}",
        kind="plan_changed",
        where=where,
        hint="undo the change to resume, or start a new bench; orch collect fetches the logs of its runs",
    )
