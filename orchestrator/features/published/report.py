"""Published tables for a terminal and for programs: recomputed against printed numbers, and a bench
against published tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from orchestrator.features.published.language import LanguageCheck
from orchestrator.features.published.tables import PublishedCell, PublishedFile, TableCheck
from orchestrator.plural import plural
from orchestrator.report.references import ReferenceTable
from orchestrator.report.terminal import fitting, say
from orchestrator.report.text import one_line
from orchestrator.results.numbers.physics import Finding
from orchestrator.results.numbers.throughput import round_like_numpy

NOTHING = "–"
_NUMBERS = ("speed", "average", "median", "speedup")
_DROPPED = (("runs", "cases"), ("average",), ("speed",))
"""Columns that a narrow overview drops, in this order."""

_REFERENCE = ("case", "ours", "published", "ours/published", "speedup", "published speedup")

Doubts = Mapping[str, tuple[Finding, ...]]
"""The findings of one table by case, or by row of a language model."""


def table(check: TableCheck, doubts: Doubts, console: Console) -> None:
    """Print one published table: each printed number, ``=`` or ``≠`` and the recomputed one, and
    the findings.
    """
    published_table = check.table
    title = f": {published_table.title}" if published_table.title != published_table.name else ""
    say(console, f"{published_table.name}{title}", "bold")
    spec = f"{published_table.model} {published_table.dtype} b{published_table.batch_size}"
    facts = f"{spec}, loader {published_table.loader}, version {published_table.version}; {published_table.hardware}"
    say(console, facts, "dim")
    runs, divisor = (
        _count_words(published_table.runs),
        _divisor(published_table.divisor, published_table.baseline),
    )
    say(console, f"speed: {published_table.statistic} of {runs}; speedup: {divisor}", "dim")
    console.print(_cells(check, console))
    remarks(check, doubts, console)


def remarks(check: TableCheck | LanguageCheck, doubts: Doubts, console: Console) -> None:
    """Print below a published table its findings, notes, and numbers that do not follow."""
    for place, findings in doubts.items():
        for finding in findings:
            say(console, f"  ! {place}: {finding.text}", "yellow")
    for text in check.table.notes:
        say(console, f"  · {text}")
    for text in check.odd:
        say(console, f"  ≠ {text} (known)", "yellow")
    for text in (*check.undeclared, *(f"known, but not found: {text}" for text in check.unseen)):
        say(console, f"  ≠ {text}", "bold red")
    console.print()


def overview(
    files: Mapping[str, tuple[Sequence[TableCheck], Mapping[str, Doubts]]], console: Console
) -> None:
    """Print one line for each table of every framework that has tables in samples/s."""
    titles = ("table", "cases", "runs", *_NUMBERS, "known", "doubts")
    rows = []
    for name, (checks, doubts) in files.items():
        if checks:
            rows.append((name, *[""] * (len(titles) - 1)))
        for check in checks:
            counts = [count_agreements(check, kind) for kind in _NUMBERS]
            runs = sum(len(cell.runs) for cell in check.table.cells)
            known = str(len(check.odd) or NOTHING)
            doubted = str(sum(map(len, doubts[check.table.name].values())) or NOTHING)
            cases = str(len(check.table.cells))
            rows.append(
                (f" {check.table.name}", cases, str(runs or NOTHING), *counts, known, doubted)
            )
    console.print(fitting(titles, rows, _DROPPED, console, "orch published --json"))


def totals(checks: Sequence[TableCheck | LanguageCheck], console: Console) -> None:
    """Print the numbers that do not follow from others, and of how many."""
    good = sum(number.agrees for check in checks for number in check.checks)
    count = sum(len(check.checks) for check in checks)
    for check in checks:
        for number in check.checks:
            if not number.agrees:
                console.print(
                    Text(f"≠ {one_line(f'{check.table.name}: {number}')}", style="yellow")
                )
    tables = plural(len(checks), "table")
    console.print(
        Text(f"{tables}: {good} of {count} printed numbers follow from the other printed numbers")
    )


def reference_tables(
    references: Iterable[ReferenceTable], notes: Sequence[str], console: Console
) -> None:
    """Print measured rows next to published ones, the hardware of both first."""
    for reference in references:
        title = f"{reference.series}  compared with  {reference.source}, {reference.title}"
        say(console, title, "bold")
        say(console, f"ours:      {reference.our_hardware}", "dim")
        say(console, f"published: {reference.published_hardware}", "dim")
        rows = [
            (
                pair.case,
                *map(
                    _number,
                    (
                        pair.ours,
                        pair.published,
                        pair.ratio,
                        pair.our_speedup,
                        pair.published_speedup,
                    ),
                ),
            )
            for pair in reference.pairs
        ]
        console.print(fitting(_REFERENCE, rows, (), console, ""))
        for text in reference.notes:
            say(console, f"  · {text}")
        console.print()
    for text in notes:
        say(console, f"· {text}")


def check_document(
    framework: str, file: PublishedFile, checks: Sequence[TableCheck], doubts: Mapping[str, Doubts]
) -> dict[str, Any]:
    """Return the tables of a framework as JSON values: printed numbers, recomputed ones unrounded,
    and findings.
    """
    return {
        "framework": framework,
        "source": file.source,
        "inconsistencies": list(file.inconsistencies),
        "tables": [
            asdict(check.table)
            | {
                "checks": list(map(asdict, check.checks)),
                "median_over_median": dict(check.ours),
            }
            | findings_document(check, doubts, "case")
            for check in checks
        ],
    }


def findings_document(
    check: TableCheck | LanguageCheck, doubts: Mapping[str, Doubts], place: str
) -> dict[str, Any]:
    """Return the findings on a table as JSON values; ``place`` is the key of a doubt's row."""
    return {
        "known_seen": list(check.odd),
        "undeclared": list(check.undeclared),
        "known_not_seen": list(check.unseen),
        "doubts": [
            {place: row} | asdict(finding)
            for row, findings in doubts[check.table.name].items()
            for finding in findings
        ],
    }


def _cells(check: TableCheck, console: Console) -> Group:
    """Return the rows, without empty columns. ``ours`` are the speedups by median/median, if they
    were published otherwise.
    """
    cells = check.table.cells
    titles = [kind for kind in _NUMBERS if any(getattr(cell, kind) is not None for cell in cells)]
    with_ours = bool(check.ours) and check.table.divisor not in ("median/median", "value/value")
    rows = []
    for cell in cells:
        numbers = [_compare_number(check, cell, kind) for kind in titles]
        if with_ours:
            numbers.append(_number(check.ours.get(cell.case)))
        rows.append((cell.case, str(len(cell.runs) or NOTHING), *numbers))
    return fitting(
        ("case", "runs", *titles, *(["ours"] if with_ours else [])), rows, (), console, ""
    )


def _compare_number(check: TableCheck, cell: PublishedCell, kind: str) -> str:
    printed, number = getattr(cell, kind), check.of(cell.case, kind)
    # The speed repeats the average or the median: only a difference is worth the width.
    if printed is None or number is None or (kind == "speed" and number.agrees):
        return _number(printed)
    return f"{_number(printed)} {'=' if number.agrees else '≠'} {_number(number.recomputed)}"


def count_agreements(check: TableCheck | LanguageCheck, kind: str) -> str:
    """Return how many printed numbers of a kind follow from others, of how many."""
    agreements = [number.agrees for number in check.checks if number.what == kind]
    if agreements:
        return f"{sum(agreements)}/{len(agreements)}"
    return NOTHING


def _count_words(runs: int | None) -> str:
    if runs is None:
        return "runs, number not stated"
    return plural(runs, "run")


def _divisor(divisor: str, baseline: str) -> str:
    of_medians = "" if divisor == "median/median" else " (ours: median over median)"
    return {
        "none": f"not printed (ours: over the speed of {baseline})",
        "value/value": f"printed speed over that of {baseline}, because no runs are printed",
        "mean/latch": f"mean over the last run of {baseline} until its mean is known, then over that mean{of_medians}",
    }.get(divisor, f"{divisor.replace('/', ' over ')} of {baseline}{of_medians}")


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{round_like_numpy(value):.2f}"
