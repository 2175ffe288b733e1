"""All runs of one command, planned before any host is contacted: their order, and the `Plan` rendered for each."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.inventory import Host
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.placement import place
from orchestrator.plan.render import Plan, render
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec

__all__ = ["PORTS", "Bench", "PlannedRun", "ordered", "plan_run", "run_name"]

PORTS = range(20000, 30000)
"""Rendezvous ports: above the registered services that clusters run, below Linux's ephemeral range."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a bench, before it has a port."""

    run_id: str
    repeat: int
    spec: RunSpec
    folder: FrameworkFolder
    bench_id: str


@dataclass(frozen=True, slots=True)
class Bench:
    """All runs of one command: its configurations (cells), run in blocks. Each block runs every cell once."""

    bench_id: str
    cells: tuple[RunSpec, ...]
    folders: Mapping[str, FrameworkFolder]
    schedule: Schedule

    def block(self, repeat: int) -> tuple[PlannedRun, ...]:
        """Return the runs of one repeat (counted from 1) in execution order. Every call returns the same runs."""
        count = len(self.cells)
        order = ordered(count, repeat, self.schedule.order, self.schedule.seed)[-count:]
        return tuple(
            self.run(self.cells[cell], repeat, index) for index, (cell, _) in enumerate(order, start=(repeat - 1) * count + 1)
        )

    def planned(self) -> tuple[PlannedRun, ...]:
        """Return the runs planned at the start of the bench."""
        return tuple(run for repeat in range(1, self.schedule.repeats + 1) for run in self.block(repeat))

    def run(self, spec: RunSpec, repeat: int, index: int) -> PlannedRun:
        """Return one run of a cell. ``index`` is its position among all runs, counted from 1."""
        return PlannedRun(
            run_name(self.bench_id, index, spec, repeat), repeat, spec, self.folders[spec.framework], self.bench_id
        )


def ordered(count: int, repeats: int, order: str, seed: int) -> list[tuple[int, int]]:
    """Return (cell index, repeat from 1) in execution order. Every repeat runs all cells once, so drift affects them equally.

    >>> ordered(2, 2, "interleaved", 0)
    [(0, 1), (1, 1), (0, 2), (1, 2)]
    """
    generator = random.Random(seed)
    pairs = []
    for repeat in range(1, repeats + 1):
        block = list(range(count))
        if order == "random":
            generator.shuffle(block)
        pairs += [(cell, repeat) for cell in block]
    return pairs


def plan_run(folder: FrameworkFolder, spec: RunSpec, hosts: Sequence[Host], *, run_id: str, repeat: int, port: int) -> Plan:
    """Return the complete plan of one run, with the exact content of every file."""
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
    """Return the id of a run: unique and readable. No code parses it."""
    return f"{bench_id}.{index:03d}-{spec.framework}-{spec.model}-{spec.shape}-{spec.dtype}-r{repeat}"
