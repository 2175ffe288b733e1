"""A Kerberos realm on loopback: a real KDC with a user and the keys of servers, `Realm`. Touches
nothing outside its folder.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.judge import LIMIT_S
from tests.support.ports import free_port

__all__ = ["Realm", "needs_kerberos"]

_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
needs_kerberos = pytest.mark.skipif(
    not all(shutil.which(name, path=_PATH) for name in _PROGRAMS),
    reason="needs krb5-kdc, krb5-admin-server and krb5-user",
)


class Realm:
    """The realm ORCH.TEST; ``environment`` is what every program of it needs, servers and clients."""

    password = "a long ticket"

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        self.user = getpass.getuser()
        self.environment: Mapping[str, str] = {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5_KTNAME": str(directory / "keytab"),
            "KRB5CCNAME": f"FILE:{directory / 'ticket'}",
        }
        port = free_port(address)
        (directory / "krb5.conf").write_text(
            "[libdefaults]\ndefault_realm = ORCH.TEST\ndns_canonicalize_hostname = false\nrdns = false\n"
            f"dns_lookup_kdc = false\n[realms]\nORCH.TEST = {{\nkdc = {address}:{port}\n}}\n"
            f"[logging]\nkdc = FILE:{directory / 'kdc.log'}\n"
        )
        (directory / "kdc.conf").write_text(
            f"[realms]\nORCH.TEST = {{\nkdc_listen = {address}:{port}\nkdc_tcp_listen = {address}:{port}\n"
            f"database_name = {directory / 'principal'}\nkey_stash_file = {directory / 'stash'}\n"
            f"acl_file = {directory / 'acl'}\n}}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", "ORCH.TEST", "-P", "of the database")
        self._run("kadmin.local", "addprinc", "-pw", self.password, self.user)
        self._log = directory / "kdc.log"
        self._process = subprocess.Popen(
            [str(shutil.which("krb5kdc", path=_PATH)), "-n"],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + LIMIT_S
        while not self._log.exists() or "commencing operation" not in self._log.read_text():
            assert self._process.poll() is None and time.monotonic() < deadline, (
                "krb5kdc does not start"
            )
            time.sleep(0.01)

    def serves(self, name: str) -> None:
        """Make the keys of an ssh server of this name, in the keytab of all."""
        self._run("kadmin.local", "addprinc", "-randkey", f"host/{name}")
        self._run("kadmin.local", "ktadd", "-k", self.environment["KRB5_KTNAME"], f"host/{name}")

    def log_in(self) -> None:
        """Get a ticket, as a user does with kinit."""
        self._run("kinit", self.user, text=f"{self.password}\n")

    def log_out(self) -> None:
        """Throw the ticket away."""
        self._run("kdestroy")

    def tickets(self) -> str:
        """Return what klist prints."""
        return self._run("klist")

    def close(self) -> None:
        """Stop the KDC."""
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def _run(self, name: str, *words: str, text: str = "") -> str:
        argv = [str(shutil.which(name, path=_PATH)), *words]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            argv,
            input=text,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout
