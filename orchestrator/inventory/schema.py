"""The schema of ``inventory/*.yaml``, and the checks that hosts pass whatever format they were written in.

`parse` understands our own YAML; `build` turns declared hosts (`HostEntry`) and groups (`Grouping`) of any format into an
`Inventory`. All faults of a source are found and reported together: where, what was expected, what came, and a hint.
What a single host may say is `orchestrator.inventory.values`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NoReturn, Protocol

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory.hosts import Host, Inventory, SshSettings
from orchestrator.inventory.hostset import MAX_HOSTS, alias_of, check_address, check_alias, expand, nearest, same_machine_key
from orchestrator.inventory.values import GroupValues, HostValues, KeyPath, MachineValues, Where, checked, found, unknown_key

__all__ = ["InventoryDocument", "HostEntry", "Grouping", "build", "parse", "refuse"]

_SCHEMA = 1
_TOP_KEYS = ("schema", "defaults", "groups", "hosts", "secrets")
_MAX_FAULTS = 100
_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class InventoryDocument(Protocol):
    """What a YAML loader gives: plain values, and the line of each."""

    @property
    def value(self) -> Any:
        """The whole document."""

    def line(self, path: KeyPath = ()) -> int:
        """Return the line of the value at ``path``."""


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One declaration of hosts: an expression, its values as our YAML has them, and where each of them was written."""

    hosts: str
    values: Any
    where: Where


@dataclass(frozen=True, slots=True)
class Grouping:
    """A group as declared: expressions of hosts and other groups, where it was written, and what is expected of its hosts."""

    name: str
    members: Sequence[str]
    where: str
    expect: Mapping[str, Any] = field(default_factory=dict)


def parse(document_value: Any, line_of: Callable[[KeyPath], int], source: str) -> Inventory:
    """Return the inventory that a document in our own schema declares. Raises Faults of ConfigError, all of the file."""

    def where(path: KeyPath) -> str:
        place = f"{source}:{line_of(path)}"
        return f"{place}: {'.'.join(map(_shown, path))}" if path else place

    if not isinstance(document_value, dict):
        refuse([ConfigError(f"expected a mapping with schema: and hosts:, got {found(document_value)}", where=where(()))])
    faults = [unknown_key(key, _TOP_KEYS, where((key,))) for key in document_value if key not in _TOP_KEYS]
    if type(version := document_value.get("schema")) is not int or version != _SCHEMA:
        hint = "a higher number needs a newer orch" if type(version) is int else f"write schema: {_SCHEMA}"
        faults.append(ConfigError(f"expected {_SCHEMA}, got {found(version)}", where=where(("schema",)), hint=hint))
    defaults = checked(MachineValues, document_value.get("defaults", {}), _under(where, "defaults"), faults)
    hosts = _section(document_value, "hosts", {}, where, faults)
    entries = [HostEntry(name, {} if body is None else body, _under(where, "hosts", name)) for name, body in hosts.items()]
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
    """Check and combine what a source declares. Raises Faults with ``faults``, found so far, and all that are found here."""
    every = list(faults)
    placed: list[tuple[Host, str]] = []
    for entry in entries:
        placed.extend(_hosts(entry, defaults or {}, every))
        if len(placed) > MAX_HOSTS:
            refuse([*every, ConfigError(f"expected at most {MAX_HOSTS} hosts, got more", where=source)])
    if not entries:
        every.append(ConfigError("expected at least one host, got none", where=source, hint="declare one, such as node1"))
    every.extend(_clashes(placed))
    hosts = tuple(host for host, _ in placed)
    names = {name: name for entry in entries for name in _declared(entry)}
    resolved = _resolved(groups, _unique_addresses(hosts) | names, every)
    if every:
        refuse(every)
    classes = [(resolved[group.name], group.expect) for group in groups if group.expect]
    expected = (defaults or {}).get("expect", {})
    return Inventory(source, tuple(_expecting(host, expected, classes) for host in hosts), resolved, tuple(hidden))


def _expecting(host: Host, defaults: Mapping[str, Any], classes: Sequence[tuple[Sequence[str], Mapping[str, Any]]]) -> Host:
    """Return a host with all that is expected of it: of every host, then of its groups as they are written, then its own."""
    found = dict(defaults)
    for names, expect in classes:
        found |= expect if host.name in names else {}
    return replace(host, expect={**found, **host.expect})


def refuse(faults: Sequence[ConfigError]) -> NoReturn:
    """Raise all faults together; past a hundred, the number of the others stands for them."""
    more = len(faults) - _MAX_FAULTS
    rest = [ConfigError(f"expected a sound inventory, got {more} more faults like these")] if more > 0 else []
    raise Faults([*faults[:_MAX_FAULTS], *rest])


def _under(where: Where, *prefix: str) -> Where:
    return lambda path: where((*prefix, *path))


def _shown(part: str | int) -> str:
    text = (str(part) if str(part).isprintable() else repr(part)[1:-1]) or "''"
    return text if len(text) <= 60 else text[:60] + "…"


def _section(document: Mapping[str, Any], key: str, empty: Any, where: Where, faults: list[ConfigError]) -> Any:
    value = document.get(key, empty)
    if type(value) is type(empty):
        return value
    word = "a mapping of names" if empty == {} else "a list of names"
    faults.append(ConfigError(f"expected {word}, got {found(value)}", where=where((key,))))
    return empty


def _groupings(section: Mapping[str, Any], where: Where, faults: list[ConfigError]) -> list[Grouping]:
    groupings = []
    for name, value in section.items():
        place, body = where(("groups", name)), {}
        if isinstance(value, dict):  # {hosts: …, expect: …}
            body = checked(GroupValues, value, _under(where, "groups", name), faults)
            value = value.get("hosts", [])
        members = value if isinstance(value, list) else [value]
        strange = [found(member) for member in members if not isinstance(member, str)]
        if members and not strange:
            groupings.append(Grouping(name, members, place, body.get("expect", {})))
        else:
            got = strange[0] if strange else "an empty list"
            message = f"expected hosts and @groups as text, got {got}"
            faults.append(ConfigError(message, where=place, hint='for example [node1, "@lab"]'))
    return groupings


def _secret_faults(secrets: Sequence[Any], holders: Iterable[Any], where: Where) -> Iterator[ConfigError]:
    """Yield a fault for each name or pattern that no ``env`` holds: misspelt, it would leave the real secret in plain sight."""
    environments = [holder.get("env") for holder in holders if isinstance(holder, dict)]
    known = {name for env in environments if isinstance(env, dict) for name in env}
    for index, name in enumerate(secrets):
        if not isinstance(name, str) or not any(fnmatchcase(each, name) for each in known):
            hint = f"a secret is the name of a variable under env:, or a pattern such as '*_TOKEN'{nearest(str(name), known)}"
            yield ConfigError(f"expected the name of a variable, got {found(name)}", where=where(("secrets", index)), hint=hint)


def _hosts(entry: HostEntry, defaults: Mapping[str, Any], faults: list[ConfigError]) -> Iterator[tuple[Host, str]]:
    """Yield the hosts of one entry and where they stand; after a bad one the rest of the entry is not looked at."""
    values = checked(HostValues, entry.values, entry.where, faults)
    place = entry.where(())
    address_place = entry.where(("address",)) if "address" in values else place
    try:
        if entry.hosts.strip() != entry.hosts or "@" in entry.hosts:
            check_alias(entry.hosts, place)
        words = _expanded(entry.hosts, place)
        addresses = _expanded(values["address"], address_place) if "address" in values else words
        if len(addresses) != len(words):
            hint = "ranges of both expand in step"
            raise ConfigError(f"expected {len(words)} addresses, got {len(addresses)}", where=address_place, hint=hint)
        for word, address in zip(words, addresses, strict=True):
            check_alias(alias_of(word), place)
            check_address(address, address_place)
            yield _host(alias_of(word), address, defaults, values), place
    except ConfigError as error:
        faults.append(error)


def _expanded(expression: str, where: str, groups: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    try:
        return expand(expression, groups or {})
    except ConfigError as error:
        raise ConfigError(error.message, where=where, hint=error.hint) from None


def _host(name: str, address: str, defaults: Mapping[str, Any], values: Mapping[str, Any]) -> Host:
    merged = {key: {**defaults.get(key, {}), **values.get(key, {})} for key in ("ssh", "env", "vars")}
    gpus = values.get("gpus", defaults.get("gpus"))
    slots = values.get("slots", defaults.get("slots", 1))
    expect = values.get("expect", {})
    return Host(name, address, gpus, slots, SshSettings(**merged["ssh"]), merged["env"], merged["vars"], expect)


def _clashes(placed: Sequence[tuple[Host, str]]) -> Iterator[ConfigError]:
    """Yield a fault for each host that another one already is: by name, by address and port, or by its name as an address."""
    names: dict[str, str] = {}
    machines: dict[tuple[Any, ...], str] = {}
    owners = {same_machine_key(host.address): host.name for host, _ in placed}
    for host, where in placed:
        name = unicodedata.normalize("NFKC", host.name).casefold()
        machine = (same_machine_key(host.address), host.ssh.port or 22, host.ssh.jump, host.ssh.config)
        if name in names:
            yield ConfigError(f"expected each host once, got {host.name!r} again", where=where, hint=f"first at {names[name]}")
        elif machine in machines:
            got = f"{machines[machine]!r} and {host.name!r} at {host.address} port {machine[1]}"
            yield ConfigError(f"expected one name for a machine, got {got}", where=where, hint="remove one of them")
        elif owners.get(name, host.name) != host.name and same_machine_key(host.address) != name:
            got = f"{host.name!r}, the address of {owners[name]!r}"
            yield ConfigError(f"expected a name that is no other host's address, got {got}", where=where)
        names.setdefault(name, where)
        machines.setdefault(machine, host.name)


def _declared(entry: HostEntry) -> list[str]:
    """Return the names that an entry means to declare, however wrong the rest of it is: groups may rightly hold them."""
    try:
        return [alias_of(word) for word in expand(entry.hosts)]
    except ConfigError:
        return []


def _unique_addresses(hosts: Sequence[Host]) -> dict[str, str]:
    counts = Counter(host.address for host in hosts)
    return {host.address: host.name for host in hosts if counts[host.address] == 1}


def _resolved(groups: Sequence[Grouping], known: Mapping[str, str], faults: list[ConfigError]) -> dict[str, tuple[str, ...]]:
    """Return each group's hosts by name. First what each group says itself is checked, then whether groups form a loop."""
    hollow: dict[str, Sequence[str]] = {group.name: () for group in groups}
    own = [fault for group in groups for fault in _group_faults(group, hollow, known)]
    faults.extend(own)
    members = {group.name: group.members for group in groups}
    resolved = {}
    for group in () if own else groups:
        try:
            names = _expanded(f"@{group.name}", group.where, members)
            resolved[group.name] = tuple(dict.fromkeys(known[name] for name in names))
        except ConfigError as error:
            faults.append(error)
    return resolved


def _group_faults(group: Grouping, groups: Mapping[str, Sequence[str]], known: Mapping[str, str]) -> Iterator[ConfigError]:
    if not _GROUP_NAME.fullmatch(group.name) or group.name == "all":
        hint = "@all is every host" if group.name == "all" else "letters, digits, '.', '_' and '-'"
        yield ConfigError(f"expected a group name, got {group.name[:60]!r}", where=group.where, hint=hint)
    for member in group.members:
        try:
            unknown = [word for word in _expanded(member, group.where, groups) if word not in known]
        except ConfigError as error:
            yield error
            continue
        for word in unknown[:1]:
            hint = f"declare it under hosts:{nearest(word, known)}"
            yield ConfigError(f"expected known hosts, got {word[:60]!r}", where=group.where, hint=hint)
