"""Command lines of ssh: to log in as the user's configuration and the inventory say, and to use a
master.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.transport.ssh.config import Endpoint
from orchestrator.transport.trust import Trust

_NOTHING_ELSE = (
    "BatchMode=no", "ClearAllForwardings=yes", "ControlPersist=no", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no",
    "RemoteCommand=none", "RequestTTY=no", "Tunnel=no", "UpdateHostKeys=no",
)  # fmt: skip
"""A connection for commands of orch has no other purpose, whatever the user's configuration adds
for people.
"""

_ALIVE = ("ServerAliveInterval=15", "ServerAliveCountMax=4")


def program() -> str:
    """Return the path of ssh. Raises ConfigError without one."""
    path = shutil.which("ssh")
    if path is None:
        raise ConfigError(
            "expected the program ssh in PATH, found none",
            hint="install openssh-client, or use transport: ssh",
        )
    return path


def login_command(
    host: Host, endpoint: Endpoint, trust: Trust, socket: Path, *, through: str
) -> list[str]:
    """Return the command that logs in to ``endpoint`` and becomes a master at ``socket``.
    ``through`` is a ProxyCommand.

    Unknown host keys are refused, or with ``trust.accept_new`` written to the project's store, the
    first of the files: files of the user are never written.
    """
    options = [
        *_NOTHING_ELSE,
        *_ALIVE,
        f"ConnectTimeout={max(1, round(endpoint.connect_timeout_s))}",
        "CheckHostIP=no",
    ]
    options.append(f"StrictHostKeyChecking={'accept-new' if trust.accept_new else 'yes'}")
    options += ["HashKnownHosts=no", "GlobalKnownHostsFile=/dev/null"]
    options.append(
        "UserKnownHostsFile="
        + " ".join(f'"{_literal(path)}"' for path in (trust.store, *endpoint.known_hosts))
    )
    if through or not endpoint.proxy_command:
        options.append(f"ProxyCommand={through or 'none'}")
    command = [program(), *_options_of_host(host), "-v", "-M", "-N", "-T", "-S", _literal(socket)]
    command += ["-l", endpoint.user, "-p", str(endpoint.port)]
    if host.ssh.key is not None and endpoint.keys == (Path(host.ssh.key).expanduser(),):
        command += ["-i", _literal(endpoint.keys[0]), "-o", "IdentitiesOnly=yes"]
    return [*command, *(word for option in options for word in ("-o", option)), "--", endpoint.name]


def master_command(socket: Path, *words: str) -> list[str]:
    """Return a command that does something through the master at ``socket``, and never connects by
    itself without one.
    """
    return [
        program(),
        "-F",
        "none",
        "-S",
        _literal(socket),
        "-o",
        "ControlMaster=no",
        "-o",
        "ProxyCommand=false",
        *words,
    ]


def forward_command(socket: Path, name: str) -> str:
    """Return the ProxyCommand that reaches a server through the master of a jump host."""
    return " ".join(map(_quote, [*master_command(socket, "-W"), "[%h]:%p", "--", name]))


def _options_of_host(host: Host) -> list[str]:
    if host.ssh.config is None:
        return []
    return ["-F", str(Path(host.ssh.config).expanduser())]


def _literal(path: Path) -> str:
    """Return a path in which ssh expands nothing."""
    return str(path).replace("%", "%%")


def _quote(word: str) -> str:
    if word == "[%h]:%p":
        return word
    return "'" + word.replace("%", "%%").replace("'", "'\\''") + "'"
