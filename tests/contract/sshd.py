"""A real OpenSSH server on a loopback address, run by whoever runs the tests: `Sshd`.

    with Sshd(directory, "127.0.0.2", options=["MaxSessions 2"]) as server:
        ...  # connect to server.address, server.port with the key of make_key(), whose public half is in server.authorized

It touches nothing outside its directory: own host key, own authorized keys, own home for the
commands it runs.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.judge import LIMIT_S
from tests.support.ports import free_port

__all__ = ["Sshd", "make_key"]


def make_key(
    path: Path, *, type: str = "ed25519", passphrase: str = "", bits: int | None = None
) -> Path:
    """Make a key pair at ``path`` and return it; the public half is beside it with ``.pub``."""
    command = ["ssh-keygen", "-q", "-t", type, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(
        [*command, *(["-b", str(bits)] if bits else [])], check=True, stdin=subprocess.DEVNULL
    )
    return path


class Sshd:
    """One server. ``options`` are lines of its configuration and win over what is set here;
    ``host_keys`` are key files.
    """

    def __init__(
        self,
        directory: Path,
        address: str = "127.0.0.1",
        *,
        port: int = 0,
        options: Sequence[str] = (),
        host_keys: Sequence[Path] = (),
        authorized: Sequence[Path] = (),
    ) -> None:
        self.directory = directory
        self.address = address
        self.port = port
        self.options = list(options)
        self.user = getpass.getuser()
        self.home = directory / "home"
        self.authorized = directory / "authorized_keys"
        self.home.mkdir(parents=True, exist_ok=True)
        self.host_keys = list(host_keys) or [make_key(directory / "host_ed25519")]
        self.authorized.write_text("".join(Path(f"{key}.pub").read_text() for key in authorized))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sshd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process that listens."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything that the server has logged so far."""
        return (self.directory / "log").read_text(errors="replace")

    @property
    def known_as(self) -> str:
        """The server's name in a known-hosts file."""
        return f"[{self.address}]:{self.port}"

    def known_hosts_lines(self) -> str:
        """What a known-hosts file says of this server when it knows all its keys."""
        words = (Path(f"{key}.pub").read_text().split()[:2] for key in self.host_keys)
        return "".join(f"{self.known_as} {type} {blob}\n" for type, blob in words)

    def start(self) -> None:
        """Start listening; returns when connections are taken."""
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert sshd, "these tests need openssh-server"
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        wanted = self.port
        for _ in range(5):
            self.port = wanted or free_port(self.address)
            (self.directory / "sshd_config").write_text("\n".join(self._configuration()) + "\n")
            with (self.directory / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [*self._program(sshd), "-D", "-e", "-f", str(self.directory / "sshd_config")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if self._listens():
                return
            self.stop()
        raise AssertionError(f"sshd does not start: {self.log}")

    def stop(self) -> None:
        """Stop the server, every connection to it, and whatever commands left behind."""
        if self._process is None:
            return
        self.kill_connections()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        for process in self.left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def left_behind(self) -> list[int]:
        """Processes that were started through this server and still live, known by the home it gave
        them.
        """
        mark = f"HOME={self.home}".encode()
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and mark in _environment(entry)
        ]

    def connections(self) -> list[int]:
        """The server's processes that each serve a connection, or a part of one."""
        found = []
        rest = _children(self.pid)
        while rest:
            process = rest.pop()
            if _name(process).startswith("sshd"):
                found.append(process)
                rest += _children(process)
        return found

    def kill_connections(self) -> None:
        """Cut every connection as a crash would, and leave the server and the commands alone."""
        for process in self.connections():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _program(self, sshd: str) -> list[str]:
        """Return the command that starts the server, before its options."""
        return [sshd]

    def _configuration(self) -> list[str]:
        return [
            *self.options,  # of several lines for one keyword, sshd takes the first
            f"ListenAddress {self.address}:{self.port}",
            *(f"HostKey {key}" for key in self.host_keys),
            f"AuthorizedKeysFile {self.authorized}",
            f"PidFile {self.directory / 'pid'}",
            f"SetEnv HOME={self.home}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PrintMotd no",
            "PermitRootLogin yes",
            "LogLevel VERBOSE",
        ]

    def _listens(self) -> bool:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if "Server listening on" in self.log:
                return True
            if self._process is None or self._process.poll() is not None:
                return False
            time.sleep(0.01)
        return False


def _children(process: int) -> list[int]:
    try:
        return [
            int(word)
            for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    except OSError:
        return []


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""
