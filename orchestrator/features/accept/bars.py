"""A group of units against its bars: its peers, and reference figures of the type of device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from orchestrator.features.accept.peer_power import find_least_slowdown, repeats_that_find
from orchestrator.features.accept.peers import LEVEL, Peers, against_peers, noise_of
from orchestrator.features.accept.peers import Unit as PeerUnit
from orchestrator.features.accept.suite import Reference
from orchestrator.features.accept.units import CLUSTER, UNNAMED, Group, Unit
from orchestrator.features.accept.verdicts import FAIL, UNDECIDED, Finding, Judged
from orchestrator.results import interval, median
from orchestrator.results.numbers.intervals import Interval, plain_interval
from orchestrator.results.numbers.rounding import format_number, percent

FIND = 2.0
"""A bar asks that a unit this many times its share slower than its peers would be found; otherwise
it decides nothing.
"""
MORE = "more repeats of this stage, on otherwise idle nodes"
_LESS_NOISE = (
    "less noise: otherwise idle nodes, or longer runs; or a reference figure of this device"
)
_LATER = "the same acceptance at another time, hours apart: a slow period may last longer than this stage"
_FIGURE = "a reference figure of this device, or more nodes"


@dataclass(frozen=True, slots=True)
class _Compared:
    """The units of a group that have a rate, compared with their peers, whose share, among so many
    comparisons, is
    ``margin``."""

    group: Group
    values: Mapping[str, Sequence[float]]
    peers: Peers
    margin: float
    comparisons: int

    def least(self) -> float:
        """Return the least slowdown of a unit that would have been named."""
        return find_least_slowdown(
            self.values,
            self.peers,
            margin=self.margin,
            comparisons=self.comparisons,
            lower_is_better=self.group.lower_is_better,
        )

    def decides(self, slower: float) -> str:
        """Return advice on how to decide whether a unit is slower by a share."""
        if any(unit.passing for unit in self.peers.units.values()):
            return _LATER
        repeats = repeats_that_find(
            self.values,
            slower,
            margin=self.margin,
            comparisons=self.comparisons,
            lower_is_better=self.group.lower_is_better,
        )
        made = self.peers.repeats
        if repeats:
            return f"{repeats} repeats of this stage instead of {made}, on otherwise idle nodes"
        return _LESS_NOISE


def against_others(stage: str, group: Group, margin: float, comparisons: int) -> Judged | str:
    """Judge each unit by its peers. Return why not if there are too few of them, or of their
    repeats, for a comparison.
    """
    silent = _silent(group)
    units = [unit for unit in group.units if unit.name not in silent]
    values = {unit.name: unit.values for unit in units}
    peers = against_peers(
        values, margin=margin, comparisons=comparisons, lower_is_better=group.lower_is_better
    )
    if peers is None and not silent:
        return _why_not(units)
    hosts = tuple(
        dict.fromkeys(
            host for unit in group.units if peers or unit.name in silent for host in unit.hosts
        )
    )
    findings = []
    for unit in group.units:
        if found := silent.get(unit.name):
            verdict, text, decides = found
            findings.append(_finding(group, unit, verdict, text, decides))
    asked = FIND * margin
    if peers is None:
        found_least, got = math.inf, f"the others cannot be compared: {_why_not(units)}"
    else:
        compared = _Compared(group, values, peers, margin, comparisons)
        found_least = compared.least()
        findings += _of_units(compared, [unit for unit in units if unit.hosts], asked)
        findings += _of_all(
            compared,
            hosts,
            found_least,
            asked,
            any(finding.verdict == FAIL for finding in findings),
        )
        slower = [unit.slower for unit in peers.units.values()]
        measured = f"{_times_slower(min(slower))} to {_times_slower(max(slower))} than the median"
        got = f"{power_words(found_least)}; measured: {measured}"
    bar = f"{group.title}: none slower than its peers by more than {percent(margin)}"
    bar += f", where one {percent(asked)} slower is found"
    source = (
        f"comparison of {len(units)} units, {LEVEL:.0%} for all comparisons with peers together"
    )
    return Judged(
        stage,
        "peers",
        bar,
        got,
        source,
        hosts,
        tuple(findings),
        finite(found_least),
        group=group.title,
    )


def finite(least: float | None) -> float | None:
    """Return the least slowdown that would have been found; None if none would."""
    return least if least is not None and math.isfinite(least) else None


def power_words(least: float) -> str:
    """Return in words how slow one would have been found."""
    if not math.isfinite(least):
        return "none would have been found, however slow"
    return f"{slow_words(least)} would have been found in 9 of 10 cases"


def slow_words(least: float, others: str = "") -> str:
    """Return in words a node or device that is slower by a share: from twice as slow on, how many
    times.

    >>> slow_words(0.039), slow_words(2.2, "its peers")
    ('one 3.9% slower', 'one 3.2 times as slow as its peers')
    """
    if least < 1:
        return f"one {percent(least, up=True)} slower" + (f" than {others}" if others else "")
    times = math.ceil(round(10 * (1 + least), 6)) / 10
    return f"one {times:g} times as slow" + (f" as {others}" if others else "")


def _finding(
    group: Group, unit: Unit, verdict: str, text: str, decides: str, is_suspect: bool = False
) -> Finding:
    words = f"{group.title}: {text}"
    return Finding("node", unit.name, unit.hosts, verdict, words, decides, group.runs, is_suspect)


def _of_units(compared: _Compared, units: Sequence[Unit], asked: float) -> Iterator[Finding]:
    """Yield findings about units that do not pass: certainly slower, or measured slower than the
    bar allows, for whatever reason.
    """
    judged = compared.peers.units
    unclear = [judged[unit.name].slower for unit in units if _is_unclear(judged[unit.name])]
    more = compared.decides(min([asked, *unclear])) if unclear else ""
    for unit in units:
        found = judged[unit.name]
        text = f"{found.slower:.1%} slower than its peers (95 %: {_reach(found.interval)})"
        if found.named:
            yield _finding(compared.group, unit, FAIL, text, "")
        elif found.passing:
            words = f"{text}, and others are as slow for a while: it may be slow in all repeats by chance"
            yield _finding(compared.group, unit, UNDECIDED, words, _LATER)
        elif found.suspect:
            yield _finding(compared.group, unit, UNDECIDED, text, more, is_suspect=True)
        elif found.apart:
            yield _finding(
                compared.group,
                unit,
                UNDECIDED,
                f"{text}, which differ as much among themselves",
                _FIGURE,
            )
        elif found.beyond:
            yield _finding(
                compared.group, unit, UNDECIDED, f"{text}, which noise alone may do here", more
            )


def _is_unclear(unit: PeerUnit) -> bool:
    return not unit.named and (unit.suspect or (unit.beyond and not (unit.apart or unit.passing)))


def _why_not(units: Sequence[Unit]) -> str:
    """Return why units cannot be compared with each other."""
    if any(unit.kind == CLUSTER for unit in units):
        return "it is a single number for all nodes together"
    if any(value <= 0 for unit in units for value in unit.values):
        return "values of 0 or below have no ratio"
    repeats = {len(unit.values) for unit in units}
    if len(repeats) > 1:
        return "not every node or device has a value in every repeat"
    return f"expected three or more nodes or devices and two or more repeats, got {len(units)} and {max(repeats, default=0)}"


def _silent(group: Group) -> dict[str, tuple[str, str, str] | None]:
    """Return verdict, text and what decides of the units that have a rate of 0 or below, unless all
    have. Where half do, none is known to be right."""
    without = {}
    for unit in group.units:
        without[unit.name] = sum(value <= 0 for value in unit.values)
    if group.lower_is_better or all(without.values()):
        return {}
    are_few = 2 * sum(map(bool, without.values())) < len(without)
    silent: dict[str, tuple[str, str, str] | None] = {}
    for unit in group.units:
        if count := without[unit.name]:
            text = f"0 or below in {count} of {len(unit.values)} repeats"
            if are_few:
                text += ", where its peers have a number"
                silent[unit.name] = (
                    (FAIL, text, "") if count == len(unit.values) > 1 else (UNDECIDED, text, MORE)
                )
            else:
                silent[unit.name] = (
                    UNDECIDED,
                    f"{text}, as in at least half of the nodes or devices",
                    _FIGURE,
                )
    return silent


def _of_all(
    compared: _Compared, hosts: tuple[str, ...], least: float, asked: float, has_failed: bool
) -> Iterator[Finding]:
    """Yield why a comparison as a whole decides nothing: its noise, or that the typical unit may be
    a slow one.
    """
    group, peers = compared.group, compared.peers
    if ahead := peers.ahead:
        fastest = min(1 / (1 + peers.units[name].slower) - 1 for name in ahead)
        text = f"{group.title}: {len(ahead)} of {len(peers.units)} are at least {fastest:.1%} faster than the typical one"
        text += f": {', '.join(ahead[:4])}{' …' if len(ahead) > 4 else ''}; the others may be slow"
        yield Finding("cluster", CLUSTER, hosts, UNDECIDED, text, _FIGURE, group.runs)
    if least > asked and not has_failed:
        text = f"{group.title}: one {percent(asked)} slower may be missed: {power_words(least)}, by what the repeats show"
        yield Finding(
            "cluster", CLUSTER, hosts, UNDECIDED, text, compared.decides(asked), group.runs
        )


def confirm_suspects(judged: Sequence[Judged]) -> list[Judged]:
    """Return the judgements, with units failed that are suspect among their peers in two or more
    stages.

    A unit is suspect by chance in one of N units times bars at a level of `SUSPECT`; the same unit
    in two measurements, which are independent of each other, in less than `LEVEL` of acceptances.
    By what equal units differ it may be in both: one that is slow only where its peers differ as
    much stays open.
    """
    stages: dict[str, set[str]] = {}
    for bar in judged:
        for finding in bar.findings if bar.kind == "peers" else ():
            if finding.is_suspect:
                stages.setdefault(finding.subject, set()).add(bar.stage)

    def decide(finding: Finding) -> Finding:
        together = sorted(stages.get(finding.subject, ()))
        if not finding.is_suspect or len(together) < 2:
            return finding
        return replace(
            finding,
            verdict=FAIL,
            text=f"{finding.text}, as in {' and '.join(together)}",
            decides="",
            is_suspect=False,
        )

    return [
        replace(bar, findings=tuple(map(decide, bar.findings))) if bar.kind == "peers" else bar
        for bar in judged
    ]


def against_references(
    stage: str, group: Group, references: Sequence[Reference], comparisons: int
) -> list[Judged]:
    """Judge each unit by the first figure of its type of device that is about the same measurement."""
    by_figure: dict[int, list[Unit]] = {}
    for unit in group.units:
        if known := reference_of(unit, group, references):
            by_figure.setdefault(references.index(known), []).append(unit)
    return [
        _by_reference(stage, group, units, references[at], comparisons)
        for at, units in sorted(by_figure.items())
    ]


def reference_of(unit: Unit, group: Group, references: Sequence[Reference]) -> Reference | None:
    """Return the figure that a unit of a group is held to, None if none is known."""
    for reference in references:
        if (
            unit.device
            and fnmatchcase(unit.device, reference.device)
            and _is_about(reference, group)
        ):
            return reference
    return None


def without_figure(stage: str, group: Group, references: Sequence[Reference]) -> Judged | None:
    """Return the judgement of a bar that only a figure could decide, of the units that have none;
    None if all have.
    """
    units = [unit for unit in group.units if reference_of(unit, group, references) is None]
    if not units:
        return None
    findings = []
    for unit in units:
        device = unit.device or UNNAMED
        text = f"{group.title}: {format_number(median(unit.values))} {group.unit}, and no reference figure for {device}"
        figure = f"a figure for {device} in suites/references, or " if unit.device else ""
        decides = f"{figure}peers: or earlier: in the bar"
        findings.append(
            Finding(unit.kind, unit.name, unit.hosts, UNDECIDED, text, decides, group.runs)
        )
    devices = ", ".join(dict.fromkeys(unit.device or UNNAMED for unit in units))
    hosts = tuple(dict.fromkeys(host for unit in units for host in unit.hosts))
    bar = f"{group.title}: as much as the reference figure of its device"
    return Judged(
        stage, "reference", bar, f"no reference for {devices}", "the suite", hosts, tuple(findings)
    )


def _is_about(reference: Reference, group: Group) -> bool:
    same = reference.framework == group.framework and reference.metric == group.metric
    return (
        same
        and reference.model in ("", group.model)
        and all(group.at.get(name) == v for name, v in reference.at.items())
    )


def _by_reference(
    stage: str, group: Group, units: Sequence[Unit], reference: Reference, comparisons: int
) -> Judged:
    sign = "at most" if group.lower_is_better else "at least"
    limit = reference.value * (
        1 + reference.tolerance if group.lower_is_better else 1 - reference.tolerance
    )
    findings = []
    by_name = {unit.name: unit.values for unit in group.units}
    pooled = noise_of(by_name, lower_is_better=group.lower_is_better)
    rare = LEVEL / max(comparisons, 1)
    for unit in units:
        value = median(unit.values)
        if value > limit if group.lower_is_better else value < limit:
            text = f"{group.title}: {format_number(value)} {group.unit}, expected {sign} {format_number(limit)}"
            is_certain = _misses(unit.values, limit, group.lower_is_better, 1 - 2 * rare)
            if pooled and is_certain:
                beyond = [
                    math.log(limit / one) * (-1 if group.lower_is_better else 1)
                    for one in unit.values
                ]
                is_certain = pooled.chance(beyond, [(1.0, 0.0)]) <= rare
            verdict, decides = (FAIL, "") if is_certain else (UNDECIDED, MORE)
            findings.append(
                Finding(unit.kind, unit.name, unit.hosts, verdict, text, decides, group.runs)
            )
    values = [median(unit.values) for unit in units]
    hosts = tuple(dict.fromkeys(host for unit in units for host in unit.hosts))
    figure = (
        f"{format_number(reference.value)} {group.unit}, {percent(reference.tolerance)} tolerated"
    )
    bar = f"{group.title}: {sign} {format_number(limit)} {group.unit} on {reference.device} ({figure})"
    got = f"{format_number(min(values))} to {format_number(max(values))} {group.unit}"
    return Judged(stage, "reference", bar, got, reference.source, hosts, tuple(findings))


def _misses(values: Sequence[float], limit: float, lower_is_better: bool, level: float) -> bool:
    """Return True if the interval of the typical value lies beyond the limit."""
    of_sign = interval if min(values) > 0 else plain_interval
    wide = of_sign(values, level) if len(values) > 1 else None
    return wide is not None and (wide.low > limit if lower_is_better else wide.high < limit)


def _times_slower(slower: float) -> str:
    if slower >= 0:
        return f"{slower:.1%} slower"
    return f"{1 / (1 + slower) - 1:.1%} faster"


def _reach(reach: Interval) -> str:
    if math.isfinite(reach.high):
        return f"{reach.low:.1%} to {reach.high:.1%}"
    return f"{reach.low:.1%} and more"
