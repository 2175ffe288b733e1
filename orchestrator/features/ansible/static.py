"""Ansible inventories in plain INI and YAML, with ``group_vars`` and ``host_vars`` beside them.

It reads hosts, ranges such as ``node[01:16]``, groups, children and variables, merged in Ansible's
order: distant groups first, groups at one depth by name, then their files, then the host's own
variables, then its files. All else is refused by name.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.features.ansible.hosts import Group, Var, inventory_of, is_told, needs_ansible
from orchestrator.inventory import Inventory, expand
from orchestrator.inventory.foreign_files import tool_of
from orchestrator.inventory.formats import LoadYaml
from orchestrator.inventory.schema import refuse
from orchestrator.inventory.values import KeyPath, Where, show_key, show_value

FOLDERS = ("group_vars", "host_vars")
_SUFFIXES = ("", ".yml", ".yaml", ".json")
_VAULT = "$ANSIBLE_VAULT"
_SECTION = re.compile(r"\[([^\[\]:\s]+)(?::(children|vars))?\]\s*(?:#.*)?")
_CHILD = re.compile(r"([^\[\]:\s]+)\s*(?:#.*)?")
_HOST = re.compile(
    r"(?!.*\][^:]*-[0-9]+(?::|$))((?:[A-Za-z0-9_.-]|\[[0-9]+:[0-9]+\])+)(?::([0-9]{1,5}))?"
)
_PRIORITY = "ansible_group_priority"


def read_inventory(
    kind: str, text: str, source: str, load_yaml: LoadYaml, folder: Path | None
) -> Inventory:
    """Return the inventory in a text; ``folder`` is its file's folder.

    Raises ConfigError, or Faults with several.
    """
    if text.startswith(_VAULT):
        raise needs_ansible("an encrypted inventory", source)
    tree = _Tree(source)
    if kind in ("yaml", "orch"):
        tree.add_yaml(load_yaml(text, source, foreign=True))
    else:
        tree.add_ini(text)
    variables = tree.merge(folder)
    if tree.faults:
        refuse(tree.faults)
    return inventory_of(source, tree.groups, variables)


class _Tree:
    """Groups and hosts as written, and all faults of them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.groups = {name: Group(source) for name in ("all", "ungrouped")}
        self.hosts: dict[str, dict[str, Var]] = {}
        self.faults: list[ConfigError] = []

    def _fault(self, where: str, message: str, hint: str = "") -> None:
        self.faults.append(ConfigError(message, where=where, hint=hint))

    def add_ini(self, text: str) -> None:
        group, kind, declared = self.groups["ungrouped"], None, {"all", "ungrouped"}
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            where = f"{self.source}:{number}"
            if not line or line[0] in "#;":
                continue
            if section := _SECTION.fullmatch(line):
                name, kind = section.groups()
                group = self.groups.setdefault(name, Group(where))
                declared |= {name} if kind != "vars" else set()
            elif line[0] == "[":
                message = f"expected [group], [group:children] or [group:vars], got {line[:60]!r}"
                self._fault(where, message)
            elif kind == "vars":
                group.vars |= self._assignments([line], where)
            elif kind == "children":
                if child := _CHILD.fullmatch(line):
                    group.children[child[1]] = None
                else:
                    self._fault(where, f"expected the name of a group, got {line[:60]!r}")
            else:
                try:
                    words = shlex.split(line, comments=True)
                except ValueError as error:
                    self._fault(where, f"expected paired quotes, got {str(error).lower()}")
                    continue
                self._add_hosts(group, words[0], self._assignments(words[1:], where), where)
        for name in self.groups.keys() - declared:
            where = self.groups[name].where
            self._fault(where, f"expected a known group, got {show_key(name)!r}")

    def _assignments(self, words: Sequence[str], where: str) -> dict[str, Var]:
        variables = {}
        for word in words:
            key, equals, text = (part.strip() for part in word.partition("="))
            if not equals:
                hint = "write each host on its own line"
                self._fault(where, "expected name=value, got a word without '='", hint)
            elif is_told(key) or key == _PRIORITY:
                try:
                    variables[key] = Var(_ini_value(text), f"{where}: {key}")
                except (TypeError, RecursionError, MemoryError):
                    self.faults.append(needs_ansible("a set, bytes or the like", f"{where}: {key}"))
        return variables

    def add_yaml(self, document: Any) -> None:
        def where(path: KeyPath) -> str:
            return f"{self.source}:{document.line(path)}: {'.'.join(map(show_key, path))}"

        body = document.value
        if not isinstance(body, dict):
            message = f"expected a mapping of groups, got {show_value(body, True)}"
            raise ConfigError(message, where=self.source)
        if isinstance(body.get("plugin"), str):
            got = f"the settings of Ansible's inventory plug-in {body['plugin'][:60]!r}"
            raise needs_ansible(got, where(("plugin",)))
        if foreign := tool_of(body):
            message = f"expected groups of hosts, got {foreign[0]}"
            raise ConfigError(message, where=self.source, hint=foreign[1])
        for name, group in body.items():
            self._add_group(name, group, (name,), where)

    def _add_group(self, name: str, body: Any, path: KeyPath, where: Where) -> None:
        group = self.groups.setdefault(name, Group(where(path)))
        for key, part in self._mapping(body, path, where).items():
            if key not in ("hosts", "children", "vars"):
                message = f"expected a key of a group, got '{show_key(key)}'"
                hint = "a group has hosts, children and vars"
                self._fault(where((*path, key)), message, hint)
                continue
            for inner, value in self._mapping(part, (*path, key), where).items():
                place: KeyPath = (*path, key, inner)
                if key == "vars":
                    group.vars[inner] = Var(value, where(place))
                elif key == "children":
                    group.children[inner] = None
                    self._add_group(inner, value, place, where)
                else:
                    settings = self._mapping(value, place, where)
                    variables = {
                        name: Var(setting, where((*place, name)))
                        for name, setting in settings.items()
                    }
                    self._add_hosts(group, inner, variables, where(place))

    def _mapping(self, value: Any, path: KeyPath, where: Where) -> dict[str, Any]:
        if value is None or isinstance(value, dict):
            return value or {}
        message = f"expected a mapping, got {show_value(value, True)}"
        self._fault(where(path), message, "a name without a value needs a colon after it")
        return {}

    def _add_hosts(
        self, group: Group, pattern: str, variables: Mapping[str, Var], where: str
    ) -> None:
        """Add the hosts of a pattern such as ``node[01:04]`` or ``db1:2222`` to a group."""
        match = _HOST.fullmatch(pattern)
        if not match:
            self.faults.append(needs_ansible(f"the hosts {show_key(pattern)!r}", where))
            return
        try:
            names = expand(match[1].replace(":", "-")) if "[" in match[1] else [match[1]]
        except ConfigError as error:
            self._fault(where, error.message, "an Ansible range is node[01:16]")
            return
        port = Var(int(match[2]), where) if match[2] else None
        for name in names:
            group.hosts[name] = None
            own = self.hosts.setdefault(name, {"ansible_port": port} if port else {})
            own |= variables
            if port and own.get("ansible_port", Var(None, "")).value != port.value:
                self.faults.append(needs_ansible(f"another port of {name}", where))

    def merge(self, folder: Path | None) -> dict[str, dict[str, Var]]:
        """Return the variables of each host, and put hosts of no group into ``ungrouped``."""
        parents = {name: {"all"} for name in self.groups if name != "all"} | {"all": set()}
        of_host: dict[str, set[str]] = {name: set() for name in self.hosts}
        for name, group in self.groups.items():
            for child in group.children:
                if "ungrouped" in (name, child) and name != "all":
                    self.faults.append(needs_ansible("'ungrouped' above or below", group.where))
                if child not in self.groups:
                    self._fault(group.where, f"expected a known group, got {show_key(child)!r}")
                parents.setdefault(child, set()).add(name)
            for host in group.hosts:
                of_host[host].add(name)
            if priority := group.vars.get(_PRIORITY):
                self.faults.append(needs_ansible("the priority of a group", priority.where))
        try:
            order = list(TopologicalSorter(parents).static_order())
        except CycleError as error:
            loop = " → ".join(reversed(error.args[1]))
            message = f"expected groups without a loop, got {loop}"
            raise ConfigError(message, where=self.source) from None
        depths: dict[str, int] = {}
        above: dict[str, set[str]] = {}
        for name in order:
            depths[name] = 1 + max((depths[parent] for parent in parents[name]), default=0)
            above[name] = {name}.union(*(above[parent] for parent in parents[name]))
        files = {name: self._in_files(folder, "group_vars", name) for name in self.groups}
        merged: dict[str, dict[str, Var]] = {}
        for host, own in self.hosts.items():
            names = of_host[host] - {"all", "ungrouped"} or {"ungrouped"}
            around = {"all"}.union(*(above[name] for name in names))
            chain = sorted(around, key=lambda name: (depths[name], name))
            merged[host] = {}
            for name in chain:
                merged[host] |= self.groups[name].vars
            for name in chain:
                merged[host] |= files[name]
            merged[host] |= own | self._in_files(folder, "host_vars", host)
        self.groups["ungrouped"].hosts = {
            host: None for host, names in of_host.items() if not names - {"all", "ungrouped"}
        }
        return merged

    def _in_files(self, folder: Path | None, kind: str, name: str) -> dict[str, Var]:
        """Return the variables in ``NAME``, ``NAME.yml`` … or in the files of a folder ``NAME``."""
        if not folder or not (folder / kind).is_dir():
            return {}
        found = [path for end in _SUFFIXES if (path := folder / kind / f"{name}{end}").exists()]
        if len(found) > 1:
            self.faults.append(
                needs_ansible(f"{found[0].name} beside {found[1].name}", str(folder / kind))
            )
        variables: dict[str, Var] = {}
        for path in found:
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                variables |= self._in_file(file)
        return variables

    def _in_file(self, path: Path) -> dict[str, Var]:
        if path.is_dir():
            self.faults.append(needs_ansible("a folder in a folder of variables", str(path)))
        is_hidden = path.name[0] == "." or path.name[-1] == "~"
        if path.suffix not in _SUFFIXES or is_hidden or not path.is_file():
            return {}
        text = yamlfile.read_text(path)
        if text.startswith(_VAULT):
            self.faults.append(needs_ansible("an encrypted file", str(path)))
            return {}
        if not text.strip():
            return {}
        document = yamlfile.loads(text, str(path), foreign=True)
        values = document.value or {}
        if not isinstance(values, dict):
            self._fault(str(path), f"expected a mapping, got {show_value(values, True)}")
            return {}
        return {
            key: Var(value, f"{path}:{document.line((key,))}: {key}")
            for key, value in values.items()
            if is_told(key)
        }


def _ini_value(text: str) -> Any:
    """Return a value as Ansible takes it: a literal of Python, or else the text. Raises TypeError
    for a literal that JSON does not have.
    """
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return json.loads(json.dumps(value))
