"""Use of a run's nodes and GPUs over its measured window, from their samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from orchestrator.logs.metrics import Metric
from orchestrator.record.telemetry import Event, Gpu, Telemetry
from orchestrator.results.numbers.throughput import mean
from orchestrator.results.telemetry.over_window import (
    Point,
    continue_to,
    growth_over,
    is_resolved,
    mean_over,
    rate_over,
    readings_in,
)
from orchestrator.results.values import Value

REASONS = {
    0x4: "sw_power_cap",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Bits of nvmlClocksEventReasons, by their names in nvidia-smi's ``clocks_event_reasons_counters``.
"""
CLOCK, HOTTEST = "clock of a GPU, MHz", "hottest GPU, °C"
_ENOUGH = 5
"""Fewer samples say little of how long clocks were lowered."""
_MOST_POINTS = 120
"""Of a line of a chart."""
_ERRORS = {
    "ecc_uncorrected": "memory, not corrected",
    "ecc_corrected": "memory, corrected",
    "pcie_replays": "PCIe",
    "nvlink_errors": "NVLink",
}
_LINK_ERRORS = {"errors": "", "lost": " (packets lost or sent again)"}


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU over the window; None for unknown values.

    Means: power (W), the share of time in which a kernel ran (%), the clock of its multiprocessors
    (MHz). Maxima: temperature (°C) and memory in use (bytes). ``lowered``: the share of samples
    with lowered clocks, by reason. ``errors``: the growth of its error counters by kind, without
    zeros. ``energy_is_counted``: its power comes from the driver's energy counter, not from a mean
    of readings.
    """

    name: str
    uuid: str
    shared: bool
    power_w: float | None
    energy_is_counted: bool
    used_percent: float | None
    sm_mhz: float | None
    most_mhz: float | None
    celsius: float | None
    memory_bytes: float | None
    lowered: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """A node's line in a chart: ``points`` are (seconds from the start of the window, value) of all
    its GPUs together.
    """

    quantity: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node over the window; None for unknown values.

    ``busy`` is the busy share of its ``processors``, ``foreign_cores`` the cores used by processes
    outside the run, ``stolen_cores`` those lost to other machines of a hypervisor. ``held``: the
    share of periods in which a control group had used up its processor time, None without such a
    limit. ``is_coarse``: the power of some GPU was read too rarely for the window. Further fields
    are the watts of its processors' packages, and bytes per second received and sent over its
    network cards and ports. ``link_errors`` by card or port, without zeros. ``events`` up to the
    end of the window. ``samples``: how many rows lie in it. ``cost``: share of one processor that
    sampling used.
    """

    host: str
    samples: int
    processors: int
    gpus: tuple[GpuUse, ...]
    busy: float | None
    foreign_cores: float | None
    packages_w: float | None
    packages: tuple[str, ...]
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None
    link_errors: Mapping[str, int]
    events: tuple[Event, ...]
    cost: float | None
    lines: tuple[Line, ...] = field(default=(), repr=False)
    stolen_cores: float | None = None
    held: float | None = None
    is_coarse: bool = False

    @property
    def power_w(self) -> float | None:
        """The mean power of its GPUs; None if any GPU's power is unknown, or shared with others."""
        powers = [gpu.power_w for gpu in self.gpus if gpu.power_w is not None and not gpu.shared]
        if powers and len(powers) == len(self.gpus):
            return mean(powers)
        return None


@dataclass(frozen=True, slots=True)
class RunUse:
    """The nodes of a run over its window of ``seconds``, in order of node_rank; those without
    samples are left out.
    ``energy_per_sample`` in J, of the GPUs of the run alone; per token of a language model."""

    seconds: float
    nodes: tuple[NodeUse, ...]
    gpu_power_w: float | None = None
    energy_per_sample: float | None = None
    packages_w: float | None = None


def sampled_values(use: RunUse | None, metrics: Sequence[Metric]) -> tuple[Value, ...]:
    """Return the values of a run that follow from samples, in the order of the ``sampled`` metrics
    of its measure; those that are not known are left out."""
    known = (use.gpu_power_w, use.energy_per_sample, use.packages_w) if use else ()
    return tuple(
        Value(metric.name, (), number)
        for metric, number in zip(metrics, known, strict=False)
        if number is not None and number > 0
    )


def node_use(host: str, samples: Telemetry, begin: float, end: float) -> NodeUse:
    """Return how a node was used from ``begin`` to ``end``, seconds of its clock."""
    busy = rate_over(samples.points("busy_s"), begin, end)
    links = [("net", samples.interfaces), ("port", samples.ports)]
    names = [
        (f"{kind}{place}", name) for kind, of_kind in links for place, name in enumerate(of_kind)
    ]
    rates = {}
    for way in ("received", "sent"):
        of_links = [rate_over(samples.points(f"{link}.{way}"), begin, end) for link, _ in names]
        rates[way] = [rate for rate in of_links if rate is not None]
    errors = {}
    for link, name in names:
        for word, what in _LINK_ERRORS.items():
            grown = growth_over(samples.points(f"{link}.{word}"), begin, end)
            errors[f"{name}{what}"] = int(grown)
    return NodeUse(
        host=host,
        samples=sum(begin <= at <= end for at in samples.times),
        processors=samples.processors,
        gpus=tuple(
            _gpu_use(samples, place, gpu, begin, end) for place, gpu in enumerate(samples.gpus)
        ),
        busy=None
        if busy is None or samples.processors < 1
        else min(1.0, busy / samples.processors),
        foreign_cores=rate_over(samples.points("foreign_s"), begin, end),
        packages_w=rate_over(
            continue_to(end, samples.points("package_j"), begin, counts=True), begin, end
        ),
        packages=samples.packages,
        received_bytes_per_s=sum(rates["received"]) if rates["received"] else None,
        sent_bytes_per_s=sum(rates["sent"]) if rates["sent"] else None,
        link_errors={name: count for name, count in errors.items() if count},
        events=tuple(event for event in samples.events if event.at_s <= end),
        cost=samples.cost,
        lines=tuple(_lines(samples, begin, names)),
        stolen_cores=rate_over(samples.points("stolen_s"), begin, end),
        held=_throttled_share(samples, begin, end),
        is_coarse=_is_coarse(samples, begin, end),
    )


def _is_coarse(samples: Telemetry, begin: float, end: float) -> bool:
    """Return True if power was read, but so rarely that it says nothing of a window for some GPU."""
    for place, _ in enumerate(samples.gpus):
        kinds = [samples.points(f"gpu{place}.{word}") for word in ("energy_j", "power_w")]
        read = [points for points in kinds if points]
        if read and not any(is_resolved(points, begin, end) for points in read):
            return True
    return False


def _throttled_share(samples: Telemetry, begin: float, end: float) -> float | None:
    periods, held = (
        rate_over(samples.points(f"quota.{name}"), begin, end) for name in ("periods", "held")
    )
    if periods and held is not None:
        return min(1.0, held / periods)
    return None


def _gpu_use(samples: Telemetry, place: int, gpu: Gpu, begin: float, end: float) -> GpuUse:
    def points(word: str) -> list[Point]:
        return samples.points(f"gpu{place}.{word}")

    def highest(word: str) -> float | None:
        return max(readings_in(points(word), begin, end), default=None)

    energy, power = points("energy_j"), points("power_w")
    counted, read = None, None
    if is_resolved(energy, begin, end):
        counted = rate_over(continue_to(end, energy, begin, counts=True), begin, end)
    if is_resolved(power, begin, end):
        read = mean_over(continue_to(end, power, begin, counts=False), begin, end)
    reasons = [int(bits) for bits in readings_in(points("reasons"), begin, end)]
    lowered = {}
    for bit, name in REASONS.items():
        lowered[name] = sum(bool(bits & bit) for bits in reasons) / max(1, len(reasons))
    errors = {words: int(growth_over(points(word), begin, end)) for word, words in _ERRORS.items()}
    return GpuUse(
        name=gpu.name,
        uuid=gpu.uuid,
        shared=gpu.shared,
        power_w=counted if counted is not None else read,
        energy_is_counted=counted is not None,
        used_percent=mean_over(points("used_percent"), begin, end),
        sm_mhz=mean_over(points("sm_mhz"), begin, end),
        most_mhz=gpu.most_mhz,
        celsius=highest("celsius"),
        memory_bytes=highest("memory_bytes"),
        lowered=lowered if len(reasons) >= _ENOUGH else {},
        errors={words: count for words, count in errors.items() if count},
    )


# -- for charts


def _lines(samples: Telemetry, begin: float, links: Sequence[tuple[str, str]]) -> list[Line]:
    gpus = [f"gpu{place}" for place in range(len(samples.gpus))]
    power = [
        rates(samples.points(f"{gpu}.energy_j")) or samples.points(f"{gpu}.power_w") for gpu in gpus
    ]
    traffic = [
        rates(samples.points(f"{link}.{way}")) for link, _ in links for way in ("received", "sent")
    ]
    quantities = {
        "power of a GPU, W": _combine(power, mean),
        CLOCK: _combine([samples.points(f"{gpu}.sm_mhz") for gpu in gpus], mean),
        HOTTEST: _combine([samples.points(f"{gpu}.celsius") for gpu in gpus], max),
        "busy processors": rates(samples.points("busy_s")),
        "network, MB/s": [(at, value / 1e6) for at, value in _combine(traffic, sum)],
    }
    lines = []
    for quantity, points in quantities.items():
        if len(points) > 1:
            lines.append(
                Line(
                    quantity,
                    tuple(
                        (at - begin, value)
                        for at, value in points[:: -(-len(points) // _MOST_POINTS)]
                    ),
                )
            )
    return lines


def rates(points: Sequence[Point]) -> list[Point]:
    """Return the rate of a counter between each two samples, at the middle of the two.

    >>> rates([(0.0, 10.0), (2.0, 30.0)])
    [(1.0, 10.0)]
    """
    return [((a + b) / 2, (y - x) / (b - a)) for (a, x), (b, y) in pairwise(points) if y >= x]


def _combine(series: Sequence[Sequence[Point]], how: Callable[[list[float]], float]) -> list[Point]:
    """Return the values of several series at the times that all of them have."""
    if not series:
        return []
    by_time = [dict(points) for points in series]
    combined = []
    for at, _ in series[0]:
        if all(at in values for values in by_time):
            combined.append((at, how([values[at] for values in by_time])))
    return combined
