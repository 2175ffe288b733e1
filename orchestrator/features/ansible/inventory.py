"""Read an Ansible inventory.

Where `ansible-inventory` is on the PATH, its answer is the truth, with vaults, plug-ins, programs
and directories. Without it `static` reads plain files in INI and YAML, and refuses the rest. What
``ansible-inventory --list`` printed into a file is read as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.features.ansible import static
from orchestrator.features.ansible.hosts import Group, Var, inventory_of, needs_ansible
from orchestrator.inventory import Inventory
from orchestrator.inventory.formats import LoadYaml, recognise
from orchestrator.procs import TooMuchOutput, run_program

_PROGRAM = "ansible-inventory"
_SETTINGS = {
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
    "ANSIBLE_INVENTORY_EXPORT": "0",
    "ANSIBLE_DEPRECATION_WARNINGS": "0",
    "ANSIBLE_NOCOLOR": "1",
}
_LIMIT_S = 60.0
_MOST_REASON = 600


def read_path(path: Path, source: str) -> Inventory | None:
    """Return the inventory in a directory, of a program, or in a file that `ansible-inventory`
    printed; None for other files.

    Raises ConfigError, or Faults with several.
    """
    if path.is_dir():
        own = next((file for file in sorted(path.glob("*.y*ml")) if _is_of_orch(file)), None)
        if own:
            message = f"expected a file, got a directory with {own.name}"
            raise ConfigError(message, where=source, hint="name a file in it")
        # Ansible starts the programs in a directory, which may have been named by mistake.
        program = next(filter(_is_program, path.rglob("*")), None)
        if program:
            message = f"expected a directory of inventories, found the program {program.name!r}"
            raise ConfigError(message, where=source, hint="name the inventory itself")
        return _ask_ansible(path, source, "a directory")
    if _is_program(path):
        return _ask_ansible(path, source, "a program that prints one")
    if not _begins(path, b"{"):
        return None
    return _read_output(path.read_bytes(), source)


def _is_of_orch(path: Path) -> bool:
    try:
        text = yamlfile.read_text(path)
    except ConfigError:  # Ansible may read it, or say why not
        return False
    return recognise(text) == "orch" and "schema:" in text


def read_text(
    kind: str, text: str, source: str, load_yaml: LoadYaml, path: str
) -> Inventory | None:
    """Return the inventory in a text, read from ``path`` if there is one; None for a list
    that is not Ansible's.

    A plain list is Ansible's if files of variables lie beside it. Raises ConfigError or Faults of
    it.
    """
    folder = Path(path).parent if path else None
    has_variables = folder and any((folder / name).is_dir() for name in static.FOLDERS)
    if kind == "hostfile" or (kind == "list" and not has_variables):
        return None
    if inventory := _read_output(text.encode(), source):
        return inventory
    if path and shutil.which(_PROGRAM):
        return _ask_ansible(Path(path), source, "")
    return static.read_inventory(kind, text, source, load_yaml, folder)


def _ask_ansible(path: Path, source: str, got: str) -> Inventory:
    """Return the inventory as `ansible-inventory` reads it.

    Raises ConfigError if it cannot, or is not installed; the error then names what was ``got``.
    """
    if not shutil.which(_PROGRAM):
        raise needs_ansible(got, source)
    words = [_PROGRAM, "-i", str(path.absolute()), "--list"]
    where = " ".join(words)
    try:
        done = run_program(words, environment={**os.environ, **_SETTINGS}, timeout_s=_LIMIT_S)
    except OSError as error:
        raise ConfigError(f"cannot be started: {error.strerror}", where=where) from error
    except subprocess.TimeoutExpired:
        message = f"expected an answer within {_LIMIT_S:g} s, got none"
        raise ConfigError(message, where=where) from None
    except TooMuchOutput:
        message = "expected an inventory, got more than 16 MiB"
        raise ConfigError(message, where=where) from None
    reason = " ".join(done.stderr.decode("utf-8", "replace").split())[-_MOST_REASON:]
    if done.returncode:
        hint = "name a file with the vault's password in ANSIBLE_VAULT_PASSWORD_FILE"
        raise ConfigError(
            f"expected exit status 0, got {done.returncode}: {reason or 'no reason'}",
            where=where,
            hint=hint if "vault" in reason else "run it by hand",
        )
    inventory = _read_output(done.stdout, source)
    if not inventory:
        raise ConfigError("expected an inventory in JSON, got something else", where=where)
    return inventory


def _read_output(data: bytes, source: str) -> Inventory | None:
    """Return the inventory that ``ansible-inventory --list`` printed; None for any other text.

    Only its variables of hosts count, which are merged. Raises ConfigError for a text that has
    others.
    """
    try:
        document: Any = json.loads(data)
        hostvars = dict(document["_meta"]["hostvars"])
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    groups: dict[str, Group] = {}
    for name, body in document.items():
        if name != "_meta":
            if not isinstance(body, dict) or body.keys() - {"hosts", "children"}:
                message = f"expected hosts and children in {name[:60]!r}, got other keys"
                hint = f"pass what {_PROGRAM} --list prints, without --export"
                raise ConfigError(message, where=source, hint=hint)
            groups[name] = Group(
                source,
                dict.fromkeys(map(str, body.get("hosts", ()))),
                dict.fromkeys(child for child in body.get("children", ()) if child in document),
            )
    hosts: dict[str, dict[str, Var]] = {
        host: {} for group in groups.values() for host in group.hosts
    }
    for host, variables in hosts.items():
        for key, value in hostvars.get(host, {}).items():
            variables[key] = Var(_safe(value), f"{source}: {host}: {key}")
    return inventory_of(source, groups, hosts)


def _safe(value: Any) -> Any:
    """Return a value without the marks that Ansible prints for text that is no template."""
    if isinstance(value, dict):
        if isinstance(text := value.get("__ansible_unsafe"), str):
            return text
        return {key: _safe(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_safe(item) for item in value]
    return value


def _is_program(path: Path) -> bool:
    return os.access(path, os.X_OK) and (_begins(path, b"#!") or _begins(path, b"\x7fELF"))


def _begins(path: Path, first: bytes) -> bool:
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as stream:
            return stream.read(64).lstrip().startswith(first)
    except (OSError, ValueError):
        return False
