"""Doubts about numbers that follow from the numbers themselves and from the physical limits of
devices and links.

A cell is compared with its peers: cells of the same program that differ only in size and batch
size. Measured and published tables are treated equally. A bound is applied only if device, model
and link are known, and lies above everything possible; scaling is judged by the repeats that speak
most against a finding.

>>> one, eight = (Measured(1, gpus, 32, "vgg16", "amp", (speed,)) for gpus, speed in ((1, 407.69), (8, 3332.17)))
>>> [finding.text for finding in findings(eight, [one])]
['superlinear: 8.17 times as fast as 1n1g on 8 times its ranks; doubt 1n1g first']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.devices.vendor import Device
from orchestrator.results.numbers.intervals import change_interval
from orchestrator.results.numbers.notes import (
    ABOVE_BOUND,
    LARGER_BATCH_SLOWER,
    LOSS_AT_TWO_NODES,
    MORE_RANKS_SLOWER,
    SUPERLINEAR,
)
from orchestrator.results.numbers.peaks import MODELS, Model, devices_in
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.numbers.throughput import median

SLACK = 0.02
"""Single numbers may differ by this fraction without a finding; docs/notes.md gives its origin."""
_HOP_SLACK = 0.05
"""The same for a number that is predicted from two others: those of one and two nodes enter a step
of four nodes with weights of 0.5 and 1.5, and the most striking of several sizes is judged."""
ROOM = 1.1
"""A device may run above the clock of its data sheet: an H100 reaches 1980 MHz, its peaks are
stated for 1830 MHz.
"""
_GRADIENT_BYTES, _WEIGHT_BYTES = 2, 4


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell: its size, what it ran, and the speeds of its repeats in ``unit``, or a single
    published number. ``devices`` is a text that names the devices, empty if no bounds should be
    derived; ``link_bytes_per_s`` is per node, one way. ``typical`` is the speed that is shown of
    it, None for the median. ``work_per_rank`` is what a rank computes in a step, in the unit of the
    speed times s: the batch size if it is None."""

    nodes: int
    gpus: int
    batch_size: int
    model: str
    dtype: str
    speeds: tuple[float, ...]
    devices: str = ""
    link_bytes_per_s: float | None = None
    typical: float | None = None
    unit: str = "samples/s"
    work_per_rank: float | None = None

    @property
    def ranks(self) -> int:
        """Number of devices."""
        return self.nodes * self.gpus

    @property
    def shape(self) -> str:
        """Size as text: ``4n8g``."""
        return f"{self.nodes}n{self.gpus}g"

    @property
    def speed(self) -> float:
        """Typical speed."""
        if self.typical is None:
            return median(self.speeds)
        return self.typical

    def step_s(self, speed: float) -> float:
        """Return the seconds of a step at a speed."""
        return (
            self.ranks
            * (self.batch_size if self.work_per_rank is None else self.work_per_rank)
            / speed
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A doubt. ``beyond`` is a ratio above 1: how far the number is above its maximum, or below its
    minimum.
    """

    kind: str
    beyond: float
    text: str


def findings(cell: Measured, peers: Iterable[Measured]) -> tuple[Finding, ...]:
    """Return the doubts about a cell. ``peers`` may contain the cell itself; cells without speeds
    are ignored.
    """
    if not cell.speeds:
        return ()
    others = [peer for peer in peers if peer is not cell and peer.speeds]
    same_batch = [peer for peer in others if peer.batch_size == cell.batch_size]
    smaller = [peer for peer in same_batch if peer.ranks < cell.ranks]
    results = (
        _superlinear(cell, smaller),
        _slower(cell, smaller),
        _batch(cell, others),
        _first_hop(cell, same_batch),
    )
    return (*(finding for finding in results if finding), *_impossible(cell))


def _superlinear(cell: Measured, smaller: Sequence[Measured]) -> Finding | None:
    """Compare the speed per rank with the baseline and the next smaller size; only the more
    suspicious jump is reported.
    """
    near = max((peer.ranks for peer in smaller), default=0)
    beyond = {}
    for ranks in {1, near}:
        alike = [peer for peer in smaller if peer.ranks == ranks]
        if alike:
            peer = max(alike, key=lambda peer: max(peer.speeds))
            beyond[min(cell.speeds) / cell.ranks * ranks / max(peer.speeds)] = peer
    odd = {by: peer for by, peer in beyond.items() if by > 1 + _room_for_chance(cell, peer)}
    if not odd:
        return None
    worst = max(odd)
    peer = odd[worst]
    faster, times = cell.speed / peer.speed, cell.ranks / peer.ranks
    return Finding("superlinear", worst, SUPERLINEAR(faster=faster, shape=peer.shape, times=times))


def _room_for_chance(cell: Measured, peer: Measured) -> float:
    """Return the tolerance: 0 if the repeats of both sides of a speedup leave no room for chance
    (Welch's interval), else the slack. All repeats of one being faster is not enough: of two each,
    that happens by chance in one case of six."""
    if peer.ranks > 1:
        return SLACK
    interval = change_interval(
        [speed / peer.ranks for speed in peer.speeds], [speed / cell.ranks for speed in cell.speeds]
    )
    return 0.0 if interval and interval.low > 1 else SLACK


def _slower(cell: Measured, smaller: Sequence[Measured]) -> Finding | None:
    fastest = max(smaller, key=lambda peer: peer.speed, default=cell)
    if fastest.speed <= cell.speed:
        return None
    text = MORE_RANKS_SLOWER(
        shape=fastest.shape, speed=format_number(fastest.speed), unit=fastest.unit
    )
    return Finding("slower", fastest.speed / cell.speed, text)


def _batch(cell: Measured, others: Sequence[Measured]) -> Finding | None:
    """Compare with smaller batches on the same devices: a larger batch does not make a sample
    slower.
    """
    size = (cell.nodes, cell.gpus)
    rivals = [
        peer
        for peer in others
        if (peer.nodes, peer.gpus) == size and peer.batch_size < cell.batch_size
    ]
    fastest = max(rivals, key=lambda peer: min(peer.speeds), default=cell)
    beyond = min(fastest.speeds) / max(cell.speeds)
    if beyond <= 1 + SLACK:
        return None
    text = LARGER_BATCH_SLOWER(
        batch_size=fastest.batch_size, speed=format_number(fastest.speed), unit=fastest.unit
    )
    return Finding("batch", beyond, text)


def _first_hop(cell: Measured, same_batch: Sequence[Measured]) -> Finding | None:
    """Compare the loss per step from one node to two with the loss to more nodes.

    Any all-reduce sends on average 2 (n - 1) / n times the gradients out of each of n nodes
    (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009), so a loss due to
    bandwidth grows with n: by half from 2 to 4. A loss that does not grow is mostly a cost per step
    that any number of nodes above one has, and sometimes a wrong number.
    """
    single_nodes = [peer for peer in same_batch if (peer.nodes, peer.gpus) == (1, cell.gpus)]
    larger = [peer for peer in same_batch if peer.nodes > 2 and peer.gpus == cell.gpus]
    if (
        cell.nodes != 2
        or not single_nodes
        or len({peer.work_per_rank for peer in (cell, *single_nodes, *larger)}) > 1
    ):
        return None
    single = min(single_nodes, key=lambda peer: min(peer.speeds))
    before = single.step_s(min(single.speeds))
    lost = cell.step_s(max(cell.speeds)) - before
    if lost <= 0:
        return None
    expected = {
        (before + lost * 2 * (peer.nodes - 1) / peer.nodes) / peer.step_s(min(peer.speeds)): peer
        for peer in larger
    }
    worst = max(expected, default=0.0)
    if worst <= 1 + _HOP_SLACK:
        return None
    peer = expected[worst]
    lost_ms, peer_lost_ms = (
        (member.step_s(member.speed) - single.step_s(single.speed)) * 1e3 for member in (cell, peer)
    )
    least = lost_ms * 2 * (peer.nodes - 1) / peer.nodes
    sizes = {"single": single.shape, "shape": peer.shape}
    return Finding(
        "first hop",
        worst,
        LOSS_AT_TWO_NODES(lost_ms=lost_ms, only_ms=peer_lost_ms, least_ms=least, **sizes),
    )


def _impossible(cell: Measured) -> Iterator[Finding]:
    """Yield a finding for each kind of bound that the fastest repeat exceeds; of several bounds of
    a kind the lowest counts.
    """
    model = MODELS.get(cell.model)
    lowest: dict[str, tuple[float, str]] = {}
    for kind, bound, limit in _bounds(cell, model) if model else ():
        lowest[kind] = min(lowest.get(kind, (bound, limit)), (bound, limit))
    for kind, (bound, limit) in lowest.items():
        if max(cell.speeds) > bound:
            yield Finding(kind, max(cell.speeds) / bound, ABOVE_BOUND(limit=limit, bound=bound))


def _bounds(cell: Measured, model: Model) -> Iterator[tuple[str, float, str]]:
    """Yield kind, maximum samples/s and limiting resource of each bound. Ranks wait for the slowest
    device.
    """
    for name, device in devices_in(cell.devices).items():
        whose = f"of {cell.ranks} × {name}"
        rate = device.rate(cell.dtype)
        if rate is None:
            continue
        yield (
            "arithmetic",
            cell.ranks * rate * ROOM / (2 * model.multiply_adds),
            f"the arithmetic {whose}",
        )
        moved = _least_bytes(cell, model, device)
        if moved > 0 and device.memory_bytes_per_s:
            step_s = moved / (device.memory_bytes_per_s * ROOM)
            yield "memory", cell.ranks * cell.batch_size / step_s, f"the memory {whose}"
    if cell.link_bytes_per_s and cell.nodes > 1:
        # The least that a node sends: with reduction in the switch (SHARP). A ring sends more.
        step_s = model.parameters * _GRADIENT_BYTES / cell.link_bytes_per_s
        limit = f"a link of {cell.link_bytes_per_s / 1e9:g} GB/s per node"
        yield "interconnect", cell.ranks * cell.batch_size / step_s, limit


def _least_bytes(cell: Measured, model: Model, device: Device) -> float:
    """Return the minimum of bytes moved in a step: the values kept for the backward pass and the
    weights are written once and read once, except for what fits the last-level cache."""
    value_bytes = 4 if cell.dtype in ("fp32", "tf32") else 2
    kept = cell.batch_size * model.kept * value_bytes + model.parameters * _WEIGHT_BYTES
    return 2 * (kept - device.cache_bytes)
