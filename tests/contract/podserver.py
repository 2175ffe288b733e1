"""A stand-in for a Kubernetes cluster on loopback, whose one pod is a home of its own: `PodServer`."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from orchestrator.lab import pods
from orchestrator.lab.state import Lab, LabNode, claim
from orchestrator.procs import record_pid
from tests.contract.sshd import Sshd
from tests.support.ports import free_port


class PodServer(Sshd):
    """An API server. Its connections end with it, and its commands go on."""

    def __init__(self, directory: Path, address: str = "127.0.0.1", **_: Any) -> None:
        super().__init__(directory, address)
        self.port = free_port(address)
        # Its name tells its processes from those of tests beside this one.
        self.pod = f"pod-{secrets.token_hex(4)}"
        folder = directory / "lab" / "nodes" / self.pod
        node = LabNode(self.pod, address, self.port, folder)
        marker = secrets.token_hex(8)
        self.lab = Lab(
            directory / "lab", marker, "asyncssh", (node,), sys.executable, 1500, pods=True
        )
        self.home = node.home
        self._changing = threading.Lock()

    def start(self) -> None:
        """Start serving."""
        claim(self.lab)
        self.home.mkdir(parents=True)
        record_pid(self.home.parent / "pid", os.getpid())
        pods.prepare(self.lab, 0, 1, self.address, self.port)
        self._serve()

    def _serve(self) -> None:
        self._process = pods.start(self.lab, [], self.address, self.port)

    @property
    def kubeconfig(self) -> Path:
        """The configuration with which kubectl reaches it."""
        return self.lab.pods_folder / "kubeconfig"

    @property
    def log(self) -> str:
        """Everything that the server has logged so far."""
        return (self.lab.pods_folder / "server.log").read_text(errors="replace")

    def connections(self) -> list[int]:
        """The server, which serves every connection itself."""
        return [self.pid]

    def kill_connections(self) -> None:
        """Kill the server, and start another one in its place."""
        with self._changing:
            self._end()
            self._serve()

    def stop(self) -> None:
        """Stop the server and what its commands left behind."""
        with self._changing:  # a test may have ended while a thread of it kills the server
            self._end()
        for process in self.left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _end(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait()
