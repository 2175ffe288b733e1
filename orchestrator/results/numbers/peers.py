"""Which of many equal nodes or devices is slower than its peers, judged so that a large cluster gives no false accusations.

    log(value of a unit in a repeat) = level + drift of the repeat + unit + noise

All units are measured at the same time, in every repeat. The drift of a repeat is its median unit. The effect of a unit is the
median over repeats of how far it is below that. A unit is blamed only if it is slow in four of five repeats, because some
other work may disturb a node for a while.

Two variances make an effect uncertain. That of the median over repeats is estimated from the differences between repeats of a
unit, over all units. That of what equal units naturally differ by is estimated from the scatter of the effects; few units
hardly show it, so it is moderated by the margin: a third of it counts as the natural standard deviation with `PRIOR` degrees
of freedom (the moderated t of G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004). Both scatters
are medians, which a slow third of the units does not move far. Degrees of freedom of the sum are those of F. E. Satterthwaite
(Biometrics Bulletin 2, 1946).

A unit is named if its effect is larger than the margin and, at the level `LEVEL` for all comparisons together (C. E.
Bonferroni, 1936), larger than 0. It is suspect if the same holds at `SUSPECT`. The worst unit is named first and is then left
out of what the others are compared with. Where units differ among themselves as much, as when half of them are slow, it is
neither, and apart: larger than the margin, and certainly larger than 0 if only the noise of repeats is counted.

>>> alike = {f"node{n}": [100 + n % 3, 101 - n % 2, 100.0, 101.0, 100.5] for n in range(1, 9)}
>>> judged = against_peers(alike | {"node9": [88.0, 89.0, 88.5, 88.2, 89.1]}, margin=0.03)
>>> [f"{name}: {unit.slower:.1%} slower" for name, unit in judged.units.items() if unit.named]
['node9: 13.0% slower']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.numbers.t_distribution import student
from orchestrator.results.numbers.throughput import median

__all__ = ["LEVEL", "PRIOR", "SUSPECT", "Peers", "Unit", "against_peers", "least_named"]

LEVEL = 0.01
"""The chance that any unit at all is named although all are equal, over all comparisons of an acceptance."""
SUSPECT = 0.2
"""The same for a unit that is suspect."""
PRIOR = 8.0
"""Degrees of freedom of the natural standard deviation that the margin stands for."""
_NATURAL = 3.0
"""The margin over that standard deviation."""
_OF_DIFFERENCES = 0.9539
"""The median difference of two normal values over their standard deviation: √2 times the upper quartile, 0.6745."""
_OF_DISTANCES = 1.4826
_OF_MEDIAN = math.pi / 2
"""The variance of a median over that of a mean, for many normal values."""
_EFFICIENCY = 0.37
"""Degrees of freedom of a median distance over those of a standard deviation (P. J. Rousseeuw and C. Croux, JASA 88, 1993)."""
_MOST_OF = 0.8
"""A slow unit is slower by half the margin in at least this share of the repeats."""
_LEAST = 1e-4
"""Values that are this close are equal, however closely repeats agree."""
_TRIED, _OF_TRIED, _STEPS = 9, 0.9, 10
"""Units that are made slower on paper, the share of them that is to be named, and bisections of by how much."""
_LARGEST = math.log(1000)


@dataclass(frozen=True, slots=True)
class Unit:
    """How much slower a node or device is than its peers (``slower``, a share: 0.05 is 5 % more time), and the 95 % interval
    of that. ``named``: slower by more than the margin, and certainly slower than its peers; ``suspect``: probably;
    ``apart``: slower by more than the margin than the typical peer, not by noise, whatever peers differ by among themselves.
    ``ahead`` is the same for a unit that is faster."""

    slower: float
    interval: Interval
    named: bool
    suspect: bool
    apart: bool
    ahead: bool


@dataclass(frozen=True, slots=True)
class Peers:
    """The units by name. ``noise`` and ``spread`` are the standard deviations of one measurement and of equal units, as
    shares; ``repeats`` is how often each was measured."""

    units: Mapping[str, Unit]
    noise: float
    spread: float
    repeats: int

    @property
    def ahead(self) -> list[str]:
        """The names of the units that are ahead, where they are a third or more: the others may be the slow ones."""
        names = [name for name, unit in self.units.items() if unit.ahead]
        return names if len(names) >= len(self.units) / 3 else []


def against_peers(
    values: Mapping[str, Sequence[float]], *, margin: float, comparisons: int = 0, lower_is_better: bool = False
) -> Peers | None:
    """Judge units by their values, above 0, each a sequence over the same repeats. None for fewer than three units or two
    repeats, or if a unit lacks a value: there is nothing to compare.

    ``comparisons`` counts those of the whole acceptance, at least the number of units."""
    counts = {len(of_unit) for of_unit in values.values()}
    if len(values) < 3 or len(counts) != 1 or min(counts) < 2 or any(v <= 0 for unit in values.values() for v in unit):
        return None
    logs, several = _logarithms(values, lower_is_better), max(comparisons, len(values))
    named: dict[str, Unit] = {}
    while True:
        peers = _judged(logs, [name for name in logs if name not in named], margin, several)
        worst = max((name for name in peers.units if name not in named and peers.units[name].named), default="",
                    key=lambda name: peers.units[name].slower)  # fmt: skip
        # A majority that is slow is the level, and a minority of three quarters cannot be judged by the rest.
        if not worst or len(named) + 1 > len(values) / 3:
            return replace(peers, units={**peers.units, **named})
        named[worst] = peers.units[worst]


def least_named(
    values: Mapping[str, Sequence[float]],
    judged: Peers,
    *,
    margin: float,
    comparisons: int = 0,
    lower_is_better: bool = False,
) -> float:
    """Return by how much a unit would have had to be slower, as a share, for `against_peers` to name it: nine in ten of those
    units that it does not name, each made slower in turn by that share in all of its repeats. Infinite if none would do.

    Takes what `against_peers` takes, and what it returned."""
    logs, several = _logarithms(values, lower_is_better), max(comparisons, len(values))
    peers = sorted((name for name in logs if not judged.units[name].named), key=lambda name: judged.units[name].slower)
    tried = [peers[round(place * (len(peers) - 1) / (_TRIED - 1))] for place in range(_TRIED)] if len(peers) > _TRIED else peers

    def is_named(name: str, shift: float) -> bool:
        slowed = {**logs, name: [log + shift for log in logs[name]]}
        return _judged(slowed, peers, margin, several).units[name].named

    shifts = sorted(_least_shift(partial(is_named, name)) for name in tried)
    return math.expm1(shifts[math.ceil(_OF_TRIED * len(shifts)) - 1])


def _least_shift(is_named: Callable[[float], bool]) -> float:
    """Return the least shift of logarithms at which a unit is named, rounded up; infinite if none is large enough."""
    high = 0.001
    while not is_named(high):
        high *= 2
        if high > _LARGEST:
            return math.inf
    low = high / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_named(middle) else (middle, high)
    return high


def _logarithms(values: Mapping[str, Sequence[float]], lower_is_better: bool) -> dict[str, list[float]]:
    """Return logarithms that are larger for a slower unit."""
    sign = 1.0 if lower_is_better else -1.0
    return {name: [sign * math.log(value) for value in of_unit] for name, of_unit in values.items()}


def _judged(logs: Mapping[str, Sequence[float]], peers: Sequence[str], margin: float, comparisons: int) -> Peers:
    """Judge all units by those of ``peers``."""
    repeats = len(logs[peers[0]])
    level = [median([logs[name][repeat] for name in peers]) for repeat in range(repeats)]
    over = {name: [log - usual for log, usual in zip(of_unit, level, strict=True)] for name, of_unit in logs.items()}
    effects = {name: median(of_unit) for name, of_unit in over.items()}
    differences = [abs(effect - other) for name in peers for effect, other in combinations(over[name], 2)]
    noise = max(median(differences) / _OF_DIFFERENCES, _LEAST)
    of_noise = noise**2 / repeats * (_OF_MEDIAN if repeats > 2 else 1.0)
    centre = median([effects[name] for name in peers])
    scatter = _OF_DISTANCES * median([abs(effects[name] - centre) for name in peers])
    shown, natural = _EFFICIENCY * (len(peers) - 1), math.log1p(margin) / _NATURAL
    of_units = (PRIOR * natural**2 + shown * max(0.0, scatter**2 - of_noise)) / (PRIOR + shown)
    free_of_noise = _EFFICIENCY * len(peers) * (repeats - 1)
    free = (of_noise + of_units) ** 2 / (of_noise**2 / free_of_noise + of_units**2 / (PRIOR + shown))
    certain, likely, shown_t = (student(free, 1 - level) for level in (LEVEL / comparisons, SUSPECT / comparisons, 0.025))
    of_level = 1 + _OF_MEDIAN / len(peers)
    error = math.sqrt((of_noise + of_units) * of_level)
    beyond_noise = student(free_of_noise, 1 - LEVEL / comparisons) * math.sqrt(of_noise * of_level)
    least = math.log1p(margin)

    def stands_out(name: str, sign: float) -> bool:
        steadily = sum(sign * log > least / 2 for log in over[name]) >= _MOST_OF * repeats
        return steadily and sign * effects[name] > least

    units = {}
    for name, effect in effects.items():
        is_behind, is_ahead = stands_out(name, 1.0), stands_out(name, -1.0)
        reach = Interval(_share(effect - shown_t * error), _share(effect + shown_t * error), 0.95)
        named, suspect = (is_behind and effect > t * error for t in (certain, likely))
        apart, ahead = (is_so and abs(effect) > beyond_noise for is_so in (is_behind, is_ahead))
        units[name] = Unit(_share(effect), reach, named, suspect, apart, ahead)
    return Peers(units, noise, math.sqrt(of_units), repeats)


def _share(effect: float) -> float:
    return math.expm1(max(-700.0, min(effect, 700.0)))
