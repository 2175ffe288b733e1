"""The verdict on a run that does not go on: which rank, or which link, is the cause, or that it
cannot be told.

A rank is named only for what it does itself: it is stopped, frozen, blocked on a pipe that nobody
reads, known to be outside of a collective in which others wait, or alone in another one than all
others. Ranks on several nodes that do the same outside are named together, but half of all ranks or
more are only named for what no healthy rank does. A link is named by its two ends. Everything else
is said as it was seen, and names nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.features.hang.activity import Activity, activity, phases_that_tell
from orchestrator.features.hang.cause import MOST_NAMED, Verdict, subject
from orchestrator.features.hang.collectives import find_difference, groups_of
from orchestrator.features.hang.node_report import Connection, HangReport, Progress, RankSeen
from orchestrator.features.hang.waits import is_a_loop, is_apart, is_of_a_group, is_of_some
from orchestrator.grouping import group_pairs
from orchestrator.plural import join_words

NOW = ("frozen", "launcher", "stopped", "unread")
"""Kinds of verdicts that no working program explains."""
SOON = ("ahead", "asleep", "collectives", "disagree", "ended", "worker")
"""Kinds that a short pause of a working program may look like."""
LATE = ("alone", "computes", "input", "link", "pipe", "storage")
"""Kinds that work, a network, a disk, a store of samples or a slow reader may get over by
themselves.
"""
_OF_MANY = ("pipe", "storage", "unread", "worker")
"""Kinds for which most ranks may be named, as no healthy rank does that while others wait."""
_LEAST_RETRANSMITS = 2
_SMALL_BYTES = 1200
"""What fits into one packet of any network."""
_LATER_S = 1.0
"""A rank has gone on after others had stopped if its last mark is later than theirs by more than
this.
"""


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


def verdict(reports: Mapping[str, HangReport], placed: Mapping[int, str]) -> Verdict:
    """Return the verdict from the reports of all nodes that answered. ``placed``: the host of every
    rank of the run.
    """
    telling = phases_that_tell([seen for report in reports.values() for seen in report.ranks])
    seen_on = [(seen, host) for host, report in reports.items() for seen in report.ranks]
    by_rank = {seen.rank: _Rank(host, seen, activity(seen, telling)) for seen, host in seen_on}
    ranks = dict(sorted(by_rank.items()))
    missing = sorted(set(placed.values()) - set(reports))
    for kinds in (("stopped", "frozen"), ("unread",)):
        named = [number for number, rank in ranks.items() if rank.does.kind in kinds]
        if named:
            return _of(named, ranks)
    if halted := _launchers(reports, placed, ranks):
        return halted
    if not ranks:
        hosts = join_words(list(dict.fromkeys(placed.values())))
        why = "none has started yet, all have ended, or the launch script starts them without"
        none = f"no rank runs on {hosts}: {why} rank_wrapper"
        why = f"no report from {join_words(missing)}" if missing else none
        return Verdict("unknown", f"the cause is unknown: {why}")
    if missing:
        return _untold(ranks, f"no report from {join_words(missing)}")
    waiting = [number for number, rank in ranks.items() if rank.does.kind == "waits"]
    outside = [number for number, rank in ranks.items() if rank.does.is_known]
    pausing = [number for number, rank in ranks.items() if rank.does.kind in ("pauses", "traced")]
    ended: dict[int, str] = {}
    for host, report in reports.items():
        ended |= dict.fromkeys([number for number in report.ended if number not in ranks], host)
    if waiting and (ahead := _ahead(waiting, ranks)):
        return _of(ahead, ranks, "ahead")
    if pausing and (waiting or ended):
        return _untold(ranks, "", "pause")
    if ended and len(ended) + len(ranks) == len(placed):
        all_wait = len(waiting) == len(ranks)
        differs = _disagreement(ranks, len(placed)) if all_wait else None
        if left := differs or _judge_early_ends(ended, ranks, all_wait):
            return left
    if waiting and outside and len(waiting) + len(outside) + len(pausing) == len(ranks):
        return _judge_outside(waiting, outside, ranks, len(placed))
    if len(waiting) == len(ranks):
        return _links(reports, ranks) or _places(ranks, len(placed)) or _untold(ranks)
    return _links(reports, ranks) or _untold(ranks)


def declares_pauses(reports: Mapping[str, HangReport]) -> bool:
    """Return True if every rank that was seen marks every phase that may take long: it says so, or
    it marks the phases of a step, and is taken to mark others as well."""
    seen = [rank for report in reports.values() for rank in report.ranks]
    marks_all = "compute" in phases_that_tell(seen)
    return all(rank.progress is not None and (marks_all or rank.progress.declares) for rank in seen)


def find_progress(
    before: Mapping[str, HangReport], after: Mapping[str, HangReport]
) -> Verdict | None:
    """Return the verdict on ranks that have gone on between two looks, None if none has that
    reports its progress.
    """
    then, now = _progress(before), _progress(after)
    moved = sorted(rank for rank in then.keys() & now.keys() if then[rank].marks != now[rank].marks)
    if not moved:
        return None
    steps = sorted({now[rank].step for rank in moved})
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Verdict("going", f"{subject(tuple(moved))} still made progress, in {where}")


def _progress(reports: Mapping[str, HangReport]) -> dict[int, Progress]:
    """Return the progress of the ranks that report theirs."""
    progress: dict[int, Progress] = {}
    for report in reports.values():
        progress |= {seen.rank: seen.progress for seen in report.ranks if seen.progress}
    return progress


def _of(named: Sequence[int], ranks: Mapping[int, _Rank], kind: str = "") -> Verdict:
    """Return the verdict on ranks: on those that do the same as the first of them."""
    first = ranks[named[0]]
    same = tuple(number for number in named if ranks[number].does.kind == first.does.kind)
    rest = _others([number for number in ranks if number not in same], ranks)
    words = first.does.words
    if kind == "ahead":
        where = f" in step {first.step}" if first.step else ""
        words = f"is ahead of the others{where}: it {words}"
    return _name_ranks(
        kind or first.does.kind, words, rest, {number: ranks[number].host for number in same}
    )


def _name_ranks(kind: str, words: str, rest: str, homes: Mapping[int, str]) -> Verdict:
    """Return a verdict that names ranks, each on its node."""
    hosts = list(dict.fromkeys(homes.values()))
    if len(homes) > 1:
        words = _plural(words)
    if len(hosts) > 1:
        words = f"on {join_words(hosts)} {words}"
    return Verdict(
        kind, words, f"; {rest}" if rest else "", hosts[0] if len(hosts) == 1 else "", tuple(homes)
    )


def _judge_outside(
    waiting: Sequence[int], outside: Sequence[int], ranks: Mapping[int, _Rank], total: int
) -> Verdict:
    """Return the verdict where some ranks are outside of every collective and the others wait."""
    # Those that wait may do so for each other.
    if differs := _disagreement({number: ranks[number] for number in waiting}, total):
        return differs
    workers = [number for number in outside if ranks[number].does.kind == "worker"]
    others = [ranks[number] for number in waiting]
    named = [number for number in workers or outside if _is_waited_for(ranks[number], others)]
    if not named:
        return _untold(ranks, "others wait in process groups of their own")
    if not _may_be_named(named, ranks):
        return _untold(ranks, "most ranks do not wait")
    return _of(named, ranks)


def _disagreement(ranks: Mapping[int, _Rank], total: int) -> Verdict | None:
    """Return the verdict where ranks called different collectives."""
    found = find_difference({number: rank.seen for number, rank in ranks.items()}, total)
    if found is None:
        return None
    if found.odd is None:
        return Verdict("disagree", found.words, f"; {_others(list(ranks), ranks)}")
    rest = _others([number for number in ranks if number != found.odd], ranks)
    return _name_ranks("collectives", found.words, rest, {found.odd: ranks[found.odd].host})


def _is_waited_for(rank: _Rank, others: Sequence[_Rank]) -> bool:
    """Return False if a rank is known to belong to none of the process groups in which others wait:
    an evaluator, or a rank of another pipeline.
    """
    awaited = {other.does.collective.group for other in others if other.does.collective}
    own = groups_of(rank.seen)
    return not awaited or not own or bool(own & awaited)


def _may_be_named(named: Sequence[int], ranks: Mapping[int, _Rank]) -> bool:
    """Return True if so many ranks may be named for being outside: most of them only for what no
    healthy one does.
    """
    kinds = {ranks[number].does.kind for number in named}
    return (
        len(named) * 2 < len(ranks)
        or (len(named) == 1 and len(ranks) == 2)
        or kinds <= set(_OF_MANY)
    )


def _launchers(
    reports: Mapping[str, HangReport], placed: Mapping[int, str], ranks: Mapping[int, _Rank]
) -> Verdict | None:
    """Return the verdict where the launch script of a node, or what it started ranks with, is
    stopped.
    """
    halted = {host: report.stopped[0] for host, report in reports.items() if report.stopped}
    homes = {number: host for number, host in placed.items() if host in halted}
    if not homes:
        return None
    names = join_words(
        list(dict.fromkeys(f"{process.name}, {process.pid}" for process in halted.values()))
    )
    rest = _others([number for number in ranks if number not in homes], ranks)
    return _name_ranks("launcher", f"has a stopped launcher: {names} (state T)", rest, homes)


def _judge_early_ends(
    ended: Mapping[int, str], ranks: Mapping[int, _Rank], all_wait: bool
) -> Verdict | None:
    """Return the verdict where ranks have ended well and others have not: fewer than half of them
    are named, or one of two.
    """
    if all_wait and len(ended) < max(len(ranks), 2):
        return _name_ranks(
            "ended", "ended, with success", _others(list(ranks), ranks), dict(sorted(ended.items()))
        )
    # Several that wait do so for each other, or for those that have ended.
    kinds = {rank.does.kind for rank in ranks.values()}
    if len(ended) < len(ranks) or len(kinds) > 1 or (all_wait and len(ranks) > 1):
        return None
    words = f"runs on alone, and {next(iter(ranks.values())).does.words}"
    rest = f"{subject(tuple(sorted(ended)))} ended, with success"
    homes = {number: rank.host for number, rank in ranks.items()}
    return _name_ranks("alone", words, rest, homes)


def _ahead(waiting: Sequence[int], ranks: Mapping[int, _Rank]) -> list[int]:
    """Return the ranks that have gone on, or to their end, without a collective in which all others
    wait: later steps alone prove nothing, because ranks may count differently. Steps differ by one
    also where the last message of a collective has not arrived everywhere."""
    steps = [ranks[number].step for number in waiting]
    gone = [
        number
        for number, rank in ranks.items()
        if rank.seen.progress and rank.step > min(steps) + 1
    ]
    gone += [
        number
        for number, rank in ranks.items()
        if number not in gone
        and rank.seen.progress
        and rank.seen.progress.phase == "end"
        and rank.step > max(steps)
    ]
    others = [ranks[number] for number in waiting if number not in gone]
    stopped_s = min((rank.silent_s for rank in others), default=0.0)
    # A rank may also begin a step while its GPU works on earlier ones: the collective that it waits
    # in tells, if it is known.
    waited = [rank.does.collective for rank in others if rank.does.collective is not None]
    gone = [
        n
        for n in gone
        if ranks[n].silent_s + _LATER_S < stopped_s and ranks[n].does.collective not in waited
    ]
    gone = [n for n in gone if _is_waited_for(ranks[n], others)]
    is_most = len(gone) * 2 >= len(ranks) > 2
    if is_most or set(gone) & set(_behind(waiting, ranks)):
        return []
    return gone


def _behind(waiting: Sequence[int], ranks: Mapping[int, _Rank]) -> list[int]:
    least = min(ranks[number].step for number in waiting)
    return [number for number in waiting if ranks[number].step == least]


def _places(ranks: Mapping[int, _Rank], total: int) -> Verdict | None:
    """Return the verdict if all ranks wait, but not in the same place.

    A rank that is already in the next collective proves nothing: the root of a broadcast is done
    before the others are. A rank that waits at a store has not arrived at the others' place.
    """
    if differs := _disagreement(ranks, total):
        return differs
    recorded = {
        number: rank.does.collective
        for number, rank in ranks.items()
        if rank.does.collective is not None
    }
    if len(recorded) == len(ranks):
        calls = {(entry.group, entry.name, entry.number) for entry in recorded.values()}
        if len(calls) > 1:
            return _untold(ranks, "their collectives differ")
        return None
    spots = [rank.does.place for rank in ranks.values()]
    if any(spot == "collective" or is_of_some(spot) for spot in spots):
        return None
    groups = {frozenset(groups_of(rank.seen)) for rank in ranks.values()}
    if any(map(is_of_a_group, spots)) and (len(groups) > 1 or not min(groups)):
        return None
    # A call that is not recorded may be one of any process group: the name of a collective proves
    # nothing.
    places: dict[str, list[int]] = {}
    for number, rank in ranks.items():
        places.setdefault(rank.does.place if is_apart(rank.does.place) else "", []).append(number)
    most = max(places.values(), key=len)
    odd = [number for number in ranks if number not in most]
    if len(odd) != 1 or len(most) < 2:
        return None
    is_loop = any(map(is_a_loop, places))
    # A monitored barrier is a collective that recorders leave out: who alone calls another one in
    # its place is named, as in `find_difference`.
    is_barrier = all(is_of_a_group(ranks[number].does.place) for number in most)
    if is_barrier and ranks[odd[0]].does.collective is not None:
        return _of(odd, ranks, "collectives")
    # Who is in a collective has arrived. Why others are at the store is not known: it may have left
    # out what they meet for, or they may wait for a key that nobody sets.
    if places.get("") == most:
        return _of(odd, ranks, "asleep" if is_loop else "collectives")
    if is_loop:
        return None
    return Verdict(
        "disagree",
        "ranks disagree, and nobody is known to be wrong",
        f": {_others(list(ranks), ranks)}",
    )


def _links(reports: Mapping[str, HangReport], ranks: Mapping[int, _Rank]) -> Verdict | None:
    """Return the verdict where data between two nodes is retransmitted without an answer.
    Connections to others, such as a logging service, prove nothing about the run."""
    seen_at = [
        (host, c)
        for host, report in reports.items()
        for seen in report.ranks
        for c in seen.connections
    ]
    ends = {(c.local, c.local_port, c.remote, c.remote_port): host for host, c in seen_at}
    homes: dict[str, set[str]] = {}
    for host, connection in seen_at:
        homes.setdefault(connection.local, set()).add(host)

    def other_end(host: str, c: Connection) -> str:
        """Return the host at the other end of a connection.

        Several nodes may have the same address, such as a bridge's.
        """
        found = ends.get((c.remote, c.remote_port, c.local, c.local_port))
        if found:
            return found
        owners = homes.get(c.remote, set())
        return next(iter(owners)) if len(owners) == 1 else host

    pairs = {
        tuple(sorted((host, other))): connection.unacknowledged > _SMALL_BYTES
        for host, connection in seen_at
        if connection.retransmits >= _LEAST_RETRANSMITS
        and connection.unacknowledged
        and (other := other_end(host, connection)) != host
    }
    if not pairs:
        return None
    named = [f"{first} and {second}" for first, second in sorted(pairs)[:MOST_NAMED]]
    words = f"nothing arrives between {join_words(named) if len(named) == 1 else '; between '.join(named)}"
    # A path that silently drops packets beyond an MTU smaller than the nodes' loses only large ones.
    large = "; if ping is answered, only large packets are lost: ping -M do -s 1472, or 8972 for jumbo frames, shows it"
    why = f" (retransmitted without an answer{large if all(pairs.values()) else ''})"
    return Verdict("link", words + why, f"; {_others(list(ranks), ranks)}")


def _untold(ranks: Mapping[int, _Rank], why: str = "", kind: str = "unknown") -> Verdict:
    words = "a rank reports a pause"
    if kind == "unknown":
        words = "it cannot be determined which rank is the cause"
    return Verdict(kind, words + (f" ({why})" if why else ""), f": {_others(list(ranks), ranks)}")


def _others(numbers: Sequence[int], ranks: Mapping[int, _Rank]) -> str:
    """Describe the activities of these ranks, equal ones together."""
    by_words = group_pairs((ranks[number].does.words, number) for number in numbers)
    parts = [
        f"{subject(tuple(group))} {words if len(group) == 1 else _plural(words)}"
        for words, group in by_words.items()
    ]
    more = f"; {len(parts) - 4} more groups" if len(parts) > 4 else ""
    return "; ".join(parts[:4]) + more


def _plural(words: str) -> str:
    """Return a predicate for several ranks.

    >>> _plural("waits in all-reduce 119")
    'wait in all-reduce 119'
    """
    verb, space, rest = words.partition(" ")
    return (
        {"is": "are", "has": "have", "stopped": "stopped"}.get(verb, verb.removesuffix("s"))
        + space
        + rest
    )
