"""The plain way to read a log, which says the same as blocks of it: one line after the other."""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import LINE_LIMIT, Parsed, _Collector
from orchestrator.logs.text import LONG_LINE


def in_words(parsed: Parsed) -> str:
    """As text, for nan is not equal to nan."""
    return repr(replace(parsed, said=parsed.samples))


def line_by_line(data: bytes, grammar: LogGrammar) -> Parsed:
    """The plain way: every line is decoded, cleaned and searched for every pattern, whatever
    literals it holds.
    """
    collector = _Collector(grammar)
    collector.patterns = [replace(reader, literal="") for reader in collector.patterns]
    collector.rows = [replace(reader, literal="") for reader in collector.rows]
    collector.metrics = [replace(reader, literal="") for reader in collector.metrics]
    statements = collector.statements
    statements.literals = {""}
    for name in ("rank", "rank_parts_line", "closing_line", "rank_list"):
        reader = getattr(statements, name)
        setattr(statements, name, reader and replace(reader, literal=""))
    last = max(data.rfind(b"\n"), data.rfind(b"\r"))
    collector.read_cut_line(data[last + 1 :])
    end = max(last, 0)
    for line in re.findall(rb"[^\r\n]+", data[:end]):
        text = line[:LINE_LIMIT].decode("utf-8", "replace")
        text = re.sub(
            r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]",
            "",
            text,
        )
        text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)
        collector.left_out.hits.clear()
        collector.line(text, cut=len(line) > LINE_LIMIT)
        if len(line) <= LONG_LINE:
            collector.left_out.look(text, collector.tags)
    return collector.finish()
