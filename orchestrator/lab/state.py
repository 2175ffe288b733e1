"""What a lab is, and the one file that says so: `Lab`, `LabNode` and ``lab.json``.

A directory is a lab when it holds ``lab.json``. The file is written before anything is started, so that whatever a killed
``up`` left behind can be found again, and it is the last thing that ``down`` removes. Process ids are kept beside it, each
with its start time, because a lab's node gets a new one whenever it boots and the kernel uses old numbers again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from orchestrator.errors import ConfigError
from orchestrator.files import failures, make_folder
from orchestrator.procs import live_pid

__all__ = ["KINDS", "Kind", "Lab", "LabNode", "claim", "load", "mark_ready", "read"]

Kind = Literal["namespaces", "loopback", "asyncssh"]
KINDS: tuple[Kind, ...] = ("namespaces", "loopback", "asyncssh")
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class LabNode:
    """One machine of a lab. ``folder`` is where its files lie, seen from the controller's side."""

    name: str
    address: str
    port: int
    folder: Path

    @property
    def home(self) -> Path:
        """The login user's home, seen from outside the node."""
        return self.folder / "home"

    @property
    def pid(self) -> int:
        """The node's first process (PID 1 of its namespace, or its SSH server), 0 while the node is down."""
        return live_pid(self.folder / "pid")


@dataclass(frozen=True, slots=True)
class Lab:
    """A rehearsal cluster that is up. ``marker`` is in the environment of its processes as ``ORCH_LAB``."""

    directory: Path
    marker: str
    kind: Kind
    nodes: tuple[LabNode, ...]
    python: str
    mtu: int

    @property
    def work(self) -> Path:
        """A project directory from which ``orch`` finds the lab's inventory by itself."""
        return self.directory / "work"

    @property
    def inventory(self) -> Path:
        """The inventory of the lab's nodes."""
        return self.work / "inventory" / "cluster.yaml"

    @property
    def ssh_config(self) -> Path:
        """For OpenSSH's own programs: ``ssh -F <this> node1``."""
        return self.directory / "ssh_config"

    @property
    def holder(self) -> int:
        """The process that holds a namespace lab together: its end is the end of every process in it. 0 when gone."""
        return live_pid(self.directory / "holder.pid")

    def node(self, name: str) -> LabNode:
        """Return the node with this name; raises ConfigError naming those there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = " ".join(node.name for node in self.nodes)
        raise ConfigError(f"no node {name!r}", where=f"lab {self.directory}", hint=f"nodes: {known}")


def claim(lab: Lab) -> None:
    """Write ``lab.json`` for a lab that is about to come up; raises ConfigError where the directory is taken."""
    hint = "make it a folder that can be written, or name another one by --dir or ORCH_PROJECT"
    make_folder(lab.directory, hint)
    with failures(lab.directory, hint=hint):
        taken = any(lab.directory.iterdir())
    if taken:
        raise ConfigError("expected an empty or new directory for the lab", kind="unsafe_path", where=str(lab.directory))
    record = {
        "schema": SCHEMA,
        "marker": lab.marker,
        "kind": lab.kind,
        "python": lab.python,
        "mtu": lab.mtu,
        "nodes": [{"name": node.name, "address": node.address, "port": node.port} for node in lab.nodes],
    }
    path = lab.directory / "lab.json"
    with failures(path, hint=hint), path.open("x", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def mark_ready(lab: Lab) -> None:
    """Record that every node answered; before this, `load` refuses the lab."""
    (lab.directory / "ready").touch()


def read(directory: Path) -> Lab | None:
    """Return the lab of this directory whatever its condition, None where there is none."""
    directory = directory.resolve()
    try:
        record = json.loads((directory / "lab.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(directory / "lab.json")) from error
    except ValueError as error:
        raise ConfigError(f"expected JSON, {error}", where=str(directory / "lab.json")) from error
    return _from_record(directory, record)


def load(directory: Path) -> Lab:
    """Return the lab that is up in this directory; raises ConfigError where there is none, or only the rest of one."""
    lab = read(directory)
    if lab is None:
        raise ConfigError(f"no lab is up in {directory}", hint="start one with `orch lab up`")
    alive = lab.holder if lab.kind == "namespaces" else any(node.pid for node in lab.nodes)
    if not alive or not (directory / "ready").exists():
        state = "died" if not alive else "is not up yet, or its start was cut short"
        raise ConfigError(f"the lab in {directory} {state}", hint="clear it with `orch lab down`")
    return lab


def _from_record(directory: Path, record: Mapping[str, Any]) -> Lab:
    nodes = tuple(
        LabNode(name=item["name"], address=item["address"], port=item["port"], folder=directory / "nodes" / item["name"])
        for item in record["nodes"]
    )
    kind = cast(Kind, record["kind"])
    return Lab(directory, record["marker"], kind, nodes, record["python"], record["mtu"])
