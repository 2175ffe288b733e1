"""A certificate as lines of text: the verdict, what would have been found, what did not pass, the
numbers, the bars, and what was not tested."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from orchestrator.errors import Regression, Undecided
from orchestrator.features.accept.bars import slow_words
from orchestrator.features.accept.certificate import Certificate
from orchestrator.features.accept.criteria import MARKS, NOT_TESTABLE
from orchestrator.features.accept.figures import UnitFigure
from orchestrator.features.accept.verdicts import FAIL, PASS, UNDECIDED, Finding
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold
from orchestrator.plural import plural
from orchestrator.report.text import one_line
from orchestrator.results.numbers.rounding import format_number

_MOST_SHOWN, _SHOWN = 16, 8
"""Up to so many figures of a group are all printed; of more, so many of the slowest."""
_AGAINST = {"peers": "its peers", "earlier": "when last accepted"}
_MARK = "\0"
"""Stands for the name of a node; what nodes say is without it, see `one_line`."""


def status(certificate: Certificate) -> int:
    """Return the exit status of a verdict."""
    return {PASS: 0, FAIL: Regression.exit_code, UNDECIDED: Undecided.exit_code}[
        certificate.verdict
    ]


def subjects(certificate: Certificate) -> list[tuple[str, str, list[Finding]]]:
    """Return (verdict, subject, findings) of each node, link and the cluster that did not pass,
    failures first.
    """
    by_subject: dict[tuple[str, str], list[Finding]] = {}
    for bar in certificate.judged:
        for finding in bar.findings:
            words = f"link {finding.subject}" if finding.kind == "link" else finding.subject
            by_subject.setdefault((finding.kind, words), []).append(finding)
    rows = []
    for (_, subject), findings in by_subject.items():
        verdict = FAIL if any(finding.verdict == FAIL for finding in findings) else UNDECIDED
        rows.append(
            (verdict, subject, sorted(findings, key=lambda finding: finding.verdict != FAIL))
        )
    return sorted(rows, key=lambda entry: entry[0] != FAIL)


def list_observations(certificate: Certificate) -> list[tuple[str, str]]:
    """Return (nodes, text) of observations about nodes that no bar judges.

    Equal observations are returned once for all their nodes; where the text names a node, it then
    names them all.
    """
    hosts: dict[str, list[str]] = {}
    for node in certificate.nodes:
        for text in node.seen:
            hosts.setdefault(
                _MARK.join(re.split(rf"(?<![\w-]){re.escape(node.host)}(?![\w-])", text)), []
            ).append(node.host)
    return [(fold(names), text.replace(_MARK, fold(names))) for text, names in hosts.items()]


def describe_power(certificate: Certificate) -> list[str]:
    """Return how slow a node would have had to be to be found, for each comparison that was made."""
    words = []
    for bar in certificate.judged:
        if bar.kind in _AGAINST and bar.group:
            found = "none, however slow"
            if bar.least is not None:
                found = f"{slow_words(bar.least, _AGAINST[bar.kind])}, in 9 of 10 cases"
            words.append(f"{bar.stage}: {bar.group}: {found}")
        elif bar.power:
            words.append(f"{bar.stage}: {bar.power}")
    for device, what in certificate.unreferenced.items():
        names = ", ".join(what)
        words.append(
            f"no reference for {device}: that all are equally slow would not be found ({names})"
        )
    return words


def figures_by_group(certificate: Certificate) -> list[tuple[str, list[UnitFigure]]]:
    """Return the figures of each group with its title; the unit and number of repeats are in it."""
    groups = group_pairs(
        ((figure.stage, figure.what, figure.unit, figure.repeats), figure)
        for figure in certificate.figures
    )
    titled = []
    for (stage, what, unit, repeats), figures in groups.items():
        titled.append(
            (f"{stage}: {what}, {unit}, median of {plural(repeats, 'repeat')} (95 %)", figures)
        )
    return titled


def figure_cells(figure: UnitFigure) -> tuple[str, str, str, str]:
    """Return the cells of a figure: what it is of, its value with the interval, and its shares of
    the median and of the reference."""
    value = format_number(figure.value)
    if figure.low is not None and figure.high is not None:
        value += f" ({format_number(figure.low)} to {format_number(figure.high)})"
    of_median = "–" if figure.of_median is None else f"{figure.of_median:.1%} of the median"
    reference = f"no reference for {figure.device or 'it'}"
    if figure.reference is not None and figure.of_reference is not None:
        reference = f"{figure.of_reference:.1%} of the reference, {format_number(figure.reference)}"
        if figure.reference_seen:
            low, high = map(format_number, figure.reference_seen)
            reference += f" ({low} to {high} on {figure.reference_devices} devices)"
    return figure.subject, value, of_median, reference


def _figure_lines(figures: list[UnitFigure]) -> Iterator[str]:
    """Yield a line for each figure, of many those that are furthest below the others."""
    shown = figures
    if len(figures) > _MOST_SHOWN:
        shown = sorted(figures, key=lambda figure: -abs(1 - (figure.of_median or 1.0)))[:_SHOWN]
    for figure in shown:
        yield "      " + "  ".join(figure_cells(figure))
    rest = [figure.value for figure in figures if figure not in shown]
    if rest:
        yield f"      the other {len(rest)}: {format_number(min(rest))} to {format_number(max(rest))}; certificate.html has all"


def _criteria_lines(certificate: Certificate) -> Iterator[str]:
    """Yield the answers to public criteria; how many were not testable in place of these."""
    if not certificate.criteria:
        return
    yield one_line(f"criteria, not judged: {certificate.criteria_source}")
    for answer in certificate.criteria:
        if answer.answer != NOT_TESTABLE:
            yield one_line(f"  {answer.mark} {answer.id}: {answer.title}")
            yield from (one_line(f"      {text}") for text in answer.evidence)
            if answer.why:
                yield one_line(f"      {answer.why}")
    counts = Counter(answer.answer for answer in certificate.criteria)
    words = ", ".join(f"{counts[kind]} {kind}" for kind in MARKS)
    yield f"  of {len(certificate.criteria)} criteria {words}; certificate.html has all, with the reasons"


def lines(certificate: Certificate) -> Iterator[str]:
    """Yield the lines."""
    hosts = [node.host for node in certificate.nodes]
    yield one_line(f"{certificate.suite} on {fold(hosts)}: {certificate.verdict}")
    if of_power := describe_power(certificate):
        yield "  would have been found"
        yield from (one_line(f"      {words}") for words in of_power)
    for verdict, subject, findings in subjects(certificate):
        yield one_line(f"  {verdict}  {subject}")
        for finding in findings:
            yield one_line(f"      {finding.verdict}: {finding.text}")
            if finding.decides:
                yield one_line(f"      to decide it: {finding.decides}")
    for verdict in (FAIL, UNDECIDED, PASS):
        if of_verdict := certificate.of_verdict(verdict):
            yield one_line(f"  nodes, {verdict}: {fold(of_verdict)}")
    if of_nodes := list_observations(certificate):
        yield "  seen, not judged"
        yield from (one_line(f"      {hosts}: {text}") for hosts, text in of_nodes)
    if certificate.figures:
        yield "numbers"
    for title, figures in figures_by_group(certificate):
        yield one_line(f"  {title}")
        yield from map(one_line, _figure_lines(figures))
    if certificate.audit:
        yield "audit, not judged"
        for seen in certificate.audit:
            yield one_line(f"  {seen.name} of {fold(seen.hosts)}: {seen.found}")
    yield from _criteria_lines(certificate)
    yield "bars"
    for bar in certificate.judged:
        yield one_line(f"  {bar.verdict:<9}  {bar.stage}: {bar.bar}; {bar.got}")
    if certificate.not_tested:
        yield "not tested"
        for name, reason in certificate.not_tested.items():
            yield one_line(f"  {name}: {reason}")
