"""False alarms and misses of the rules by which tools of the field call a node bad.

    PYTHONPATH=. python benchmarks/rules.py [--clusters 400] [--nodes 16,64] [--noise WORD,WORD]

Every rule judges the same simulated clusters (`clusters.py`): clean ones, and the same with one
node slower by 2, 3, 6, 10 or 20 %. `RULES` has each rule with the text that states it. It is
applied as its best user would: only slow nodes count where a rule also names fast ones; a rule that
compares with a reference knows the true level of every repeat; one that compares nodes has the
drift of a repeat removed. Printed are the clean clusters in which any node fails and the slow nodes
that do not: by group of noise, by kind of noise, on the medians of all repeats in place of what the
rule looks at, with a reference of another day, and with limits set for equal false alarms.

It needs an environment with orch. Each cluster has a seed of its own; of more than 128 nodes
there are fewer clusters.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean, median, quantiles

from benchmarks.accusations import Part, is_open, judged
from benchmarks.clusters import NOISE, cluster_and_drift

SLOWER, ONE_IN = (0.02, 0.03, 0.06, 0.10, 0.20), 4
"""By how much a node is made slower, and in one of how many clusters."""
QUIET = ("measured", "H100")
DISTURBED = (
    "one in 10 slower by 6 %",
    "one-sided, exponential 2 %",
    "t with 3 degrees, 1 %",
    "normal, 1 %, 0.6 carried on",
)
KINDS = (*QUIET, *DISTURBED, "one in 10 slower by 10 %, three in four stay", "lab")
OURS = "orch accept"
Speeds = Sequence[Sequence[float]]
"""The speeds of each node, repeat by repeat, over those of a healthy one."""


def first(speeds: Sequence[float]) -> float:
    """Return the speed of the only run that there would be."""
    return speeds[0]


def retested(speeds: Sequence[float]) -> float:
    """Return what a drain at 93 % and, after a second run, at 96.5 % look at."""
    return speeds[0] if speeds[0] < 0.93 else max(speeds[:2])


def _share_of(of_all: Callable[[Sequence[float]], float], share: float) -> Limit:
    return lambda speeds: share * of_all(speeds)


def _reference(share: float) -> Limit:
    return lambda speeds: share


def _deviation(speeds: Sequence[float]) -> float:
    mean = fmean(speeds)
    return math.sqrt(fmean((speed - mean) ** 2 for speed in speeds))


def _distance(speeds: Sequence[float]) -> float:
    """Return the median distance from the median."""
    middle = median(speeds)
    return median(abs(speed - middle) for speed in speeds)


def _below_mean(deviations: float) -> Limit:
    return lambda speeds: fmean(speeds) - deviations * _deviation(speeds)


def _below_median(distances: float) -> Limit:
    return lambda speeds: median(speeds) - distances * _distance(speeds)


def _cleaned_mean(speeds: Sequence[float]) -> float:
    """Return the mean of the nodes that are not 5 % below the mean of those that are left."""
    left = list(speeds)
    while True:
        mean = fmean(left)
        kept = [speed for speed in left if speed >= 0.95 * mean]
        if len(kept) == len(left):
            return mean
        left = kept


def _sniffed(speeds: Sequence[float]) -> float:
    middle = median(speeds)
    return middle - max(_distance(speeds), 0.1 * middle)


def _boxed(speeds: Sequence[float]) -> float:
    lower, _, upper = quantiles(speeds, n=4, method="inclusive")
    return min(_below_mean(2)(speeds), lower - 1.5 * (upper - lower))


Limit = Callable[[Sequence[float]], float]
"""Returns the speed below which a node fails, from those of all nodes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: a node fails if what ``reduced`` makes of its repeats is below ``limit`` of all nodes.

    ``says`` is the rule in words, ``tools`` are those whose texts state it, with the commit or date
    of what was read. ``of_reference``: speeds are over a reference, otherwise over the median node.
    """

    says: str
    tools: str
    reduced: Callable[[Sequence[float]], float]
    limit: Limit
    of_reference: bool = False

    def failed(self, speeds: Speeds, reduced: Callable[[Sequence[float]], float]) -> set[int]:
        """Return the nodes that fail by what ``reduced`` makes of their repeats."""
        of_nodes = [reduced(of_node) for of_node in speeds]
        limit = self.limit(of_nodes)
        return {node for node, speed in enumerate(of_nodes) if speed < limit}


RULES = (
    Rule(
        "one run below 95 % of a reference",
        "ROCm/cvs cvs/lib/rccl_lib.py dddd9143; SuperBench docs/user-tutorial/data-diagnosis.md"
        " 700d6501, with a published baseline; ReFrame docs/tutorial.rst 75479718, its triad",
        first, _reference(0.95), of_reference=True,
    ),
    Rule(
        "one run below 90 % of a reference",
        "NVIDIA/aicr validators/performance/nccl_all_reduce_bw_constraint.go bc05c6be;"
        " ReFrame docs/tutorial.rst 75479718, its copy",
        first, _reference(0.90), of_reference=True,
    ),
    Rule(
        "the best run below 95 % of a reference",
        "NVIDIA/dgxc-benchmarking Exemplar_validation.md 841f546, which lets workloads be run again;"
        " ROCmValidationSuite docs/ug1main.md 21584e14; NVIDIA/DCGM targeted stress 0fb66990",
        max, _reference(0.95), of_reference=True,
    ),
    Rule(
        "one run below 93 %, or two below 96.5 %, of a reference",
        "Azure/ai-infrastructure-on-azure skills/slurm/sku_performance_baseline/SKILL.md a01b073",
        retested, _reference(0.965), of_reference=True,
    ),
    Rule(
        "one run 5 % below the mean of the nodes that pass",
        "SuperBench superbench/analyzer/baseline_generation.py 700d6501",
        first, _share_of(_cleaned_mean, 0.95),
    ),
    Rule(
        "one run 2 % off the median",
        "oci-hpc playbooks/roles/healthchecks/files/active_healthcheck.py b5285a68, of disks",
        first, _share_of(median, 0.98),
    ),
    Rule(
        "one run 1 SD off the mean",
        "Megatron-LM megatron/training/gpu_sniff_test.py d98e8a64, its docstring",
        first, _below_mean(1),
    ),
    Rule(
        "one run off the median by the MAD and 10 %",
        "Megatron-LM megatron/training/gpu_sniff_test.py d98e8a64, its code",
        first, _sniffed,
    ),
    Rule(
        "one run 2 SD below the mean",
        "Azure/ai-infrastructure-on-azure skills/slurm/cluster_outlier_detection/SKILL.md a01b073,"
        " to be investigated",
        first, _below_mean(2),
    ),
    Rule(
        "one run 3 SD below the mean",
        "Azure/ai-infrastructure-on-azure, the same file, to be drained",
        first, _below_mean(3),
    ),
    Rule(
        "one run 2 robust SD below the median",
        "Azure/ai-infrastructure-on-azure, the same file, for small fleets",
        first, _below_median(2 / 0.6745),
    ),
    Rule(
        "one run 6 MAD off the median",
        "Intel Cluster Checker's default, by S. A. McMillan of Intel, Beowulf list, 2016-03-25",
        first, _below_median(6),
    ),
    Rule(
        "one run 2 SD and 1.5 IQR out",
        "jianzi123/slow_node scripts/analysis/detect_slow_nodes.py 1fe209e",
        first, _boxed,
    ),
    Rule(
        "the average 10 % below the best",
        "huggingface/gpu-fryer src/main.rs 704ba85, of the devices of a node",
        fmean, _share_of(max, 0.9),
    ),
    Rule(
        "the median below 75 % of the best",
        "nvidia-resiliency-ext src/…/attribution/straggler/reporting.py d8686d9",
        median, _share_of(max, 0.75),
    ),
    Rule(
        "one run twice as long as the median",
        "dlrover dlrover/python/master/elastic_training/rdzv_manager.py 7c3e9648",
        first, _share_of(median, 0.5),
    ),
)  # fmt: skip


def _mean_score(speeds: Sequence[float]) -> list[float]:
    mean, deviation = fmean(speeds), _deviation(speeds)
    return [(mean - speed) / deviation for speed in speeds]


def _median_score(speeds: Sequence[float]) -> list[float]:
    middle, distance = median(speeds), _distance(speeds)
    return [(middle - speed) / distance for speed in speeds]


def _share_score(speeds: Sequence[float]) -> list[float]:
    return [-speed for speed in speeds]


def second_best(speeds: Sequence[float]) -> float:
    """Return the speed that all repeats but one stay below, or reach."""
    return sorted(speeds)[-2]


Score = Callable[[Sequence[float]], list[float]]
SCORES: Mapping[str, tuple[Callable[[Sequence[float]], float], Score]] = {
    "one run": (first, _share_score),
    "the mean of the repeats": (fmean, _share_score),
    "their median": (median, _share_score),
    "the second best of them": (second_best, _share_score),
    "the best of them": (max, _share_score),
    "their median, in SD of all nodes": (median, _mean_score),
    "their median, in MAD of all nodes": (median, _median_score),
}
"""What a limit may be set for: of each node, larger for a slower one, from speeds over the median."""


@lru_cache
def healthy(noise: str) -> float:
    """Return the median speed of a node without lasting difference and drift."""
    generator = random.Random(f"healthy {noise}")
    return math.exp(median(NOISE[noise](generator, 1)[0] for _ in range(20001)))


Key = tuple[str, str, float]
"""How a rule was applied, the rule, and the share by which node 0 is slower, 0 for none."""


@dataclass(slots=True)
class Tally:
    """Counts of clusters. ``judged`` by share, negative for those that are also asked if they would
    pass; ``wrong`` by key: clean ones with a failed node, others whose slow node did not fail.
    ``nodes`` counts the nodes that failed in clean clusters. ``scores``: the largest in a clean
    cluster, that of the slow node in others."""

    judged: Counter[float] = field(default_factory=Counter)
    wrong: Counter[Key] = field(default_factory=Counter)
    nodes: Counter[Key] = field(default_factory=Counter)
    scores: defaultdict[tuple[str, float], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, other: Tally) -> None:
        """Add what came of other clusters."""
        self.judged += other.judged
        self.wrong += other.wrong
        self.nodes += other.nodes
        for key, scores in other.scores.items():
            self.scores[key] += scores

    def count(self, key: Key, failed: set[int]) -> None:
        """Count the verdict on a cluster."""
        if key[2]:
            self.wrong[key] += 0 not in failed
        else:
            self.wrong[key] += bool(failed)
            self.nodes[key] += len(failed)


def over(values: Mapping[str, Sequence[float]], levels: Sequence[float]) -> Speeds:
    """Return the speeds of nodes over the level of each repeat."""
    shares = []
    for of_node in values.values():
        shares.append([value / level for value, level in zip(of_node, levels, strict=True)])
    return shares


def judge(part: Part, number: int, tally: Tally) -> None:
    """Judge a cluster of a part, clean and with a slow node, by all rules."""
    clean, drift = cluster_and_drift(
        part.generator(number), part.nodes, part.repeats, NOISE[part.noise]
    )
    usual = healthy(part.noise)
    for slow in (0.0, *(() if number % ONE_IN else SLOWER)):
        values = clean | {"0": [value / (1 + slow) for value in clean["0"]]}
        medians = [median(of_repeat) for of_repeat in zip(*values.values(), strict=True)]
        among_peers = over(values, medians)
        of_reference = over(values, [usual * factor for factor in drift])
        of_another_day = over(values, [usual] * part.repeats)
        tally.judged[slow] += 1
        for rule in RULES:
            speeds = of_reference if rule.of_reference else among_peers
            tally.count(("stated", rule.says, slow), rule.failed(speeds, rule.reduced))
            tally.count(("medians", rule.says, slow), rule.failed(speeds, median))
            if rule.of_reference:
                failed = rule.failed(of_another_day, rule.reduced)
                tally.count(("another day", rule.says, slow), failed)
        for name, (reduced, score) in SCORES.items():
            scores = score([reduced(of_node) for of_node in among_peers])
            tally.scores[name, slow].append(scores[0] if slow else max(scores))
        peers = judged(values)
        failed = {int(name) for name, unit in peers.units.items() if unit.named}
        tally.count(("stated", OURS, slow), failed)
        if slow and number < part.looked:
            tally.judged[-slow] += 1
            if 0 not in failed and not peers.units["0"].beyond:
                tally.wrong["passed", OURS, slow] += not is_open(values, peers)


def tallied(part: Part) -> Tally:
    """Judge the clusters of a part."""
    tally = Tally()
    for number in part.numbers:
        judge(part, number, tally)
    return tally


def parts(kind: str, nodes: int, args: argparse.Namespace) -> Iterator[Part]:
    """Yield the parts of a kind of noise and a number of nodes."""
    count = max(1, args.clusters * min(128, nodes) // nodes)
    size = max(1, 1024 // nodes)
    for start in range(0, count, size):
        numbers = range(start, min(start + size, count))
        yield Part(kind, nodes, args.repeats, 0.0, numbers, max(1, count // 5), args.seed)


Tallies = Mapping[tuple[str, int], Tally]


class Tables:
    """The tables of all tallies, by kind of noise and number of nodes."""

    def __init__(self, tallies: Tallies) -> None:
        self.tallies = tallies
        self.kinds = list(dict.fromkeys(kind for kind, _ in tallies))
        self.sizes = list(dict.fromkeys(nodes for _, nodes in tallies))

    def pooled(self, kinds: Sequence[str], sizes: Sequence[int]) -> Tally:
        """Return the sum of tallies."""
        pooled = Tally()
        for (kind, nodes), tally in self.tallies.items():
            if kind in kinds and nodes in sizes:
                pooled.add(tally)
        return pooled

    def wrong(self, how: str, rule: str, slow: float, tally: Tally) -> str:
        """Return the share of wrong verdicts in per cent."""
        judged_of = tally.judged[-slow] if how == "passed" else tally.judged[slow]
        return f"{100 * tally.wrong[how, rule, slow] / judged_of:.0f}" if judged_of else "-"

    def by_group(self, how: str, rules: Sequence[str]) -> Iterator[str]:
        """Yield rows of each rule's false alarms by size, and misses by share, in both groups."""
        sizes = ", ".join(map(str, self.sizes))
        shares = ", ".join(f"{100 * slow:.0f}" for slow in SLOWER)
        alarms = f"false alarms, quiet, {sizes} nodes | disturbed"
        yield f"| rule | {alarms} | missed, quiet, {shares} % slower | disturbed |"
        yield "|---|---:|---:|---:|---:|"
        for rule in rules:
            cells = [self.alarms(how, rule, group) for group in (QUIET, DISTURBED)]
            cells += [self.missed(how, rule, group) for group in (QUIET, DISTURBED)]
            yield f"| {rule} | {' | '.join(cells)} |"
        if OURS in rules:
            cells = [self.missed("passed", OURS, group) for group in (QUIET, DISTURBED)]
            yield f"| of these, passed as good | | | {' | '.join(cells)} |"

    def alarms(self, how: str, rule: str, kinds: Sequence[str]) -> str:
        """Return the false alarms by size."""
        cells = [self.wrong(how, rule, 0.0, self.pooled(kinds, [size])) for size in self.sizes]
        return ", ".join(cells)

    def missed(self, how: str, rule: str, kinds: Sequence[str]) -> str:
        """Return the misses by share, in clusters of all sizes."""
        tally = self.pooled(kinds, self.sizes)
        return ", ".join(self.wrong(how, rule, slow, tally) for slow in SLOWER)

    def by_kind(self, nodes: int, rules: Sequence[str]) -> Iterator[str]:
        """Yield rows of each rule's false alarms and misses of 6 and 10 %, by kind of noise."""
        yield f"| {nodes} nodes | {' | '.join(self.kinds)} |"
        yield "|---|" + "---:|" * len(self.kinds)
        for rule in rules:
            cells = []
            for kind in self.kinds:
                of_kind = self.tallies[kind, nodes]
                wrong = [self.wrong("stated", rule, slow, of_kind) for slow in (0.0, 0.06, 0.1)]
                cells.append(", ".join(wrong))
            yield f"| {rule} | {' | '.join(cells)} |"

    def of_nodes(self) -> Iterator[str]:
        """Yield rows of how many of a thousand healthy nodes fail, in both groups."""
        yield "| rule | of 1000 nodes, quiet | disturbed |"
        yield "|---|---:|---:|"
        for rule in (*(rule.says for rule in RULES), OURS):
            cells = []
            for group in (QUIET, DISTURBED):
                failed, nodes = 0, 0
                for (kind, size), tally in self.tallies.items():
                    if kind in group:
                        failed += tally.nodes["stated", rule, 0.0]
                        nodes += size * tally.judged[0.0]
                cells.append(f"{1000 * failed / nodes:.2f}" if nodes else "-")
            yield f"| {rule} | {' | '.join(cells)} |"

    def at_equal_alarms(self, nodes: int, alarms: float) -> Iterator[str]:
        """Yield rows of the misses of 6 and 10 %, with a limit that few clean clusters exceed."""
        yield f"| {nodes} nodes | {' | '.join(self.kinds)} |"
        yield "|---|" + "---:|" * len(self.kinds)
        for name in SCORES:
            cells = []
            for kind in self.kinds:
                scores = self.tallies[kind, nodes].scores
                clean = sorted(scores[name, 0.0])
                limit = clean[math.ceil((1 - alarms) * len(clean)) - 1]
                missed = []
                for slow in (0.06, 0.1):
                    of_slow = scores[name, slow]
                    share = sum(score <= limit for score in of_slow) / len(of_slow)
                    missed.append(f"{100 * share:.0f}")
                cells.append(", ".join(missed))
            yield f"| {name} | {' | '.join(cells)} |"
        yield next(row for row in self.by_kind(nodes, [OURS]) if OURS in row)


def print_tables(tallies: Tallies, middle: int) -> None:
    """Print all tables; those of one number of nodes are of ``middle``."""
    tables = Tables(tallies)
    stated = [*(rule.says for rule in RULES), OURS]
    compared = [rule.says for rule in RULES if rule.of_reference]
    titled = {
        "As stated, %": tables.by_group("stated", stated),
        "On the medians of all repeats, %": tables.by_group("medians", [r.says for r in RULES]),
        "With a reference of another day, %": tables.by_group("another day", compared),
        "Healthy nodes that fail": tables.of_nodes(),
        "False alarms, and misses of 6 and 10 %, in %": tables.by_kind(middle, stated),
        "Misses of 6 and 10 % with a limit for 1 % false alarms, in %; of orch accept as above":
            tables.at_equal_alarms(middle, 0.01),
    }  # fmt: skip
    for title, rows in titled.items():
        print(f"\n{title}\n")
        print("\n".join(rows))


def main() -> None:
    """Judge all clusters, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=400)
    parser.add_argument("--nodes", default="16,64,256,1024")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--noise", default="", help="only kinds that have one of these words")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    kinds = [kind for kind in KINDS if any(word in kind for word in args.noise.split(","))]
    sizes = [int(text) for text in args.nodes.split(",")]
    tallies = {(kind, nodes): Tally() for nodes in sizes for kind in kinds}
    started = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        tasks = {}
        for kind, nodes in tallies:
            for part in parts(kind, nodes, args):
                tasks[pool.submit(tallied, part)] = kind, nodes
        for done, task in enumerate(as_completed(tasks), 1):
            tallies[tasks[task]].add(task.result())
            if done % 50 == 0:
                passed = time.monotonic() - started
                print(f"{done} of {len(tasks)} parts, {passed:.0f} s", file=sys.stderr, flush=True)
    print_tables(tallies, 64 if 64 in sizes else sizes[0])
    print(
        f"\n{sum(t.judged[0.0] for t in tallies.values())} clusters in {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
