"""Checks across nodes: that no machine is listed twice, and that all nodes are equal in what determines the speed of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.checks.check import Check, failed, warning
from orchestrator.checks.network import training_interface
from orchestrator.checks.nvidia_smi import gpu_states, pairs
from orchestrator.errors import OrchError, RunError
from orchestrator.inventory import fold

__all__ = ["alike", "characteristics", "same_machine", "unlike"]


def same_machine(facts: Mapping[str, Mapping[str, Any]]) -> list[OrchError]:
    """Return an error for every pair of names that are one machine: same host key and same boot."""
    seen: dict[tuple[str, str], str] = {}
    errors: list[OrchError] = []
    for name, values in facts.items():
        identity = (str(values["host_key"]), str(values["boot_id"]))
        if identity in seen:
            message = f"{seen[identity]} and {name} are one machine (same host key, same boot)"
            errors.append(RunError(message, kind="node_unfit", host=name, hint="name it once in the inventory"))
        seen.setdefault(identity, name)
    return errors


def unlike(facts: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Return a failed check for every node whose copy of the third-party program or of the data set is not the first node's."""
    digests = {host: tuple((values.get("programs") or {}).values()) for host, values in facts.items()}
    programs = {host: copies for host, copies in digests.items() if all(isinstance(digest, str) for digest in copies)}
    data_sets = {host: values.get("data_set") for host, values in facts.items() if values.get("data_dir")}
    odd = [("program", "the same bytes", host, first) for first, host in _others(programs)]
    odd += [("data", "the same data set", host, first) for first, host in _others(data_sets)]
    hint = "copy one version to every node"
    return [failed(host, name, "a different one", f"{what} as on {first}", hint) for name, what, host, first in odd]


def _others(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (first host, host) for every host whose value differs from that of the first host."""
    first = next(iter(values), "")
    return [(first, host) for host, value in values.items() if value != values[first]]


def alike(facts: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Return a warning for every node that differs from the majority in anything that may change its speed or its results."""
    by_host = {host: characteristics(values) for host, values in facts.items()}
    checks = []
    for name in dict.fromkeys(name for texts in by_host.values() for name in texts):
        values = {host: texts.get(name, "none") for host, texts in by_host.items()}
        usual = Counter(values.values()).most_common(1)[0][0]  # on a tie, the first value
        others = fold(host for host, value in values.items() if value == usual)
        for host, value in values.items():
            if value != usual:
                hint = "make the nodes equal, or exclude this one with -x; a job is as slow as its slowest node"
                checks.append(warning(host, "alike", f"{name} {value}", f"{name} {usual} as on {others}", hint))
    return checks


def characteristics(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be equal on all nodes of a job, as text by name. Free disk space, load and the like may differ."""
    values = {name: facts.get(name) for name in ("cpu", "kernel", "machine")}
    gpus = gpu_states(facts)
    for name, key, unit in _OF_GPUS:
        texts = {f"{gpu[key]:g}{unit}" if isinstance(gpu[key], float) else f"{gpu[key]}{unit}" for gpu in gpus if gpu.get(key)}
        values[name] = " and ".join(sorted(texts))
    kinds = Counter(pairs(facts.get("topology")).values())
    values["GPU links"] = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    if gbit := facts.get("infiniband_gbit"):
        values["InfiniBand"] = f"{gbit:g} Gb/s"
    values["MTU"] = training_interface(facts).get("mtu")
    versions = facts.get("framework")
    if isinstance(versions, Mapping) and "error" not in versions:
        values |= {name: value for name, value in versions.items() if name != "gpus"}
    return {str(name): str(value) for name, value in values.items() if value not in (None, "")}


_OF_GPUS = (
    ("gpu", "name", ""),
    ("driver", "driver", ""),
    ("ECC", "ecc", ""),
    ("MIG", "mig", ""),
    ("power limit", "power_limit_w", " W"),
)
