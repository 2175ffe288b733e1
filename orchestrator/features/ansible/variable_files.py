"""Read ``group_vars`` and ``host_vars`` beside an inventory, by the names and in the order of
Ansible's plug-in.

Only what orch uses is kept (`variables.USED`): other variables, such as those of playbooks, may be
secrets or templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import yamlfile
from orchestrator.features.ansible.variables import USED, Var

__all__ = ["VariableFiles", "read_variable_files"]

_FOLDERS = ("group_vars", "host_vars")
_SUFFIXES = ("", ".yml", ".yaml", ".json")
_USED_LINE = re.compile(rf"""(?m)^[\s{{,]*["']?(?:{USED.pattern})["']?\s*:""")
_VAULT = "$ANSIBLE_VAULT"


@dataclass(frozen=True, slots=True)
class VariableFiles:
    """The variables in files, by group and by host; ``encrypted`` are files that only Ansible Vault
    can read.
    """

    groups: Mapping[str, Mapping[str, Var]] = field(default_factory=dict)
    hosts: Mapping[str, Mapping[str, Var]] = field(default_factory=dict)
    encrypted: tuple[str, ...] = ()


def read_variable_files(folder: Path) -> VariableFiles:
    """Return the variables of groups and hosts in ``group_vars`` and ``host_vars`` of a folder."""
    encrypted: list[str] = []
    groups, hosts = (_variables(folder / name, encrypted) for name in _FOLDERS)
    return VariableFiles(groups, hosts, tuple(encrypted))


def _variables(folder: Path, encrypted: list[str]) -> dict[str, dict[str, Var]]:
    """Return the variables of each group or host: of ``NAME``, else of ``NAME.yml``, ``NAME.yaml``
    or ``NAME.json``; the first one that exists may be a directory, whose files are merged in order.
    """
    entries = {entry.name: entry for entry in sorted(folder.iterdir())} if folder.is_dir() else {}
    names = {
        name.removesuffix(suffix)
        for name in entries
        for suffix in _SUFFIXES
        if name.endswith(suffix)
    }
    by_name: dict[str, dict[str, Var]] = {}
    for name in sorted(names):
        entry = next(entries[name + suffix] for suffix in _SUFFIXES if name + suffix in entries)
        merged: dict[str, Var] = {}
        for file in _below(entry) if entry.is_dir() else [entry]:
            merged |= _in_file(file, encrypted)
        by_name[name] = merged
    return {name: merged for name, merged in by_name.items() if merged}


def _below(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir(), key=lambda path: path.name):
        if entry.name.startswith(".") or entry.name.endswith("~"):
            continue
        if entry.is_dir() and not entry.suffix:
            yield from _below(entry)
        elif entry.is_file() and entry.suffix in _SUFFIXES:
            yield entry


def _in_file(path: Path, encrypted: list[str]) -> dict[str, Var]:
    if not path.stat().st_size:
        return {}
    text = yamlfile.read_text(path)
    if text.startswith(_VAULT):
        encrypted.append("/".join(path.parts[-3 if path.parent.name not in _FOLDERS else -2 :]))
        return {}
    if not _USED_LINE.search(
        text
    ):  # YAML of playbooks may hold much that need not be understood here
        return {}
    document = yamlfile.loads(text, str(path), foreign=True)
    values = document.value if isinstance(document.value, dict) else {}
    return {
        key: Var(value, f"{path}:{document.line((key,))}: {key}")
        for key, value in values.items()
        if isinstance(key, str) and USED.fullmatch(key)
    }
