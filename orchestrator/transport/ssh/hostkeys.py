"""Whether a server is the one we know: known-hosts files, and the project's own store of first contacts.

Files are read as OpenSSH reads them: plain, ``[address]:port``, wildcard, negated and hashed names, ``@revoked``. What this
program cannot judge (``@cert-authority``) is an error where it concerns the host at hand. There is no way to switch the
judgement off; `Trust` can only say that a server never seen before may be remembered.
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

__all__ = ["HostKey", "KnownHosts", "Trust", "judge", "known_keys"]

_LOCK_WAIT_S = 10.0
_MARKS = ("@revoked", "@cert-authority")


@dataclass(frozen=True, slots=True)
class Trust:
    """How host keys are judged.

    ``store`` is the project's own known-hosts file, read always. With ``accept_new`` the key of a server that no known-hosts
    file names is written to it (mode 0600, locked, replaced atomically). A changed or revoked key is refused either way.
    """

    store: Path
    accept_new: bool = False


@dataclass(frozen=True, slots=True)
class HostKey:
    """A server's public key: the type written inside its blob, and the blob."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The form in which OpenSSH shows it: ``SHA256:`` and base64 without padding."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.type} {self.fingerprint}"


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A line about one server: ``place`` is ``file:line``; ``key`` is None where the line is damaged."""

    place: str
    mark: str
    key: HostKey | None


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """What the files say about one server, and which lines of them cannot be read at all."""

    entries: tuple[KnownHost, ...]
    torn: tuple[str, ...]

    def types(self) -> tuple[str, ...]:
        """Return the key types to ask the server for first, in the order of the files."""
        return tuple(dict.fromkeys(entry.key.type for entry in self.entries if entry.key and not entry.mark))


def known_keys(files: Sequence[Path], name: str) -> KnownHosts:
    """Read what ``files`` say about the server known as ``name``. Files that do not exist are empty.

    Raises ConfigError where one cannot be read: what it holds might have been a refusal.
    """
    entries: list[KnownHost] = []
    torn: list[str] = []
    for path in files:
        try:
            found = path.stat()
            file = _read(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"known-hosts file cannot be read: {error.strerror}", where=str(path)) from error
        torn += file.torn
        entries += [KnownHost(f"{path}:{number}", *file.keys(number)) for number in file.about(name)]
    return KnownHosts(tuple(entries), tuple(torn))


class _File:
    """A known-hosts file, read once: lines by number, those that name servers plainly by each name."""

    def __init__(self, path: Path) -> None:
        self.torn: list[str] = []
        self._plain: dict[str, list[int]] = {}
        self._patterns: dict[int, str] = {}
        self._lines: dict[int, tuple[str, list[str]]] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="surrogateescape").split("\n"), 1):
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
        """Return the numbers of the lines that are about a server, in order."""
        matching = (number for number, field in self._patterns.items() if _concerns(field, name))
        return sorted({*self._plain.get(name.lower(), ()), *matching})

    def keys(self, number: int) -> tuple[str, HostKey | None]:
        """Return mark and key of a line; no key where it was cut or spoilt."""
        mark, fields = self._lines[number]
        return mark, _key(fields)


@lru_cache(maxsize=16)
def _read(path: Path, state: tuple[int, ...]) -> _File:
    """Read a known-hosts file; once for each state of it, because hundreds of hosts stand in one file and each looks there."""
    return _File(path)


def judge(endpoint: Endpoint, trust: Trust, offered: HostKey) -> None:
    """Return if ``offered`` may be trusted to be the server of ``endpoint``; remember it where ``trust`` says so.

    Raises TransportError host_key_unknown, host_key_changed or host_key_revoked.
    """
    if _is_known(endpoint, trust, offered):
        return
    if not trust.accept_new:
        raise _unknown(endpoint, trust, offered)
    with _locked(trust.store):
        # Somebody else may have met this server a moment ago, and perhaps with another key.
        if not _is_known(endpoint, trust, offered):
            _append(trust.store, f"{endpoint.known_as} {offered.type} {base64.b64encode(offered.blob).decode()}\n")


def _is_known(endpoint: Endpoint, trust: Trust, offered: HostKey) -> bool:
    files = (*endpoint.known_hosts, trust.store)
    known = known_keys(files, endpoint.known_as)
    _refuse_revoked(endpoint, known, offered)
    _refuse_authorities(endpoint, known)
    keys = [(entry.place, entry.key) for entry in known.entries if not entry.mark and entry.key]
    if any(key == offered for _, key in keys):
        return True
    damaged = next((entry.place for entry in known.entries if entry.key is None), None)
    if damaged:
        raise endpoint.error("host_key_unknown", f"{damaged}: the line about this host is damaged", "mend or remove that line")
    if keys:
        same = [(place, key) for place, key in keys if key.type == offered.type]
        raise _changed(endpoint, *(same or keys)[0], offered)
    # As OpenSSH: a key filed under the bare address vouches for a server on another port, but cannot speak against it.
    port = re.fullmatch(r"\[(.+)\]:\d+", endpoint.known_as)
    bare = known_keys(files, port[1] if port else endpoint.known_as)
    _refuse_revoked(endpoint, bare, offered)
    return any(entry.key == offered and not entry.mark for entry in bare.entries)


def _refuse_revoked(endpoint: Endpoint, known: KnownHosts, offered: HostKey) -> None:
    for entry in known.entries:
        if entry.mark == "@revoked" and entry.key in (offered, None):
            which = "this key is" if entry.key else "a key of this host, in a damaged line, is"
            text = f"{entry.place}: {which} marked revoked ({offered})"
            raise endpoint.error("host_key_revoked", text, "do not use this host")


def _refuse_authorities(endpoint: Endpoint, known: KnownHosts) -> None:
    for entry in known.entries:
        if entry.mark and entry.mark != "@revoked":
            raise endpoint.error(
                "host_key_unknown",
                f"{entry.place}: {entry.mark} concerns this host, and host certificates are not supported",
                "list the host's own key in a file of its own and name that as ssh.known_hosts in the inventory",
            )


def _changed(endpoint: Endpoint, place: str, old: HostKey, offered: HostKey) -> TransportError:
    if old.type == offered.type:
        message = f"the host key changed: {place} has {old}, the host offers {offered}"
    else:
        message = f"the host offers a key of another type than known: {place} has {old}, the host offers {offered}"
    return endpoint.error(
        "host_key_changed",
        message,
        "somebody may be in between; if the host was installed anew, check the new key on its console and remove that line",
    )


def _unknown(endpoint: Endpoint, trust: Trust, offered: HostKey) -> TransportError:
    short = "ed25519" if "ed25519" in offered.type else "ecdsa" if "ecdsa" in offered.type else "rsa"
    torn = known_keys((*endpoint.known_hosts, trust.store), endpoint.known_as).torn
    damaged = f"; damaged lines: {', '.join(torn[:3])}" if torn else ""
    return endpoint.error(
        "host_key_unknown",
        f"the host key is not known: {offered}{damaged}",
        f"compare it with ssh-keyscan -p {endpoint.port} -t {short} {endpoint.address} | ssh-keygen -lf - run from a place you "
        "trust, then accept it with orch deploy --accept-new",
    )


def _concerns(field: str, name: str) -> bool:
    """Whether the first field of a known-hosts line names the server: a list of patterns, or one hashed name."""
    if field.startswith("|"):
        return _is_hash_of(field, name)
    found = False
    for pattern in field.lower().split(","):
        wanted, pattern = not pattern.startswith("!"), pattern.removeprefix("!")
        if fnmatch.fnmatchcase(name.lower(), pattern.replace("[", "[[]")):
            if not wanted:
                return False
            found = True
    return found


def _is_hash_of(field: str, name: str) -> bool:
    try:
        _, kind, salt, digest = field.split("|")
        mac = hmac.new(base64.b64decode(salt, validate=True), name.encode("utf-8", "surrogateescape"), hashlib.sha1).digest()
        return kind == "1" and hmac.compare_digest(mac, base64.b64decode(digest, validate=True))
    except ValueError:
        return False


def _key(fields: Sequence[str]) -> HostKey | None:
    """Return the key of ``names type base64 [comment]``, or None if the line was cut or spoilt."""
    if len(fields) < 3:
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    parts = _parts(blob)
    inner = fields[1].encode("utf-8", "surrogateescape")
    return HostKey(fields[1], blob) if len(parts) > 1 and parts[0] == inner else None


def _parts(blob: bytes) -> list[bytes]:
    """Split a key blob into its length-prefixed fields; nothing if the lengths do not add up."""
    parts = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            return []
        parts.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return parts


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Hold the store's lock, against threads and processes alike: every holder has opened the lock file by itself."""
    make_folder(store.parent, PROJECT_HINT)
    with failures(store, hint=PROJECT_HINT):
        handle = os.open(f"{store}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
    """Replace the store by itself and one more line; the caller holds the lock."""
    if store.is_symlink():
        raise DataError("expected a file, found a link", kind="state_damaged", where=str(store))
    before = store.read_bytes() if store.exists() else b""
    if before and not before.endswith(b"\n"):
        before += b"\n"
    write_atomic(store, before + line.encode("utf-8", "surrogateescape"), hint=PROJECT_HINT)
