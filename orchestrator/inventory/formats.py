"""Inventories written for other tools, read without conversion: Ansible YAML and INI, MPI and DeepSpeed hostfiles, plain lists.

`parse_text` is the entry point: it recognises the format of a text and returns the `Inventory`. The caller passes the YAML
loader, because this module opens no file and does not parse YAML. `from_expression` makes an inventory from a host expression.
Every format ends in `orchestrator.inventory.schema.build`, so that all hosts pass the same checks. A number of GPUs that the
source does not state stays None; preflight then asks the nodes.

>>> [(host.name, host.gpus) for host in parse_text("node1 slots=8\\nnode2 slots=4\\n", "hostfile", no_yaml).hosts]
[('node1', 8), ('node2', 4)]
>>> recognise("[lab]\\nnode[01:04] ansible_user=bench\\n"), recognise("node1\\nnode2\\n"), recognise("schema: 1\\nhosts: {}")
('ansible-ini', 'list', 'orch')
>>> [host.address for host in from_expression("10.11.0.[2-3]").hosts]
['10.11.0.2', '10.11.0.3']
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from orchestrator.errors import ConfigError
from orchestrator.inventory import ansible
from orchestrator.inventory.groups import Tree, VariableFiles, inventory_of
from orchestrator.inventory.hosts import Inventory
from orchestrator.inventory.hostset import is_ipv6, split_words
from orchestrator.inventory.schema import HostEntry, InventoryDocument, build, parse, refuse

__all__ = ["LoadYaml", "from_expression", "add_ansible", "no_yaml", "parse_text", "recognise"]


class LoadYaml(Protocol):
    """A reader of YAML; ``foreign``: of another tool's file, with its tags and merged keys."""

    def __call__(self, text: str, source: str, *, foreign: bool = False) -> InventoryDocument:
        """Return the document. Raises ConfigError."""


_SECTION = re.compile(r"\[[^\[\]\s]+\]")
_YAML_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s#:=\[\],]+)\s*:(\s|$)""")
_OUR_KEY = re.compile(r"""^\s*[{,]?\s*["']?(schema|hosts|defaults|groups|secrets)["']?\s*:(\s|$)""")
_COUNT_KEYS = ("slots", "max_slots", "max-slots")
_COUNTED = re.compile(r"([^:]+):([0-9]{1,9})")
_COUNT = re.compile(r"[1-9][0-9]{0,3}")
_MOST_SLOTS = 1024


def parse_text(text: str, source: str, load_yaml: LoadYaml, files: VariableFiles | None = None) -> Inventory:
    """Return the inventory in ``text``; ``source`` is its file name in messages, ``files`` the variables next to an Ansible
    inventory. Raises ConfigError or Faults of it."""
    if not text.strip():
        raise ConfigError("expected an inventory, got an empty text", where=source)
    if text.startswith("#!"):
        hint = f"chmod +x {source}; or run it and use what it prints: {source} --list > hosts.json"
        raise ConfigError("expected an inventory, got a program that may not be executed", where=source, hint=hint)
    kind = "ansible-ini" if text.startswith("$ANSIBLE_VAULT") else recognise(text)
    if kind == "list" and files and (files.groups or files.hosts):
        kind = "ansible-ini"
    if kind == "orch":
        document = load_yaml(text, source)
        return parse(document.value, document.line, source)
    if kind.startswith("ansible"):
        tree = Tree(source, files or VariableFiles())
        add_ansible(tree, text, source, load_yaml)
        return inventory_of(tree)
    return _parse_hostfile(text, source)


def add_ansible(tree: Tree, text: str, source: str, load_yaml: LoadYaml) -> None:
    """Add an Ansible inventory in YAML or INI to a tree. Raises ConfigError for one that Ansible Vault has encrypted."""
    if text.startswith("$ANSIBLE_VAULT"):
        hint = "decrypt it, or write an inventory without secrets: orch logs in by key and needs only connection settings"
        raise ConfigError("expected an inventory, got one encrypted by Ansible Vault", where=source, hint=hint)
    if recognise(text) in ("ansible-yaml", "orch"):
        ansible.add_yaml(tree, load_yaml(text, source, foreign=True), source)
    else:
        ansible.add_ini(tree, text, source)


def recognise(text: str) -> str:
    """Return the format of an inventory: ``orch``, ``ansible-yaml``, ``ansible-ini``, ``hostfile`` or ``list``."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "#;"]
    first = lines[0] if lines else ""
    if first.startswith(("---", "%", "{", "- ", "!", "&")) or _YAML_KEY.match(first.lstrip()):
        return "orch" if _is_ours(lines, text) else "ansible-yaml"
    words = [_uncommented(line).split() for line in lines]
    keys = {word.partition("=")[0] for line in words for word in line[1:] if "=" in word}
    if any(_SECTION.fullmatch(_uncommented(line).strip()) for line in lines) or keys - set(_COUNT_KEYS):
        return "ansible-ini"
    names = [name for line in words for name in line[:1]]
    counted = any(_counted(part) for name in names for part in name.split(","))
    return "hostfile" if keys or counted else "list"


def from_expression(expression: str, source: str = "--hosts") -> Inventory:
    """Return an inventory of the hosts that ``expression`` names, with the connection settings of the user's ssh configuration.

    ``10.11.0.[2-5]``, ``10.11.0.2-5``, ``gpu[01-04]``, ``a,b``; ``a:8,b:8`` sets the GPUs of each host, like Horovod's ``-H``.
    Raises Faults of ConfigError for a group, which only an inventory file can declare, and for anything that is not a host.
    """
    if "@" in expression and all(word.strip().startswith("@") for word in expression.split(",") if "@" in word):
        hint = "name an inventory file with --hosts, or set ORCH_HOSTS"
        raise ConfigError(
            "expected hosts, got a group and no inventory that holds it", where=f"{source} {expression!r}", hint=hint
        )
    faults: list[ConfigError] = []
    entries = list(_entries(expression, None, f"{source} {expression[:80]!r}", faults))
    return build(expression, entries, faults=faults) if entries else refuse(faults)


def no_yaml(text: str, source: str, *, foreign: bool = False) -> NoReturn:
    """Raise ConfigError: the YAML loader for sources in which YAML is not allowed."""
    raise ConfigError("expected a list of hosts, got YAML", where=source)


def _is_ours(lines: list[str], text: str) -> bool:
    """Return True for YAML in orch's own format: its keys are at the left edge or in a flow mapping; `parse` refuses a list."""
    top = [line for line in lines if not line[0].isspace()]
    flowing = any(line.startswith("{") for line in top) and re.search(r"""["']?\bschema["']?\s*:""", text)
    return bool(flowing) or top[:1] == [] or top[0].startswith("- ") or any(_OUR_KEY.match(line) for line in top)


def _uncommented(line: str) -> str:
    return re.split(r"(?:^|\s)#", line, maxsplit=1)[0]


def _parse_hostfile(text: str, source: str) -> Inventory:
    faults: list[ConfigError] = []
    entries: list[HostEntry] = []
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{source}:{number}"
        if words := _uncommented(line).split():
            count = _slots(words[1:], place, faults)
            entries.extend(_entries(words[0], count, place, faults))
    return build(source, _without_repeats(entries), faults=faults)


def _without_repeats(entries: list[HostEntry]) -> list[HostEntry]:
    """Return each host once: schedulers such as PBS write a line for each slot. With counts, a repeated host stays a fault."""
    times = Counter(entry.hosts for entry in entries)
    if any(set(entry.values) - {"ssh"} for entry in entries) or max(times.values(), default=1) == 1:
        return entries
    first = {entry.hosts: entry for entry in reversed(entries)}
    if any(entry.values != first[entry.hosts].values for entry in entries):
        return entries
    return [replace(first[name], values={**first[name].values, "slots": count}) for name, count in times.items()]


def _slots(words: list[str], place: str, faults: list[ConfigError]) -> str | None:
    """Return the text of ``slots=`` on a line."""
    count = None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in _COUNT_KEYS:
            hint = "write one host per line; other settings of a host go into a YAML inventory"
            faults.append(ConfigError("expected slots=N after the host, got something else", where=place, hint=hint))
        elif key == "slots":
            count = value
    return count


def _entries(expression: str, slots: str | None, place: str, faults: list[ConfigError]) -> Iterator[HostEntry]:
    """Yield the hosts of one line. In hostfiles a slot is a place for a rank, which on a machine with GPUs is a GPU."""
    try:
        words = split_words(expression)
    except ConfigError as error:
        faults.append(ConfigError(error.message, where=place, hint=error.hint))
        words = []
    if slots is None and "@" not in expression and not any(map(_counted, words)):
        words = [expression] if words else []
    for word in words:
        name, count = _counted(word) or (word, slots)
        valid = bool(_COUNT.fullmatch(count or "")) and int(count or 0) <= _MOST_SLOTS
        if slots is None and (count == "22" or (count or "").isdigit() and not valid and count != "0"):
            hint = "a number after the colon counts slots; the ssh port goes into a YAML inventory as ssh: {port: 22}"
            faults.append(ConfigError(f"expected a host, or host:slots, got {word[:60]!r}", where=place, hint=hint))
        elif count is not None and not valid:
            message = f"expected slots as a whole number from 1 to {_MOST_SLOTS}, got {count[:60]!r}"
            faults.append(ConfigError(message, where=place))
        user, at, host = name.rpartition("@")
        values: dict[str, Any] = {"gpus": int(count), "slots": int(count)} if count and valid else {}
        if at and user:
            values["ssh"] = {"user": user}
        yield HostEntry(host if at and user else name, values, lambda _: place)


def _counted(word: str) -> tuple[str, str] | None:
    """Return host and count of ``host:8``, or None for a word without a count."""
    match = None if is_ipv6(word) else _COUNTED.fullmatch(word)
    return (match[1], match[2]) if match else None
