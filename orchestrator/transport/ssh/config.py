"""Resolve a host's SSH connection as OpenSSH would: its address, and the keys to use.

``ssh -G`` reads the user's configuration; on machines without ``ssh``, paramiko's reader of such
files does. The settings of the inventory override both.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path

from orchestrator.errors import ConfigError, TransportError
from orchestrator.inventory import Host, SshSettings
from orchestrator.procs import TooMuchOutput, run_program
from orchestrator.transport.protocols import OtherTransportNeeded
from orchestrator.transport.ssh.config_groups import likeness

Settings = Mapping[str, Sequence[str]]
"""Options by lower-case name, each with its values in order, as ``ssh -G`` prints them."""

_log = logging.getLogger("orchestrator.transport")
_MAX_HOPS = 8
_HOP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?P<address>\[[0-9A-Fa-f:.%\w]+\]|[^-\[\]:/@\s][^\[\]:/@\s]*)(?::(?P<port>\d{1,5}))?/?"
)
_DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_DEFAULT_KEY = re.compile(
    r"~/\.ssh/id_[a-z0-9_]+"
)  # ssh -G prints at least those three if no key is configured
_DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_asking = threading.Lock()
_answers: dict[tuple[object, ...], tuple[str, str, Settings]] = {}
"""By group of names with equal settings (`likeness`): the first name, its address, and the settings
from ``ssh -G``.
"""
MAX_STARTUPS = "did the host get too many connections at once? see MaxStartups and PerSourcePenalties in its sshd_config"
"""The hint for a server that closes connections before the log-in."""
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One SSH server on the way to a host: the host itself, or a jump host in front of it (named by
    ``label``).

    ``keys`` are the configured key files: if there are any, only they are offered. Otherwise the
    agent's keys and the existing ones of ``default_keys`` are offered. ``agent`` is the path of its
    socket, empty if it must not be used; with ``keys`` it only serves for a configured key that has
    a passphrase. ``known_as`` is the server's name in known-hosts files. ``name`` is its name in
    the inventory or a ProxyJump; the ssh configuration may turn it into another ``address``.
    ``control_path`` is where a shared connection of the user may listen, empty if none is
    configured.
    """

    host: str
    label: str
    name: str
    address: str
    port: int
    user: str
    keys: tuple[Path, ...]
    default_keys: tuple[Path, ...]
    agent: str
    known_as: str
    known_hosts: tuple[Path, ...]
    proxy_command: str
    connect_timeout_s: float
    control_path: str
    via: Endpoint | None

    @property
    def summary(self) -> str:
        """The destination of the connection and the keys that it may use, in words."""
        keys = (
            ", ".join(map(str, self.keys))
            or f"agent {self.agent or 'none'}, {', '.join(map(str, self.default_keys))}"
        )
        way = f", through {self.via.label}" if self.via else ""
        return f"{self.name} is {self.user}@{self.address} port {self.port}{way}; keys: {keys}; known as {self.known_as}"

    def error(self, kind: str, message: str, hint: str = "") -> TransportError:
        """Return an error about this server, with the name of the host that is reached through it."""
        return TransportError(message, kind=kind, hint=hint, host=self.host, where=self.label)

    def tell(self, step: str) -> None:
        """Report a step of a log-in to whoever debugs it (``-v``)."""
        _log.debug("%s: %s", f"{self.host} ({self.label})" if self.label else self.host, step)

    def beyond(self, kind: str, message: str, hint: str = "") -> OtherTransportNeeded:
        """Return an error about what paramiko cannot do at this server, and the program ssh can."""
        return OtherTransportNeeded(message, kind=kind, hint=hint, host=self.host, where=self.label)


def resolve(host: Host) -> Endpoint:
    """Return the endpoint of ``host``, with its jump hosts. Raises ConfigError for an invalid ssh
    configuration.
    """
    return _endpoint(host, "", host.address, host.ssh.user, host.ssh.port, host.ssh.jump, depth=0)


def _endpoint(
    host: Host,
    label: str,
    name: str,
    user: str | None,
    port: int | None,
    jump: str | None,
    depth: int,
) -> Endpoint:
    if depth > _MAX_HOPS:
        raise ConfigError(
            f"more than {_MAX_HOPS} jump hosts: is {name} its own jump host?",
            where=f"host {host.name}",
        )
    settings = _settings(host, name, user, port)
    address = _one(settings, "hostname", name)
    port_number = int(_one(settings, "port", "22"))
    login = _one(settings, "user", "") or _local_user()
    alias = _one(settings, "hostkeyalias", "")
    known_as = alias or (
        address.lower() if port_number == 22 else f"[{address.lower()}]:{port_number}"
    )
    tokens = _tokens(name, address, port_number, login, alias)
    keys, default_keys = _keys(host.ssh, settings, tokens, of_jump_host=depth > 0)
    via = _via(host, name, jump if jump is not None else _one(settings, "proxyjump", "none"), depth)
    return Endpoint(
        host=host.name,
        label=label,
        name=name,
        address=address,
        port=port_number,
        user=login,
        keys=keys,
        default_keys=default_keys,
        agent=""
        if not keys and _one(settings, "identitiesonly", "no") == "yes"
        else _agent(settings, tokens),
        known_as=known_as,
        known_hosts=_find_known_hosts(host.ssh, settings, tokens),
        proxy_command="" if via else _expand(_one(settings, "proxycommand", "none"), tokens),
        connect_timeout_s=_connect_timeout(host.ssh, settings),
        control_path=_control_path(settings),
        via=via,
    )


def _via(host: Host, name: str, jumps: str, depth: int) -> Endpoint | None:
    """Return the last of ``a,b,c``, which is reached through b, which is reached through a.

    A jump host that would be its own jump host (``Host *`` with ``ProxyJump``) is reached directly,
    as in OpenSSH.
    """
    if jumps.lower() in ("none", ""):
        return None
    *before, last = jumps.split(",")
    hop = _HOP.fullmatch(last.strip())
    if not hop or not 0 < int(hop["port"] or 22) < 65536:
        raise ConfigError(
            f"expected [user@]address[:port] as jump host, got {last!r}", where=f"host {host.name}"
        )
    address = hop["address"].strip("[]")
    if address == name:
        return None
    port = int(hop["port"]) if hop["port"] else None
    return _endpoint(
        host,
        f"jump host {address}",
        address,
        hop["user"],
        port,
        ",".join(before) or None,
        depth + 1,
    )


def _settings(host: Host, name: str, user: str | None, port: int | None) -> Settings:
    """Return ssh's settings for ``name``; of names with equal settings, ``ssh -G`` runs only for
    the first.
    """
    _require_configuration(host)
    ssh = _program(os.environ.get("PATH", ""))
    if ssh is None:
        return _read_without_ssh(host, name, user, port)
    group = likeness(host.ssh.config, _home(), name)
    if group is None:
        return _ask_ssh(ssh, host, name, user, port)
    lines, address = group
    key = (ssh, host.ssh.config, user, port, lines)
    with _asking:
        if key not in _answers:
            _answers[key] = (name, address, _ask_ssh(ssh, host, name, user, port))
        first, first_address, settings = _answers[key]
    if settings.get("hostname") != [
        first_address
    ]:  # `likeness` did not interpret the configuration as ssh does
        if first == name:
            return settings
        return _ask_ssh(ssh, host, name, user, port)
    return {**settings, "hostname": [address]}


def _require_configuration(host: Host) -> None:
    """Raise ConfigError if the inventory names an ssh configuration that does not exist; to ssh,
    ``none`` is no file.
    """
    if host.ssh.config in (None, "", "none"):
        return
    path = Path(host.ssh.config).expanduser()
    if not path.exists():
        raise ConfigError(
            "expected an ssh configuration, found no file",
            where=f"ssh.config {path.absolute()}",
            hint="" if path.is_absolute() else "a relative path starts at the current directory",
            host=host.name,
        )


def _ask_ssh(ssh: str, host: Host, name: str, user: str | None, port: int | None) -> Settings:
    command = [ssh, "-G"]
    if host.ssh.config is not None:
        command += ["-F", str(Path(host.ssh.config).expanduser())]
    if user is not None:
        command += ["-l", user]
    if port is not None:
        command += ["-p", str(port)]
    where = f"host {host.name}: ssh {' '.join(command[1:])} -- {name}"
    try:
        answer = run_program([*command, "--", name], timeout_s=host.ssh.connect_timeout_s)
    except subprocess.TimeoutExpired:
        text = f"no answer within {host.ssh.connect_timeout_s:g} s"
        raise ConfigError(
            text, where=where, hint="does a command of Match exec in the ssh configuration hang?"
        ) from None
    except TooMuchOutput:
        raise ConfigError("expected settings of ssh, got more than 16 MiB", where=where) from None
    if answer.returncode != 0:
        # A container may have a user id that has no name.
        said = os.fsdecode(answer.stderr).strip() or "ssh failed without a message"
        if said.startswith("No user exists"):
            return _read_without_ssh(host, name, user, port)
        raise ConfigError(said.splitlines()[0], where=where)
    settings: dict[str, list[str]] = {}
    for line in os.fsdecode(answer.stdout).splitlines():
        option, _, value = line.partition(" ")
        settings.setdefault(option.lower(), []).append(value)
    return settings


def _read_without_ssh(host: Host, name: str, user: str | None, port: int | None) -> Settings:
    from paramiko import SSHConfig

    config = SSHConfig()
    named = host.ssh.config
    for path in (
        [Path(named).expanduser()]
        if named
        else [_home() / ".ssh/config", Path("/etc/ssh/ssh_config")]
    ):
        try:
            text = path.read_text(errors="surrogateescape")
        except FileNotFoundError:
            continue
        config.parse(StringIO(text))
    options = config.lookup(name)
    settings = {
        option: list(value) if isinstance(value, list) else [value]
        for option, value in options.items()
    }
    if user is not None:
        settings["user"] = [user]
    if port is not None:
        settings["port"] = [str(port)]
    return settings


def _keys(
    ssh: SshSettings, settings: Settings, tokens: Mapping[str, str], *, of_jump_host: bool
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return (configured, default) key files.

    The inventory's key is meant for the host; a jump host gets it only if the ssh configuration
    names no key for it.
    """
    files = list(settings.get("identityfile", _DEFAULT_KEYS))
    named = not (len(files) >= len(_DEFAULT_KEYS) and all(map(_DEFAULT_KEY.fullmatch, files)))
    if ssh.key is not None and not (of_jump_host and named):
        return (_path(ssh.key),), ()
    paths = tuple(_path(_expand(value, tokens)) for value in files if value != "none")
    return (paths, ()) if named else ((), paths)


def _agent(settings: Settings, tokens: Mapping[str, str]) -> str:
    """Return the path of the agent's socket, empty without an agent."""
    named = _one(settings, "identityagent", "SSH_AUTH_SOCK")
    if named == "none":
        return ""
    if named == "SSH_AUTH_SOCK" or named.startswith("$"):
        return os.environ.get(named.lstrip("$").strip("{}"), "")
    return str(_path(_expand(named, tokens)))


def _find_known_hosts(
    ssh: SshSettings, settings: Settings, tokens: Mapping[str, str]
) -> tuple[Path, ...]:
    system_files = _files(settings, "globalknownhostsfile", _GLOBAL_KNOWN_HOSTS, tokens)
    if ssh.known_hosts is not None:
        return (_path(ssh.known_hosts), *system_files)
    return (*_files(settings, "userknownhostsfile", _DEFAULT_KNOWN_HOSTS, tokens), *system_files)


def _files(
    settings: Settings, option: str, default: Sequence[str], tokens: Mapping[str, str]
) -> tuple[Path, ...]:
    """Split ``/a /b c`` into ``/a`` and ``/b c``: ``ssh -G`` prints several paths on one line
    without quotes.
    """
    if option not in settings:
        return tuple(map(_path, default))
    line = " ".join(settings[option])
    words = re.split(r"\s+(?=[/~])", line.strip())
    return tuple(
        _path(_expand(word.strip('"'), tokens)) for word in words if word not in ("none", "")
    )


def _connect_timeout(ssh: SshSettings, settings: Settings) -> float:
    """Return the shorter of the inventory's limit (which has a default) and the ssh
    configuration's.
    """
    named = _one(settings, "connecttimeout", "none")
    if named.isdigit() and int(named):
        return min(ssh.connect_timeout_s, float(named))
    return ssh.connect_timeout_s


def _control_path(settings: Settings) -> str:
    path = _one(settings, "controlpath", "none")
    return "" if path == "none" else str(_path(path))


def _tokens(name: str, address: str, port: int, user: str, alias: str) -> dict[str, str]:
    local = socket.gethostname()
    tokens = {
        "%": "%",
        "n": name,
        "h": address,
        "p": str(port),
        "r": user,
        "k": alias or name,
        "i": str(os.getuid()),
    }
    return tokens | {
        "d": str(_home()),
        "u": _local_user(),
        "l": local,
        "L": local.partition(".")[0],
    }


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    if text == "none":
        return ""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _one(settings: Settings, option: str, default: str) -> str:
    if settings.get(option):
        return settings[option][0]
    return default


# The following values are needed for each of hundreds of hosts, and are the same for all of them.


@lru_cache(maxsize=1)
def _program(path: str) -> str | None:
    return shutil.which("ssh", path=path)


@lru_cache(maxsize=256)
def _path(text: str) -> Path:
    if text.startswith("~/"):
        return _home() / text[2:]
    return Path(text).expanduser()


def _local_user() -> str:
    account = _account(os.getuid())
    if account:
        return account.pw_name
    return os.environ.get("USER", str(os.getuid()))


def _home() -> Path:
    """Return the home directory that OpenSSH uses: the account's, regardless of HOME."""
    account = _account(os.getuid())
    return Path(account.pw_dir) if account else Path.home()


@lru_cache(maxsize=1)
def _account(user: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(user)
    except KeyError:
        return None
