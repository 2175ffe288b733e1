"""The hosts of an Ansible inventory, their variables merged, under orch's own keys.

Of the variables only those that orch uses are taken: others may be secrets. A value that is no plain
one (a template, a vault's) is refused where it decides how a host is reached; others are named once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from orchestrator.errors import ConfigError
from orchestrator.grouping import group_pairs
from orchestrator.inventory import Inventory, expand, fold
from orchestrator.inventory.hostset import alias_of
from orchestrator.inventory.schema import Grouping, HostEntry, build
from orchestrator.inventory.values import KeyPath
from orchestrator.yamlfile import Tagged

_LOGIN: Mapping[str, KeyPath] = {
    "ansible_host": ("address",),
    "ansible_ssh_host": ("address",),
    "ansible_port": ("ssh", "port"),
    "ansible_ssh_port": ("ssh", "port"),
    "ansible_user": ("ssh", "user"),
    "ansible_ssh_user": ("ssh", "user"),
    "ansible_private_key_file": ("ssh", "key"),
    "ansible_ssh_private_key_file": ("ssh", "key"),
}
"""Of two names of one setting, the later one wins in Ansible."""
_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_CONNECTION = "ansible_connection"
_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")
_KEYS = ("gpus", "slots", "env", "expect")
_VARS = re.compile(
    r"python|runner_python|interface|workdir|cuda_visible_devices|cpu_binding|(?!ansible_)\w+_dir"
)
_USED = re.compile("|".join([*_LOGIN, *_ARGUMENTS, _CONNECTION, *_KEYS, _VARS.pattern]))
"""The variables that are taken."""
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
_NEIGHBOURS = ("ansible_scp_extra_args", "ansible_ssh_private_key")
"""Variables of Ansible that orch does not take, with names almost as those that it does."""
_OF_ANSIBLE = (*_LOGIN, *_ARGUMENTS, _CONNECTION)
_OF_ORCH = (*_KEYS, "python", "runner_python", "interface", "workdir", "cuda_visible_devices", "cpu_binding")  # fmt: skip
_CLOSE_OF_ANSIBLE, _CLOSE = 0.9, 0.8
"""Names of Ansible's own are closer to each other: ``ansible_hostname`` is no ``ansible_host``."""
_FLAGS = {"J": "ProxyJump", "p": "Port", "l": "User", "i": "IdentityFile", "F": "ConfigFile"}
_SILENT_FLAGS = re.compile("-[CqaAxXTtnNvk4]+")
_OPTION = re.compile(r'\s*(\w+)(?:\s*=\s*|\s+)"?(.*?)"?\s*')
_SETTINGS = {"proxyjump": "jump", "proxycommand": "jump", "port": "port", "user": "user", "identityfile": "key",
             "configfile": "config", "userknownhostsfile": "known_hosts"}  # fmt: skip
_VALUES = {"proxyjump": r"(?!none$)[^\s%]+", "port": "[0-9]{1,5}", "identityfile": "[^%]+"}
_ELSEWHERE = ("hostname", "bindaddress", "bindinterface", "addressfamily", "certificatefile",
              "canonicalizehostname", "canonicaldomains")  # fmt: skip
"""Options that decide to where a connection goes, from where, or as whom."""
_PROXY_OPTIONS = (
    r"(?: -q| -p \d+| -W (?:%h:%p|\[%h\]:%p)| -o (?:StrictHostKeyChecking|UserKnownHostsFile)=\S+)*"
)
_THROUGH = re.compile(rf"(?:/\S+/)?ssh{_PROXY_OPTIONS} ([\w.][\w.@-]*){_PROXY_OPTIONS}")
_BY_ARGUMENTS = (
    "orch reads a jump host (-J, ProxyJump, ProxyCommand ssh -W), port, user, key and -F; write others under ssh: in an orch "
    "inventory or in the user's ssh configuration"
)


class Var(NamedTuple):
    """One variable and where it was written."""

    value: Any
    where: str


@dataclass(slots=True)
class Group:
    """One group as written."""

    where: str
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    vars: dict[str, Var] = field(default_factory=dict)


def is_told(key: str) -> bool:
    """Return True for a variable that is taken, or of which there is something to say."""
    return bool(_USED.fullmatch(key) or key in _PASSWORDS or _meant(key))


def _meant(key: str) -> str:
    """Return the variable that another one nearly is; empty if it is near none.

    >>> [_meant(key) for key in ("ansible_hots", "inteface", "ansible_hostname", "rack")]
    ['ansible_host', 'interface', '', '']
    """
    if _USED.fullmatch(key) or key in (*_PASSWORDS, *_NEIGHBOURS):
        return ""
    if key.startswith("ansible_"):
        return "".join(get_close_matches(key, _OF_ANSIBLE, 1, _CLOSE_OF_ANSIBLE))
    return "".join(get_close_matches(key, _OF_ORCH, 1, _CLOSE))


def needs_ansible(got: str, where: str) -> ConfigError:
    """Return the refusal of what only Ansible reads, with two ways to read it."""
    hint = (
        "pip install ansible-core, and orch asks ansible-inventory; "
        "or write an inventory of orch, such as inventory/cluster.yaml"
    )
    message = f"expected hosts, groups and plain variables, got {got}"
    return ConfigError(message, where=where, hint=hint)


def inventory_of(
    source: str, groups: Mapping[str, Group], hosts: Mapping[str, Mapping[str, Var]]
) -> Inventory:
    """Return the inventory of hosts with their merged variables. Raises Faults of ConfigError."""
    entries = {}
    others: dict[str, list[str]] = {}
    unread: dict[str, str] = {}
    faults = {}
    for name, variables in hosts.items():
        connection = variables.get(_CONNECTION, Var("ssh", ""))
        kind = str(connection.value)
        if not _is_plain(connection.value):
            faults[connection.where] = _no_value(connection.where)
        elif kind.removeprefix("ansible.builtin.") not in _SSH:
            others.setdefault(kind, []).append(name)
        elif not _is_one(name):
            faults[name] = needs_ansible(f"the host {name[:60]!r}", source)
        else:
            entries[name] = _host_entry(name, variables, source, faults, unread)
    texts = [f"{fold(names)} (connection {kind}, not ssh)" for kind, names in others.items()]
    if texts and not entries and not faults:
        message = f"expected a host that is reached by ssh, got {'; '.join(texts)}"
        raise ConfigError(message, where=source)
    by_reason = group_pairs((reason, key) for key, reason in unread.items())
    texts += [f"{', '.join(keys)} ({reason})" for reason, keys in by_reason.items()]
    groupings = []
    for name, group in groups.items():
        if name != "all" and not faults:
            members = [alias_of(host) for host in group.hosts if host in entries]
            members += [f"@{child}" for child in group.children]
            groupings.append(Grouping(name, members, group.where))
    built = build(source, list(entries.values()), groupings, faults=list(faults.values()))
    notes = (f"not read: {'; '.join(texts)}",) if texts else ()
    return replace(built, notes=(*notes, *built.notes))


def _is_one(name: str) -> bool:
    """Return True if a name is one host to orch, too."""
    try:
        return expand(name) == [name]
    except ConfigError:
        return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return "__ansible_vault" not in value and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, Tagged) and not re.search("{[{%#]|\0", str(value))


def _no_value(where: str) -> ConfigError:
    hint = "write the value itself; orch evaluates no Jinja and opens no vault"
    message = "expected a plain value, got a template or an encrypted one"
    return ConfigError(message, where=where, hint=hint)


def _host_entry(
    name: str,
    variables: Mapping[str, Var],
    source: str,
    faults: dict[str, ConfigError],
    unread: dict[str, str],
) -> HostEntry:
    """Return a host with its values under orch's own keys. Adds refusals to ``faults``, by place,
    and to ``unread`` other variables that somebody may miss, each with the reason.
    """
    values: dict[str, Any] = {"ssh": {}, "vars": {}}
    places: dict[KeyPath, str] = {(): f"{source}: {name}"}
    for key in dict.fromkeys((*_LOGIN, *_ARGUMENTS, *variables)):
        if key not in variables or key == _CONNECTION:
            continue
        value, where = variables[key]
        if not _USED.fullmatch(key):
            meant = _meant(key)
            if key in _PASSWORDS:
                unread[key] = "orch asks for passwords in a terminal"
            elif meant in _OF_ANSIBLE:
                message = f"expected a variable of Ansible, got {key[:60]}"
                hint = f"did you mean {meant}?"
                faults[where] = ConfigError(message, where=where, hint=hint)
            elif meant:
                unread[key] = f"did you mean {meant}?"
            continue
        if not _is_plain(value) or (key == "env" and not isinstance(value, dict)):
            if key in _LOGIN or key in _ARGUMENTS:
                faults[where] = _no_value(where)
            else:
                unread[key] = "no plain value"
        elif key in _ARGUMENTS:
            try:
                for setting, given in _ssh_settings(str(value or "")):
                    if values["ssh"].setdefault(setting, given) != given:
                        raise ValueError(f"two values of {setting}")
                    places.setdefault(("ssh", setting), where)
            except ValueError as error:
                message = f"expected arguments that orch supports, got {str(error)[:80]!r}"
                faults[where] = ConfigError(message, where=where, hint=_BY_ARGUMENTS)
        elif value not in (None, "") or key.endswith(("host", "port")):
            path = _LOGIN.get(key) or ((key,) if key in _KEYS else ("vars", key))
            if key == "cuda_visible_devices" and isinstance(value, list):
                value = ",".join(map(str, value))  # Ansible reads 0,1 as a tuple
            if key.endswith("port") and str(value).isdecimal():
                value = int(value)
            *inside, last = map(str, path)
            holder = values[inside[0]] if inside else values
            holder[last] = value
            places[path] = where
    return HostEntry(
        name,
        values,
        lambda path: next(
            places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in places
        ),
    )


def _ssh_settings(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the ssh settings in arguments for ssh. Raises ValueError with the first argument that
    may lead elsewhere; options that only affect speed, output or the check of host keys, which
    orch does in its own way, are left out.

    >>> dict(_ssh_settings("-o ControlMaster=auto -o ProxyJump=me@gate:2222 -p 2200"))
    {'jump': 'me@gate:2222', 'port': 2200}
    >>> dict(_ssh_settings('-o ProxyCommand="ssh -W %h:%p -q -p 22 me@gate" -C'))
    {'jump': 'me@gate:22'}
    """
    words = shlex.split(text)
    while words:
        word = words.pop(0)
        if _SILENT_FLAGS.fullmatch(word):
            continue
        flag, argument = word[1:2], word[2:]
        if word[0] != "-" or flag not in ("o", *_FLAGS) or not (argument or words):
            raise ValueError(word)
        argument = argument or words.pop(0)
        option = _OPTION.fullmatch(f"{_FLAGS[flag]}={argument}" if flag in _FLAGS else argument)
        key, value = (option[1].lower(), option[2]) if option else ("hostname", "")
        if key == "proxycommand":
            through = _THROUGH.fullmatch(value)
            port = re.search(r" -p (\d+)", value)
            value = through[1] if through and " -W " in value else ""
            value += f":{port[1]}" if value and port else ""
        if key == "userknownhostsfile" and value == "/dev/null":
            continue
        if key in _SETTINGS and re.fullmatch(_VALUES.get(key, r"[^\s%]+"), value):
            yield _SETTINGS[key], int(value) if key == "port" else value
        elif key in _SETTINGS or key in _ELSEWHERE:
            raise ValueError(f"-{flag} {argument}")
