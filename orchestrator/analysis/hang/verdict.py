"""The verdict on a run that does not go on: which rank, or which link, is the cause, or that it cannot be told.

A rank is named only for what it does itself: it is stopped, frozen, blocked on a pipe that nobody reads, or known to be outside
of a collective in which others wait. A link is named by its two ends. Everything else is said as it was seen, and names nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.hang.activity import Activity, activity, listed
from orchestrator.record.hang_report import HangReport, RankSeen
from orchestrator.record.hang_verdict import MOST_NAMED, Verdict, subject

__all__ = ["LATE", "NOW", "SOON", "gone_on", "verdict"]

NOW = ("frozen", "stopped", "unread")
"""Kinds of verdicts that no working program explains."""
SOON = ("ahead", "asleep", "collectives", "ended", "worker")
"""Kinds that a short pause of a working program may look like."""
LATE = ("computes", "input", "link", "pipe", "storage")
"""Kinds that work, a network, a disk, a store of samples or a slow reader may get over by themselves."""
_EQUAL = ("_all_gather_base", "_reduce_scatter_base", "all_reduce", "broadcast")
"""Collectives of torch.distributed to which all ranks give the same sizes; to others they may give different ones."""
_LEAST_RETRANSMITS = 2
_LATER_S = 1.0
"""A rank has gone on after others had stopped if its last mark is later than theirs by more than this."""


@dataclass(frozen=True, slots=True)
class _Rank:
    host: str
    seen: RankSeen
    does: Activity

    @property
    def step(self) -> int:
        return self.seen.progress.step if self.seen.progress else 0

    @property
    def silent_s(self) -> float:
        return self.seen.progress.silent_s if self.seen.progress else 0.0

    def of_sizes(self, sizes: str) -> _Rank:
        """Return it with the sizes of the collective that it waits in."""
        return replace(self, does=replace(self.does, words=f"{self.does.words} of sizes {sizes}"))


def verdict(reports: Mapping[str, HangReport], placed: Mapping[int, str]) -> Verdict:
    """Return the verdict from the reports of all nodes that answered. ``placed``: the host of every rank of the run."""
    by_rank = {seen.rank: _Rank(host, seen, activity(seen)) for host, report in reports.items() for seen in report.ranks}
    ranks = dict(sorted(by_rank.items()))
    missing = sorted(set(placed.values()) - set(reports))
    if not ranks:
        return Verdict(
            "unknown", "the cause is unknown: " + (f"no report from {listed(missing)}" if missing else "no rank is known")
        )
    for kinds in (("stopped", "frozen"), ("unread",)):
        if named := [number for number, rank in ranks.items() if rank.does.kind in kinds]:
            return _of(named, ranks)
    if missing:
        return _untold(ranks, f"no report from {listed(missing)}")
    waiting = [number for number, rank in ranks.items() if rank.does.kind == "waits"]
    outside = [number for number, rank in ranks.items() if rank.does.is_known]
    pausing = [number for number, rank in ranks.items() if rank.does.kind in ("pauses", "traced")]
    ended = sorted((number, host) for host, report in reports.items() for number in report.ended if number not in ranks)
    others_known = len(waiting) + len(outside) + len(pausing) == len(ranks)
    if waiting and (ahead := _ahead(waiting, ranks)):
        return _of(ahead, ranks, "ahead")
    if waiting and pausing:
        return _untold(ranks, "", "pause")
    if waiting and outside and others_known:
        return _of([number for number in outside if ranks[number].does.kind == "worker"] or outside, ranks)
    if waiting and len(waiting) == len(ranks):
        if ended:
            rest = f"; {_others(waiting, ranks)}"
            host = ended[0][1]
            return Verdict("ended", "ended, with success", rest, host, tuple(number for number, home in ended if home == host))
        return _links(reports, ranks) or _collectives(ranks) or _untold(ranks)
    return _links(reports, ranks) or _untold(ranks)


def gone_on(before: Mapping[str, HangReport], after: Mapping[str, HangReport]) -> Verdict | None:
    """Return the verdict on ranks that have gone on between two looks, None if none has that reports its progress."""
    marks = {seen.rank: seen.progress.marks for report in before.values() for seen in report.ranks if seen.progress}
    now = {seen.rank: seen.progress for report in after.values() for seen in report.ranks if seen.progress}
    moved = sorted(rank for rank, progress in now.items() if marks.get(rank, progress.marks) != progress.marks)
    if not moved:
        return None
    steps = sorted({now[rank].step for rank in moved})
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Verdict("going", f"{subject(tuple(moved))} still made progress, in {where}")


def _of(named: Sequence[int], ranks: Mapping[int, _Rank], kind: str = "") -> Verdict:
    """Return the verdict on ranks: on those of one node that do the same as the first of them."""
    first = ranks[named[0]]
    same = tuple(number for number in named if ranks[number].host == first.host and ranks[number].does.kind == first.does.kind)
    rest = _others([number for number in ranks if number not in same], ranks)
    words = first.does.words
    if kind == "ahead":
        words = f"is ahead of the others{f' in step {first.step}' if first.step else ''}: it {words}"
    return Verdict(kind or first.does.kind, words, f"; {rest}" if rest else "", first.host, same)


def _ahead(waiting: Sequence[int], ranks: Mapping[int, _Rank]) -> list[int]:
    """Return the ranks that have gone on, or to their end, without a collective in which all others wait: later steps alone
    prove nothing, because ranks may count differently. Steps differ by one also where the last message of a collective has not
    arrived everywhere."""
    steps = [ranks[number].step for number in waiting]
    gone = [number for number, rank in ranks.items() if rank.seen.progress and rank.step > min(steps) + 1]
    gone += [
        number
        for number, rank in ranks.items()
        if number not in gone and rank.seen.progress and rank.seen.progress.phase == "end" and rank.step > max(steps)
    ]
    others = [ranks[number] for number in waiting if number not in gone]
    stopped_s = min((rank.silent_s for rank in others), default=0.0)
    # A rank may also begin a step while its GPU works on earlier ones: the collective that it waits in tells, if it is known.
    waited = [rank.does.collective for rank in others if rank.does.collective is not None]
    gone = [n for n in gone if ranks[n].silent_s + _LATER_S < stopped_s and ranks[n].does.collective not in waited]
    return gone if len(gone) * 2 <= len(ranks) and not set(gone) & set(_behind(waiting, ranks)) else []


def _behind(waiting: Sequence[int], ranks: Mapping[int, _Rank]) -> list[int]:
    least = min(ranks[number].step for number in waiting)
    return [number for number in waiting if ranks[number].step == least]


def _collectives(ranks: Mapping[int, _Rank]) -> Verdict | None:
    """Return the verdict where all ranks wait, but not in the same collective of the same group. One that is in the next
    collective already proves nothing: the root of a broadcast is done before the others are."""
    waited = {number: rank.does.collective for number, rank in ranks.items() if rank.does.collective is not None}
    if len(waited) < len(ranks) or len({entry.group for entry in waited.values()}) > 1:
        return None
    sizes = {number: entry.sizes if entry.name.rpartition(":")[2] in _EQUAL else "" for number, entry in waited.items()}
    calls = {number: (entry.name, entry.number, sizes[number]) for number, entry in waited.items()}
    (most, count), *rest = Counter(calls.values()).most_common()
    if not rest:
        return None
    others = [number for number, call in calls.items() if call != most]
    if count * 2 > len(ranks) and len({entry.number for entry in waited.values()}) == 1:
        if len({entry.name for entry in waited.values()}) == 1:
            ranks = {number: rank.of_sizes(sizes[number]) for number, rank in ranks.items()}
        return _of(others, ranks, "collectives")
    return _untold(ranks, "their collectives differ")


def _links(reports: Mapping[str, HangReport], ranks: Mapping[int, _Rank]) -> Verdict | None:
    """Return the verdict where data between two nodes is retransmitted without an answer. Connections to others, such as
    a logging service, prove nothing about the run."""
    homes: dict[str, str] = {}
    for host, report in reports.items():
        for seen in report.ranks:
            homes.update({connection.local: host for connection in seen.connections})
    pairs = {
        tuple(sorted((host, other)))
        for host, report in reports.items()
        for seen in report.ranks
        for connection in seen.connections
        if connection.retransmits >= _LEAST_RETRANSMITS
        and connection.unacknowledged
        and (other := homes.get(connection.remote, host)) != host
    }
    if not pairs:
        return None
    named = [f"{first} and {second}" for first, second in sorted(pairs)[:MOST_NAMED]]
    words = f"nothing arrives between {listed(named) if len(named) == 1 else '; between '.join(named)}"
    return Verdict("link", words + " (retransmitted without an answer)", f"; {_others(list(ranks), ranks)}")


def _untold(ranks: Mapping[int, _Rank], why: str = "", kind: str = "unknown") -> Verdict:
    words = "it cannot be determined which rank is the cause" if kind == "unknown" else "a rank reports a pause"
    return Verdict(kind, words + (f" ({why})" if why else ""), f": {_others(list(ranks), ranks)}")


def _others(numbers: Sequence[int], ranks: Mapping[int, _Rank]) -> str:
    """Return what these ranks do, those that do the same together."""
    by_words: dict[str, list[int]] = {}
    for number in numbers:
        by_words.setdefault(ranks[number].does.words, []).append(number)
    parts = [f"{subject(tuple(group))} {words if len(group) == 1 else _plural(words)}" for words, group in by_words.items()]
    more = f"; {len(parts) - 4} more groups" if len(parts) > 4 else ""
    return "; ".join(parts[:4]) + more


def _plural(words: str) -> str:
    """Return a predicate for several ranks.

    >>> _plural("waits in all-reduce 119")
    'wait in all-reduce 119'
    """
    verb, space, rest = words.partition(" ")
    return {"is": "are", "has": "have", "stopped": "stopped"}.get(verb, verb.removesuffix("s")) + space + rest
