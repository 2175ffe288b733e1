"""An inventory that extends another one: ``base:`` names it; ``env:`` and ``vars:`` of a host are
added to the base's, and win.

Tuned settings of some hosts, or the devices that a job has of them, are thus a file next to the
inventory, which stays unchanged, whatever its format:

    schema: 1
    base: cluster.yaml                   # relative to this file
    hosts:
      "node[1-4]": {env: {NCCL_SOCKET_NTHREADS: "4"}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host, Inventory
from orchestrator.inventory.hostset import check_address
from orchestrator.inventory.schema import refuse, vars_notes
from orchestrator.inventory.secrets import public_vars
from orchestrator.inventory.values import (
    HostValues,
    KeyPath,
    Where,
    check_values,
    show_key,
    show_value,
    unknown_key,
)

_KEYS = ("address", "env", "gpus", "slots", "transport", "vars")


@dataclass(frozen=True, slots=True)
class Overlay:
    """``base`` as written; settings by host expression; ``places``: file, line and key of each
    expression.
    """

    base: str
    hosts: Mapping[str, Mapping[str, Any]]
    places: Mapping[str, str]


def overlay(document_value: Any, line_of: Callable[[KeyPath], int], source: str) -> Overlay | None:
    """Return the overlay that a document declares, None if it has no ``base:``. Raises Faults of
    ConfigError.
    """
    if not isinstance(document_value, dict) or "base" not in document_value:
        return None

    def where(path: KeyPath) -> str:
        return f"{source}:{line_of(path)}: {'.'.join(map(show_key, path))}"

    base, hosts = document_value["base"], document_value.get("hosts", {})
    keys = ("schema", "base", "hosts")
    hint = f"with base:, the only keys are {', '.join(keys)}, and {', '.join(_KEYS)} of a host; all else belongs in the base"
    faults = [
        unknown_key(key, keys, where((key,)), hint) for key in document_value if key not in keys
    ]
    if type(version := document_value.get("schema")) is not int or version != 1:
        faults.append(
            ConfigError(f"expected 1, got {show_value(version)}", where=where(("schema",)))
        )
    if not isinstance(base, str) or not base.strip():
        faults.append(
            ConfigError(
                f"expected the path of an inventory, got {show_value(base)}",
                where=where(("base",)),
            )
        )
    if not isinstance(hosts, dict):
        faults.append(
            ConfigError(
                f"expected a mapping of hosts, got {show_value(hosts, True)}",
                where=where(("hosts",)),
            )
        )
        hosts = {}
    settings: dict[str, dict[str, Any]] = {}
    for name, values in hosts.items():
        settings[name] = check_values(HostValues, values, partial(_inside, where, name), faults)
        faults += [
            unknown_key(key, _KEYS, where(("hosts", name, key)), hint)
            for key in settings[name]
            if key not in _KEYS
        ]
        if "address" in settings[name]:
            try:
                check_address(settings[name]["address"], where(("hosts", name, "address")))
            except ConfigError as error:
                faults.append(error)
    if faults:
        refuse(faults)
    return Overlay(base, settings, {name: where(("hosts", name)) for name in settings})


def _inside(where: Where, name: str, path: KeyPath) -> str:
    return where(("hosts", name, *path))


def lay_over(over: Overlay, base: Inventory, source: str) -> Inventory:
    """Return the base with the overlay applied; later entries win. Raises ConfigError for a host
    that is not in the base.
    """
    changed = {host.name: host for host in base.hosts}
    for expression, settings in over.hosts.items():
        try:
            chosen = base.select(expression)
        except ConfigError as error:
            raise ConfigError(
                error.message, where=over.places[expression], hint=error.hint
            ) from None
        for name in (host.name for host in chosen):
            changed[name] = _with(changed[name], settings)
    notes = (*base.notes, *vars_notes(settings.get("vars") for settings in over.hosts.values()))
    return replace(base, source=source, hosts=tuple(changed.values()), notes=notes)


def _with(host: Host, settings: Mapping[str, Any]) -> Host:
    if "vars" in settings:
        settings = {**settings, "vars": public_vars(settings["vars"])}
    merged = {
        key: {**getattr(host, key), **settings[key]} for key in ("env", "vars") if key in settings
    }
    return replace(host, **{**settings, **merged})
