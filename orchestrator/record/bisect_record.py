"""The part of ``bench.json`` that makes a bench a bisect: the two sides, how they differ, and the rounds so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.record import bench_parts as parts
from orchestrator.record.bench_parts import RungRecord

__all__ = ["BisectRecord", "Difference", "SideRecord", "Fixed", "bisect"]

Setting = str | int | float | bool | None
"""A value of a difference; None: not set, of a variable. Hosts are one text, ``node1,node2``, in order of node_rank."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between A and B that a run can have either way. ``name`` is that of the spec's field, ``options.<name>`` or
    ``env.<name>``."""

    name: str
    before: Setting
    after: Setting


@dataclass(frozen=True, slots=True)
class Fixed:
    """A difference that no run can have either way, as text, and why."""

    name: str
    before: str
    after: str
    why: str


@dataclass(frozen=True, slots=True)
class SideRecord:
    """One side as it was measured: its bench, its case there, and the typical value (geometric mean) of ``n`` runs."""

    bench: str
    case: str
    typical: float
    n: int


@dataclass(frozen=True, slots=True)
class BisectRecord:
    """A bisect: its sides, the metric and its key, what `compare` said of them, the differences, the likeliest cause first, its
    rounds so far, and why it ended, empty while it runs. A candidate of a round has a 1 for each difference that it takes from
    B, a 0 for each that it takes from A; its default is A."""

    before: SideRecord
    after: SideRecord
    metric: str
    key: tuple[str | int, ...]
    unit: str
    better: str
    verdict: str
    differences: tuple[Difference, ...]
    fixed: tuple[Fixed, ...] = ()
    rungs: tuple[RungRecord, ...] = ()
    ended: str = ""


def bisect(value: Any) -> BisectRecord:
    """Return the record of a bisect. Raises KeyError, TypeError or ValueError for an invalid one."""
    words = {name: parts.text(value[name]) for name in ("metric", "unit", "better", "verdict", "ended")}
    key = tuple(value["key"])
    if not all(type(part) in (str, int) for part in key):
        raise TypeError("got a key of other values than texts and whole numbers")
    return BisectRecord(
        before=_side(value["before"]),
        after=_side(value["after"]),
        key=key,
        differences=tuple(_difference(entry) for entry in value["differences"]),
        fixed=tuple(
            Fixed(*(parts.text(entry[name]) for name in ("name", "before", "after", "why"))) for entry in value["fixed"]
        ),
        rungs=tuple(parts.rung(entry) for entry in value["rungs"]),
        **words,
    )


def _side(value: Mapping[str, Any]) -> SideRecord:
    typical, n = value["typical"], value["n"]
    if type(typical) not in (int, float) or type(n) is not int or not typical > 0:
        raise TypeError("got a side without a number of runs and a value above 0")
    return SideRecord(parts.text(value["bench"]), parts.text(value["case"]), typical, n)


def _difference(value: Mapping[str, Any]) -> Difference:
    sides = value["before"], value["after"]
    if not all(isinstance(side, (str, int, float, type(None))) for side in sides):
        raise TypeError("got no number, text or null for a difference")
    return Difference(parts.text(value["name"]), *sides)
