"""Benches, acceptances and nodes as overviews of a project show them, as values that a later build
of a site reads again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis.compare.cell_snapshot import cell_of
from orchestrator.analysis.past_cells import PastCell, headline
from orchestrator.inventory import in_order
from orchestrator.record.bench_groups import every_bench_folder
from orchestrator.record.node_states import NodeState
from orchestrator.results import Cell


def bench_names(runs: Path) -> list[str]:
    """Return the names of all benches in a folder, in acceptances as ``ACCEPTANCE/BENCH``."""
    return [path.relative_to(runs).as_posix() for path in every_bench_folder(runs)]


def page_name(name: str) -> str:
    """Return the name of a bench's page, without its extension; ``name`` is ``ACCEPTANCE/BENCH``
    for a stage.
    """
    return name.replace("/", "~")


@dataclass(frozen=True, slots=True)
class BenchEntry:
    """A bench as overviews show it.

    ``name`` is the path of its folder below the folder of benches, ``mark`` the `evidence_mark` of
    its files, ``subject`` what it measured. ``missing`` are counts of runs without a number, in
    words, ``damaged`` the reasons by run, or by ``name`` for a bench that cannot be read and has no
    page (``has_page``). ``cells`` are its history, ``kept`` the cells of its primary metrics, by
    `compare.cell_snapshot`.
    """

    name: str
    mark: str
    created: str = ""
    label: str = ""
    subject: str = ""
    planned: int = 0
    measured: int = 0
    missing: tuple[str, ...] = ()
    is_held: bool = False
    simulated: bool = False
    hosts: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    blamed: Mapping[str, int] | None = None
    damaged: Mapping[str, str] | None = None
    has_page: bool = False
    cells: tuple[PastCell, ...] = ()
    kept: tuple[Mapping[str, Any], ...] = ()

    @property
    def page(self) -> str:
        """The name of its page's file, without extension."""
        return page_name(self.name)

    @property
    def headline(self) -> PastCell | None:
        """The cell that stands for it in a list, if it has one."""
        return headline(self.cells)

    @property
    def title(self) -> str:
        """Its label, or what it measured, or its name."""
        return self.label or self.subject or self.name

    @property
    def order(self) -> tuple[str, str]:
        """A key that sorts benches by the time at which they were made."""
        return self.created, self.name

    def compared_cells(self) -> list[Cell]:
        """Return the cells that are compared with other benches."""
        return list(map(cell_of, self.kept))


@dataclass(frozen=True, slots=True)
class AcceptanceEntry:
    """An acceptance as overviews show it: ``nodes`` has the verdict and the reasons of each host,
    ``benches`` the names of the benches of its stages; ``damaged`` says why it cannot be read, and
    then it has no page."""

    name: str
    mark: str
    created: str = ""
    suite: str = ""
    title: str = ""
    verdict: str = ""
    nodes: Mapping[str, tuple[str, str]] | None = None
    not_tested: int = 0
    benches: tuple[str, ...] = ()
    damaged: str = ""

    @property
    def page(self) -> str:
        """The name of its page's file, without extension."""
        return page_name(self.name)

    @property
    def order(self) -> tuple[str, str]:
        """A key that sorts acceptances by the time at which they were made."""
        return self.created, self.name


@dataclass(frozen=True, slots=True)
class NodePast:
    """The past of a node in a project: the ``states`` it had, the oldest first and its current one
    last, the ``verdicts`` of acceptances with their reasons, the oldest first, the benches in which
    it took part, and runs that failed there."""

    host: str
    states: tuple[NodeState, ...]
    verdicts: tuple[tuple[AcceptanceEntry, str, str], ...]
    benches: tuple[BenchEntry, ...]
    failures: tuple[tuple[BenchEntry, int], ...]


def node_pasts(
    states: Mapping[str, tuple[NodeState, ...]],
    accepted: Iterable[AcceptanceEntry],
    benches: Iterable[BenchEntry],
) -> list[NodePast]:
    """Return the past of every node that is in any of these, in the order of their names. Acceptances and benches
    are the oldest first.
    """
    accepted, benches = list(accepted), list(benches)
    of_acceptances = (host for entry in accepted for host in entry.nodes or {})
    of_benches = (host for entry in benches for host in entry.hosts)
    return [
        NodePast(
            host,
            states.get(host, ()),
            tuple(
                (entry, *entry.nodes[host])
                for entry in accepted
                if entry.nodes and host in entry.nodes
            ),
            tuple(entry for entry in benches if host in entry.hosts),
            tuple(
                (entry, entry.blamed[host])
                for entry in benches
                if entry.blamed and host in entry.blamed
            ),
        )
        for host in in_order({*states, *of_acceptances, *of_benches})
    ]
