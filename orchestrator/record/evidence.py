"""Read the evidence of a run: the files sent to a node and the logs collected from it. A log is only returned if it matches
the size and digest that its node recorded; a large one needs little memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from mmap import MADV_DONTNEED, mmap

from orchestrator.errors import DataError
from orchestrator.record.node_record import LogFile
from orchestrator.record.rundir import RunDir
from orchestrator.record.state_file import check_name, map_bytes, read_bytes

__all__ = ["deadline", "invalid", "rendered_texts", "verified"]

_MAX_LOG_BYTES = 1 << 30
_READ_LOG_BYTES = 16 << 20
_MAX_RENDERED_BYTES = 1 << 20
_PARSE_SECONDS = 60.0


def verified(run: RunDir, host: str, name: str, entry: LogFile) -> bytes | mmap:
    """Return a log's bytes, verified against the node's record; a large log is mapped, not read. Raises DataError."""
    path = run.path / "logs" / host / check_name(name, f"{host}: exit.json")
    try:
        data = map_bytes(path, _MAX_LOG_BYTES, above=_READ_LOG_BYTES)
    except FileNotFoundError as error:
        raise invalid("expected the log, it is not collected", host, name, "run `orch collect`") from error
    except OSError as error:
        raise invalid(f"cannot be read: {error.strerror}", host, name) from error
    if len(data) != entry.bytes:
        raise invalid(f"expected {entry.bytes} bytes as on the node, got {len(data)}", host, name, "run `orch collect`")
    digest, done = hashlib.sha256(), _forget(data)
    for start in range(0, len(data), _READ_LOG_BYTES):
        digest.update(data[start : start + _READ_LOG_BYTES])
        done()
    if digest.hexdigest() != entry.sha256:
        raise invalid("expected the SHA-256 that the node recorded, got a different one", host, name)
    return data


def rendered_texts(run: RunDir, host: str) -> dict[str, str]:
    """Return the text of each file that was rendered for a host, by path. Raises DataError if one cannot be read."""
    folder, texts = run.rendered_path(host), {}
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        try:
            text = read_bytes(path, _MAX_RENDERED_BYTES).decode("utf-8", "backslashreplace")
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", kind="state_damaged", where=str(path)) from error
        texts[str(path.relative_to(folder))] = text
    return texts


def _forget(data: bytes | mmap) -> Callable[[], None]:
    """Return a function that releases the pages of a mapped log that have been read."""
    return (lambda: data.madvise(MADV_DONTNEED)) if isinstance(data, mmap) else lambda: None


def deadline(what: str, data: bytes | mmap) -> Callable[[], None]:
    """Return a function for a parser to call between blocks: it raises DataError after 60 s and releases memory."""
    end, done = time.monotonic() + _PARSE_SECONDS, _forget(data)

    def check() -> None:
        done()
        if time.monotonic() > end:
            raise invalid(f"parsing {what} took more than {_PARSE_SECONDS:g} s")

    return check


def invalid(message: str, host: str = "", where: str = "", hint: str = "") -> DataError:
    """Return the error for a run whose files are missing or invalid."""
    return DataError(message, kind="result_invalid", host=host, where=where, hint=hint, phase="summarize")
