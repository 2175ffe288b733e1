"""Compare the collectives of all ranks in their flight recorders.

A rank that leaves a collective out, or gives another size, often ends another rank with an error,
or hangs only at a later collective: the first difference is what counts. Collectives are numbered
within one process group.

A majority alone proves nothing: a program may compute a size from its rank or from its data, and
those of whom nothing was heard may have called either. A rank is named only if it is alone, while
all others called the same and would be most even if those unheard had not; and for a size or a type
only if it leaves what it did before. Otherwise it is said who called what, and nobody is named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from orchestrator.features.hang.cause import subject
from orchestrator.features.hang.node_report import Collective, RankSeen
from orchestrator.grouping import group_pairs

_EQUAL = (
    "_all_gather_base", "_reduce_scatter_base", "all_reduce", "broadcast", "gather", "reduce", "reduce_scatter",
)  # fmt: skip
"""Collectives of torch.distributed to which all ranks give the same sizes; to others they may give
different ones.
"""
_EQUAL_OUTPUTS = ("all_gather", "scatter")
"""Those from which all ranks get the same sizes: they may give different ones, or but one gives."""
_OF_SOME = re.compile(r"(send|recv)\b|coalesced$")
_LEAST_RANKS = 3
_MOST_SHOWN = 8
_Call = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """Calls of ranks that do not belong together. ``words`` continue the name of the ``odd`` rank;
    if nobody may be named it is None, and they are a sentence about all."""

    words: str
    odd: int | None = None


def find_difference(ranks: Mapping[int, RankSeen], total: int) -> Difference | None:
    """Return how the calls of ranks differ where they first do, None if they do not as far as they
    are known. ``total``: the number of all ranks of the run."""
    by_group = {number: _by_group(seen) for number, seen in ranks.items()}
    recorded = {number: calls for number, calls in by_group.items() if calls}
    unheard = total - len(recorded)
    groups = {group for calls in recorded.values() for group in calls}
    found: list[Difference] = []
    for group in sorted(groups):
        members = {number: calls[group] for number, calls in recorded.items() if group in calls}
        # A difference in one group may be the consequence of one in another.
        found += islice(_differences(members, unheard), 1)
    if not found:
        return _apart(ranks) if not unheard else None
    accused = {difference.odd for difference in found}
    if len(accused) == 1:
        return found[0]
    return next(
        (difference for difference in found if difference.odd is None),
        Difference("ranks differ in several process groups, and nobody is known to be wrong"),
    )


def _differences(
    members: Mapping[int, Mapping[int, Collective]], unheard: int
) -> Iterator[Difference]:
    """Yield what differs under each number of a process group, whose ``members`` called these
    collectives.
    """
    for at in sorted(set.intersection(*map(set, members.values()))):
        calls = _compare({number: own[at] for number, own in members.items()})
        (most, count), *others = Counter(calls.values()).most_common()
        if not others:
            continue
        odd = next(number for number, call in calls.items() if call != most)
        is_alone = count == len(calls) - 1 and len(calls) >= _LEAST_RANKS
        is_most = count > 1 + unheard
        usual = next(own[at] for number, own in members.items() if calls[number] == most)
        if is_alone and is_most and _is_out_of_turn(members[odd], at, usual):
            yield Difference(_difference(at, calls[odd], most), odd)
        else:
            yield Difference(_list_sides(at, calls))


def find_agreement(ranks: Mapping[int, RankSeen], total: int) -> str:
    """Return the last call of all ranks but one, such as "ranks 0, 2 called all-reduce 178 of sizes
    [[64]]"; empty if it is not the same, or new after the call before. If ranks called different
    collectives, the one that is missing called another. Empty also where any call may differ in
    size: what was sent to that rank may be the mistake.
    """
    entries = [
        entry for seen in ranks.values() for entry in (*seen.earlier, *(seen.collectives or ()))
    ]
    if not all(_name(entry) in (*_EQUAL, "barrier") for entry in entries):
        return ""
    last = {number: seen.collectives[-1] for number, seen in ranks.items() if seen.collectives}
    if len(last) != total - 1 or total < _LEAST_RANKS:
        return ""
    calls = {(entry.group, entry.number, _identify(entry)) for entry in last.values()}
    entry = next(iter(last.values()))
    by_group = (_by_group(ranks[number]).get(entry.group, {}) for number in last)
    if len(calls) > 1 or not all(_has_followed(own, entry.number, entry) for own in by_group):
        return ""
    call = _spell((_name(entry), _sizes(entry)), entry.number)
    return f"{subject(tuple(sorted(last)))} called {call}"


def _is_out_of_turn(own: Mapping[int, Collective], at: int, usual: Collective) -> bool:
    """Return True if what others called, in place of what a rank did, cannot be the mistake: it is
    another collective, or has followed the call before, as what the rank did never has.
    """
    if _name(own[at]) != _name(usual):
        return True
    return _has_followed(own, at, usual) and not _has_followed(own, at, own[at])


def _has_followed(own: Mapping[int, Collective], at: int, entry: Collective) -> bool:
    """Return True if a rank has earlier made such a call after one like that before ``at``."""
    if at - 1 not in own:
        return False
    pair = (_identify(own[at - 1]), _identify(entry))
    return any(
        number < at
        and number - 1 in own
        and (_identify(own[number - 1]), _identify(own[number])) == pair
        for number in own
    )


def _identify(entry: Collective) -> tuple[str, str, str]:
    return _name(entry), _sizes(entry), entry.types


def _apart(ranks: Mapping[int, RankSeen]) -> Difference | None:
    """Return the rank that waits in another process group than all others, with the same calls
    before it: each group waits for the ranks that wait in the other one. DistributedDataParallel
    has a group of its own. None where a group lacks a rank, or several do so."""
    if len(ranks) < _LEAST_RANKS:
        return None
    done = {number: _last_calls(seen) for number, seen in ranks.items()}
    waits = {number: entry for number, seen in ranks.items() if (entry := seen.pending)}
    if any(map(_is_of_some, waits.values())):
        return None
    if len(waits) < len(ranks) or len({frozenset(calls.items()) for calls in done.values()}) > 1:
        return None
    (most, count), *others = Counter(map(_place, waits.values())).most_common()
    groups = {entry.group for entry in waits.values()}
    if not others or count < len(ranks) - 1 or len(groups) != 2:
        return None
    if not groups <= next(iter(done.values())).keys():
        return None
    odd = next(number for number, entry in waits.items() if _place(entry) != most)
    _, number, name = most
    own = waits[odd]
    words = f"called {_spell((_name(own), ''), own.number)}"
    return Difference(f"{words}, the others {_spell((name, ''), number)}", odd)


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


def _list_sides(at: int, calls: Mapping[int, _Call]) -> str:
    """Return who called what under a number.

    >>> _list_sides(25, {0: ("reduce", "[[8]]"), 1: ("reduce", "[[8]]"), 2: ("barrier", "")})
    'ranks disagree, and nobody is known to be wrong: ranks 0, 1 called reduce 25 of sizes [[8]]; rank 2 called barrier 25'
    """
    sides = group_pairs((call, number) for number, call in sorted(calls.items()))
    parts = [f"{subject(tuple(side))} called {_spell(call, at)}" for call, side in sides.items()]
    shown = "; ".join(parts[:_MOST_SHOWN])
    return f"ranks disagree, and nobody is known to be wrong: {shown}"


def _spell(call: _Call, number: int) -> str:
    name, sizes = call
    return f"{name.replace('_', '-')} {number}" + (f" of sizes {sizes}" if sizes else "")


def groups_of(seen: RankSeen) -> set[str]:
    """Return the process groups in which a rank is recorded to have called anything."""
    return {entry.group for entry in (*seen.earlier, *(seen.collectives or ()))}


def _by_group(seen: RankSeen) -> dict[str, dict[int, Collective]]:
    """Return the collectives of a rank by group and number."""
    calls: dict[str, dict[int, Collective]] = {}
    for entry in (*seen.earlier, *(seen.collectives or ())):
        if not _is_of_some(entry):
            calls.setdefault(entry.group, {})[entry.number] = entry
    return calls


def _is_of_some(entry: Collective) -> bool:
    """Return True for a `send` or `recv`, and a batch of them: NCCL's recorder gives it the number
    of the collective before."""
    return _OF_SOME.match(_name(entry)) is not None


def _compare(entries: Mapping[int, Collective]) -> dict[int, _Call]:
    """Return the calls of ranks as far as they have to be the same: names, and sizes; types only
    where they differ.
    """
    calls = {number: (_name(entry), _sizes(entry)) for number, entry in entries.items()}
    # One that gives nothing, such as most in a scatter, has no type.
    types = {number: entries[number].types for number, (_, sizes) in calls.items() if sizes}
    if len({given for given in types.values() if given}) < 2:
        return calls
    return {
        number: (name, f"{sizes} in {types[number]}" if types.get(number) else sizes)
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
