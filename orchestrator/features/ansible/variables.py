"""Read the variables of a host in an Ansible inventory as orch's own keys.

Connection variables become ssh settings; ``gpus``, ``slots``, ``env`` and ``expect`` mean the same
as in orch's own files; all others go into ``vars``. Of connection variables that orch does not use,
and of values that it cannot use, the names are kept (`Unread`), to be said once. A template or an
encrypted value where it decides to which machine orch would connect is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.features.ansible import ssh_args
from orchestrator.inventory import fold
from orchestrator.inventory.schema import HostEntry
from orchestrator.inventory.values import KeyPath
from orchestrator.yamlfile import Tagged

__all__ = ["USED", "Unread", "Var", "entry_of"]

_ADDRESS: Mapping[str, KeyPath] = {
    "ansible_host": ("address",),
    "ansible_ssh_host": ("address",),
    "ansible_port": ("ssh", "port"),
    "ansible_ssh_port": ("ssh", "port"),
    "ansible_user": ("ssh", "user"),
    "ansible_ssh_user": ("ssh", "user"),
    "ansible_private_key_file": ("ssh", "key"),
    "ansible_ssh_private_key_file": ("ssh", "key"),
}
"""Of two names of one setting, the later one wins in Ansible, wherever it is set."""
_UNSET = {
    key: (None, "") for key, path in _ADDRESS.items() if path not in (("address",), ("ssh", "port"))
}
"""A user or key that is empty is none to Ansible, as a template of Terraform may write it."""
_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_OF_ORCH = ("gpus", "slots", "env", "expect")
_NUMBERS = {"ansible_port", "ansible_ssh_port", "gpus", "slots"}
_UNREAD = re.compile(
    r"ansible_(password|become.*|ssh_.*|scp_.*|sftp_.*|host_key_checking|timeout|paramiko_.*|remote_user|transport|shell_type)"
)
"""Connection variables of Ansible that orch does not use."""
_CONNECTIONS = (
    "ssh",
    "smart",
    "paramiko",
    "paramiko_ssh",
    "ansible.builtin.ssh",
    "ansible.builtin.paramiko_ssh",
)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
USED = re.compile(
    r"ansible_\w+|gpus|slots|env|expect|python|runner_python|interface|workdir|cuda_visible_devices|cpu_binding|\w+_dir"
)
"""The variables that are taken from files of ``group_vars`` and ``host_vars``."""
_KNOWN = re.compile(r"(?!ansible_)(?:data_dir|(?:(?!_dir)\w)+)")
"""The variables that are named if their values cannot be used: not the directories of everything
that Ansible installs.
"""
_MOST_NAMED = 3
_BY_ARGUMENTS = (
    "orch reads a jump host (-J, ProxyJump, ProxyCommand ssh -W), port, user, key and -F; write others under ssh: in an orch "
    "inventory or in the user's ssh configuration"
)


@dataclass(frozen=True, slots=True)
class Var:
    """One variable and where it was written."""

    value: Any
    where: str


@dataclass(slots=True)
class Unread:
    """The parts of an inventory that orch does not use: names of connection variables; variables by the
    reason why their values cannot be used; encrypted files; hosts that are reached in another way
    than by ssh, by connection."""

    connection: dict[str, None] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)

    def words(self) -> tuple[str, ...]:
        """Return one line that names all of it, or nothing."""
        parts = [", ".join(sorted(self.connection))] if self.connection else []
        for reason in dict.fromkeys(self.values.values()):
            names = [name for name, why in self.values.items() if why == reason]
            parts.append(f"{', '.join(names)} ({reason})")
        files = list(self.files)
        more = f" and {len(files) - _MOST_NAMED} more files" if len(files) > _MOST_NAMED else ""
        parts += [f"{', '.join(files[:_MOST_NAMED])}{more} (encrypted)"] if files else []
        parts += [
            f"{fold(names)} (connection {kind}, not ssh)" for kind, names in self.others.items()
        ]
        return (f"not read: {'; '.join(parts)}",) if parts else ()


def entry_of(
    name: str,
    variables: Mapping[str, Var],
    place: str,
    unread: Unread,
    faults: dict[str, ConfigError],
) -> HostEntry | None:
    """Return a host with its merged variables under orch's own keys; None for one that is not
    reached by ssh.

    Adds refusals to ``faults``, by place.
    """
    connection = variables.get("ansible_connection")
    if connection and connection.value not in (None, *_CONNECTIONS):
        kind = _unusable(connection.value) or str(connection.value)
        unread.others.setdefault(kind, []).append(name)
        return None
    values: dict[str, Any] = {}
    places: dict[KeyPath, str] = {(): place}
    for key in _ordered(variables):
        variable = variables[key]
        if path := _path(key, variable, unread, faults):
            inner = values
            for part in path[:-1]:
                inner = inner.setdefault(str(part), {})
            inner[str(path[-1])] = _scalar(key, variable.value)
            places[path] = variable.where
    for key in _ARGUMENTS:
        if key in variables and variables[key].value:
            _add_arguments(key, variables[key], values, places, unread, faults)
    return HostEntry(
        name,
        values,
        lambda path: next(
            places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in places
        ),
    )


def _ordered(variables: Mapping[str, Var]) -> list[str]:
    """Return the names, the address last and in the order in which Ansible takes them."""
    return [
        *(key for key in variables if key not in _ADDRESS),
        *(key for key in _ADDRESS if key in variables),
    ]


def _path(key: str, variable: Var, unread: Unread, faults: dict[str, ConfigError]) -> KeyPath:
    """Return the key path of a variable in orch's own schema, empty for a variable that orch does
    not use.
    """
    value, reason = variable.value, _unusable(variable.value)
    if key in _ADDRESS or key in _ARGUMENTS:
        if reason:
            message = f"expected a plain value, got {reason}"
            hint = "write the value itself; orch evaluates no Jinja and opens no vault"
            faults.setdefault(variable.where, ConfigError(message, where=variable.where, hint=hint))
        return (
            ()
            if reason or value in _UNSET.get(key, (None,)) or key in _ARGUMENTS
            else _ADDRESS[key]
        )
    if key.startswith("ansible_"):
        if _UNREAD.fullmatch(key) and value not in (None, False, "", "no", "false"):
            unread.connection[key] = None
        return ()
    if key == "env" and not reason and not isinstance(value, dict):
        reason = "not a mapping of environment variables"
    if reason and USED.fullmatch(key) and _KNOWN.fullmatch(key):
        unread.values[key] = reason
    if reason or value is None or not _WORD.fullmatch(key):
        return ()
    return (key,) if key in _OF_ORCH else ("vars", key)


def _unusable(value: Any) -> str:
    """Return why a value cannot be used: it holds a template, something encrypted, or nothing;
    empty if it can.
    """
    for part in _parts(value):
        if isinstance(part, Tagged):
            return (
                "an encrypted value" if part.tag == "!vault" else f"a value with the tag {part.tag}"
            )
        if isinstance(part, str) and ("{{" in part or "{%" in part):
            return "a template"
        if isinstance(part, str) and "\0" in part or part is None and value is not None:
            return "a value with nothing in it"
    return ""


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | dict):
        for item in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _parts(item)
    else:
        yield value


def _add_arguments(
    key: str,
    variable: Var,
    values: dict[str, Any],
    places: dict[KeyPath, str],
    unread: Unread,
    faults: dict[str, ConfigError],
) -> None:
    """Add the ssh settings in arguments for ssh; variables of their own win."""
    if variable.where in faults:
        return
    given = ssh_args.settings(str(variable.value))
    unread.connection |= {f"{name} of {key}": None for name in given.unread}
    if given.refused:
        message = f"expected arguments that orch supports, got {given.refused!r}"
        faults[variable.where] = ConfigError(message, where=variable.where, hint=_BY_ARGUMENTS)
    inner = values.setdefault("ssh", {})
    for name, value in given.values.items():
        if name not in inner:
            inner[name] = value
            places["ssh", name] = variable.where


def _scalar(key: str, value: Any) -> Any:
    """Return ``"22"`` as 22 and a user 1000 as text, because Ansible accepts numbers written as
    text, and the reverse.
    """
    if key in _NUMBERS:
        return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    return str(value) if key in _ADDRESS and type(value) in (int, float) else value
