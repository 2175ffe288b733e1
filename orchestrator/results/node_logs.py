"""All logs of a run, verified and parsed, node by node; in several processes if they are large.

Only what the analysis needs is kept of each node: the step samples of the files that hold them, and
the ranks that were logged. Where each line describes a single process, or one node of several,
samples are aggregated in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from pathlib import Path
from typing import Any

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar, RankAggregate, StepSample, is_named
from orchestrator.logs.parse import Parsed, parse
from orchestrator.logs.steps import VALUES
from orchestrator.pool import share_out
from orchestrator.record import RunDir
from orchestrator.record.evidence import deadline, verify_log
from orchestrator.record.node_record import ExitRecord, LogFile

_WORTH_BYTES = 64 << 20
"""Bytes of logs below which no other processes are started."""
_ARRIVALS = 24
_TAIL_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class NodeLogs:
    """The parsed logs of a node: the files that the grammar names, and which of them hold
    samples. ``arrivals``: on the first node with samples, of the first of these, (seconds of the
    node's clock, last step in the log at that time)."""

    files: Mapping[str, Parsed]
    sampled: tuple[str, ...]
    arrivals: tuple[tuple[float, int], ...] = ()


Growth = Mapping[str, tuple[tuple[float, int], ...]]
Job = tuple[Path, str, Mapping[str, LogFile], LogGrammar, bool, Growth]


def read_logs(
    run: RunDir,
    records: Mapping[str, ExitRecord],
    grammar: LogGrammar,
    holders: frozenset[str],
) -> tuple[dict[str, NodeLogs], RankAggregate]:
    """Verify every log of every host against the ``files`` of its exit record, and return the
    parsed logs by host, with an aggregate.

    The aggregate is over ranks if each line describes a single process; the ranks' files then hold
    no samples of their own. It is over nodes if each line describes one node and ``every`` node's
    lines are read. ``holders`` are the hosts whose files hold the samples. Raises DataError
    result_invalid for the first host in order that has an error.
    """
    first = next(
        (host for host in records if host in holders), ""
    )  # its clock is compared with the times of the run
    jobs: list[Job] = [
        (
            run.path,
            host,
            record.files,
            grammar,
            host in holders,
            record.meter.growth if host == first else {},
        )
        for host, record in records.items()
    ]
    in_processes = (
        sum(file.bytes for record in records.values() for file in record.files.values())
        > _WORTH_BYTES
    )
    logs, aggregate = {}, RankAggregate()
    for job_logs, job_aggregate in share_out(_read, jobs, worth=in_processes):
        logs.update(job_logs)
        aggregate.merge(job_aggregate)
    return logs, aggregate


def _read(jobs: Sequence[Job]) -> tuple[dict[str, NodeLogs], RankAggregate]:
    logs, aggregate = {}, RankAggregate()
    aggregated: set[str] = set()
    for path, host, entries, grammar, holds, growth in jobs:
        files: dict[str, Parsed] = {}
        arrivals: tuple[tuple[float, int], ...] = ()
        sampled = []
        of_node = grammar.nodes == "every" and grammar.scope == "node"
        for name, data, log in _parse_logs(RunDir(path), host, entries, grammar):
            is_sample = holds and is_named(name, grammar.files)
            if is_sample:
                sampled.append(name)
                arrivals = arrivals or _arrivals(data, growth.get(name, ()), grammar)
                if isinstance(log.said, RankAggregate):
                    aggregate.merge(log.said, f"{host}/{name}")
                elif of_node and log.said and host not in aggregated:
                    aggregate.add(
                        [sample.step for sample in log.said], _columns(log.said), f"{host}/{name}"
                    )
                    aggregated.add(host)
            files[name] = (
                log
                if is_sample and not isinstance(log.said, RankAggregate)
                else replace(log, said=(), readings=log.readings if is_sample else ())
            )
        logs[host] = NodeLogs(files, tuple(sampled), arrivals)
    return logs, aggregate


def _columns(samples: Sequence[StepSample]) -> dict[str, list[Any]]:
    """Return the values of samples by name, without names that none of them has."""
    columns = {}
    for name in VALUES:
        column = [getattr(sample, name) for sample in samples]
        if column.count(None) < len(column):
            columns[name] = column
    return columns


def _arrivals(
    data: bytes | mmap, growth: Sequence[tuple[float, int]], grammar: LogGrammar
) -> tuple[tuple[float, int], ...]:
    """Return (seconds, last step of the log then) at some of the times when the log had grown.

    The last of these is left out: output that a program holds back until its end says nothing about
    the time of its steps.
    """
    marks = growth[:-1]
    if len(marks) > _ARRIVALS:
        marks = [marks[len(marks) * number // _ARRIVALS] for number in range(_ARRIVALS)]
    arrivals = []
    for seconds, size in marks:
        tail = data[max(0, size - _TAIL_BYTES) : size]
        # A step before the first line end may be cut at its start.
        steps = [
            sample.step
            for sample in parse(
                tail[tail.find(b"\n") + 1 if size > _TAIL_BYTES else 0 :], grammar
            ).samples
        ]
        if steps:
            arrivals.append((seconds, max(steps)))
    return tuple(arrivals)


def _parse_logs(
    run: RunDir, host: str, entries: Mapping[str, LogFile], grammar: LogGrammar
) -> Iterator[tuple[str, bytes | mmap, Parsed]]:
    for name, entry in sorted(entries.items()):
        data = verify_log(run, host, name, entry)
        if is_named(name, (*grammar.files, *grammar.rank_files)):
            try:
                yield name, data, parse(data, grammar, deadline(f"{host}/{name}", data))
            except DataError as error:
                error.host, error.where = host, error.where or name
                raise
