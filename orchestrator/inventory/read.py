"""Reads an inventory file and the files that it extends, or a host expression."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, Faults
from orchestrator.feature import providers
from orchestrator.inventory.hosts import Host, Inventory
from orchestrator.inventory.hostset import fold, is_path
from orchestrator.inventory.secrets import LEAST, is_switch, significant

_SSH_FILES = ("key", "config", "known_hosts")
_BASE = re.compile(r"""\bbase["']?\s*:""")


def open_inventory(source: str) -> Inventory:
    """Read an inventory file and the files that it extends, or make an inventory from a host
    expression.

    Raises ConfigError with file, line and key, also for a secret that is too short to be hidden in
    logs.
    """
    inventory = _open_source(source)
    _refuse_unhideable(inventory)
    return inventory


def _open_source(source: str) -> Inventory:
    from orchestrator.inventory import machine_files

    path = Path(source).expanduser()
    file, _, rest = source.rpartition("@")
    if file and not path.exists() and Path(file).expanduser().is_file():
        hint = f"ORCH_HOSTS={file} names the file, then --hosts @{rest} hosts in it"
        raise ConfigError("expected a file or hosts, got both", where=source, hint=hint)
    if re.match(r"[a-z]+://", source):
        hint = "write hosts as me@node1:2222,node2, or the path of a file"
        raise ConfigError("expected a file or hosts, got a URL", where="--hosts", hint=hint)
    if (
        path.exists()
        or is_path(source)
        or path.suffix in (".yaml", ".yml", ".ini", ".txt", ".hosts")
    ):
        return _read_inventory(path, str(source), ())
    return machine_files.from_expression(source)


def _refuse_unhideable(inventory: Inventory) -> None:
    """Raise Faults for secret variables whose values could not be told from other text."""
    hosts: dict[str, list[str]] = {}
    secrets = inventory.secrets  # goes over the variables of all hosts
    for host in inventory.hosts:
        for name in secrets:
            value = host.env.get(name, "")
            if not is_switch(value) and len(significant(value)) < LEAST:
                hosts.setdefault(name, []).append(host.name)
    message = f"expected a secret of at least {LEAST} characters without white space, quotes, + and \\, got a shorter one"
    hint = "it could not be hidden in logs reliably. use a longer value, or rename the variable if it is not secret"
    if hosts:
        places = [
            f"{inventory.source}: env.{name} of {fold(names)}" for name, names in hosts.items()
        ]
        raise Faults([ConfigError(message, where=place, hint=hint) for place in places])


def _read_inventory(path: Path, source: str, above: tuple[Path, ...]) -> Inventory:
    """Read one file; ``above`` are the files that extend it."""
    from orchestrator import yamlfile
    from orchestrator.inventory import base, formats

    for module in providers("inventory_format"):
        inventory: Inventory | None = module.read_path(path, source)
        if inventory:
            return inventory
    text = yamlfile.read_text(path)
    document = None
    if _BASE.search(text) and formats.recognise(text) == "orch":
        document = yamlfile.loads(text, source)
    over = base.overlay(document.value, document.line, source) if document else None
    if over is None:
        found = formats.parse_text(text, source, yamlfile.loads, str(path))
        folder = path.absolute().parent
        return replace(found, hosts=tuple(_with_files(host, folder) for host in found.hosts))
    below = path.parent / Path(over.base).expanduser()
    place = document.where(("base",)) if document else source
    if below.resolve() in (file.resolve() for file in (path, *above)):
        raise ConfigError(
            f"expected an inventory that does not extend this one, got {over.base}", where=place
        )
    if not below.exists():
        hint = f"the path is relative to {source}"
        message = f"expected an inventory, found no {over.base}"
        raise ConfigError(message, where=place, hint=hint)
    return base.lay_over(over, _read_inventory(below, str(below), (path, *above)), source)


def _with_files(host: Host, folder: Path) -> Host:
    """Return a host whose ssh files are relative to the folder of its inventory, as ``base:`` is."""
    named = {name: getattr(host.ssh, name) for name in _SSH_FILES}
    found: dict[str, Any] = {
        name: str(folder / value)
        for name, value in named.items()
        if value and value != "none" and not value.startswith("~")
    }
    return replace(host, ssh=replace(host.ssh, **found)) if found else host
