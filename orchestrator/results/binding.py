"""The CPUs that ranks were bound to, from the records of their wrappers, which read them back from
the kernel.

>>> bound = {rank: Bound("cores", cpus) for rank, cpus in enumerate(("0-1", "2-3", "2-3"))}
>>> binding_words({"n1": bound, "n2": bound}), find_shared_cores({"n1": bound})
('cores: 0-1, 2-3 on n[1-2]', ['ranks 1 and 2 share CPUs 2-3 of n1: fewer cores than ranks'])
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from orchestrator.inventory import fold
from orchestrator.notes import Note
from orchestrator.record.node_record import Bound, ExitRecord
from orchestrator.results.notes import SHARED_CORES


def read_bindings(records: Mapping[str, ExitRecord]) -> dict[str, dict[int, Bound]]:
    """Return by host the CPUs of the ranks that were bound to some, in order."""
    bound = {}
    for host, record in records.items():
        ranks = {rank.rank: rank.bound for rank in record.ranks if rank.bound}
        if ranks:
            bound[host] = ranks
    return bound


def binding_words(bound: Mapping[str, Mapping[int, Bound]]) -> str:
    """Return how ranks were bound: the CPUs of each local rank, for hosts where they are the same;
    empty for not at all.
    """
    hosts_by_words: dict[str, list[str]] = {}
    for host, ranks in bound.items():
        first, *_ = ranks.values()
        words = f"{first.binding}: {', '.join(dict.fromkeys(rank.cpus for rank in ranks.values()))}"
        hosts_by_words.setdefault(words, []).append(host)
    return "; ".join(f"{words} on {fold(hosts)}" for words, hosts in hosts_by_words.items())


def find_shared_cores(bound: Mapping[str, Mapping[int, Bound]]) -> list[Note]:
    """Return a warning for each two ranks of a node that have CPUs in common though each should
    have cores of its own.
    """
    notes = []
    for host, ranks in bound.items():
        of_cores = [rank for rank in ranks if ranks[rank].binding == "cores"]
        for first, second in combinations(of_cores, 2):
            if ranks[first].cpu_set & ranks[second].cpu_set:
                notes.append(
                    SHARED_CORES(first=first, second=second, cpus=ranks[first].cpus, host=host)
                )
    return notes
