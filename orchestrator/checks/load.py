"""Processor use on a node by programs other than the measured one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.checks.check import Check, ok, warning
from orchestrator.checks.facts import NodeFacts

WORTH = 0.1
"""A smaller share of a node's processors is not reported: sshd, monitoring and this tool itself use
some.
"""
_LEAST_S = 0.2
"""The kernel counts in hundredths of a second; a shorter look shows chance."""


class Load(NamedTuple):
    """A sample of a node's processors.

    It has their number, the seconds it covers, the processor seconds in use, and how many of these
    the measured program used. ``switches``: the machine's count of context switches at both ends.
    Nodes of a lab are one machine, so their counts overlap.
    """

    processors: int
    seconds: float
    busy_s: float
    own_s: float
    switches: tuple[int, int]

    def is_same_machine(self, other: Load) -> bool:
        """Return whether two samples of the same time come from one machine."""
        return self.switches[0] <= other.switches[1] and other.switches[0] <= self.switches[1]


def busy_with_others(loads: Mapping[str, Load]) -> dict[str, tuple[float, int]]:
    """Return by host how many processors others used, and how many there are; hosts of a shorter
    look are left out.

    >>> looks = {"a": Load(8, 10.0, 45.0, 20.0, (5, 9)), "b": Load(8, 10.0, 45.0, 20.0, (6, 10))}  # one machine
    >>> busy_with_others(looks)
    {'a': (0.5, 8), 'b': (0.5, 8)}
    """
    used = {}
    for host, load in loads.items():
        if load.seconds >= _LEAST_S:
            own_s = sum(other.own_s for other in loads.values() if load.is_same_machine(other))
            used[host] = (
                min(load.processors, max(0.0, load.busy_s - own_s) / load.seconds),
                load.processors,
            )
    return used


def load_checks(facts: Mapping[str, NodeFacts]) -> list[Check]:
    """Return a check of each host that looked at its processors."""
    loads = {}
    for host, values in facts.items():
        if look := values.load:
            loads[host] = Load(look.count, look.seconds, look.busy_s, look.own_s, look.switches)
    checks = []
    for host, (used, count) in busy_with_others(loads).items():
        if used >= WORTH * count:
            usage = f"other processes use {used:.1f} of {count} processors"
            hint = "see top on the node; other work distorts what is measured"
            checks.append(warning(host, "load", usage, "idle processors", hint))
        else:
            checks.append(ok(host, "load", f"{count} processors, less than a tenth in use"))
    return checks
