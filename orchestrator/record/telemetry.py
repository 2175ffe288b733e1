"""Samples of a node during a run, ``telemetry.jsonl``: power, clocks, errors, load and traffic,
about once a second.

The sampling process of the node runner writes it (``remote/noderun/telemetry.py``). This module is
its only reader. Samples only annotate numbers, so a fault in the file costs the samples and never a
number.

The first line names the columns; each other line is a row of numbers, or an event. Times are
seconds of the node's own monotonic clock, counters grow from an arbitrary start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.documents import short
from orchestrator.errors import DataError

TELEMETRY = "telemetry.jsonl"
"""Its name among the logs of a node."""
SCHEMA = 1
"""Of ``telemetry.jsonl``. 1: first version."""
MOST_BYTES = 4 << 20
"""A larger file is none that a node wrote, and is not read."""
_MOST_COLUMNS, _MOST_LINES, _MOST_NAMES, _LONGEST = 512, 4096, 32, 120
_LARGEST = 1e18


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the run on one node.

    ``limit_w``: its power limit, ``most_mhz``: its largest clock; None if the driver does not say.
    ``shared``: the run has one instance of the GPU, and the power covers all instances.
    """

    name: str
    uuid: str
    limit_w: float | None
    most_mhz: float | None
    shared: bool


@dataclass(frozen=True, slots=True)
class Event:
    """An event at ``at_s``.

    ``kind`` is ``xid`` (an error of a GPU with its ``code``), ``process`` (a foreign process on a
    GPU), or ``busy`` (a foreign process that uses so many ``cores``). ``gpu`` is a place in
    `Telemetry.gpus`.
    """

    at_s: float
    kind: str
    gpu: int | None = None
    code: int | None = None
    pid: int | None = None
    name: str = ""
    user: str = ""
    cores: float | None = None


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The samples of one node: ``times`` in s, and ``columns`` by name, each with a value for each
    time, None where it was not read.

    Columns: ``busy_s``, ``foreign_s`` and ``stolen_s`` (processor seconds of all, of processes not
    of the run, and of other machines of a hypervisor), ``quota.periods`` and ``quota.held`` (of a
    limit of processor time), ``package_j``, ``net<i>.received``, ``.sent``, ``.errors`` of
    ``interfaces``, the same of ``port<i>`` of ``ports``, whose ``.lost`` are packets lost or sent
    again, and of ``gpu<i>`` of ``gpus`` ``power_w``, ``energy_j``, ``used_percent``, ``sm_mhz``,
    ``memory_mhz``, ``celsius``, ``memory_bytes``, ``reasons`` (bits of nvmlClocksEventReasons),
    ``ecc_corrected``, ``ecc_uncorrected``,
    ``pcie_replays``, ``nvlink_errors``. ``cost``: the share of a processor that sampling used, None
    if it did not end well.
    """

    processors: int
    period_s: float
    times: tuple[float, ...]
    columns: Mapping[str, tuple[float | None, ...]]
    gpus: tuple[Gpu, ...] = ()
    interfaces: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    cost: float | None = None

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return (seconds, value) of each time at which a column was read; empty if there is no
        such column.
        """
        values = self.columns.get(name, ())
        return [
            (at, value) for at, value in zip(self.times, values, strict=False) if value is not None
        ]


@dataclass(slots=True)
class _Parsed:
    line: int = 1
    times: list[float] = field(default_factory=list)
    rows: list[list[float | None]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cost: float | None = None


def telemetry_of(data: bytes, host: str) -> Telemetry | None:
    """Parse a node's samples; None if it wrote no row.

    Raises DataError (result_invalid) with line and expected value.

    >>> lines = b'{"schema":1,"period_s":1.0,"processors":8,"columns":["t","busy_s"]}\\n[5.0,70.5]\\n[6.0,null]\\n[7.0,71'
    >>> telemetry_of(lines, "node1").points("busy_s")
    [(5.0, 70.5)]
    """
    lines = data.split(b"\n")[
        :-1
    ]  # the last one is cut off where the disk was full or the node died
    if len(lines) > _MOST_LINES:
        raise _invalid(f"expected {_MOST_LINES} lines at most, got {len(lines)}", host)
    if not lines:
        return None
    parsed = _Parsed()
    try:
        header = _line(lines[0])
        columns = _columns(header)
        for line in lines[1:]:
            parsed.line += 1
            if line:
                _take(parsed, _line(line), len(columns))
        parsed.line = 1
        by_name = {}
        for place, name in enumerate(columns[1:]):
            by_name[name] = tuple(row[place] for row in parsed.rows)
        return Telemetry(
            processors=int(_number(header["processors"])),
            period_s=_number(header["period_s"]),
            times=tuple(parsed.times),
            columns=by_name,
            gpus=tuple(map(_gpu, _list(header, "gpus"))),
            interfaces=tuple(map(_text, _list(header, "interfaces"))),
            ports=tuple(map(_text, _list(header, "ports"))),
            packages=tuple(map(_text, _list(header, "packages"))),
            events=tuple(parsed.events),
            cost=parsed.cost,
        ) if parsed.times else None  # fmt: skip
    except KeyError as error:
        raise _invalid(f"expected {error.args[0]}, it is missing", host, parsed.line) from error
    except ValueError as error:
        raise _invalid(str(error), host, parsed.line) from error


def too_large(size: int, host: str) -> DataError:
    """Return the error for a file of so many bytes."""
    return _invalid(f"expected {MOST_BYTES} bytes at most, got {size}", host)


def _line(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError("expected JSON") from error


def _columns(header: Any) -> list[str]:
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}, got {short(header)}")
    columns: Any = header.get("columns")
    is_list = isinstance(columns, list) and 0 < len(columns) <= _MOST_COLUMNS
    if not is_list or not all(isinstance(name, str) for name in columns) or columns[0] != "t":
        raise ValueError(
            f"columns: expected a list of names that begins with t, got {short(columns)}"
        )
    if len(set(columns)) < len(columns):
        raise ValueError("columns: expected each name once")
    return list(columns)


def _take(parsed: _Parsed, value: Any, width: int) -> None:
    """Add a row or an event. Raises ValueError, KeyError."""
    if isinstance(value, dict):
        if value.get("event") == "end":
            seconds = _number(value["seconds"])
            parsed.cost = _number(value["used_s"]) / seconds if seconds > 0 else None
        elif "t" in value:  # not that the sampler failed: rows before it are as good as any
            parsed.events.append(_event(value))
        return
    if not isinstance(value, list) or len(value) != width:
        raise ValueError(f"expected {width} numbers, got {short(value)}")
    at = _number(value[0])
    if parsed.times and at <= parsed.times[-1]:
        raise ValueError(f"expected a time after the one before, got {short(at)}")
    parsed.times.append(at)
    parsed.rows.append(list(map(_reading, value[1:])))


def _event(value: Mapping[str, Any]) -> Event:
    whole = {
        name: value[name] for name in ("gpu", "code", "pid") if isinstance(value.get(name), int)
    }
    cores = None if value.get("cores") is None else _number(value["cores"])
    words = _text(value.get("event")), _text(value.get("name", "")), _text(value.get("user", ""))
    return Event(_number(value["t"]), words[0], **whole, name=words[1], user=words[2], cores=cores)


def _gpu(value: Any) -> Gpu:
    if not isinstance(value, dict):
        raise ValueError(f"gpus: expected objects, got {short(value)}")
    limit, most = (
        None if value.get(name) is None else _number(value[name])
        for name in ("limit_w", "most_mhz")
    )
    return Gpu(
        _text(value.get("name", "")),
        _text(value.get("uuid", "")),
        limit,
        most,
        value.get("shared") is True,
    )


def _list(header: Mapping[str, Any], name: str) -> Sequence[Any]:
    values = header.get(name, [])
    if not isinstance(values, list) or len(values) > _MOST_NAMES:
        raise ValueError(f"{name}: expected a list of {_MOST_NAMES} at most, got {short(values)}")
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"expected a text of {_LONGEST} characters at most, got {short(value)}")
    return value


def _reading(value: Any) -> float | None:
    """Return a value of a row; None for null, and for drivers' codes of unknown values, such as
    2**64 - 1.
    """
    is_unknown = value is None or (type(value) is int and abs(value) > _LARGEST)
    return None if is_unknown else _number(value)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or abs(value) > _LARGEST or not math.isfinite(value):
        raise ValueError(f"expected a number, got {short(value)}")
    return float(value)


def _invalid(message: str, host: str, line: int = 0) -> DataError:
    where = f"{TELEMETRY} line {line}" if line else TELEMETRY
    return DataError(message, kind="result_invalid", host=host, where=where, phase="summarize")
