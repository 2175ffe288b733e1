"""Find the slow node, link or boundary between groups from the times of all pairs of nodes.

No node serves as a reference. The model is additive in logarithms: log(time of a pair in a sweep) =
level + node + node + link + drift of the sweep + noise. Medians keep a slow node from affecting the
scores of its partners, and a slow link from affecting its two nodes' scores. A culprit is named if
even the lower end of its interval, at a level for all nodes and links together, is slower than the
others by more than `MARGIN`.

>>> slow = {pair: [3.0, 3.1, 2.9, 3.0] if 2 in pair else [1.0, 1.1, 0.9, 1.0] for pair in combinations(range(6), 2)}
>>> [f"{node.node}: {node.slower:.1f}x" for node in diagnosis(slow, 6).nodes if node.named]
['2: 3.0x']
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.numbers.t_distribution import student
from orchestrator.results.numbers.throughput import deviation, mean, median

Pair = tuple[int, int]
"""Two nodes by their node_rank, the lower one first."""

MARGIN = 0.10
"""A node or link that is slower than the others by less is never named."""
LEVEL = 0.01
"""The chance that any node or link at all is named although none is slower than `MARGIN` allows."""
_MARGIN = math.log1p(MARGIN)
_SHOWN = 0.95
_MOST_OF = 0.75
"""A slow node is slow to at least this share of its partners; otherwise its links are slow."""
_TO_DEVIATION = 1.4826
"""Factor from the median distance from the median to the standard deviation, for a normal
distribution.
"""
_SURELY = 1.6
"""An effect this many times the distance of its lower end beyond the margin is named nine times out
of ten, not one in two.
"""
_OF_MEDIAN = math.pi / 2
"""The ratio of a median's variance to a mean's, for many normal values."""


@dataclass(frozen=True, slots=True)
class NodeScore:
    """The slowdown of a node.

    ``slower`` is how many times slower it is to its median partner than an ordinary pair, with the
    95 % interval. ``least`` is the lower end at the level of all comparisons together; to
    ``slow_to`` of its ``partners`` the node is at least half as slow.
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
    """The slowdown of a pair beyond its two nodes' slowdowns, with the 95 % interval; ``least`` as for
    a node.
    """

    pair: Pair
    slower: float
    interval: Interval
    least: float
    named: bool


@dataclass(frozen=True, slots=True)
class Boundary:
    """Groups of two or more nodes that are ordinary within themselves; all pairs across are slow,
    ``slower`` in the median.
    """

    groups: tuple[tuple[int, ...], ...]
    slower: float


@dataclass(frozen=True, slots=True)
class Culprits:
    """The diagnosis from the times of all pairs.

    ``relative`` holds each pair's time over the ordinary time ``ordinary_s``. ``seen_node`` and
    ``seen_link`` are the factors by which a node, or a link, would have to be slower to be named at
    the measured noise.
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
        """Return whether nothing stands out."""
        return not self.boundary and not any(
            [score.named for score in self.nodes] + [link.named for link in self.links]
        )


@dataclass(frozen=True, slots=True)
class _Times:
    """Logarithms of times by pair, without the drift from sweep to sweep, and values derived from
    them.
    """

    count: int
    sweeps: int
    logs: Mapping[Pair, Sequence[float]]
    centre: Mapping[Pair, float]
    ordinary: Collection[Pair]
    base: float
    link_deviation: float
    comparisons: int

    def of(self, node: int, other: int) -> Sequence[float]:
        return self.logs[min(node, other), max(node, other)]

    def over(self, node: int, other: int) -> float:
        return self.centre[min(node, other), max(node, other)] - self.base


def diagnosis(times: Mapping[Pair, Sequence[float]], nodes: int, groups: int = 1) -> Culprits:
    """Return the diagnosis from the seconds by pair of ``nodes``: one value per sweep, in the same
    order for all pairs. `LEVEL` holds for ``groups`` of as many nodes together.

    Two nodes form a single pair, which cannot be compared with another; of three, one node or one
    link can be named. The noise of a single sweep is unknown, so nothing is named then.
    """
    prepared = _prepare_times(times, nodes, groups)
    scores = _scores(prepared)
    links = _links(prepared, scores)
    if accused := _find_culprits(prepared, scores, links):
        scores |= {node: replace(scores[node], named=True) for node in accused}
        links = _links(prepared, scores)
    boundary = _boundary(prepared, scores, links)
    if boundary:
        scores, links = _acquit(prepared, boundary, scores)
    return Culprits(
        sweeps=prepared.sweeps,
        ordinary_s=math.exp(prepared.base),
        nodes=tuple(scores.values()),
        links=tuple(links),
        boundary=boundary,
        relative={pair: _factor(prepared.over(*pair)) for pair in prepared.logs},
        seen_node=_within_reach([(score.slower, score.least) for score in scores.values()]),
        seen_link=_within_reach([(link.slower, link.least) for link in links]),
    )


def _prepare_times(times: Mapping[Pair, Sequence[float]], count: int, groups: int) -> _Times:
    if sorted(times) != list(combinations(range(count), 2)):
        raise ValueError(f"expected every pair of {count} nodes")
    logs = {pair: list(map(math.log, times[pair])) for pair in sorted(times)}
    sweeps = min(map(len, logs.values()))
    # The drift of a sweep is relative to each pair's own median, so that a slow pair does not
    # affect it.
    middle = {pair: median(values) for pair, values in logs.items()}
    drift = []
    for sweep in range(sweeps):
        drift.append(median([values[sweep] - middle[pair] for pair, values in logs.items()]))
    logs = {
        pair: [value - off for value, off in zip(values, drift, strict=True)]
        for pair, values in logs.items()
    }
    centre = {pair: mean(values) for pair, values in logs.items()}
    noise = median(
        [deviation(values) if sweeps > 1 else 0.0 for values in logs.values()]
    ) / math.sqrt(sweeps)
    ordinary, base, scale = _ordinary(centre, count, noise)
    of_links = math.sqrt(max(0.0, scale**2 - noise**2))
    comparisons = groups * (count + len(logs))
    return _Times(count, sweeps, logs, centre, ordinary, base, of_links, comparisons)


def _ordinary(
    centre: Mapping[Pair, float], count: int, noise: float
) -> tuple[frozenset[Pair], float, float]:
    """Return the pairs without a slow node or link, their median, and the scatter of the pairs that
    are faster than it.

    If a third of the nodes are slow, most pairs are; but even then a quarter of a good node's
    partners are good. Slow pairs lie on one side only, so the other side shows the natural scatter
    of pairs.
    """
    quarter = math.ceil((count - 1) / 4) - 1
    quartiles = []
    for node in range(count):
        of_node = sorted(value for pair, value in centre.items() if node in pair)
        quartiles.append(of_node[quarter])
    base, scale = sorted(quartiles)[count // 2], noise
    ordinary: frozenset[Pair] = frozenset()
    while True:
        limit = base + max(2 * _MARGIN, 3 * scale)
        wider = frozenset(pair for pair, value in centre.items() if value <= limit) | ordinary
        if wider == ordinary:
            return ordinary, base, scale
        ordinary = wider
        base = median([centre[pair] for pair in ordinary])
        faster = [base - centre[pair] for pair in ordinary if centre[pair] < base]
        scale = max(noise, _TO_DEVIATION * median(faster)) if faster else noise


def _scores(prepared: _Times) -> dict[int, NodeScore]:
    """Return the score of every node. The slowest is named first and is then left out of the
    reference for the others.
    """
    scores: dict[int, NodeScore] = {}
    named: set[int] = set()
    while True:
        references = _references(prepared, named)
        scores |= {
            node: _node(prepared, node, named, references[node])
            for node in range(prepared.count)
            if node not in named
        }
        newly_named = [score for node, score in scores.items() if score.named and node not in named]
        if not newly_named:
            return dict(sorted(scores.items()))
        named.add(max(newly_named, key=lambda score: score.least).node)


def _references(prepared: _Times, named: Collection[int]) -> list[list[float]]:
    """Return by node the median of the ordinary pairs without it and the named ones, sweep by
    sweep; of all of these pairs if none is left.

    Every sweep is sorted once, and the pairs of a node are stepped over: sorted for every node
    anew, 256 nodes take a minute.
    """
    usual = [pair for pair in prepared.ordinary if not set(pair) & set(named)]
    references: list[list[float]] = [[] for _ in range(prepared.count)]
    for sweep in range(prepared.sweeps):
        ordered = sorted(usual, key=lambda pair: prepared.logs[pair][sweep])
        places: list[list[int]] = [[] for _ in references]
        for place, pair in enumerate(ordered):
            for node in pair:
                places[node].append(place)
        values = [prepared.logs[pair][sweep] for pair in ordered]
        of_all = median([prepared.logs[pair][sweep] for pair in prepared.ordinary])
        for reference, own in zip(references, places, strict=True):
            left = len(values) - len(own)
            middle = {(left - 1) // 2, left // 2}
            reference.append(
                mean([values[_skip_places(at, own)] for at in middle]) if left else of_all
            )
    return references


def _skip_places(index: int, places: Sequence[int]) -> int:
    """Return the place of the element with this index among those that are not at these places,
    which are in order.
    """
    for place in places:
        if place > index:
            break
        index += 1
    return index


def _node(
    prepared: _Times, node: int, named: Collection[int], reference: Sequence[float]
) -> NodeScore:
    """Return a node's score: its pairs with unnamed nodes (with all, if fewer than two are unnamed)
    against pairs without the node, whose median is ``reference``."""
    others = [other for other in range(prepared.count) if other != node]
    partners = [other for other in others if other not in named]
    partners = partners if len(partners) > 1 else others
    effects = []
    for sweep, usual in enumerate(reference):
        effects.append(_low_median([prepared.of(node, other)[sweep] for other in partners]) - usual)
    effect = mean(effects)
    slow_to = sum(prepared.over(node, other) > max(effect, _MARGIN) / 2 for other in others)
    error = math.sqrt(_variance(effects) + _OF_MEDIAN * prepared.link_deviation**2 / len(partners))
    interval, least = _reach(prepared, effect, error)
    is_named = least > 1 + MARGIN and slow_to >= _MOST_OF * len(others) and prepared.count > 2
    return NodeScore(node, _factor(effect), interval, least, slow_to, len(others), is_named)


def _find_culprits(
    prepared: _Times, scores: Mapping[int, NodeScore], links: Sequence[Link]
) -> list[int]:
    """Return the nodes that explain several slow links by one cause: slow to most partners, and
    certainly to some of them.
    """
    nodes = []
    for node, score in scores.items():
        certain = [prepared.over(*link.pair) for link in links if link.named and node in link.pair]
        if certain and not score.named and score.slower > 1 + MARGIN and score.partners > 1:
            slow_to = sum(
                prepared.over(*pair) > min(certain) / 2 for pair in prepared.logs if node in pair
            )
            if slow_to >= _MOST_OF * score.partners:
                nodes.append(node)
    return nodes


def _links(prepared: _Times, scores: Mapping[int, NodeScore]) -> list[Link]:
    """Return every pair's score beyond what its nodes explain: the full effect of a named node, of
    others up to the margin.
    """
    explained = {}
    for node, score in scores.items():
        effect = math.log(score.slower)
        explained[node] = effect if score.named else min(max(effect, 0.0), _MARGIN)
    typical = median([_variance(values) for values in prepared.logs.values()])
    links = []
    for pair, values in prepared.logs.items():
        effect = prepared.over(*pair) - explained[pair[0]] - explained[pair[1]]
        # A pair that happened to be steady is treated as no less noisy than the median pair.
        error = math.sqrt(max(_variance(values), typical) + prepared.link_deviation**2)
        interval, least = _reach(prepared, effect, error)
        # With three nodes, a slow node with a slow link cannot be distinguished from one slow node.
        is_distinct = prepared.count > 3 or (
            prepared.count == 3 and not any(scores[node].named for node in pair)
        )
        links.append(
            Link(pair, _factor(effect), interval, least, least > 1 + MARGIN and is_distinct)
        )
    return links


def _boundary(
    prepared: _Times, scores: Mapping[int, NodeScore], links: Sequence[Link]
) -> Boundary | None:
    """Return the groups of two or more nodes that only slow pairs connect, if there are several.

    A slow node is slow to all partners. Two that seem slow, but are fast to each other, are behind
    the same slow boundary.
    """
    by_link = [prepared.over(*link.pair) for link in links if link.named]
    half = median(by_link) / 2 if by_link else math.inf
    slow = set()
    for pair in prepared.logs:
        by_node = [math.log(scores[node].slower) / 2 for node in pair if scores[node].named]
        if prepared.over(*pair) > min([half, *by_node]):
            slow.add(pair)
    groups = [
        group for group in _components(prepared.count, set(prepared.logs) - slow) if len(group) > 1
    ]
    if len(groups) < 2:
        return None
    place = {node: number for number, group in enumerate(groups) for node in group}
    across = [
        pair
        for pair in slow
        if pair[0] in place and pair[1] in place and place[pair[0]] != place[pair[1]]
    ]
    return Boundary(tuple(groups), _factor(median([prepared.over(*pair) for pair in across])))


def _components(count: int, pairs: Collection[Pair]) -> list[tuple[int, ...]]:
    group = list(range(count))
    for node, other in pairs:
        if group[node] != group[other]:
            old, new = group[other], group[node]
            group = [new if number == old else number for number in group]
    components = []
    for number in sorted(set(group), key=group.index):
        components.append(tuple(node for node in range(count) if group[node] == number))
    return components


def _acquit(
    prepared: _Times, boundary: Boundary, scores: Mapping[int, NodeScore]
) -> tuple[dict[int, NodeScore], list[Link]]:
    """Return scores and links without those named for an effect that the boundary explains."""
    place = {node: number for number, group in enumerate(boundary.groups) for node in group}
    cleared = {
        node: replace(score, named=score.named and node not in place)
        for node, score in scores.items()
    }
    across = {pair for pair in prepared.logs if len({*map(place.get, pair)} - {None}) == 2}
    return cleared, [
        replace(link, named=link.named and link.pair not in across)
        for link in _links(prepared, cleared)
    ]


def _reach(prepared: _Times, effect: float, error: float) -> tuple[Interval, float]:
    """Return the 95 % interval of an effect as a factor, and its lower end at the level of all
    comparisons together.
    """
    if prepared.sweeps < 2:
        return Interval(0.0, math.inf, _SHOWN), 0.0
    half = student(prepared.sweeps - 1, (1 + _SHOWN) / 2) * error
    least = _factor(effect - student(prepared.sweeps - 1, 1 - LEVEL / prepared.comparisons) * error)
    return Interval(_factor(effect - half), _factor(effect + half), _SHOWN), least


def _variance(values: Sequence[float]) -> float:
    """Return the variance of the mean of the values."""
    if len(values) > 1:
        return deviation(values) ** 2 / len(values)
    return 0.0


def _within_reach(scores: Sequence[tuple[float, float]]) -> float:
    """Return the factor that is named nine times out of ten, judged by nine tenths of these (value,
    lower end) pairs.
    """
    widths = sorted(math.log(slower / least) if least else math.inf for slower, least in scores)
    return _factor(_MARGIN + _SURELY * widths[math.ceil(0.9 * len(widths)) - 1])


def _low_median(values: Sequence[float]) -> float:
    """Return the median, the lower one of two middle values: of three nodes, one slow link must not
    name its two nodes.
    """
    return sorted(values)[(len(values) - 1) // 2]


def _factor(effect: float) -> float:
    return math.exp(max(-700.0, min(effect, 700.0)))
