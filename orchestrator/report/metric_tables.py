"""Tables of metrics that are no speeds: a row per metric, or one per key, or per case, with several
metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.grouping import group_pairs
from orchestrator.report.cells import (
    COLUMNS,
    NOTHING,
    Footnotes,
    Table,
    case,
    comparison,
    count,
    hardware_lines,
    number,
    reach,
    title,
)
from orchestrator.report.text import one_line
from orchestrator.results.entries import Row
from orchestrator.results.keys import key_number
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.series import Group

_LISTED = ("metric", "unit", "n", "value", "95%", "median", "min", "max")
_COMPARED = ("speedup", "speedup 95%", "efficiency")
_DROPPED = (("min", "max"), ("median",))
_TAKEN = {*COLUMNS, *_LISTED, *_COMPARED}
"""Names of columns with numbers or notes, which no setting and no key can have."""


@dataclass(frozen=True, slots=True)
class MetricTable:
    """A table and the rows that it shows; ``over`` is the key with numbers that a chart can have on
    its axis, if any.
    """

    table: Table
    rows: tuple[Row, ...]
    over: str = ""


def metric_tables(group: Group) -> tuple[MetricTable, ...]:
    """Return the tables of a group: one of what follows from speeds, one of other metrics without
    keys, and one for each set of metrics with the same keys."""
    of_speeds = [row for row in group.rows if row.is_derived]
    by_keys = group_pairs((tuple(row.key), row) for row in group.rows if not row.is_derived)
    others = (
        _metrics_with_keys(group, keys, rows) if keys else _metrics_without_keys(group, rows)
        for keys, rows in by_keys.items()
    )
    return (*([_derived_metrics(group, of_speeds)] if of_speeds else []), *others)


def _derived_metrics(group: Group, rows: Sequence[Row]) -> MetricTable:
    """Return the table of metrics derived from speeds: a line for each configuration.

    Its notes are on the program's own figures; all others are in the table of speeds before it.
    """
    of_speeds = {
        (_place(group, row), text) for row in rows if not row.says for text in row.qualifications
    }
    noted = []
    for row in rows:
        place = _place(group, row)
        own = [text for text in row.qualifications if row.says and (place, text) not in of_speeds]
        noted.append(replace(row, qualifications=tuple(own), failures=()))
    table = _metrics_with_keys(group, (), noted).table
    end = len(table.columns) - 2
    left_out = slice(end, end + (1 if table.footnotes else 2))

    def show(cells: tuple[str, ...]) -> tuple[str, ...]:
        return cells[: left_out.start] + cells[left_out.stop :]

    return MetricTable(
        replace(table, columns=show(table.columns), rows=tuple(map(show, table.rows)), head=()),
        tuple(rows),
    )


def _metrics_without_keys(group: Group, rows: Sequence[Row]) -> MetricTable:
    compared = _COMPARED if any(row.speedup is not None for row in rows) else ()
    notes = Footnotes()
    lines = []
    for row in rows:
        lines.append(
            (
                *_place(group, row),
                one_line(row.metric),
                one_line(row.unit),
                count(row),
                number(row.value),
                reach(row.interval),
                *map(number, (row.median, row.minimum, row.maximum)),
                *(comparison(row) if compared else ()),
                notes.marks([row]),
            )
        )
    columns = (*_places(group), *_LISTED, *compared, "notes")
    keys = len(_places(group)) + 1
    return MetricTable(_table(group, rows, columns, lines, notes, keys, _DROPPED), tuple(rows))


def _metrics_with_keys(group: Group, keys: Sequence[str], rows: Sequence[Row]) -> MetricTable:
    """Return the table of metrics with the same keys: a line for each configuration and key."""
    metrics = {row.metric: row for row in rows}
    by_line: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        by_line.setdefault(
            (*_place(group, row), *(one_line(str(value)) for value in row.key.values())), {}
        )[row.metric] = row
    first = list(dict.fromkeys(_place(group, row) for row in rows))
    ordered = sorted(
        by_line.items(), key=lambda entry: first.index(entry[0][: len(_places(group))])
    )
    notes = Footnotes()
    compared = {row.metric for row in rows if row.speedup is not None}
    lines = [
        (*place, *_numbers(by_metric, metrics, compared), notes.marks(by_metric.values()))
        for place, by_metric in ordered
    ]
    values = [one_line(name) for row in metrics.values() for name in _columns_of(row, compared)]
    taken = {*_TAKEN, *_places(group), *values}
    columns = (
        *_places(group),
        *(_distinct("key", name, taken) for name in keys),
        *values,
        "n",
        "notes",
    )
    of_ratios = [
        one_line(f"{name} {part}") for name in metrics if name in compared for part in _COMPARED[1:]
    ]
    of_values = [
        (one_line(f"{row.title} 95%"),) for row in reversed(metrics.values()) if not row.primary
    ]
    dropped = (*((tuple(of_ratios),) if of_ratios else ()), *of_values)
    table = _table(group, rows, columns, lines, notes, len(_places(group)) + len(keys), dropped)
    over = next(
        (key for key in keys if all(key_number(row.key[key]) is not None for row in rows)), ""
    )
    return MetricTable(replace(table, head=(*_best(group, rows), *table.head)), tuple(rows), over)


def _columns_of(row: Row, compared: Collection[str]) -> list[str]:
    """Return the columns of a metric: its value, its interval, and the comparison with the baseline
    if it is ``compared``.
    """
    ratios = [f"{row.metric} {part}" for part in _COMPARED] if row.metric in compared else []
    return [f"{row.title} {row.unit}", f"{row.title} 95%", *ratios]


def _numbers(
    by_metric: Mapping[str, Row], metrics: Mapping[str, Row], compared: Collection[str]
) -> list[str]:
    texts: list[str] = []
    for name in metrics:
        row = by_metric.get(name)
        texts += (number(row.value), reach(row.interval)) if row else (NOTHING, NOTHING)
        if name in compared:
            texts += comparison(row) if row else (NOTHING,) * len(_COMPARED)
    counts = dict.fromkeys(map(count, by_metric.values()))
    return [*texts, "; ".join(counts)]


def _best(group: Group, rows: Sequence[Row]) -> list[str]:
    """Return the best value of the primary metric in each configuration, with its key."""
    by_place = group_pairs(
        (_place(group, row), row) for row in rows if row.primary and row.value is not None
    )
    lines = []
    for place, alike in by_place.items():
        best = (min if alike[0].better == "lower" else max)(alike, key=lambda row: row.value or 0.0)
        at = " ".join(f"{name}={value}" for name, value in best.key.items())
        named = [
            place[0],
            *(
                f"{name}={text}"
                for name, text in zip(group.columns, place[1:], strict=True)
                if text
            ),
        ]
        lines.append(
            one_line(
                f"best {best.metric} {' '.join(named)}: {format_number(best.value or 0.0)} {best.unit} at {at}"
            )
        )
    return lines


def _places(group: Group) -> tuple[str, ...]:
    """Return the columns that tell configurations apart."""
    return ("case", *(_distinct("option", name, _TAKEN) for name in group.columns))


def _distinct(kind: str, name: str, taken: Collection[str]) -> str:
    """Return the title of a column of settings or keys, with its kind if another column has this
    title.
    """
    return one_line(f"{kind} {name}" if name in taken else name)


def _place(group: Group, row: Row) -> tuple[str, ...]:
    return (case(row), *(one_line(group.column(row, name)) for name in group.columns))


def _table(
    group: Group,
    rows: Sequence[Row],
    columns: tuple[str, ...],
    lines: Sequence[tuple[str, ...]],
    notes: Footnotes,
    keys: int,
    dropped: tuple[tuple[str, ...], ...],
) -> Table:
    return Table(
        title=title(group.title, group.rows[0].simulated),
        head=hardware_lines(rows),
        rows=tuple(lines),
        footnotes=tuple(notes.numbers),
        simulated=any(row.simulated for row in rows),
        columns=columns,
        keys=keys,
        dropped=dropped,
    )
