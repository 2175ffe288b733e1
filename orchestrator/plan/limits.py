"""The timeouts and limits of a run, on the controller and on the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.options import OPTIONS
from orchestrator.plan.option_values import MOST_S, seconds, shortest

_ABOVE_ZERO = 1e-3
_SECONDS = {
    "beat_s": (_ABOVE_ZERO, 3600.0),
    "lost_s": (_ABOVE_ZERO, 86400.0),
    "doubt_s": (0.0, 86400.0),
    "lease_s": (2.0, 86400.0),
    "first_line_s": (1.0, MOST_S),
    "stall_s": (1.0, MOST_S),
    "grace_s": (0.0, 600.0),
    "arm_s": (_ABOVE_ZERO, 86400.0),
    "ask_s": (_ABOVE_ZERO, 86400.0),
    "wait_s": (0.0, MOST_S),
}
"""The least and the most of each time, also where it is an option."""
_AT_ONCE = 128
_ROUND_S = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts of a run in seconds, its limit of output in bytes, and whether its nodes are
    sampled; `docs/structure.md` says what each limit guarantees. Raises ConfigError for a value
    that no run could keep to, and naming the field."""

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

    def __post_init__(self) -> None:
        for name, (least, most) in _SECONDS.items():
            value = getattr(self, name)
            if type(value) not in (int, float) or not least <= value <= most:  # NaN is in no range
                raise _refusal(
                    name, f"a time in seconds from {shortest(least)} to {shortest(most)}", value
                )
        for name in ("lost_s", "lease_s"):
            if getattr(self, name) <= self.beat_s:
                raise _refusal(
                    name,
                    f"more than beat_s={shortest(self.beat_s)}, the time between two heartbeats",
                    getattr(self, name),
                )
        if type(self.output_bytes) is not int or self.output_bytes < 1 << 20:
            raise _refusal(
                "output_bytes", f"a whole number of bytes from {1 << 20} on", self.output_bytes
            )
        if type(self.telemetry) is not bool:
            raise _refusal("telemetry", "True or False", self.telemetry)

    @classmethod
    def of_options(cls, given: Mapping[str, Any]) -> Limits:
        """Return the limits that options of `OPTIONS` set, by name; others are the defaults."""
        fields = {"telemetry": given.get("telemetry")}
        for name, row in OPTIONS.items():
            if row.default and row.default.limit:
                fields[row.default.limit] = given.get(name)
        if "output_limit" in given:
            fields["output_bytes"] = given["output_limit"] << 20
        if given.get("wait_limit"):
            fields["wait_s"] = seconds(given["wait_limit"], "--wait-limit")
        elif given.get("wait"):
            fields["wait_s"] = MOST_S
        return cls(**{name: value for name, value in fields.items() if value is not None})

    @staticmethod
    def read(text: str, where: str, field: str = "", *, least: float | None = None) -> float:
        """Return the seconds of a duration, read as `option_values.seconds` does, within what ``field`` may
        be; without a field,
        ``least`` or more, or above 0. Raises ConfigError that begins with ``where``.

        >>> Limits.read("1m", "--stop-grace", "grace_s"), Limits.read("30m", "--timeout")
        (60.0, 1800.0)
        """
        lowest, most = _SECONDS[field] if field else (least, MOST_S)
        return seconds(text, where, least=lowest, most=most)

    def round_s(self, limit_s: float, hosts: int) -> float:
        """Return how long a host may take for something that is asked of ``hosts`` in one round, if
        one alone may take
        ``limit_s``: with more than 128 of them, a host and the controller wait for others too.

        >>> Limits().round_s(30.0, 4), Limits().round_s(30.0, 1128)
        (30.0, 130.0)
        """
        return limit_s + _ROUND_S * max(0, hosts - _AT_ONCE)


def _refusal(name: str, expected: str, value: Any) -> ConfigError:
    return ConfigError(f"expected {expected}, got {value!r}", where=f"Limits.{name}")
