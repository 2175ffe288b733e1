"""JSON objects on disk with a schema and a seal: written completely, and refused if damaged.

Every name in a path is checked against an allow-list. Links, pipes and files above a size limit are
not read.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from orchestrator.documents import Invalid
from orchestrator.errors import DataError
from orchestrator.files import write_atomic
from orchestrator.record.sealed import is_broken, seal_record, unseal_record
from orchestrator.strictjson import strict_json

SCHEMA = 1
"""1: first version."""
_MAX_NAME_BYTES = 128
_MAX_STATE_BYTES = 64 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def write_state(path: Path, content: Mapping[str, Any]) -> None:
    """Write a sealed object, completely or not at all; ``schema`` is added."""
    write_atomic(path, state_bytes(content))


def state_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the bytes that `write_state` writes."""
    return json_bytes(seal_record({"schema": SCHEMA, **content}))


def read_state(path: Path) -> dict[str, Any]:
    """Return an object that `write_state` wrote, without its seal. Raises DataError (state_damaged)
    naming file and offset.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise state_error(path, f"expected an object, got {type(value).__name__}")
    schema = value.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise state_error(path, f"schema: expected a whole number ≥ 1, got {schema!r}")
    if schema > SCHEMA:
        raise state_error(
            path,
            f"expected schema {SCHEMA} or older, got {schema}",
            "a newer orch wrote it; use that version",
        )
    if is_broken(value):
        raise state_error(
            path,
            "its values do not match its own seal",
            "the file has changed since it was written",
        )
    return unseal_record(value)


def check_name(name: str, where: str) -> str:
    """Return ``name`` if it is allowed as one part of a path. Raises DataError (result_invalid)
    otherwise.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_BYTES:
        raise DataError(
            f"expected a name of letters, digits, '.', '_' and '-', not starting with '.' or '-', got {name[:80]!r}",
            kind="result_invalid",
            where=where,
        )
    return name


def read_json(
    path: Path,
    limit: int = _MAX_STATE_BYTES,
    kind: str = "state_damaged",
    cleaned: Callable[[bytes], bytes] = bytes,
) -> Any:
    """Return the JSON in a regular file of at most ``limit`` bytes, after ``cleaned`` has changed
    them.

    Raises DataError of ``kind`` naming file and offset.
    """
    try:
        data = read_bytes(path, limit)
    except FileNotFoundError as error:
        raise DataError("expected a file, found none", kind=kind, where=str(path)) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", kind=kind, where=str(path)) from error
    return strict_json(cleaned(data), str(path), kind)


def read_bytes(path: Path, limit: int) -> bytes:
    """Return a regular file's bytes, without following links or waiting for the other end of a
    pipe. Raises OSError.
    """
    data = map_bytes(path, limit, above=limit)
    assert isinstance(data, bytes)
    return data


def map_bytes(path: Path, limit: int, *, above: int) -> bytes | mmap:
    """Return a regular file's bytes like `read_bytes`; a file of more than ``above`` bytes is
    mapped instead of read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, the limit is {limit}")
        if status.st_size > above:
            return mmap(file, 0, access=ACCESS_READ)
        return stream.read(status.st_size)


def json_bytes(value: Mapping[str, Any], indent: int | None = 1) -> bytes:
    """Return JSON without NaN, in ASCII only, so that ``cat`` cannot send control characters of a
    node to a terminal.
    """
    return json.dumps(value, indent=indent, allow_nan=False).encode() + b"\n"


def state_error(path: Path | str, message: str, hint: str = "") -> DataError:
    """Return the error for a file of the project that is not as it was written."""
    return DataError(message, kind="state_damaged", where=str(path), hint=hint)


def part_error(path: Path | str, error: Invalid, expected: str = "") -> DataError:
    """Return the error for a key of a file; ``expected`` says what, where the error says less."""
    key, rest = error.steps[0], error.inside()
    message = rest.message
    if rest.steps or not message.startswith("expected"):
        message = f"expected {expected or 'a valid value'}, {rest}"
    elif expected and ", got " in message:
        message = f"expected {expected}, got {message.partition(', got ')[2]}"
    return state_error(path, f"{key}: {message}")
