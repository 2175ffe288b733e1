"""Lines with results in logs that a run's log grammar leaves out: logs of other nodes and ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from orchestrator.errors import DataError
from orchestrator.inventory import fold
from orchestrator.logs import LogGrammar, is_named
from orchestrator.logs.parse import Parsed, parse
from orchestrator.notes import Note
from orchestrator.record import RunDir
from orchestrator.record.evidence import first_bytes
from orchestrator.record.node_record import ExitRecord
from orchestrator.results.notes import UNREAD_RESULTS

_READ_BYTES = 256 << 10
_NUMBER = re.compile(r"[0-9]+")


def unread_results(
    run: RunDir,
    records: Mapping[str, ExitRecord],
    grammar: LogGrammar,
    read: Mapping[tuple[str, str], Parsed],
) -> list[Note]:
    """Return a note if logs that are not among those ``read``, by host and name, have results of
    their own; empty otherwise.

    Lines that repeat a line already read do not count: every rank may print the results of the run.
    A log is searched, up to its first 256 KiB, if its name differs from a name in ``files:`` only
    in numbers.
    """
    if not grammar.readings:
        return []
    known = [line for log in read.values() for line in log.readings]
    names = tuple(_NUMBER.sub("*", name) for name in grammar.files)
    places: list[tuple[str, str]] = []
    for host, record in records.items():
        for name in sorted(record.files):
            if (host, name) in read or not is_named(name, names):
                continue
            with suppress(DataError, OSError):
                found = parse(first_bytes(run, host, name, _READ_BYTES), grammar).readings
                if any(line not in known for line in found):
                    places.append((host, name))
    if not places:
        return []
    hosts, (host, name) = dict.fromkeys(host for host, _ in places), places[0]
    return [UNREAD_RESULTS(hosts=fold(hosts), example=f"{host}/{name}")]
