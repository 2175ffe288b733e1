"""Reads an inventory file and the files that it extends, or a host expression."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory.hosts import Inventory
from orchestrator.inventory.hostset import fold
from orchestrator.inventory.secrets import LEAST, is_switch, significant

if TYPE_CHECKING:
    from orchestrator.inventory.ansible import VariableFiles
    from orchestrator.inventory.groups import Var

__all__ = ["open_inventory"]


_SUFFIXES = ("", ".yml", ".yaml", ".json")
_USED = re.compile(
    r"""(?m)^[\s{,]*["']?(ansible_\w+|gpus|slots|env|expect|python|runner_python|interface|workdir|cuda_visible_devices|\w+_dir)"""
    r"""["']?\s*:"""
)
"""The variables that are taken from files of ``group_vars`` and ``host_vars``."""
_BASE = re.compile(r"""\bbase["']?\s*:""")


def open_inventory(source: str) -> Inventory:
    """Read an inventory file and the files that it extends, or make an inventory from a host expression.

    Raises ConfigError with file, line and key, also for a secret that is too short to be hidden in logs.
    """
    inventory = _opened(source)
    _refuse_unhideable(inventory)
    return inventory


def _opened(source: str) -> Inventory:
    from orchestrator.inventory import formats

    path = Path(source).expanduser()
    if path.exists() or "/" in source or path.suffix in (".yaml", ".yml", ".ini", ".txt", ".hosts"):
        return _read_inventory(path, str(source), ())
    return formats.from_expression(source)


def _refuse_unhideable(inventory: Inventory) -> None:
    """Raise Faults for secret variables whose values could not be told from other text."""
    hosts: dict[str, list[str]] = {}
    for host in inventory.hosts:
        for name in inventory.secrets:
            value = host.env.get(name, "")
            if not is_switch(value) and len(significant(value)) < LEAST:
                hosts.setdefault(name, []).append(host.name)
    message = f"expected a secret of at least {LEAST} characters without white space, quotes, + and \\, got a shorter one"
    hint = "it could not be hidden in logs. use a longer value, or another name if it is no secret"
    if hosts:
        places = [f"{inventory.source}: env.{name} of {fold(names)}" for name, names in hosts.items()]
        raise Faults([ConfigError(message, where=place, hint=hint) for place in places])


def _read_inventory(path: Path, source: str, above: tuple[Path, ...]) -> Inventory:
    """Read one file; ``above`` are the files that extend it."""
    from orchestrator import yamlfile
    from orchestrator.inventory import base, formats

    text = yamlfile.read_text(path)
    document = yamlfile.loads(text, source) if _BASE.search(text) and formats.recognise(text) == "orch" else None
    over = base.overlay(document.value, document.line, source) if document else None
    if over is None:
        return formats.parse_text(text, source, yamlfile.loads, _variable_files(path))
    below = path.parent / Path(over.base).expanduser()
    if below.resolve() in (file.resolve() for file in (path, *above)):
        raise ConfigError(f"expected an inventory that does not extend this one, got {over.base}", where=f"{source}: base")
    return base.laid_over(over, _read_inventory(below, str(below), (path, *above)), source)


def _variable_files(path: Path) -> VariableFiles:
    """Return the variables that Ansible reads next to an inventory, which orch uses: see `_USED`.

    Other variables, such as those of playbooks, may be secrets or templates, and are left out.
    """
    from orchestrator.inventory.ansible import VariableFiles

    folders = [path.parent / name for name in ("group_vars", "host_vars")]
    groups, hosts = (_variables(folder) if folder.is_dir() else {} for folder in folders)
    return VariableFiles(groups, hosts)


def _variables(folder: Path) -> dict[str, dict[str, Var]]:
    """Return the variables of each group or host from ``NAME``, ``NAME.yml`` or the files of the folder ``NAME``."""
    by_name: dict[str, dict[str, Var]] = {}
    for entry in sorted(folder.iterdir()):
        files = sorted(path for path in entry.rglob("*") if path.is_file()) if entry.is_dir() else [entry]
        name = entry.name if entry.is_dir() or entry.suffix not in _SUFFIXES else entry.stem
        for file in files:
            if file.suffix in _SUFFIXES and file.name[0] != "." and not file.name.endswith("~"):
                by_name.setdefault(name, {}).update(_in_file(file))
    return by_name


def _in_file(path: Path) -> dict[str, Var]:
    from orchestrator import yamlfile
    from orchestrator.inventory.groups import Var

    text = yamlfile.read_text(path)
    if not _USED.search(text):  # also without a setting that matters: encrypted files, and what YAML of playbooks may hold
        return {}
    document = yamlfile.loads(text, str(path))
    values = document.value if isinstance(document.value, dict) else {}
    return {
        key: Var(value, f"{path}:{document.line((key,))}: {key}")
        for key, value in values.items()
        if isinstance(key, str) and _USED.match(f"{key}:")
    }
