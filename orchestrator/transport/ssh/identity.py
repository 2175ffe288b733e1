"""Authentication to a server with private keys and the ssh agent; a password, a code or a token
needs the program ssh.
"""

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
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH

from orchestrator.errors import TransportError
from orchestrator.transport import terminal
from orchestrator.transport.ssh.config import Endpoint
from orchestrator.transport.ssh.wire import Wire

AUTH_TIMEOUT_S = 30.0
_AGENT_TIMEOUT_S = 5.0
_AGENT_KEYS = 5  # sshd disconnects after six wrong keys (MaxAuthTries), and default key files are offered after these

Identity = tuple[str, paramiko.PKey]
"""The name of a key in messages, and the key."""


@contextmanager
def identities(endpoint: Endpoint) -> Iterator[list[Identity]]:
    """Yield the keys to offer, in order; the agent stays connected until the block ends. Raises
    TransportError auth_failed.

    If there are configured keys, only those are offered. Sends nothing to the server.
    """
    agent = _Agent()
    try:
        yield (
            list(_identities_of_config(endpoint, agent))
            if endpoint.keys
            else list(_default_identities(endpoint, agent))
        )
    finally:
        agent.close()


def authenticate(wire: Wire, endpoint: Endpoint, offered: list[Identity]) -> None:
    """Log in with one of the keys, within `AUTH_TIMEOUT_S` for all of them. Raises TransportError
    auth_failed.
    """
    deadline = time.monotonic() + AUTH_TIMEOUT_S
    for name, key in offered:
        wire.auth_timeout = max(0.1, deadline - time.monotonic())
        endpoint.tell(f"offering {name}")
        try:
            further_methods = wire.auth_publickey(endpoint.user, key)
        except paramiko.BadAuthenticationType as error:
            text = f"the host accepts no keys from user {endpoint.user}, only {', '.join(error.allowed_types)}"
            raise endpoint.beyond(
                "auth_failed", text, "allow PubkeyAuthentication in its sshd_config"
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if time.monotonic() >= deadline - 0.2:
                text = f"no answer to the authentication within {AUTH_TIMEOUT_S:g} s"
                raise endpoint.error(
                    "auth_failed",
                    text,
                    "its account or key service may hang: check PAM, LDAP and NFS home directories",
                ) from error
            if "pubkey algorithm" in str(error):
                raise _unusable(wire, endpoint, name) from error
            if not wire.is_active():
                text = f"the host closed the connection during the authentication of user {endpoint.user}"
                raise endpoint.error(
                    "auth_failed", text, "its sshd log says why; check MaxAuthTries and AllowUsers"
                ) from error
            endpoint.tell("the host refused it")
            continue
        if not further_methods:
            endpoint.tell(f"logged in as {endpoint.user}")
            return
        text = f"the host accepted the key, but also requires {', '.join(further_methods)}"
        raise endpoint.beyond("auth_failed", text, "use an account that needs only a key")
    names = ", ".join(name for name, _ in offered)
    raise endpoint.error(
        "auth_failed",
        f"the host refused {names} for user {endpoint.user}",
        "is this the right user and key, and is the public half in that user's authorized_keys? A user whose login shell does"
        " not exist there is refused in the same way: the host's sshd log says which",
    )


def _unusable(wire: Wire, endpoint: Endpoint, name: str) -> TransportError:
    offered = wire.server_extensions.get("server-sig-algs", b"")
    text = f"no safe signature algorithm in common for {name}: the host offers {offered.decode('ascii', 'backslashreplace')}"
    return endpoint.error("algorithm_refused", text, "use an ed25519 key")


def _identities_of_config(endpoint: Endpoint, agent: _Agent) -> Iterator[Identity]:
    present = [path for path in endpoint.keys if path.exists()]
    if not present:
        names = ", ".join(map(str, endpoint.keys))
        raise endpoint.error(
            "auth_failed",
            f"key file {names}: no such file",
            "name an existing one, or run ssh-keygen",
        )
    for path in present:
        yield f"key {path}", _load(endpoint, path) or _from_agent(endpoint, agent, path)


def _default_identities(endpoint: Endpoint, agent: _Agent) -> Iterator[Identity]:
    any_key = False
    for key in agent.keys(endpoint.agent)[:_AGENT_KEYS]:
        any_key = True
        yield f"agent key {_fingerprint(key)}", key
    for path in endpoint.default_keys:
        loaded = _load(endpoint, path) if path.exists() else None
        if loaded:
            any_key = True
            yield f"key {path}", loaded
    if not any_key:
        text = "no usable key: none is configured, no agent has one, and ~/.ssh has no default key without a passphrase"
        hint = "set ssh.key in the inventory or IdentityFile in the ssh configuration, or start an agent"
        raise endpoint.beyond("auth_failed", text, hint)


def _load(endpoint: Endpoint, path: Path) -> paramiko.PKey | None:
    """Return the key of a file, or None if it has a passphrase. Raises TransportError for an
    unusable or unsafe file.
    """
    try:
        status = path.stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o077:
            text = f"key file {path} can be read by others (mode {status.st_mode & 0o777:04o})"
            raise endpoint.error("auth_failed", text, f"chmod 600 {path}")
        return _parse(str(path), status.st_ino, status.st_mtime_ns)
    except OSError as error:
        raise endpoint.error(
            "auth_failed", f"key file {path}: {error.strerror}", "check its owner and mode"
        ) from error
    except (
        paramiko.PasswordRequiredException,
        TypeError,
    ):  # the latter from the cryptography package
        return None
    except (
        paramiko.SSHException,
        paramiko.pkey.UnknownKeyType,
        UnsupportedAlgorithm,
        ValueError,
    ) as error:
        if _is_of_a_token(path):
            raise endpoint.beyond(
                "auth_failed", f"key file {path} belongs to a FIDO token, which paramiko cannot use"
            ) from error
        text = f"key file {path} contains no usable private key ({error})"
        hint = (
            "ed25519, ecdsa and rsa keys are supported; make sure that this is not the public half"
        )
        raise endpoint.error("auth_failed", text, hint) from error


def _is_of_a_token(path: Path) -> bool:
    """Return True if the public half is of a type that signs with a security token:
    ``sk-ssh-ed25519@openssh.com``.
    """
    try:
        return Path(f"{path}.pub").read_text().startswith("sk-")
    except (OSError, UnicodeError):
        return False


@lru_cache(maxsize=64)
def _parse(path: str, inode: int, mtime_ns: int) -> paramiko.PKey:
    """Read a key file, once per state of the file, because checking an rsa key takes longer than a
    connection.
    """
    return paramiko.PKey.from_path(path)


def _from_agent(endpoint: Endpoint, agent: _Agent, path: Path) -> paramiko.PKey:
    """Return the agent's copy of a key file that has a passphrase. Raises TransportError if the
    agent does not have it.
    """
    try:
        public = Path(f"{path}.pub").read_text().split()[1]
    except (OSError, IndexError, UnicodeError):
        public = ""
    for key in agent.keys(endpoint.agent) if public else ():
        if key.get_base64() == public:
            return key
    error = endpoint.beyond if terminal.is_there() else endpoint.error
    message = f"key file {path} has a passphrase" + (
        "" if terminal.is_there() else ", and there is no terminal to ask for it"
    )
    raise error(
        "auth_failed",
        message,
        f"ssh-add {path} (an agent can hold it), or use a key without a passphrase",
    )


def _fingerprint(key: Any) -> str:
    return f"{key.get_name()} {key.fingerprint}"


_Base: Any = AgentSSH  # its published types do not include the methods that connect it


class _Agent(_Base):  # type: ignore[misc]
    """The agent behind a socket, contacted only when its keys are needed, and with a short timeout."""

    def keys(self, path: str) -> tuple[paramiko.PKey, ...]:
        """Return the agent's keys; none without an agent, or if it does not answer."""
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
        """Disconnect from the agent."""
        self._close()
