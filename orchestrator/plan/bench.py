"""All runs of one command, planned before any host is contacted: their order, and the `Plan`
rendered for each.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.inventory import Host
from orchestrator.plan.expectations import Expectation
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import Framework
from orchestrator.plan.placement import place
from orchestrator.plan.render import Plan, render
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec, Skipped

PORTS = range(20000, 30000)
"""Rendezvous ports: above the registered services that clusters run, below Linux's ephemeral range.
"""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a bench, before it has a port."""

    run_id: str
    repeat: int
    spec: RunSpec
    folder: FrameworkFolder
    bench_id: str


class ExtraRuns(Protocol):
    """A run of each configuration that no table counts, as a feature makes it; its text is kept in
    the record of the bench.
    """

    def check_frameworks(self, frameworks: Iterable[Framework]) -> None:
        """Raise ConfigError for a framework that has no such run."""

    def check(self, cells: Sequence[RunSpec]) -> None:
        """Raise ConfigError if none of these configurations has such a run."""

    def spec_of(self, cell: RunSpec) -> RunSpec | None:
        """Return the extra run of a configuration; None if it has none."""

    def name_of(self, bench_id: str, index: int, cell: RunSpec) -> str:
        """Return the id of the extra run of a configuration, counted from 1."""


@dataclass(frozen=True, slots=True)
class Bench:
    """All runs of one command: its configurations (cells), run in blocks. Each block runs every
    cell once.

    ``skipped`` are the configurations that were requested and are impossible, ``expect`` what it is
    expected to measure, ``extra`` runs that count in no table.
    """

    bench_id: str
    cells: tuple[RunSpec, ...]
    folders: Mapping[str, FrameworkFolder]
    schedule: Schedule
    skipped: tuple[Skipped, ...] = ()
    label: str = ""
    expect: tuple[Expectation, ...] = ()
    extra: ExtraRuns | None = None

    def extra_runs(self) -> list[tuple[PlannedRun, RunSpec]]:
        """Return the extra runs, each with its cell."""
        runs = []
        for index, cell in enumerate(self.cells if self.extra else (), start=1):
            if self.extra and (spec := self.extra.spec_of(cell)):
                name = self.extra.name_of(self.bench_id, index, cell)
                repeat = self.schedule.repeats + 1
                folder = self.folders[cell.framework]
                runs.append((PlannedRun(name, repeat, spec, folder, self.bench_id), cell))
        return runs

    def block(self, repeat: int) -> tuple[PlannedRun, ...]:
        """Return the runs of one repeat (counted from 1) in execution order. Every call returns the
        same runs.
        """
        count = len(self.cells)
        order = order_cells(
            count, repeat, self.schedule.order, self.schedule.seed, self.schedule.repeats
        )[-count:]
        return tuple(
            self.run(self.cells[cell], repeat, index)
            for index, (cell, _) in enumerate(order, start=(repeat - 1) * count + 1)
        )

    def list_runs(self) -> tuple[PlannedRun, ...]:
        """Return the runs planned at the start of the bench."""
        return tuple(
            run for repeat in range(1, self.schedule.repeats + 1) for run in self.block(repeat)
        )

    def run(self, spec: RunSpec, repeat: int, index: int) -> PlannedRun:
        """Return one run of a cell. ``index`` is its position among all runs, counted from 1."""
        return PlannedRun(
            run_name(self.bench_id, index, spec, repeat),
            repeat,
            spec,
            self.folders[spec.framework],
            self.bench_id,
        )


def order_cells(
    count: int, repeats: int, order: str, seed: int, planned: int = 0
) -> list[tuple[int, int]]:
    """Return (cell index, repeat from 1) in execution order. Every repeat runs all cells once;
    ``order`` is one of `ORDERS`.

    ``planned`` is the number of repeats at the start of the bench, by default ``repeats``: more of
    them continue its order.

    >>> order_cells(2, 3, "balanced", 0)
    [(0, 1), (1, 1), (1, 2), (0, 2), (0, 3), (1, 3)]
    """
    generator = random.Random(seed)
    pairs = []
    for repeat in range(1, repeats + 1):
        block = list(range(count))
        if order == "random":
            generator.shuffle(block)
        if order == "balanced" and _is_backwards(repeat, planned or repeats):
            block.reverse()
        pairs += [(cell, repeat) for cell in block]
    return pairs


def _is_backwards(repeat: int, planned: int) -> bool:
    """Return True if a block of a balanced order runs its cells from last to first.

    In two opposite blocks every cell runs at the same place on average, so a linear drift falls out
    of their differences. An even number of blocks consists of such pairs. They alternate as in the
    sequence of Thue and Morse (forwards, backwards, backwards, forwards, …), so after four blocks
    only the curvature within a block is left of a quadratic drift, and after eight of a cubic one.
    Of an odd number, one block has no opposite: plain alternation does the same for a quadratic
    drift, and of a linear one the part within one block over the number of blocks is left, for the
    analysis to take out.
    """
    if planned % 2:
        return repeat % 2 == 0
    return (repeat - 1).bit_count() % 2 == 1


def plan_run(
    folder: FrameworkFolder,
    spec: RunSpec,
    hosts: Sequence[Host],
    *,
    run_id: str = "plan",
    repeat: int = 1,
    port: int = PORTS.start,
) -> Plan:
    """Return the complete plan of one run, with the exact content of every file.

    Without the name and port of a run, it shows whether there can be one. Raises ConfigError.
    """
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
    return (
        f"{bench_id}.{index:03d}-{spec.framework}-{spec.model}-{spec.shape}-{spec.dtype}-r{repeat}"
    )
