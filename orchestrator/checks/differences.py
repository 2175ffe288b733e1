"""Differences between nodes, from their captured facts: the most frequent value, and the hosts that
deviate from it.

A collective job runs at the pace of its slowest node, and fails on the one that differs; so the
first question after a failure, and before a comparison, is which node is not like the others. Facts
that always differ are left out: names, clocks, and resources that are free or in use at the moment.

>>> facts = {"n1": {"cores": 64}, "n2": {"cores": 64}, "n3": {"cores": 32}}
>>> [str(difference) for difference in differences(facts)]
['n3 differs from 2 others in cores (32 against 64)']
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold

_BY_NATURE = {
    "hostname", "boot_id", "host_key", "held_by", "time", "login_s", "workdir", "workdir_first", "disk_free_bytes",
    "disk_free_inodes", "memory_free_bytes", "ports_busy", "load", "uptime_s", "index", "uuid", "serial", "bus_id", "used_mib",
    "utilization", "numa_node", "temperature_c", "sm_mhz", "mem_mhz", "pcie_gen", "slowed_by", "gpu_processes", "xids",
    "hostname_addresses", "containers_left", "processes_left", "route", "routes", "networks", "why", "lid", "clock_off_s",
    "shm_bytes", "unresolved",
}  # fmt: skip
_MAX_DEPTH = 4
_MEMORY_TOLERANCE = 0.01
_SHOWN_CHARACTERS = 60
_MAX_DIFFERENCES = 50


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same on all nodes. ``expected`` is the most frequent value, which
    ``agreeing`` hosts have; ``deviating`` has the other values, each with its hosts.

    If two values are equally frequent, the first node's is taken.
    """

    fact: str
    expected: str
    agreeing: tuple[str, ...]
    deviating: tuple[tuple[str, tuple[str, ...]], ...]

    def __str__(self) -> str:
        """Return the difference as one line, with hosts folded."""
        others = f"{len(self.agreeing)} others" if len(self.agreeing) > 1 else "the other"
        return "; ".join(
            f"{fold(hosts)} {'differ' if len(hosts) > 1 else 'differs'} from {others} in "
            f"{self.fact} ({value} against {self.expected})"
            for value, hosts in self.deviating
        )


def differences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Return the facts that are not the same on all hosts, in their order. They are those that
    preflight captures.

    A host that has an error in place of a part, such as a framework whose probe failed, is not
    compared in that part: a check says what failed.
    """
    flat = {host: dict(_leaves("", value, 0)) for host, value in facts.items()}
    failed = {
        host: {
            name for name, part in value.items() if isinstance(part, Mapping) and part.get("error")
        }
        for host, value in facts.items()
    }
    names = list(dict.fromkeys(name for values in flat.values() for name in values))
    found = []
    for name in names:
        part = name.partition(".")[0]
        difference = _compare(
            name,
            {host: values.get(name) for host, values in flat.items() if part not in failed[host]},
        )
        if difference:
            found.append(difference)
    return tuple(found[:_MAX_DIFFERENCES])


def by_value(facts: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, list[str]]]:
    """Return the hosts by value of every fact, in the order of the facts. A host may appear in
    ``facts`` more than once.

    >>> by_value([("n1", {"cores": 64}), ("n2", {"cores": 32}), ("n3", {"cores": 64})])
    {'cores': {'64': ['n1', 'n3'], '32': ['n2']}}
    """
    hosts_by_value: dict[str, dict[str, list[str]]] = {}
    for host, values in facts:
        for name, value in _leaves("", values, 0):
            hosts = hosts_by_value.setdefault(name, {}).setdefault(_shorten(value), [])
            if host not in hosts:
                hosts.append(host)
    return hosts_by_value


def sentences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the differences as text, one line for each group of hosts that deviate together; empty
    if no host does.

    >>> facts = {f"node{n}": {"cores": 64, "kernel": "6.1", "gpus": [{"driver": "535.104"}]} for n in (1, 2, 3, 4)}
    >>> facts["node3"] = {"cores": 64, "kernel": "6.8", "gpus": [{"driver": "535.54"}]}
    >>> sentences(facts)
    ('3 nodes agree, node3 differs in kernel (6.8 against 6.1), gpus.driver (535.54 against 535.104)',)
    """
    by_hosts: dict[tuple[str, ...], list[str]] = {}
    for difference in differences(facts):
        for value, hosts in difference.deviating:
            by_hosts.setdefault(hosts, []).append(
                f"{difference.fact} ({value} against {difference.expected})"
            )
    odd = {host for hosts in by_hosts for host in hosts}
    same = len(facts) - len(odd)
    agree = f"{same} nodes agree, " if same > 1 else ""
    return tuple(
        f"{agree}{fold(hosts)} {'differ' if len(hosts) > 1 else 'differs'} in {', '.join(texts)}"
        for hosts, texts in by_hosts.items()
    )


def fold_differences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line for each fact that is not the same on all nodes, in the order of the facts:
    each value with its hosts.

    >>> drivers = {"gpu01": "550.54", "gpu02": "550.54", "gpu03": "550.54", "gpu04": "535.86"}
    >>> fold_differences({host: {"driver": driver} for host, driver in drivers.items()})
    ('gpu[01-03]: driver 550.54 · gpu04: driver 535.86',)
    """
    lines = []
    for difference in differences(facts):
        sides = [(difference.expected, difference.agreeing), *difference.deviating]
        lines.append(
            " · ".join(f"{fold(hosts)}: {difference.fact} {value}" for value, hosts in sides)
        )
    return tuple(lines)


def _compare(name: str, values: Mapping[str, str | None]) -> Difference | None:
    words = {host: "nothing" if value is None else value for host, value in values.items()}
    if name.endswith("memory_bytes"):
        words = same_sizes(words)
    groups = group_pairs((value, host) for host, value in words.items())
    if len(groups) < 2:
        return None
    expected = max(groups, key=lambda value: len(groups[value]))  # on a tie, the first value
    agreeing = tuple(groups.pop(expected))
    deviating = tuple((_shorten(value), tuple(hosts)) for value, hosts in groups.items())
    return Difference(name, _shorten(expected), agreeing, deviating)


def same_sizes(words: Mapping[str, str]) -> dict[str, str]:
    """Return memory sizes with those within 1 % of each other as equal: the share that firmware
    reserves varies.
    """
    distinct: list[str] = []
    sizes = {}
    for host, value in words.items():
        near = next((other for other in distinct if _near(value, other)), None)
        sizes[host] = near or value
        if not near:
            distinct.append(value)
    return sizes


def _near(size: str, other: str) -> bool:
    try:
        return abs(float(size) - float(other)) <= _MEMORY_TOLERANCE * max(float(size), float(other))
    except ValueError:
        return False


def _leaves(name: str, value: Any, depth: int) -> list[tuple[str, str]]:
    """Return (dotted name, text) of every value. A list of entries, such as GPUs, becomes a count
    and distinct values.
    """
    if name.rpartition(".")[2] in _BY_NATURE:
        return []
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        parts = [
            _leaves(f"{name}.{key}" if name else str(key), child, depth + 1)
            for key, child in value.items()
        ]
        return [leaf for part in parts for leaf in part]
    if (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and value
        and all(isinstance(entry, Mapping) for entry in value)
    ):
        return _entries(name, value)
    return [
        (name, value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))
    ]


def _entries(name: str, entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the number of entries, and for each key the distinct values of all entries."""
    leaves = [(f"number of {name}", str(len(entries)))]
    for key in dict.fromkeys(key for entry in entries for key in entry):
        if key not in _BY_NATURE:
            values = dict.fromkeys(str(entry.get(key)) for entry in entries)
            leaves.append((f"{name}.{key}", ", ".join(values)))
    return leaves


def _shorten(value: str) -> str:
    text = value or "''"
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[: _SHOWN_CHARACTERS - 1] + "…"
