"""Find nodes or devices that are slower than their peers, without false accusations in a large
cluster.

    log(value of a unit in a repeat) = level + drift of the repeat + unit + noise

All units are measured at the same time, in every repeat. The drift of a repeat is its median unit.
The effect of a unit is the median, over repeats, of its distance below that drift. A unit is blamed
only if it is slow in four of five repeats, because some other work may disturb a node for a while.

Two things make equal units differ. The noise of repeats is whatever the repeats of all units show,
of any shape (`pool_noise`). The natural difference of units is estimated from the scatter of the
effects. Few units hardly show it, so it is moderated by the margin: a third of it counts as the
natural standard deviation with `PRIOR` degrees of freedom (the moderated t of G. K. Smyth,
Statistical Applications in Genetics and Molecular Biology 3, 2004). The scatter is a median, which
a slow third of the units does not move far.

A unit is named if its effect is larger than the margin and, at the level `LEVEL` for all
comparisons together (C. E. Bonferroni, 1936), neither of both makes it as slow in nearly all of its
repeats. It is suspect if the same holds at `SUSPECT`. Neither holds if slow periods that last over
several repeats, as other units show, explain it (`may_pass`). The worst unit is named first, and
the others are then compared without it. If units differ among themselves as much, as when half of
them are slow, it is neither named nor suspect, but apart: slower by more than the margin, and by
more than the noise of repeats alone explains.

>>> alike = {f"node{n}": [100 + n % 3, 101 - n % 2, 100.0, 101.0, 100.5] for n in range(1, 9)}
>>> judged = against_peers(alike | {"node9": [88.0, 89.0, 88.5, 88.2, 89.1]}, margin=0.03)
>>> [f"{name}: {unit.slower:.1%} slower" for name, unit in judged.units.items() if unit.named]
['node9: 13.0% slower']
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from orchestrator.features.accept.pooled_noise import (
    PooledNoise,
    may_pass,
    median_reach,
    offsets,
    pool_noise,
)
from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.numbers.t_distribution import student
from orchestrator.results.numbers.throughput import median

LEVEL = 0.01
"""The chance that any unit at all is named although all are equal, over all comparisons of an
acceptance.
"""
SUSPECT = 0.2
"""The same for a unit that is suspect."""
PRIOR, _PRIOR_BELOW = 30.0, 8.0
"""Degrees of freedom of the natural standard deviation that the margin stands for, and where units
differ by more.
"""
_NATURAL = 3.0
"""The margin over that standard deviation."""
_OF_DIFFERENCES = 0.9539
"""The median difference of two normal values over their standard deviation: √2 times the upper
quartile, 0.6745.
"""
OF_DISTANCES = 1.4826
"""A standard deviation over the median distance from the middle, for normal values."""
OF_MEDIAN = math.pi / 2
"""The ratio of a median's variance to a mean's, for many normal values."""
_EFFICIENCY = 0.37
"""Degrees of freedom of a median distance over those of a standard deviation (P. J. Rousseeuw and
C. Croux, JASA 88, 1993).
"""
_MOST_OF = 0.8
"""A slow unit is slower by half the margin in at least this share of the repeats."""
_APART = math.log(1000)
"""A unit that is so much slower is the slowest in every repeat."""
_LEAST = 1e-4
"""Values that are this close are equal, however closely repeats agree."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A node or device compared with its peers.

    ``slower`` is a share (0.05 is 5 % more time), ``interval`` its 95 % interval. ``beyond``:
    slower by more than the margin, by chance or not. ``suspect``: probably not by chance.
    ``named``: certainly not by chance. ``apart``: certainly not by the noise of repeats, however
    much peers differ among themselves. ``ahead`` is the same for a faster unit. ``passing``: it
    would be suspect or named, but other units are as slow for several repeats and then recover, and
    so may this one.
    """

    slower: float
    interval: Interval
    beyond: bool
    named: bool
    suspect: bool
    apart: bool
    ahead: bool
    passing: bool


@dataclass(frozen=True, slots=True)
class Peers:
    """The units by name. ``noise`` and ``spread`` are the standard deviations of one measurement
    and of equal units, as shares; ``repeats`` is how often each was measured."""

    units: Mapping[str, Unit]
    noise: float
    spread: float
    repeats: int

    @property
    def ahead(self) -> list[str]:
        """The names of the units that are ahead, where they are a third or more: the others may be
        the slow ones.
        """
        names = [name for name, unit in self.units.items() if unit.ahead]
        return names if len(names) >= len(self.units) / 3 else []


@dataclass(frozen=True, slots=True)
class Standard:
    """The standard by which a unit is judged.

    ``level`` is the level of each repeat, in logarithms that are larger for a slower unit.
    ``others`` are the distances of the other units above it, ``pooled`` is the noise of all units,
    and ``lasting`` their permanent differences, as in `offsets`; ``level_alone`` leaves these out.
    The two chances are the least ones of a named and of a suspect unit.
    """

    level: Sequence[float]
    others: Sequence[Sequence[float]]
    pooled: PooledNoise
    lasting: Sequence[tuple[float, float]]
    level_alone: Sequence[tuple[float, float]]
    margin: float
    certain: float
    likely: float

    def over(self, logs: Sequence[float]) -> list[float]:
        """Return how far a unit is above the level, in each repeat."""
        return [log - usual for log, usual in zip(logs, self.level, strict=True)]

    def stands_out(self, over: Sequence[float]) -> bool:
        """Return whether a unit is slower by more than the margin, and by half of it in nearly all
        repeats.
        """
        steadily = sum(height > self.margin / 2 for height in over) >= self.pooled.least
        return steadily and median(over) > self.margin

    def chance(self, over: Sequence[float]) -> float:
        """Return how often noise, and what equal units differ by, make a unit as slow."""
        return self.pooled.chance(over, self.lasting)

    def is_beyond_noise(self, over: Sequence[float]) -> bool:
        """Return whether noise alone is certainly not why a unit exceeds the margin so often.

        It assumes that equal units differ by nothing but noise.
        """
        return (
            self.pooled.chance([min(height, self.margin) for height in over], self.level_alone)
            <= self.certain
        )

    def may_pass(self, over: Sequence[float]) -> bool:
        """Return whether a unit may be slow only for a while, as others were."""
        return may_pass([*self.others, over], median(over), self.pooled.least)

    def names(self, over: Sequence[float]) -> bool:
        """Return whether a unit is certainly and permanently slower than its peers by more than the
        margin.
        """
        return (
            self.stands_out(over) and self.chance(over) <= self.certain and not self.may_pass(over)
        )


def against_peers(
    values: Mapping[str, Sequence[float]],
    *,
    margin: float,
    comparisons: int = 0,
    lower_is_better: bool = False,
) -> Peers | None:
    """Judge units by their values, above 0, each a sequence over the same repeats.

    Return None for fewer than three units or two repeats, or if a unit lacks a value: there is
    nothing to compare. ``comparisons`` counts the comparisons of the whole acceptance, at least the
    number of units.
    """
    if not _are_comparable(values):
        return None
    logs, several = logarithms(values, lower_is_better), max(comparisons, len(values))
    named: dict[str, Unit] = {}
    while True:
        peers = _judge(logs, [name for name in logs if name not in named], margin, several)
        worst = max((name for name in peers.units if name not in named and peers.units[name].named), default="",
                    key=lambda name: peers.units[name].slower)  # fmt: skip
        # A majority that is slow is the level, and a minority of three quarters cannot be judged by
        # the rest.
        if not worst or len(named) + 1 > len(values) / 3:
            return replace(peers, units={**peers.units, **named})
        named[worst] = peers.units[worst]


def _are_comparable(values: Mapping[str, Sequence[float]]) -> bool:
    counts = {len(of_unit) for of_unit in values.values()}
    if len(values) < 3 or len(counts) != 1 or min(counts) < 2:
        return False
    return all(value > 0 for of_unit in values.values() for value in of_unit)


def _nearly_all(repeats: int) -> int:
    return math.ceil(_MOST_OF * repeats)


def noise_of(
    values: Mapping[str, Sequence[float]], *, lower_is_better: bool = False
) -> PooledNoise | None:
    """Return the noise of all units about the level of each repeat; None where `against_peers`
    would compare nothing.
    """
    if not _are_comparable(values):
        return None
    scales = _scales(logarithms(values, lower_is_better), list(values), 0.0)
    return pool_noise(list(scales.over.values()), _nearly_all(len(scales.level)))


def logarithms(
    values: Mapping[str, Sequence[float]], lower_is_better: bool
) -> dict[str, list[float]]:
    """Return logarithms that are larger for a slower unit."""
    sign = 1.0 if lower_is_better else -1.0
    logs = {}
    for name, of_unit in values.items():
        logs[name] = [sign * math.log(value) for value in of_unit]
    return logs


@dataclass(frozen=True, slots=True)
class _Scales:
    """The level of each repeat, how far each peer is above it, and standard deviations: of the
    noise of one measurement, of the effect of a unit by noise, of equal units with the degrees of
    freedom of that, and of the level."""

    level: Sequence[float]
    over: Mapping[str, Sequence[float]]
    noise: float
    of_noise: float
    of_units: float
    freedom: float
    of_level: float


def _scales(logs: Mapping[str, Sequence[float]], peers: Sequence[str], margin: float) -> _Scales:
    repeats = len(logs[peers[0]])
    level = []
    for repeat in range(repeats):
        level.append(median([logs[name][repeat] for name in peers]))
    over = {}
    for name in peers:
        over[name] = [log - usual for log, usual in zip(logs[name], level, strict=True)]
    effects = [median(heights) for heights in over.values()]
    differences = [
        abs(left - right) for heights in over.values() for left, right in combinations(heights, 2)
    ]
    noise = max(median(differences) / _OF_DIFFERENCES, _LEAST)
    of_noise = noise**2 / repeats * (OF_MEDIAN if repeats > 2 else 1.0)
    centre = median(effects)
    scatter = OF_DISTANCES * median([abs(effect - centre) for effect in effects])
    shown, natural = _EFFICIENCY * (len(peers) - 1), math.log1p(margin) / _NATURAL
    differing = max(0.0, scatter**2 - of_noise)
    prior = PRIOR if differing <= natural**2 else _PRIOR_BELOW
    of_units = (prior * natural**2 + shown * differing) / (prior + shown)
    of_level = (of_noise + of_units) * OF_MEDIAN / len(peers)
    free_of_noise = _EFFICIENCY * len(peers) * (repeats - 1)
    freedom = (of_noise + of_units) ** 2 / (
        of_noise**2 / free_of_noise + of_units**2 / (prior + shown)
    )
    return _Scales(
        level, over, noise, math.sqrt(of_noise), math.sqrt(of_units), freedom, math.sqrt(of_level)
    )


def standard_of(
    logs: Mapping[str, Sequence[float]], peers: Sequence[str], margin: float, comparisons: int
) -> Standard:
    """Return the standard by which units are judged, from ``peers``."""
    return _standard(_scales(logs, peers, margin), margin, comparisons)


def standard_without(
    name: str,
    logs: Mapping[str, Sequence[float]],
    peers: Sequence[str],
    margin: float,
    comparisons: int,
) -> Standard:
    """Return the standard for a slow unit, to which it contributes only as the slowest."""
    slowest = {**logs, name: [log + _APART for log in logs[name]]}
    return _standard(_scales(slowest, peers, margin), margin, comparisons, name)


def _standard(scales: _Scales, margin: float, comparisons: int, name: str = "") -> Standard:
    certain, likely = LEVEL / comparisons, SUSPECT / comparisons
    others = [heights for unit, heights in scales.over.items() if unit != name]
    pooled = pool_noise(list(scales.over.values()), _nearly_all(len(scales.level)))
    lasting = offsets(math.hypot(scales.of_units, scales.of_level), scales.freedom, certain)
    level_alone = offsets(
        math.sqrt(OF_MEDIAN / len(scales.over)) * scales.of_noise, scales.freedom, certain
    )
    return Standard(
        scales.level, others, pooled, lasting, level_alone, math.log1p(margin), certain, likely
    )


def _judge(
    logs: Mapping[str, Sequence[float]], peers: Sequence[str], margin: float, comparisons: int
) -> Peers:
    """Judge all units, with ``peers`` as the standard."""
    scales = _scales(logs, peers, margin)
    behind = _standard(scales, margin, comparisons)
    ahead = _ahead(logs, behind, scales)
    deviations = [
        height - median(heights) for heights in scales.over.values() for height in heights
    ]
    below, above = median_reach(deviations, len(scales.level), 0.95)
    of_peers = student(scales.freedom, 0.975) * math.hypot(scales.of_units, scales.of_level)
    units = {}
    for name, of_unit in logs.items():
        over = behind.over(of_unit)
        effect = median(over)
        reach = Interval(
            _share(effect - math.hypot(above, of_peers)),
            _share(effect + math.hypot(below, of_peers)),
            0.95,
        )
        chance, is_apart, is_passing = 1.0, False, False
        if behind.stands_out(over):
            by_others = standard_without(name, logs, peers, margin, comparisons)
            over = by_others.over(of_unit)
            chance = by_others.chance(over)
            is_apart = by_others.is_beyond_noise(over)
            is_passing = chance <= behind.likely and by_others.may_pass(over)
        units[name] = Unit(
            _share(effect),
            reach,
            beyond=effect > behind.margin,
            named=chance <= behind.certain and not is_passing,
            suspect=chance <= behind.likely and not is_passing,
            apart=is_apart,
            ahead=name in ahead,
            passing=is_passing,
        )
    return Peers(units, scales.noise, scales.of_units, len(scales.level))


def _ahead(logs: Mapping[str, Sequence[float]], behind: Standard, scales: _Scales) -> set[str]:
    """Return the units that are faster by more than the margin, certainly not by the noise of
    repeats.
    """
    under = {}
    for name, of_unit in logs.items():
        under[name] = [-height for height in behind.over(of_unit)]
    faster = [name for name, heights in under.items() if behind.stands_out(heights)]
    if not faster:
        return set()
    mirrored = []
    for heights in scales.over.values():
        mirrored.append([-height for height in heights])
    pooled = pool_noise(mirrored, behind.pooled.least)
    mirror = replace(behind, pooled=pooled)
    return {name for name in faster if mirror.is_beyond_noise(under[name])}


def _share(effect: float) -> float:
    return math.expm1(max(-700.0, min(effect, 700.0)))
