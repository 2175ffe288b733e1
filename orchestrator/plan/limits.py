"""The timeouts and limits of a run, on the controller and on the nodes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

_AT_ONCE = 128
_ROUND_S = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts of a run in seconds, its limit of output in bytes, and whether its nodes are sampled; `docs/structure.md` says
    what each limit guarantees."""

    beat_s: float = 0.5
    lost_s: float = 2.9
    doubt_s: float = 1.9
    lease_s: float = 60.0
    first_line_s: float = 600.0
    stall_s: float = 600.0
    grace_s: float = 5.0
    arm_s: float = 30.0
    ask_s: float = 20.0
    wait_s: float = 0.0
    output_bytes: int = 1 << 30
    telemetry: bool = True

    def round_s(self, limit_s: float, hosts: int) -> float:
        """Return how long a host may take for something that is asked of ``hosts`` in one round, if one alone may take
        ``limit_s``: with more than 128 of them, a host and the controller wait for others too.

        >>> Limits().round_s(30.0, 4), Limits().round_s(30.0, 1128)
        (30.0, 130.0)
        """
        return limit_s + _ROUND_S * max(0, hosts - _AT_ONCE)
