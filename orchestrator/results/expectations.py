"""Whether a bench has measured what was expected of it: each bound against the typical value and its interval.

A value within the bound whose interval reaches beyond it is not certain: another bench could give a value on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import OrchError, Regression, Undecided
from orchestrator.plan.expectations import Expectation
from orchestrator.plan.spec import as_written
from orchestrator.results.entries import Row
from orchestrator.results.numbers.rounding import written

__all__ = ["MET", "NOT_CERTAIN", "NOT_MET", "Judgement", "judged", "notes_on"]

_FIELDS = ("framework", "model", "dtype", "device", "shape", "nodes", "gpus", "world_size", "batch_size", "loader")
_SHOWN = 100
MET, NOT_MET, NOT_CERTAIN = "met", "not met", "not certain"


@dataclass(frozen=True, slots=True)
class Judgement:
    """An expectation in one configuration and key: what was measured, in words, and the ``verdict``."""

    expected: str
    series: str
    shape: str
    got: str
    verdict: str

    def __str__(self) -> str:
        place = f"{self.series} {self.shape}: " if self.series else ""
        return f"expected {self.expected}: {self.verdict}, {place}{self.got}"

    def error(self) -> OrchError | None:
        """Return the error of an expectation that is not met, or not certainly; None if it is met."""
        if self.verdict == MET:
            return None
        where = " ".join(filter(None, (self.series, self.shape)))
        message = f"expected {self.expected}, got {self.got}"
        if self.verdict == NOT_MET:
            return Regression(message, kind="expectation_not_met", where=where)
        return Undecided(message, kind="expectation_not_certain", where=where, hint="run more repeats")


def judged(expectations: Sequence[Expectation], rows: Sequence[Row]) -> tuple[Judgement, ...]:
    """Return a judgement of each expectation in each configuration and key that it applies to; one that applies to none is not
    met."""
    judgements = []
    for expected in expectations:
        concerned = [row for row in rows if row.metric == expected.metric and _has(row, expected)]
        judgements += [_of_row(expected, row) for row in concerned]
        if not concerned:
            judgements.append(Judgement(str(expected), "", "", _nothing(expected, rows), NOT_MET))
    return tuple(judgements)


def notes_on(judgements: Sequence[Judgement]) -> list[str]:
    """Return a line for each judgement, but a single one for all that are met if there are several."""
    notes = [str(judgement) for judgement in judgements if judgement.verdict != MET]
    met = [judgement for judgement in judgements if judgement.verdict == MET]
    if len(met) < 2:
        return [*notes, *map(str, met)]
    bounds = "; ".join(dict.fromkeys(judgement.expected for judgement in met))
    shown = bounds if len(bounds) <= _SHOWN else f"{bounds[:_SHOWN]}…"
    return [*notes, f"{len(met)} bounds met: {shown}"]


def _nothing(expected: Expectation, rows: Sequence[Row]) -> str:
    """Return why an expectation applies to no row: no such metric, or no row with one of its values."""
    of_metric = [_values(row) for row in rows if row.metric == expected.metric]
    if not of_metric:
        return f"no such metric; the metrics are {', '.join(dict.fromkeys(row.metric for row in rows)) or 'none'}"
    for name, value in expected.at.items():
        present = dict.fromkeys(values[name] for values in of_metric if name in values)
        if not present:
            return f"no such value; nothing that was measured has a {name}"
        if value not in present:
            return f"no such value; {name} has {', '.join(present)}"
    return "no such value; no configuration has all of these"


def _has(row: Row, expected: Expectation) -> bool:
    """Return True if a row has all values that an expectation names."""
    values = _values(row)
    return all(values.get(name) == value for name, value in expected.at.items())


def _values(row: Row) -> dict[str, str]:
    values = {**row.options, **{name: getattr(row, name) for name in _FIELDS}, **row.key}
    return {name: as_written(value) for name, value in values.items() if value is not None}


def _of_row(expected: Expectation, row: Row) -> Judgement:
    if row.value is None:
        return Judgement(str(expected), row.series, row.shape, "no number", NOT_MET)
    got = f"{written(row.value)} {row.unit}"
    if row.interval:
        got += f" ({written(row.interval.low)} to {written(row.interval.high)})"
    if not expected.is_met_by(row.value):
        return Judgement(str(expected), row.series, row.shape, got, NOT_MET)
    is_certain = row.interval is not None and all(map(expected.is_met_by, (row.interval.low, row.interval.high)))
    return Judgement(str(expected), row.series, row.shape, got, MET if is_certain else NOT_CERTAIN)
