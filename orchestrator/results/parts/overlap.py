"""Model of a step in which collectives run while a device computes, or make it wait.

Collectives run one at a time, in their order. Each has two moments of the computation: it may begin
when computing has come to the first, and computing goes no further than the second before it has
ended. The module knows nothing of networks or programs.

>>> gather, scatter = Timed(seconds=0.004, begins_s=0.0, needed_s=0.0), Timed(seconds=0.006, begins_s=0.010, needed_s=0.020)
>>> f"{elapsed_s(0.020, (gather, scatter)):.3f}"
'0.024'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Sharing:
    """The mutual slowdown of computing and communicating: the share of its speed, 0 to 1, that each
    loses while both run.
    """

    compute: float
    reduce: float


ALONE = Sharing(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Timed:
    """A collective of ``seconds``: computing has taken ``begins_s`` when it may begin, ``needed_s``
    when it has to be done.
    """

    seconds: float
    begins_s: float
    needed_s: float


def elapsed_s(compute_s: float, collectives: Sequence[Timed], sharing: Sharing = ALONE) -> float:
    """Return the seconds of a step that computes for ``compute_s``, with these collectives in their
    order.
    """
    # A collective in the queue holds up what needs it, although it has not begun.
    limits = reversed(
        list(accumulate((collective.needed_s for collective in reversed(collectives)), min))
    )
    now_s = done_s = 0.0
    for collective, limit_s in zip(collectives, limits, strict=True):
        wait_s = max(0.0, min(collective.begins_s, compute_s) - done_s)
        # Rounding errors in the sums must not make the remaining time negative, nor the done time
        # longer than the step.
        left_s = max(0.0, min(limit_s, compute_s) - done_s - wait_s)
        took_s, computed_s = _beside(collective.seconds, left_s, sharing)
        now_s, done_s = now_s + wait_s + took_s, min(compute_s, done_s + wait_s + computed_s)
    return now_s + (compute_s - done_s)


def _beside(seconds: float, compute_s: float, sharing: Sharing) -> tuple[float, float]:
    """Return (seconds of a collective during the remaining ``compute_s``, seconds of computing done
    meanwhile).
    """
    computing = 1 - sharing.compute
    sending = (1 - sharing.reduce) or float(
        not computing
    )  # if each stops the other, they run one after the other
    if not sending or compute_s * sending < seconds * computing:
        overlap_s = compute_s / computing
        return overlap_s + seconds - overlap_s * sending, compute_s
    return seconds / sending, seconds / sending * computing


def sharing_of(
    backward_s: float, reduce_s: float, backward_beside_s: float, reduce_beside_s: float
) -> Sharing:
    """Return how computing and communicating slow each other, from a backward pass and collectives
    that began together.

    The first two times are of each alone, the last two until each ended when both had begun
    together; all in seconds.

    >>> sharing_of(2.0, 1.0, 2.5, 1.0)
    Sharing(compute=0.5, reduce=0.0)
    """
    if reduce_beside_s <= backward_beside_s:
        lost, late = (
            (backward_beside_s - backward_s) / reduce_beside_s,
            1 - reduce_s / reduce_beside_s,
        )
    else:
        lost, late = (
            1 - backward_s / backward_beside_s,
            (reduce_beside_s - reduce_s) / backward_beside_s,
        )
    return Sharing(min(1.0, max(0.0, lost)), min(1.0, max(0.0, late)))
