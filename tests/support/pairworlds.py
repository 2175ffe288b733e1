"""Clusters whose truth is known, for the finder of bad nodes and links: times of all pairs with
noise as machines make it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class World:
    """The noise of a world, in logarithms.

    It has the noise of each time; tails as of Student's t with two degrees of freedom; natural
    differences of links and nodes; nodes whose noise differs; a walk over the whole run; the common
    noise of a round; the share of times that are disturbed; the share of sweeps in which a node is
    busy otherwise, for a while.
    """

    noise: float
    heavy: bool = False
    links: float = 0.0
    nodes: float = 0.0
    uneven: float = 0.0
    walk: float = 0.0
    rounds: float = 0.0
    hits: float = 0.0
    busy: float = 0.0


WORLDS = {
    "quiet": World(0.02),
    "links differ": World(0.03, links=0.03, nodes=0.02),
    "heavy tails": World(0.05, heavy=True),
    "uneven": World(0.05, uneven=1.0, links=0.03),
    "drift": World(0.05, walk=0.5, links=0.03),
    "shared cores": World(0.15, links=0.05, nodes=0.03, uneven=0.5, rounds=0.3, hits=0.15),
    "busy for a while": World(0.08, links=0.03, busy=0.1),
}


@dataclass(frozen=True, slots=True)
class Truth:
    """The slow parts and their factors: nodes, links, and pairs across the first ``cut`` nodes.

    With ``adds``, two causes in one pair add up; else the slower one counts.
    """

    nodes: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[Pair, float] = field(default_factory=dict)
    cut: int = 0
    across: float = 1.0
    adds: bool = False

    def slower(self, pair: Pair) -> float:
        """Return the slowdown of a pair, as a logarithm."""
        a, b = pair
        causes = [self.nodes.get(a, 1.0), self.nodes.get(b, 1.0), self.links.get(pair, 1.0)]
        causes.append(self.across if (a < self.cut) != (b < self.cut) else 1.0)
        logs = [math.log(cause) for cause in causes]
        return sum(logs) if self.adds else max(logs)


def times(
    world: World, count: int, sweeps: int, chance: random.Random, truth: Truth | None = None
) -> dict[Pair, list[float]]:
    """Seconds by pair, sweep by sweep."""
    truth = truth or Truth()
    link = {pair: chance.gauss(0, world.links) for pair in combinations(range(count), 2)}
    node = [chance.gauss(0, world.nodes) for _ in range(count)]
    noise = [world.noise * math.exp(chance.gauss(0, world.uneven)) for _ in range(count)]
    seconds: dict[Pair, list[float]] = {pair: [] for pair in link}
    level, busy = 0.0, [0] * count
    for _ in range(sweeps):
        level += chance.gauss(0, world.walk / math.sqrt(sweeps))
        busy = [
            left - 1 if left else chance.randint(1, 3) * (chance.random() < world.busy)
            for left in busy
        ]
        of_round = [chance.gauss(0, world.rounds) for _ in range(count)]
        for pair, own in link.items():
            a, b = pair
            draw = chance.gauss(0, math.hypot(noise[a], noise[b]))
            draw /= (
                math.sqrt(chance.expovariate(1.0)) if world.heavy else 1.0
            )  # a mean square of two normal values
            draw += chance.expovariate(1.5) if chance.random() < world.hits else 0.0
            draw += 0.5 if busy[a] or busy[b] else 0.0
            common = level + of_round[chance.randrange(count)]
            seconds[pair].append(
                1e-3 * math.exp(common + own + node[a] + node[b] + truth.slower(pair) + draw)
            )
    return seconds
