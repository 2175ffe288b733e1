"""What rows set up besides the lab: inventories of their own, further SSH servers on its nodes,
programs in its name.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.e2e.rig import Controller, Done
from tests.support import judge

__all__ = ["Server", "inventory", "messages", "on_node", "refused", "server"]


def inventory(
    controller: Controller,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    name: str = "own.yaml",
    ssh: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    **top: Any,
) -> str:
    """Write an inventory of the lab's nodes, or of ``hosts``, into the project, with other
    settings; return its path.
    """
    lab = controller.lab
    access = {
        "user": "root",
        "key": str(lab.directory / "id_ed25519"),
        "known_hosts": str(lab.directory / "known_hosts"),
        "config": str(lab.ssh_config),
    }
    ours = {"interface": "eth0", "python": lab.python, "runner_python": lab.python}
    everyone = {node.name: {"address": node.address} for node in lab.nodes}
    defaults = {
        "gpus": 0,
        "slots": 2,
        "ssh": access | dict(ssh or {}),
        "vars": ours | dict(variables or {}),
    }
    path = controller.project / name
    path.write_text(
        json.dumps({"schema": 1, "defaults": defaults, "hosts": hosts or everyone, **top}, indent=1)
    )
    return str(path)


@dataclass(slots=True)
class Server:
    """A further SSH server of a node."""

    port: int
    log_path: Path
    host_key: Path

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def attempts(self) -> list[str]:
        """The lines about somebody who tried to log in."""
        words = ("userauth-request", "Accepted", "Failed", "invalid user")
        return [line for line in self.log.splitlines() if any(word in line for word in words)]

    def key_of(self, path: Path) -> str:
        """Type and blob of a public key, as in a known-hosts file."""
        return " ".join(Path(f"{path}.pub").read_text().split()[:2])


@contextmanager
def server(
    lab: Lab,
    node: str,
    *options: str,
    port: int = 2200,
    key_type: str = "ed25519",
    without: str = "-",
    address: str = "",
) -> Iterator[Server]:
    """Have one more SSH server on a node; ``options`` win over the lab's settings.

    It has a host key of its own, unless it serves a further ``address`` of the node.
    """
    machine = lab.node(node)
    folder = machine.folder / f"sshd-{port}"
    folder.mkdir(mode=0o700)
    host_key, log = folder / "host_key", folder / "log"
    if address:
        host_key = machine.folder / "host_key"
    else:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", key_type, "-N", "", "-f", str(host_key)], check=True
        )
    taken = ("Port ", "ListenAddress ", "HostKey ", "PidFile ", "LogLevel ", without)
    kept = [
        line
        for line in (machine.folder / "sshd_config").read_text().splitlines()
        if not line.startswith(taken)
    ]
    own = [
        *options,
        f"ListenAddress {address or machine.address}:{port}",
        f"HostKey {host_key}",
        f"PidFile {folder / 'pid'}",
        "LogLevel DEBUG1",
    ]
    (folder / "config").write_text("\n".join([*own, *kept]) + "\n")
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "sshd"
    argv = labs.argv_on(lab, node, [sshd, "-D", "-f", str(folder / "config"), "-E", str(log)])
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        judge.wait_for(
            lambda: log.exists() and "Server listening on" in log.read_text(),
            10,
            "sshd does not start",
        )
        yield Server(port, log, host_key)
    finally:
        on_node(lab, node, f"kill $(cat {folder / 'pid'})", check=False)
        process.kill()
        process.wait(judge.LIMIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def on_node(lab: Lab, node: str, script: str, *, check: bool = True) -> str:
    """Run a shell script on a node, past SSH, and return its output."""
    argv = labs.argv_on(lab, node, ["/bin/sh", "-c", script])
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", timeout=judge.LIMIT_S, check=False
    )
    assert not check or done.returncode == 0, f"on {node}: {script}: {done}"
    return done.stdout


def refused(controller: Controller, *words: str, code: int, within_s: float = 60.0) -> str:
    """Run a command that must end with this status, without a traceback, in time; return its
    messages.
    """
    began = time.monotonic()
    done = controller.orch(*words, timeout_s=within_s + 10)
    took = time.monotonic() - began
    assert done.code == code, f"{words}: {done}"
    assert judge.in_time(took, within_s), f"{words}: took {took:.1f} s"
    text = messages(done)
    assert text or code == 0, done
    return text


def messages(done: Done) -> str:
    """Return what a command says of its errors, and prove that it has no traceback."""
    assert "Traceback" not in done.err + done.out, done
    lines = done.err.splitlines()
    first = next(
        (number for number, line in enumerate(lines) if line.startswith("orch: ")), len(lines)
    )
    return "\n".join(lines[first:])
