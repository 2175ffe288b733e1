"""A lab without root: one SSH server per node on 127.0.0.2 upwards, all on one free high port.

The nodes share everything except their homes: files, ports, /tmp, the process table and the host
name. The processes of a node are identified by ``ORCH_LAB`` and ``ORCH_LAB_NODE`` in their
environment.
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ConfigError, RunError
from orchestrator.lab.identity import session_environment, write_sshd_config
from orchestrator.lab.programs import find
from orchestrator.lab.state import Lab, LabNode
from orchestrator.procs import record_pid

FIRST = ipaddress.IPv4Address("127.0.0.2")
# Below the range from which the kernel assigns ports to outgoing connections.
_PORTS = range(20000, 32000)


def addresses(count: int) -> list[str]:
    """Return the nodes' addresses: 127.0.0.2 and following."""
    if not 1 <= count <= 1000:
        raise ConfigError(f"lab nodes: expected 1 to 1000, got {count}")
    return [str(FIRST + index) for index in range(count)]


def free_port(hosts: Sequence[str]) -> int:
    """Return a port that is currently free on all these addresses."""
    for port in random.sample(_PORTS, 100):
        if all(_is_free(host, port) for host in hosts):
            return port
    raise RunError(
        f"no port is free on all of {hosts[0]} to {hosts[-1]} (100 tried)", kind="port_busy"
    )


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def start_sshd(lab: Lab, nodes: Sequence[LabNode]) -> None:
    """Start an sshd for each of these nodes."""
    sshd = find("sshd")
    for node in nodes:
        write_sshd_config(lab, node, sshd)
        argv = [
            sshd,
            "-D",
            "-f",
            str(node.folder / "sshd_config"),
            "-E",
            str(node.folder / "sshd.log"),
        ]
        record_pid(node.folder / "pid", _detach(argv, lab, node.folder / "console.log"))


def start_asyncssh(lab: Lab, nodes: Sequence[LabNode]) -> None:
    """Start one process that forks a server for each of these nodes; the servers record their own
    process ids.
    """
    package_root = Path(__file__).parents[2]
    argv = [
        sys.executable,
        "-m",
        "orchestrator.lab.asyncssh_server",
        str(lab.directory),
        *(node.name for node in nodes),
    ]
    _detach(argv, lab, lab.directory / "asyncssh.log", cwd=package_root)


def _detach(argv: Sequence[str], lab: Lab, log: Path, *, cwd: Path = Path("/")) -> int:
    """Start a program that outlives this process, and return its process id."""
    with log.open("ab") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd,
                                   start_new_session=True, env=os.environ | {"ORCH_LAB": lab.marker})  # fmt: skip
    # It is later ended by its process id, often from another process; a return code keeps Popen
    # from waiting for it.
    process.returncode = 0
    return process.pid


def on_node(lab: Lab, node: LabNode) -> list[str]:
    """Return the argv prefix that runs a program like one of the node's sessions, in its home."""
    return [
        "env",
        "-C",
        str(node.home),
        *(f"{name}={value}" for name, value in session_environment(lab, node).items()),
    ]
