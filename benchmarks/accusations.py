"""False accusations and detections of `orch accept`, in clusters whose truth is known.

    PYTHONPATH=. python benchmarks/accusations.py [--clusters 1000] [--nodes 16,64,256] [--repeats 3,5,9] [--noise WORD,WORD]

The clusters are those of `clusters.py`. A clean one has no difference but noise and what equal
nodes differ by; in the others one node is slower by 3, 5, 6 or 10 %. The margin is 3 %.
Printed are, for each kind of noise, size and number of repeats, the clean clusters with a node
failed; of a twentieth of them, those that the bar leaves undecided, and in how many repeats it says
that a node 6 % slow is found; and, of a fifth as many clusters with a slow node, the share in which
it is failed, alone.

It runs on all processors (`--jobs`), in an environment with orch. Each cluster has a seed of its
own, so that a table does not depend on their number; a row is printed as soon as it is complete."""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from benchmarks.clusters import NOISE, cluster
from orchestrator.features.accept.peer_power import find_least_slowdown, repeats_that_find
from orchestrator.features.accept.peers import Peers, against_peers

MARGIN, FIND = 0.03, 0.06


def judged(values: Mapping[str, list[float]], margin: float = MARGIN) -> Peers:
    """Return the verdicts of the nodes of a cluster."""
    peers = against_peers(values, margin=margin)
    assert peers
    return peers


def named(values: Mapping[str, list[float]]) -> list[str]:
    """Return the nodes that are named."""
    return [name for name, unit in judged(values).units.items() if unit.named]


def is_open(values: Mapping[str, list[float]], peers: Peers) -> bool:
    """Return True if no node is named, and the bar is undecided: a node measured slower than it
    allows, so many are faster that the others may be slow, or a node that is slower by twice the
    margin may be missed."""
    units = peers.units.values()
    if any(unit.named for unit in units):
        return False
    if any(unit.beyond or unit.suspect for unit in units) or peers.ahead:
        return True
    return find_least_slowdown(values, peers, margin=MARGIN) > FIND


@dataclass(frozen=True, slots=True)
class Part:
    """Some clusters of a row: the kind of noise by its name, nodes and repeats of each, the share
    by which one node is slower, 0 for none, and the numbers of the clusters. Of the first
    ``looked`` numbers it is told what the bar says of them."""

    noise: str
    nodes: int
    repeats: int
    slow: float
    numbers: range
    looked: int
    seed: int

    def generator(self, number: int) -> random.Random:
        """Return the source of a cluster's numbers: the same in whatever part it is."""
        return random.Random(
            f"{self.seed} {self.noise} {self.nodes} {self.repeats} {self.slow} {number}"
        )


@dataclass(slots=True)
class Counted:
    """Counts of clusters and their verdicts.

    ``failed``: with a failed node; among clusters with a slow node, with this one alone.
    ``undecided``: without a verdict. ``needed``: repeats to find a node that is slower by `FIND`,
    infinite if none would do.
    """

    clusters: int = 0
    failed: int = 0
    undecided: int = 0
    needed: list[float] = field(default_factory=list)

    def add(self, other: Counted) -> None:
        """Add what came of others."""
        self.clusters += other.clusters
        self.failed += other.failed
        self.undecided += other.undecided
        self.needed += other.needed


def counted(part: Part) -> Counted:
    """Judge the clusters of a part."""
    made = Counted(len(part.numbers))
    for number in part.numbers:
        values = cluster(
            part.generator(number), part.nodes, part.repeats, NOISE[part.noise], part.slow
        )
        peers = judged(values)
        blamed = [name for name, unit in peers.units.items() if unit.named]
        made.failed += blamed == ["0"] if part.slow else bool(blamed)
        if not part.slow and number < part.looked:
            made.undecided += is_open(values, peers)
        if not part.slow and number < 3:
            made.needed.append(repeats_that_find(values, FIND, margin=MARGIN) or math.inf)
    return made


def parts(
    row: tuple[str, int, int], slower: list[float], clusters: int, seed: int
) -> Iterator[Part]:
    """Yield the parts of a row; one takes a few seconds at most."""
    noise, nodes, repeats = row
    size = max(1, 2048 // nodes)
    for slow in (0.0, *slower):
        count = max(1, clusters // 5) if slow else clusters
        for first in range(0, count, size):
            numbers = range(first, min(first + size, count))
            yield Part(noise, nodes, repeats, slow, numbers, max(1, clusters // 20), seed)


def cells(of_shares: Mapping[float, Counted], looked: int) -> str:
    """Return what came of the clusters of a row, by the share that a node is slower, as cells of a
    table.
    """
    clean = of_shares[0.0]
    least = median(clean.needed)
    enough = f"{least:.0f}" if math.isfinite(least) else "none"
    found = [
        f"{100 * made.failed / made.clusters:.0f} %" for slow, made in of_shares.items() if slow
    ]
    shares = f"{100 * clean.failed / clean.clusters:.1f} % | {100 * clean.undecided / looked:.0f} %"
    return " | ".join([shares, enough, *found])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--nodes", default="4,16,64,256")
    parser.add_argument("--repeats", default="5")
    parser.add_argument(
        "--noise", default="", help="only kinds whose name has one of these words, with commas"
    )
    parser.add_argument("--slower", default="3,5,6,10", help="by how many %% one node is slower")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    kinds = [name for name in NOISE if any(word in name for word in args.noise.split(","))]
    sizes, counts = (list(map(int, text.split(","))) for text in (args.nodes, args.repeats))
    slower = [float(text) / 100 for text in args.slower.split(",")]
    percents = " | ".join(f"{100 * slow:g} %" for slow in slower)
    print(
        f"| noise | nodes | repeats | clean, a node failed | clean, undecided | repeats for 6 % | {percents} |"
    )
    print("|---|" + "---:|" * (5 + len(slower)), flush=True)
    rows = [
        (kind, nodes, repeats) for nodes, kind, repeats in product(sizes, kinds, counts)
    ]  # the quick ones first
    started = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        tasks = {}
        for row in rows:
            for part in parts(row, slower, args.clusters, args.seed):
                tasks[pool.submit(counted, part)] = row, part.slow
        made = {row: {slow: Counted() for slow in (0.0, *slower)} for row in rows}
        missing = Counter(row for row, _ in tasks.values())
        for task in as_completed(tasks):
            row, slow = tasks[task]
            made[row][slow].add(task.result())
            missing[row] -= 1
            if not missing[row]:
                print(
                    f"| {' | '.join(map(str, row))} | {cells(made[row], max(1, args.clusters // 20))} |",
                    flush=True,
                )
                done = sum(not count for count in missing.values())
                print(
                    f"{done} of {len(rows)} rows, {time.monotonic() - started:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )


if __name__ == "__main__":
    main()
