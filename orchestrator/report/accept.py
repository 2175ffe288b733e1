"""A certificate as lines of text: the verdict first, then what did not pass, then the bars and what was not tested."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.analysis.accept import Certificate
from orchestrator.analysis.accept.verdicts import FAIL, PASS, UNDECIDED, Finding
from orchestrator.errors import Regression, Undecided
from orchestrator.inventory import fold
from orchestrator.report.text import one_line

__all__ = ["lines", "seen", "status", "subjects"]


_MARK = "\0"
"""Stands for the name of a node; what nodes say is without it, see `one_line`."""


def status(certificate: Certificate) -> int:
    """Return the exit status of a verdict."""
    return {PASS: 0, FAIL: Regression.exit_code, UNDECIDED: Undecided.exit_code}[certificate.verdict]


def subjects(certificate: Certificate) -> list[tuple[str, str, list[Finding]]]:
    """Return (verdict, subject, findings) of each node, link and the cluster that did not pass, failures first."""
    by_subject: dict[tuple[str, str], list[Finding]] = {}
    for bar in certificate.judged:
        for finding in bar.findings:
            words = f"link {finding.subject}" if finding.kind == "link" else finding.subject
            by_subject.setdefault((finding.kind, words), []).append(finding)
    rows = []
    for (_, subject), findings in by_subject.items():
        verdict = FAIL if any(finding.verdict == FAIL for finding in findings) else UNDECIDED
        rows.append((verdict, subject, sorted(findings, key=lambda finding: finding.verdict != FAIL)))
    return sorted(rows, key=lambda entry: entry[0] != FAIL)


def seen(certificate: Certificate) -> list[tuple[str, str]]:
    """Return (nodes, text) of what was seen of nodes and no bar judges: once for all nodes of which the same was seen, with
    their names where the text has that of the node."""
    hosts: dict[str, list[str]] = {}
    for node in certificate.nodes:
        for text in node.seen:
            hosts.setdefault(_MARK.join(re.split(rf"(?<![\w-]){re.escape(node.host)}(?![\w-])", text)), []).append(node.host)
    return [(fold(names), text.replace(_MARK, fold(names))) for text, names in hosts.items()]


def lines(certificate: Certificate) -> Iterator[str]:
    """Yield the lines."""
    hosts = [node.host for node in certificate.nodes]
    yield one_line(f"{certificate.suite} on {fold(hosts)}: {certificate.verdict}")
    for verdict, subject, findings in subjects(certificate):
        yield one_line(f"  {verdict}  {subject}")
        for finding in findings:
            yield one_line(f"      {finding.verdict}: {finding.text}")
            if finding.decides:
                yield one_line(f"      to decide it: {finding.decides}")
    for verdict in (FAIL, UNDECIDED, PASS):
        if of_verdict := certificate.of_verdict(verdict):
            yield one_line(f"  nodes, {verdict}: {fold(of_verdict)}")
    if of_nodes := seen(certificate):
        yield "  seen, not judged"
        yield from (one_line(f"      {hosts}: {text}") for hosts, text in of_nodes)
    yield "bars"
    for bar in certificate.judged:
        yield one_line(f"  {bar.verdict:<9}  {bar.stage}: {bar.bar}; {bar.got}")
    if certificate.not_tested:
        yield "not tested"
        for name, reason in certificate.not_tested.items():
            yield one_line(f"  {name}: {reason}")
