"""Published tables of language models for a terminal and for programs: each printed figure with the
recomputed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from orchestrator.features.published.language import (
    FIGURES,
    FigureCheck,
    LanguageCheck,
    LanguageRecord,
)
from orchestrator.features.published.nearest import NearestRecord
from orchestrator.features.published.report import (
    NOTHING,
    Doubts,
    count_agreements,
    findings_document,
    remarks,
)
from orchestrator.report.terminal import fitting, say

_TITLES = {
    "parameters": "N",
    "global_batch": "batch",
    "global_batch_tokens": "tokens/step",
    "step_time_s": "s/step",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_device": "per GPU",
    "tflops_per_device": "TFLOP/s",
    "mfu": "MFU %",
    "hfu": "HFU %",
}
"""Columns by figure; TFLOP/s are per GPU too."""
_DROPPED = (("N",), ("samples/s",), ("s/step",), ("tokens/step",), ("tokens/s",), ("batch",))
"""Columns that a narrow table drops, in this order."""

_NEAREST = ("case", "ours", "published", "MFU %", "published MFU %", "ours/published")


def language_table(check: LanguageCheck, doubts: Doubts, console: Console) -> None:
    """Print one table: each printed figure, ``=`` or ``≠`` and the recomputed one, and the
    findings.
    """
    table = check.table
    say(console, f"{table.name}: {table.title}", "bold")
    peak = f"MFU of {table.peak_tflops:g} TFLOP/s" if table.peak_tflops else "peak not stated"
    operations = (
        f"{table.operations.parameters} N + {table.operations.attention} L d T operations per token"
    )
    of = "all parameters" if table.counts_all else "the weights of matrix products"
    facts = f"{table.dtype}; {table.hardware}; {peak}; {operations}, N: {of}"
    say(console, facts, "dim")
    by_place = {(number.record, number.what): number for number in check.checks}
    figures = [kind for kind in FIGURES if any(kind in record.figures for record in table.records)]
    titles = ("row", "recomputed", *(_TITLES[kind] for kind in figures))
    rows = []
    for record in table.records:
        rows.append(
            (
                record.name,
                record.recomputation,
                *(_figure(record, kind, by_place.get((record.name, kind))) for kind in figures),
            )
        )
    console.print(fitting(titles, rows, _DROPPED, console, "orch published NAME --json", keys=1))
    remarks(check, doubts, console)


def language_overview(
    files: Mapping[str, tuple[Sequence[LanguageCheck], Mapping[str, Doubts]]], console: Console
) -> None:
    """Print one line for each table of language models of every framework: how many figures of each
    kind agree, of how many.
    """
    kinds = [kind for kind, formula in FIGURES.items() if formula]
    titles = (
        "table of a language model",
        "rows",
        *(_TITLES[kind] for kind in kinds),
        "known",
        "doubts",
    )
    rows = []
    for name, (checks, doubts) in files.items():
        if checks:
            rows.append((name, *[""] * (len(titles) - 1)))
        for check in checks:
            doubted = str(sum(map(len, doubts[check.table.name].values())) or NOTHING)
            counts = [count_agreements(check, kind) for kind in kinds]
            known = str(len(check.odd) or NOTHING)
            rows.append(
                (f" {check.table.name}", str(len(check.table.records)), *counts, known, doubted)
            )
    if rows:
        console.print()
        console.print(fitting(titles, rows, _DROPPED, console, "orch published --json"))


def language_document(
    checks: Sequence[LanguageCheck], doubts: Mapping[str, Doubts]
) -> list[dict[str, Any]]:
    """Return tables as JSON values: printed figures, what follows for them from the others, and
    findings.
    """
    return [
        asdict(check.table)
        | {
            "records": list(map(asdict, check.table.records)),
            "checks": list(map(asdict, check.checks)),
        }
        | findings_document(check, doubts, "row")
        for check in checks
    ]


def nearest_table(nearest: Sequence[NearestRecord], console: Console) -> None:
    """Print each measured speed of a language model beside the nearest published row, and what
    differs below them.
    """
    for series in dict.fromkeys(record.series for record in nearest):
        of_series = [record for record in nearest if record.series == series]
        title = f"{series}  beside the nearest published rows: tokens/s per GPU, MFU by orch's operations"
        say(console, title, "bold")
        rows = [
            (
                record.case,
                _round(record.our_tokens_per_s, 1),
                _round(record.published_tokens_per_s, 1),
                _round(record.our_mfu, 2),
                _round(record.published_mfu, 2),
                _round(record.ratio, 2),
            )
            for record in of_series
        ]
        console.print(fitting(_NEAREST, rows, (), console, "orch summarize --json"))
        for record in of_series:
            say(console, f"  · {_published_row(record)}")
            for text in (*record.differences, *record.notes):
                say(console, f"      {text}", "dim")
        console.print()


def nearest_text(record: NearestRecord) -> str:
    """Return a measured speed, the nearest published row, and what differs, as one line."""
    mfu = f"MFU {_round(record.our_mfu, 2)} %, published {_round(record.published_mfu, 2)} %"
    return f"{record.series}, {_published_row(record)}: {mfu}. {'; '.join((*record.differences, *record.notes))}"


def _published_row(record: NearestRecord) -> str:
    return f"{record.case} beside {record.record} ({record.source}, {record.table})"


def _round(value: float | None, places: int) -> str:
    return NOTHING if value is None else f"{value:.{places}f}"


def _figure(record: LanguageRecord, kind: str, check: FigureCheck | None) -> str:
    printed = record.figures.get(kind)
    if printed is None:
        return NOTHING
    if check is None or (check.agrees and kind not in ("tflops_per_device", "mfu", "hfu")):
        return f"{printed}"  # whole numbers, whose repetition is not worth the width
    return f"{printed} {'=' if check.agrees else '≠'} {(check.low + check.high) / 2:.3f}"
