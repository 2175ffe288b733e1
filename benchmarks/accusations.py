"""False accusations and detections of `orch accept`, in clusters whose truth is known.

    python benchmarks/accusations.py [--clusters 1000] [--repeats 5]

Each node of a cluster differs from its peers by a lasting share of 0.5 % (standard deviation), and each measurement has noise
of its own. A clean cluster has no other difference; in the others one node is slower by 5, 10 or 20 %. Printed are, for each
kind of noise and size, the clean clusters of which any node is named, all nodes that are named in them, those that stay open
because a node may be slow though none is named, and the clusters in which the slow node is named, alone."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping
from functools import partial

from orchestrator.results.numbers.peers import Peers, against_peers

NATURAL = 0.005
# Residuals of three repeats each of ten configurations of ResNet-50 on H200, in % of the speed, scaled to a standard deviation
# with two degrees of freedom: all rows with n = 3 in docs/results/*.json.
MEASURED = (
    -0.715, -0.324, -0.281, -0.235, -0.188, -0.111, -0.099, -0.092, -0.042, -0.041, -0.036, -0.031, -0.03, -0.006, 0.004,
    0.025, 0.027, 0.032, 0.036, 0.072, 0.086, 0.088, 0.1, 0.142, 0.182, 0.191, 0.254, 0.276, 0.32, 0.395,
)  # fmt: skip


def _heavy(generator: random.Random, scale: float) -> float:
    """Return a value of Student's t with 3 degrees of freedom, times ``scale``."""
    chi = sum(generator.gauss(0, 1) ** 2 for _ in range(3))
    return scale * generator.gauss(0, 1) / math.sqrt(chi / 3)


def _measured(generator: random.Random, factor: float) -> float:
    return factor * generator.choice(MEASURED) / 100


def _disturbed(generator: random.Random) -> float:
    """Return measured noise, with one measurement in twenty 10 % slower because something else runs on the node."""
    return _measured(generator, 1.0) - (0.10 if generator.random() < 0.05 else 0.0)


NOISE: Mapping[str, Callable[[random.Random], float]] = {
    "measured": partial(_measured, factor=1.0),
    "measured, five times": partial(_measured, factor=5.0),
    "normal, 1 %": lambda generator: generator.gauss(0, 0.01),
    "t with 3 degrees, 1 %": partial(_heavy, scale=0.01),
    "t with 3 degrees, 3 %": partial(_heavy, scale=0.03),
    "measured, 5 % disturbed": _disturbed,
}


def cluster(
    generator: random.Random, nodes: int, repeats: int, noise: Callable[[random.Random], float], slow: float = 0.0
) -> dict[str, list[float]]:
    """Return the speeds of each node, repeat by repeat; node 0 is slower by the share ``slow``."""
    drift = [generator.gauss(0, 0.01) for _ in range(repeats)]
    lasting = [generator.gauss(0, NATURAL) - (math.log1p(slow) if node == 0 else 0.0) for node in range(nodes)]
    return {str(n): [math.exp(lasting[n] + of_repeat + noise(generator)) for of_repeat in drift] for n in range(nodes)}


def judged(values: Mapping[str, list[float]], margin: float = 0.03) -> Peers:
    """Return the verdicts of the nodes of a cluster."""
    peers = against_peers(values, margin=margin)
    assert peers
    return peers


def named(values: Mapping[str, list[float]]) -> list[str]:
    """Return the nodes that are named."""
    return [name for name, unit in judged(values).units.items() if unit.named]


def is_open(peers: Peers) -> bool:
    """Return True if none is named and a node may be slow, or so many are faster that the others may be."""
    units = peers.units.values()
    return not any(unit.named for unit in units) and (any(unit.suspect or unit.apart for unit in units) or bool(peers.ahead))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print("| noise | nodes | clean clusters with a node named | nodes named in all of them | clean, open | 5 % | 10 % | 20 % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, noise in NOISE.items():
        for nodes in (4, 16, 64, 256):
            generator = random.Random(args.seed)
            verdicts = [judged(cluster(generator, nodes, args.repeats, noise)) for _ in range(args.clusters)]
            clean = [sum(unit.named for unit in peers.units.values()) for peers in verdicts]
            left_open = sum(map(is_open, verdicts))
            detected = []
            for slow in (0.05, 0.10, 0.20):
                few = max(1, args.clusters // 5)
                hits = sum(named(cluster(generator, nodes, args.repeats, noise, slow)) == ["0"] for _ in range(few))
                detected.append(f"{100 * hits / few:.0f} %")
            of_all = f"{sum(clean)} of {nodes * args.clusters}"
            counts = f"{sum(map(bool, clean))} of {args.clusters} | {of_all} | {left_open}"
            print(f"| {name} | {nodes} | {counts} | {' | '.join(detected)} |", flush=True)


if __name__ == "__main__":
    main()
