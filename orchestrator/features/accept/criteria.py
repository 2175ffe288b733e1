"""Criteria that others publish for clusters, answered by what an acceptance has seen.

A criterion is a row of a file in ``suites/criteria/``: which checks, facts or stages answer it, or
why nothing can. What was not measured is never met:

>>> row = Criterion("gdrcopy", "GDRCopy", checks=("gdrcopy",))
>>> answer(row, Evidence(checks=(), told={"node1": {}})).words
'not testable: gdrcopy has nothing to inspect here'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.documents import Invalid, strict_reader
from orchestrator.errors import ConfigError
from orchestrator.features.accept.figures import UnitFigure
from orchestrator.features.accept.verdicts import PASS, UNDECIDED, Judged, worst
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold
from orchestrator.results.numbers.rounding import format_number
from orchestrator.yamlfile import Document

MET, NOT_MET, NOT_TESTABLE = "met", "not met", "not testable"
MARKS = {MET: "✓", NOT_MET: "✗", NOT_TESTABLE: "–"}
HOSTS, SLURM, PODS, GPUS = "hosts", "slurm", "pods", "gpus"
_PLACES = {HOSTS: "bare hosts", SLURM: "jobs of Slurm", PODS: "pods"}
_DECIDING = ("peers", "reference", "earlier", "expected", "links")
"""The kinds of bars by which a stage is more than measured."""
_MOST = 160
"""Characters of a value that is shown."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """A public criterion: its id, and what answers it, as the comment of its file says."""

    id: str
    title: str
    on: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    about: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""
    partly: str = ""
    otherwise: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria of one publisher, with the source of their facts."""

    title: str
    source: str
    criteria: tuple[Criterion, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an acceptance has seen: its checks, those of its audit too, what nodes told by name, the
    bars and figures of its stages, and why stages have no result. ``place`` is where its nodes are
    from: HOSTS, SLURM or PODS.
    """

    checks: Sequence[Mapping[str, str]]
    told: Mapping[str, Mapping[str, Any]]
    judged: Sequence[Judged] = ()
    figures: Sequence[UnitFigure] = ()
    without_result: Mapping[str, str] = field(default_factory=dict)
    place: str = HOSTS
    has_gpus: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a criterion: MET, NOT_MET or NOT_TESTABLE, why not, and what was seen where."""

    id: str
    title: str
    answer: str
    why: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The sign of the answer in tables."""
        return MARKS[self.answer]

    @property
    def words(self) -> str:
        """The answer with its reason."""
        return f"{self.answer}: {self.why}" if self.why else self.answer


def criteria_of(document: Document) -> Criteria:
    """Return the criteria of a file. Raises ConfigError."""
    try:
        found = strict_reader(Criteria)(document.value)
        read = strict_reader(Criterion)
        return replace(found, criteria=tuple(map(read, document.value["criteria"])))
    except Invalid as error:
        raise ConfigError(str(error), where=document.source) from error


def answer_all(criteria: Criteria, seen: Evidence) -> tuple[Answer, ...]:
    """Return an answer to each criterion, in their order; of rows with one id, that of the place."""
    rows: dict[str, Criterion] = {}
    for row in criteria.criteria:
        if row.id not in rows or _elsewhere(row, seen) == "":
            rows[row.id] = replace(row, because=criteria.reasons.get(row.because, row.because))
    return tuple(answer(row, seen) for row in rows.values())


def answer(row: Criterion, seen: Evidence) -> Answer:
    """Return the answer to one criterion."""
    why = _elsewhere(row, seen) or row.because
    evidence: tuple[str, ...] = ()
    state = NOT_TESTABLE
    if not why:
        state, why, evidence = _combine(list(_findings(row, seen)))
    if state == MET and row.partly:
        state, why = NOT_TESTABLE, row.partly
    if state == NOT_MET and row.otherwise:
        state, why = NOT_TESTABLE, row.otherwise
    return Answer(row.id, row.title, state, why, evidence)


def _elsewhere(row: Criterion, seen: Evidence) -> str:
    """Return why a criterion is not about these nodes; empty if it is."""
    places = [place for place in row.on if place in _PLACES]
    if places and seen.place not in places:
        wanted = " and ".join(_PLACES[place] for place in places)
        return f"it is about {wanted}, and these are {_PLACES[seen.place]}"
    if GPUS in row.on and not seen.has_gpus:
        return "these nodes have no GPUs"
    return ""


_Finding = tuple[str, str, tuple[str, ...]]
"""An answer, why not, and evidence."""


def _findings(row: Criterion, seen: Evidence) -> Iterator[_Finding]:
    yield from (_by_check(name, row.about, seen) for name in row.checks)
    yield from (_by_fact(path, pattern, seen) for path, pattern in row.facts.items())
    if row.stage:
        yield _by_stage(row.stage, seen)


def _combine(findings: Sequence[_Finding]) -> _Finding:
    """Return one finding for several that must all be met."""
    evidence = tuple(text for _, _, texts in findings for text in texts)
    for state in (NOT_MET, NOT_TESTABLE):
        reasons = [why for found, why, _ in findings if found == state]
        if reasons:
            return state, "; ".join(dict.fromkeys(filter(None, reasons))), evidence
    return MET, "", evidence


def _by_check(name: str, about: str, seen: Evidence) -> _Finding:
    rows = [
        check for check in seen.checks if check["name"] == name and re.search(about, check["found"])
    ]
    if not rows:
        return NOT_TESTABLE, f"{name} has nothing to inspect here", ()
    by_text = group_pairs((f"{name}: {check['found']}", check["host"]) for check in rows)
    evidence = tuple(f"{fold(hosts)}: {text}" for text, hosts in by_text.items())
    bad = [check for check in rows if check["verdict"] in ("warning", "failed")]
    if bad:
        return NOT_MET, "; ".join(dict.fromkeys(_cure(check) for check in bad)), evidence
    unread = [check["found"] for check in rows if check["verdict"] == "unknown"]
    if unread:
        return NOT_TESTABLE, unread[0], evidence
    rest = set(seen.told) - {check["host"] for check in rows}
    if rest:
        return NOT_TESTABLE, f"{name} has nothing to inspect on {fold(sorted(rest))}", evidence
    return MET, "", evidence


def _cure(check: Mapping[str, str]) -> str:
    return f"expected {check['expected']}; {check['hint']}"


def _by_fact(path: str, pattern: str, seen: Evidence) -> _Finding:
    if not seen.told:
        return NOT_TESTABLE, "no node was audited", ()
    values = {host: _value(told, path) for host, told in seen.told.items()}
    silent = [host for host, value in values.items() if value is None]
    if silent:
        return NOT_TESTABLE, f"{fold(silent)} does not tell {path}", ()
    by_text = group_pairs((_shown(path, str(value)), host) for host, value in values.items())
    evidence = tuple(f"{fold(hosts)}: {text}" for text, hosts in by_text.items())
    lacking = [host for host, value in values.items() if not re.search(pattern, str(value))]
    if lacking:
        return NOT_MET, f"{path} does not match {pattern} on {fold(lacking)}", evidence
    return MET, "", evidence


def _shown(path: str, value: str) -> str:
    return f"{path} = {value[:_MOST] or 'nothing'}{'…' if len(value) > _MOST else ''}"


def _value(told: Mapping[str, Any], path: str) -> str | None:
    """Return what a node told, as text; None if it told nothing of it.

    >>> _value({"tenant": {"tools": ["perf", "sudo"], "slurm": {"A": "1"}}}, "tenant.tools")
    'perf, sudo'
    >>> _value({"tenant": {"slurm": {"A": "1"}}}, "tenant.slurm")
    'A=1'
    """
    value: Any = told
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={part}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _by_stage(name: str, seen: Evidence) -> _Finding:
    if name in seen.without_result:
        return NOT_TESTABLE, f"the stage {name} has no result: {seen.without_result[name]}", ()
    bars = [bar for bar in seen.judged if bar.stage == name]
    deciding = [bar for bar in bars if bar.kind in _DECIDING]
    evidence = (*_measured(name, seen), *(f"{name}: {bar.bar}; {bar.got}" for bar in deciding))
    verdict = worst(bar.verdict for bar in bars)
    if verdict not in (PASS, UNDECIDED):
        texts = (finding.text for bar in bars for finding in bar.findings)
        return NOT_MET, "; ".join(dict.fromkeys(texts)), evidence
    if verdict == UNDECIDED or not deciding:
        words = "a verdict of it is open" if deciding else "it was measured, and no bar decides"
        return NOT_TESTABLE, f"stage {name}: {words}", evidence
    return MET, "", evidence


def _measured(stage: str, seen: Evidence) -> Iterator[str]:
    """Yield our measurements of a stage: for each kind of number its range over the units."""
    figures = group_pairs(
        ((figure.what, figure.unit), figure) for figure in seen.figures if figure.stage == stage
    )
    for (what, unit), of_kind in figures.items():
        values = [figure.value for figure in of_kind]
        hosts = fold(dict.fromkeys(host for figure in of_kind for host in figure.hosts))
        least, most = format_number(min(values)), format_number(max(values))
        reach = least if least == most else f"{least} to {most}"
        yield f"{hosts}: {stage}: {what} {reach} {unit}"


def place_of(told: Mapping[str, Mapping[str, Any]]) -> str:
    """Return where nodes are from, as their audit shows: PODS, SLURM or HOSTS."""
    if any("kubernetes" in of_host for of_host in told.values()):
        return PODS
    if any(_value(of_host, "tenant.slurm") for of_host in told.values()):
        return SLURM
    return HOSTS
