"""The ssh arguments of an Ansible inventory, ``ansible_ssh_common_args`` and its like, as ssh
settings.

What has a meaning for orch is read: a jump host (``-J``, ``ProxyJump``, or ``ProxyCommand ssh
-W``), port, user, key, timeout,
``-F`` and ``UserKnownHostsFile``. Options that only affect speed or output are dropped, options that orch decides by itself
(such as ``StrictHostKeyChecking``: host keys are always verified) are named in ``unread``. An
argument by which the connection would go to another place, and which orch cannot follow, is
refused.

>>> settings("-o ControlMaster=auto -o ProxyJump=me@gate:2222 -p 2200")
Arguments(values={'jump': 'me@gate:2222', 'port': 2200}, unread=(), refused='')
>>> settings('-o ProxyCommand="ssh -W %h:%p -q me@gate" -o StrictHostKeyChecking=no')
Arguments(values={'jump': 'me@gate'}, unread=('StrictHostKeyChecking',), refused='')
>>> settings("-o ProxyCommand='nc %h %p'")
Arguments(values={}, unread=(), refused='-o ProxyCommand=nc %h %p')
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Arguments", "settings"]

_MEANING = {
    "proxyjump": "jump", "port": "port", "user": "user", "identityfile": "key", "userknownhostsfile": "known_hosts",
    "connecttimeout": "connect_timeout_s", "configfile": "config",
}  # fmt: skip
_NUMBERS = ("port", "connecttimeout")
_FLAGS = {"-J": "proxyjump", "-p": "port", "-l": "user", "-i": "identityfile", "-F": "configfile"}
_WITHOUT_EFFECT = (
    "controlmaster", "controlpersist", "controlpath", "serveraliveinterval", "serveralivecountmax", "tcpkeepalive",
    "compression", "loglevel", "forwardagent", "forwardx11", "forwardx11trusted", "batchmode", "preferredauthentications",
    "passwordauthentication", "pubkeyauthentication", "kbdinteractiveauthentication", "challengeresponseauthentication",
    "identitiesonly", "connectionattempts", "requesttty", "visualhostkey", "escapechar",
)  # fmt: skip
_ELSEWHERE = (
    "proxycommand",
    "hostname",
    "bindaddress",
    "bindinterface",
    "certificatefile",
    "addressfamily",
)
"""Options that decide to where a connection goes, from where, or as whom."""
_SILENT_FLAGS = frozenset("CqaAxXTtnNvYKk4")


@dataclass(frozen=True, slots=True)
class Arguments:
    """``values`` by key of ``ssh:``, the names of options without a counterpart, and the first
    argument that is refused.
    """

    values: dict[str, Any]
    unread: tuple[str, ...] = ()
    refused: str = ""


def settings(text: str) -> Arguments:
    """Return what the arguments mean to orch; without values if one of them is refused."""
    try:
        words = shlex.split(text)
    except ValueError:
        return Arguments({}, refused=text[:60])
    values: dict[str, Any] = {}
    unread: list[str] = []
    for option in _options(words):
        if isinstance(option, str):
            return Arguments({}, refused=option[:80])
        name, value, shown = option
        key = name.lower()
        if key == "proxycommand":
            through = _through(value)
            unread += through.unread if through else ()
            key, value = "proxyjump", through.jump if through else ""
            if not value and through:
                continue
        if key in _WITHOUT_EFFECT:
            continue
        if key == "userknownhostsfile" and (value == "/dev/null" or " " in value):
            unread.append(name)
        elif key in _MEANING and value and (key not in _NUMBERS or value.isdigit()):
            values.setdefault(
                _MEANING[key], int(value) if key in _NUMBERS else value
            )  # ssh uses the first value
        elif key in _MEANING or key in _ELSEWHERE:
            return Arguments({}, refused=shown[:80])
        else:
            unread.append(name)
    return Arguments(values, tuple(dict.fromkeys(unread)))


def _options(words: list[str]) -> Iterator[tuple[str, str, str] | str]:
    """Yield (name, value, as written) of each option, or the text of an argument that is none."""
    words = list(words)
    while words:
        word = words.pop(0)
        flag, rest = word[:2], word[2:]
        if len(word) > 1 and word[0] == "-" and set(word[1:]) <= _SILENT_FLAGS:
            continue
        if flag not in ("-o", *_FLAGS) or not (rest or words):
            yield word
            return
        argument = rest or words.pop(0)
        name, value = (_FLAGS[flag], argument) if flag in _FLAGS else _option(argument)
        yield name, value, f"{flag} {argument}"


def _option(argument: str) -> tuple[str, str]:
    """Return name and value of ``Name=value`` or ``Name value``."""
    name, separator, value = argument.partition("=")
    if not separator or " " in name.strip():
        name, _, value = argument.strip().partition(" ")
    return name.strip(), value.strip().strip('"')


@dataclass(frozen=True, slots=True)
class _Through:
    jump: str
    unread: tuple[str, ...]


def _through(command: str) -> _Through | None:
    """Return the jump host of ``ssh -W %h:%p [options] HOST``; None for any other command.

    Options for the connection to the jump host itself are named as unread, except its port and
    user: orch takes the others from the user's ssh configuration.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    targets = [index for index, word in enumerate(words) if word == "-W"]
    if not words or words[0].rpartition("/")[2] != "ssh" or len(targets) != 1:
        return None
    at = targets[0]
    if words[at + 1 : at + 2] not in (["%h:%p"], ["[%h]:%p"]):
        return None
    rest, host = words[1:at] + words[at + 2 :], ""
    login: dict[str, str] = {}
    unread: list[str] = []
    while rest:
        if not rest[0].startswith("-"):
            if host:
                return None
            host = rest.pop(0)
            continue
        taken = 1 if set(rest[0][1:]) <= _SILENT_FLAGS or len(rest[0]) > 2 else 2
        for option in _options(rest[:taken]):
            if isinstance(option, str):
                return None
            name, value, _ = option
            if name.lower() in ("port", "user"):
                login.setdefault(name.lower(), value)
            elif name.lower() in _ELSEWHERE or name in ("proxyjump", "configfile"):
                return None
            elif name.lower() not in _WITHOUT_EFFECT:
                unread.append(
                    f"{'IdentityFile' if name == 'identityfile' else name} of ProxyCommand"
                )
        rest = rest[taken:]
    user = "" if "@" in host or "user" not in login else f"{login['user']}@"
    port = f":{login['port']}" if "port" in login else ""
    return _Through(f"{user}{host}{port}", tuple(unread)) if host else None
