"""Explanations as tables: a row a shape, and below it what was measured of each part. Words of nodes are made harmless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from orchestrator.analysis.explain.prediction import PARTS, Explanation, Part
from orchestrator.report.cells import NOTHING, Table, number, reach
from orchestrator.report.terminal import fitting
from orchestrator.report.text import one_line

__all__ = ["documents", "render", "tables"]

_TITLES = {"communication": "comm."}
_PARTS = tuple(_TITLES.get(name, name) for name in PARTS)
_SHARES = tuple(f"{name} %" for name in _PARTS)
_COLUMNS = (
    "case", "measured", "predicted", "predicted 95%", "off by", "step ms", "ideal ms", "gap ms",
    *(name for both in zip(_PARTS, _SHARES, strict=True) for name in both),
)  # fmt: skip
_DROPPED = (("predicted 95%",), ("ideal ms",), ("step ms",), _SHARES, ("gap ms",), ("measured",))


def tables(explanations: Sequence[Explanation]) -> tuple[Table, ...]:
    """Return one table per series; its footnotes say by what each part was measured."""
    series = dict.fromkeys(each.series for each in explanations)
    return tuple(_table(name, [each for each in explanations if each.series == name]) for name in series)


def _table(series: str, explanations: Sequence[Explanation]) -> Table:
    return Table(
        title=one_line(series),
        head=(
            f"ideal: {explanations[0].ideal}",
            "speeds in samples/s; parts of the gap in ms of a step, those under % in % of it",
        ),
        rows=tuple(_cells(each) for each in explanations),
        footnotes=tuple(one_line(f"{each.case} {text}") for each in explanations for text in _evidence(each)),
        simulated=any(each.simulated for each in explanations),
        columns=_COLUMNS,
    )


def _cells(each: Explanation) -> tuple[str, ...]:
    times = (each.step_s, each.ideal_s, each.step_s - each.ideal_s)
    return (
        each.case,
        number(each.measured),
        number(each.predicted),
        reach(each.interval),
        NOTHING if each.off is None else f"{each.off:+.1%}",
        *(number(1e3 * seconds) for seconds in times),
        *(text for part in each.parts for text in _both(part, each.step_s)),
    )


def _both(part: Part, step_s: float) -> tuple[str, str]:
    return (NOTHING, NOTHING) if part.seconds is None else (number(1e3 * part.seconds), f"{part.seconds / step_s:.1%}")


def _evidence(each: Explanation) -> Iterator[str]:
    """Yield what is behind each part of a shape, and what its runs took that no step shows."""
    if each.world_size > 1:
        behind: dict[str, list[str]] = {}
        for part in each.parts[:-1]:
            behind.setdefault(part.behind, []).append(part.name)
        yield from (f"{', '.join(names)}: {text}" for text, names in behind.items())
        if each.from_baseline:
            yield f"predicted from baseline and all-reduces alone: {number(each.from_baseline)} samples/s"
    if started := each.startup:
        before_s, share = started.until_window_s, started.until_window_s / started.run_s
        yield f"start-up: {before_s:.1f} s of a run of {started.run_s:.1f} s, {share:.0%}, are over when the window begins"
    yield from (f"lacks a measurement; this makes it: {command}" for command in each.missing)


def render(explanations: Sequence[Explanation], console: Console) -> None:
    """Print one table per series, and the evidence below each."""
    for table in tables(explanations):
        console.print(Text(f"{table.title}: why it scales as it does", style="bold"))
        for line in table.head:
            console.print(Text(line, style="dim"))
        console.print(fitting(table.columns, table.rows, _DROPPED, console, "--format html or json"))
        for text in table.footnotes:
            console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
        console.print()
    if not explanations:
        console.print(Text("nothing to explain: no row has both a speed and a baseline"))


def documents(explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Return explanations for JSON, numbers unrounded."""
    return [asdict(each) | {"off": each.off} for each in explanations]
