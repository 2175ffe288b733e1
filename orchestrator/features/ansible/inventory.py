"""Read an Ansible inventory.

Where `ansible-inventory` is on the PATH, the inventory is what it prints: with vaults, plug-ins,
programs, directories and the settings of ``ansible.cfg``. Without it `static` reads hosts, groups
and variables of one file in INI or YAML, and of
``group_vars`` and ``host_vars`` beside it; anything else is refused by name.

What ``ansible-inventory --list`` printed into a file is read as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.features.ansible import program, static
from orchestrator.features.ansible.groups import Tree, inventory_of, needs_ansible
from orchestrator.features.ansible.variable_files import VariableFiles, read_variable_files
from orchestrator.inventory import Inventory
from orchestrator.inventory.formats import LoadYaml, recognise
from orchestrator.inventory.schema import refuse

__all__ = ["read_path", "read_text"]

_IGNORED = (
    "~", ".pyc", ".pyo", ".swp", ".bak", ".rpm", ".md", ".txt", ".rst", ".orig", ".cfg", ".retry",
    "group_vars", "host_vars", "vars_plugins",
)  # fmt: skip
"""How names in an inventory directory end that are no inventories (Ansible's
INVENTORY_IGNORE_EXTS).
"""
_MOST_FILES = 1000
_LARGE = 1 << 20
"""Bytes above which a file is no longer read as YAML, which takes a second and has this limit."""


def read_path(path: Path, source: str) -> Inventory | None:
    """Return the inventory in a directory, of a program or in a large file of JSON; None for other
    files.

    Raises ConfigError or Faults of it.
    """
    if path.is_dir():
        return _read_directory(path, source)
    if _is_program(path):
        if not program.is_installed():
            raise needs_ansible("a program that prints one", source, source)
        return _ask_ansible(path, "", source)
    return _read_large_list(path, source) if _is_large_list(path) else None


def read_text(
    kind: str, text: str, source: str, load_yaml: LoadYaml, path: str
) -> Inventory | None:
    """Return the inventory in a text, read from ``path`` if there is one; None for a list
    that is not Ansible's.

    A plain list is Ansible's if files of variables lie beside it. Raises ConfigError or Faults of
    it.
    """
    if kind == "hostfile":
        return None
    variables = read_variable_files(Path(path).parent) if path else VariableFiles()
    if kind == "list" and not (variables.groups or variables.hosts):
        return None
    is_printed = text.lstrip().startswith("{")
    if path and not is_printed and program.is_installed():
        return _ask_ansible(Path(path), text, source)
    tree = Tree(source, variables)
    static.add_text(tree, kind, text, load_yaml)
    return inventory_of(tree)


def _ask_ansible(path: Path, text: str, source: str) -> Inventory:
    return _inventory_of_list(program.list_inventory(path, text), Tree(source))


def _inventory_of_list(document: Any, tree: Tree) -> Inventory:
    static.add_yaml(tree, yamlfile.Document(document, {}, tree.source))
    return inventory_of(tree)


def _read_directory(folder: Path, source: str) -> Inventory:
    """Return what Ansible makes of a directory, once all that is no program in it has proved to be
    inventories.

    Ansible starts the programs in it, and the directory may have been named by mistake.
    """
    files = list(islice(_files_below(folder), _MOST_FILES + 1))
    if not files:
        raise ConfigError(
            "expected Ansible inventories in this directory, found none", where=source
        )
    if len(files) > _MOST_FILES:
        message = f"expected a directory of inventories, with at most {_MOST_FILES} files in it and below it, got more"
        raise ConfigError(message, where=source, hint="name the inventory file")
    texts = []
    for path in files:
        if _is_program(path) or not path.stat().st_size:
            continue
        text = yamlfile.read_text(path)
        texts.append(text)
        kind = recognise(text)
        if kind == "orch" and "schema:" in text:
            message = f"expected a file, got a directory with {path.name}"
            raise ConfigError(message, where=source, hint="name a file in it")
        if not static.is_for_ansible_alone(text):
            tree = Tree(str(path))
            static.add_text(tree, kind, text, yamlfile.loads)
            if tree.faults:
                refuse(tree.faults)
    if not program.is_installed():
        raise needs_ansible("a directory", source, source)
    return _ask_ansible(folder, "\n".join(texts), source)


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the inventories of a directory and those below it. Raises ConfigError for a directory
    that cannot be read.
    """
    for place, folders, names in os.walk(folder, onerror=_refuse_folder):
        folders[:] = sorted(name for name in folders if _is_inventory_name(name))
        for name in sorted(filter(_is_inventory_name, names)):
            path = Path(place, name)
            if path.is_file():
                yield path


def _is_inventory_name(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(_IGNORED)


def _refuse_folder(error: OSError) -> None:
    message = f"cannot be read: {error.strerror}"
    raise ConfigError(message, where=str(error.filename), hint="name the inventory file") from error


def _is_program(path: Path) -> bool:
    """Return True for an executable file that is a script or an ELF program."""
    try:
        if not path.is_file() or not os.access(path, os.X_OK):  # a pipe would be waited for
            return False
        with path.open("rb") as stream:
            return stream.read(4).startswith((b"#!", b"\x7fELF"))
    except (OSError, ValueError):
        return False


def _is_large_list(path: Path) -> bool:
    """Return True for a large file in JSON, as ``ansible-inventory --list`` prints it with all
    variables of all hosts.
    """
    try:
        if not path.is_file() or path.stat().st_size <= _LARGE:
            return False
        with path.open("rb") as stream:
            return stream.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


def _read_large_list(path: Path, source: str) -> Inventory:
    try:
        with path.open("rb") as stream:
            data = stream.read(program.MOST_OUTPUT + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=source) from error
    document: Any = program.parse_json(data, source, "ansible-inventory --list prints it")
    if not isinstance(document, dict) or "_meta" not in document:
        hint = "only what ansible-inventory --list prints, with _meta, may be larger"
        raise ConfigError(f"expected at most {_LARGE >> 20} MiB, got more", where=source, hint=hint)
    return _inventory_of_list(document, Tree(source, read_variable_files(path.parent)))
