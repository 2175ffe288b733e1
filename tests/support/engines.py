"""podman and docker as the fault suite has them: nodes whose runs are in containers, and eyes on
these that are not orch's.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.support import judge, podman
from tests.support.faultlab import shared_folder
from tests.support.judge import LIMIT_S, Proc

NODES = ("node1", "node2")
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Engine:
    """An engine on two nodes of a lab. ``asked_on`` are the nodes that have one of their own,
    ``command`` the words that ask it past the ``program`` of the inventory, which can be broken;
    ``ids`` are the containers that it or a node has ever named."""

    name: str
    lab: Lab
    program: Path
    command: tuple[str, ...]
    asked_on: tuple[str, ...]
    image: str
    before: frozenset[int] = frozenset()
    ids: set[str] = field(default_factory=set)

    def ask(self, node: str, *words: str) -> str:
        """Return what the engine of a node says, without orch between."""
        argv = labs.argv_on(self.lab, node, [*self.command, *words])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, f"{self.name} {' '.join(words)} on {node}: {done.stderr}"
        return done.stdout

    def containers(self) -> list[str]:
        """Return node, id, name and state of the containers of the image, in any state, by the
        engine's own list.
        """
        words = (
            "ps",
            "--all",
            "--no-trunc",
            f"--filter=ancestor={self.image}",
            "--format={{.ID}} {{.Names}} {{.Status}}",
        )
        lines = [
            f"{node} {line}"
            for node in self.asked_on
            for line in self.ask(node, *words).splitlines()
        ]
        self.ids |= {line.split()[1] for line in lines}
        return lines

    def processes(self, mark: str = "") -> list[Proc]:
        """Return the processes of runs.

        These are all processes on the nodes except sessions of ssh. Besides, wherever they run,
        they are the processes in a container's control group, the ones that serve it, and those
        with ``mark`` as their whole command line.
        """
        self._note_ids()
        rest = {
            proc.pid: proc
            for name in NODES
            for proc in judge.processes(self.lab, name)
            if self._has_come(proc)
        }
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                groups = set(_ID.findall((folder / "cgroup").read_text()))
                words = (folder / "cmdline").read_text(errors="replace").split("\0")
                comm = (folder / "comm").read_text().strip()
            except OSError:
                continue
            line = " ".join(words).strip()
            if (groups | set(words)) & self.ids or (mark and line == mark):
                rest[int(folder.name)] = Proc(
                    "", int(folder.name), comm, line, "", defunct=not line
                )
        return list(rest.values())

    def _has_come(self, proc: Proc) -> bool:
        return proc.pid not in self.before and not proc.comm.startswith("sshd")

    def _note_ids(self) -> None:
        """Note the ids that an engine has written into directories of runs."""
        for name in NODES:
            for path in self.lab.node(name).home.glob(".orch-node/nodes/*/runs/*/container.id"):
                self.ids |= set(_ID.findall(path.read_text()))

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Have an engine that does not answer orch, as one whose daemon is gone."""
        broken = self.program.with_name("broken")
        broken.touch()
        try:
            yield
        finally:
            broken.unlink()

    def inventory(self, path: Path) -> str:
        """Write the lab's inventory with this engine and its image for all runs to a file; return
        its path.
        """
        container = {
            "engine": self.name,
            "program": str(self.program),
            "image": self.image,
            "limits": podman.LIMITS,
        }
        text = self.lab.inventory.read_text()
        assert text.count("\ndefaults:\n") == 1
        path.write_text(
            text.replace("\ndefaults:\n", f"\ndefaults:\n  container: {json.dumps(container)}\n")
        )
        return str(path)

    def clear(self) -> None:
        """Remove the containers that a failed test has left."""
        for line in self.containers():
            node, number = line.split()[:2]
            self.ask(node, "rm", "--force", number)


@contextmanager
def podman_on_nodes(lab: Lab, name: str) -> Iterator[Engine]:
    """Have podman on two nodes of a lab of namespaces, with a store for each of them, in a folder
    of that name.
    """
    with shared_folder(lab, f"podman-{name}") as folder:
        archive, program = podman.archive(folder), podman.script(folder)
        engine = Engine("podman", lab, program, (str(program),), NODES, podman.IMAGE)
        try:
            for node in NODES:
                engine.ask(node, "import", str(archive), podman.IMAGE)
            engine.before = frozenset(
                proc.pid for node in NODES for proc in judge.processes(lab, node)
            )
            yield engine
        finally:
            engine.clear()
            for node in NODES:
                argv = labs.argv_on(lab, node, ["rm", "-rf", str(podman.run_root(folder))])
                subprocess.run(argv, check=False, capture_output=True)


_DOCKER = """\
#!/bin/bash
if [ -e {folder}/broken ]; then echo 'cannot connect to the engine' >&2; exit 125; fi
exec {docker} "$@"
"""


@contextmanager
def docker_outside(lab: Lab, name: str) -> Iterator[Engine]:
    """Have the docker of this machine on two nodes of a lab on its loopback, with an image of its
    own; nobody else who asks for it so has it at the same time, because a run is refused where the
    containers of another one are."""
    docker = str(shutil.which("docker"))
    with (
        shared_folder(lab, f"docker-{name}") as folder,
        Path(tempfile.gettempdir(), "orch-tests-docker.lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = folder / "docker"
        program.write_text(_DOCKER.format(folder=folder, docker=docker))
        program.chmod(0o755)
        image = f"localhost/orch/{lab.marker}:1"  # tells its containers from everybody else's
        engine = Engine("docker", lab, program, (docker,), NODES[:1], image)
        engine.ask("node1", "import", str(podman.archive(folder)), image)
        try:
            yield engine
        finally:
            engine.clear()
            engine.ask("node1", "image", "rm", "--force", image)


def no_docker() -> str:
    """Return why no docker can be used here; nothing where it can."""
    if reason := podman.obstacle():
        return reason  # the image is made in the same way
    if not shutil.which("docker") or not Path("/run/sshd").is_dir():
        return "needs docker, and the directory /run/sshd for the servers of a lab on the loopback"
    done = subprocess.run(
        ["docker", "version"], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return f"docker does not answer: {done.stderr.strip()[-160:]}" if done.returncode else ""
