"""Read the evidence of a run: the files sent to a node and the logs collected from it. A log is
only returned if it matches the size and digest that its node recorded; a large one needs little
memory.

Logs are stored as they are, and returned without secret values. Where these are is recorded when
the logs are collected, because only then the values are at hand: `mark_secrets`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from mmap import MADV_DONTNEED, mmap

from orchestrator.errors import DataError
from orchestrator.files import failures
from orchestrator.inventory import Redaction
from orchestrator.inventory.secrets import hide_spans, merge_spans
from orchestrator.logs import SETUP_LOG
from orchestrator.plan.environment import SETUP_FAILED
from orchestrator.record.node_record import LogFile
from orchestrator.record.rundir import EXIT_RECORD, RunDir
from orchestrator.record.state_file import check_name, map_bytes, read_bytes

_MAX_LOG_BYTES = 1 << 30
_MAX_COLLECTED_BYTES = 1 << 40
_MOST_PLACES = 100_000
_READ_LOG_BYTES = 16 << 20
_MAX_RENDERED_BYTES = 1 << 20
_PARSE_SECONDS = 60.0
_LAST_WORDS_BYTES = 8192


def mark_secrets(run: RunDir, host: str, redaction: Redaction, exit_record: bytes = b"") -> None:
    """Record where the collected logs of a host, and the exit record that will be stored next, hold
    secret values.

    Places that are recorded already stay, because a value may have changed since. Raises DataError,
    as any write.
    """
    places = run.secret_places(host)
    before = dict(places)
    for path in run.logs(host) if redaction.needles else ():
        with failures(path):
            data = map_bytes(path, _MAX_COLLECTED_BYTES, above=_READ_LOG_BYTES)
        spans = redaction.spans(data)
        if len(spans) > _MOST_PLACES:
            spans = [*spans[:_MOST_PLACES], (spans[_MOST_PLACES][0], len(data))]
        places[path.name] = merge_spans([*places.get(path.name, ()), *spans])
    if spans := redaction.spans(exit_record, words=False):
        places[EXIT_RECORD] = spans
    places = {name: spans for name, spans in places.items() if spans}
    if places != before:
        run.write_secret_places(host, places)


def log_bytes(run: RunDir, host: str, name: str) -> bytes:
    """Return the collected bytes of a log, without secret values. Raises OSError."""
    return hide_spans(run.log_path(host, name).read_bytes(), run.secret_places(host).get(name, ()))


def first_bytes(run: RunDir, host: str, name: str, count: int) -> bytes:
    """Return the first ``count`` bytes of a log, without secret values. Raises OSError."""
    return _piece(run, host, name, lambda size: 0, count)


def last_bytes(run: RunDir, host: str, name: str, count: int) -> bytes:
    """Return the last ``count`` bytes of a log, without secret values. Raises OSError."""
    return _piece(run, host, name, lambda size: max(0, size - count), count)


def setup_failed(run: RunDir, host: str) -> bool:
    """Return True if a setup line of a run failed on a host, so that its program did not start.
    Raises OSError.
    """
    if not run.log_path(host, SETUP_LOG).is_file():
        return False
    lines = (
        last_bytes(run, host, SETUP_LOG, _LAST_WORDS_BYTES).decode("utf-8", "replace").splitlines()
    )
    return any(line.startswith(SETUP_FAILED) for line in lines)


def _piece(run: RunDir, host: str, name: str, start_of: Callable[[int], int], count: int) -> bytes:
    with run.log_path(host, name).open("rb") as log:
        start = start_of(os.fstat(log.fileno()).st_size)
        log.seek(start)
        data = log.read(count)
    places = run.secret_places(host).get(name, ())
    return hide_spans(
        data,
        [
            (max(0, begin - start), end - start)
            for begin, end in places
            if start < end and begin < start + len(data)
        ],
    )


def verify_log(run: RunDir, host: str, name: str, entry: LogFile) -> bytes | mmap:
    """Return a log's bytes, verified against the node's record, without secret values; a large log
    is mapped, not read.

    Raises DataError.
    """
    path = run.path / "logs" / host / check_name(name, f"{host}: exit.json")
    try:
        data = map_bytes(path, _MAX_LOG_BYTES, above=_READ_LOG_BYTES)
    except FileNotFoundError as error:
        raise invalid(
            "expected the log, but it has not been collected", host, name, "run `orch collect`"
        ) from error
    except OSError as error:
        raise invalid(f"cannot be read: {error.strerror}", host, name) from error
    if len(data) != entry.bytes:
        raise invalid(
            f"expected {entry.bytes} bytes as on the node, got {len(data)}",
            host,
            name,
            "run `orch collect`",
        )
    digest, done = hashlib.sha256(), _forget(data)
    for start in range(0, len(data), _READ_LOG_BYTES):
        digest.update(data[start : start + _READ_LOG_BYTES])
        done()
    if digest.hexdigest() != entry.sha256:
        raise invalid(
            "expected the SHA-256 that the node recorded, got a different one",
            host,
            name,
            "`orch collect` fetches the log again, if the node still has it",
        )
    places = run.secret_places(host).get(name, ())
    return hide_spans(data, places) if places else data


def read_rendered_files(run: RunDir, host: str) -> dict[str, str]:
    """Return the text of each file that was rendered for a host, by path. Raises DataError if one
    cannot be read.
    """
    folder, texts = run.rendered_path(host), {}
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        try:
            text = read_bytes(path, _MAX_RENDERED_BYTES).decode("utf-8", "backslashreplace")
        except OSError as error:
            raise DataError(
                f"cannot be read: {error.strerror}", kind="state_damaged", where=str(path)
            ) from error
        texts[str(path.relative_to(folder))] = text
    return texts


def _forget(data: bytes | mmap) -> Callable[[], None]:
    """Return a function that releases the pages of a mapped log that have been read."""
    if isinstance(data, mmap):
        return lambda: data.madvise(MADV_DONTNEED)
    return lambda: None


def deadline(log: str, data: bytes | mmap) -> Callable[[], None]:
    """Return a function for a parser to call between blocks: it raises DataError after 60 s and
    releases memory.
    """
    end, done = time.monotonic() + _PARSE_SECONDS, _forget(data)

    def check() -> None:
        done()
        if time.monotonic() > end:
            raise invalid(f"parsing {log} took more than {_PARSE_SECONDS:g} s")

    return check


def invalid(message: str, host: str = "", where: str = "", hint: str = "") -> DataError:
    """Return the error for a run whose files are missing or invalid."""
    return DataError(
        message, kind="result_invalid", host=host, where=where, hint=hint, phase="summarize"
    )
