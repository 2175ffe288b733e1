"""Reads what Ansible reads besides a single inventory file: inventory directories, ``group_vars`` and ``host_vars``, programs.

Of files of variables only what orch uses is kept (`ansible_vars.USED`): other variables, such as those of playbooks, may be
secrets or templates. The rules of names and order are those of Ansible's ``host_group_vars`` plug-in and inventory manager.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.inventory import formats
from orchestrator.features.ansible import static as ansible
from orchestrator.features.ansible.variables import USED, Var
from orchestrator.features.ansible.groups import Tree, VariableFiles, inventory_of
from orchestrator.inventory.hosts import Inventory

__all__ = ["in_directory", "is_listing", "is_program", "of_listing", "of_program", "variable_files"]

_FOLDERS = ("group_vars", "host_vars")
_SUFFIXES = ("", ".yml", ".yaml", ".json")
_IGNORED = re.compile(r"\..*|(group|host)_vars|vars_plugins|.*(~|\.(pyc|pyo|swp|bak|rpm|md|txt|rst|orig|cfg|retry))")
"""Names in an inventory directory that are no inventories (Ansible's INVENTORY_IGNORE_EXTS)."""
_USED_LINE = re.compile(rf"""(?m)^[\s{{,]*["']?(?:{USED.pattern})["']?\s*:""")
_VAULT = "$ANSIBLE_VAULT"
_MOST_FILES = 1000
_LOOK_S = 0.02
_PROGRAM_S = 60.0
_MOST_OUTPUT = 16 << 20
_LARGE = 1 << 20
"""Bytes above which a file is no longer read as YAML, which takes a second and has this limit."""


def in_directory(folder: Path, source: str) -> Inventory:
    """Return the inventory of all files of a directory together, each in its own format. Raises ConfigError or Faults of it.

    Starts no program in it before all other files have proved to be inventories: the directory may have been named by mistake.
    """
    variables = variable_files(folder)
    paths = list(_inventories(folder, {folder.resolve()}))
    if not paths:
        raise ConfigError("expected Ansible inventories in this directory, found none", where=source)
    programs = {path for path in paths if is_program(path)}
    texts = {path: yamlfile.read_text(path) for path in paths if path not in programs and path.stat().st_size}
    for path, text in texts.items():
        if formats.recognise(text) == "orch" and "schema:" in text:
            raise ConfigError(f"expected a file, got a directory with {path.name}", where=source, hint="name a file in it")
        formats.add_ansible(Tree(source, variables), text, str(path), yamlfile.loads)
    tree = Tree(source, variables)
    for path in paths:
        if path in programs:
            ansible.add_yaml(tree, _printed(path), str(path))
        elif path in texts:
            formats.add_ansible(tree, texts[path], str(path), yamlfile.loads)
    return inventory_of(tree)


def of_program(path: Path, source: str) -> Inventory:
    """Return the inventory that a program prints for ``--list``. Raises ConfigError or Faults of it."""
    tree = Tree(source, variable_files(path.parent))
    ansible.add_yaml(tree, _printed(path), source)
    return inventory_of(tree)


def is_program(path: Path) -> bool:
    """Return True for an executable file that is a script or an ELF program."""
    try:
        if not path.is_file() or not os.access(path, os.X_OK):  # a pipe would be waited for
            return False
        with path.open("rb") as stream:
            return stream.read(4).startswith((b"#!", b"\x7fELF"))
    except (OSError, ValueError):
        return False


def is_listing(path: Path) -> bool:
    """Return True for a large file in JSON, as ``ansible-inventory --list`` prints it with all variables of all hosts."""
    try:
        if not path.is_file() or path.stat().st_size <= _LARGE:
            return False
        with path.open("rb") as stream:
            return stream.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


def of_listing(path: Path, source: str) -> Inventory:
    """Return the inventory in a file that ``ansible-inventory --list`` printed. Raises ConfigError or Faults of it."""
    try:
        with path.open("rb") as stream:
            document = _json(stream.read(_MOST_OUTPUT + 1), source, "ansible-inventory --list prints it")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=source) from error
    if not isinstance(document, dict) or "_meta" not in document:
        hint = "only what ansible-inventory --list prints, with _meta, may be larger"
        raise ConfigError(f"expected at most {_LARGE >> 20} MiB, got more", where=source, hint=hint)
    tree = Tree(source, variable_files(path.parent))
    ansible.add_yaml(tree, yamlfile.Document(document, {}, source), source)
    return inventory_of(tree)


def _inventories(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield the inventories of a directory and those below it in order; of a directory that links lead to again, only once.

    ``seen`` collects all entries. Raises ConfigError for more than any cluster has, and for a directory that cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(folder), hint="name the inventory file") from error
    for entry in entries:
        real = entry.resolve() if entry.is_dir() else entry
        if real in seen:
            continue
        seen.add(real)
        if len(seen) > _MOST_FILES:
            message = f"expected a directory of inventories, with at most {_MOST_FILES} files in it and below it, got more"
            raise ConfigError(message, where=str(folder), hint="name the inventory file")
        if not _IGNORED.fullmatch(entry.name):
            if entry.is_dir():
                yield from _inventories(entry, seen)
            elif entry.is_file():
                yield entry


def variable_files(folder: Path) -> VariableFiles:
    """Return the variables of groups and hosts in ``group_vars`` and ``host_vars`` of a folder."""
    encrypted: list[str] = []
    groups, hosts = (_variables(folder / name, encrypted) for name in _FOLDERS)
    return VariableFiles(groups, hosts, tuple(encrypted))


def _variables(folder: Path, encrypted: list[str]) -> dict[str, dict[str, Var]]:
    """Return the variables of each group or host: of ``NAME``, else of ``NAME.yml``, ``NAME.yaml`` or ``NAME.json``; the first
    one that exists may be a directory, whose files are merged in order."""
    entries = {entry.name: entry for entry in sorted(folder.iterdir())} if folder.is_dir() else {}
    names = {name.removesuffix(suffix) for name in entries for suffix in _SUFFIXES if name.endswith(suffix)}
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
    if not _USED_LINE.search(text):  # YAML of playbooks may hold much that need not be understood here
        return {}
    document = yamlfile.loads(text, str(path), foreign=True)
    values = document.value if isinstance(document.value, dict) else {}
    return {
        key: Var(value, f"{path}:{document.line((key,))}: {key}")
        for key, value in values.items()
        if isinstance(key, str) and USED.fullmatch(key)
    }


def _printed(path: Path) -> yamlfile.Document:
    """Return what an inventory program prints: for ``--list``, and for ``--host`` of each host if it has no ``_meta``."""
    document = _asked(path, "--list")
    if isinstance(document, dict) and "_meta" not in document:
        listed = [group.get("hosts") if isinstance(group, dict) else group for group in document.values()]
        names = dict.fromkeys(str(name) for hosts in listed if isinstance(hosts, list) for name in hosts)
        document["_meta"] = {"hostvars": {name: _asked(path, "--host", name) for name in names}}
    return yamlfile.Document(document, {}, str(path))


def _asked(path: Path, *words: str) -> Any:
    where = f"{path} {' '.join(words)}"
    done = _ended([str(path.absolute()), *words], where)
    if done.returncode:
        tail = done.stderr.decode("utf-8", "replace").strip()[-300:]
        hint = "" if tail else "it printed no reason; run it by hand to find out"
        raise ConfigError(f"expected exit status 0, got {done.returncode}{tail and f': {tail}'}", where=where, hint=hint)
    return _json(done.stdout, where, "an inventory program prints JSON on standard output")


def _ended(argv: list[str], where: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, and with it what it has started if it takes too long or prints too much.

    It writes to files: whatever it leaves running may keep those open, and nobody waits for that. Raises ConfigError.
    """
    over = time.monotonic() + _PROGRAM_S
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"cannot be started: {error.strerror}", where=where) from error
        try:
            while process.poll() is None:
                if max(os.fstat(file.fileno()).st_size for file in (out, err)) > _MOST_OUTPUT:
                    raise ConfigError(f"expected at most {_MOST_OUTPUT >> 20} MiB, got more", where=where)
                if time.monotonic() > over:
                    raise ConfigError(f"expected an answer within {_PROGRAM_S:g} s, got none", where=where)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own session, so its number is not another group's
            process.wait()
            raise
        texts = (os.pread(file.fileno(), _MOST_OUTPUT + 1, 0) for file in (out, err))
        return subprocess.CompletedProcess(argv, process.returncode, *texts)


def _json(data: bytes, where: str, hint: str) -> Any:
    """Return the value of a text in JSON. Raises ConfigError for another text, with the hint, and for a very large one."""
    if len(data) > _MOST_OUTPUT:
        raise ConfigError(f"expected at most {_MOST_OUTPUT >> 20} MiB, got more", where=where)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigError(f"expected JSON, got {len(data)} bytes of something else", where=where, hint=hint) from None
