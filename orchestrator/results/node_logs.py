"""All logs of a run, verified and parsed, node by node; in several processes if they are large.

Only what the analysis needs is kept of each node: the step samples of the files that hold them, and the ranks that were logged.
Where each line describes a single process, samples are aggregated over ranks in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar, RankAggregate
from orchestrator.logs.parse import Parsed, parse
from orchestrator.pool import shared_out
from orchestrator.record import RunDir
from orchestrator.record.evidence import deadline, verified
from orchestrator.record.node_record import ExitRecord, LogFile
from orchestrator.results.numbers.tempo import quantiles
from orchestrator.results.numbers.throughput import Terms, step_times

__all__ = ["NodeLogs", "read_logs"]

_WORTH_BYTES = 64 << 20
"""Bytes of logs below which no other processes are started."""


@dataclass(frozen=True, slots=True)
class NodeLogs:
    """The parsed logs of a node: the files that the grammar names, which of them hold samples, and in ``rhythm`` the
    `tempo.quantiles` of the step times of each of these, if requested and available."""

    files: Mapping[str, Parsed]
    sampled: tuple[str, ...]
    rhythm: Mapping[str, tuple[float, float, float]]


Job = tuple[Path, str, Mapping[str, LogFile], LogGrammar, bool, Terms | None]


def read_logs(
    run: RunDir,
    records: Mapping[str, ExitRecord],
    grammar: LogGrammar,
    holders: frozenset[str],
    terms: Terms | None = None,
) -> tuple[dict[str, NodeLogs], RankAggregate]:
    """Verify every log of every host against the ``files`` of its exit record. Return the parsed logs by host, and the
    aggregate over ranks if each line describes a single process; the files then hold no samples of their own.

    ``holders`` are the hosts whose files hold the samples. With ``terms``, those of the run, the step times of each file are
    computed too, which takes longer. Raises DataError result_invalid for the first host in order that has an error.
    """
    jobs: list[Job] = [(run.path, host, record.files, grammar, host in holders, terms) for host, record in records.items()]
    in_processes = sum(file.bytes for record in records.values() for file in record.files.values()) > _WORTH_BYTES
    logs, aggregate = {}, RankAggregate()
    for job_logs, job_aggregate in shared_out(_read, jobs, worth=in_processes):
        logs.update(job_logs)
        aggregate.merge(job_aggregate)
    return logs, aggregate


def _read(jobs: Sequence[Job]) -> tuple[dict[str, NodeLogs], RankAggregate]:
    logs, aggregate = {}, RankAggregate()
    for path, host, entries, grammar, holds, terms in jobs:
        files: dict[str, Parsed] = {}
        rhythm: dict[str, tuple[float, float, float]] = {}
        sampled = []
        for name, log in _parsed(RunDir(path), host, entries, grammar):
            is_sample = holds and any(fnmatchcase(name, pattern) for pattern in grammar.files)
            if is_sample:
                sampled.append(name)
                # Steps may be missing from one rank's log; the run still has a number, or an error that says why not.
                with suppress(DataError):
                    if terms:
                        rhythm[name] = quantiles(step_times(log.samples, terms))
                if isinstance(log.said, RankAggregate):
                    aggregate.merge(log.said)
            files[name] = (
                log
                if is_sample and not isinstance(log.said, RankAggregate)
                else replace(log, said=(), readings=log.readings if is_sample else ())
            )
        logs[host] = NodeLogs(files, tuple(sampled), rhythm)
    return logs, aggregate


def _parsed(run: RunDir, host: str, entries: Mapping[str, LogFile], grammar: LogGrammar) -> Iterator[tuple[str, Parsed]]:
    for name, entry in sorted(entries.items()):
        data = verified(run, host, name, entry)
        if any(fnmatchcase(name, pattern) for pattern in (*grammar.files, *grammar.rank_files)):
            try:
                yield name, parse(data, grammar, deadline(f"{host}/{name}", data))
            except DataError as error:
                error.host, error.where = host, error.where or name
                raise
