"""Ranks of a failed run that others lost though they did not fail: they left with exit code 0
before the others, or closed their connections and still ran when the run was stopped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestrator.controller.last_words import READ_BYTES, Death, read_last_words
from orchestrator.errors import DataError, OrchError, RunError
from orchestrator.inventory import fold
from orchestrator.logs import is_named
from orchestrator.logs.failures import diagnose, is_consequence
from orchestrator.logs.parse import parse
from orchestrator.plural import plural
from orchestrator.record import RunDir
from orchestrator.record.evidence import last_bytes
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.record.node_record import ExitRecord, exit_record

_CLOSE_S = 1.0
"""Within this, the clocks of two nodes, each since its own start of the run, do not tell an order.
"""
_LEFT_EARLY = "see why its program ended: its share of the data, or a condition that only it met"
_CLOSED = "see what its program did after it had closed them; if it did not, the link broke"
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7})(?![\w.]*\w)"
)
_CONNECTION = re.compile(r"connection|socket|peer", re.IGNORECASE)
_Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a rank, in seconds since the start of the run on its node. ``is_early``: with exit
    code 0, and not because the run was stopped."""

    rank: int
    host: str
    after_s: float
    is_early: bool


def find_early_end(error: OrchError, run: RunDir) -> Death | None:
    """Return the rank that left with exit code 0 before the others, and before its planned last
    step; None if none did.
    """
    if error.kind != "rank_failed":
        return None
    with suppress(DataError, OSError):
        planned = read_manifest(run)
        found = {slot.host: exit_record(run, slot.host) for slot in planned.slots}
        records = {host: record for host, record in found.items() if record}
        ends = [end for host, record in records.items() for end in _ends(host, record)]
        failed_s = min((end.after_s for end in ends if not end.is_early), default=None)
        steps = {host: _last_step(run, host, record, planned) for host, record in records.items()}
        last = max((step for step, _ in steps.values()), default=0)
        # A program that prints every tenth step may print none later when it is done.
        spacing = max((between for _, between in steps.values()), default=1)
        total = planned.spec.steps - planned.spec.warmup_steps * planned.grammar.after_warmup
        if failed_s is None or not planned.grammar.patterns or last > total - spacing:
            return None
        early = [
            end
            for end in sorted(ends, key=lambda end: end.after_s)
            if end.is_early
            and end.after_s <= failed_s + _CLOSE_S
            and not _has_lost_another(end, run)
        ]
        if early:
            others = plural(len(early) - 1, "more rank") if early[1:] else ""
            step = steps[early[0].host][0] or last
            when = f"after step {step} of {total}" if step else "before its first step"
            text = (
                f"rank {early[0].rank} ended with exit code 0 {when}, and the others waited for it"
            )
            text += f"; so did {others}" if others else ""
            own = RunError(
                text, kind="rank_failed", host=early[0].host, run_id=error.run_id, phase=error.phase
            )
            own.cause = _LEFT_EARLY
            return read_last_words(own, run)
    return None


def _ends(host: str, record: ExitRecord) -> Iterator[_End]:
    """Yield the ranks of a node that ended by themselves, not because the run was stopped."""
    stopped_s = float("inf") if record.stopped_mono_s is None else record.stopped_mono_s
    for rank in record.ranks:
        if (
            rank.ended_mono_s is not None
            and record.started_mono_s is not None
            and rank.signal is None
        ):
            is_stopped = rank.ended_mono_s >= stopped_s
            if rank.code != 0 or not is_stopped:
                yield _End(
                    rank.rank, host, rank.ended_mono_s - record.started_mono_s, rank.code == 0
                )


def _has_lost_another(end: _End, run: RunDir) -> bool:
    """Return whether a rank that ended well reports the loss of another, as a program that handles
    it does.
    """
    text = f"rank {end.rank} ended"
    death = read_last_words(RunError(text, kind="rank_failed", host=end.host), run)
    streams = (f"rank-{end.rank}.err", f"rank-{end.rank}.out")
    # A launcher says what became of the others, not of its rank.
    is_of_launcher = death.log not in streams and any(
        run.log_path(end.host, name).is_file() for name in streams
    )
    return not is_of_launcher and is_consequence(death.text)


def _last_step(run: RunDir, host: str, record: ExitRecord, planned: Manifest) -> tuple[int, int]:
    """Return the last step in the logs of a node, 0 if there is none, and how many steps its lines
    are apart.
    """
    last, spacing = 0, 1
    for name in record.files:
        if is_named(name, planned.grammar.files) and run.log_path(host, name).is_file():
            samples = parse(last_bytes(run, host, name, READ_BYTES), planned.grammar).samples
            steps = sorted({sample.step for sample in samples})
            last = max([last, *steps])
            spacing = max([spacing, *(after - before for before, after in pairwise(steps))])
    return last, spacing


def find_survivors(error: OrchError, run: RunDir, facts: _Facts) -> OrchError | None:
    """Return an error that names who closed the connections whose loss is all that the failed ranks
    report, and still ran when the run was stopped; None if that is not so.

    A rank that is stuck in its last lines does that, and so does a link that was reset. So a node
    is its host only if it is the only one, and at least two others have lost it.
    """
    if error.kind != "rank_failed":
        return None
    with suppress(DataError, OSError):
        hosts = [slot.host for slot in read_manifest(run).slots]
        names = hosts_by_address(run, facts)
        records = {host: exit_record(run, host) for host in hosts}
        lines = {
            host: list(_lines_of_loss(host, record, run))
            for host, record in records.items()
            if record
        }
        lost = {
            host: {name for line in said for name in _hosts_in(line, hosts, names)} - {host}
            for host, said in lines.items()
            if said
        }
        survivors = sorted(set().union(*lost.values()) - set(lost), key=hosts.index)
        if not survivors or any(not _was_running(records[host]) for host in survivors):
            return None
        losers = [host for host in hosts if lost.get(host, set()) & set(survivors)]
        lost_by, ranks = fold(losers), _ranks_of(records, survivors)
        is_one = len(survivors) == 1 and len(losers) > 1
        own = RunError(
            f"{ranks} still ran when the run was stopped, and {lost_by} had lost the connections to it"
            if is_one
            else f"{lost_by} lost the connections to {fold(survivors)}, where {ranks} "
            "still ran when the run was stopped; which rank is the cause is not known",
            kind="rank_failed",
            host=survivors[0] if is_one else "",
            run_id=error.run_id,
            phase=error.phase,
        )
        own.cause = _CLOSED
        shown = (f"  {host}: {name_hosts(said[-1], names)}" for host, said in lines.items() if said)
        own.hint = "\n".join([_CLOSED, *shown])
        return own
    return None


def _lines_of_loss(host: str, record: ExitRecord, run: RunDir) -> Iterator[str]:
    """Yield, for each rank of a node, the line with which it reports the loss of a connection."""
    for rank in record.ranks:
        death = read_last_words(
            RunError(f"rank {rank.rank} ended", kind="rank_failed", host=host), run
        )
        failure = diagnose(death.text)
        if failure and failure.is_consequence and _CONNECTION.search(failure.line):
            yield failure.line


def _hosts_in(line: str, hosts: Iterable[str], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the hosts that a line names, by their names or addresses."""
    yield from (names[match] for match in _ADDRESS.findall(line) if match in names)
    words = set(re.findall(r"[\w.-]+", line))
    yield from (host for host in hosts if host in words)


def _was_running(record: ExitRecord | None) -> bool:
    """Return whether all ranks of a node ran until it was stopped."""
    if record is None or record.stopped_mono_s is None or not record.ranks:
        return False
    ends = [rank.ended_mono_s for rank in record.ranks]
    return all(end is not None and end >= record.stopped_mono_s for end in ends)


def _ranks_of(records: Mapping[str, ExitRecord | None], hosts: Iterable[str]) -> str:
    found = [records[host] for host in hosts]
    numbers = sorted(rank.rank for record in found if record for rank in record.ranks)
    return f"{'ranks' if numbers[1:] else 'rank'} {', '.join(map(str, numbers))}"


def name_hosts(line: str, names: Mapping[str, str]) -> str:
    """Return a line with the host behind each address of a node: programs name a lost peer by its
    address.
    """
    return _ADDRESS.sub(
        lambda match: f"{match[0]} ({names[match[0]]})" if match[0] in names else match[0], line
    )


def hosts_by_address(run: RunDir, facts: _Facts) -> Mapping[str, str]:
    """Return the hosts of a run by the addresses that one alone of them has."""
    pairs = set()
    with suppress(DataError):
        pairs |= {(slot.address, slot.host) for slot in read_manifest(run).slots}
    for host, values in facts.items():
        networks = values.get("networks")
        for entry in networks if isinstance(networks, list) else ():
            addresses = entry.get("addresses") if isinstance(entry, dict) else None
            for address in addresses if isinstance(addresses, list) else ():
                pairs.add((str(address).partition("/")[0], host))
    counts = Counter(address for address, _ in pairs)
    return {address: host for address, host in pairs if counts[address] == 1 and address != host}
