"""The schema of ``inventory/*.yaml``, and the checks for hosts of every inventory format.

`parse` reads orch's own YAML; `build` turns the declared hosts (`HostEntry`) and groups
(`Grouping`) of any format into an `Inventory`. All faults of a source are reported together: where,
what was expected, what came, and a hint. `orchestrator.inventory.values` defines the keys of a
single host.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NoReturn, Protocol

from orchestrator.errors import ConfigError, Faults, nearest
from orchestrator.inventory.containers import check, check_whole, merge_values
from orchestrator.inventory.hosts import TRANSPORTS, Host, Inventory, SshSettings
from orchestrator.inventory.hostset import (
    MAX_HOSTS,
    alias_of,
    check_address,
    check_alias,
    expand,
    same_machine_key,
)
from orchestrator.inventory.secrets import keeps_secret, public_vars
from orchestrator.inventory.values import (
    GroupValues,
    HostValues,
    KeyPath,
    MachineValues,
    Where,
    check_values,
    show_key,
    show_value,
    unknown_key,
)

_SCHEMA = 1
TOP_KEYS = ("schema", "defaults", "groups", "hosts", "secrets")
READ_VARS = frozenset({
    "python", "setup", "interface", "data_dir", "workdir", "runner_python", "cuda_visible_devices", "cpu_binding",
})  # fmt: skip
"""The ``vars`` that orch itself reads; others are for launch templates."""
_CLOSE = 0.8
"""Templates may read any name, so that one has to be this close to be taken for misspelt."""
_MAX_FAULTS = 100
_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class InventoryDocument(Protocol):
    """The result of a YAML loader: plain values, and the line of each."""

    @property
    def value(self) -> Any:
        """The whole document."""

    def line(self, path: KeyPath = ()) -> int:
        """Return the line of the value at ``path``."""


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One declaration of hosts: an expression, its values under the keys of orch's YAML, and the
    place of each value.
    """

    hosts: str
    values: Any
    where: Where


@dataclass(frozen=True, slots=True)
class Grouping:
    """A group as declared: expressions of hosts and other groups, its place in the file, what its
    hosts must have, how they are reached, empty if the group does not say, and the container of
    their runs."""

    name: str
    members: Sequence[str]
    where: str
    expect: Mapping[str, Any] = field(default_factory=dict)
    transport: str = ""
    container: Mapping[str, Any] = field(default_factory=dict)


def parse(document_value: Any, line_of: Callable[[KeyPath], int], source: str) -> Inventory:
    """Return the inventory that a document in orch's own schema declares. Raises Faults with every
    ConfigError of the file.
    """

    def where(path: KeyPath) -> str:
        place = f"{source}:{line_of(path)}"
        return f"{place}: {'.'.join(map(show_key, path))}" if path else place

    if not isinstance(document_value, dict):
        refuse(
            [
                ConfigError(
                    f"expected a mapping with schema: and hosts:, got {show_value(document_value, True)}",
                    where=where(()),
                )
            ]
        )
    faults = [
        unknown_key(key, TOP_KEYS, where((key,))) for key in document_value if key not in TOP_KEYS
    ]
    if type(version := document_value.get("schema")) is not int or version != _SCHEMA:
        hint = "a higher number needs a newer orch"
        if type(version) is not int:
            hint = f"write schema: {_SCHEMA}"
        faults.append(
            ConfigError(
                f"expected {_SCHEMA}, got {show_value(version)}",
                where=where(("schema",)),
                hint=hint,
            )
        )
    defaults = check_values(
        MachineValues, document_value.get("defaults", {}), _under(where, "defaults"), faults
    )
    _check_container(defaults, _under(where, "defaults"), faults)
    hosts = _section(document_value, "hosts", {}, where, faults)
    entries = [
        HostEntry(name, {} if body is None else body, _under(where, "hosts", name))
        for name, body in hosts.items()
    ]
    groups = _groupings(_section(document_value, "groups", {}, where, faults), where, faults)
    secrets = _section(document_value, "secrets", [], where, faults)
    faults.extend(_secret_faults(secrets, [document_value.get("defaults"), *hosts.values()], where))
    return build(source, entries, groups, defaults=defaults, hidden=secrets, faults=faults)


def build(
    source: str,
    entries: Sequence[HostEntry],
    groups: Sequence[Grouping] = (),
    *,
    defaults: Mapping[str, Any] | None = None,
    hidden: Sequence[str] = (),
    faults: Sequence[ConfigError] = (),
) -> Inventory:
    """Check and combine the declarations of a source. Raises Faults with ``faults``, which the
    caller found, and all others.
    """
    every_fault = list(faults)
    placed: list[tuple[Host, str]] = []
    for entry in entries:
        placed.extend(_hosts(entry, defaults or {}, every_fault))
        if len(placed) > MAX_HOSTS:
            refuse(
                [
                    *every_fault,
                    ConfigError(f"expected at most {MAX_HOSTS} hosts, got more", where=source),
                ]
            )
    if not entries:
        every_fault.append(
            ConfigError(
                "expected at least one host, got none",
                where=source,
                hint="declare one, such as node1",
            )
        )
    every_fault.extend(_clashes(placed))
    hosts = tuple(host for host, _ in placed)
    names = {name: name for entry in entries for name in _declared_names(entry)}
    resolved = _resolve_groups(groups, _unique_addresses(hosts) | names, every_fault)
    whole = tuple(
        _in_groups(
            host,
            defaults or {},
            [group for group in groups if host.name in resolved.get(group.name, ())],
        )
        for host in hosts
    )
    for host, (_, where) in zip(whole, () if every_fault else placed, strict=not every_fault):
        _keep_fault(every_fault, check_whole, host.container, f"{where}.container")
    if every_fault:
        refuse(every_fault)
    declared = [(defaults or {}).get("vars"), *(_vars_of(entry.values) for entry in entries)]
    return Inventory(source, whole, resolved, tuple(hidden), vars_notes(declared))


def vars_notes(declared: Iterable[Mapping[str, Any] | None]) -> tuple[str, ...]:
    """Return a line that names the ``vars`` that `public_vars` leaves out, and one for each with
    almost the name of one that orch reads; any other may be for launch templates.
    """
    pairs = [pair for variables in declared for pair in (variables or {}).items()]
    secret = {name for name, value in pairs if keeps_secret(name, value)}
    notes = []
    if secret:
        reason = "may be secret; what programs need goes under env:, where such values are hidden"
        notes.append(f"not read: {', '.join(sorted(map(show_key, secret)))} ({reason})")
    for name in sorted({name for name, _ in pairs} - secret - READ_VARS):
        for meant in get_close_matches(name, READ_VARS, 1, _CLOSE):
            notes.append(
                f"vars.{show_key(name)}: only launch templates read it; did you mean {meant}?"
            )
    return tuple(notes)


def _vars_of(values: Any) -> Mapping[str, Any] | None:
    variables = values.get("vars") if isinstance(values, Mapping) else None
    return variables if isinstance(variables, Mapping) else None


def _in_groups(host: Host, defaults: Mapping[str, Any], groups: Sequence[Grouping]) -> Host:
    """Return a host with what its groups say, in written order: they win over the defaults, and the
    host wins over them.
    """
    expect = dict(defaults.get("expect", {}))
    transport = defaults.get("transport", TRANSPORTS[0])
    for group in groups:
        expect |= group.expect
        transport = group.transport or transport
    containers = [
        defaults.get("container", {}),
        *(group.container for group in groups),
        host.container,
    ]
    return replace(
        host,
        expect={**expect, **host.expect},
        transport=host.transport or transport,
        container=merge_values(containers),
    )


def _check_container(values: Mapping[str, Any], where: Where, faults: list[ConfigError]) -> None:
    _keep_fault(faults, check, values.get("container", {}), where(("container",)))


def _keep_fault(faults: list[ConfigError], judge: Callable[..., None], *arguments: Any) -> None:
    try:
        judge(*arguments)
    except ConfigError as error:
        faults.append(error)


def refuse(faults: Sequence[ConfigError]) -> NoReturn:
    """Raise the first hundred faults together, with the number of the remaining ones."""
    remaining = len(faults) - _MAX_FAULTS
    rest = []
    if remaining > 0:
        rest = [ConfigError(f"expected a valid inventory, got {remaining} more faults")]
    raise Faults([*faults[:_MAX_FAULTS], *rest])


def _under(where: Where, *prefix: str) -> Where:
    return lambda path: where((*prefix, *path))


def _section(
    document: Mapping[str, Any], key: str, empty: Any, where: Where, faults: list[ConfigError]
) -> Any:
    value = document.get(key, empty)
    if type(value) is type(empty):
        return value
    word = "a mapping of names" if empty == {} else "a list of names"
    faults.append(
        ConfigError(f"expected {word}, got {show_value(value, True)}", where=where((key,)))
    )
    return empty


def _groupings(
    section: Mapping[str, Any], where: Where, faults: list[ConfigError]
) -> list[Grouping]:
    groupings = []
    for name, value in section.items():
        place, body = where(("groups", name)), {}
        if isinstance(value, dict):  # {hosts: …, expect: …, transport: …}
            body = check_values(GroupValues, value, _under(where, "groups", name), faults)
            _check_container(body, _under(where, "groups", name), faults)
            value = value.get("hosts", [])
        members = value if isinstance(value, list) else [value]
        invalid = [show_value(member) for member in members if not isinstance(member, str)]
        if members and not invalid:
            own = body.get("expect", {}), body.get("transport", ""), body.get("container", {})
            groupings.append(Grouping(name, members, place, *own))
        else:
            got = invalid[0] if invalid else "an empty list"
            message = f"expected hosts and @groups as text, got {got}"
            faults.append(ConfigError(message, where=place, hint='for example [node1, "@lab"]'))
    return groupings


def _secret_faults(
    secrets: Sequence[Any], holders: Iterable[Any], where: Where
) -> Iterator[ConfigError]:
    """Yield a fault for each name or pattern that matches no ``env`` variable: a misspelt name
    would expose the real secret.
    """
    environments = [holder.get("env") for holder in holders if isinstance(holder, dict)]
    variables = {name for env in environments if isinstance(env, dict) for name in env}
    for index, name in enumerate(secrets):
        if not isinstance(name, str) or not any(
            fnmatchcase(variable, name) for variable in variables
        ):
            suggestion = nearest(str(name), variables)
            hint = f"a secret is the name of a variable under env:, or a pattern such as '*_TOKEN'{suggestion}"
            yield ConfigError(
                f"expected the name of a variable, got {show_value(name, True)}",
                where=where(("secrets", index)),
                hint=hint,
            )


def _hosts(
    entry: HostEntry, defaults: Mapping[str, Any], faults: list[ConfigError]
) -> Iterator[tuple[Host, str]]:
    """Yield the hosts of one entry, each with its place; the first bad host ends the entry."""
    values = check_values(HostValues, entry.values, entry.where, faults)
    _check_container(values, entry.where, faults)
    place = entry.where(())
    address_place = entry.where(("address",)) if "address" in values else place
    try:
        if entry.hosts.strip() != entry.hosts or "@" in entry.hosts:
            check_alias(entry.hosts, place)
        words = _expand_names(entry.hosts, place)
        addresses = words
        if "address" in values:
            addresses = _expand_names(values["address"], address_place)
        if len(addresses) != len(words):
            hint = "the ranges in the name and in address: expand in parallel"
            raise ConfigError(
                f"expected {len(words)} addresses, got {len(addresses)}",
                where=address_place,
                hint=hint,
            )
        for word, address in zip(words, addresses, strict=True):
            check_alias(alias_of(word), place)
            check_address(address, address_place)
            yield _host(alias_of(word), address, defaults, values), place
    except ConfigError as error:
        faults.append(error)


def _expand_names(
    expression: str, where: str, groups: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    try:
        return expand(expression, groups or {})
    except ConfigError as error:
        raise ConfigError(error.message, where=where, hint=error.hint) from None


def _host(name: str, address: str, defaults: Mapping[str, Any], values: Mapping[str, Any]) -> Host:
    common = {
        key: {**defaults.get(key, {}), **values.get(key, {})} for key in ("ssh", "env", "vars")
    }
    common["vars"] = public_vars(common["vars"])
    gpus = values.get("gpus", defaults.get("gpus"))
    slots = values.get("slots", defaults.get("slots", 1))
    # `_in_groups` completes them with what the host's groups say.
    own = values.get("expect", {}), values.get("transport", ""), values.get("container", {})
    return Host(
        name,
        address,
        gpus,
        slots,
        SshSettings(**common["ssh"]),
        common["env"],
        common["vars"],
        *own,
    )


def _clashes(placed: Sequence[tuple[Host, str]]) -> Iterator[ConfigError]:
    """Yield a fault for each host that repeats another one: its name, its address and port, or its
    address as a name.
    """
    names: dict[str, str] = {}
    machines: dict[tuple[Any, ...], str] = {}
    owners = {same_machine_key(host.address): host.name for host, _ in placed}
    for host, where in placed:
        name = unicodedata.normalize("NFKC", host.name).casefold()
        machine = (
            same_machine_key(host.address),
            host.ssh.port or 22,
            host.ssh.jump,
            host.ssh.config,
        )
        if name in names:
            yield ConfigError(
                f"expected each host once, got {host.name!r} again",
                where=where,
                hint=f"first at {names[name]}",
            )
        elif machine in machines:
            got = f"{machines[machine]!r} and {host.name!r} at {host.address} port {machine[1]}"
            yield ConfigError(
                f"expected one name per machine, got {got}", where=where, hint="remove one of them"
            )
        elif owners.get(name, host.name) != host.name and same_machine_key(host.address) != name:
            got = f"{host.name!r}, the address of {owners[name]!r}"
            yield ConfigError(
                f"expected a name that is not the address of another host, got {got}", where=where
            )
        names.setdefault(name, where)
        machines.setdefault(machine, host.name)


def _declared_names(entry: HostEntry) -> list[str]:
    """Return the host names of an entry, even if its values are invalid: groups that list them are
    not at fault.
    """
    try:
        return [alias_of(word) for word in expand(entry.hosts)]
    except ConfigError:
        return []


def _unique_addresses(hosts: Sequence[Host]) -> dict[str, str]:
    counts = Counter(host.address for host in hosts)
    return {host.address: host.name for host in hosts if counts[host.address] == 1}


def _resolve_groups(
    groups: Sequence[Grouping], hosts: Mapping[str, str], faults: list[ConfigError]
) -> dict[str, tuple[str, ...]]:
    """Return the host names of each group; ``hosts`` maps names and addresses to names.

    Each group is checked by itself first, and only then for loops of groups.
    """
    hollow: dict[str, Sequence[str]] = {group.name: () for group in groups}
    group_faults = [fault for group in groups for fault in _group_faults(group, hollow, hosts)]
    faults.extend(group_faults)
    members = {group.name: group.members for group in groups}
    resolved = {}
    for group in () if group_faults else groups:
        try:
            names = _expand_names(f"@{group.name}", group.where, members)
            resolved[group.name] = tuple(dict.fromkeys(hosts[name] for name in names))
        except ConfigError as error:
            faults.append(error)
    return resolved


def _group_faults(
    group: Grouping, groups: Mapping[str, Sequence[str]], hosts: Mapping[str, str]
) -> Iterator[ConfigError]:
    if not _GROUP_NAME.fullmatch(group.name) or group.name == "all":
        hint = "@all is every host" if group.name == "all" else "letters, digits, '.', '_' and '-'"
        yield ConfigError(
            f"expected a group name, got '{show_key(group.name)}'", where=group.where, hint=hint
        )
    for member in group.members:
        try:
            unknown = [
                word for word in _expand_names(member, group.where, groups) if word not in hosts
            ]
        except ConfigError as error:
            yield error
            continue
        for word in unknown[:1]:
            hint = f"declare it under hosts:{nearest(word, hosts)}"
            yield ConfigError(
                f"expected known hosts, got {word[:60]!r}", where=group.where, hint=hint
            )
