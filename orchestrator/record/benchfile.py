"""A bench as ``bench.json`` keeps it: its cells, its runs, and what they were planned with, so that another process can go on.

What a plan depends on may have changed since: inventory, template, trainer. Then nothing goes on; the difference is named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.errors import ConfigError, DataError
from orchestrator.inventory.hosts import Host, Inventory
from orchestrator.inventory.read import open_inventory
from orchestrator.inventory.secrets import SHOWN
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.plan.folders import FrameworkFolder, open_framework
from orchestrator.plan.limits import Limits
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec
from orchestrator.record.rundir import BenchDir

__all__ = ["Reopened", "add_block", "add_rung", "bench_record", "leave_out", "reopen", "supersede"]


@dataclass(frozen=True, slots=True)
class Reopened:
    """A bench read back: its runs by id in execution order, without borrowed ones, and all that they need."""

    plan: Bench
    runs: Mapping[str, PlannedRun]
    hosts: tuple[Host, ...]
    inventory: Inventory
    limits: Limits


def bench_record(
    plan: Bench,
    borrowed: Mapping[str, str],
    hosts: Sequence[Host],
    inventory: str,
    secrets: Sequence[str],
    limits: Limits,
    templates: Path | None,
    argv: Sequence[str],
) -> dict[str, Any]:
    """Return the content of ``bench.json``. ``borrowed`` maps run ids to the benches they are taken from."""
    planned = plan.planned()
    return {
        "bench_id": plan.bench_id,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "orch": __version__,
        "argv": list(argv),
        "inventory": str(Path(inventory).absolute()) if Path(inventory).exists() else inventory,
        "templates": str(templates.absolute()) if templates else None,
        "runs": [*borrowed, *(run.run_id for run in planned)],
        "borrowed": dict(borrowed),
        "superseded": {},
        "cells": _cells(plan),
        "plan": _entries(plan, planned),
        "course": asdict(plan.schedule),
        "limits": asdict(limits),
        "planned_with": _planned_with(hosts, secrets, plan.folders),
    }


def reopen(bench: BenchDir) -> Reopened:
    """Read a bench back with today's inventory and frameworks.

    Raises DataError plan_changed naming every difference, state_damaged for a record that is none, ConfigError where the
    inventory or a framework cannot be read any more.
    """
    record = bench.bench()
    where = str(bench.path / "bench.json")
    if "plan" not in record:
        message = "it does not say what its runs were planned with; an earlier orch made it"
        raise DataError(message, kind="state_damaged", where=where, hint="orch collect brings home what ran")
    try:
        specs = [RunSpec(**cell["spec"], origins=cell["origins"]) for cell in record["cells"]]
        templates = Path(record["templates"]) if record["templates"] else None
        names = list(dict.fromkeys(spec.framework for spec in specs))
        wanted = {run_id: (specs[entry["cell"]], int(entry["repeat"])) for run_id, entry in record["plan"].items()}
        order = [run_id for run_id in record["runs"] if run_id not in record["borrowed"]]
        planned_with = record["planned_with"]
        limits, host_names = Limits(**record["limits"]), list(planned_with["hosts"])
        environments = {name: dict(host["env"]) for name, host in planned_with["hosts"].items()}
        schedule = Schedule(**record.get("course", {}))
        if not all(run_id in wanted for run_id in order):
            raise ValueError("runs without a plan")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        message = f"expected a bench's plan, {error} is missing or of the wrong type"
        raise DataError(message, kind="state_damaged", where=where) from error
    folders = {name: open_framework(name, templates) for name in names}
    inventory = open_inventory(record["inventory"])
    try:
        hosts = inventory.of(host_names)
    except ConfigError as error:
        raise _changed([error.message], where) from error
    now = _planned_with(hosts, inventory.secrets, folders)
    for name, env in environments.items():  # what was no secret when it was planned may be one now
        planned_with["hosts"][name]["env"] = _shown(env, inventory.secrets)
    if changes := list(_differences(planned_with, json.loads(json.dumps(now)))):
        raise _changed(changes, where)
    bench_id = str(record["bench_id"])
    runs = {
        run_id: PlannedRun(run_id, wanted[run_id][1], wanted[run_id][0], folders[wanted[run_id][0].framework], bench_id)
        for run_id in order
    }
    return Reopened(Bench(bench_id, tuple(specs), folders, schedule), runs, hosts, inventory, limits)


def add_block(bench: BenchDir, plan: Bench, runs: Sequence[PlannedRun]) -> None:
    """Write down further runs that a bench owes from now on."""
    record = bench.bench()
    names = [run.run_id for run in runs]
    bench.update_bench(runs=[*record["runs"], *names], plan={**record["plan"], **_entries(plan, runs)})


def add_rung(bench: BenchDir, plan: Bench, runs: Sequence[PlannedRun], rung: Mapping[str, Any]) -> None:
    """Write down the next rung of a tune, all cells of the bench with those that it brings, and the runs that it owes."""
    record = bench.bench()
    tune, names = record["tune"], [run.run_id for run in runs]
    marked = {name: {**entry, "rung": len(tune["rungs"])} for name, entry in _entries(plan, runs).items()}
    bench.update_bench(
        cells=_cells(plan),
        runs=[*record["runs"], *names],
        plan={**record["plan"], **marked},
        tune={**tune, "rungs": [*tune["rungs"], rung]},
    )


def leave_out(bench: BenchDir, names: Sequence[str], notes: Sequence[str]) -> None:
    """Write down that a bench ends without these runs, and what its tables say of that."""
    record = bench.bench()
    left = [*record.get("left_out", []), *names]
    bench.update_bench(runs=[name for name in record["runs"] if name not in left], left_out=left, notes=list(notes))


def supersede(bench: BenchDir, run: PlannedRun) -> PlannedRun:
    """Put a fresh attempt in the place of a run that does not count. What the old one left stays where it is."""
    record = bench.bench()
    entry = record["plan"][run.run_id]
    attempt = entry.get("attempt", 1)
    name = f"{run.run_id.removesuffix(f'-a{attempt}')}-a{attempt + 1}"
    bench.update_bench(
        runs=[name if run_id == run.run_id else run_id for run_id in record["runs"]],
        superseded={**record["superseded"], run.run_id: name},
        plan={**record["plan"], name: {**entry, "attempt": attempt + 1}},
    )
    bench.event("superseded", run=run.run_id, by=name)
    return replace(run, run_id=name)


def _cells(plan: Bench) -> list[dict[str, Any]]:
    return [{"spec": spec.as_dict(), "origins": dict(spec.origins)} for spec in plan.cells]


def _entries(plan: Bench, runs: Sequence[PlannedRun]) -> dict[str, dict[str, int]]:
    return {run.run_id: {"cell": plan.cells.index(run.spec), "repeat": run.repeat} for run in runs}


def _planned_with(hosts: Sequence[Host], secrets: Sequence[str], folders: Mapping[str, FrameworkFolder]) -> dict[str, Any]:
    """Return all that a rendered plan depends on besides the specs; values of secret variables are left out."""

    def public(host: Host) -> dict[str, Any]:
        shown = _shown(host.env, secrets)
        # What is expected of a host is judged before a run; no file of a plan rests on it.
        return {name: value for name, value in asdict(replace(host, env=shown)).items() if name != "expect"}

    return {
        "hosts": {host.name: json.loads(json.dumps(public(host), default=str)) for host in hosts},
        "frameworks": {
            name: {"files": folder.framework.digest, "payload": folder.payload_digests} for name, folder in folders.items()
        },
    }


def _shown(env: Mapping[str, str], secrets: Sequence[str]) -> dict[str, str]:
    return {name: SHOWN if name in secrets else value for name, value in env.items()}


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
