"""The collectives of a step: sizes, ranks and times, as a program reports them in its last line.

The line comes from a node: an invalid row makes all of them unknown.

>>> rows = [["all_gather", 4096, 4, 1, 0.0, 0.0], ["allreduce", 1024, 2, 2, 0.03, 0.04]]
>>> [(str(each.link), each.size_bytes, each.begins, each.needed) for each in transfers_in(rows, step_s=0.04, world_size=4)]
[('all_gather', 4096, 0.0, 0.0), ('allreduce of 2 ranks 2 apart', 1024, 0.75, 1.0)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.results import median

_COLLECTIVES = ("allreduce", "all_gather", "reduce_scatter")
_MOST_ROWS = 100_000
_MOST_BYTES = 1 << 50
_MOST_RANKS = 1 << 20
_ABSURD_S = 1e13


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A collective and its ranks: groups of ``ranks`` that are ``distance`` apart, all groups at
    once; 0 is all ranks.
    """

    collective: str
    ranks: int = 0
    distance: int = 1

    def __str__(self) -> str:
        """Return its name among the collectives of a step."""
        apart = f" {self.distance} apart" if self.distance > 1 else ""
        if self.ranks:
            return f"{self.collective} of {self.ranks} ranks{apart}"
        return self.collective


ALL_REDUCE = Link("allreduce")


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of a step: its bytes as its own measurement counts them, and the shares of the
    step's computation after which it may begin, and after which computing waits for it."""

    link: Link
    size_bytes: int
    begins: float
    needed: float


def transfers_in(rows: Any, step_s: float, world_size: int) -> tuple[Transfer, ...] | None:
    """Return the reported collectives of a step, None if they are not valid.

    A row is [collective, bytes, number of ranks, distance between them, begins, needed], the last
    two in seconds of a step that computes alone and takes ``step_s``.
    """
    if not isinstance(rows, list) or len(rows) > _MOST_ROWS or not all(map(_is_row, rows)):
        return None
    transfers: list[Transfer] = []
    for collective, size_bytes, ranks, distance, begins_s, needed_s in rows:
        link = Link(collective) if ranks == world_size else Link(collective, ranks, distance)
        # They run in their order, and what has not begun cannot be needed yet.
        begins = max(min(1.0, begins_s / step_s), transfers[-1].begins if transfers else 0.0)
        transfers.append(
            Transfer(link, size_bytes, begins, max(begins, min(1.0, needed_s / step_s)))
        )
    return tuple(transfers)


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 6 or row[0] not in _COLLECTIVES:
        return False
    most = (_MOST_BYTES, _MOST_RANKS, _MOST_RANKS)
    whole = all(
        type(number) is int and 1 <= number <= limit
        for number, limit in zip(row[1:4], most, strict=True)
    )
    return whole and all(
        type(moment) in (int, float) and 0 <= moment < _ABSURD_S for moment in row[4:]
    )


def typical_transfers(runs: Sequence[tuple[Transfer, ...] | None]) -> tuple[Transfer, ...] | None:
    """Return the collectives of several runs, their moments the medians over the runs that made the
    same as the first one.
    """
    known = [run for run in runs if run is not None]
    if not known:
        return None
    sent = []
    for run in known:
        sent.append([(transfer.link, transfer.size_bytes) for transfer in run])
    alike = [run for run, same in zip(known, sent, strict=True) if same == sent[0]]
    common = []
    for of_runs in zip(*alike, strict=True):
        begins = median([transfer.begins for transfer in of_runs])
        needed = median([transfer.needed for transfer in of_runs])
        common.append(replace(of_runs[0], begins=begins, needed=needed))
    return tuple(common)
