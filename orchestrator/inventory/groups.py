"""Ansible's tree of groups with variables, resolved into the hosts and groups of an `Inventory`.

A host's variables are merged in Ansible's order: distant groups first, groups at the same depth by name, then the files of
``group_vars`` in the same order, the host's own variables, and its file of ``host_vars`` last. Connection variables become the
host's ssh settings; ``gpus``, ``slots``, ``env`` and ``expect`` mean the same as in orch's own files; all other variables go
into ``vars``. Settings that change how a host is reached and that orch does not support (other ssh arguments, passwords, other
connections, templates) are refused, never ignored. Ansible's other settings, such as ``ansible_become``, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import ssh_args
from orchestrator.inventory.hosts import Inventory
from orchestrator.inventory.hostset import MAX_HOSTS, alias_of, nearest
from orchestrator.inventory.schema import Grouping, HostEntry, build, refuse
from orchestrator.inventory.values import KeyPath, found

__all__ = ["Group", "Tree", "Var", "inventory_of"]

_MEANING: Mapping[str, KeyPath] = {
    "ansible_host": ("address",),
    "ansible_ssh_host": ("address",),
    "ansible_port": ("ssh", "port"),
    "ansible_ssh_port": ("ssh", "port"),
    "ansible_user": ("ssh", "user"),
    "ansible_ssh_user": ("ssh", "user"),
    "ansible_ssh_private_key_file": ("ssh", "key"),
    "ansible_private_key_file": ("ssh", "key"),
    "gpus": ("gpus",),
    "slots": ("slots",),
    "env": ("env",),
    "expect": ("expect",),
}
_NUMBERS = {"ansible_port", "ansible_ssh_port", "gpus", "slots"}
_BY_ARGUMENTS = (
    "orch reads a jump host (-J, ProxyJump, ProxyCommand ssh -W), port, user and key; write others under ssh: in an orch "
    "inventory or in the user's ssh configuration; --accept-new takes the place of StrictHostKeyChecking=no"
)
_BY_KEY = "orch logs in by key: set ansible_ssh_private_key_file"
_REFUSED = {
    **dict.fromkeys(("ansible_sftp_extra_args", "ansible_scp_extra_args", "ansible_ssh_executable"), _BY_ARGUMENTS),
    **dict.fromkeys(("ansible_password", "ansible_ssh_pass", "ansible_ssh_password", "ansible_ssh_passphrase"), _BY_KEY),
    "ansible_group_priority": "give the variable to the hosts themselves",
}
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
_CONNECTIONS = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_MAX_GROUPS = 1000
_MAX_NESTING = 50


@dataclass(frozen=True, slots=True)
class Var:
    """One variable and where it was written."""

    value: Any
    where: str


@dataclass(slots=True)
class Group:
    """One group as written: its hosts, its child groups with the place of each, its variables."""

    where: str
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, str] = field(default_factory=dict)
    vars: dict[str, Var] = field(default_factory=dict)


@dataclass(slots=True)
class Tree:
    """Groups and hosts as written; ``places`` maps each host to its first declaration. ``group_files`` and
    ``host_files`` are the variables in files of ``group_vars`` and ``host_vars`` by group and host."""

    source: str
    groups: dict[str, Group] = field(default_factory=dict)
    hosts: dict[str, dict[str, Var]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    faults: list[ConfigError] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    memberships: int = 0
    group_files: Mapping[str, Mapping[str, Var]] = field(default_factory=dict)
    host_files: Mapping[str, Mapping[str, Var]] = field(default_factory=dict)

    def group(self, name: str, where: str) -> Group:
        """Return the group of that name; create it if it is new."""
        return self.groups.setdefault(name, Group(where))

    def fault(self, where: str, message: str, hint: str = "") -> None:
        """Add a fault, to be reported together with all others."""
        self.faults.append(ConfigError(message, where=where, hint=hint))

    def member(self, name: str, group: str, variables: Mapping[str, Var], where: str) -> None:
        """Put a host into a group. Raises Faults immediately when there are more memberships than any cluster has."""
        self.memberships += 1
        if self.memberships > 10 * MAX_HOSTS:
            self.fault(where, f"expected at most {10 * MAX_HOSTS} memberships in groups, got more")
            refuse(self.faults)
        self.group(group, where).hosts[name] = None
        self.places.setdefault(name, where)
        self.hosts.setdefault(name, {}).update(variables)


def inventory_of(tree: Tree) -> Inventory:
    """Return the inventory that a tree declares. Raises Faults of ConfigError, with those collected in the tree."""
    tree.group("all", tree.source)
    if len(tree.groups) > _MAX_GROUPS:
        tree.fault(tree.source, f"expected at most {_MAX_GROUPS} groups, got {len(tree.groups)}")
        refuse(tree.faults)
    for group in tree.groups.values():
        for child, where in group.children.items():
            if child not in tree.groups:
                hint = f"declare it as a group{nearest(child, tree.groups)}"
                tree.fault(where, f"expected a known group, got {child[:60]!r}", hint)
    depths = _depths(tree)
    chains = _chains(tree, depths)
    entries = [_entry(tree, name, chains.get(name, ["all"])) for name in tree.hosts]
    groupings = [
        Grouping(name, [*map(alias_of, group.hosts), *(f"@{child}" for child in group.children)], group.where)
        for name, group in tree.groups.items()
        if name != "all" and not tree.faults
    ]
    return build(tree.source, entries, groupings, faults=tree.faults)


def _depths(tree: Tree) -> dict[str, int]:
    """Return how far below ``all`` each group is, along its longest path; a loop stops at `_MAX_NESTING`."""
    depths = dict.fromkeys(tree.groups, 1) | {"all": 0}
    for _ in range(_MAX_NESTING):
        deeper = {
            child: depths[name] + 1
            for name, group in tree.groups.items()
            for child in group.children
            if child in depths and child != "all" and depths[child] <= depths[name]
        }
        if not deeper:
            break
        depths |= deeper
    return depths


def _chains(tree: Tree, depths: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the groups of each host, most distant first, the order in which Ansible merges their variables."""
    parents: dict[str, list[str]] = {name: [] for name in tree.groups}
    for name, group in tree.groups.items():
        for child in group.children:
            parents.get(child, []).append(name)
    around = {name: _ancestors(name, parents) for name in tree.groups}
    inside: dict[str, set[str]] = {}
    for name, group in tree.groups.items():
        for host in group.hosts:
            inside.setdefault(host, {"all"}).update(around[name])
    return {host: sorted(names, key=lambda name: (depths[name], name)) for host, names in inside.items()}


def _ancestors(name: str, parents: Mapping[str, list[str]]) -> set[str]:
    seen, waiting = set(), [name]
    while waiting:
        if (group := waiting.pop()) not in seen:
            seen.add(group)
            waiting.extend(parents[group])
    return seen


def _entry(tree: Tree, name: str, chain: list[str]) -> HostEntry:
    """Return the host with its merged variables under orch's own keys."""
    merged: dict[str, Var] = {}
    of_groups = [tree.groups[group].vars for group in chain]
    in_files = [tree.group_files[group] for group in chain if group in tree.group_files]
    levels: list[Mapping[str, Var]] = [*of_groups, *in_files, tree.hosts[name], tree.host_files.get(name, {})]
    for nearer in levels:
        # Keep the nearest variable last in the mapping too: a setting may have two names, and then the later one wins below.
        merged = {**{key: variable for key, variable in merged.items() if key not in nearer}, **nearer}
    values: dict[str, Any] = {}
    places: dict[KeyPath, str] = {(): tree.places[name]}
    for key, variable in merged.items():
        if (path := _path(tree, key, variable)) and variable.value is not None:
            inner = values
            for part in path[:-1]:
                inner = inner.setdefault(str(part), {})
            inner[str(path[-1])] = _number(variable.value) if key in _NUMBERS else variable.value
            places[path] = variable.where
    for key in _ARGUMENTS:
        if key in merged and merged[key].value:
            _add_arguments(tree, merged[key], values, places)
    return HostEntry(
        name, values, lambda path: next(places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in places)
    )


def _add_arguments(tree: Tree, variable: Var, values: dict[str, Any], places: dict[KeyPath, str]) -> None:
    """Add the ssh settings in arguments for ssh; variables of their own win."""
    chosen, unsupported = ssh_args.settings(str(variable.value))
    if unsupported and variable.where not in tree.refused:
        tree.refused.add(variable.where)
        tree.fault(variable.where, f"expected arguments that orch supports, got {unsupported!r}", _BY_ARGUMENTS)
    inner = values.setdefault("ssh", {})
    for name, value in chosen.items():
        if name not in inner:
            inner[name] = value
            places["ssh", name] = variable.where


def _path(tree: Tree, key: str, variable: Var) -> KeyPath:
    """Return the key path of a variable in orch's own schema, empty for a variable that orch does not use."""
    message, hint = _refusal(key, variable.value)
    if message and variable.where not in tree.refused:
        tree.refused.add(variable.where)
        tree.fault(variable.where, message, hint)
    if key in _MEANING:
        return _MEANING[key]
    return () if key.startswith("ansible_") else ("vars", key)


def _refusal(key: str, value: Any) -> tuple[str, str]:
    """Return what is wrong with a variable and the remedy, or two empty texts."""
    if key in _REFUSED:
        return f"expected a setting that orch supports, got {key}", _REFUSED[key]
    if any("{{" in text or "{%" in text for text in _texts(value)):
        return "expected a plain value, got a template", "write the value itself; orch does not evaluate Jinja"
    if key == "ansible_connection" and value not in _CONNECTIONS:
        return f"expected a connection by ssh, got {found(value)}", "orch reaches every host by ssh"
    return "", ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _texts(item)


def _number(value: Any) -> Any:
    """Return ``"22"`` as 22, because Ansible accepts numbers written as text."""
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
