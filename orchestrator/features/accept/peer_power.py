"""Power of a comparison with peers: the slow unit that it would have found, and the repeats that
find a given one.

Units are made slower on paper, each in turn in all of its repeats, and judged by the rule that
judges all (`peers`). For other numbers of repeats, the noise of each unit is drawn from the noise
of all, with a fixed seed.

>>> values = {f"node{n}": [100 + n % 3, 101 - n % 2, 100.0, 101.0, 100.5] for n in range(1, 9)}
>>> f"{find_least_slowdown(values, against_peers(values, margin=0.03), margin=0.03):.3f}"
'0.039'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

from orchestrator.features.accept.peers import (
    OF_DISTANCES,
    OF_MEDIAN,
    Peers,
    Standard,
    against_peers,
    logarithms,
    standard_of,
    standard_without,
)
from orchestrator.results.numbers.throughput import median

OFTEN = 0.9
"""The share of units, each made slower in turn, that are to be named."""
_TRIED, _STEPS = 20, 9
"""Units that are made slower on paper, and bisections of by how much."""
_LARGEST = math.log(1000)
_REPEATS = (4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30)
_UNITS = 48
"""More units do not change what the noise of all of them is."""
_SEED = 11


def find_least_slowdown(
    values: Mapping[str, Sequence[float]],
    judged: Peers,
    *,
    margin: float,
    comparisons: int = 0,
    lower_is_better: bool = False,
) -> float:
    """Return the least slowdown, as a share, with which `against_peers` would have named a unit.

    Each unit that it does not name is made slower in turn by that share in all of its repeats; nine
    in ten are then named. Infinite if no slowdown would do.

    Takes what `against_peers` takes, and what it returned.
    """
    logs, several = logarithms(values, lower_is_better), max(comparisons, len(values))
    peers = sorted(
        (name for name in logs if not judged.units[name].named),
        key=lambda name: judged.units[name].slower,
    )
    tried = peers
    if len(peers) > _TRIED:
        tried = [peers[round(place * (len(peers) - 1) / (_TRIED - 1))] for place in range(_TRIED)]
    shifts = []
    for name in tried:
        standard = standard_without(name, logs, peers, margin, several)
        shifts.append(_least_shift(standard, standard.over(logs[name])))
    return math.expm1(sorted(shifts)[math.ceil(OFTEN * len(shifts)) - 1])


def _least_shift(standard: Standard, over: Sequence[float]) -> float:
    """Return the least shift of logarithms at which a unit is named, rounded up; infinite if none
    is large enough.
    """

    def is_named(shift: float) -> bool:
        return standard.names([height + shift for height in over])

    high = max(0.001, standard.margin - median(over))
    low = high / 2
    while not is_named(high):
        low, high = high, 1.5 * high
        if high > _LARGEST:
            return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_named(middle) else (middle, high)
    return high


def repeats_that_find(
    values: Mapping[str, Sequence[float]],
    slower: float,
    *,
    margin: float,
    comparisons: int = 0,
    lower_is_better: bool = False,
) -> int | None:
    """Return with how many repeats a unit that is slower by a share would be named in nine of ten
    cases, by the noise that is there; None if `against_peers` cannot compare, or no number up to 30
    is enough. Takes what `against_peers` takes."""
    measured = against_peers(values, margin=margin)
    if measured is None:
        return None
    several = max(comparisons, len(values))
    logs = logarithms(values, lower_is_better)
    names = sorted(
        logs,
        key=lambda name: (
            measured.units[name].slower if lower_is_better else -measured.units[name].slower
        ),
    )
    kept = names[:: math.ceil(len(names) / _UNITS)]
    standard = standard_of(logs, names, margin, several)
    heights = {name: standard.over(logs[name]) for name in kept}
    deviations = [height - median(own) for own in heights.values() for height in own]
    lasting = _lasting([median(own) for own in heights.values()], measured)
    random = Random(_SEED)
    for repeats in _REPEATS:
        if repeats > measured.repeats:
            drawn = {}
            for name, lasts in zip(kept, lasting, strict=True):
                drawn[name] = [math.exp(lasts + random.choice(deviations)) for _ in range(repeats)]
            again = against_peers(drawn, margin=margin, comparisons=several, lower_is_better=True)
            if (
                again
                and find_least_slowdown(
                    drawn, again, margin=margin, comparisons=several, lower_is_better=True
                )
                <= slower
            ):
                return repeats
    return None


def _lasting(effects: Sequence[float], measured: Peers) -> list[float]:
    """Return effects without what the noise of repeats adds to their scatter."""
    scatter = OF_DISTANCES * median([abs(effect) for effect in effects])
    of_noise = OF_MEDIAN * measured.noise**2 / measured.repeats
    kept = math.sqrt(max(0.0, 1 - of_noise / scatter**2)) if scatter else 0.0
    return [kept * effect for effect in effects]
