"""A server that asks for a password and a code, as bastions do: `Bastion`, a real sshd with PAM and
Google's authenticator.

It runs in a mount namespace of its own, where ``/etc/passwd``, ``/etc/shadow`` and the PAM service
of sshd are its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sshd import Sshd

__all__ = ["Bastion", "needs_pam", "no_pam"]

_MODULE = "pam_google_authenticator.so"
_FOLDERS = (
    "/lib/x86_64-linux-gnu/security",
    "/usr/lib/x86_64-linux-gnu/security",
    "/lib/aarch64-linux-gnu/security",
)


def no_pam() -> str:
    """Return why no such server can be started here; empty where one can."""
    is_there = os.geteuid() == 0 and any(Path(folder, _MODULE).exists() for folder in _FOLDERS)
    return "" if is_there else "needs root and libpam-google-authenticator"


needs_pam = pytest.mark.skipif(bool(no_pam()), reason=no_pam())
_STEP_S = 30


class Bastion(Sshd):
    """A server that lets ``me`` in by password, ``code()`` after it, and no key alone. A code is
    valid once.
    """

    user = "me"
    password = "correct horse"

    def __init__(
        self, directory: Path, address: str, *, options: Sequence[str] = (), **settings: Any
    ) -> None:
        super().__init__(
            directory,
            address,
            options=[
                "UsePAM yes",
                "KbdInteractiveAuthentication yes",
                "AuthenticationMethods keyboard-interactive",
                *options,
            ],
            **settings,
        )
        self.user = "me"
        self._secret = base64.b32encode(secrets.token_bytes(20)).decode()
        self._last = -1
        own = directory / "etc"
        own.mkdir()
        crypted = subprocess.run(
            ["openssl", "passwd", "-6", "-stdin"],
            input=self.password,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        (own / "passwd").write_text(
            Path("/etc/passwd").read_text() + f"me:x:54321:54321::{self.home}:/bin/sh\n"
        )
        (own / "shadow").write_text(
            Path("/etc/shadow").read_text() + f"me:{crypted}:19000:0:99999:7:::\n"
        )
        (own / "pam").write_text(
            "auth required pam_unix.so\n"
            f"auth required {_MODULE} secret={own}/secret user=root allowed_perm=0600 no_strict_owner\n"
            "account required pam_permit.so\nsession required pam_permit.so\n"
        )
        (own / "secret").write_text(
            f'{self._secret}\n" TOTP_AUTH\n" DISALLOW_REUSE\n" WINDOW_SIZE 5\n'
        )
        (own / "secret").chmod(0o600)
        (own / "shadow").chmod(0o600)

    def code(self) -> str:
        """Return a code that was not used before: of this half minute, or of one before or after it
        (RFC 6238).
        """
        now = int(time.time()) // _STEP_S
        self._last = max(self._last + 1, now - 1)
        assert self._last <= now + 2, "too many codes in a short time"
        digest = hmac.new(
            base64.b32decode(self._secret), struct.pack(">Q", self._last), hashlib.sha1
        ).digest()
        at = digest[-1] & 15
        return f"{(int.from_bytes(digest[at : at + 4], 'big') & 0x7FFFFFFF) % 1_000_000:06}"

    def _program(self, sshd: str) -> list[str]:
        own = self.directory / "etc"
        binds = {"passwd": "/etc/passwd", "shadow": "/etc/shadow", "pam": "/etc/pam.d/sshd"}
        script = " && ".join(f"mount --bind {own / name} {path}" for name, path in binds.items())
        unshare = shutil.which("unshare")
        assert unshare
        return [unshare, "--mount", "sh", "-c", f'{script} && exec "$0" "$@"', sshd]
