"""Ansible's tree of groups with variables, resolved into the hosts and groups of an `Inventory`.

A host's variables are merged in Ansible's order: distant groups first, groups at one depth by name;
then the files of
``group_vars`` in the same order, the host's own variables, and its files of ``host_vars`` last.
`orchestrator.features.ansible.variables` says what the merged variables mean.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.errors import ConfigError
from orchestrator.features.ansible.variable_files import VariableFiles
from orchestrator.features.ansible.variables import Unread, Var, entry_of
from orchestrator.inventory import Inventory, fold, nearest
from orchestrator.inventory.hostset import MAX_HOSTS, alias_of
from orchestrator.inventory.schema import Grouping, HostEntry, build, refuse
from orchestrator.inventory.values import shown_key

__all__ = ["Group", "Tree", "inventory_of", "needs_ansible"]

_MAX_GROUPS = 1000
_MAX_NESTING = 50
_MOST_RENAMED = 3


@dataclass(slots=True)
class Group:
    """One group as written: its hosts, its child groups with the place of each, its variables."""

    where: str
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, str] = field(default_factory=dict)
    vars: dict[str, Var] = field(default_factory=dict)


@dataclass(slots=True)
class Tree:
    """Groups and hosts as written; ``places`` maps each host to its first declaration."""

    source: str
    files: VariableFiles = VariableFiles()
    groups: dict[str, Group] = field(default_factory=dict)
    hosts: dict[str, dict[str, Var]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    faults: list[ConfigError] = field(default_factory=list)
    memberships: int = 0

    def group(self, name: str, where: str) -> Group:
        """Return the group of that name; create it if it is new."""
        return self.groups.setdefault(name, Group(where))

    def fault(self, where: str, message: str, hint: str = "") -> None:
        """Add a fault, to be reported together with all others."""
        self.faults.append(ConfigError(message, where=where, hint=hint))

    def member(self, name: str, group: str, variables: Mapping[str, Var], where: str) -> None:
        """Put a host into a group. Raises Faults immediately when there are more memberships than
        any cluster has.
        """
        self.memberships += 1
        if self.memberships > 10 * MAX_HOSTS:
            self.fault(where, f"expected at most {10 * MAX_HOSTS} memberships in groups, got more")
            refuse(self.faults)
        self.group(group, where).hosts[name] = None
        self.places.setdefault(name, where)
        self.hosts.setdefault(name, {}).update(variables)


def needs_ansible(got: str, source: str, where: str) -> ConfigError:
    """Return the refusal of what only Ansible reads, with two ways to read it."""
    listing = f"ansible-inventory -i {shlex.quote(source)} --list > hosts.json"
    hint = f"pip install ansible-core, and orch asks Ansible; or where Ansible is: {listing}; then pass --hosts hosts.json"
    return ConfigError(
        f"expected hosts, groups and plain variables, got {got}", where=where, hint=hint
    )


def inventory_of(tree: Tree) -> Inventory:
    """Return the inventory that a tree declares. Raises Faults of ConfigError, with those collected
    in the tree.
    """
    tree.group("all", tree.source)
    if len(tree.groups) > _MAX_GROUPS:
        tree.fault(tree.source, f"expected at most {_MAX_GROUPS} groups, got {len(tree.groups)}")
        refuse(tree.faults)
    for group in tree.groups.values():
        for child, where in group.children.items():
            if child not in tree.groups:
                hint = f"declare it as a group{nearest(child, tree.groups)}"
                tree.fault(where, f"expected a known group, got {child[:60]!r}", hint)
        if variable := group.vars.get("ansible_group_priority"):
            tree.faults.append(
                needs_ansible("the priority of a group", tree.source, variable.where)
            )
    depths = _depths(tree)
    chains = _chains(tree, {name: (depths[name], name) for name in tree.groups})
    unread = Unread(files=dict.fromkeys(tree.files.encrypted))
    faults: dict[str, ConfigError] = {}
    entries: dict[str, HostEntry] = {}
    for name in tree.hosts:
        merged = _merged(tree, name, chains.get(name, ["all"]))
        if entry := entry_of(name, merged, tree.places[name], unread, faults):
            entries[name] = entry
    tree.faults += faults.values()
    if unread.others and not entries:
        kinds = ", ".join(unread.others)
        tree.fault(
            tree.source,
            f"expected a host that is reached by ssh, got only {fold(tree.hosts)} ({kinds})",
        )
        refuse(tree.faults)
    names = _group_names(tree)
    groupings = [
        Grouping(
            names[name],
            [
                *(alias_of(host) for host in group.hosts if host in entries),
                *(f"@{names[child]}" for child in group.children),
            ],
            group.where,
        )
        for name, group in tree.groups.items()
        if name != "all" and not tree.faults
    ]
    built = build(tree.source, list(entries.values()), groupings, faults=tree.faults)
    return replace(built, notes=(*unread.words(), *built.notes, *_renamed(names)))


def _group_names(tree: Tree) -> dict[str, str]:
    """Return the name by which each group is selected: its own, with '_' for what ``--hosts @NAME``
    cannot have.

    A group that would then have the name of another one keeps its own, which is refused; so does
    one with '=', which may be an assignment in the wrong place, of a secret.
    """
    names = {
        name: name if "=" in name else re.sub(r"^[.-]|[^A-Za-z0-9._-]", "_", name)
        for name in tree.groups
    }
    uses = Counter(names.values())
    return {name: usable if uses[usable] == 1 else name for name, usable in names.items()}


def _renamed(names: Mapping[str, str]) -> tuple[str, ...]:
    """Return one line that tells which groups are selected by another name than their own, or
    nothing.
    """
    pairs = [
        f"{usable} for {shown_key(name)!r}" for name, usable in names.items() if usable != name
    ]
    more = f" and {len(pairs) - _MOST_RENAMED} more" if len(pairs) > _MOST_RENAMED else ""
    return (f"groups renamed: {', '.join(pairs[:_MOST_RENAMED])}{more}",) if pairs else ()


def _depths(tree: Tree) -> dict[str, int]:
    """Return how far below ``all`` each group is, along its longest path; a loop stops at
    `_MAX_NESTING`.
    """
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


def _chains(tree: Tree, order: Mapping[str, tuple[int, str]]) -> dict[str, list[str]]:
    """Return the groups of each host, most distant first, the order in which Ansible merges their
    variables.
    """
    parents: dict[str, list[str]] = {name: [] for name in tree.groups}
    for name, group in tree.groups.items():
        for child in group.children:
            parents.get(child, []).append(name)
    around = {name: _ancestors(name, parents) for name in tree.groups}
    inside: dict[str, set[str]] = {}
    for name, group in tree.groups.items():
        for host in group.hosts:
            inside.setdefault(host, {"all"}).update(around[name])
    for names in inside.values():
        if names - {"all", "ungrouped"}:
            names.discard("ungrouped")
    return {host: sorted(names, key=order.__getitem__) for host, names in inside.items()}


def _ancestors(name: str, parents: Mapping[str, list[str]]) -> set[str]:
    seen, waiting = set(), [name]
    while waiting:
        if (group := waiting.pop()) not in seen:
            seen.add(group)
            waiting.extend(parents[group])
    return seen


def _merged(tree: Tree, name: str, chain: list[str]) -> dict[str, Var]:
    """Return a host's variables: of its groups, of their files, its own, and of its own
    files; the last one wins.
    """
    of_groups = [tree.groups[group].vars for group in chain]
    in_files = [tree.files.groups[group] for group in chain if group in tree.files.groups]
    merged: dict[str, Var] = {}
    for nearer in (*of_groups, *in_files, tree.hosts[name], tree.files.hosts.get(name, {})):
        merged |= nearer
    return merged
