"""What is judged of several machines together: that they are several, and alike in what makes a job as slow as its slowest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.checks.check import Check, failed, warning
from orchestrator.checks.network import training_interface
from orchestrator.checks.nvidia_smi import gpu_states, pairs
from orchestrator.errors import OrchError, RunError
from orchestrator.inventory.hostset import fold

__all__ = ["alike", "characteristics", "same_machine", "unlike"]


def same_machine(facts: Mapping[str, Mapping[str, Any]]) -> list[OrchError]:
    """Return an error for every pair of names that turn out to be one machine: same host key and same boot."""
    seen: dict[tuple[str, str], str] = {}
    errors: list[OrchError] = []
    for name, found in facts.items():
        identity = (str(found["host_key"]), str(found["boot_id"]))
        if identity in seen:
            message = f"{seen[identity]} and {name} are one machine (same host key, same boot)"
            errors.append(RunError(message, kind="node_unfit", host=name, hint="name it once in the inventory"))
        seen.setdefault(identity, name)
    return errors


def unlike(facts: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Return a failed check for every node whose copy of somebody's program, or of our data set, is not the first node's."""
    digests = {host: tuple((found.get("programs") or {}).values()) for host, found in facts.items()}
    programs = {host: own for host, own in digests.items() if all(isinstance(digest, str) for digest in own)}
    data_sets = {host: found.get("data_set") for host, found in facts.items() if found.get("data_dir")}
    odd = [("program", "the same bytes", host, first) for first, host in _others(programs)]
    odd += [("data", "the same data set", host, first) for first, host in _others(data_sets)]
    hint = "copy one version to every node"
    return [failed(host, name, "another", f"{what} as on {first}", hint) for name, what, host, first in odd]


def _others(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (first host, host) for every host that does not have the first one's value."""
    first = next(iter(values), "")
    return [(first, host) for host, value in values.items() if value != values[first]]


def alike(facts: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Return a warning for every node that has not what most have, in whatever may make it slower or its results others."""
    named = {host: characteristics(found) for host, found in facts.items()}
    checks = []
    for name in dict.fromkeys(name for own in named.values() for name in own):
        values = {host: own.get(name, "none") for host, own in named.items()}
        usual = Counter(values.values()).most_common(1)[0][0]  # of equals the first that was met
        others = fold(host for host, value in values.items() if value == usual)
        for host, value in values.items():
            if value != usual:
                hint = "make them alike, or leave it out by -x; a job is as slow as its slowest node"
                checks.append(warning(host, "alike", f"{name} {value}", f"{name} {usual} as on {others}", hint))
    return checks


def characteristics(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be alike on all nodes of a job, in words; free disk, load and the like may well differ."""
    found = {name: facts.get(name) for name in ("cpu", "kernel", "machine")}
    gpus = gpu_states(facts)
    for name, key, unit in _OF_GPUS:
        values = {f"{gpu[key]:g}{unit}" if isinstance(gpu[key], float) else f"{gpu[key]}{unit}" for gpu in gpus if gpu.get(key)}
        found[name] = " and ".join(sorted(values))
    kinds = Counter(pairs(facts.get("topology")).values())
    found["GPU links"] = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    if gbit := facts.get("infiniband_gbit"):
        found["InfiniBand"] = f"{gbit:g} Gb/s"
    found["MTU"] = training_interface(facts).get("mtu")
    versions = facts.get("framework")
    if isinstance(versions, Mapping) and "error" not in versions:
        found |= {name: value for name, value in versions.items() if name != "gpus"}
    return {str(name): str(value) for name, value in found.items() if value not in (None, "")}


_OF_GPUS = (
    ("gpu", "name", ""),
    ("driver", "driver", ""),
    ("ECC", "ecc", ""),
    ("MIG", "mig", ""),
    ("power limit", "power_limit_w", " W"),
)
