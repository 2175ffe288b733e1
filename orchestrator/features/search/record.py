"""What a search adds to ``bench.json``: the parameters of a tune or the sides of a bisect, and the
rounds so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.plan import Knob
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.record import BenchDir
from orchestrator.record import bench_parts as parts
from orchestrator.record.benchfile import BenchRecord

__all__ = [
    "BisectRecord",
    "Candidate",
    "Difference",
    "Fixed",
    "RungRecord",
    "SearchRecord",
    "SideRecord",
    "TuneRecord",
    "add_rung",
    "bisect",
    "bisect_of",
    "end_search",
    "search_of",
    "tune",
    "tune_of",
]

Setting = str | int | float | bool | None
"""A value of a difference; None: not set, of a variable. Hosts are one text, ``node1,node2``, in
order of node_rank.
"""


Candidate = tuple[int, ...]
"""One index for each parameter: of its values, counted from 1, in a tune; 1 for B's side of a
difference in a bisect. (0, 0, …) is the default, or A."""


@dataclass(frozen=True, slots=True)
class RungRecord:
    """A round (rung) of a tune or a bisect at its start. A candidate is one index into the values
    of each parameter; ``cells`` are those of the default and of the candidates. ``refused`` are
    further candidates, which cannot be run, and why.

    ``verifies`` is the set that a bisect verifies, empty in files of earlier versions. ``is_early``: the time was too short for
    a further round of the search before that."""

    candidates: tuple[Candidate, ...]
    repeats: int
    steps: int
    confirms: bool
    cells: tuple[int, ...]
    refused: tuple[tuple[Candidate, str], ...] = ()
    verifies: Candidate = ()
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class TuneRecord:
    """A tune: its parameters, the variables fixed by hosts, the file of its result (empty: next to
    the bench), its rounds so far, and why it ended, empty while it runs."""

    knobs: tuple[Knob, ...]
    seed: int
    numerics: bool
    output: str
    held: Mapping[str, str]
    rungs: tuple[RungRecord, ...] = ()
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between A and B that a run can have either way. ``name`` is that of the spec's
    field, ``options.<name>`` or
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
    """One side as it was measured: its bench, its case there, and the typical value (geometric
    mean) of ``n`` runs.
    """

    bench: str
    case: str
    typical: float
    n: int


@dataclass(frozen=True, slots=True)
class BisectRecord:
    """A bisect: its sides, the metric and its key, what `compare` said of them, the differences,
    the likeliest cause first, its rounds so far, and why it ended, empty while it runs. A candidate
    of a round has a 1 for each difference that it takes from B, a 0 for each that it takes from A;
    its default is A."""

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


SearchRecord = TuneRecord | BisectRecord


def search_of(record: BenchRecord) -> SearchRecord | None:
    """Return what makes a bench a tune or a bisect; None for any other."""
    return tune_of(record) or bisect_of(record)


def tune_of(record: BenchRecord) -> TuneRecord | None:
    """Return what makes a bench a tune; None for any other."""
    return record.added.get("tune")


def bisect_of(record: BenchRecord) -> BisectRecord | None:
    """Return what makes a bench a bisect; None for any other."""
    return record.added.get("bisect")


def add_rung(bench: BenchDir, plan: Bench, runs: Sequence[PlannedRun], rung: RungRecord) -> None:
    """Record the next round of a search: all cells of the bench including its new ones, and the
    runs of that round.
    """

    def with_rung(record: BenchRecord) -> BenchRecord:
        search = search_of(record)
        assert search
        planned = record.planned(plan, runs, rung=len(search.rungs))
        return _with(planned, rungs=(*search.rungs, rung))

    bench.change(with_rung)


def end_search(bench: BenchDir, why: str) -> None:
    """Record why a search has ended."""
    bench.change(lambda record: _with(record, ended=why))


def _with(record: BenchRecord, **values: Any) -> BenchRecord:
    """Return the record with other values in its search; what other features add stays as it is."""
    key = "tune" if tune_of(record) else "bisect"
    return replace(record, added={**record.added, key: replace(record.added[key], **values)})


def tune(value: Any) -> TuneRecord:
    """Return the record of a tune."""
    knobs = tuple(_knob(parts.json_object(knob)) for knob in value["knobs"])
    rungs = tuple(map(rung, value["rungs"]))
    if type(value["numerics"]) is not bool:
        raise TypeError("got no boolean for numerics")
    return TuneRecord(
        knobs,
        parts.whole(value["seed"]),
        value["numerics"],
        parts.text(value["output"]),
        parts.names(value["held"]),
        rungs,
        parts.text(value["ended"]),
    )


def _knob(written: Mapping[str, Any]) -> Knob:
    values = tuple(map(tuple, written["values"]))
    when = {
        name: tuple(among) for name, among in parts.json_object(written.get("when", {})).items()
    }
    networks, multiplies = tuple(written["networks"]), parts.text(written.get("multiplies", ""))
    return Knob(
        tuple(written["env"]),
        written["option"],
        values,
        networks,
        written["numerics"],
        written["default"],
        multiplies,
        when,
    )


def rung(written: Mapping[str, Any]) -> RungRecord:
    """Return a round of a tune or a bisect."""
    candidates = tuple(tuple(map(parts.whole, candidate)) for candidate in written["candidates"])
    cells = tuple(map(parts.whole, written["cells"]))
    if len(cells) != len(candidates) + 1 or type(written["confirms"]) is not bool:
        raise ValueError(
            "got a rung that does not have one cell per candidate and one for the default"
        )
    refused = tuple(
        (tuple(map(parts.whole, candidate)), parts.text(reason))
        for candidate, reason in written.get("refused", [])
    )
    verifies, is_early = (
        tuple(map(parts.whole, written.get("verifies", ()))),
        written.get("is_early", False),
    )
    if type(is_early) is not bool or (verifies and verifies not in candidates):
        raise ValueError("got a rung that verifies none of its candidates")
    numbers = parts.whole(written["repeats"]), parts.whole(written["steps"])
    return RungRecord(candidates, *numbers, written["confirms"], cells, refused, verifies, is_early)


def bisect(value: Any) -> BisectRecord:
    """Return the record of a bisect. Raises KeyError, TypeError or ValueError for an invalid one."""
    words = {
        name: parts.text(value[name]) for name in ("metric", "unit", "better", "verdict", "ended")
    }
    key = tuple(value["key"])
    if not all(type(part) in (str, int) for part in key):
        raise TypeError("got a key of other values than texts and whole numbers")
    return BisectRecord(
        before=_side(value["before"]),
        after=_side(value["after"]),
        key=key,
        differences=tuple(_difference(entry) for entry in value["differences"]),
        fixed=tuple(
            Fixed(*(parts.text(entry[name]) for name in ("name", "before", "after", "why")))
            for entry in value["fixed"]
        ),
        rungs=tuple(rung(entry) for entry in value["rungs"]),
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
