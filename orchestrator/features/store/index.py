"""The index of a store: what each archive says of itself, as tables of SQLite, which other programs
may read.

An index is a file that is written once, as a whole, and replaced by another one: nobody waits for
its locks. A row has a checksum over all that it says, also in the cells, so that a value changed by
hand or by a disk is no figure any more.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.documents import read
from orchestrator.record.archive_record import Head
from orchestrator.record.past_acceptance import PastAcceptance
from orchestrator.record.state_file import damaged

__all__ = ["Entry", "entry_of", "read_index", "write_index"]

SCHEMA = 2
"""Of the tables, in ``PRAGMA user_version``. 1: first version. 2: acceptances."""
_MOST_S = 60.0
_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the clock."""
_LEAST_ROW_BYTES = 8
_OF_HISTORY = 1
_TEXTS = (
    "created",
    "bench_id",
    "series",
    "framework",
    "model",
    "dtype",
    "shape",
    "spec",
    "metric",
    "unit",
    "hardware",
    "label",
)
_TABLES = """
CREATE TABLE archives (
    seal TEXT PRIMARY KEY, id TEXT, created TEXT, label TEXT, runs INTEGER, measured INTEGER, orch TEXT, files INTEGER,
    size_bytes INTEGER, acceptance TEXT, checksum TEXT
) WITHOUT ROWID;
CREATE TABLE benches (seal TEXT, bench_id TEXT, measures TEXT, damaged TEXT, PRIMARY KEY (seal, bench_id)) WITHOUT ROWID;
CREATE TABLE cells (
    seal TEXT, bench_id TEXT, place INTEGER, created TEXT, series TEXT, framework TEXT, model TEXT, dtype TEXT, shape TEXT,
    spec TEXT, metric TEXT, unit TEXT, is_primary INTEGER, value REAL, low REAL, high REAL, level REAL, n INTEGER,
    failed INTEGER, qualifications TEXT, hardware TEXT, label TEXT, PRIMARY KEY (seal, bench_id, place)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """An archive of a store as a list shows it: seal, size, number of files, the version of orch
    that sealed it, and what
    `orch history` shows of it, by bench, and of the acceptance if it is one."""

    seal: str
    size_bytes: int
    files: int
    orch: str
    id: str
    created: str
    label: str
    runs: int
    measured: int
    benches: Mapping[str, Mapping[str, Any]]
    acceptance: PastAcceptance | None = None

    @property
    def measures(self) -> list[str]:
        """The models, and what benches without metrics measured."""
        nouns = {bench["measures"] for bench in self.benches.values()}
        return sorted(
            {cell["model"] for bench in self.benches.values() for cell in bench["cells"]}
            | nouns - {""}
        )


def entry_of(seal: str, size_bytes: int, head: Head, where: str) -> Entry:
    """Return the entry of an archive from its head. Raises DataError for what this version cannot
    show.
    """
    history = head.history
    if history.get("schema") != _OF_HISTORY:
        message = f"expected what orch history shows, of schema {_OF_HISTORY}, got {history.get('schema')!r}"
        raise damaged(where, message, "a newer orch may have sealed it")
    try:
        runs, measured = _count(history["runs"]), _count(history["measured"])
        bench_id, created, label = (_text(history[key]) for key in ("id", "created", "label"))
        benches = {_text(name): _bench(name, entry) for name, entry in history["benches"].items()}
        accepted = (
            PastAcceptance.of_certificate(head.tables) if "acceptance_id" in head.tables else None
        )
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise damaged(
            where,
            f"history: expected valid values, {error}",
            "verify only what orch archive has written",
        ) from error
    return Entry(
        seal,
        size_bytes,
        head.files,
        head.orch,
        bench_id,
        created,
        label,
        runs,
        measured,
        benches,
        accepted,
    )


def write_index(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write a new index. The same entries give the same tables."""
    with closing(sqlite3.connect(path)) as tables:
        tables.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA user_version = {SCHEMA}; {_TABLES}"
        )
        with tables:
            for seal, entry in sorted(entries.items()):
                accepted = json.dumps(asdict(entry.acceptance)) if entry.acceptance else None
                counts = (
                    entry.runs,
                    entry.measured,
                    entry.orch,
                    entry.files,
                    entry.size_bytes,
                    accepted,
                    _checksum(entry),
                )
                tables.execute(
                    f"INSERT INTO archives VALUES ({_marks(11)})",
                    (seal, entry.id, entry.created, entry.label, *counts),
                )
                for bench_id, bench in entry.benches.items():
                    row = (seal, bench_id, bench["measures"], json.dumps(bench["damaged"]))
                    tables.execute(f"INSERT INTO benches VALUES ({_marks(4)})", row)
                    rows = [
                        (seal, bench_id, place, *_columns(cell))
                        for place, cell in enumerate(bench["cells"])
                    ]
                    tables.executemany(f"INSERT INTO cells VALUES ({_marks(22)})", rows)


def read_index(path: Path, where: str) -> tuple[dict[str, Entry], list[str]]:
    """Return the entries of an index by seal, and the seals whose rows do not match their checksum,
    which have no entry.

    Whoever may write to a store may have written it: it is asked only if it has the tables of an
    index and nothing else, and not for longer than `_MOST_S`. Raises DataError (state_damaged) for
    a file that is no index of this version.
    """
    over = time.monotonic() + _MOST_S
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        ) as tables:
            tables.row_factory = sqlite3.Row
            tables.set_progress_handler(lambda: time.monotonic() > over, _STEPS)
            tables.execute("PRAGMA trusted_schema = OFF")
            (version,) = tables.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA:
                raise damaged(
                    where,
                    f"expected an index of schema {SCHEMA}, got {version}",
                    "a newer orch may have written it",
                )
            if odd := _odd_parts(tables):
                raise damaged(where, f"expected the tables of an index alone, found {odd}")
            return _entries(tables, path.stat().st_size // _LEAST_ROW_BYTES)
    except (
        sqlite3.Error,
        IndexError,
        OverflowError,
        UnicodeDecodeError,
    ) as error:  # IndexError: a table lacks a column
        raise damaged(where, f"expected an index: {error}") from error


def _odd_parts(tables: sqlite3.Connection) -> str:
    """Return the first part that is not as `write_index` makes it, such as a view in place of a
    table; empty without one.
    """
    listed = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.executescript(_TABLES)
        expected = {(kind, name): _words(sql) for kind, name, sql in plain.execute(listed)}
    for count, (kind, name, sql) in enumerate(tables.execute(listed)):
        if count == len(expected) or expected.get((kind, name)) != _words(sql):
            return f"the {kind} {name!r}"[:100]
    return ""


def _words(sql: str | None) -> list[str]:
    return str(sql or "").split()


def _rows(tables: sqlite3.Connection, query: str, most: int) -> Iterator[sqlite3.Row]:
    """Yield rows, ``most`` of them at most: a damaged tree can have more than its file has room
    for.
    """
    for count, row in enumerate(tables.execute(query)):
        if count >= most:
            raise sqlite3.DatabaseError("more rows than the file has room for")
        yield row


def _entries(tables: sqlite3.Connection, most: int) -> tuple[dict[str, Entry], list[str]]:
    benches: dict[str, dict[str, dict[str, Any]]] = {}
    broken: set[str] = set()
    for row in _rows(tables, "SELECT * FROM benches", most):
        try:
            bench = {
                "cells": [],
                "damaged": json.loads(row["damaged"]),
                "measures": row["measures"],
            }
        except (ValueError, TypeError, RecursionError):
            broken.add(str(row["seal"]))
            continue
        benches.setdefault(row["seal"], {})[row["bench_id"]] = bench
    for row in _rows(tables, "SELECT * FROM cells ORDER BY seal, bench_id, place", most):
        try:
            benches[row["seal"]][row["bench_id"]]["cells"].append(_cell(row))
        except (KeyError, ValueError, TypeError, RecursionError):
            broken.add(str(row["seal"]))
    entries = {}
    for row in _rows(tables, "SELECT * FROM archives", most):
        try:
            orch, name, created, label = (
                _text(row[key]) for key in ("orch", "id", "created", "label")
            )
            counts = {key: _count(row[key]) for key in ("size_bytes", "files", "runs", "measured")}
            valid = {
                _text(bench_id): _bench(bench_id, bench)
                for bench_id, bench in benches.get(row["seal"], {}).items()
            }
            accepted = (
                read(PastAcceptance, json.loads(row["acceptance"]))
                if row["acceptance"] is not None
                else None
            )
            entry = Entry(
                _text(row["seal"]),
                orch=orch,
                id=name,
                created=created,
                label=label,
                benches=valid,
                acceptance=accepted,
                **counts,
            )
            is_whole = entry.seal not in broken and _checksum(entry) == row["checksum"]
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
            is_whole = False
        if is_whole:
            entries[entry.seal] = entry
        else:
            broken.add(str(row["seal"]))
    return entries, sorted(broken)


def _checksum(entry: Entry) -> str:
    return hashlib.sha256(
        json.dumps(asdict(entry), sort_keys=True, allow_nan=False).encode()
    ).hexdigest()


def _columns(cell: Mapping[str, Any]) -> Iterator[Any]:
    interval = cell["interval"] or {"low": None, "high": None, "level": None}
    for name in (
        "created",
        "series",
        "framework",
        "model",
        "dtype",
        "shape",
        "spec",
        "metric",
        "unit",
    ):
        yield cell[name]
    yield from (
        cell["primary"],
        cell["value"],
        interval["low"],
        interval["high"],
        interval["level"],
        cell["n"],
        cell["failed"],
    )
    yield from (json.dumps(cell["qualifications"]), cell["hardware"], cell["label"])


def _cell(row: sqlite3.Row) -> dict[str, Any]:
    cell = {name: row[name] for name in _TEXTS}
    interval = (
        {name: row[name] for name in ("low", "high", "level")} if row["low"] is not None else None
    )
    numbers = {"value": row["value"], "interval": interval, "n": row["n"], "failed": row["failed"]}
    return (
        cell
        | numbers
        | {"primary": bool(row["is_primary"]), "qualifications": json.loads(row["qualifications"])}
    )


def _bench(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    if any(cell["bench_id"] != name for cell in value["cells"]):
        raise ValueError(f"got cells of another bench in {name!r}")
    reasons = {_text(name): _text(reason) for name, reason in value["damaged"].items()}
    return {
        "cells": [_valid(cell) for cell in value["cells"]],
        "damaged": reasons,
        "measures": _text(value["measures"]),
    }


def _valid(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell with exactly the fields of an index. Raises KeyError, TypeError."""
    if type(cell["primary"]) is not bool:
        raise TypeError(f"primary: got {cell['primary']!r}")
    key = json.loads(cell["spec"]).get("key", {})
    if not (
        isinstance(key, dict) and all(isinstance(part, (str, int, float)) for part in key.values())
    ):
        raise TypeError(f"spec: got the key {key!r}")
    interval = cell["interval"] and {
        name: _number(cell["interval"][name]) for name in ("low", "high", "level")
    }
    value = None if cell["value"] is None else _number(cell["value"])
    numbers = {
        "value": value,
        "interval": interval,
        "n": _count(cell["n"]),
        "failed": _count(cell["failed"]),
    }
    others = {
        "primary": cell["primary"],
        "qualifications": [_text(text) for text in cell["qualifications"]],
    }
    return {name: _text(cell[name]) for name in _TEXTS} | numbers | others


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r} in place of a text")
    value.encode()  # SQLite takes no half of a pair
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError(f"got {value!r} in place of a whole number from 0 on")
    return int(value)


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"got {value!r} in place of a number")
    return float(value)


def _marks(count: int) -> str:
    return ", ".join("?" * count)
