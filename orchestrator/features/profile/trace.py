"""The parts of a rank's steps in a trace of PyTorch's profiler: communication, computing beside it,
idle time, top operators.

The format is Chrome's ("Trace Event Format", complete events `X` with microseconds),
as PyTorch's Kineto writes it. The file comes from a node: its size and number of events are
bounded, and everything but events is left out.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import DataError
from orchestrator.features.profile.spans import Span, common, length, unite, without
from orchestrator.strictjson import strict_json

_MOST_BYTES, _MOST_EVENTS = 128 << 20, 1_000_000
_STEP = re.compile(r"orch step [0-9]{1,9}", re.ASCII)
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_COMMUNICATION = (
    "c10d::",
    "_c10d_functional",
    "c10d_functional",
    "torch.distributed",
    "gloo:",
    "nccl:",
    "record_param_comms",
)
"""How the names of operators begin that communicate, start communication or wait for it."""
_TOP, _LONGEST_NAME = 10, 120
_LATEST_US = 1e18


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel of a device, or an operator of a CPU without those that it calls: how often it ran
    in the traced steps, and for which share of them."""

    name: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class Trace:
    """The traced steps of a rank, as shares of their time. ``communication``: collectives run;
    ``exposed``: and nothing is computed; ``waiting``: of that, until the last of the traced ranks
    has come, None where that cannot be told; ``idle``: neither. ``of_device``: of a GPU, by its
    kernels; else of a CPU, by gloo's collectives and PyTorch's operators."""

    rank: int
    host: str
    of_device: bool
    steps: int
    step_s: float
    communication: float
    exposed: float
    idle: float
    top: tuple[Operator, ...]
    waiting: float | None = None

    @property
    def overlapped(self) -> float | None:
        """The share of the communication that runs beside computing; None without communication."""
        if not self.communication:
            return None
        return 1 - self.exposed / self.communication


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, and its values to be compared between ranks, in µs: of each kind of
    collective the spans in which it ran, in their order, and when one of any kind ran while nothing
    was computed; ``lasts``: so long the steps took."""

    trace: Trace
    sends: Mapping[str, Sequence[Span]]
    exposed: Sequence[Span]
    lasts: float


@dataclass(frozen=True, slots=True)
class _Event:
    category: str
    name: str
    thread: str
    span: Span


def parse_trace(data: bytes, rank: int, host: str) -> Recorded:
    """Return the parts of the steps in a compressed trace. Raises DataError (result_invalid) for
    another file.
    """
    events = list(_events(strict_json(_unpack(data), "")))
    steps = [
        event.span
        for event in events
        if event.category == "user_annotation" and _STEP.fullmatch(event.name)
    ]
    if not steps:
        raise _unusable("expected annotations of steps, found none")
    kernels = [event for event in events if event.category in _ON_DEVICE]
    end = max(end for _, end in [*steps, *(event.span for event in kernels)])
    window = [(min(begin for begin, _ in steps), end)]
    lasts = length(window)
    if not lasts > 0:
        raise _unusable("expected steps that last longer than 0")
    if kernels:
        sends = [event for event in kernels if event.name.lower().startswith("nccl")]
        computes = [event.span for event in kernels if not event.name.lower().startswith("nccl")]
        counted = [(event, event.span[1] - event.span[0]) for event in kernels]
    else:
        sends = [event for event in events if event.name.startswith("gloo:")]
        operators = [event for event in events if event.category == "cpu_op"]
        computes = _computing(operators)
        counted = list(_own_times(operators))
    communication, computing = (
        common(unite(part), window) for part in ([event.span for event in sends], computes)
    )
    busy, sending = length(unite([*communication, *computing])), length(communication)
    exposed = without(communication, computing)
    trace = Trace(
        rank,
        host,
        bool(kernels),
        len(steps),
        lasts / len(steps) / 1e6,
        sending / lasts,
        length(exposed) / lasts,
        1 - busy / lasts,
        _top(counted, lasts),
    )
    by_name: dict[str, list[Span]] = defaultdict(list)
    for event in sorted(sends, key=lambda event: event.span):
        if window[0][0] <= event.span[0] < end:
            by_name[event.name].append(event.span)
    return Recorded(trace, by_name, exposed, lasts)


def _unpack(data: bytes) -> bytes:
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = reader.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise _unusable(f"expected a gzip file, got {error}") from error
    if reader.unconsumed_tail or not reader.eof:
        raise _unusable(f"expected a complete trace of at most {_MOST_BYTES >> 20} MiB")
    return text


def _events(document: Any) -> Iterator[_Event]:
    """Yield the complete events of a trace."""
    entries = document.get("traceEvents") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        raise _unusable("expected a list traceEvents")
    if len(entries) > _MOST_EVENTS:
        raise _unusable(f"expected at most {_MOST_EVENTS} events, got {len(entries)}")
    for entry in entries:
        if not isinstance(entry, Mapping) or entry.get("ph") != "X":
            continue
        name, category = entry.get("name"), entry.get("cat")
        begin, lasts = _time(entry.get("ts")), _time(entry.get("dur"))
        if (
            isinstance(name, str)
            and isinstance(category, str)
            and begin is not None
            and lasts is not None
        ):
            yield _Event(
                category,
                name[:_LONGEST_NAME],
                f"{entry.get('pid')} {entry.get('tid')}",
                (begin, begin + lasts),
            )


def _time(value: Any) -> float | None:
    if type(value) in (int, float) and 0 <= value < _LATEST_US:
        return float(value)
    return None


def _computing(operators: Iterable[_Event]) -> list[Span]:
    """Return the spans in which an operator computes.

    Spans are left out in which an operator that it calls on the same thread starts communication or
    waits for it.
    """
    by_thread: dict[str, tuple[list[Span], list[Span]]] = defaultdict(lambda: ([], []))
    for event in operators:
        by_thread[event.thread][event.name.startswith(_COMMUNICATION)].append(event.span)
    return [
        span
        for computes, waits in by_thread.values()
        for span in without(unite(computes), unite(waits))
    ]


def _own_times(events: Iterable[_Event]) -> Iterator[tuple[_Event, float]]:
    """Yield each operator with its time without the operators that it calls, which are inside it on
    the same thread.
    """
    by_thread: dict[str, list[_Event]] = defaultdict(list)
    for event in events:
        by_thread[event.thread].append(event)
    for of_thread in by_thread.values():
        open_: list[tuple[_Event, list[float]]] = []
        for event in sorted(of_thread, key=lambda event: (event.span[0], -event.span[1])):
            while open_ and open_[-1][0].span[1] <= event.span[0]:
                yield _close_event(open_)
            if open_:
                open_[-1][1].append(event.span[1] - event.span[0])
            open_.append((event, []))
        while open_:
            yield _close_event(open_)


def _close_event(open_: list[tuple[_Event, list[float]]]) -> tuple[_Event, float]:
    event, called = open_.pop()
    return event, max(0.0, event.span[1] - event.span[0] - sum(called))


def _top(counted: Sequence[tuple[_Event, float]], lasts: float) -> tuple[Operator, ...]:
    times: dict[str, list[float]] = defaultdict(list)
    for event, seconds in counted:
        times[event.name].append(seconds)
    longest = sorted(times, key=lambda name: (-sum(times[name]), name))[:_TOP]
    return tuple(Operator(name, len(times[name]), sum(times[name]) / lasts) for name in longest)


def _unusable(message: str) -> DataError:
    return DataError(message, kind="result_invalid")
