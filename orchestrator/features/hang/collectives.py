"""Find the rank whose collectives differ from most others', in the flight recorders of all.

A rank that leaves a collective out, or gives another size, often ends another rank with an error,
or hangs only at a later collective: the first difference is what counts. Collectives are numbered
within one process group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from orchestrator.features.hang.node_report import Collective, RankSeen

_EQUAL = (
    "_all_gather_base", "_reduce_scatter_base", "all_reduce", "broadcast", "gather", "reduce", "reduce_scatter",
)  # fmt: skip
"""Collectives of torch.distributed to which all ranks give the same sizes; to others they may give
different ones.
"""
_EQUAL_OUTPUTS = ("all_gather", "scatter")
"""Those from which all ranks get the same sizes: they may give different ones, or but one gives."""
_LEAST_RANKS = 3
_MOST_SHOWN = 8
_Call = tuple[str, str]


def differing(ranks: Mapping[int, RankSeen]) -> tuple[list[int], str] | None:
    """Return the ranks that called something else than most others under the first number where any
    did, and the words for what they did; None if all called the same, or most cannot be told. Two
    ranks accuse each other."""
    for at, calls in _conflicts(ranks):
        if len(calls) < _LEAST_RANKS:
            continue
        (most, count), *_ = Counter(calls.values()).most_common()
        odd = [number for number, call in calls.items() if call != most]
        if count * 2 <= len(calls) or len({calls[number] for number in odd}) > 1:
            return None
        return odd, _difference(at, calls[odd[0]], most)
    return _apart(ranks)


def _conflicts(ranks: Mapping[int, RankSeen]) -> Iterator[tuple[int, dict[int, _Call]]]:
    """Yield each number under which the ranks of a group called different things, with the calls
    by rank.
    """
    recorded = {number: _by_group(seen) for number, seen in ranks.items()}
    for group in sorted({group for calls in recorded.values() for group in calls}):
        members = {number: calls[group] for number, calls in recorded.items() if group in calls}
        for at in sorted(set.intersection(*map(set, members.values()))):
            calls = _compare({number: own[at] for number, own in members.items()})
            if len(set(calls.values())) > 1:
                yield at, calls


def _apart(ranks: Mapping[int, RankSeen]) -> tuple[list[int], str] | None:
    """Return the ranks that wait in another process group than most others, with the same calls
    before it: each group waits for the ranks that wait in the other one. DistributedDataParallel
    has a group of its own. None where a group lacks a rank, or most cannot be told."""
    if len(ranks) < _LEAST_RANKS:
        return None
    done = {number: _last_calls(seen) for number, seen in ranks.items()}
    waits = {number: entry for number, seen in ranks.items() if (entry := seen.pending)}
    if len(waits) < len(ranks) or len({frozenset(calls.items()) for calls in done.values()}) > 1:
        return None
    (most, count), *others = Counter(map(_place, waits.values())).most_common()
    groups = {entry.group for entry in waits.values()}
    if len(others) != 1 or count * 2 <= len(ranks) or len(groups) != 2:
        return None
    if not groups <= next(iter(done.values())).keys():
        return None
    odd = [number for number, entry in waits.items() if _place(entry) != most]
    _, number, name = most
    own = waits[odd[0]]
    words = f"called {_spell((_name(own), ''), own.number)}"
    return odd, f"{words}, the others {_spell((name, ''), number)}"


def _last_calls(seen: RankSeen) -> dict[str, int]:
    """Return the number of the last call that a rank is done with, by group."""
    done = {}
    for group, calls in _by_group(seen).items():
        numbers = [number for number, entry in calls.items() if entry.over]
        if numbers:
            done[group] = max(numbers)
    return done


def _place(entry: Collective) -> tuple[str, int, str]:
    return entry.group, entry.number, _name(entry)


def describe_conflict(ranks: Mapping[int, RankSeen]) -> str:
    """Return what ranks called under the first number where any two differ, empty if none do. It
    accuses nobody: which of two is wrong cannot be told, nor is what a rank called that was
    aborted."""
    for at, calls in _conflicts(ranks):
        parts = [f"rank {number} {_spell(call, at)}" for number, call in calls.items()]
        return "different collectives were called: " + ", ".join(parts[:_MOST_SHOWN])
    return ""


def _spell(call: _Call, number: int) -> str:
    name, sizes = call
    return f"{name.replace('_', '-')} {number}" + (f" of sizes {sizes}" if sizes else "")


def _by_group(seen: RankSeen) -> dict[str, dict[int, Collective]]:
    """Return the collectives of a rank by group and number."""
    calls: dict[str, dict[int, Collective]] = {}
    for entry in (*seen.earlier, *(seen.collectives or ())):
        calls.setdefault(entry.group, {})[entry.number] = entry
    return calls


def _compare(entries: Mapping[int, Collective]) -> dict[int, _Call]:
    """Return the calls of ranks as far as they have to be the same: names, and sizes; types only
    where they differ.
    """
    calls = {number: (_name(entry), _sizes(entry)) for number, entry in entries.items()}
    types = {number: entries[number].types for number, (_, sizes) in calls.items() if sizes}
    if len(set(types.values())) < 2:
        return calls
    return {
        number: (name, f"{sizes} in {types[number]}" if sizes else "")
        for number, (name, sizes) in calls.items()
    }


def _name(entry: Collective) -> str:
    return entry.name.rpartition(":")[2]


def _sizes(entry: Collective) -> str:
    """Return the sizes that are the same on all ranks, empty for a collective without any."""
    if _name(entry) in _EQUAL_OUTPUTS:
        return entry.outputs
    return entry.sizes if _name(entry) in _EQUAL else ""


def _difference(number: int, odd: _Call, most: _Call) -> str:
    """Return the words for two calls of one number.

    >>> _difference(119, ("barrier", ""), ("all_reduce", "[[4]]"))
    'called barrier 119, the others all-reduce 119'
    >>> _difference(119, ("all_reduce", "[[5]]"), ("all_reduce", "[[4]]"))
    'called all-reduce 119 of sizes [[5]], the others of sizes [[4]]'
    """
    own, other = (_spell((name, ""), number) for name, _ in (odd, most))
    if own == other:
        return f"called {own} of sizes {odd[1]}, the others of sizes {most[1]}"
    return f"called {own}, the others {other}"
