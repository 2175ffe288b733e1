"""A group of units against its bars: its peers, reference figures of the type of device, and the last accepted run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.analysis.accept.units import CLUSTER, Group, Unit
from orchestrator.analysis.accept.verdicts import FAIL, UNDECIDED, Finding, Judged
from orchestrator.plan.suite import Reference
from orchestrator.results import interval, median
from orchestrator.results.numbers.intervals import change_interval
from orchestrator.results.numbers.peers import LEVEL, SUSPECT, against_peers
from orchestrator.results.numbers.rounding import written

__all__ = ["against_earlier", "against_others", "against_references", "confirmed", "measured"]

_WORTH = 0.30
"""A comparison with peers that could not have named a node this much slower decides nothing, on GPUs."""
_WORTH_ON_CPU = 2.0
MORE = "more repeats of this stage, on otherwise idle nodes"


def against_others(stage: str, group: Group, margin: float, comparisons: int, on_cpu: bool) -> Judged | None:
    """Judge each unit by its peers. None if there are too few of them, or of their repeats, for a comparison."""
    hosts = tuple(dict.fromkeys(host for unit in group.units for host in unit.hosts))
    bar = f"{group.title}: none certainly more than {margin:.0%} slower than its peers"
    source = f"robust comparison of {len(group.units)} units, {LEVEL:.0%} for all comparisons together"
    values = {unit.name: unit.values for unit in group.units}
    peers = against_peers(values, margin=margin, comparisons=comparisons, lower_is_better=group.lower_is_better)
    if peers is None:
        return None
    findings = []
    for unit in group.units:
        judged = peers.units[unit.name]
        if judged.suspect:
            text = f"{group.title}: {judged.slower:.1%} slower than its peers (95 %: {_reach(judged.interval)})"
            verdict, decides = (FAIL, "") if judged.named else (UNDECIDED, MORE)
            findings.append(Finding("node", unit.name, unit.hosts, verdict, text, decides, group.runs))
    worst = max(unit.slower for unit in peers.units.values())
    got = f"at most {max(0.0, worst):.1%} slower; a unit {peers.seen:.0%} slower would have been named"
    if peers.seen > (_WORTH_ON_CPU if on_cpu else _WORTH) and not any(finding.verdict == FAIL for finding in findings):
        text = f"{group.title}: noise of {peers.noise:.0%} hides everything below {peers.seen:.0%}"
        findings.append(Finding("cluster", CLUSTER, hosts, UNDECIDED, text, MORE, group.runs))
    return Judged(stage, "peers", bar, got, source, hosts, tuple(findings))


def confirmed(judged: Sequence[Judged]) -> list[Judged]:
    """Return the judgements with those units failed that are suspect among their peers in two stages or more.

    A unit is suspect by chance in one of N units times bars at a level of `SUSPECT`; the same unit in two measurements, which
    are independent of each other, in less than `LEVEL` of acceptances."""
    stages: dict[str, set[str]] = {}
    for bar in judged:
        for finding in bar.findings if bar.kind == "peers" else ():
            if finding.kind == "node":
                stages.setdefault(finding.subject, set()).add(bar.stage)

    def decided(finding: Finding) -> Finding:
        together = sorted(stages.get(finding.subject, ())) if finding.kind == "node" else []
        if finding.verdict != UNDECIDED or len(together) < 2:
            return finding
        return replace(finding, verdict=FAIL, text=f"{finding.text}, as in {' and '.join(together)}", decides="")

    return [replace(bar, findings=tuple(map(decided, bar.findings))) if bar.kind == "peers" else bar for bar in judged]


def against_references(stage: str, group: Group, references: Sequence[Reference], comparisons: int) -> list[Judged]:
    """Judge each unit by the first figure of its type of device that is about the same measurement."""
    for reference in references:
        units = [unit for unit in group.units if unit.device and fnmatchcase(unit.device, reference.device)]
        if units and _is_about(reference, group):
            return [_by_reference(stage, group, units, reference, comparisons)]
    return []


def _is_about(reference: Reference, group: Group) -> bool:
    same = reference.framework == group.framework and reference.metric == group.metric
    return same and reference.model in ("", group.model) and all(group.at.get(name) == v for name, v in reference.at.items())


def _by_reference(stage: str, group: Group, units: Sequence[Unit], reference: Reference, comparisons: int) -> Judged:
    sign = "at most" if group.lower_is_better else "at least"
    limit = reference.value * (1 + reference.tolerance if group.lower_is_better else 1 - reference.tolerance)
    findings = []
    for unit in units:
        value = median(unit.values)
        missed = value > limit if group.lower_is_better else value < limit
        wide = interval(unit.values, 1 - 2 * LEVEL / max(comparisons, 1)) if len(unit.values) > 1 else None
        certainly = wide is not None and (wide.low > limit if group.lower_is_better else wide.high < limit)
        if missed:
            text = f"{group.title}: {written(value)} {group.unit}, expected {sign} {written(limit)}"
            verdict, decides = (FAIL, "") if certainly else (UNDECIDED, MORE)
            kind, subject = ("cluster", CLUSTER) if unit.name == CLUSTER else ("node", unit.name)
            findings.append(Finding(kind, subject, unit.hosts, verdict, text, decides, group.runs))
    values = [median(unit.values) for unit in units]
    hosts = tuple(dict.fromkeys(host for unit in units for host in unit.hosts))
    figure = f"{written(reference.value)} {group.unit}, {reference.tolerance:.0%} tolerated"
    bar = f"{group.title}: {sign} {written(limit)} {group.unit} on {reference.device} ({figure})"
    got = f"{written(min(values))} to {written(max(values))} {group.unit}"
    return Judged(stage, "reference", bar, got, reference.source, hosts, tuple(findings))


def against_earlier(stage: str, group: Group, share: float, earlier: Mapping[str, Any], comparisons: int) -> Judged | None:
    """Judge each unit by itself in the last accepted run, if that measured the same."""
    before = earlier["measured"].get(_name(stage, group)) if earlier else None
    if before is None or before["spec"] != _spec(group):
        return None
    findings, ratios = [], []
    for unit in group.units:
        old = before["units"].get(unit.name)
        if not old or min(len(old), len(unit.values)) < 2:
            continue
        ratio = median(unit.values) / median(old)
        slower = ratio if group.lower_is_better else 1 / ratio
        ratios.append(slower)
        if slower <= 1 + share:
            continue
        certain, likely = (_is_slower(old, unit, group, level / max(comparisons, 1)) for level in (LEVEL, SUSPECT))
        if certain or likely:
            text = f"{group.title}: {slower - 1:.1%} slower than in {earlier['id']}"
            kind, subject = ("cluster", CLUSTER) if unit.name == CLUSTER else ("node", unit.name)
            verdict, decides = (FAIL, "") if certain else (UNDECIDED, MORE)
            findings.append(Finding(kind, subject, unit.hosts, verdict, text, decides, group.runs))
    if not ratios:
        return None
    hosts = tuple(dict.fromkeys(host for unit in group.units for host in unit.hosts))
    bar = f"{group.title}: none certainly more than {share:.0%} slower than when it was last accepted"
    got = f"{min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%} slower"
    return Judged(stage, "earlier", bar, got, f"acceptance {earlier['id']}", hosts, tuple(findings))


def _is_slower(old: Sequence[float], unit: Unit, group: Group, level: float) -> bool:
    reach = change_interval(list(old), list(unit.values), 1 - 2 * level)
    if reach is None:
        return False
    return reach.low > 1 if group.lower_is_better else reach.high < 1


def measured(stage: str, group: Group) -> tuple[str, dict[str, Any]]:
    """Return the name of a group and its values, as a later acceptance compares them."""
    return _name(stage, group), {"spec": _spec(group), "units": {unit.name: list(unit.values) for unit in group.units}}


def _name(stage: str, group: Group) -> str:
    return f"{stage} {group.shape} {group.title}"


def _spec(group: Group) -> str:
    return json.dumps(group.spec, sort_keys=True, default=str)


def _reach(reach: Any) -> str:
    return f"{reach.low:.1%} to {reach.high:.1%}" if math.isfinite(reach.high) else f"{reach.low:.1%} and more"
