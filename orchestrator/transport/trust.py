"""Trust in servers: `HostKey`, and `Trust`, how the host keys of a command's servers
are verified.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostKey:
    """A server's public key: the type written inside its blob, and the blob."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint as OpenSSH shows it: ``SHA256:`` and base64 without padding."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.type} {self.fingerprint}"


@dataclass(frozen=True, slots=True)
class Trust:
    """The verification of host keys.

    ``store`` is the project's own known-hosts file, which is always read. With ``accept_new``, the
    key of a server that is in no known-hosts file is written to it (mode 0600, locked, replaced
    atomically). A changed or revoked key is always refused. ``verified`` has the last trusted key
    of each server that this process has contacted: no other server is new.
    """

    store: Path
    accept_new: bool = False
    verified: dict[str, HostKey] = field(default_factory=dict, compare=False, repr=False)
