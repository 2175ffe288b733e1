"""The result of one check on one host: what was found, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.checks.catalogue import CATALOGUE
from orchestrator.grouping import group_pairs
from orchestrator.inventory import Host

NAMES = tuple(entry.name for entry in CATALOGUE if entry.name != "reach")
"""The names of all checks. The check of the framework has the name of that framework in place of
``framework``.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check on one host. ``verdict``: ok, warning, failed, or unknown for what an
    audit may not read.
    """

    host: str
    name: str
    verdict: str
    found: str
    expected: str = ""
    hint: str = ""


def ok(host: str, name: str, found: str) -> Check:
    """Return a check that passed."""
    return Check(host, name, "ok", found)


def warning(host: str, name: str, found: str, expected: str, hint: str) -> Check:
    """Return a check that does not stop a run but may affect its numbers."""
    return Check(host, name, "warning", found, expected, hint)


def failure(host: str, name: str, found: str, expected: str, hint: str) -> Check:
    """Return a check that keeps a run from starting."""
    return Check(host, name, "failed", found, expected, hint)


def unknown(host: str, name: str, found: str, hint: str) -> Check:
    """Return a check that could not be made."""
    return Check(host, name, "unknown", found, "an answer", hint)


def cure(host: Host, hint: str, pod: str) -> str:
    """Return what to do about what a node has too little of; ``pod``: in the template of a pod."""
    return f"in the pod's template: {pod}" if host.transport == "kubectl" else hint


def fold_checks(checks: Iterable[Check]) -> dict[Check, list[str]]:
    """Return each distinct check once, without a host, and the hosts that it holds for.

    >>> list(fold_checks([ok("n1", "disk", "9 GiB"), ok("n2", "disk", "9 GiB")]).values())
    [['n1', 'n2']]
    """
    return group_pairs((replace(check, host=""), check.host) for check in checks)
