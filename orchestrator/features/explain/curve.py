"""The time of a collective between measured sizes.

>>> curve = Curve.of({1_000_000: 0.001, 2_000_000: 0.002})
>>> f"{curve.time_s(1_500_000):.4f} {curve.time_s(4_000_000):.4f}"
'0.0015 0.0040'
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from orchestrator.errors import DataError

REACH = 4
"""Largest ratio of a collective's size to the largest measured size up to which its time is
extrapolated. The time is extrapolated with the bandwidth of the largest size, and is too long by at
most this factor: if the measured sizes are so small that their time is all latency."""


def reaches(largest_bytes: float, size_bytes: float) -> bool:
    """Return True if the largest measured size is large enough to extrapolate the time of
    ``size_bytes``.
    """
    return size_bytes <= REACH * largest_bytes


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a collective by size: ``points`` are (bytes, seconds), sizes ascending, seconds
    never decreasing.
    """

    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, times: Mapping[int, float]) -> Curve:
        """Return the curve through measured times (s) by size (bytes). Raise DataError for fewer
        than two or invalid points.

        A size that took longer than a larger one gets the larger one's time: the message could have
        been padded.
        """
        if len(times) < 2:
            raise _unfit(f"expected two sizes or more, got {len(times)}")
        for size, time_s in times.items():
            if not (0 < size < math.inf and 0 < time_s < math.inf):
                raise _unfit(f"expected sizes and times above 0, got {size} bytes in {time_s} s")
        descending = sorted(times.items(), reverse=True)
        least = accumulate((time_s for _, time_s in descending), min)
        return cls(
            tuple(
                reversed(
                    [(size, time_s) for (size, _), time_s in zip(descending, least, strict=True)]
                )
            )
        )

    def time_s(self, size_bytes: float) -> float:
        """Return the seconds for any size.

        Between two measured sizes it is a power of the size. Below the smallest it follows the
        latency and bandwidth of the two smallest (R. W. Hockney, "The communication challenge for
        MPP", Parallel Computing 20, 1994); above the largest it has the bandwidth of the largest.
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
        """Return True if the curve covers this size."""
        return reaches(self.points[-1][0], size_bytes)

    def scale(self, factor: float) -> Curve:
        """Return the curve of a network that takes ``factor`` times as long."""
        return Curve(tuple((size, time_s * factor) for size, time_s in self.points))


def _unfit(message: str) -> DataError:
    return DataError(f"curve of a collective: {message}", kind="result_invalid")
