"""Inventories written for other tools, read without conversion.

`parse_text` recognises the format of a text and returns the `Inventory`: orch's own, hostfiles of
MPI and DeepSpeed, lists. YAML of another form, and INI with sections or variables, are for the
features that read inventories. The caller passes the YAML loader, because this module opens no file
and does not parse YAML. Every format ends in `schema.build`, so that all hosts pass the same
checks. A number of GPUs that the source does not state stays None; preflight then asks the nodes.

>>> [(host.name, host.gpus) for host in parse_text("node1 slots=8\\nnode2 slots=4\\n", "hostfile", no_yaml).hosts]
[('node1', 8), ('node2', 4)]
>>> recognise("[lab]\\nnode[01:04] ansible_user=bench\\n"), recognise("node1\\nnode2\\n"), recognise("schema: 1\\nhosts: {}")
('ini', 'list', 'orch')
"""

from __future__ import annotations

import re
from typing import NoReturn, Protocol

from orchestrator.errors import ConfigError
from orchestrator.feature import providers
from orchestrator.inventory.foreign_files import format_of, is_groups_file
from orchestrator.inventory.hosts import Inventory
from orchestrator.inventory.machine_files import (
    is_machine_key,
    parse_machine_file,
    split_count,
    strip_comment,
)
from orchestrator.inventory.schema import InventoryDocument, parse


class LoadYaml(Protocol):
    """A reader of YAML; ``foreign``: of another tool's file, with its tags and merged keys."""

    def __call__(self, text: str, source: str, *, foreign: bool = False) -> InventoryDocument:
        """Return the document. Raises ConfigError."""


_SECTION = re.compile(r"\[[^\[\]\s]+\]|\[ [^\[\]]*\]|\[[^\[\]]* \]")
_RANGE = re.compile(r"\[([0-9]*:[0-9]+|[A-Za-z]:[A-Za-z])(:[0-9]+)?\]")
_YAML_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s#:=\[\],]+)\s*:(\s|$)""")
_PLUGIN_KEY = re.compile(r"""["']?plugin["']?\s*:\s""")
_OUR_KEY = re.compile(r"""^\s*[{,]?\s*["']?(schema|hosts|defaults|groups|secrets)["']?\s*:(\s|$)""")


def parse_text(text: str, source: str, load_yaml: LoadYaml, path: str = "") -> Inventory:
    """Return the inventory in ``text``; ``source`` is its name in messages, ``path`` its file if it
    has one.

    Raises ConfigError or Faults of it.
    """
    if not text.strip():
        raise ConfigError("expected an inventory, got an empty text", where=source)
    if text.startswith("#!"):
        hint = f"chmod +x {source}; or run it and use what it prints: {source} --list > hosts.json"
        message = "expected an inventory, got a program that may not be executed"
        raise ConfigError(message, where=source, hint=hint)
    kind = recognise(text)
    has_sections = any(
        _SECTION.fullmatch(strip_comment(line).strip()) for line in text.splitlines()
    )
    if kind in ("ini", "hostfile", "list") and not has_sections and (foreign := format_of(text)):
        raise ConfigError(
            f"expected a list of hosts, got {foreign[0]}", where=source, hint=foreign[1]
        )
    if kind == "yaml" and is_groups_file(text):
        hint = "pass what nodeset -e @GROUP prints"
        raise ConfigError("expected hosts, got groups of ClusterShell", where=source, hint=hint)
    if kind == "orch":
        document = load_yaml(text, source)
        return parse(document.value, document.line, source)
    for module in providers("inventory_format"):
        inventory: Inventory | None = module.read_text(kind, text, source, load_yaml, path)
        if inventory:
            return inventory
    if kind in ("hostfile", "list"):
        return parse_machine_file(text, source)
    message = f"expected an inventory of orch, a hostfile or a list of hosts, got {kind.upper()}"
    raise ConfigError(message, where=source)


def recognise(text: str) -> str:
    """Return the format of an inventory: ``orch``, ``yaml``, ``ini``, ``hostfile`` or ``list``."""
    if text.startswith("$ANSIBLE_VAULT"):
        return "ini"
    lines = [
        line.rstrip() for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "#;"
    ]
    first = lines[0] if lines else ""
    if first.startswith(("---", "%", "{", "- ", "!", "&")) or _YAML_KEY.match(first.lstrip()):
        return "orch" if _is_ours(lines, text) else "yaml"
    words = [re.sub(r"\s*=\s*", "=", strip_comment(line)).split() for line in lines]
    keys = {word.partition("=")[0] for line in words for word in line[1:] if "=" in word}
    is_named = all(map(str.isidentifier, keys)) or any(key.startswith("ansible_") for key in keys)
    is_ranged = any(_RANGE.search(line[0]) for line in words if line)
    if (
        is_ranged
        or any(_SECTION.fullmatch(strip_comment(line).strip()) for line in lines)
        or (is_named and not all(map(is_machine_key, keys)))
    ):
        return "ini"
    names = [name for line in words for name in line[:1]]
    has_counts = any(split_count(part) for name in names for part in name.split(","))
    return "hostfile" if keys or has_counts else "list"


def no_yaml(text: str, source: str, *, foreign: bool = False) -> NoReturn:
    """Raise ConfigError: the YAML loader for sources in which YAML is not allowed."""
    raise ConfigError("expected a list of hosts, got YAML", where=source)


def _is_ours(lines: list[str], text: str) -> bool:
    """Return True for YAML in orch's own format: its keys are at the left edge or in a flow
    mapping; `parse` refuses a list.
    """
    top = [line for line in lines if not line[0].isspace()]
    flowing = any(line.startswith("{") for line in top) and re.search(
        r"""["']?\bschema["']?\s*:""", text
    )
    if (
        any(map(_PLUGIN_KEY.match, top)) and "schema:" not in text
    ):  # the plugin constructed has groups, too
        return False
    return (
        bool(flowing) or top[:1] == [] or top[0].startswith("- ") or any(map(_OUR_KEY.match, top))
    )
