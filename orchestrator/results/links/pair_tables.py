"""The results of `orch bench pairs` and `peers` as sentences and tables: slow nodes and links, how certain they
are, and the least slowdown that was detectable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator.inventory import fold
from orchestrator.results.diagnosis_tables import Content, Grid, Repeats
from orchestrator.results.links.culprits import MARGIN, Culprits, Link, NodeScore, Pair
from orchestrator.results.links.pair_times import ONE_WAY, PING
from orchestrator.results.links.pair_verdicts import Group, pair_groups
from orchestrator.results.numbers.throughput import mean, median

_WORST = 10
_HIDDEN = 100.0
"""No verdict is given if a link would have to be more than this many times slower to be named."""
_NODES = ("node", "slower", "from", "to", "sending", "receiving", "slow to", "ping ms", "verdict")
_LINKS = ("node", "node 2", "slower", "from", "to", "GB/s", "over ordinary", "verdict")
"""``slower`` is a factor, ``from`` and ``to`` the ends of its 95 % interval."""
Way = tuple[int, int]
"""Sending node and receiving node."""


def content(repeats: Repeats) -> Content:
    """Return, of all nodes or of the devices of each node: the verdicts, a table of the ends, one of
    the slowest links, and the speed of every pair.
    """
    parts = [_group_content(group) for group in pair_groups(one for _, of in repeats for one in of)]
    grids, said, culprits = (tuple(chain(*of_all)) for of_all in zip(*parts, strict=True))
    return Content(grids, said, culprits)


def _group_content(group: Group) -> tuple[Sequence[Grid], Sequence[str], Sequence[str]]:
    """Return the tables of a group, the lines to show above them, and its culprits."""
    result, names, size = group.culprits(), group.names, group.size_bytes
    ways = _ways(group.times)
    culprits = _culprits(result, names, ways)
    ping_s = {pair: median(values) for pair, values in group.times[PING].items()}
    ping_ms = median(list(ping_s.values())) * 1e3
    of_group = "" if group.title == "nodes" else f" of {group.title}"
    ordinary = f"an ordinary pair{of_group}: {_rate(size, result.ordinary_s):.3g} GB/s each way at once, ping {ping_ms:.3g} ms"
    grids = (
        _node_grid(group, result, ways, ping_s),
        _link_grid(result, names, size),
        _matrix(result, names, size),
    )
    return grids, (*(culprits or _nothing(result, names)), ordinary), culprits


def _ways(times: Mapping[str, Mapping[Pair, Sequence[float]]]) -> dict[Way, float]:
    """Return the ratio of each one-way time to the median one of the median node."""
    logs = {}
    for direction, turned in zip(ONE_WAY, (False, True), strict=True):
        for pair, values in times[direction].items():
            way = pair[::-1] if turned else pair
            logs[way] = mean(list(map(math.log, values)))
    nodes = {way[0] for way in logs}
    of_nodes = []
    for node in nodes:
        of_nodes.append(median([log for way, log in logs.items() if node in way]))
    usual = median(of_nodes)
    return {way: math.exp(log - usual) for way, log in logs.items()}


def _culprits(result: Culprits, names: Sequence[str], ways: Mapping[Way, float]) -> tuple[str, ...]:
    texts = [
        _node_words(score, names, ways)
        for score in sorted(result.nodes, key=_slowest)
        if score.named
    ]
    texts += [
        _link_words(link, names, ways) for link in sorted(result.links, key=_slowest) if link.named
    ]
    if result.boundary:
        groups = " and ".join(
            fold(names[node] for node in group) for group in result.boundary.groups
        )
        texts.append(
            f"between {groups}: {result.boundary.slower:.1f}x slower than within them, as across two switches"
        )
    return tuple(texts)


def _node_words(score: NodeScore, names: Sequence[str], ways: Mapping[Way, float]) -> str:
    partners = "every partner"
    if score.slow_to != score.partners:
        partners = f"{score.slow_to} of {score.partners} partners"
    direction = _slow_direction(
        _sending(ways, score.node),
        _receiving(ways, score.node),
        ", when sending",
        ", when receiving",
    )
    return f"{names[score.node]}: {score.slower:.1f}x slower to {partners} (95 %: {_reach(score)}){direction}"


def _link_words(link: Link, names: Sequence[str], ways: Mapping[Way, float]) -> str:
    a, b = (names[node] for node in link.pair)
    direction = _slow_direction(
        ways[link.pair],
        ways[link.pair[1], link.pair[0]],
        f", from {a} to {b}",
        f", from {b} to {a}",
    )
    return f"link {a} to {b}: {link.slower:.1f}x slower than its nodes explain (95 %: {_reach(link)}){direction}"


def _slow_direction(one_way: float, other_way: float, first: str, second: str) -> str:
    """Return ``first`` or ``second`` for the slow direction; empty unless the other deviates less
    than half as much.
    """
    logs = math.log(one_way), math.log(other_way)
    if max(logs) <= math.log1p(MARGIN) or min(logs) > max(logs) / 2:
        return ""
    return first if logs[0] > logs[1] else second


def _nothing(result: Culprits, names: Sequence[str]) -> tuple[str, ...]:
    relative = list(result.relative.values())
    if len(relative) == 1:
        ends = " and ".join(names)
        return (
            f"{ends} form a single pair, which cannot be compared with another: no verdict. it takes three or more",
        )
    if result.sweeps < 2:
        return ("the noise of a single sweep is unknown: no verdict. use more --steps",)
    if result.seen_link > _HIDDEN:
        return (
            f"the noise of {result.sweeps} sweeps hides nearly everything: no verdict. use more --steps",
        )
    span = f"all pairs within {min(relative) - 1:+.0%} and {max(relative) - 1:+.0%} of the ordinary time"
    node, link = (
        math.ceil(round(10 * times, 6)) / 10 for times in (result.seen_node, result.seen_link)
    )
    detectable = f"a node {node:.1f}x slower, or a link {link:.1f}x, would have been named"
    return (f"nothing stands out: {span}; {detectable}",)


def _node_grid(
    group: Group,
    result: Culprits,
    ways: Mapping[Way, float],
    ping_s: Mapping[Pair, float],
) -> Grid:
    rows = []
    for score in result.nodes:
        pings = [seconds for pair, seconds in ping_s.items() if score.node in pair]
        shown = (
            _sending(ways, score.node),
            _receiving(ways, score.node),
            f"{score.slow_to} of {score.partners}",
        )
        verdict = "slow" if score.named else ""
        name = group.names[score.node]
        rows.append((name, *_score_cells(score), *shown, median(pings) * 1e3, verdict))
    return Grid(f"{group.title}, to their median partner", _NODES, tuple(rows))


def _link_grid(result: Culprits, names: Sequence[str], size: int) -> Grid:
    rows = []
    for place, link in enumerate(sorted(result.links, key=_slowest)):
        if place < _WORST or link.named:
            relative = result.relative[link.pair]
            rate = _rate(size, result.ordinary_s * relative)
            ends = [names[node] for node in link.pair]
            rows.append((*ends, *_score_cells(link), rate, relative, "slow" if link.named else ""))
    return Grid("slowest links, over what their nodes explain", _LINKS, tuple(rows))


def _matrix(result: Culprits, names: Sequence[str], size: int) -> Grid:
    rates: dict[Way, float] = {
        pair: _rate(size, result.ordinary_s * times) for pair, times in result.relative.items()
    }
    order = range(len(names))
    rows = []
    for node in order:
        of_node = (rates.get((min(node, other), max(node, other))) for other in order)
        rows.append((names[node], *of_node))
    titles = ("node", *names)
    return Grid("every pair, GB/s each way at once", titles, tuple(rows))


def _score_cells(score: NodeScore | Link) -> tuple[Any, ...]:
    ends = [
        end if math.isfinite(end) and end > 0 else None
        for end in (score.interval.low, score.interval.high)
    ]
    return score.slower, *ends


def _reach(score: NodeScore | Link) -> str:
    return f"{score.interval.low:.1f} to {score.interval.high:.1f}"


def _sending(ways: Mapping[Way, float], node: int) -> float:
    return median([times for way, times in ways.items() if way[0] == node])


def _receiving(ways: Mapping[Way, float], node: int) -> float:
    return median([times for way, times in ways.items() if way[1] == node])


def _slowest(score: NodeScore | Link) -> float:
    return -score.slower


def _rate(size_bytes: int, seconds: float) -> float:
    """Return GB/s, of 10^9 bytes."""
    return size_bytes / seconds / 1e9
