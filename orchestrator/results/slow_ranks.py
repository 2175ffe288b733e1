"""Find the ranks of a configuration that the others wait for: they compute longer, or wait longer
for their input.

All steps of a synchronous run take equally long on all ranks. The time before a rank first
communicates tells the slow from the waiting. On busy processors that time is a matter of chance,
but its processor time is not. It is also a matter of chance on GPUs that wait for their programs:
these are not compared. docs/slow-ranks.md has the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from orchestrator.grouping import group_pairs
from orchestrator.notes import Note
from orchestrator.results.hardware import load_notes, on_host, slowdown_notes
from orchestrator.results.notes import RANKS_NOT_COMPARED, SLOW_NODE, SLOW_RANK, SLOW_RANK_UNSEEN
from orchestrator.results.numbers.excess import Excess, excesses
from orchestrator.results.numbers.throughput import WORTH, mean, median
from orchestrator.results.rank_parts import RankParts
from orchestrator.results.run import RunResult
from orchestrator.results.telemetry.conditions import conditions_against_others

_EVEN = 0.5
"""A node is named instead of its ranks if each of them is above the others by at least this share
of the node's excess.
"""

_WAITING = 0.1
"""Share of steps in which the GPU of a rank waits for its program, from which on ranks are not
compared by how long they compute. In such a step a rank was seen to take 43 % longer by chance; how
often it does is chance too."""

_WORTH_OF_CONDITIONS = 0.05
"""Share of the window with lowered clocks, or of the processors with other processes, beyond that
of the other nodes.
"""
_TINY = 1e-9
_LARGEST = 700.0
"""The logarithm of a number that still fits a float."""

_Member = int | str
"""A rank, or a node by its host."""
_Blocks = Mapping[int, Sequence[float]]
"""By rank the values of its blocks in one run."""
_Seconds = Callable[[RankParts], Sequence[float]]
_COMPUTING: _Seconds = attrgetter("compute_s")
_WORKING: _Seconds = attrgetter("compute_cpu_s")


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The parts of a rank's steps over all repeats: medians, in seconds.

    ``excess`` is by which fraction it computes longer than the median of the other ranks,
    ``cpu_excess`` by which it takes more processor time for that; ``input_excess`` is how much
    longer it waits for its input, as a fraction of a step. None where that is not known.
    ``gpu_waits`` is the share of steps in which its GPU waits for its program while it computes, 0
    to 1.
    """

    rank: int
    host: str
    step_s: float
    input_s: float
    compute_s: float | None
    compute_cpu_s: float | None
    excess: Excess | None
    cpu_excess: Excess | None
    input_excess: Excess | None
    gpu_waits: float | None = None


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that the others wait for, or with ``rank`` None a node whose ranks all are; in
    ``part`` of its steps, `compute`, `processor` (it takes more processor time, and whether it
    computes longer is not certain) or `input`, by ``excess`` as in `RankTimes`.

    ``cause`` tells what slows the computing of a rank as far as its node was sampled: `others` take
    processors or GPUs from it, its own `device` is slower, or `unknown`; empty without samples, of
    processor time, and of an input. ``words`` say all.
    """

    rank: int | None
    host: str
    part: str
    excess: Excess
    cause: str
    words: Note


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a configuration, in order, and each rank or node that the others wait for, those
    that compute longest first. ``note`` says why ranks are not compared by how long they compute,
    or what a single repeat could not have shown."""

    times: tuple[RankTimes, ...] = ()
    slow: tuple[SlowRank, ...] = ()
    note: Note | None = None

    @property
    def words(self) -> tuple[Note, ...]:
        """A sentence for each rank or node that the others wait for, after the note if there is
        one.
        """
        return (*([self.note] if self.note else ()), *(slow.words for slow in self.slow))


def compare_ranks(runs: Sequence[RunResult]) -> Ranks:
    """Compare the ranks of a configuration over its repeats, those whose ranks are on the same
    nodes as in the last one.
    """
    used = [run for run in runs if run.rank_parts and _places(run) == _places(runs[-1])]
    if not used or len(used[0].rank_parts) < 2:
        return Ranks()
    hosts = _places(used[0])
    both = []
    for seconds in (_COMPUTING, _WORKING):
        of_logs = _excesses([_logs(run.rank_parts, seconds) for run in used], hosts)
        both.append({member: _as_fraction(excess) for member, excess in of_logs.items()})
    slow, working = both
    by_rank = list(zip(*(run.rank_parts for run in used), strict=True))
    note = _incomparable(by_rank)
    if note:
        slow = {}
    starved = _excesses([_shares_of_waiting(run.rank_parts) for run in used], hosts)
    longer = _find_slow(slow, hosts)
    named = [
        _computing(member, excess, hosts, used, working.get(member), is_first=place == 0)
        for place, (member, excess) in enumerate(longer)
    ]
    named += [
        _more_work(member, excess, hosts)
        for member, excess in _find_slow(working, hosts)
        if not _is_covered(member, longer, hosts)
    ]
    named += [_waiting(member, excess, hosts) for member, excess in _find_slow(starved, hosts)]
    times = (
        _times(own, slow.get(rank), working.get(rank), starved.get(rank))
        for rank, own in enumerate(by_rank)
    )
    return Ranks(tuple(times), tuple(named), note or _unseen(slow, named, len(used)))


def _unseen(slow: Mapping[_Member, Excess], named: Sequence[SlowRank], runs: int) -> Note | None:
    """Note slow ranks that a single run would not have shown.

    None for more than one run, or if a slow rank was found.
    """
    ranks = [excess for member, excess in slow.items() if isinstance(member, int)]
    if runs > 1 or not ranks or any(found.part == "compute" for found in named):
        return None
    least = max(
        WORTH, *((excess.high - excess.value) / max(1 + excess.value, _TINY) for excess in ranks)
    )
    return SLOW_RANK_UNSEEN(least=least)


def _incomparable(by_rank: Sequence[Sequence[RankParts]]) -> Note | None:
    """Return why the ranks cannot be compared by how long they compute, None if they can."""
    share, rank, host = max((_gpu_waits(own) or 0.0, -own[0].rank, own[0].host) for own in by_rank)
    if share >= _WAITING:
        return RANKS_NOT_COMPARED(rank=-rank, host=host, share=share)
    return None


def _gpu_waits(own: Sequence[RankParts]) -> float | None:
    """Return the share over all repeats of a rank, which have as many steps each."""
    shares = [part.gpu_waits for part in own if part.gpu_waits is not None]
    return mean(shares) if shares else None


def _places(run: RunResult) -> dict[int, str]:
    return {part.rank: part.host for part in run.rank_parts}


def _logs(parts: Sequence[RankParts], seconds: _Seconds) -> _Blocks:
    return {part.rank: list(map(math.log, seconds(part))) for part in parts}


def _shares_of_waiting(parts: Sequence[RankParts]) -> _Blocks:
    steps_s = list(map(median, zip(*(part.step_s for part in parts), strict=True)))
    shares = {}
    for part in parts:
        shares[part.rank] = [
            waited / step for waited, step in zip(part.input_s, steps_s, strict=True)
        ]
    return shares


def _excesses(runs: Sequence[_Blocks], hosts: Mapping[int, str]) -> dict[_Member, Excess]:
    """Return the excess of each rank over the others, and of each node with several ranks over
    other nodes, on average; empty if any rank has no values.
    """
    if not all(blocks for run in runs for blocks in run.values()):
        return {}
    nodes = group_pairs((host, rank) for rank, host in hosts.items())
    groups = [host for host, ranks in nodes.items() if 1 < len(ranks) < len(hosts)]
    comparisons = len(hosts) + len(groups)
    of_ranks: dict[_Member, list[Sequence[float]]] = {}
    for rank in hosts:
        of_ranks[rank] = [run[rank] for run in runs]
    apart: dict[_Member, Excess] = dict(excesses(of_ranks, comparisons))
    if groups:
        of_nodes = {}
        for host, ranks in nodes.items():
            of_nodes[host] = [_mean_of(run, ranks) for run in runs]
        judged = excesses(of_nodes, comparisons)
        apart.update({host: judged[host] for host in groups if host in judged})
    return apart


def _mean_of(run: _Blocks, members: Sequence[int]) -> list[float]:
    """Return the mean of some ranks in each block."""
    return list(map(mean, zip(*(run[rank] for rank in members), strict=True)))


def _find_slow(
    excesses: Mapping[_Member, Excess], hosts: Mapping[int, str]
) -> list[tuple[_Member, Excess]]:
    """Return the nodes and ranks that are certainly above the others and by what matters, the
    furthest first. A node with an excess of all its ranks stands for them."""
    certain = {
        member
        for member, excess in excesses.items()
        if excess.low > 0 and excess.value >= WORTH and excess.is_usual
    }
    nodes = []
    for host in dict.fromkeys(hosts.values()):
        if host in certain and all(
            excesses[rank].value >= _EVEN * excesses[host].value
            for rank, own in hosts.items()
            if own == host
        ):
            nodes.append(host)
    ranks = [rank for rank, host in hosts.items() if rank in certain and host not in nodes]
    members: list[_Member] = [*nodes, *ranks]
    return sorted(
        ((member, excesses[member]) for member in members), key=lambda named: -named[1].value
    )


def _as_fraction(excess: Excess) -> Excess:
    """Return the excess of logarithms as an excess of their exponentials."""
    value, low, high = (
        math.expm1(min(number, _LARGEST)) for number in (excess.value, excess.low, excess.high)
    )
    return Excess(value, low, high, excess.is_usual)


def _is_covered(
    member: _Member, named: Sequence[tuple[_Member, Excess]], hosts: Mapping[int, str]
) -> bool:
    """Return whether a rank or node is named already, a rank also with its node."""
    return any(other in (member, _home(member, hosts)) for other, _ in named)


def _times(
    own: Sequence[RankParts], slow: Excess | None, working: Excess | None, starved: Excess | None
) -> RankTimes:
    def typical(seconds: _Seconds) -> float:
        return median([value for part in own for value in seconds(part)])

    computed, worked = (
        typical(seconds) if all(map(seconds, own)) else None for seconds in (_COMPUTING, _WORKING)
    )
    step_s, input_s = typical(lambda part: part.step_s), typical(lambda part: part.input_s)
    return RankTimes(
        own[0].rank,
        own[0].host,
        step_s,
        input_s,
        computed,
        worked,
        slow,
        working,
        starved,
        _gpu_waits(own),
    )


def _computing(
    member: _Member,
    excess: Excess,
    hosts: Mapping[int, str],
    runs: Sequence[RunResult],
    working: Excess | None,
    *,
    is_first: bool,
) -> SlowRank:
    host = _home(member, hosts)
    cause, conditions = _conditions(host, set(hosts.values()), runs)
    waits = ", which wait for it" if is_first else ""
    work = f"; its processor time is {_share(working)} above that of the others" if working else ""
    does = f"takes {_share(excess)} longer to compute than the other ranks{waits}{work}{conditions}"
    return _slow(member, hosts, "compute", excess, does, cause)


def _more_work(member: _Member, excess: Excess, hosts: Mapping[int, str]) -> SlowRank:
    does = f"takes {_share(excess)} more processor time to compute than the other ranks"
    return _slow(member, hosts, "processor", excess, does)


def _waiting(member: _Member, excess: Excess, hosts: Mapping[int, str]) -> SlowRank:
    return _slow(
        member,
        hosts,
        "input",
        excess,
        f"waits for its input {_share(excess)} of a step longer than the other ranks",
    )


def _home(member: _Member, hosts: Mapping[int, str]) -> str:
    return hosts[member] if isinstance(member, int) else member


def _slow(
    member: _Member, hosts: Mapping[int, str], part: str, excess: Excess, does: str, cause: str = ""
) -> SlowRank:
    if isinstance(member, int):
        note = SLOW_RANK(rank=member, host=hosts[member], does=does)
        return SlowRank(member, hosts[member], part, excess, cause, note)
    return SlowRank(None, member, part, excess, cause, SLOW_NODE(host=member, does=does))


def _share(excess: Excess) -> str:
    return f"{excess.value:.1%} ({excess.low:.1%} to {excess.high:.1%})"


def _conditions(host: str, hosts: Collection[str], runs: Sequence[RunResult]) -> tuple[str, str]:
    """Return the cause that slows a node, one of `SlowRank.cause`, and its evidence in words.

    A condition that all nodes share, such as a power limit, slows none of them more than the
    others.
    """
    conditions = conditions_against_others(host, [run.use for run in runs])
    of_host = on_host(host, runs)
    lowered, loads = slowdown_notes(of_host), load_notes(of_host)
    known = [
        *conditions.by_others,
        *([] if conditions.by_others else loads),
        *lowered,
        *conditions.of_devices,
        *conditions.figures,
    ]
    of_reasons = []
    for run in runs:
        for shares in run.slowed.values():
            of_reasons.append({name: share.most for name, share in shares.items()})
    if conditions.by_others or loads and any(_has_more(host, hosts, run.loaded) for run in runs):
        cause, words = "others", "others take resources from it: "
    elif conditions.of_devices or any(_has_more(host, hosts, shares) for shares in of_reasons):
        cause, words = "device", "its own devices are slower: "
    elif conditions.is_sampled:
        cause, words = "unknown", "no sampled value explains it" + (": " if known else "")
    else:
        cause, words = "", ""
    text = words + "; ".join(known)
    return cause, f"; {text}" if text else ""


def _has_more(host: str, hosts: Collection[str], shares: Mapping[str, float]) -> bool:
    """Return whether a node's share is larger than the median of the others by a relevant amount."""
    others = [shares.get(other, 0.0) for other in hosts if other != host]
    return bool(others) and shares.get(host, 0.0) - median(others) >= _WORTH_OF_CONDITIONS
