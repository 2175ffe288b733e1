"""One judgement on one host: what was found, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["NAMES", "Check", "failed", "folded", "ok", "warning"]

NAMES = (
    "runner", "held", "framework", "disk", "limits", "shm", "login", "clock", "port", "data", "program", "slots", "gpus",
    "idle", "cuda", "ecc", "xid", "clocks", "modes", "pcie", "fabric", "links", "interface", "route", "hostname",
    "infiniband", "gdr", "expect", "alike",
)  # fmt: skip
"""The names of all checks; that of the framework bears the framework's own name."""


@dataclass(frozen=True, slots=True)
class Check:
    """One judgement on one host. ``verdict``: ok, warning or failed."""

    host: str
    name: str
    verdict: str
    found: str
    expected: str = ""
    hint: str = ""


def ok(host: str, name: str, found: str) -> Check:
    """Return a check that is met."""
    return Check(host, name, "ok", found)


def warning(host: str, name: str, found: str, expected: str, hint: str) -> Check:
    """Return a check that a run may go on without, and that its numbers may suffer from."""
    return Check(host, name, "warning", found, expected, hint)


def failed(host: str, name: str, found: str, expected: str, hint: str) -> Check:
    """Return a check without which nothing is started."""
    return Check(host, name, "failed", found, expected, hint)


def folded(checks: Iterable[Check]) -> dict[Check, list[str]]:
    """Return each distinct check once, without a host, and the hosts of which it was said.

    >>> list(folded([ok("n1", "disk", "9 GiB"), ok("n2", "disk", "9 GiB")]).values())
    [['n1', 'n2']]
    """
    found: dict[Check, list[str]] = {}
    for check in checks:
        found.setdefault(replace(check, host=""), []).append(check.host)
    return found
