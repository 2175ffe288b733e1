"""A group of units against its bars: its peers, and reference figures of the type of device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from orchestrator.analysis.accept.units import CLUSTER, Group, Unit
from orchestrator.analysis.accept.verdicts import FAIL, UNDECIDED, Finding, Judged
from orchestrator.plan.suite import Reference
from orchestrator.results import interval, median
from orchestrator.results.numbers.intervals import Interval, plain_interval
from orchestrator.results.numbers.peers import LEVEL, Peers, against_peers, least_named
from orchestrator.results.numbers.peers import Unit as PeerUnit
from orchestrator.results.numbers.rounding import percent, written

__all__ = ["MORE", "against_others", "against_references", "confirmed"]

_WORTH = 0.30
"""A comparison with peers that could not have named a node this much slower decides nothing, on GPUs."""
_WORTH_ON_CPU = 2.0
MORE = "more repeats of this stage, on otherwise idle nodes"
_FIGURE = "a reference figure of this device, or more nodes"


def against_others(stage: str, group: Group, margin: float, comparisons: int, on_cpu: bool) -> Judged | str:
    """Judge each unit by its peers. Return why not if there are too few of them, or of their repeats, for a comparison."""
    silent = _silent(group)
    units = [unit for unit in group.units if unit.name not in silent]
    values, lower = {unit.name: unit.values for unit in units}, group.lower_is_better
    peers = against_peers(values, margin=margin, comparisons=comparisons, lower_is_better=lower)
    if peers is None and not silent:
        return _why_not(units)
    by_name = silent | ({name: _by_peers(unit) for name, unit in peers.units.items()} if peers else {})
    judged = [unit for unit in group.units if unit.name in by_name]
    hosts = tuple(dict.fromkeys(host for unit in judged for host in unit.hosts))
    findings = []
    for unit in judged:
        if found := by_name[unit.name]:
            verdict, text, decides = found
            findings.append(Finding("node", unit.name, unit.hosts, verdict, f"{group.title}: {text}", decides, group.runs))
    if peers is None:
        got = f"the others cannot be compared: {_why_not(units)}"
    else:
        seen = least_named(values, peers, margin=margin, comparisons=comparisons, lower_is_better=lower)
        findings += _of_all(group, peers, hosts, seen, on_cpu, any(finding.verdict == FAIL for finding in findings))
        worst = max(0.0, *(unit.slower for unit in peers.units.values()))
        least = f"a unit {percent(seen, up=True)} slower" if math.isfinite(seen) else "no unit, however slow,"
        got = f"at most {worst:.1%} slower; {least} would have been named"
    bar = f"{group.title}: none slower than its peers by more than {percent(margin)}, with statistical significance"
    source = f"robust comparison of {len(units)} units, {LEVEL:.0%} for all comparisons with peers together"
    return Judged(stage, "peers", bar, got, source, hosts, tuple(findings))


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
    """Return verdict, text and what decides of the units that have a rate of 0 or below, unless all have. Where half do, none
    is known to be right."""
    without = {unit.name: sum(value <= 0 for value in unit.values) for unit in group.units}
    if group.lower_is_better or all(without.values()):
        return {}
    are_few = 2 * sum(map(bool, without.values())) < len(without)
    silent: dict[str, tuple[str, str, str] | None] = {}
    for unit in group.units:
        if count := without[unit.name]:
            text = f"0 or below in {count} of {len(unit.values)} repeats"
            if are_few:
                text += ", where its peers have a number"
                silent[unit.name] = (FAIL, text, "") if count == len(unit.values) > 1 else (UNDECIDED, text, MORE)
            else:
                silent[unit.name] = UNDECIDED, f"{text}, as in at least half of the nodes or devices", _FIGURE
    return silent


def _by_peers(judged: PeerUnit) -> tuple[str, str, str] | None:
    """Return verdict, text and what decides of a unit; None if it passes."""
    text = f"{judged.slower:.1%} slower than its peers (95 %: {_reach(judged.interval)})"
    if judged.suspect:
        return (FAIL, text, "") if judged.named else (UNDECIDED, text, MORE)
    if judged.apart:
        return UNDECIDED, f"{text}, which differ as much among themselves", _FIGURE
    return None


def _of_all(
    group: Group, peers: Peers, hosts: tuple[str, ...], seen: float, on_cpu: bool, has_failed: bool
) -> Iterator[Finding]:
    """Yield why a comparison as a whole decides nothing: its noise, or that the typical unit may be a slow one."""
    if ahead := peers.ahead:
        least = min(1 / (1 + peers.units[name].slower) - 1 for name in ahead)
        text = f"{group.title}: {len(ahead)} of {len(peers.units)} are at least {least:.1%} faster than the typical one"
        text += f": {', '.join(ahead[:4])}{' …' if len(ahead) > 4 else ''}; the others may be slow"
        yield Finding("cluster", CLUSTER, hosts, UNDECIDED, text, _FIGURE, group.runs)
    if seen > (_WORTH_ON_CPU if on_cpu else _WORTH) and not has_failed:
        below = f"everything below {percent(seen, up=True)}" if math.isfinite(seen) else "everything"
        text = f"{group.title}: noise of {percent(peers.noise)}, and {percent(peers.spread)} between equal units, hide {below}"
        yield Finding("cluster", CLUSTER, hosts, UNDECIDED, text, MORE, group.runs)


def confirmed(judged: Sequence[Judged]) -> list[Judged]:
    """Return the judgements with those units failed that are suspect among their peers in two stages or more.

    A unit is suspect by chance in one of N units times bars at a level of `SUSPECT`; the same unit in two measurements, which
    are independent of each other, in less than `LEVEL` of acceptances. By what equal units differ it may be in both: one that
    is slow only where its peers differ as much stays open."""
    stages: dict[str, set[str]] = {}
    for bar in judged:
        for finding in bar.findings if bar.kind == "peers" else ():
            if finding.kind == "node" and finding.decides != _FIGURE:
                stages.setdefault(finding.subject, set()).add(bar.stage)

    def decided(finding: Finding) -> Finding:
        together = sorted(stages.get(finding.subject, ())) if finding.kind == "node" else []
        if finding.verdict != UNDECIDED or finding.decides == _FIGURE or len(together) < 2:
            return finding
        return replace(finding, verdict=FAIL, text=f"{finding.text}, as in {' and '.join(together)}", decides="")

    return [replace(bar, findings=tuple(map(decided, bar.findings))) if bar.kind == "peers" else bar for bar in judged]


def against_references(stage: str, group: Group, references: Sequence[Reference], comparisons: int) -> list[Judged]:
    """Judge each unit by the first figure of its type of device that is about the same measurement."""
    judged: list[Judged] = []
    rest = list(group.units)
    for reference in references:
        units = [unit for unit in rest if unit.device and fnmatchcase(unit.device, reference.device)]
        if units and _is_about(reference, group):
            judged.append(_by_reference(stage, group, units, reference, comparisons))
            rest = [unit for unit in rest if unit not in units]
    return judged


def _is_about(reference: Reference, group: Group) -> bool:
    same = reference.framework == group.framework and reference.metric == group.metric
    return same and reference.model in ("", group.model) and all(group.at.get(name) == v for name, v in reference.at.items())


def _by_reference(stage: str, group: Group, units: Sequence[Unit], reference: Reference, comparisons: int) -> Judged:
    sign = "at most" if group.lower_is_better else "at least"
    limit = reference.value * (1 + reference.tolerance if group.lower_is_better else 1 - reference.tolerance)
    findings = []
    for unit in units:
        value = median(unit.values)
        if value > limit if group.lower_is_better else value < limit:
            text = f"{group.title}: {written(value)} {group.unit}, expected {sign} {written(limit)}"
            is_certain = _misses(unit.values, limit, group.lower_is_better, 1 - 2 * LEVEL / max(comparisons, 1))
            verdict, decides = (FAIL, "") if is_certain else (UNDECIDED, MORE)
            findings.append(Finding(unit.kind, unit.name, unit.hosts, verdict, text, decides, group.runs))
    values = [median(unit.values) for unit in units]
    hosts = tuple(dict.fromkeys(host for unit in units for host in unit.hosts))
    figure = f"{written(reference.value)} {group.unit}, {percent(reference.tolerance)} tolerated"
    bar = f"{group.title}: {sign} {written(limit)} {group.unit} on {reference.device} ({figure})"
    got = f"{written(min(values))} to {written(max(values))} {group.unit}"
    return Judged(stage, "reference", bar, got, reference.source, hosts, tuple(findings))


def _misses(values: Sequence[float], limit: float, lower_is_better: bool, level: float) -> bool:
    """Return True if the interval of the typical value lies beyond the limit."""
    of_sign = interval if min(values) > 0 else plain_interval
    wide = of_sign(values, level) if len(values) > 1 else None
    return wide is not None and (wide.low > limit if lower_is_better else wide.high < limit)


def _reach(reach: Interval) -> str:
    return f"{reach.low:.1%} to {reach.high:.1%}" if math.isfinite(reach.high) else f"{reach.low:.1%} and more"
