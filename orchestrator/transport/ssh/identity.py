"""Proving to a server who we are: private keys, the agent, and one short conversation. No passwords, no prompts."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from orchestrator.errors import TransportError
from orchestrator.transport.ssh.config import Endpoint
from orchestrator.transport.ssh.wire import Wire

__all__ = ["Identity", "authenticate", "identities"]

AUTH_TIMEOUT_S = 30.0
_AGENT_TIMEOUT_S = 5.0
_AGENT_KEYS = 5  # sshd hangs up after six wrong ones (MaxAuthTries), and default key files come after these

Identity = tuple[str, paramiko.PKey]
"""What to call a key in a message, and the key."""


@contextmanager
def identities(endpoint: Endpoint) -> Iterator[list[Identity]]:
    """Give the keys to offer, in order; the agent stays connected meanwhile. Raises TransportError auth_failed.

    Configured keys are the only ones offered, if there are any. Nothing has been sent to the server yet.
    """
    agent = _Agent()
    try:
        yield list(_configured(endpoint, agent)) if endpoint.keys else list(_unconfigured(endpoint, agent))
    finally:
        agent.close()


def authenticate(wire: Wire, endpoint: Endpoint, offered: list[Identity]) -> None:
    """Log in with one of the keys, within `AUTH_TIMEOUT_S` for all of them. Raises TransportError auth_failed."""
    deadline = time.monotonic() + AUTH_TIMEOUT_S
    for name, key in offered:
        wire.auth_timeout = max(0.1, deadline - time.monotonic())
        try:
            more = wire.auth_publickey(endpoint.user, key)
        except paramiko.BadAuthenticationType as error:
            text = f"the host takes no keys from user {endpoint.user}, only {', '.join(error.allowed_types)}"
            raise endpoint.error("auth_failed", text, "allow PubkeyAuthentication in its sshd_config") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if time.monotonic() >= deadline - 0.2:
                text = f"no answer to the authentication within {AUTH_TIMEOUT_S:g} s"
                raise endpoint.error("auth_failed", text, "its account or key service hangs (PAM, LDAP, NFS home?)") from error
            if "pubkey algorithm" in str(error):
                raise _unusable(wire, endpoint, name) from error
            if not wire.is_active():
                text = f"the host closed the connection during the authentication of user {endpoint.user}"
                raise endpoint.error("auth_failed", text, "its sshd log says why: MaxAuthTries? AllowUsers?") from error
            continue
        if not more:
            return
        text = f"the key was taken, but the host also wants {', '.join(more)}"
        raise endpoint.error("auth_failed", text, "nobody is there to answer: use an account with key authentication alone")
    names = ", ".join(name for name, _ in offered)
    raise endpoint.error(
        "auth_failed",
        f"the host refused {names} for user {endpoint.user}",
        "is the public half in the authorized_keys of that user, and is it the right user and key?",
    )


def _unusable(wire: Wire, endpoint: Endpoint, name: str) -> TransportError:
    offered = wire.server_extensions.get("server-sig-algs", b"")
    text = f"no safe signature in common for {name}: the host offers {offered.decode('ascii', 'backslashreplace')}"
    return endpoint.error("algorithm_refused", text, "use an ed25519 key")


def _configured(endpoint: Endpoint, agent: _Agent) -> Iterator[Identity]:
    present = [path for path in endpoint.keys if path.exists()]
    if not present:
        names = ", ".join(str(path) for path in endpoint.keys)
        raise endpoint.error("auth_failed", f"key file {names}: no such file", "name an existing one, or run ssh-keygen")
    for path in present:
        yield f"key {path}", _load(endpoint, path) or _from_agent(endpoint, agent, path)


def _unconfigured(endpoint: Endpoint, agent: _Agent) -> Iterator[Identity]:
    found = False
    for key in agent.keys(endpoint.agent)[:_AGENT_KEYS]:
        found = True
        yield f"agent key {_fingerprint(key)}", key
    for path in endpoint.default_keys:
        own = _load(endpoint, path) if path.exists() else None
        if own:
            found = True
            yield f"key {path}", own
    if not found:
        text = "no usable key: none is configured, no agent holds one, and there is no open default key in ~/.ssh"
        hint = "set ssh.key in the inventory or IdentityFile in the ssh configuration, or start an agent"
        raise endpoint.error("auth_failed", text, hint)


def _load(endpoint: Endpoint, path: Path) -> paramiko.PKey | None:
    """Return the key of a file, or None if it has a passphrase. Raises TransportError for a file that is no safe key."""
    try:
        status = path.stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o077:
            text = f"key file {path} can be read by others (mode {status.st_mode & 0o777:04o})"
            raise endpoint.error("auth_failed", text, f"chmod 600 {path}")
        return _parse(str(path), status.st_ino, status.st_mtime_ns)
    except OSError as error:
        raise endpoint.error("auth_failed", f"key file {path}: {error.strerror}", "check its owner and mode") from error
    except (paramiko.PasswordRequiredException, TypeError):  # the latter from the cryptography package
        return None
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError) as error:
        text = f"key file {path} holds no private key that can be used ({error})"
        raise endpoint.error("auth_failed", text, "ed25519, ecdsa and rsa keys can be: is this the public half?") from error


@lru_cache(maxsize=64)
def _parse(path: str, inode: int, mtime_ns: int) -> paramiko.PKey:
    """Read a key file; once per state of the file, because checking an rsa key takes longer than a connection."""
    return paramiko.PKey.from_path(path)


def _from_agent(endpoint: Endpoint, agent: _Agent, path: Path) -> paramiko.PKey:
    """Return the agent's form of a key file that has a passphrase: the same key, and no other."""
    try:
        public = Path(f"{path}.pub").read_text().split()[1]
    except (OSError, IndexError, UnicodeError):
        public = ""
    for key in agent.keys(endpoint.agent) if public else ():
        if key.get_base64() == public:
            return key
    raise endpoint.error(
        "auth_failed",
        f"key file {path} has a passphrase, and nobody is there to type it",
        f"ssh-add {path} (an agent may hold it), or use a key without one",
    )


def _fingerprint(key: Any) -> str:
    return f"{key.get_name()} {key.fingerprint}"


_Base: Any = AgentSSH  # its published types leave out how to connect it


class _Agent(_Base):  # type: ignore[misc]
    """The agent behind a socket, asked only when its keys are wanted, and never waited for long."""

    def keys(self, path: str) -> tuple[paramiko.PKey, ...]:
        """Return the agent's keys; none where there is no agent or it does not answer."""
        if self._conn is None and path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(_AGENT_TIMEOUT_S)
            try:
                connection.connect(path)
                self._connect(connection)
            except (OSError, paramiko.SSHException):
                connection.close()
        return tuple(self.get_keys())

    def close(self) -> None:
        """Hang up."""
        self._close()
