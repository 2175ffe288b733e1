"""A summary as Markdown. Text from nodes is escaped, so that it cannot become markup, HTML or a
link.
"""

from __future__ import annotations

import re
from html import escape

from orchestrator.report.cells import COLUMNS, Table, has_words, sheet_tables
from orchestrator.report.tables import tables
from orchestrator.report.text import one_line
from orchestrator.results.summary import Summary

_MARKUP = re.compile(r"[\\`*_\[\]#|~$]")
_LINKS = {"@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}


def render(summary: Summary) -> str:
    """Return the label, the tables with their footnotes, and the notes as a list."""
    blocks = [f"## {_inert(one_line(summary.label))}"] if summary.label else []
    blocks += [_block(table) for table in tables(summary)]
    blocks += [_block(table) for sheet in summary.sheets for table in sheet_tables(sheet)]
    if summary.notes:
        blocks.append("\n".join(f"- {_inert(one_line(note))}" for note in summary.notes))
    return "\n\n".join(blocks or ["no runs"]) + "\n"


def _block(table: Table) -> str:
    stamp = " (SIMULATED)" if table.simulated else ""
    lines = [
        f"### {_inert(table.title)}{stamp}",
        "",
        *(f"{_inert(line)}  " for line in table.head),
        "",
    ]
    if table.columns:
        lines.append(
            _line([_inert(name) if name not in COLUMNS else name for name in table.columns])
        )
        cells = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
        words = map(has_words, table.columns, cells)
        lines.append(_line([":---" if is_text else "---:" for is_text in words]))
        lines += [_line(list(map(_inert, row))) for row in table.rows]
    if table.footnotes:
        lines += [
            "",
            *(f"{number}. {_inert(text)}" for number, text in enumerate(table.footnotes, start=1)),
        ]
    return "\n".join(lines)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _inert(text: str) -> str:
    """Escape markup, then HTML, then text that viewers turn into links and mentions automatically."""
    inert = escape(_MARKUP.sub(r"\\\g<0>", text), quote=False)
    for plain, entity in _LINKS.items():
        inert = inert.replace(plain, entity)
    return inert
