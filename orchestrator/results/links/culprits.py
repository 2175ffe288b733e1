"""From the times of all pairs of nodes to the node, the link or the boundary between groups that is slow; nobody is trusted.

The model is one of logarithms: log(time of a pair in a sweep) = level + node + node + link + drift of the sweep + noise.
Medians keep one bad node from smearing over its partners, and one bad link from accusing its two nodes. A culprit is named
where even the lower end of its interval, at a level for all nodes and links together, is slower than the others by more than
`MARGIN`.

>>> slow = {pair: [3.0, 3.1, 2.9, 3.0] if 2 in pair else [1.0, 1.1, 0.9, 1.0] for pair in combinations(range(6), 2)}
>>> [f"{node.node}: {node.slower:.1f}x" for node in diagnosis(slow, 6).nodes if node.named]
['2: 3.0x']
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from orchestrator.results.numbers.intervals import Interval, student
from orchestrator.results.numbers.throughput import deviation, mean, median

__all__ = ["LEVEL", "MARGIN", "Boundary", "Culprits", "Link", "NodeScore", "Pair", "diagnosis"]

Pair = tuple[int, int]
"""Two nodes by their node_rank, the lower one first."""

MARGIN = 0.10
"""What is slower than the others by less is named in no case."""
LEVEL = 0.01
"""The chance that anything is named, of all nodes and links together, where nothing is slower than `MARGIN` allows."""
_MARGIN = math.log1p(MARGIN)
_SHOWN = 0.95
_MOST_OF = 0.75
"""A slow node is slow to so many of its partners, else its links are what is slow."""
_TO_DEVIATION = 1.4826
"""Times the median distance from the median: the standard deviation of a normal distribution."""
_SURELY = 1.6
"""Times the distance of its lower end, an effect beyond the margin is named nine times of ten, and not every other time."""
_OF_MEDIAN = math.pi / 2
"""The variance of a median over that of a mean, for many normal values."""


@dataclass(frozen=True, slots=True)
class NodeScore:
    """How many times slower a node is to its middle partner than an ordinary pair, with its 95 % interval.

    ``least`` is the lower end at the level of the whole family; ``slow_to`` of ``partners`` are at least half as far off.
    """

    node: int
    slower: float
    interval: Interval
    least: float
    slow_to: int
    partners: int
    named: bool


@dataclass(frozen=True, slots=True)
class Link:
    """How many times slower a pair is than its two nodes explain, with its 95 % interval; ``least`` as for a node."""

    pair: Pair
    slower: float
    interval: Interval
    least: float
    named: bool


@dataclass(frozen=True, slots=True)
class Boundary:
    """Groups of two or more nodes that are ordinary among themselves; every pair across is slow, ``slower`` in the middle."""

    groups: tuple[tuple[int, ...], ...]
    slower: float


@dataclass(frozen=True, slots=True)
class Culprits:
    """What the times of all pairs say.

    ``relative`` holds each pair's time over the ordinary one; ``ordinary_s`` is that time. ``seen_node`` and ``seen_link`` say
    how many times slower a node, or a link, would have to be to be named with noise as it was.
    """

    sweeps: int
    ordinary_s: float
    nodes: tuple[NodeScore, ...]
    links: tuple[Link, ...]
    boundary: Boundary | None
    relative: Mapping[Pair, float]
    seen_node: float
    seen_link: float

    @property
    def clean(self) -> bool:
        """Whether nothing stands out."""
        return not self.boundary and not any([one.named for one in self.nodes] + [one.named for one in self.links])


@dataclass(frozen=True, slots=True)
class _Times:
    """Logarithms of times by pair, less what drifts from sweep to sweep, and what follows from them."""

    count: int
    sweeps: int
    logs: Mapping[Pair, Sequence[float]]
    centre: Mapping[Pair, float]
    ordinary: Collection[Pair]
    base: float
    link_deviation: float

    def of(self, one: int, other: int) -> Sequence[float]:
        return self.logs[min(one, other), max(one, other)]

    def over(self, one: int, other: int) -> float:
        return self.centre[min(one, other), max(one, other)] - self.base


def diagnosis(times: Mapping[Pair, Sequence[float]], nodes: int) -> Culprits:
    """Return what seconds by pair of ``nodes``, each sweep once and in the same order for all pairs, say.

    Two nodes are one pair, with which nothing compares; of three, one node or one link can be named. One sweep has no noise to
    be known by, and nothing is named then.
    """
    known = _prepared(times, nodes)
    scores = _scores(known)
    links = _links(known, scores)
    if accused := _accused(known, scores, links):
        scores |= {node: replace(scores[node], named=True) for node in accused}
        links = _links(known, scores)
    boundary = _boundary(known, scores, links)
    if boundary:
        scores, links = _acquitted(known, boundary, scores)
    return Culprits(
        sweeps=known.sweeps,
        ordinary_s=math.exp(known.base),
        nodes=tuple(scores.values()),
        links=tuple(links),
        boundary=boundary,
        relative={pair: _factor(known.over(*pair)) for pair in known.logs},
        seen_node=_within_reach([(one.slower, one.least) for one in scores.values()]),
        seen_link=_within_reach([(one.slower, one.least) for one in links]),
    )


def _prepared(times: Mapping[Pair, Sequence[float]], count: int) -> _Times:
    if sorted(times) != list(combinations(range(count), 2)):
        raise ValueError(f"expected every pair of {count} nodes")
    logs = {pair: [math.log(seconds) for seconds in times[pair]] for pair in sorted(times)}
    sweeps = min(map(len, logs.values()))
    # What one sweep has in common is taken from each pair's own middle, so that a slow pair has no part in it.
    middle = {pair: median(values) for pair, values in logs.items()}
    drift = [median([values[sweep] - middle[pair] for pair, values in logs.items()]) for sweep in range(sweeps)]
    logs = {pair: [value - off for value, off in zip(values, drift, strict=True)] for pair, values in logs.items()}
    centre = {pair: mean(values) for pair, values in logs.items()}
    noise = median([deviation(values) if sweeps > 1 else 0.0 for values in logs.values()]) / math.sqrt(sweeps)
    ordinary, base, scale = _ordinary(centre, count, noise)
    return _Times(count, sweeps, logs, centre, ordinary, base, math.sqrt(max(0.0, scale**2 - noise**2)))


def _ordinary(centre: Mapping[Pair, float], count: int, noise: float) -> tuple[frozenset[Pair], float, float]:
    """Return the pairs with nothing slow in them, their middle, and how far pairs on their fast side are from it.

    Where a third of the nodes is bad, most pairs are; but a good node has a quarter of good partners even then. What is slow is
    on one side only, so the other side tells how far pairs lie apart by nature.
    """
    quarter = math.ceil((count - 1) / 4) - 1
    partners = ([value for pair, value in centre.items() if node in pair] for node in range(count))
    base, scale = sorted(sorted(values)[quarter] for values in partners)[count // 2], noise
    found: frozenset[Pair] = frozenset()
    while True:
        limit = base + max(2 * _MARGIN, 3 * scale)
        wider = frozenset(pair for pair, value in centre.items() if value <= limit) | found
        if wider == found:
            return found, base, scale
        found = wider
        base = median([centre[pair] for pair in found])
        faster = [base - centre[pair] for pair in found if centre[pair] < base]
        scale = max(noise, _TO_DEVIATION * median(faster)) if faster else noise


def _scores(known: _Times) -> dict[int, NodeScore]:
    """Return the score of every node. The worst is named first, and is no part any more of what the others are held to."""
    scores: dict[int, NodeScore] = {}
    named: set[int] = set()
    while True:
        scores |= {node: _node(known, node, named) for node in range(known.count) if node not in named}
        found = [score for node, score in scores.items() if score.named and node not in named]
        if not found:
            return dict(sorted(scores.items()))
        named.add(max(found, key=lambda score: score.least).node)


def _reference(known: _Times, without: Collection[int]) -> list[float]:
    """Return the middle of ordinary pairs without some nodes, sweep by sweep."""
    pairs = [pair for pair in known.ordinary if not set(pair) & set(without)] or list(known.ordinary)
    return [median([known.logs[pair][sweep] for pair in pairs]) for sweep in range(known.sweeps)]


def _node(known: _Times, node: int, named: Collection[int]) -> NodeScore:
    """Return a node's score: its pairs with those that are not named, all where fewer than two are left, against pairs without
    it."""
    others = [other for other in range(known.count) if other != node]
    partners = [other for other in others if other not in named]
    partners = partners if len(partners) > 1 else others
    effects = [
        _low_median([known.of(node, other)[sweep] for other in partners]) - usual
        for sweep, usual in enumerate(_reference(known, [node, *named]))
    ]
    effect = mean(effects)
    slow_to = sum(known.over(node, other) > max(effect, _MARGIN) / 2 for other in others)
    error = math.sqrt(_variance(effects) + _OF_MEDIAN * known.link_deviation**2 / len(partners))
    interval, least = _reach(known, effect, error)
    is_named = least > 1 + MARGIN and slow_to >= _MOST_OF * len(others) and known.count > 2
    return NodeScore(node, _factor(effect), interval, least, slow_to, len(others), is_named)


def _accused(known: _Times, scores: Mapping[int, NodeScore], links: Sequence[Link]) -> list[int]:
    """Return the nodes that explain several slow links by one cause: slow to most partners, and for certain to some of them."""
    found = []
    for node, score in scores.items():
        proven = [known.over(*link.pair) for link in links if link.named and node in link.pair]
        if proven and not score.named and score.slower > 1 + MARGIN and score.partners > 1:
            slow_to = sum(known.over(*pair) > min(proven) / 2 for pair in known.logs if node in pair)
            found += [node] * (slow_to >= _MOST_OF * score.partners)
    return found


def _links(known: _Times, scores: Mapping[int, NodeScore]) -> list[Link]:
    """Return every pair's score over what its nodes explain: all that a named one is slower, up to the margin of another."""
    explained = {}
    for node, score in scores.items():
        effect = math.log(score.slower)
        explained[node] = effect if score.named else min(max(effect, 0.0), _MARGIN)
    typical = median([_variance(values) for values in known.logs.values()])
    found = []
    for pair, values in known.logs.items():
        effect = known.over(*pair) - explained[pair[0]] - explained[pair[1]]
        # A pair that was steady by chance is taken to be as noisy as the middle one.
        error = math.sqrt(max(_variance(values), typical) + known.link_deviation**2)
        interval, least = _reach(known, effect, error)
        # Of three nodes, a slow one and a slow link of it cannot be told from one slow node.
        is_told = known.count > 3 or (known.count == 3 and not any(scores[node].named for node in pair))
        found.append(Link(pair, _factor(effect), interval, least, least > 1 + MARGIN and is_told))
    return found


def _boundary(known: _Times, scores: Mapping[int, NodeScore], links: Sequence[Link]) -> Boundary | None:
    """Return the groups of two or more nodes that only slow pairs connect, if there are several.

    A slow node is slow to everybody. Two that seem to be, and are quick to each other, are behind the same slow boundary.
    """
    by_link = [known.over(*link.pair) for link in links if link.named]
    half = median(by_link) / 2 if by_link else math.inf
    slow = set()
    for pair in known.logs:
        by_node = [math.log(scores[node].slower) / 2 for node in pair if scores[node].named]
        if known.over(*pair) > min([half, *by_node]):
            slow.add(pair)
    groups = [group for group in _components(known.count, set(known.logs) - slow) if len(group) > 1]
    if len(groups) < 2:
        return None
    place = {node: number for number, group in enumerate(groups) for node in group}
    across = [pair for pair in slow if pair[0] in place and pair[1] in place and place[pair[0]] != place[pair[1]]]
    return Boundary(tuple(groups), _factor(median([known.over(*pair) for pair in across])))


def _components(count: int, pairs: Collection[Pair]) -> list[tuple[int, ...]]:
    group = list(range(count))
    for one, other in pairs:
        if group[one] != group[other]:
            old, new = group[other], group[one]
            group = [new if each == old else each for each in group]
    return [tuple(node for node in range(count) if group[node] == each) for each in sorted(set(group), key=group.index)]


def _acquitted(known: _Times, boundary: Boundary, scores: Mapping[int, NodeScore]) -> tuple[dict[int, NodeScore], list[Link]]:
    """Return scores and links, none of them named for what the boundary explains."""
    place = {node: number for number, group in enumerate(boundary.groups) for node in group}
    cleared = {node: replace(score, named=score.named and node not in place) for node, score in scores.items()}
    across = {pair for pair in known.logs if len({place.get(node) for node in pair} - {None}) == 2}
    return cleared, [replace(link, named=link.named and link.pair not in across) for link in _links(known, cleared)]


def _reach(known: _Times, effect: float, error: float) -> tuple[Interval, float]:
    """Return the 95 % interval of an effect as times slower, and its lower end at the level of all comparisons together."""
    if known.sweeps < 2:
        return Interval(0.0, math.inf, _SHOWN), 0.0
    comparisons = known.count + len(known.logs)
    half = student(known.sweeps - 1, (1 + _SHOWN) / 2) * error
    least = _factor(effect - student(known.sweeps - 1, 1 - LEVEL / comparisons) * error)
    return Interval(_factor(effect - half), _factor(effect + half), _SHOWN), least


def _variance(values: Sequence[float]) -> float:
    """Return the variance of the mean of these."""
    return deviation(values) ** 2 / len(values) if len(values) > 1 else 0.0


def _within_reach(found: Sequence[tuple[float, float]]) -> float:
    """Return how slow one has to be to be named nine times of ten, with nine of ten of these values and lower ends."""
    widths = sorted(math.log(slower / least) if least else math.inf for slower, least in found)
    return _factor(_MARGIN + _SURELY * widths[math.ceil(0.9 * len(widths)) - 1])


def _low_median(values: Sequence[float]) -> float:
    """Return the middle value, of two the lower: of three nodes, one bad link is no reason to accuse its two nodes."""
    return sorted(values)[(len(values) - 1) // 2]


def _factor(effect: float) -> float:
    return math.exp(max(-700.0, min(effect, 700.0)))
