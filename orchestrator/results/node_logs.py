"""All logs of a run, checked and understood, node by node; in several processes where there is much to read.

Of each node only what the analysis needs is kept: what was said of the steps by the files that hold samples, in the room of one
rank where lines speak of one process each, and who spoke.
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
"""Of logs; for less, other processes are not started up."""


@dataclass(frozen=True, slots=True)
class NodeLogs:
    """What a node's logs say: files that the grammar names, which of them hold samples, and the `tempo.quantiles` of the step
    times of each of these where it was asked for and has them."""

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
    """Check every log of every host against the ``files`` of its exit record. Return what they say by host, and what processes
    say together where each line speaks of one; the files then hold no samples of their own.

    ``holders`` are the hosts whose files hold the samples; ``terms`` those of the run, to learn the step times of each
    file, which takes longer. Raises DataError result_invalid, of the first host in order.
    """
    jobs: list[Job] = [(run.path, host, record.files, grammar, host in holders, terms) for host, record in records.items()]
    much = sum(file.bytes for record in records.values() for file in record.files.values()) > _WORTH_BYTES
    logs, aggregate = {}, RankAggregate()
    for some, said in shared_out(_read, jobs, worth=much):
        logs.update(some)
        aggregate.merge(said)
    return logs, aggregate


def _read(jobs: Sequence[Job]) -> tuple[dict[str, NodeLogs], RankAggregate]:
    logs, aggregate = {}, RankAggregate()
    for path, host, entries, grammar, holds, terms in jobs:
        files: dict[str, Parsed] = {}
        rhythm: dict[str, tuple[float, float, float]] = {}
        sampled = []
        for name, one in _understood(RunDir(path), host, entries, grammar):
            is_sample = holds and any(fnmatchcase(name, pattern) for pattern in grammar.files)
            if is_sample:
                sampled.append(name)
                with suppress(DataError):  # one rank's log may lack steps; the run has a number all the same, or says why not
                    rhythm |= {name: quantiles(step_times(one.samples, terms))} if terms else {}
                if isinstance(one.said, RankAggregate):
                    aggregate.merge(one.said)
            files[name] = (
                one
                if is_sample and not isinstance(one.said, RankAggregate)
                else replace(one, said=(), readings=one.readings if is_sample else ())
            )
        logs[host] = NodeLogs(files, tuple(sampled), rhythm)
    return logs, aggregate


def _understood(run: RunDir, host: str, entries: Mapping[str, LogFile], grammar: LogGrammar) -> Iterator[tuple[str, Parsed]]:
    for name, entry in sorted(entries.items()):
        data = verified(run, host, name, entry)
        if any(fnmatchcase(name, pattern) for pattern in (*grammar.files, *grammar.rank_files)):
            try:
                yield name, parse(data, grammar, deadline(f"{host}/{name}", data))
            except DataError as error:
                error.host, error.where = host, error.where or name
                raise
