"""Ansible inventories in INI, YAML and JSON: all describe a tree of groups, which `groups`
resolves.

Faults are collected in the tree, each with file, line and key.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from string import ascii_letters
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.features.ansible.groups import Tree, needs_ansible
from orchestrator.features.ansible.variables import Var
from orchestrator.inventory import expand, nearest
from orchestrator.inventory.foreign_files import tool_of
from orchestrator.inventory.formats import LoadYaml
from orchestrator.inventory.hostset import MAX_HOSTS, is_ipv6
from orchestrator.inventory.schema import InventoryDocument
from orchestrator.inventory.values import KeyPath, Where, shown_key, shown_value
from orchestrator.yamlfile import Tagged

__all__ = ["add_text", "add_yaml", "is_for_ansible_alone"]

_RANGE = re.compile(r"\[([0-9]{0,9}|[A-Za-z]{1,9}):([0-9]{1,9}|[A-Za-z]{1,9})(?::([0-9]{1,9}))?\]")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TOO_LARGE = 1e18
_VAULT = "$ANSIBLE_VAULT"
_PLUGIN = re.compile(r"""(?m)^["']?plugin["']?\s*:\s""")
_HOLDER = re.compile(r"x-|\.")
"""What the names of keys begin with that are no groups and only hold what aliases repeat, as in
files of other tools.
"""
_GROUP_KEYS = ("hosts", "children", "vars")
_SECTIONS = "expected [group], [group:children] or [group:vars]"


def is_for_ansible_alone(text: str) -> bool:
    """Return True for an encrypted text and for the settings of an inventory plug-in."""
    return text.startswith(_VAULT) or _PLUGIN.search(text) is not None


def add_text(tree: Tree, kind: str, text: str, load_yaml: LoadYaml) -> None:
    """Add an inventory in YAML or INI to a tree. Raises ConfigError for what only Ansible reads."""
    if text.startswith(_VAULT):
        raise needs_ansible("an encrypted inventory", tree.source, tree.source)
    if kind in ("yaml", "orch"):
        add_yaml(tree, load_yaml(text, tree.source, foreign=True))
    else:
        _add_ini(tree, text)


def add_yaml(tree: Tree, document: InventoryDocument) -> None:
    """Add an Ansible YAML document, or the JSON that ``ansible-inventory --list`` prints, to a
    tree.

    Raises ConfigError for the settings of an inventory plug-in, which only Ansible can ask.
    """
    source = tree.source

    def where(path: KeyPath) -> str:
        return f"{source}:{document.line(path)}: {'.'.join(map(shown_key, path))}"

    body = document.value
    if not isinstance(body, dict):
        tree.fault(source, f"expected a mapping of groups, got {shown_value(body, True)}")
    elif isinstance(body.get("plugin"), str):
        got = f"the settings of Ansible's inventory plug-in {body['plugin'][:60]!r}"
        raise needs_ansible(got, source, where(("plugin",)))
    elif foreign := tool_of(body):
        raise ConfigError(
            f"expected groups of hosts, got {foreign[0]}", where=source, hint=foreign[1]
        )
    elif _is_dynamic(body):
        body = _unfolded(body)
    for name, group in body.items() if isinstance(body, dict) else ():
        if not _HOLDER.match(name) or isinstance(group, dict) and set(group) & set(_GROUP_KEYS):
            _walk(tree, name, group, (name,), where)


def _is_dynamic(body: Mapping[str, Any]) -> bool:
    """Return True for the output of a dynamic inventory: lists of hosts, and the variables of hosts
    under ``_meta``.
    """
    groups = [group for group in body.values() if isinstance(group, dict)]
    return "_meta" in body or any(
        isinstance(group.get(key), list) for group in groups for key in ("hosts", "children")
    )


def _unfolded(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a dynamic inventory in the form of an inventory in YAML.

    Hosts are those that groups list, as in Ansible; ``_meta`` may know more.
    """
    meta = body.get("_meta")
    variables = meta.get("hostvars") if isinstance(meta, dict) else None
    groups: dict[str, Any] = {}
    members: set[str] = set()
    for name, group in body.items():
        if name == "_meta":
            continue
        parts = {"hosts": group} if isinstance(group, list) else group
        if isinstance(parts, dict):
            parts = dict(parts)
            for key in ("hosts", "children"):
                if isinstance(parts.get(key), list):
                    parts[key] = dict.fromkeys(map(str, parts[key]))
            members.update(parts.get("hosts") or ())
        groups[name] = _written(parts)
    if isinstance(variables, dict):
        everything = groups.setdefault("all", {})
        if isinstance(everything, dict):
            others = [name for name in variables if name in members]
            names = dict.fromkeys([*_order_hosts(groups, "all", set()), *others])
            of_hosts = {name: _written(variables.get(name)) for name in names}
            everything["hosts"] = {**(everything.get("hosts") or {}), **of_hosts}
    children = body["all"].get("children") if isinstance(body.get("all"), dict) else None
    if isinstance(children, list) and "ungrouped" not in groups:
        groups["all"]["children"].pop("ungrouped", None)  # named even if nobody is in it
    return groups


def _order_hosts(groups: Mapping[str, Any], name: str, seen: set[str]) -> Iterator[str]:
    """Yield the hosts of a group and of those below it in the order of the inventory; the groups
    themselves are sorted.
    """
    group = groups.get(name)
    if name in seen or not isinstance(group, dict):
        return
    seen.add(name)
    children = group.get("children")
    for child in children if isinstance(children, dict) else ():
        yield from _order_hosts(groups, child, seen)
    hosts = group.get("hosts")
    yield from hosts if isinstance(hosts, dict) else ()


def _written(value: Any) -> Any:
    """Return a value as it was before `ansible-inventory` made JSON of it: ``!unsafe`` is text,
    ``!vault`` encrypted.
    """
    if isinstance(value, dict) and len(value) == 1:
        if isinstance(text := value.get("__ansible_unsafe"), str):
            return text
        if "__ansible_vault" in value:
            return Tagged("!vault")
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    return [_written(item) for item in value] if isinstance(value, list) else value


def _walk(tree: Tree, name: str, body: Any, path: KeyPath, where: Where) -> None:
    group = tree.group(name, where(path))
    body = _mapping(tree, body, path, where)
    for key in body:
        if key not in _GROUP_KEYS:
            hint = f"a group has hosts, children and vars{nearest(key, _GROUP_KEYS)}"
            tree.fault(
                where((*path, key)), f"expected a key of a group, got '{shown_key(key)}'", hint
            )
    body = {
        key: {value: None} if isinstance(value, str) and key != "vars" else value
        for key, value in body.items()
    }
    parts = {key: _mapping(tree, body.get(key), (*path, key), where) for key in _GROUP_KEYS}
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
            where(path),
            f"expected a mapping, got {shown_value(value, True)}",
            "a name without a value needs a colon after it",
        )
        return {}
    return value or {}


def _add_ini(tree: Tree, text: str) -> None:
    name, kind = "ungrouped", "hosts"
    for number, line in enumerate(text.splitlines(), 1):
        where, line = f"{tree.source}:{number}", line.strip()
        if not line or line[0] in "#;":
            continue
        if match := re.fullmatch(r"\[([^\[\]:\s]+)(?::([^\[\]:\s]+))?\]\s*([#;].*)?", line):
            name, kind = match[1], match[2] or "hosts"
            tree.group(name, where)
            if kind not in _GROUP_KEYS:
                tree.fault(where, f"{_SECTIONS}, got {line[:60]!r}")
        elif line[0] == "[" and line[-1] == "]" and " " in line:
            tree.fault(where, f"{_SECTIONS}, got {line[:60]!r}", "write it without spaces")
        elif kind == "vars":
            tree.groups[name].vars.update(_assignments(tree, [line], where))
        elif kind == "children":
            tree.groups[name].children[line.split()[0]] = where
        elif kind == "hosts":
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                tree.fault(where, f"expected paired quotes, got {str(error).lower()}")
                continue
            _add_hosts(tree, words[0], name, _assignments(tree, words[1:], where), where)


def _assignments(tree: Tree, words: list[str], where: str) -> dict[str, Var]:
    variables = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if equals:
            variables[key] = Var(_ini_value(value), f"{where}: {key}")
        else:
            tree.fault(
                where,
                "expected name=value, got a word without '='",
                "write each host on its own line",
            )
    return variables


def _ini_value(text: str) -> Any:
    """Return the value of a text as Ansible takes it: a literal of Python, after which a comment
    may stand, or the text.

    In other than Ansible's way, ``true`` and ``false`` in any letters are booleans, as in YAML.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash that escapes nothing stays one
            return _plain(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)


def _plain(value: Any) -> Any:
    """Return a literal of Python as a value that JSON has. Raises ValueError for a number that is
    too large for it.
    """
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set):
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, int | float) and not abs(value) < _TOO_LARGE:
        raise ValueError(value)
    if value is ...:
        return "..."
    return value if isinstance(value, str | int | float | None) else str(value)


def _add_hosts(
    tree: Tree, pattern: str, group: str, variables: Mapping[str, Var], where: str
) -> None:
    """Add the hosts of a pattern such as ``node[01:04]`` or ``db-[a:c]:2222`` to a group."""
    try:
        names, port = _expanded(pattern)
    except ConfigError as error:
        tree.fault(
            where, error.message, "an Ansible range is node[01:16], node[1:9:2] or node-[a:f]"
        )
        return
    if port:
        variables = {"ansible_port": Var(port, where), **variables}
    for name in names:
        tree.member(name, group, variables, where)


def _expanded(pattern: str) -> tuple[list[str], int | None]:
    """Return the hosts of an Ansible pattern in Ansible's order, and their port or None. Raises
    ConfigError.

    >>> _expanded("n[1:2]-[B:C]:23"), _expanded("[fd00::[8:9]]:22"), _expanded("n[:04:2]")
    ((['n1-B', 'n1-C', 'n2-B', 'n2-C'], 23), (['fd00::8', 'fd00::9'], 22), (['n0', 'n2', 'n4'], None))
    """
    match = re.fullmatch(r"\[(.+)\]:([0-9]{1,5})", pattern)
    if not match or not (
        is_ipv6(_RANGE.sub("1", match[1])) or _NAME.fullmatch(_RANGE.sub("1", match[1]))
    ):
        match = re.fullmatch(r"((?:[^:\[\]]|\[[^\[\]]*\])+):([0-9]{1,5})", pattern)
    text, port = (match[1], int(match[2])) if match else (pattern, None)
    fixed, *groups = (_RANGE.split(text)[start::4] for start in range(4))
    if not any(groups):
        return expand(text), port
    if any(bracket in part for part in fixed for bracket in "[]"):
        raise ConfigError(f"expected paired brackets, got {text[:60]!r}")
    spans = [_span(*ends) for ends in zip(*groups, strict=True)]
    if (size := prod(len(items) for items, _ in spans)) > MAX_HOSTS:
        raise ConfigError(f"expected at most {MAX_HOSTS} hosts, got {size} in {text[:60]!r}")
    axes = [[str(item).zfill(width) for item in items] for items, width in spans]
    return [
        "".join(map("".join, zip(fixed, (*row, ""), strict=True))) for row in product(*axes)
    ], port


def _span(first: str, last: str, step: str | None) -> tuple[Sequence[int | str], int]:
    """Return the numbers or letters of a range, and the width to which they are padded; letters go
    from a to z, then A to Z.
    """
    start, stride = first or "0", int(step or 1)
    items: Sequence[int | str] = ()
    if start.isdecimal() and last.isdecimal() and stride:
        items = range(int(start), int(last) + 1, stride)
    elif len(start) == len(last) == 1 and start.isalpha() and last.isalpha() and stride:
        items = ascii_letters[ascii_letters.index(start) : ascii_letters.index(last) + 1 : stride]
    width = len(start) if start.startswith("0") else 1
    if not items or (width > 1 and width != len(last)):
        got = f"{first}:{last}{':' + step if step else ''}"
        raise ConfigError(
            f"expected an ascending range of numbers or letters, its ends padded to one width, got {got!r}"
        )
    return items, width
