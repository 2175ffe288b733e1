"""Cells of past benches, as a history, an archive, a store and a site show them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from orchestrator.documents import document_field, read
from orchestrator.errors import DataError
from orchestrator.record import BenchDir
from orchestrator.record.bench_record import BenchRecord
from orchestrator.record.past_acceptance import PastAcceptance
from orchestrator.results import Interval, RunResult
from orchestrator.results.bench import place_results
from orchestrator.results.entries import SPEED, Row
from orchestrator.results.keys import in_order
from orchestrator.results.summary import summarize
from orchestrator.results.values import Key
from orchestrator.strictjson import strict_json


@dataclass(frozen=True, slots=True)
class _Spec:
    """The part of a cell's spec that lists need."""

    key: Mapping[str, str | int | float] = field(default_factory=dict)


def _read_spec(value: Any) -> str:
    text = read(str, value)
    read(_Spec, strict_json(text, "its text"))
    return text


@dataclass(frozen=True, slots=True)
class PastCell:
    """One cell of one bench: a metric's typical value and its 95 % interval in ``unit``, of ``n``
    good repeats.

    The value is None without good repeats. ``primary``: the metric stands for the run. ``spec`` is
    the whole spec as text, with metric, unit and key: cells with equal ones are comparable.
    ``created`` is the time in UTC when the bench was planned, and ``label`` is the bench's.
    """

    created: str
    bench_id: str
    series: str
    framework: str
    model: str
    dtype: str
    shape: str
    spec: str = field(metadata=document_field(by=_read_spec))
    metric: str
    unit: str
    primary: bool
    value: float | None
    interval: Interval | None
    n: int
    failed: int
    qualifications: tuple[str, ...]
    hardware: str
    label: str = ""

    @property
    def days(self) -> float | None:
        """The time at which the bench was planned, in days since 1970, for charts; None for an
        invalid text.
        """
        try:
            return (
                datetime.strptime(self.created, "%Y-%m-%dT%H:%M:%SZ")
                .replace(tzinfo=timezone.utc)
                .timestamp()
                / 86400
            )
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class PastBench:
    """A bench as lists show it: its ``cells``, except borrowed ones, which the lender lists, why
    runs are ``damaged``, by their ids, and what it ``measures`` if that has no metrics.
    """

    cells: tuple[PastCell, ...]
    damaged: Mapping[str, str]
    measures: str


@dataclass(frozen=True, slots=True)
class History:
    """All cells; ``damaged`` maps each bench or run with damaged evidence to the reason,
    ``speedless`` each bench without metrics to what it measured, ``seals`` each bench or acceptance
    of a store to the seal of its archive; ``acceptances`` are the oldest first."""

    cells: tuple[PastCell, ...]
    damaged: Mapping[str, str]
    speedless: Mapping[str, str]
    seals: Mapping[str, str] = field(default_factory=dict)
    acceptances: tuple[PastAcceptance, ...] = ()


def history_of(benches: Mapping[str, PastBench]) -> History:
    """Return the history of benches by name."""
    cells = [cell for bench in benches.values() for cell in bench.cells]
    damaged = {name: reason for bench in benches.values() for name, reason in bench.damaged.items()}
    speedless = {name: bench.measures for name, bench in benches.items() if bench.measures}
    return History(
        tuple(sorted(cells, key=lambda cell: (cell.created, cell.bench_id))), damaged, speedless
    )


def headline(cells: Sequence[PastCell]) -> PastCell | None:
    """Return the cell that stands for a bench in a list: the last of its primary ones with a value,
    which has the most ranks of its series; None without one.
    """
    return next((cell for cell in reversed(cells) if cell.primary and cell.value is not None), None)


def dump_past_bench(bench: BenchDir, name: str, runs: Sequence[RunResult]) -> dict[str, Any]:
    """Return the `PastBench` of a bench, for JSON. ``name`` is what the cells call it, ``runs`` are
    those with files.
    """
    record = bench.record()
    results = place_results(bench, runs)
    cells = past_cells(name, record, results, summarize(results).rows)
    measures = next((run.measure.noun for run in results if run.measure.is_diagnosis), "")
    return asdict(PastBench(tuple(cells), find_damaged_runs(results), measures))


def find_damaged_runs(results: Sequence[RunResult]) -> dict[str, str]:
    """Return why the evidence of runs is damaged, by run id."""
    # Incomplete evidence is no damage if the run is running, or was lost, which its outcome records.
    # Neither are intact logs in which the log grammar found nothing: they can be read again with a
    # corrected one.
    return {
        run.run_id: str(run.error)
        for run in results
        if isinstance(run.error, DataError)
        and run.state in ("damaged", "failed")
        and run.error.kind != "log_unmatched"
    }


def past_cells(
    bench_id: str, record: BenchRecord, results: Sequence[RunResult], rows: Sequence[Row]
) -> list[PastCell]:
    """Return the cells of a bench from the rows of its summary.

    Borrowed cells are left out, because the lender lists them, and so are cells without a run that
    began.
    """
    specs = {run.run_id: run.spec.as_dict() for run in results if run.spec}
    measured = [
        row
        for row in rows
        if not set(row.run_ids) <= set(record.borrowed) and row.run_ids[0] in specs
    ]
    return [_past_cell(row, record, bench_id, specs[row.run_ids[0]]) for row in measured]


def _past_cell(row: Row, record: BenchRecord, bench_id: str, spec: Mapping[str, Any]) -> PastCell:
    return PastCell(
        record.created,
        bench_id,
        row.series,
        row.framework,
        row.model,
        row.dtype,
        row.shape,
        json.dumps(
            {**spec, "metric": row.metric, "unit": row.unit, "better": row.better, "key": row.key},
            sort_keys=True,
        ),
        row.metric,
        row.unit,
        row.primary,
        row.value,
        row.interval,
        row.n,
        row.failed,
        tuple(map(str, row.qualifications)),
        row.hardware,
        record.label,
    )


def title_of(cell: PastCell) -> str:
    """Return the title of the table that a cell is in."""
    if cell.metric == SPEED:
        return cell.series
    return f"{cell.series}, {cell.unit}"


def in_title_order(cells: Sequence[PastCell]) -> list[str]:
    """Return the titles of cells, each once: programs and metrics by name, with the numbers in it
    by size, then keys of a metric as in the table of a bench."""
    titles: dict[tuple[str, tuple[str, ...]], dict[Key, set[str]]] = {}
    for cell in cells:
        key = json.loads(cell.spec).get("key", {})
        program = cell.series.removesuffix("".join(f" {name}={part}" for name, part in key.items()))
        titles.setdefault((program, tuple(key)), {}).setdefault(tuple(key.values()), set()).add(
            title_of(cell)
        )
    groups = [
        titles[group]
        for group in sorted(titles, key=lambda group: (_by_numbers(group[0]), group[1]))
    ]
    return list(
        dict.fromkeys(
            title
            for group in groups
            for key in in_order(list(group))
            for title in sorted(group[key])
        )
    )


def _by_numbers(text: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts texts with the numbers in them by size."""
    words = re.split("([0-9]+)", text)
    return [(word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]
