"""Checks of a host against the inventory's ``expect:``.

Each key has one row in a table: which facts it reads, and when they meet the expectation. If a
value is expected and nothing is known about it, the check fails: an expectation that cannot be
confirmed is not met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.checks.check import Check, failure, ok
from orchestrator.checks.facts import NodeFacts
from orchestrator.checks.network import training_interface
from orchestrator.devices.nvidia_smi import pairs
from orchestrator.inventory import Host, meets

_HINT = "repair the node, or correct {key} under expect: in the inventory"
_MIB, _GIB = 1 << 20, 1 << 30
Look = Callable[[NodeFacts], Sequence[Any]]
"""Returns all values of a node that must meet an expectation, None for one that is not known."""


@dataclass(frozen=True, slots=True)
class _Expectation:
    """The check of one key.

    ``look`` returns all values that must meet the expectation, in its unit; ``fits(value,
    expected)`` is true if a value does. ``least``: the expectation is a minimum.
    """

    look: Look
    fits: Callable[[Any, Any], bool]
    unit: str = ""
    least: bool = False


def check_expectations(host: Host, facts: NodeFacts) -> list[Check]:
    """Return a failed check for each expectation that is not met, else one passed check that names
    all; empty without any.
    """
    bad = [
        check
        for key, expected in host.expect.items()
        if (check := _unmet(host.name, key, expected, facts))
    ]
    return bad or (
        [ok(host.name, "expect", f"{', '.join(host.expect)} as expected")] if host.expect else []
    )


def _unmet(host: str, key: str, expected: Any, facts: NodeFacts) -> Check | None:
    if key == "infiniband":
        return _infiniband(host, expected, facts)
    if isinstance(expected, Mapping):  # each entry of versions and of pcie has its own expectation
        checks = (
            _unmet_row(host, f"{key}.{name}", value, _NESTED[key](name), facts)
            for name, value in expected.items()
        )
        return next((check for check in checks if check), None)
    return _unmet_row(host, key, expected, _TABLE[key], facts)


def _unmet_row(
    host: str, key: str, expected: Any, row: _Expectation, facts: NodeFacts
) -> Check | None:
    values = row.look(facts)
    odd = [value for value in values if value is None or not row.fits(value, expected)]
    if values and not odd:
        return None
    got = (
        ", ".join(
            dict.fromkeys(
                "unknown" if value is None else _format_value(value, row.unit) for value in odd
            )
        )
        or "nothing"
    )
    requirement = _format_value(expected, row.unit)
    if row.least and expected != "unlimited":
        requirement += " or more"
    return failure(host, "expect", f"{key} {got}", f"{key} {requirement}", _HINT.format(key=key))


def _format_value(value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in ("unlimited", float("inf")):
        return "unlimited"
    if isinstance(value, (int, float)):
        if value == int(value):
            return f"{value:.0f}{unit}"
        return f"{value:.5g}{unit}"
    return str(value)


def _infiniband(host: str, expected: Mapping[str, Any], facts: NodeFacts) -> Check | None:
    """Return a failed check if fewer ports than expected have this state, rate and link layer;
    others are allowed.
    """
    state, layer, rate = (
        expected.get("state", "ACTIVE"),
        expected.get("link_layer"),
        expected.get("rate_gbit", 0),
    )
    ports = facts.infiniband
    fit = [
        port
        for port in ports
        if port.state == state
        and layer in (None, port.link_layer)
        and (port.rate_gbit or 0) >= rate
    ]
    count = expected.get("ports", 1)
    if len(fit) >= count:
        return None
    requirement = f"{count} ports {state}"
    if rate:
        requirement += f" at {rate:g} Gb/s"
    if layer:
        requirement += f" of {layer}"
    odd = [port for port in ports if port not in fit]
    rest = ", ".join(
        f"{port.device} {port.state} at {port.rate_gbit or 0:g} Gb/s" for port in odd[:8]
    )
    got = f"{len(fit)} such, and {rest}" if rest else f"{len(fit)} such"
    return failure(
        host,
        "expect",
        f"infiniband {got}",
        f"infiniband {requirement}",
        _HINT.format(key="infiniband"),
    )


def _of_gpus(name: str) -> Look:
    return lambda facts: [_or_none(getattr(gpu, name)) for gpu in facts.gpus or ()]


def _or_none(value: Any) -> Any:
    return None if value == "" else value


def _on(name: str) -> Look:
    return lambda facts: [value and value == "Enabled" for value in _of_gpus(name)(facts)]


def _version(name: str) -> Look:
    def look(facts: NodeFacts) -> list[Any]:
        value = facts.framework.get(name)
        return [None if value is None else str(value)]

    return look


def _limit(name: str, unit: int = 1) -> Look:
    def look(facts: NodeFacts) -> list[Any]:
        pair = (facts.limits or {}).get(name)
        # A run raises its soft limit of open files to the hard limit.
        value = pair[name == "nofile"] if pair else 0
        return [None if not pair else float("inf") if value is None else value / unit]

    return look


def _of_interface(name: str) -> Look:
    def look(facts: NodeFacts) -> list[Any]:
        interface = training_interface(facts)
        return [getattr(interface, name) if interface else None]

    return look


def _links(facts: NodeFacts) -> list[Any]:
    return sorted(set(pairs(facts.topology).values()))


def _gpu_count(facts: NodeFacts) -> list[Any]:
    return [len(facts.gpus or ())]


def _scale(values: Iterable[Any], unit: float) -> list[Any]:
    return [None if value is None else value / unit for value in values]


def _same(value: Any, expected: Any) -> bool:
    return bool(value == expected)


def _at_least(value: Any, expected: Any) -> bool:
    return bool(value >= (float("inf") if expected == "unlimited" else expected))


_TABLE: Mapping[str, _Expectation] = {
    "gpu": _Expectation(_of_gpus("name"), meets),
    "gpus": _Expectation(_gpu_count, _same),
    "memory_gib": _Expectation(
        lambda facts: _scale(_of_gpus("memory_mib")(facts), 1024), _at_least, " GiB", least=True
    ),
    "driver": _Expectation(_of_gpus("driver"), meets),
    "nvlink": _Expectation(_links, meets),
    "ecc": _Expectation(_on("ecc"), _same),
    "mig": _Expectation(_on("mig"), _same),
    "persistence": _Expectation(_on("persistence"), _same),
    "compute_mode": _Expectation(_of_gpus("compute_mode"), _same),
    "power_limit_w": _Expectation(_of_gpus("power_limit_w"), _at_least, " W", least=True),
    "cuda": _Expectation(_version("cuda"), meets),
    "nccl": _Expectation(_version("nccl"), meets),
    "kernel": _Expectation(lambda facts: [_or_none(facts.kernel)], meets),
    "cpu": _Expectation(lambda facts: [_or_none(facts.cpu)], meets),
    "cores": _Expectation(lambda facts: [facts.cores], _same),
    "ram_gib": _Expectation(
        lambda facts: _scale([facts.memory_bytes], _GIB), _at_least, " GiB", least=True
    ),
    "shm_gib": _Expectation(
        lambda facts: _scale([facts.shm_bytes], _GIB), _at_least, " GiB", least=True
    ),
    "mtu": _Expectation(_of_interface("mtu"), _same),
    "speed_gbit": _Expectation(
        lambda facts: _scale(_of_interface("speed_mbit")(facts), 1000),
        _at_least,
        " Gb/s",
        least=True,
    ),
    "memlock": _Expectation(_limit("memlock", _MIB), _at_least, " MiB", least=True),
    "nofile": _Expectation(_limit("nofile"), _at_least, least=True),
    "nproc": _Expectation(_limit("nproc"), _at_least, least=True),
}
_PCIE = {
    "generation": _Expectation(_of_gpus("pcie_gen_max"), _at_least, least=True),
    "width": _Expectation(_of_gpus("pcie_width"), _at_least, least=True),
}
_NESTED: Mapping[str, Callable[[str], _Expectation]] = {
    "versions": lambda name: _Expectation(_version(name), meets),
    "pcie": _PCIE.__getitem__,
}
