"""Ansible inventories in YAML and INI: both describe a tree of groups, which `orchestrator.inventory.groups` resolves.

Faults are collected in the tree, each with file, line and key.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory.ansible_vars import Var
from orchestrator.inventory.groups import Tree
from orchestrator.inventory.hostset import expand, nearest
from orchestrator.inventory.schema import InventoryDocument
from orchestrator.inventory.values import KeyPath, Where, shown_key, shown_value

__all__ = ["add_ini", "add_yaml"]

_RANGE = re.compile(r"\[([0-9]*):([0-9]+)(?::([0-9]+))?\]")
_LETTERS = re.compile(r"\[(?:([a-z]):([a-z])|([A-Z]):([A-Z]))(?::([0-9]{1,2}))?\]")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_MAX_BRACKETS = 3
_GROUP_KEYS = ("hosts", "children", "vars")


def add_yaml(tree: Tree, document: InventoryDocument, source: str) -> None:
    """Add an Ansible YAML document, or the JSON that a dynamic inventory prints for ``--list``, to a tree.

    Raises ConfigError for the settings of an inventory plugin, which only Ansible can ask.
    """

    def where(path: KeyPath) -> str:
        return f"{source}:{document.line(path)}: {'.'.join(map(shown_key, path))}"

    body = document.value
    if not isinstance(body, dict):
        tree.fault(source, f"expected a mapping of groups, got {shown_value(body, True)}")
    elif isinstance(body.get("plugin"), str):
        message = f"expected groups of hosts, got the settings of Ansible's inventory plugin {body['plugin'][:60]!r}"
        hint = "let Ansible ask it: ansible-inventory -i FILE --list > hosts.json, and --hosts hosts.json"
        raise ConfigError(message, where=where(("plugin",)), hint=hint)
    elif _is_dynamic(body):
        body = _unfolded(body)
    for name, group in body.items() if isinstance(body, dict) else ():
        _walk(tree, name, group, (name,), where)


def _is_dynamic(body: Mapping[str, Any]) -> bool:
    """Whether this is what a dynamic inventory prints: lists of hosts, and the variables of hosts under ``_meta``."""
    groups = [group for group in body.values() if isinstance(group, dict)]
    return "_meta" in body or any(isinstance(group.get(key), list) for group in groups for key in ("hosts", "children"))


def _unfolded(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a dynamic inventory in the form of an inventory in YAML."""
    meta = body.get("_meta")
    variables = meta.get("hostvars") if isinstance(meta, dict) else None
    groups: dict[str, Any] = {}
    for name, group in body.items():
        if name == "_meta":
            continue
        parts = {"hosts": group} if isinstance(group, list) else dict(group) if isinstance(group, dict) else group
        for key in ("hosts", "children") if isinstance(parts, dict) else ():
            if isinstance(parts.get(key), list):
                parts[key] = {str(item): None for item in parts[key]}
        groups[name] = parts
    if isinstance(variables, dict):
        everything = groups.setdefault("all", {})
        if isinstance(everything, dict):
            everything["hosts"] = {**(everything.get("hosts") or {}), **variables}
    return groups


def _walk(tree: Tree, name: str, body: Any, path: KeyPath, where: Where) -> None:
    group = tree.group(name, where(path))
    for key in _mapping(tree, body, path, where):
        if key not in _GROUP_KEYS:
            hint = f"a group has hosts, children and vars{nearest(key, _GROUP_KEYS)}"
            tree.fault(where((*path, key)), f"expected a key of a group, got '{shown_key(key)}'", hint)
    parts = {key: _mapping(tree, (body or {}).get(key), (*path, key), where) for key in _GROUP_KEYS if isinstance(body, dict)}
    for key, value in parts.get("vars", {}).items():
        group.vars[key] = Var(value, where((*path, "vars", key)))
    for pattern, values in parts.get("hosts", {}).items():
        inside: KeyPath = (*path, "hosts", pattern)
        settings = _mapping(tree, values, inside, where)
        variables = {key: Var(value, where((*inside, key))) for key, value in settings.items()}
        _add_hosts(tree, pattern, name, variables, where(inside))
    for child, inner in parts.get("children", {}).items():
        group.children[child] = where((*path, "children", child))
        _walk(tree, child, inner, (*path, "children", child), where)


def _mapping(tree: Tree, value: Any, path: KeyPath, where: Where) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        tree.fault(
            where(path), f"expected a mapping, got {shown_value(value, True)}", "a name without a value needs a colon after it"
        )
        return {}
    return value or {}


def add_ini(tree: Tree, text: str, source: str) -> None:
    """Add a text in Ansible's INI format to a tree."""
    name, kind = "ungrouped", "hosts"
    for number, line in enumerate(text.splitlines(), 1):
        where, line = f"{source}:{number}", line.strip()
        if not line or line[0] in "#;":
            continue
        if match := re.fullmatch(r"\[([^\[\]:\s]+)(?::([^\[\]:\s]+))?\]\s*([#;].*)?", line):
            name, kind = match[1], match[2] or "hosts"
            tree.group(name, where)
            if kind not in _GROUP_KEYS:
                tree.fault(where, f"expected [group], [group:children] or [group:vars], got {line[:60]!r}")
        elif kind == "vars":
            tree.groups[name].vars.update(_assignments(tree, [line], where))
        elif kind == "children":
            tree.groups[name].children[line.split()[0]] = where
        elif kind == "hosts":
            _host_line(tree, name, line, where)


def _host_line(tree: Tree, group: str, line: str, where: str) -> None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        tree.fault(where, f"expected paired quotes, got {str(error).lower()}")
        return
    _add_hosts(tree, words[0], group, _assignments(tree, words[1:], where), where)


def _assignments(tree: Tree, words: list[str], where: str) -> dict[str, Var]:
    variables = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if equals:
            variables[key] = Var(_ini_value(value), f"{where}: {key}")
        else:
            tree.fault(where, "expected name=value, got a word without '='", "write each host on its own line")
    return variables


def _ini_value(text: str) -> Any:
    """Return the value of a text as Ansible takes it: a literal of Python, after which a comment may stand, or the text."""
    if text[:1] in ("[", "{", "'", '"'):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a backslash that escapes nothing stays one
                return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
    head = re.split(r"\s+#", text, maxsplit=1)[0]
    words = {"true": True, "false": False}
    return int(head) if _NUMBER.fullmatch(head) else words.get(text.lower(), text)


def _add_hosts(tree: Tree, pattern: str, group: str, variables: Mapping[str, Var], where: str) -> None:
    """Add the hosts of a pattern such as ``node[01:04]`` or ``db-[a:c]:2222`` to a group."""
    expression, port = _pattern(pattern)
    try:
        names = expand(expression)
    except ConfigError as error:
        tree.fault(where, error.message, "an Ansible range is node[01:16], node[1:9:2] or node-[a:f]")
        return
    for name in names:
        tree.member(name, group, {"ansible_port": Var(port, where), **variables} if port else variables, where)


def _pattern(pattern: str) -> tuple[str, int | None]:
    """Return an Ansible host pattern as a host expression, and its port or None."""
    match = re.fullmatch(r"((?:[^:\[\]]|\[[^\[\]]*\])+):([0-9]{1,5})", pattern)
    text, port = (match[1], int(match[2])) if match else (pattern, None)
    text = _RANGE.sub(lambda span: f"[{span[1] or 0}-{span[2]}{'/' + span[3] if span[3] else ''}]", text)
    return ",".join(_lettered(text)) if text.count("[") <= _MAX_BRACKETS else text, port


def _lettered(text: str) -> Iterator[str]:
    """Yield ``db-a``, ``db-b``, ``db-c`` for ``db-[a:c]``, and ``db-a``, ``db-c`` for ``db-[a:c:2]``.

    A descending range stays unchanged, and `expand` refuses it.
    """
    match = _LETTERS.search(text)
    first, last = (ord(letter) for letter in match.groups()[:4] if letter) if match else (1, 0)
    step = int(match[5] or 1) if match else 0
    if match and first <= last and step:
        for code in range(first, last + 1, step):
            yield from _lettered(text[: match.start()] + chr(code) + text[match.end() :])
    else:
        yield text
