"""Records of a search in ``bench.json``: the parameters of a tune or the sides of a bisect, and the
rounds so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.documents import Invalid, document_field, read
from orchestrator.plan import Knob
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.record import BenchDir
from orchestrator.record.bench_record import BenchRecord

Setting = str | int | float | bool | None
"""A value of a difference; None: not set, of a variable. Hosts are one text, ``node1,node2``, in
order of node_rank.
"""


Candidate = tuple[int, ...]
"""One index for each parameter: of its values, counted from 1, in a tune; 1 for B's side of a
difference in a bisect. (0, 0, …) is the default, or A."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A round (rung) of a search, as its strategy proposes it and as the record keeps it.

    ``candidates`` run beside the default, or beside A and B. ``steps`` is 0 while the bench's
    number applies. ``confirms``: its runs alone are the evidence for the first candidate.
    ``is_early``: the time was too short for a further round before that. The record adds ``cells``,
    of the default and of the candidates, ``refused``, further candidates that cannot be run, with
    the reason, and ``verifies``, the candidate that it confirms.
    """

    candidates: tuple[Candidate, ...]
    repeats: int
    steps: int = 0
    confirms: bool = False
    cells: tuple[int, ...] = ()
    refused: tuple[tuple[Candidate, str], ...] = ()
    verifies: Candidate = ()
    is_early: bool = False


def _rungs(value: Any) -> tuple[Rung, ...]:
    rungs = read(tuple[Rung, ...], value)
    for index, rung in enumerate(rungs):
        if len(rung.cells) != len(rung.candidates) + 1:
            raise Invalid("expected one cell for each candidate and one for the default", index)
        if rung.verifies and rung.verifies not in rung.candidates:
            raise Invalid("expected one of the candidates to be verified", index)
    return tuple(map(_add_verified, rungs))


def _add_verified(rung: Rung) -> Rung:
    """Return a round of an earlier version with the set that it verifies: a tune has it alone, a
    bisect has B, the set, and parts of it.
    """
    if not rung.confirms or rung.verifies:
        return rung
    others = rung.candidates[1:] or rung.candidates
    return replace(rung, verifies=tuple(map(max, zip(*others, strict=True))))


@dataclass(frozen=True, slots=True)
class TuneRecord:
    """A tune: its parameters, the variables fixed by hosts, the file of its result (empty: next to
    the bench), its rounds so far, and why it ended, empty while it runs."""

    knobs: tuple[Knob, ...]
    seed: int
    numerics: bool
    output: str
    held: Mapping[str, str]
    rungs: tuple[Rung, ...] = field(default=(), metadata=document_field(by=_rungs))
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between A and B that a run can have either way.

    ``name`` is the spec's field, ``options.<name>`` or ``env.<name>``.
    """

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

    def __post_init__(self) -> None:
        if not self.typical > 0:
            raise ValueError(f"expected a typical value above 0, got {self.typical}")


@dataclass(frozen=True, slots=True)
class BisectRecord:
    """A bisect.

    It has its sides, the metric and its key, the result of `compare`, the differences, the
    likeliest cause first, its rounds so far, and why it ended, empty while it runs. A candidate of
    a round has a 1 for each difference that it takes from B, a 0 for each that it takes from A; its
    default is A.
    """

    before: SideRecord
    after: SideRecord
    metric: str
    key: tuple[str | int, ...]
    unit: str
    better: str
    verdict: str
    differences: tuple[Difference, ...]
    fixed: tuple[Fixed, ...] = ()
    rungs: tuple[Rung, ...] = field(default=(), metadata=document_field(by=_rungs))
    ended: str = ""


SearchRecord = TuneRecord | BisectRecord


def search_of(record: BenchRecord) -> SearchRecord | None:
    """Return the record of a tune or a bisect; None for any other bench."""
    return record.added.get("tune") or record.added.get("bisect")


def add_rung(bench: BenchDir, plan: Bench, runs: Sequence[PlannedRun], rung: Rung) -> None:
    """Record the next round of a search: all cells of the bench including its new ones, and the
    runs of that round.
    """

    def with_rung(record: BenchRecord) -> BenchRecord:
        search = search_of(record)
        assert search
        planned = record.with_runs(plan, runs, rung=len(search.rungs))
        return _with(planned, rungs=(*search.rungs, rung))

    bench.change(with_rung)


def end_search(bench: BenchDir, why: str) -> None:
    """Record why a search has ended."""
    bench.change(lambda record: _with(record, ended=why))


def _with(record: BenchRecord, **values: Any) -> BenchRecord:
    """Return the record with other values in its search; other features' values stay."""
    key = "tune" if "tune" in record.added else "bisect"
    return replace(record, added={**record.added, key: replace(record.added[key], **values)})
