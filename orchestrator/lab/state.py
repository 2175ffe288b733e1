"""The state of a lab: `Lab`, `LabNode` and the file ``lab.json``.

A directory is a lab if it contains ``lab.json``. The file is written before anything is started, so
that the remains of a killed ``up`` can be found, and ``down`` removes it last. Process ids are
stored next to it, each with its start time, because a node gets a new one whenever it boots, and
the kernel reuses old ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from orchestrator.errors import ConfigError
from orchestrator.files import failures, make_folder, remove_parts, write_atomic
from orchestrator.procs import live_pid

Kind = Literal["namespaces", "loopback", "asyncssh", "machines"]
KINDS: tuple[Kind, ...] = ("namespaces", "loopback", "asyncssh")
"""The kinds of which the best is chosen; machines are asked for."""
SCHEMA = 1
_OWN_FILES = (
    "asyncssh.log", "authorized_keys", "control", "holder.log", "holder.pid", "holder.pid.part", "id_ed25519", "id_ed25519.pub",
    "known_hosts", "machine.json", "ready", "ssh_config", "work/inventory/cluster.yaml",
)  # fmt: skip
"""The files that a lab makes in its directory, besides ``lab.json`` and the folder ``nodes``."""


@dataclass(frozen=True, slots=True)
class LabNode:
    """One machine of a lab. ``folder`` holds its files, as a path on the controller's side."""

    name: str
    address: str
    port: int
    folder: Path

    @property
    def home(self) -> Path:
        """The login user's home, as a path outside the node."""
        return self.folder / "home"

    @property
    def pid(self) -> int:
        """The node's first process (PID 1 of its namespace, or its SSH server), 0 while the node is
        down.
        """
        return live_pid(self.folder / "pid")


@dataclass(frozen=True, slots=True)
class Lab:
    """A rehearsal cluster. ``marker`` is in the environment of its processes as ``ORCH_LAB``."""

    directory: Path
    marker: str
    kind: Kind
    nodes: tuple[LabNode, ...]
    python: str
    mtu: int
    slurm: bool = False
    pods: bool = False

    @property
    def in_namespaces(self) -> bool:
        """Whether each node is in namespaces of its own, with a cable to the controller's side."""
        return self.kind in ("namespaces", "machines")

    @property
    def work(self) -> Path:
        """The folder of the lab's inventory. Not a project: benches belong to the project that the
        lab was started in.
        """
        return self.directory / "work"

    @property
    def inventory(self) -> Path:
        """The inventory of the lab's nodes."""
        return self.work / "inventory" / "cluster.yaml"

    @property
    def ssh_config(self) -> Path:
        """A configuration for OpenSSH's own programs: ``ssh -F <this> node1``."""
        return self.directory / "ssh_config"

    @property
    def slurm_folder(self) -> Path:
        """The files of Slurm's daemons on the controller's side, if the lab has Slurm; nodes see it
        too.
        """
        return self.directory / "slurm"

    @property
    def slurm_conf(self) -> Path:
        """The configuration of the lab's Slurm, for ``SLURM_CONF``."""
        return self.slurm_folder / "slurm.conf"

    @property
    def pods_folder(self) -> Path:
        """The files of the API server, if the lab has pods; ``kubeconfig`` among them."""
        return self.directory / "pods"

    @property
    def kernel_folder(self) -> Path:
        """The kernel of machines and its modules, if the lab has machines; nodes see it too."""
        return self.directory / "kernel"

    @property
    def holder(self) -> int:
        """Process id of the holder of a lab in namespaces, with which every process of the lab ends. 0 if it
        has ended.
        """
        return live_pid(self.directory / "holder.pid")

    def limit_s(self, least_s: float) -> float:
        """Return a time limit for work on all nodes; they share one machine, so more of them take
        longer.
        """
        return least_s + 0.2 * len(self.nodes)

    def node(self, name: str) -> LabNode:
        """Return the node with this name. Raises ConfigError with the names of all nodes."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = " ".join(node.name for node in self.nodes)
        raise ConfigError(
            f"no node {name!r}", where=f"lab {self.directory}", hint=f"nodes: {names}"
        )


def claim(lab: Lab) -> None:
    """Write ``lab.json`` for a lab that is about to start.

    Raises ConfigError if the directory is not empty, apart from what an earlier lab left in its
    ``work`` because it was not its own.
    """
    hint = "make it a writable folder, or choose another one with --dir or ORCH_PROJECT"
    make_folder(lab.directory, hint, is_input=True)
    with failures(lab.directory, hint=hint, is_input=True):
        entries = [entry for entry in lab.directory.iterdir() if entry != lab.work]
        if entries and all(
            entry.name.endswith(".part") for entry in entries
        ):  # of a start that was killed while it wrote
            remove_parts(lab.directory)
            entries = [entry for entry in entries if entry.exists()]
    if entries:
        raise ConfigError(
            "expected an empty or new directory for the lab",
            kind="unsafe_path",
            where=str(lab.directory),
        )
    record = {
        "schema": SCHEMA,
        "marker": lab.marker,
        "kind": lab.kind,
        "python": lab.python,
        "mtu": lab.mtu,
        "slurm": lab.slurm,
        "pods": lab.pods,
        "nodes": [
            {"name": node.name, "address": node.address, "port": node.port} for node in lab.nodes
        ],
    }
    path = lab.directory / "lab.json"
    write_atomic(
        path, json.dumps(record, indent=1).encode(), 0o644, hint=hint, is_input=True, is_new=True
    )


def mark_ready(lab: Lab) -> None:
    """Record that every node answered; before this, `load` refuses the lab."""
    (lab.directory / "ready").touch()


def read(directory: Path) -> Lab | None:
    """Return the lab of this directory in any condition, None without ``lab.json``."""
    directory = directory.resolve()
    try:
        record = json.loads((directory / "lab.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(directory / "lab.json")
        ) from error
    except ValueError as error:
        raise ConfigError(f"expected JSON, {error}", where=str(directory / "lab.json")) from error
    return _from_record(directory, record)


def load(directory: Path) -> Lab:
    """Return the lab that is up in this directory. Raises ConfigError without a lab, or with only
    the remains of one.
    """
    lab = read(directory)
    if lab is None:
        raise ConfigError(f"no lab is up in {directory}", hint="start one with `orch lab up`")
    alive = lab.holder if lab.in_namespaces else any(node.pid for node in lab.nodes)
    if not alive or not (directory / "ready").exists():
        state = "died" if not alive else "is not up yet, or its start was interrupted"
        raise ConfigError(f"the lab in {directory} {state}", hint="clear it with `orch lab down`")
    return lab


def _from_record(directory: Path, record: Mapping[str, Any]) -> Lab:
    nodes = tuple(
        LabNode(
            name=item["name"],
            address=item["address"],
            port=item["port"],
            folder=directory / "nodes" / item["name"],
        )
        for item in record["nodes"]
    )
    kind = cast(Kind, record["kind"])
    return Lab(
        directory,
        record["marker"],
        kind,
        nodes,
        record["python"],
        record["mtu"],
        record.get("slurm", False),
        record.get("pods", False),
    )


def remove(lab: Lab) -> list[str]:
    """Remove the files that the lab made, and return the names of all others in its directory: they
    are somebody's results.

    ``lab.json`` is removed last: until then a second removal can continue an interrupted one.
    """
    owned = [lab.directory / "nodes"]
    owned += [lab.slurm_folder] if lab.slurm else []
    owned += [lab.pods_folder] if lab.pods else []
    owned += [lab.kernel_folder] if lab.kind == "machines" else []
    for folder in owned:
        if folder.exists():
            shutil.rmtree(folder)
    for name in _OWN_FILES:
        (lab.directory / name).unlink(missing_ok=True)
    for folder in (lab.inventory.parent, lab.work):
        with suppress(OSError):  # not empty, or removed before
            folder.rmdir()
    others = [path for path in lab.directory.iterdir() if path.name != "lab.json"]
    kept = sorted(
        str(entry.relative_to(lab.directory)) for path in others for entry in _contents(lab, path)
    )
    (lab.directory / "lab.json").unlink()
    with suppress(OSError):
        lab.directory.rmdir()
    return kept


def _contents(lab: Lab, path: Path) -> list[Path]:
    return list(path.iterdir()) if path == lab.work else [path]


def last_words(logs: Sequence[Path]) -> str:
    """Return the ends of the first three of these logs that have any text, for a message."""
    texts = [
        path.read_text(encoding="utf-8", errors="replace").strip()[-300:]
        for path in logs
        if path.exists()
    ]
    return "".join([f"; {text}" for text in texts if text][:3])
