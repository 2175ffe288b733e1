"""Model of a step of data-parallel training in which gradients are all-reduced while the backward pass is still running.

A device is described by its undisturbed step, the network by a measured curve, and the gradients by the buckets in which they
are reduced: one after the other, each as soon as its gradients are complete (S. Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", 2020). The module knows nothing of runs or of measured whole steps.

>>> curve = Curve.of({1_000_000: 0.001, 2_000_000: 0.002})
>>> f"{curve.time_s(1_500_000):.4f} {curve.time_s(4_000_000):.4f}"
'0.0015 0.0040'
>>> f"{step_s(DeviceModel(0.030, 0.020), (Bucket(1_000_000, 0.5), Bucket(2_000_000, 1.0)), curve):.3f}"
'0.032'
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from orchestrator.errors import DataError

__all__ = [
    "ALONE",
    "BLOCKS",
    "REACH",
    "Bucket",
    "Curve",
    "DeviceModel",
    "Sharing",
    "buckets_of",
    "reaches",
    "sharing_of",
    "step_s",
]

BLOCKS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "resnet50": (
        (2_049_000, 0),
        *((parameters, 1) for parameters in (4_462_592, 4_462_592, 6_039_552, *[1_117_184] * 5, 1_512_448)),
        *((parameters, 1) for parameters in (*[280_064] * 3, 379_392, 70_400, 70_400, 75_008, 9_536)),
    )
}
"""By model: (parameters, relative time) of its blocks in the order of the backward pass. The classifier of ResNet-50 takes next
to no time; its 16 residual blocks and the stem take about equally long (He et al., 2015: every stage halves the pixels and
doubles the channels). For other models the time of a block is assumed proportional to its parameters."""

REACH = 4
"""Largest ratio of an all-reduce's size to the largest measured size up to which its time is extrapolated. The time is
extrapolated with the bandwidth of the largest size, and is too long by at most this factor: if the measured sizes are so small
that their time is all latency."""


def reaches(largest_bytes: float, size_bytes: float) -> bool:
    """Return True if the largest measured size is large enough to extrapolate the time of ``size_bytes``."""
    return size_bytes <= REACH * largest_bytes


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of an all-reduce by size: ``points`` are (bytes, seconds), sizes ascending, seconds never decreasing."""

    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, times: Mapping[int, float]) -> Curve:
        """Return the curve through measured times (s) by size (bytes). Raise DataError for fewer than two or invalid points.

        A size that took longer than a larger one gets the larger one's time: the message could have been padded.
        """
        if len(times) < 2:
            raise _unfit(f"expected two sizes or more, got {len(times)}")
        for size, time_s in times.items():
            if not (0 < size < math.inf and 0 < time_s < math.inf):
                raise _unfit(f"expected sizes and times above 0, got {size} bytes in {time_s} s")
        descending = sorted(times.items(), reverse=True)
        least = accumulate((time_s for _, time_s in descending), min)
        return cls(tuple(reversed([(size, time_s) for (size, _), time_s in zip(descending, least, strict=True)])))

    def time_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce of any size.

        Between two measured sizes it is a power of the size. Below the smallest it follows the latency and bandwidth of the two
        smallest (R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994); above the largest it has
        the bandwidth of the largest.
        """
        (least, time_s), (second, later_s) = self.points[:2]
        if size_bytes < least:
            latency_s = max(0.0, time_s - (later_s - time_s) / (second - least) * least)
            return latency_s + (time_s - latency_s) * size_bytes / least
        largest, longest_s = self.points[-1]
        if size_bytes >= largest:
            return longest_s * size_bytes / largest
        place = bisect_left(self.points, (size_bytes, math.inf))
        (below, shorter_s), (above, longer_s) = self.points[place - 1 : place + 1]
        share = math.log(size_bytes / below) / math.log(above / below)
        return shorter_s * math.exp(share * math.log(longer_s / shorter_s))

    def reaches(self, size_bytes: float) -> bool:
        """Return True if the curve covers an all-reduce of this size."""
        return reaches(self.points[-1][0], size_bytes)

    def scaled(self, factor: float) -> Curve:
        """Return the curve of a network that takes ``factor`` times as long."""
        return Curve(tuple((size, time_s * factor) for size, time_s in self.points))


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Seconds of a step on one device without any wait: the whole step, and its backward pass, which can hide all-reduces."""

    step_s: float
    backward_s: float

    def scaled(self, factor: float) -> DeviceModel:
        """Return a device that takes ``factor`` times as long."""
        return DeviceModel(self.step_s * factor, self.backward_s * factor)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together. ``ready`` is the share of the backward pass after which they are complete."""

    size_bytes: int
    ready: float


@dataclass(frozen=True, slots=True)
class Sharing:
    """How computing and reducing slow each other: the share of its speed, 0 to 1, that each loses while both run."""

    compute: float
    reduce: float


ALONE = Sharing(0.0, 0.0)


def buckets_of(sizes_bytes: Sequence[int], model: str = "") -> tuple[Bucket, ...]:
    """Return buckets of these sizes in the order in which they are reduced, with ready times by the `BLOCKS` of the model."""
    blocks = BLOCKS.get(model, ((1, 1),))
    scale = sum(sizes_bytes) / sum(parameters for parameters, _ in blocks)
    all_time = sum(weight for _, weight in blocks)
    shares = []
    for end in accumulate(sizes_bytes):
        begins, time = 0.0, 0.0
        for parameters, weight in blocks:
            time += weight * min(1.0, max(0.0, (end - begins) / (parameters * scale)))
            begins += parameters * scale
        shares.append(time / all_time)
    if shares:
        shares[-1] = 1.0  # without a rounding error: the last gradients are the last work of the pass
    return tuple(Bucket(size, share) for size, share in zip(sizes_bytes, shares, strict=True))


def step_s(device: DeviceModel, buckets: Sequence[Bucket], curve: Curve, sharing: Sharing = ALONE) -> float:
    """Return the seconds of a step in which buckets are reduced one by one during the backward pass, the rest after it."""
    done_s = now_s = 0.0
    for bucket in buckets:
        wait_s = max(0.0, bucket.ready * device.backward_s - done_s)
        # Rounding errors in the sums must not make the remaining time negative, nor the done time longer than the pass.
        left_s = max(0.0, device.backward_s - done_s - wait_s)
        took_s, computed_s = _reduced(curve.time_s(bucket.size_bytes), left_s, sharing)
        now_s, done_s = now_s + wait_s + took_s, min(device.backward_s, done_s + wait_s + computed_s)
    return device.step_s - device.backward_s + now_s + (device.backward_s - done_s)


def _reduced(reduce_s: float, backward_s: float, sharing: Sharing) -> tuple[float, float]:
    """Return (seconds of an all-reduce during the remaining ``backward_s``, seconds of computing done meanwhile)."""
    computing = 1 - sharing.compute
    reducing = (1 - sharing.reduce) or float(not computing)  # if each stops the other, they run one after the other
    if not reducing or backward_s * reducing < reduce_s * computing:
        overlap_s = backward_s / computing
        return overlap_s + reduce_s - overlap_s * reducing, backward_s
    return reduce_s / reducing, reduce_s / reducing * computing


def sharing_of(backward_s: float, reduce_s: float, backward_beside_s: float, reduce_beside_s: float) -> Sharing:
    """Return how computing and reducing slow each other, from a backward pass and all-reduces that began together.

    The first two times are of each alone, the last two until each ended when both had begun together; all in seconds.

    >>> sharing_of(2.0, 1.0, 2.5, 1.0)
    Sharing(compute=0.5, reduce=0.0)
    """
    if reduce_beside_s <= backward_beside_s:
        lost, late = (backward_beside_s - backward_s) / reduce_beside_s, 1 - reduce_s / reduce_beside_s
    else:
        lost, late = 1 - backward_s / backward_beside_s, (reduce_beside_s - reduce_s) / backward_beside_s
    return Sharing(min(1.0, max(0.0, lost)), min(1.0, max(0.0, late)))


def _unfit(message: str) -> DataError:
    return DataError(f"all-reduce curve: {message}", kind="result_invalid")
