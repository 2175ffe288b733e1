"""Explanations as tables: one row per shape, and below them the measurements of each part. Control
characters in texts from nodes are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from orchestrator.features.explain.prediction import PARTS, Explanation, Part
from orchestrator.grouping import group_pairs
from orchestrator.report.cells import NOTHING, Table, number, reach
from orchestrator.report.terminal import fitting
from orchestrator.report.text import one_line

_TITLES = {"communication": "comm."}
_PARTS = tuple(_TITLES.get(name, name) for name in PARTS)
_SHARES = tuple(f"{name} %" for name in _PARTS)
_COLUMNS = (
    "case", "measured", "predicted", "predicted 95%", "off by", "step ms", "ideal ms", "gap ms",
    *(name for both in zip(_PARTS, _SHARES, strict=True) for name in both),
)  # fmt: skip
_DROPPED = (("predicted 95%",), ("ideal ms",), ("step ms",), _SHARES, ("gap ms",), ("measured",))


def tables(explanations: Sequence[Explanation]) -> tuple[Table, ...]:
    """Return one table per series, with the measurements of each part as footnotes."""
    return tuple(_table(series, rows) for series, rows in by_series(explanations).items())


def by_series(explanations: Sequence[Explanation]) -> dict[str, list[Explanation]]:
    """Return the explanations of each series, in order."""
    return group_pairs((explanation.series, explanation) for explanation in explanations)


def _table(series: str, explanations: Sequence[Explanation]) -> Table:
    return Table(
        title=one_line(series),
        head=(
            f"ideal: {explanations[0].ideal}",
            f"speeds in {explanations[0].unit}; parts of the gap in ms per step and in % of the step",
        ),
        rows=tuple(map(_cells, explanations)),
        footnotes=tuple(
            one_line(f"{explanation.case} {text}")
            for explanation in explanations
            for text in _evidence(explanation)
        ),
        simulated=any(explanation.simulated for explanation in explanations),
        columns=_COLUMNS,
    )


def _cells(explanation: Explanation) -> tuple[str, ...]:
    times = (explanation.step_s, explanation.ideal_s, explanation.step_s - explanation.ideal_s)
    return (
        explanation.case,
        number(explanation.measured),
        number(explanation.predicted),
        reach(explanation.interval),
        NOTHING if explanation.off is None else f"{explanation.off:+.1%}",
        *(number(1e3 * seconds) for seconds in times),
        *(text for part in explanation.parts for text in _time_and_share(part, explanation.step_s)),
    )


def _time_and_share(part: Part, step_s: float) -> tuple[str, str]:
    if part.seconds is None:
        return (NOTHING, NOTHING)
    return (number(1e3 * part.seconds), f"{part.seconds / step_s:.1%}")


def _evidence(explanation: Explanation) -> Iterator[str]:
    """Yield the measurement behind each part of a shape, and the start-up time of its runs."""
    if explanation.world_size > 1:
        behind = group_pairs((part.behind, part.name) for part in explanation.parts[:-1])
        yield from (f"{', '.join(names)}: {text}" for text, names in behind.items())
        if explanation.from_baseline:
            speed = f"{number(explanation.from_baseline)} {explanation.unit}"
            yield f"predicted from baseline and collectives alone: {speed}"
    if started := explanation.startup:
        before_s, share = started.until_window_s, started.until_window_s / started.run_s
        yield f"start-up: the window begins after {before_s:.1f} s of the run's {started.run_s:.1f} s ({share:.0%})"
    yield from (
        f"a measurement is missing; to make it: {command}" for command in explanation.missing
    )


def render(
    explanations: Sequence[Explanation], console: Console, series: Iterable[str] = ()
) -> None:
    """Print one table per series, with the measurements below. ``series``: all that have speeds."""
    for table in tables(explanations):
        console.print(Text(f"{table.title}: why it scales as it does", style="bold"))
        for line in table.head:
            console.print(Text(line, style="dim"))
        console.print(
            fitting(table.columns, table.rows, _DROPPED, console, "--format html or json")
        )
        for text in table.footnotes:
            console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
        console.print()
    several = "a baseline of several ranks also needs its steps without communication (solo_step_s)"
    explained = {explanation.series for explanation in explanations}
    left_out = [f" in {one_line(name)}" for name in series if name not in explained]
    for where in left_out if explanations else [""]:
        console.print(
            Text(f"nothing to explain{where}: no row has both a speed and a baseline; {several}")
        )


def documents(explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Return explanations for JSON, numbers unrounded."""
    return [asdict(explanation) | {"off": explanation.off} for explanation in explanations]
