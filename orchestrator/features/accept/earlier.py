"""A group of units against what they were in the last accepted run.

Where all units are slower than they were, the cause is common to them: a driver, the temperature of
the room, other work. Then the cluster is judged, by the typical unit of each repeat, and a unit
only if it has changed by more than its peers too. Other work on the processors leaves open what the
cluster was or a unit without peers, and not what a unit is among its peers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.features.accept.bars import FIND, MORE, finite, power_words
from orchestrator.features.accept.peer_power import OFTEN
from orchestrator.features.accept.peers import LEVEL, against_peers
from orchestrator.features.accept.units import CLUSTER, Group, Unit
from orchestrator.features.accept.verdicts import FAIL, UNDECIDED, Finding, Judged
from orchestrator.results import median
from orchestrator.results.numbers.intervals import Interval, change_interval
from orchestrator.results.numbers.rounding import format_number, percent

_UNKNOWN = 700.0
"""The logarithm of a number that still fits a float."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar of a group: the share by which a unit may be slower than in the acceptance ``id``, and
    the number of comparisons.
    """

    group: Group
    share: float
    id: str
    comparisons: int

    @property
    def level(self) -> float:
        """The level of an interval that is certain, for all comparisons together."""
        return 1 - 2 * LEVEL / max(self.comparisons, 1)


def against_earlier(
    stage: str, group: Group, share: float, earlier: Mapping[str, Any], comparisons: int
) -> Judged | str:
    """Judge units by what they were in the last accepted run; return why not if that did not
    measure the same.
    """
    if not earlier:
        return "no acceptance of these hosts with this suite has passed before"
    before = earlier["measured"].get(_name(stage, group))
    if before is None or before["spec"] != _spec(group):
        return f"{earlier['id']} did not measure this with the same settings"
    bar = _Bar(group, share, earlier["id"], comparisons)
    findings = []
    known: dict[str, tuple[Sequence[float], Unit]] = {}
    for unit in group.units:
        old = before["units"].get(unit.name) or ()
        if min(len(old), len(unit.values)) < 2 or min(old) <= 0:
            continue
        if min(unit.values) > 0:
            known[unit.name] = old, unit
        elif not group.lower_is_better:
            text = f"{format_number(median(unit.values))} {group.unit}, {format_number(median(old))} in {bar.id}"
            findings.append(
                _finding(bar, unit.kind, unit.name, unit.hosts, text, max(unit.values) <= 0)
            )
    if not known and not findings:
        return f"expected two or more values above 0 of each node or device, here and in {bar.id}"
    findings += _together(bar, known) or _one_by_one(bar, known)
    judged = {*known, *(finding.subject for finding in findings)}
    hosts = tuple(
        dict.fromkeys(host for unit in group.units if unit.name in judged for host in unit.hosts)
    )
    changes = [
        _times_slower(group, median(old), median(unit.values)) for old, unit in known.values()
    ]
    least = _smallest_change(bar, known)
    asked = FIND * share
    words = f"{group.title}: none slower than when last accepted by more than {percent(share)}"
    words += f", where one {percent(asked)} slower is found"
    got = "no number above 0"
    if changes:
        got = f"{power_words(least)}; measured: {_more(min(changes))} to {_more(max(changes))}"
        if least > asked and not any(finding.verdict == FAIL for finding in findings):
            text = f"{group.title}: one {percent(asked)} slower than in {bar.id} may be missed: {power_words(least)}"
            findings.append(Finding("cluster", CLUSTER, hosts, UNDECIDED, text, MORE, group.runs))
    missing = [unit.name for unit in group.units if unit.name not in judged]
    got += f"; not compared: {', '.join(missing)}" if missing else ""
    return Judged(
        stage,
        "earlier",
        words,
        got,
        f"acceptance {bar.id}",
        hosts,
        tuple(findings),
        finite(least),
        group=group.title,
    )


def without_earlier(stage: str, group: Group, why: str) -> Judged:
    """Return the open judgement of a group that there is nothing to compare with, of nodes that no
    other bar is about. ``why`` says why not.
    """
    device = group.units[0].device or "this device"
    others = "" if group.units[0].kind == CLUSTER else ", or peers: of three or more"
    decides = f"a figure for {device} in suites/references, or expect: in the choices of this stage"
    decides += f"{others}; earlier: compares with what has passed by one of them"
    findings = [
        Finding(unit.kind, unit.name, unit.hosts, UNDECIDED, f"{group.title}: {why}", decides)
        for unit in group.units
    ]
    bar = f"{group.title}: none slower than when last accepted"
    return Judged(stage, "earlier", bar, why, "the suite", (), tuple(findings))


def _one_by_one(bar: _Bar, known: Mapping[str, tuple[Sequence[float], Unit]]) -> Iterator[Finding]:
    """Yield findings about units without peers, each compared with itself."""
    for old, unit in known.values():
        if change := _change(bar, old, unit.values):
            is_certain, text = change
            is_certain = is_certain and not bar.group.loaded & set(unit.hosts)
            yield _finding(
                bar, unit.kind, unit.name, unit.hosts, f"{text} than in {bar.id}", is_certain
            )


def _together(bar: _Bar, known: Mapping[str, tuple[Sequence[float], Unit]]) -> list[Finding] | None:
    """Return findings about all units together, and about units that changed more than their peers.

    None without peers.
    """
    changes = {}
    for name, (old, unit) in known.items():
        changes[name] = [value / median(old) for value in unit.values]
    lower = bar.group.lower_is_better
    peers = against_peers(
        changes, margin=bar.share, comparisons=bar.comparisons, lower_is_better=lower
    )
    if peers is None:
        return None
    findings = []
    for name, judged in peers.units.items():
        old, unit = known[name]
        change = _change(bar, old, unit.values)
        if change and judged.beyond:
            is_certain, text = change
            # Its own repeats alone do not show the noise; all units' repeats do.
            is_certain = is_certain and (judged.named or (judged.apart and not judged.passing))
            text += f" than in {bar.id}; {judged.slower:.1%} slower relative to its peers"
            is_certain = is_certain and not bar.group.loaded & set(unit.hosts)
            findings.append(_finding(bar, unit.kind, unit.name, unit.hosts, text, is_certain))
    was = []
    for old, _ in known.values():
        was.append([value / median(old) for value in old])
    typical = (list(map(median, zip(*units, strict=False))) for units in (was, changes.values()))
    if change := _change(bar, *typical):
        is_certain, text = change
        hosts = tuple(dict.fromkeys(host for _, unit in known.values() for host in unit.hosts))
        is_certain = is_certain and not bar.group.loaded
        findings.append(
            _finding(
                bar, "cluster", CLUSTER, hosts, f"typically {text} than in {bar.id}", is_certain
            )
        )
    return findings


def _finding(
    bar: _Bar, kind: str, subject: str, hosts: tuple[str, ...], text: str, is_certain: bool
) -> Finding:
    """Return the finding that a subject is slower than the bar allows, certainly or not."""
    verdict, decides = (FAIL, "") if is_certain else (UNDECIDED, MORE)
    return Finding(
        kind, subject, hosts, verdict, f"{bar.group.title}: {text}", decides, bar.group.runs
    )


def _change(bar: _Bar, old: Sequence[float], new: Sequence[float]) -> tuple[bool, str] | None:
    """Return whether values are certainly slower than before, and the slowdown in words; None
    within the bar.
    """
    slower, shown = _times_slower(bar.group, median(old), median(new)), _reach(bar, old, new, 0.95)
    certain = _reach(bar, old, new, bar.level)
    if slower <= 1 + bar.share or shown is None:
        return None
    is_certain = certain is not None and certain.low > 1
    return is_certain, f"{_more(slower)} (95 %: {shown.low - 1:.1%} to {shown.high - 1:.1%})"


def _reach(bar: _Bar, old: Sequence[float], new: Sequence[float], level: float) -> Interval | None:
    """Return the interval of how many times slower values are than they were."""
    found = change_interval(list(old), list(new), level)
    if found is None or bar.group.lower_is_better:
        return found
    return Interval(1 / found.high, 1 / found.low, level)


def _smallest_change(bar: _Bar, known: Mapping[str, tuple[Sequence[float], Unit]]) -> float:
    """Return by what share nine in ten units would have had to become slower to be found in nine of
    ten cases: what they measure is then beyond the share of the bar, and their interval beyond 1.
    """
    least = []
    for old, unit in known.values():
        certain, often = (
            _half(_reach(bar, old, unit.values, level)) for level in (bar.level, 2 * OFTEN - 1)
        )
        least.append(math.expm1(max(math.log1p(bar.share), certain) + often))
    if least:
        return sorted(least)[math.ceil(OFTEN * len(least)) - 1]
    return math.inf


def _half(reach: Interval | None) -> float:
    """Return half of the width of an interval, as a logarithm."""
    if reach and reach.low > 0 and math.isfinite(reach.high):
        return math.log(reach.high / reach.low) / 2
    return _UNKNOWN


def _times_slower(group: Group, old: float, new: float) -> float:
    return new / old if group.lower_is_better else old / new


def _more(times: float) -> str:
    if times >= 1:
        return f"{times - 1:.1%} slower"
    return f"{1 - times:.1%} faster"


def dump_group(stage: str, group: Group) -> tuple[str, dict[str, Any]]:
    """Return the name of a group and its values, as a later acceptance compares them."""
    return _name(stage, group), {
        "spec": _spec(group),
        "units": {unit.name: list(unit.values) for unit in group.units},
    }


def _name(stage: str, group: Group) -> str:
    return f"{stage} {group.shape} {group.title}"


def _spec(group: Group) -> str:
    return json.dumps(group.spec, sort_keys=True, default=str)
