"""Collectives: parsed lines of a run, and bandwidths as nccl-tests defines them (its
doc/PERFORMANCE.md).

>>> point = CollectivePoint("allreduce", 536870912, True, time_s=0.002684354560, iterations=20)
>>> round(algorithm_bandwidth(point), 3), round(bus_bandwidth(point, world_size=8), 3)
(200.0, 350.0)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import DataError
from orchestrator.grouping import group_pairs
from orchestrator.logs.metrics import Metric
from orchestrator.notes import Note
from orchestrator.plan import RunSpec
from orchestrator.results.diagnosis_tables import Repeats
from orchestrator.results.notes import FEW_CALLS, RANK_FAR_ABOVE
from orchestrator.results.numbers.throughput import median
from orchestrator.results.values import Key, Value

_IN_PARTS = ("reduce_scatter", "all_gather", "all_to_all")
_ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_ALIGNED_BYTES = 16
_FORMS = {"both": (False, True), "out": (False,), "in": (True,)}
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,12})?")
_SLOWEST = 1.1
"""A rank whose mean time is above this multiple of the mean over all ranks is noted."""
_FEW = 5
_WORDS = {False: "no", True: "yes"}
_KEYS = ("size_bytes", "in_place")
METRICS = (
    Metric(
        "busbw",
        "GB/s",
        help="bus bandwidth: algbw times the share of the data that each link carries",
        keys=_KEYS,
    ),
    Metric(
        "algbw", "GB/s", help="algorithm bandwidth: size over time, GB of 10^9 bytes", keys=_KEYS
    ),
    Metric("time", "us", "lower", help="mean time of a call over all ranks", keys=_KEYS),
)
"""What a run measures; the first stands for it."""


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """One size in one form (in place or out of place).

    ``size_bytes`` is the total over all ranks of the data gathered or scattered. ``time_s`` is the
    mean time of a call over ``iterations`` and ranks; ``max_time_s`` is the slowest rank's time, 0
    if unknown.
    """

    collective: str
    size_bytes: int
    in_place: bool
    time_s: float
    iterations: int
    max_time_s: float = 0.0


def factor(collective: str, world_size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth: how often a link carries each byte at least,
    for any algorithm.

    >>> factor("allreduce", 4), factor("reduce_scatter", 4), factor("all_gather", 4), factor("broadcast", 4)
    (1.5, 0.75, 0.75, 1.0)
    >>> factor("all_to_all", 4), factor("send_recv", 4)
    (0.75, 1.0)
    """
    share = (world_size - 1) / world_size
    factors = {
        "allreduce": 2 * share,
        "reduce_scatter": share,
        "all_gather": share,
        "all_to_all": share,
    }
    return {**factors, "broadcast": 1.0, "send_recv": 1.0}[collective]


def algorithm_bandwidth(point: CollectivePoint) -> float:
    """Return size over time, in GB/s of 10^9 bytes."""
    return point.size_bytes / point.time_s / 1e9


def bus_bandwidth(point: CollectivePoint, world_size: int) -> float:
    """Return the bandwidth to compare with the hardware's, in GB/s of 10^9 bytes; 0 for a single
    rank.
    """
    return algorithm_bandwidth(point) * factor(point.collective, world_size)


# -- from the lines of a run


def points(
    spec: RunSpec, lines: Sequence[Mapping[str, str]], observed: Mapping[str, Any]
) -> tuple[CollectivePoint, ...]:
    """Return the measurements of a run, in order of size. ``observed`` holds the values of the
    program's closing line.

    Raises DataError (result_invalid) for a malformed line, and for a planned size that occurs
    twice, or that is neither measured nor listed as left out with its reason.
    """
    measured: dict[tuple[int, bool], CollectivePoint] = {}
    for line in lines:
        point = _point(spec, line)
        if (point.size_bytes, point.in_place) in measured:
            raise _invalid(
                f"{_name(point.size_bytes, point.in_place)}: expected one line, got another"
            )
        measured[point.size_bytes, point.in_place] = point
    missing_forms = {form["in_place"] for form in _records(observed, "unsupported")}
    left_out = set(_whole_numbers(observed, "left_out_bytes"))
    forms = [
        form for form in _FORMS[spec.options.get("in_place", "both")] if form not in missing_forms
    ]
    sizes = [size for size in list_sizes(spec) if size not in left_out]
    expected = [(size, form) for size in sizes for form in forms]
    if not expected:
        raise _invalid("expected at least one size in one form, the program measured none")
    for size, form in expected:
        if (size, form) not in measured:
            raise _invalid(
                f"{_name(size, form)}: expected a line, the log has none; it has {len(measured)} of {len(expected)}"
            )
    unplanned = next((key for key in measured if key not in expected), None)
    if unplanned:
        raise _invalid(f"{_name(*unplanned)}: expected planned sizes only, got this one")
    return tuple(measured[key] for key in expected)


def list_sizes(spec: RunSpec) -> list[int]:
    """Return the sizes of a run in bytes, rounded as in nccl-tests: multiples of 16 bytes per rank,
    at least one.
    """
    if text := spec.options.get("sizes"):
        words = str(text).split(",")
        if not all(word.isascii() and word.isdigit() and len(word) <= 15 for word in words):
            raise _invalid(
                f"options.sizes: expected whole numbers with commas, got {str(text)[:40]!r}"
            )
        sizes = [int(word) for word in words]
    else:
        step, most = _option(spec, "factor", 2), _option(spec, "max_bytes", 1)
        sizes = [_option(spec, "min_bytes", 1)]
        while sizes[-1] * step <= most:
            sizes.append(sizes[-1] * step)
    ranks = calling_ranks(spec) if spec.model in _IN_PARTS else 1
    unit = ranks * _ALIGNED_BYTES
    usable = (size - size % _ITEM_BYTES[spec.dtype] for size in sizes)
    return list(dict.fromkeys(max(unit, size // unit * unit) for size in usable))


def calling_ranks(spec: RunSpec) -> int:
    """Return how many ranks make a call together: the ranks of a group, or all."""
    return (
        _option(spec, "group_ranks", 0) or spec.world_size
        if "group_ranks" in spec.options
        else spec.world_size
    )  # of earlier runs


def _option(spec: RunSpec, name: str, least: int) -> int:
    value = spec.options.get(name)
    if type(value) is not int or value < least:
        raise _invalid(
            f"options.{name}: expected a whole number ≥ {least}, got {str(value)[:40]!r}"
        )
    return value


def _point(spec: RunSpec, line: Mapping[str, str]) -> CollectivePoint:
    if line.get("collective") != spec.model:
        raise _invalid(
            f"expected lines of {spec.model}, got one of {line.get('collective', 'none')[:40]!r}"
        )
    texts = [line.get(name, "") for name in ("size_bytes", "iterations", "time_s", "max_time_s")]
    if not all(map(_NUMBER.fullmatch, texts)) or line.get("in_place") not in ("0", "1"):
        raise _invalid(
            f"expected size, iterations and times of {spec.model}, got {', '.join(texts)[:120]!r}"
        )
    size, iterations, time_s, slowest = (
        int(texts[0]),
        int(texts[1]),
        float(texts[2]),
        float(texts[3]),
    )
    if not (time_s > 0 and iterations > 0 and slowest >= time_s * (1 - 1e-6) - 1e-9):
        raise _invalid(
            f"{size} bytes: expected times above 0, the slowest rank's the longest, got {texts[2]} and {texts[3]} s"
        )
    return CollectivePoint(spec.model, size, line["in_place"] == "1", time_s, iterations, slowest)


def _records(observed: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = observed.get(name, [])
    if not isinstance(value, list) or not all(
        isinstance(form, dict) and form.get("in_place") in (0, 1) for form in value
    ):
        raise _invalid(f"closing line: {name}: expected a list of forms")
    return value


def _whole_numbers(observed: Mapping[str, Any], name: str) -> list[int]:
    value = observed.get(name, [])
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise _invalid(f"closing line: {name}: expected a list of whole numbers")
    return value


def _name(size_bytes: int, in_place: bool) -> str:
    return f"{size_bytes} bytes {'in place' if in_place else 'out of place'}"


def _invalid(message: str) -> DataError:
    return DataError(message, kind="result_invalid", phase="summarize")


# -- over repeats


def medians(repeats: Repeats, in_place: bool) -> dict[int, float]:
    """Return the median over repeats of the time of each size (s), by size in bytes, of one form."""
    by_size = {
        size: readings
        for (size, form), readings in sorted(_by_size(repeats).items())
        if form == in_place
    }
    typical = {}
    for size, readings in by_size.items():
        typical[size] = median([point.time_s for point in readings])
    return typical


def values(spec: RunSpec, measured: Sequence[CollectivePoint]) -> tuple[Value, ...]:
    """Return the values of a run, for each size and form in their order: bus and algorithm
    bandwidth (GB/s) and time (us).
    """
    by_metric: dict[str, Callable[[CollectivePoint], float]] = {
        "busbw": lambda point: bus_bandwidth(point, calling_ranks(spec)),
        "algbw": algorithm_bandwidth,
        "time": lambda point: point.time_s * 1e6,
    }
    return tuple(
        Value(name, (point.size_bytes, _WORDS[point.in_place]), number(point))
        for name, number in by_metric.items()
        for point in measured
    )


def doubts(repeats: Repeats, key: Key) -> list[Note]:
    """Return the notes on the values of one size and form over repeats: a rank much slower than the
    mean, few timed calls.
    """
    readings = [
        point
        for _, points in repeats
        for point in points
        if (point.size_bytes, _WORDS[point.in_place]) == key
    ]
    most = max((point.iterations for _, points in repeats for point in points), default=0)
    notes = []
    if readings and median([point.max_time_s / point.time_s for point in readings]) > _SLOWEST:
        notes.append(RANK_FAR_ABOVE(longer=_SLOWEST - 1))
    if readings and min(point.iterations for point in readings) < min(_FEW, most):
        notes.append(FEW_CALLS(calls=_FEW))
    return notes


def _by_size(repeats: Repeats) -> dict[tuple[int, bool], list[CollectivePoint]]:
    points = [point for _, readings in repeats for point in readings]
    return group_pairs(((point.size_bytes, point.in_place), point) for point in points)
