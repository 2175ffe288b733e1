"""An inventory that stands on another: ``base:`` names that one, and what is said here goes over the environment of its hosts.

So what was found for some hosts is a file beside the inventory, and that stays as it is, whatever its format:

    schema: 1
    base: cluster.yaml                   # seen from this file
    hosts:
      "node[1-4]": {env: {NCCL_SOCKET_NTHREADS: "4"}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Inventory
from orchestrator.inventory.schema import refuse
from orchestrator.inventory.values import HostValues, KeyPath, Where, checked, found, unknown_key

__all__ = ["Overlay", "laid_over", "overlay"]


@dataclass(frozen=True, slots=True)
class Overlay:
    """``base`` as written, and variables by expression of hosts, each with where it was written."""

    base: str
    env: Mapping[str, Mapping[str, str]]
    places: Mapping[str, str]


def overlay(document_value: Any, line_of: Callable[[KeyPath], int], source: str) -> Overlay | None:
    """Return what a document lays over another inventory; None where it names none. Raises Faults of ConfigError."""
    if not isinstance(document_value, dict) or "base" not in document_value:
        return None

    def where(path: KeyPath) -> str:
        return f"{source}:{line_of(path)}: {'.'.join(map(str, path))}"

    base, hosts = document_value["base"], document_value.get("hosts", {})
    known = ("schema", "base", "hosts")
    hint = f"over a base it takes {', '.join(known)}; all else stands in the base"
    faults = [unknown_key(key, known, where((key,)), hint) for key in document_value if key not in known]
    if type(version := document_value.get("schema")) is not int or version != 1:
        faults.append(ConfigError(f"expected 1, got {found(version)}", where=where(("schema",))))
    if not isinstance(base, str) or not base.strip():
        faults.append(ConfigError(f"expected the file of an inventory, got {found(base)}", where=where(("base",))))
    if not isinstance(hosts, dict):
        faults.append(ConfigError(f"expected a mapping of hosts, got {found(hosts)}", where=where(("hosts",))))
        hosts = {}
    env: dict[str, dict[str, str]] = {}
    for name, values in hosts.items():
        said = checked(HostValues, values, partial(_inside, where, name), faults)
        faults += [unknown_key(key, ("env",), where(("hosts", name, key)), hint) for key in said if key != "env"]
        env[name] = said.get("env", {})
    if faults:
        refuse(faults)
    return Overlay(base, env, {name: where(("hosts", name)) for name in env})


def _inside(where: Where, name: str, path: KeyPath) -> str:
    return where(("hosts", name, *path))


def laid_over(over: Overlay, base: Inventory, source: str) -> Inventory:
    """Return the base with what is laid over it; later entries win. Raises ConfigError for a host that it has not."""
    env = {host.name: dict(host.env) for host in base.hosts}
    for expression, variables in over.env.items():
        try:
            chosen = base.select(expression)
        except ConfigError as error:
            raise ConfigError(error.message, where=over.places[expression], hint=error.hint) from None
        for host in chosen:
            env[host.name] |= variables
    return replace(base, source=source, hosts=tuple(replace(host, env=env[host.name]) for host in base.hosts))
