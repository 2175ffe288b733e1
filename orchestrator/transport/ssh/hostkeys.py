"""Verification of host keys: known-hosts files, and the project's own store of first contacts.

Files are read as OpenSSH reads them: plain, ``[address]:port``, wildcard, negated and hashed names,
``@revoked``. A host that only a ``@cert-authority`` knows needs the program ssh, which verifies its
certificate. Verification cannot be switched off;
`Trust` can only allow the key of an unknown server to be stored.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orchestrator.errors import ConfigError, DataError, TransportError
from orchestrator.files import PROJECT_HINT, failures, make_folder, write_atomic
from orchestrator.transport.ssh.config import Endpoint
from orchestrator.transport.trust import HostKey, Trust

_LOCK_WAIT_S = 10.0
_MARKS = ("@revoked", "@cert-authority")


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A line about one server: ``place`` is ``file:line``; ``key`` is None if the line is damaged."""

    place: str
    mark: str
    key: HostKey | None


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The lines of the files about one server; ``torn`` are the places of all lines that cannot be
    parsed.
    """

    entries: tuple[KnownHost, ...]
    torn: tuple[str, ...]

    def types(self) -> tuple[str, ...]:
        """Return the key types to request from the server first, in the order of the files."""
        return tuple(
            dict.fromkeys(entry.key.type for entry in self.entries if entry.key and not entry.mark)
        )


def read_known_keys(files: Sequence[Path], name: str) -> KnownHosts:
    """Return the lines in ``files`` about the server known as ``name``. Missing files count as
    empty.

    Raises ConfigError for a file that cannot be read, because it might revoke the key.
    """
    entries: list[KnownHost] = []
    torn: list[str] = []
    for path in files:
        try:
            status = path.stat()
            file = _read(
                path,
                (
                    status.st_dev,
                    status.st_ino,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                ),
            )
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(
                f"known-hosts file cannot be read: {error.strerror}", where=str(path)
            ) from error
        torn += file.torn
        entries += [
            KnownHost(f"{path}:{number}", *file.keys(number)) for number in file.about(name)
        ]
    return KnownHosts(tuple(entries), tuple(torn))


class _File:
    """A known-hosts file, read once: its lines by number, and an index of plain names."""

    def __init__(self, path: Path) -> None:
        self.torn: list[str] = []
        self._plain: dict[str, list[int]] = {}
        self._patterns: dict[int, str] = {}
        self._lines: dict[int, tuple[str, list[str]]] = {}
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="surrogateescape").split("\n"), 1
        ):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            mark = fields.pop(0) if fields[0].startswith("@") else ""
            if len(fields) < 3 or (mark and mark not in _MARKS):
                self.torn.append(f"{path}:{number}")
            if fields:
                self._lines[number] = (mark, fields)
                if set(fields[0]) & set("|*?!"):
                    self._patterns[number] = fields[0]
                else:
                    for name in fields[0].lower().split(","):
                        self._plain.setdefault(name, []).append(number)

    def about(self, name: str) -> list[int]:
        """Return the numbers of the lines about a server, in order."""
        matching = (number for number, field in self._patterns.items() if _concerns(field, name))
        return sorted({*self._plain.get(name.lower(), ()), *matching})

    def keys(self, number: int) -> tuple[str, HostKey | None]:
        """Return mark and key of a line; the key is None if the line is damaged."""
        mark, fields = self._lines[number]
        return mark, _key(fields)


@lru_cache(maxsize=16)
def _read(path: Path, state: tuple[int, ...]) -> _File:
    """Read a known-hosts file, once per ``state``, because each of hundreds of hosts looks for its
    key in the same file.
    """
    return _File(path)


def judge(endpoint: Endpoint, trust: Trust, offered: HostKey) -> None:
    """Return if ``offered`` is a trusted key of the server of ``endpoint``; store an unknown one if
    ``trust`` allows it.

    Raises TransportError host_key_unknown, host_key_changed or host_key_revoked.
    """
    if place := _find_key(endpoint, trust, offered):
        endpoint.tell(f"the host key is known: {place}")
        trust.verified[endpoint.known_as] = offered
        return
    earlier = trust.verified.get(endpoint.known_as)
    if earlier:
        raise _key_error(endpoint, "this command's first connection", earlier, offered)
    if not trust.accept_new:
        raise _unknown(endpoint, trust, offered)
    with _lock(trust.store):
        # Another process may have stored a key of this server in the meantime, perhaps a different
        # one.
        if not _find_key(endpoint, trust, offered):
            endpoint.tell(f"the host key is new and accepted: {trust.store}")
            _append(
                trust.store,
                f"{endpoint.known_as} {offered.type} {base64.b64encode(offered.blob).decode()}\n",
            )
    trust.verified[endpoint.known_as] = offered


def _find_key(endpoint: Endpoint, trust: Trust, offered: HostKey) -> str:
    """Return the place of the line that has the key, empty if there is none. Raises TransportError
    for a contradiction.
    """
    files = (*endpoint.known_hosts, trust.store)
    lines = read_known_keys(files, endpoint.known_as)
    _check_revocation(endpoint, lines, offered)
    keys = [(entry.place, entry.key) for entry in lines.entries if not entry.mark and entry.key]
    place = next((place for place, key in keys if key == offered), "")
    if place:
        return place
    refuse_authorities(endpoint, lines)
    damaged = next((entry.place for entry in lines.entries if entry.key is None), None)
    if damaged:
        raise endpoint.error(
            "host_key_unknown",
            f"{damaged}: the line about this host is damaged",
            "repair or remove that line",
        )
    if keys:
        same = [(place, key) for place, key in keys if key.type == offered.type]
        raise _key_error(endpoint, *(same or keys)[0], offered)
    # As in OpenSSH, a key under the bare address can confirm a server on another port, but a
    # different one does not refute it.
    port = re.fullmatch(r"\[(.+)\]:\d+", endpoint.known_as)
    bare = read_known_keys(files, port[1] if port else endpoint.known_as)
    _check_revocation(endpoint, bare, offered)
    return next(
        (entry.place for entry in bare.entries if entry.key == offered and not entry.mark), ""
    )


def _check_revocation(endpoint: Endpoint, lines: KnownHosts, offered: HostKey) -> None:
    for entry in lines.entries:
        if entry.mark == "@revoked" and entry.key in (offered, None):
            which = "this key is" if entry.key else "a key of this host, in a damaged line, is"
            text = f"{entry.place}: {which} marked revoked ({offered})"
            raise endpoint.error("host_key_revoked", text, "do not use this host")


def refuse_authorities(endpoint: Endpoint, lines: KnownHosts) -> None:
    """Raise OtherTransportNeeded if a certificate authority vouches for the server, and no line has
    a key of the server itself.

    Raises TransportError host_key_unknown for a mark that has no meaning.
    """
    for entry in lines.entries:
        if entry.mark not in ("", *_MARKS):
            hint = "known marks are @revoked and @cert-authority; correct or remove that line"
            raise endpoint.error(
                "host_key_unknown", f"{entry.place}: expected a known mark, got {entry.mark}", hint
            )
    authorities = [entry.place for entry in lines.entries if entry.mark == "@cert-authority"]
    if authorities and not any(entry.key and not entry.mark for entry in lines.entries):
        message = f"{authorities[0]}: a certificate authority vouches for its key, which paramiko cannot verify"
        hint = "set transport: openssh for this host, which needs the program ssh"
        raise endpoint.beyond("host_key_unknown", message, hint)


def _key_error(endpoint: Endpoint, place: str, old: HostKey, offered: HostKey) -> TransportError:
    if old.type == offered.type:
        message = f"the host key changed: {place} has {old}, the host offers {offered}"
    else:
        message = f"the host key has a different type than the known one: {place} has {old}, the host offers {offered}"
    return endpoint.error(
        "host_key_changed",
        message,
        "this may be an attack; if the host was reinstalled, check the new key on its console and remove that line",
    )


def _unknown(endpoint: Endpoint, trust: Trust, offered: HostKey) -> TransportError:
    if "ed25519" in offered.type:
        short = "ed25519"
    elif "ecdsa" in offered.type:
        short = "ecdsa"
    else:
        short = "rsa"
    torn = read_known_keys((*endpoint.known_hosts, trust.store), endpoint.known_as).torn
    damaged = f"; damaged lines: {', '.join(torn[:3])}" if torn else ""
    return endpoint.error(
        "host_key_unknown",
        f"the host key is not known: {offered}{damaged}",
        f"compare it with ssh-keyscan -p {endpoint.port} -t {short} {endpoint.address} | ssh-keygen -lf - run from a place you "
        "trust, then accept it with orch deploy --accept-new",
    )


def _concerns(field: str, name: str) -> bool:
    """Return True if the first field of a known-hosts line, a list of patterns or one hashed name,
    names the server.
    """
    if field.startswith("|"):
        return _is_hash_of(field, name)
    matches = False
    for pattern in field.lower().split(","):
        negated, pattern = pattern.startswith("!"), pattern.removeprefix("!")
        if fnmatch.fnmatchcase(name.lower(), pattern.replace("[", "[[]")):
            if negated:
                return False
            matches = True
    return matches


def _is_hash_of(field: str, name: str) -> bool:
    try:
        _, kind, salt, digest = field.split("|")
        mac = hmac.new(
            base64.b64decode(salt, validate=True),
            name.encode("utf-8", "surrogateescape"),
            hashlib.sha1,
        ).digest()
        return kind == "1" and hmac.compare_digest(mac, base64.b64decode(digest, validate=True))
    except ValueError:
        return False


def _key(fields: Sequence[str]) -> HostKey | None:
    """Return the key of ``names type base64 [comment]``, or None if the line is cut or damaged."""
    if len(fields) < 3:
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    parts = _parts(blob)
    inner = fields[1].encode("utf-8", "surrogateescape")
    if len(parts) > 1 and parts[0] == inner:
        return HostKey(fields[1], blob)
    return None


def _parts(blob: bytes) -> list[bytes]:
    """Split a key blob into its length-prefixed fields; return an empty list if the lengths do not
    add up.
    """
    parts = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            return []
        parts.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return parts


@contextmanager
def _lock(store: Path) -> Iterator[None]:
    """Hold the store's lock, against other threads and processes: each holder opens the lock file
    itself.
    """
    make_folder(store.parent, PROJECT_HINT)
    with failures(store, hint=PROJECT_HINT):
        handle = os.open(
            f"{store}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                text = f"another process has held its lock for {_LOCK_WAIT_S:g} s"
                raise DataError(text, kind="state_damaged", where=str(store))
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _append(store: Path, line: str) -> None:
    """Append a line to the store, atomically; the caller holds the lock."""
    if store.is_symlink():
        raise DataError("expected a file, got a link", kind="state_damaged", where=str(store))
    before = store.read_bytes() if store.exists() else b""
    if before and not before.endswith(b"\n"):
        before += b"\n"
    write_atomic(store, before + line.encode("utf-8", "surrogateescape"), hint=PROJECT_HINT)
