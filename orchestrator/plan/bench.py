"""All runs of one command, decided before anything is contacted: which specs, in which order, rendered to `Plan`s."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.hostset import fold
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.placement import ladder, place
from orchestrator.plan.render import Plan, render
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec, cells, resolve

__all__ = ["PORTS", "Bench", "PlannedRun", "Request", "ordered", "plan_run", "specs"]

PORTS = range(20000, 30000)
"""Rendezvous ports: above the registered services that clusters run, below Linux's ephemeral range."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a bench, before it is bound to a port."""

    run_id: str
    repeat: int
    spec: RunSpec
    folder: FrameworkFolder
    bench_id: str


@dataclass(frozen=True, slots=True)
class Bench:
    """All runs of one command: its cells, in blocks of which each visits every cell once."""

    bench_id: str
    cells: tuple[RunSpec, ...]
    folders: Mapping[str, FrameworkFolder]
    schedule: Schedule

    def block(self, repeat: int) -> tuple[PlannedRun, ...]:
        """Return the runs of one repeat, from 1, in execution order; the same ones whenever it is asked for."""
        count = len(self.cells)
        order = ordered(count, repeat, self.schedule.order, self.schedule.seed)[-count:]
        return tuple(
            self.run(self.cells[cell], repeat, index) for index, (cell, _) in enumerate(order, start=(repeat - 1) * count + 1)
        )

    def planned(self) -> tuple[PlannedRun, ...]:
        """Return the runs that are planned from the start."""
        return tuple(run for repeat in range(1, self.schedule.repeats + 1) for run in self.block(repeat))

    def run(self, spec: RunSpec, repeat: int, index: int) -> PlannedRun:
        """Return one run of a cell; ``index``: its place among all, from 1."""
        return PlannedRun(
            run_name(self.bench_id, index, spec, repeat), repeat, spec, self.folders[spec.framework], self.bench_id
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for. Empty axes fall back to the run file, then to the framework."""

    model: str
    nodes: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    shapes: tuple[tuple[int, int], ...] = ()
    ladder: bool = False
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    single: Mapping[str, Any] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)
    run_file: Mapping[str, Any] = field(default_factory=dict)


def specs(request: Request, folders: Sequence[FrameworkFolder], hosts: Sequence[Host]) -> tuple[RunSpec, ...]:
    """Return every cell of the bench, each once, in the order asked for. Raises ConfigError."""
    device = _device(hosts)
    found: dict[str, RunSpec] = {}
    folder_of: dict[str, FrameworkFolder] = {}
    usual = folders[0].framework.measure.gpus
    shapes = _shapes(request, hosts, usual)
    gpus_origin = "inventory" if usual is None else f"{folders[0].framework.name} default"
    for folder in folders:
        for cell in cells(request.axes, shapes):
            choices = {**request.single, **cell}
            if not (request.nodes or request.gpus or request.shapes or request.ladder):
                choices |= {"nodes_origin": "all selected hosts", "gpus_origin": gpus_origin}
            elif not request.gpus and not request.shapes and not request.ladder:
                choices |= {"gpus_origin": gpus_origin}
            spec = resolve(
                folder.framework, request.model, device=device, choices=choices, run_file=request.run_file, sets=request.sets
            )
            found.setdefault(repr(spec.as_dict()), spec)
            folder_of[spec.framework] = folder
    for spec in found.values():
        # What the hosts cannot carry or the folder refuses is known before anything is contacted.
        plan_run(folder_of[spec.framework], spec, hosts, run_id="plan", repeat=1, port=PORTS.start)
    return tuple(found.values())


def baseline_of(spec: RunSpec) -> RunSpec:
    """Return the one-rank spec that a speedup of ``spec`` is measured against."""
    origins = {**spec.origins, "nodes": "baseline", "gpus": "baseline"}
    return replace(spec, nodes=1, gpus=1, origins=origins)


def missing_baselines(wanted: Sequence[RunSpec]) -> tuple[RunSpec, ...]:
    """Return the one-rank specs that are not among ``wanted``, each once."""
    present = {repr(spec.as_dict()) for spec in wanted}
    missing = {repr(base.as_dict()): base for base in map(baseline_of, wanted)}
    return tuple(base for key, base in missing.items() if key not in present)


def ordered(count: int, repeats: int, order: str, seed: int) -> list[tuple[int, int]]:
    """Return (cell index, repeat from 1) in execution order. Every repeat visits all cells once, so that drift touches all.

    >>> ordered(2, 2, "interleaved", 0)
    [(0, 1), (1, 1), (0, 2), (1, 2)]
    """
    generator = random.Random(seed)
    rounds = []
    for repeat in range(1, repeats + 1):
        block = list(range(count))
        if order == "random":
            generator.shuffle(block)
        rounds += [(cell, repeat) for cell in block]
    return rounds


def plan_run(folder: FrameworkFolder, spec: RunSpec, hosts: Sequence[Host], *, run_id: str, repeat: int, port: int) -> Plan:
    """Return one run, decided to the last byte."""
    placement = place(spec, hosts, port)
    by_name = {host.name: host for host in hosts}
    return render(
        folder.framework,
        folder.sources,
        spec,
        placement,
        by_name,
        run_id=run_id,
        repeat=repeat,
        payload=folder.payload_digests,
    )


def run_name(bench_id: str, index: int, spec: RunSpec, repeat: int) -> str:
    """Return the id of a run: unique, readable, never parsed."""
    return f"{bench_id}.{index:03d}-{spec.framework}-{spec.model}-{spec.shape}-{spec.dtype}-r{repeat}"


def _device(hosts: Iterable[Host]) -> str:
    by_device: dict[str, list[str]] = {}
    for host in hosts:
        by_device.setdefault(host.device, []).append(host.name)
    if len(by_device) > 1:
        cpu, cuda = fold(by_device["cpu"]), fold(by_device["cuda"])
        raise ConfigError(
            f"expected hosts of one kind, got {cuda} with GPUs and {cpu} without",
            where="--hosts",
            hint=f"exclude one: -x {cpu}",
        )
    return next(iter(by_device), "cpu")


def _shapes(request: Request, hosts: Sequence[Host], usual: int | None) -> tuple[tuple[int, int], ...]:
    if request.shapes:
        return request.shapes
    gpus = request.gpus or (usual or _capacity(hosts[: max(request.nodes, default=len(hosts))]),)
    if request.ladder:
        return ladder(max(request.nodes, default=len(hosts)), max(gpus))
    return tuple((nodes, count) for nodes in request.nodes or (len(hosts),) for count in gpus)


def _capacity(hosts: Sequence[Host]) -> int:
    unknown = [host.name for host in hosts if host.capacity is None]
    if unknown:
        raise ConfigError(
            f"the inventory does not say how many GPUs {fold(unknown)} has",
            where="--gpus",
            hint="say --gpus N, or gpus: in the inventory",
        )
    return min((host.capacity or 0 for host in hosts), default=1)
