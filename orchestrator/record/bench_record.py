"""The content of ``bench.json``: the cells and runs of a bench, what they were planned with, and
how the bench went on.

`BenchRecord` is its only reader and writer. A field that an earlier version did not write gets its
default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.documents import Invalid, document_field, keys_of, read, strict_reader
from orchestrator.errors import ConfigError
from orchestrator.feature import providers
from orchestrator.inventory import Host, is_loopback
from orchestrator.inventory.reserved import LAB_VARIABLE
from orchestrator.plan import Limits, RunSpec, Schedule, Skipped
from orchestrator.plan.bench import Bench, ExtraRuns, PlannedRun
from orchestrator.plan.expectations import Expectation
from orchestrator.record import bench_parts as parts
from orchestrator.record.bench_parts import PlanEntry, PlannedWith
from orchestrator.record.state_file import part_error, state_error
from orchestrator.version import __version__


@dataclass(frozen=True, slots=True)
class BenchRecord:
    """The record of a bench in ``bench.json``.

    ``runs`` are the ids of its runs in execution order. ``borrowed`` maps ids of borrowed runs to
    the benches they come from, ``superseded`` maps runs that do not count to the attempts that
    replace them. ``plan``, ``limits`` and ``planned_with`` are None if the version that wrote the
    file did not record them. ``templates`` are the folders, besides orch's own, that its frameworks
    come from; the first takes precedence. ``notes`` are shown with its tables, ``left_out`` names
    the runs that the bench ended without. ``skipped`` are the requested but impossible
    configurations, ``devices`` the devices of each host that options chose, ``job`` the options of
    the job that it submitted to ``engine``. ``spares`` are the hosts that may replace others,
    ``replaced`` maps lost hosts to their replacements. ``lab`` marks the namespace lab that it ran in: outside, the
    addresses of its nodes may belong to real machines. ``added`` holds the keys that features add
    to the file.
    """

    bench_id: str
    created: str = field(default="", metadata=document_field(by=parts.created))
    orch: str = ""
    argv: tuple[str, ...] = ()
    inventory: str = ""
    templates: tuple[Path, ...] = field(default=(), metadata=document_field(by=parts.paths))
    runs: tuple[str, ...] = ()
    borrowed: Mapping[str, str] = field(default_factory=dict)
    superseded: Mapping[str, str] = field(default_factory=dict)
    cells: tuple[RunSpec, ...] = field(default=(), metadata=document_field(by=parts.cells))
    plan: Mapping[str, PlanEntry] | None = None
    # The key that the first version wrote.
    schedule: Schedule = field(
        default=Schedule(order="interleaved"),
        metadata=document_field(key="course", by=strict_reader(Schedule)),
    )
    limits: Limits | None = field(default=None, metadata=document_field(by=strict_reader(Limits)))
    planned_with: PlannedWith | None = None
    added: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    label: str = ""
    skipped: tuple[Skipped, ...] = field(default=(), metadata=document_field(by=parts.skipped))
    expect: tuple[Expectation, ...] = field(
        default=(), metadata=document_field(by=parts.expectations)
    )
    devices: Mapping[str, str] = field(default_factory=dict)
    job: tuple[str, ...] = ()
    engine: str = "slurm"
    # The key is named after the option, and after the first feature with such runs.
    extra: ExtraRuns | None = field(
        default=None, metadata=document_field(key="profile", by=parts.extra_runs)
    )
    spares: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    lab: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str) -> BenchRecord:
        """Return the record in a ``bench.json``. Raises DataError (state_damaged) naming the
        invalid field.
        """
        try:
            record = read(cls, {"bench_id": Path(where).parent.name, **content, "added": {}})
        except Invalid as error:
            expected = _EXPECTED.get(str(error.steps[0]), "")
            raise part_error(where, error, expected) from error
        kind = kind_of(content.keys() - _KEYS)
        added = {}
        for key in kind.KEYS & content.keys() if kind else ():
            try:
                added[key] = kind.part_of(key, content[key])
            except ValueError as error:
                fault = error if isinstance(error, Invalid) else Invalid(str(error))
                raise part_error(where, fault.within(key), f"the record of a {key}") from error
        record = replace(record, added=added)
        if any(not 0 <= entry.cell < len(record.cells) for entry in (record.plan or {}).values()):
            message = "plan: expected only runs of its cells, a run has an unknown cell"
            raise state_error(where, message)
        return record

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``bench.json``."""
        content: dict[str, Any] = {
            "bench_id": self.bench_id,
            "created": self.created,
            "orch": self.orch,
            "argv": list(self.argv),
            "inventory": self.inventory,
            "templates": list(map(str, self.templates)),
            "runs": list(self.runs),
            "borrowed": dict(self.borrowed),
            "superseded": dict(self.superseded),
            "cells": [
                {"spec": spec.as_dict(), "origins": dict(spec.origins)} for spec in self.cells
            ],
            "plan": {run_id: entry.as_dict() for run_id, entry in (self.plan or {}).items()},
            "course": asdict(self.schedule),
            "limits": asdict(self.limits) if self.limits else None,
            "planned_with": asdict(self.planned_with) if self.planned_with else None,
        }
        content |= {key: asdict(part) for key, part in self.added.items()}
        if self.label:
            content["label"] = self.label
        if self.lab:
            content["lab"] = self.lab
        if self.skipped:
            content["skipped"] = [asdict(configuration) for configuration in self.skipped]
        if self.devices:
            content["devices"] = dict(self.devices)
        if self.engine != "slurm":
            content["engine"] = self.engine
        if self.replaced:
            content["replaced"] = dict(self.replaced)
        if self.extra:
            content["profile"] = str(self.extra)
        if self.expect:
            content["expect"] = list(map(str, self.expect))
        return content | {
            name: list(texts)
            for name in ("job", "notes", "left_out", "spares")
            if (texts := getattr(self, name))
        }

    def changes(self, before: BenchRecord) -> dict[str, Any]:
        """Return the fields of `as_dict` that differ from ``before``."""
        old, new = before.as_dict(), self.as_dict()
        changed = [
            key
            for key in {**new, **old}
            if key not in new or key not in old or new[key] != old[key]
        ]
        return {key: new.get(key, "" if key == "label" else []) for key in changed}

    @property
    def created_order(self) -> tuple[float, str]:
        """A key that sorts benches by creation time; an early version wrote seconds instead of a
        date.
        """
        try:
            return float(self.created), ""
        except ValueError:
            return 0.0, self.created

    @property
    def extra_run_cells(self) -> dict[str, RunSpec]:
        """The cells by the ids of their extra runs, which count in no table."""
        if not self.extra:
            return {}
        numbered = enumerate(self.cells, start=1)
        return {self.extra.name_of(self.bench_id, index, cell): cell for index, cell in numbered}

    @property
    def hosts(self) -> list[str]:
        """The hosts that it goes on with, spares among them: those that it was planned with,
        without those that were lost and replaced. Empty if the version that wrote the file did not
        record them."""
        planned = self.planned_with.hosts if self.planned_with else ()
        return [name for name in planned if name not in self.replaced]

    @property
    def blocks(self) -> int:
        """The largest planned repeat."""
        return max((entry.repeat for entry in (self.plan or {}).values()), default=0)

    def with_runs(
        self, plan: Bench, runs: Sequence[PlannedRun], rung: int | None = None
    ) -> BenchRecord:
        """Return the record with additional planned runs, of cells of ``plan``."""
        entries = {
            run.run_id: PlanEntry(plan.cells.index(run.spec), run.repeat, rung) for run in runs
        }
        names = (*self.runs, *entries)
        return replace(self, cells=plan.cells, runs=names, plan={**(self.plan or {}), **entries})

    def without(self, names: Sequence[str], notes: Sequence[str]) -> BenchRecord:
        """Return the record of a bench that ends without these runs, with notes about that for its
        tables.
        """
        left = (*self.left_out, *names)
        kept = tuple(name for name in self.runs if name not in left)
        return replace(
            self, runs=kept, left_out=left, notes=tuple(dict.fromkeys((*self.notes, *notes)))
        )

    def with_spare(self, lost: str, spare: str, note: str) -> BenchRecord:
        """Return the record of a bench that goes on with a spare in place of a host that was lost,
        and a note for its tables."""
        return replace(
            self,
            replaced={**self.replaced, lost: spare},
            notes=tuple(dict.fromkeys((*self.notes, note))),
        )

    def with_attempt(self, run_id: str) -> BenchRecord:
        """Return the record with a run replaced by a new attempt."""
        plan = self.plan or {}
        entry = plan[run_id]
        name = f"{run_id.removesuffix(f'-a{entry.attempt}')}-a{entry.attempt + 1}"
        return replace(
            self,
            runs=tuple(name if run == run_id else run for run in self.runs),
            superseded={**self.superseded, run_id: name},
            plan={**plan, name: replace(entry, attempt=entry.attempt + 1)},
        )


def kind_of(keys: Collection[str]) -> Any:
    """Return the module of the feature that carries out a bench with these keys in its record; None
    if no feature does.
    """
    if not keys:
        return None
    return next(
        (module for module in providers("bench_kind") if not module.KEYS.isdisjoint(keys)), None
    )


def is_outside_its_lab(record: BenchRecord, environment: Mapping[str, str] = os.environ) -> bool:
    """Return True for a bench of a lab, outside of any lab: its nodes are only reached in there."""
    planned = record.planned_with.hosts.values() if record.planned_with else ()
    is_of_lab = record.lab or any(LAB_VARIABLE in host.get("vars", {}) for host in planned)
    return bool(is_of_lab) and not environment.get("ORCH_LAB")


def find_inventory(record: BenchRecord, environment: Mapping[str, str] = os.environ) -> str:
    """Return the inventory through which the nodes of a bench are reached.

    Raises ConfigError for a lab's bench outside of any lab: its nodes have private addresses, which
    may belong to somebody else's machines there.
    """
    if is_outside_its_lab(record, environment):
        message = "this bench ran in a lab, and its nodes are only reached in there"
        raise ConfigError(
            message,
            where=record.bench_id,
            hint="repeat the command inside: orch lab exec -- orch …",
        )
    return record.inventory


def new_bench_record(
    plan: Bench,
    borrowed: Mapping[str, str],
    hosts: Sequence[Host],
    inventory: str,
    secrets: Sequence[str],
    limits: Limits,
    bases: Sequence[Path],
    argv: Sequence[str],
    added: Mapping[str, Any] | None = None,
    devices: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    job: Sequence[str] = (),
    engine: str = "slurm",
    spares: Sequence[Host] = (),
) -> BenchRecord:
    """Return the record of a new bench. ``borrowed`` maps run ids to the benches they come from."""
    used = {Path(folder.framework.folder).parent for folder in plan.folders.values()}
    record = BenchRecord(
        bench_id=plan.bench_id,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        orch=__version__,
        argv=tuple(argv),
        inventory=str(Path(inventory).absolute()) if Path(inventory).exists() else inventory,
        templates=tuple(base.absolute() for base in bases if base in used),
        runs=tuple(borrowed),
        borrowed=dict(borrowed),
        schedule=plan.schedule,
        limits=limits,
        planned_with=PlannedWith.of([*hosts, *spares], secrets, plan.folders),
        added=added or {},
        label=plan.label,
        skipped=plan.skipped,
        expect=plan.expect,
        extra=plan.extra,
        devices={
            host.name: devices[host.name]
            for host in (*hosts, *spares)
            if devices and host.name in devices
        },
        notes=tuple(notes),
        job=tuple(job),
        engine=engine,
        spares=tuple(host.name for host in spares),
        lab=""
        if any(is_loopback(host.address) for host in hosts)
        else os.environ.get("ORCH_LAB", ""),
    )
    return record.with_runs(plan, plan.list_runs())


_KEYS = keys_of(BenchRecord) - {"added"}
_EXPECTED = {
    "runs": "a list of run ids",
    "superseded": "an object of run ids",
    "cells": "a list of specs with the origins of their values",
    "plan": "the cell and the repeat of each run",
    "expect": "a list of bounds",
    "skipped": "a list of configurations with the reasons why they are impossible",
}
