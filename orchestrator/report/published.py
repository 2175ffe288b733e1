"""Published tables for a terminal and for programs: recomputed beside printed, ours beside theirs, and DLPerf's result JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from orchestrator.analysis.published.reference import Beside
from orchestrator.analysis.published.tables import PublishedCell, PublishedFile, TableCheck
from orchestrator.report.terminal import fitting
from orchestrator.report.text import one_line
from orchestrator.results.numbers.physics import Finding
from orchestrator.results.numbers.throughput import published
from orchestrator.results.summary import Row, Summary

__all__ = ["beside", "check_document", "overview", "result_document", "table"]

NOTHING = "–"
_NUMBERS = ("speed", "average", "median", "speedup")
_DROPPED = (("runs", "cases"), ("average",), ("speed",))
"""What a narrow overview can do without, first things first."""

_BESIDE = ("case", "ours", "published", "ours/published", "speedup", "published speedup")

Doubts = Mapping[str, tuple[Finding, ...]]
"""The findings of one table by case."""


def table(check: TableCheck, doubts: Doubts, console: Console) -> None:
    """Print one published table: each printed number, ``=`` or ``≠``, what follows from its runs or printed speeds, doubts."""
    of = check.table
    console.print(Text(f"{of.name}: {one_line(of.title)}", style="bold"), soft_wrap=True)
    facts = f"{of.model} {of.dtype} b{of.batch_size}, loader {of.loader}, version {of.version}; {of.hardware}"
    console.print(Text(one_line(facts), style="dim"), soft_wrap=True)
    made = f"speed: {of.statistic} of {_promised(of.runs)}; speedup: {_divisor(of.divisor)}"
    console.print(Text(made, style="dim"), soft_wrap=True)
    console.print(_cells(check, console))
    for case, findings in doubts.items():
        for finding in findings:
            console.print(Text(f"  ! {case}: {one_line(finding.text)}", style="yellow"), soft_wrap=True)
    for text in of.notes:
        console.print(Text(f"  · {one_line(text)}"), soft_wrap=True)
    for text in check.odd:
        console.print(Text(f"  ≠ {one_line(text)} (known)", style="yellow"), soft_wrap=True)
    for text in (*check.undeclared, *(f"known, but not seen: {text}" for text in check.unseen)):
        console.print(Text(f"  ≠ {one_line(text)}", style="bold red"), soft_wrap=True)
    console.print()


def overview(files: Mapping[str, tuple[Sequence[TableCheck], Mapping[str, Doubts]]], console: Console) -> None:
    """Print one line for each table of every framework, and a sum."""
    titles = ("table", "cases", "runs", *_NUMBERS, "known", "doubts")
    rows = []
    for name, (checks, doubts) in files.items():
        rows.append((name, *[""] * (len(titles) - 1)))
        for check in checks:
            counts = [_reproduced(check, what) for what in _NUMBERS]
            runs = sum(len(cell.runs) for cell in check.table.cells)
            known = str(len(check.odd) or NOTHING)
            doubted = str(sum(map(len, doubts[check.table.name].values())) or NOTHING)
            cases = str(len(check.table.cells))
            rows.append((f" {check.table.name}", cases, str(runs or NOTHING), *counts, known, doubted))
    console.print(fitting(titles, rows, _DROPPED, console, "orch published --json"))
    checks = [check for found, _ in files.values() for check in found]
    all_checks = [each for check in checks for each in check.checks]
    good = sum(each.agrees for each in all_checks)
    console.print(f"{len(checks)} tables: {good} of {len(all_checks)} printed numbers follow from what else is printed")


def beside(found: Iterable[Beside], notes: Sequence[str], console: Console) -> None:
    """Print our rows beside published ones, the hardware of both first."""
    for each in found:
        title = f"{each.series}  beside  {each.source}, {each.title}"
        console.print(Text(one_line(title), style="bold"), soft_wrap=True)
        console.print(Text(one_line(f"ours:      {each.our_hardware}"), style="dim"), soft_wrap=True)
        console.print(Text(one_line(f"published: {each.published_hardware}"), style="dim"), soft_wrap=True)
        rows = [
            (pair.case, *map(_number, (pair.ours, pair.published, pair.ratio, pair.our_speedup, pair.published_speedup)))
            for pair in each.pairs
        ]
        console.print(fitting(_BESIDE, rows, (), console, ""))
        for text in each.notes:
            console.print(Text(f"  · {one_line(text)}"), soft_wrap=True)
        console.print()
    for text in notes:
        console.print(Text(f"· {one_line(text)}"), soft_wrap=True)


def check_document(
    framework: str, file: PublishedFile, checks: Sequence[TableCheck], doubts: Mapping[str, Doubts]
) -> dict[str, Any]:
    """Return the tables of a framework as JSON values: what was printed, what follows from it, unrounded, and doubts."""
    return {
        "framework": framework,
        "source": file.source,
        "inconsistencies": list(file.inconsistencies),
        "tables": [
            asdict(check.table)
            | {
                "checks": [asdict(each) for each in check.checks],
                "median_over_median": dict(check.ours),
                "known_seen": list(check.odd),
                "undeclared": list(check.undeclared),
                "known_not_seen": list(check.unseen),
                "doubts": [
                    {"case": case} | asdict(finding) for case, found in doubts[check.table.name].items() for finding in found
                ],
            }
            for check in checks
        ],
    }


def result_document(summary: Summary) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the result in DLPerf's shape: model, case, then its four keys; null where there is no number.

    With several series a model's word alone would let one overwrite another, so they get their full names.
    """
    series = summary.by_series()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, rows in series.items():
        found[rows[0].model if len(series) == 1 else name] = {row.shape: _result(row) for row in rows}
    return found


def _result(row: Row) -> dict[str, Any]:
    return {
        "average_speed": _rounded(row.average_speed),
        "batch_size_per_device": row.batch_size,
        "median_speed": _rounded(row.median_speed),
        "speedup": _rounded(row.speedup),
    }


def _cells(check: TableCheck, console: Console) -> Group:
    """Return the rows, without the columns in which nothing was printed; ``ours`` are speedups that were not made our way."""
    cells = check.table.cells
    wanted = [what for what in _NUMBERS if any(getattr(cell, what) is not None for cell in cells)]
    ours = ["ours"] * (bool(check.ours) and check.table.divisor in ("mean/latch", "mean/mean", "none"))
    rows = []
    for cell in cells:
        numbers = [_beside_recomputed(check, cell, what) for what in wanted]
        rows.append((cell.case, str(len(cell.runs) or NOTHING), *numbers, *[_number(check.ours.get(cell.case))] * len(ours)))
    return fitting(("case", "runs", *wanted, *ours), rows, (), console, "")


def _beside_recomputed(check: TableCheck, cell: PublishedCell, what: str) -> str:
    printed, found = getattr(cell, what), check.of(cell.case, what)
    # The speed is the average or the median once more: only a difference is worth the width.
    if printed is None or found is None or (what == "speed" and found.agrees):
        return _number(printed)
    return f"{_number(printed)} {'=' if found.agrees else '≠'} {_number(found.recomputed)}"


def _reproduced(check: TableCheck, what: str) -> str:
    found = [each.agrees for each in check.checks if each.what == what]
    return f"{sum(found)}/{len(found)}" if found else NOTHING


def _promised(runs: int | None) -> str:
    return "runs, nobody says how many" if runs is None else f"{runs} run{'s' * (runs > 1)}"


def _divisor(divisor: str) -> str:
    return {
        "none": "none is printed (ours: over the speed of 1n1g)",
        "value/value": "printed speed over that of 1n1g, as no runs are printed",
        "mean/latch": "mean over the last run of 1n1g that was read, then over its mean (ours: median over median)",
    }.get(divisor, f"{divisor.replace('/', ' over ')} of 1n1g")


def _rounded(value: float | None) -> float | None:
    return None if value is None else published(value)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{published(value):.2f}"
