"""The ssh arguments of an Ansible inventory, ``ansible_ssh_common_args`` and its like, as ssh settings.

Only what has a plain meaning for orch is read: a jump host (``-J``, ``ProxyJump``, or ``ProxyCommand ssh -W``), port, user and
key. Options that only affect speed or output of OpenSSH are dropped; everything else is refused.

>>> settings("-o ControlMaster=auto -o ProxyJump=me@gate:2222 -p 2200")
({'jump': 'me@gate:2222', 'port': 2200}, '')
>>> settings('-o ProxyCommand="ssh -W %h:%p -q me@gate"')
({'jump': 'me@gate'}, '')
>>> settings("-F other.conf")
({}, '-F')
"""

from __future__ import annotations

import shlex
from typing import Any

__all__ = ["settings"]

_MEANING = {"proxyjump": "jump", "port": "port", "user": "user", "identityfile": "key"}
_FLAGS = {"-J": "proxyjump", "-p": "port", "-l": "user", "-i": "identityfile"}
_WITHOUT_EFFECT = (
    "controlmaster", "controlpersist", "controlpath", "serveraliveinterval", "serveralivecountmax", "tcpkeepalive",
    "compression", "loglevel", "forwardagent", "forwardx11", "batchmode", "preferredauthentications",
    "passwordauthentication", "identitiesonly",
)  # fmt: skip
_SILENT_FLAGS = ("-C", "-q", "-a", "-x", "-T", "-4")


def settings(text: str) -> tuple[dict[str, Any], str]:
    """Return the ssh settings in these arguments by key of ``ssh:``, and the first argument that orch does not support."""
    try:
        words = shlex.split(text)
    except ValueError:
        return {}, text[:60]
    values: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if word in _SILENT_FLAGS:
            continue
        flag, rest = word[:2], word[2:]
        if flag not in ("-o", *_FLAGS) or not (rest or words):
            return {}, word
        argument = rest or words.pop(0)
        name, value = (_FLAGS[flag], argument) if flag in _FLAGS else _option(argument)
        if name == "proxycommand":
            name, value = "proxyjump", _through(value)
        if name in _WITHOUT_EFFECT:
            continue
        if name not in _MEANING or not value or (name == "port" and not value.isdigit()):
            return {}, f"{flag} {argument}"[:80]
        values.setdefault(_MEANING[name], int(value) if name == "port" else value)  # ssh uses the first value
    return values, ""


def _option(argument: str) -> tuple[str, str]:
    """Return name and value of ``Name=value`` or ``Name value``."""
    name, separator, value = argument.partition("=")
    if not separator or " " in name.strip():
        name, _, value = argument.strip().partition(" ")
    return name.strip().lower(), value.strip()


def _through(command: str) -> str:
    """Return the jump host of ``ssh -W %h:%p [-q] [-p PORT] HOST``, empty for any other command."""
    try:
        words = [word for word in shlex.split(command) if word != "-q"]
    except ValueError:
        return ""
    if words[:1] != ["ssh"] or "-W" not in words or words[words.index("-W") + 1 : words.index("-W") + 2] != ["%h:%p"]:
        return ""
    place = words.index("-W")
    rest = words[1:place] + words[place + 2 :]
    port = ""
    if "-p" in rest[:-1]:
        place = rest.index("-p")
        port = f":{rest[place + 1]}"
        rest = rest[:place] + rest[place + 2 :]
    return f"{rest[0]}{port}" if len(rest) == 1 and rest[0][0] != "-" else ""
