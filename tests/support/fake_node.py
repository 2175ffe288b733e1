"""A node that behaves, in a folder and in memory: no process, no network, no root.

`FakeNode` answers as `orchestrator.nodes.node.Node` does and `FakeCluster` as
`orchestrator.nodes.cluster.Cluster`; ``tests/contract/test_fake_node.py`` makes the same assertions
about the fake and the real one. ``program`` says what the ranks of a run do. Faults are attributes,
to be set before or while a run goes on.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.errors import Faults, OrchError, RunError, TransportError
from orchestrator.inventory import NO_SECRETS, Redaction
from orchestrator.inventory.hosts import Host
from orchestrator.nodes.node import Sink, Upload, Wanted
from orchestrator.plan.framework import run_path
from orchestrator.transport import Result
from tests.support.fake_supervisor import FakeLine, FakeSupervisor, Program, digest, idle

__all__ = ["FakeCluster", "FakeNode"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class FakeTransport:
    """The line under a node: whether it is up, and the one shell command that a deploy asks."""

    via, host_key, unread = "", "SHA256:fake", False

    def __init__(self, node: FakeNode) -> None:
        self.node, self.alive, self.host = node, True, node.host
        self.host_key = f"SHA256:{node.host.name}"

    def greets(self, is_needed: Callable[[], bool]) -> bool:
        return self.node.greets and is_needed()

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Result:
        """Answer `Deployed.question` from the folder, as cd, sha256sum and stat would."""
        self.node.reached()
        machine, _, rest = argv[-1].partition("; ")
        where, text = Path(shlex.split(machine)[2]), self.node.machine
        lines: list[str | None]
        for program, *words in (shlex.split(command) for command in rest.split(" && ")):
            match program:
                case "cd":
                    where = where / words[0]
                    lines = [] if where.is_dir() else [None]
                case "sha256sum":
                    files = [(where / name, name) for name in words[1:]]
                    lines = [
                        f"{digest(path.read_bytes())}  {name}" if path.is_file() else None
                        for path, name in files
                    ]
                case "stat":
                    states = [
                        (path, self.node.paths.get(path)) for path in words[words.index("--") + 1 :]
                    ]
                    lines = [f"{path} {state}" if state else None for path, state in states]
                case _:
                    raise AssertionError(f"expected cd, sha256sum or stat, got {program}")
            text += "".join(f"{line}\n" for line in lines if line is not None)
            if None in lines:
                return Result(1, None, text.encode(), b"")
        return Result(0, None, text.encode(), b"")

    def close(self) -> None:
        self.alive = False


class FakeNode:
    """A host and its runner.

    Faults: ``refusals`` (kind, message) of its next runs, ``silent``, ``away`` (no connection can
    be made), ``greets``, ``stranger`` (new connections, counted in ``contacts``, reach a server
    with another host key), ``corrupt_fetches`` (so many answers with a wrong byte), ``leftovers``
    (process numbers), ``unverified`` (processes that may belong to a run), ``waits`` (the mount that does not answer its
    supervisors, and for how long), `break_lines`, `die`.
    """

    def __init__(self, host: Host, root: Path, program: Program = idle) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.host, self.root, self.program = host, root, program
        self.login_s = 0.0
        self.redaction = NO_SECRETS
        self.transport = FakeTransport(self)
        self.supervisors: dict[str, FakeSupervisor] = {}
        self.asked: list[str] = []
        self.owner: str | None = None
        self.facts: dict[str, Any] = {}
        self.boot_id, self.machine, self.paths = (
            f"boot of {host.name}",
            f"boot of {host.name}\n",
            {"/usr/bin/python3": "1 2 3"},
        )
        self.refusals: list[tuple[str, str]] = []
        self.silent = self.away = self.greets = self.stranger = False
        self.waits: tuple[str, float] | None = None
        self.contacts = 0
        self.corrupt_fetches = 0
        self.leftovers: list[int] = []
        self.unverified: list[tuple[int, str]] = []

    def break_lines(self) -> None:
        """Lose the connection, and all that is said over it, while the supervisors go on."""
        self.transport.alive = False
        for supervisor in list(self.supervisors.values()):
            for line in list(supervisor.lines):
                line.lose(TransportError("the line broke", kind="node_lost", host=self.host.name))

    def die(self) -> None:
        """Kill the supervisors, which leave no record."""
        supervisors, self.supervisors = list(self.supervisors.values()), {}
        for supervisor in supervisors:
            supervisor.state = "gone"
            for line in list(supervisor.lines):
                line.lose(
                    RunError(
                        "the node runner ended before it had answered",
                        kind="node_unfit",
                        host=self.host.name,
                    )
                )

    def folder(self, run_id: str) -> Path:
        return self.root / run_path(self.host.name, run_id)

    def reached(self) -> None:
        if self.silent or not self.transport.alive:
            raise TransportError(
                "no answer from the node runner", kind="node_lost", host=self.host.name
            )

    def put(self, files: Sequence[Upload], *, timeout_s: float) -> int:
        self.reached()
        missing = []
        for file in files:
            if not all(_NAME.fullmatch(part) for part in file.path.split("/")):
                raise RunError(
                    f"unsafe path {file.path!r}", kind="unsafe_path", host=self.host.name
                )
            if not self.holds(self.root / file.path, file):
                others = self.root.glob(file.elsewhere) if file.elsewhere else ()
                if any(self.holds(path, file) for path in others):
                    self.write(file)
                else:
                    missing.append(file)
        for file in missing:
            self.write(file)
        return sum(len(file.content) for file in missing)

    def holds(self, path: Path, file: Upload) -> bool:
        return path.is_file() and digest(path.read_bytes()) == file.sha256

    def write(self, file: Upload) -> None:
        path = self.root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)

    def fetch(
        self,
        run_id: str,
        have: Mapping[str, int],
        sink: Sink,
        *,
        timeout_s: float,
        max_bytes: int,
        max_files: int,
    ) -> Wanted | None:
        self.reached()
        folder = self.folder(run_id)
        if not (folder / "logs").is_dir():
            return None
        entries = sorted(
            (folder / "logs").iterdir(),
            key=lambda path: (not path.name.startswith(("node.", "rank-")), path.name),
        )
        logs = [path for path in entries if path.is_file() and not path.is_symlink()]
        room, corrupt = max_bytes, self.corrupt_fetches > 0
        self.corrupt_fetches -= corrupt and bool(max_files)
        for path in logs[:max_files]:
            data, room = path.read_bytes()[:room], room - min(room, path.stat().st_size)
            if rest := data[have.get(path.name, 0) :]:
                rest = bytes([rest[0] ^ 1]) + rest[1:] if corrupt else rest
                sink(path.name, have.get(path.name, 0))(memoryview(rest))
        record = (folder / "exit.json").read_bytes() if (folder / "exit.json").exists() else b""
        odd = tuple(path.name for path in entries if path not in logs)
        sizes = {path.name: path.stat().st_size for path in logs}
        return Wanted(
            sizes,
            record,
            run_id in self.supervisors,
            max(0, len(logs) - max_files),
            self.boot_id,
            odd,
        )

    def supervisor(self, run_id: str, *, start: bool, timeout_s: float) -> FakeLine:
        self.reached()
        if start:
            self.supervisors.setdefault(run_id, FakeSupervisor(self, run_id))
        if run_id not in self.supervisors:
            raise TransportError("no supervisor answers", kind="node_lost", host=self.host.name)
        return FakeLine(self.supervisors[run_id])

    def ask(self, op: str, *, timeout_s: float, **request: Any) -> dict[str, Any]:
        self.reached()
        self.asked.append(op)
        answer: dict[str, Any] = getattr(self, f"_{op}")(**request)
        return answer

    def close(self) -> None:
        self.transport.close()

    def _status(self) -> dict[str, Any]:
        return {
            "runs": {
                name: 1
                for name, supervisor in self.supervisors.items()
                if supervisor.state == "running"
            },
            "owner": self.owner,
        }

    def _left(self, run: str) -> dict[str, Any]:
        left = [[pid, run] for pid in self.leftovers]
        return {"left": left, "supervisor": run in self.supervisors, **self._doubtful(run)}

    def _doubtful(self, run: str | None) -> dict[str, Any]:
        return (
            {"unverified": {run: [list(row) for row in self.unverified]}} if self.unverified else {}
        )

    def _stop(self, reason: str, grace_s: float, run: str | None = None) -> dict[str, Any]:
        stopped = [
            supervisor for name, supervisor in self.supervisors.items() if run in (None, name)
        ]
        for supervisor in stopped:
            supervisor.stop(reason)
        self.leftovers.clear()
        return {
            "stopped": [supervisor.run_id for supervisor in stopped],
            "left": [],
            **self._doubtful(run),
        }

    def _drop(self, run: str, finished: bool) -> dict[str, Any]:
        folder = self.folder(run)
        gone = (
            folder.is_dir()
            and run not in self.supervisors
            and (finished or not (folder / "exit.json").exists())
        )
        if gone:
            shutil.rmtree(folder)
        return {"dropped": gone or not folder.is_dir()}

    def _facts(
        self, python: str, ports: Sequence[int], capture: str, **request: Any
    ) -> dict[str, Any]:
        told = {
            "smi": None,
            "topology": None,
            "driver": "",
            "kernel_log": {"closed": "not asked"},
            "infiniband": [],
            "peermem": False,
        }
        facts = {
            "hostname": self.host.name, "boot_id": self.boot_id, "kernel": "6.1.0", "machine": "x86_64", "user": "u",
            "runner_python": "3.11.2", "cpu": "a processor", "cores": 8, "cpu_limit": None,
            "memory_bytes": 1 << 34, "workdir": str(self.root),
            "disk_free_bytes": 1 << 34, "disk_error": None, "shm_bytes": 1 << 33, "verbs": 0,
            "time": time.time(), "ports_busy": [],
            "limits": {name: [None, None] for name in ("memlock", "nofile", "nproc", "core")},
            "framework": {"python": "3.11.2"}, "imported": True, "hostname_addresses": [self.host.address], "programs": {},
            "held_by": None, "workdir_first": f"{self.host.name} in {capture}", "disk_free_inodes": None,
            "workdir_open": "", "processes_left": [],
            "load": {"count": 8, "busy_s": 0.0, "own_s": 0.0, "switches": [0, 0], "seconds": 0.1},
        }  # fmt: skip
        if request.get("peers"):
            facts["route"] = {
                "interface": "eth0",
                "mtu": 1500,
                "speed_mbit": 10000,
                "kind": "1",
                "to": "",
                "local": False,
            }
        packed = base64.b64encode(zlib.compress(json.dumps(told).encode())).decode()
        standing = {"machine": self.machine, "paths": dict(self.paths)}
        return {"facts": facts | self.facts, "told": packed, "standing": standing}


class FakeCluster:
    """The nodes of a bench: `Cluster` over `FakeNode`."""

    def __init__(self, nodes: Sequence[FakeNode], redaction: Redaction = NO_SECRETS) -> None:
        self.redaction = redaction
        for node in nodes:
            node.redaction = redaction
        self.machines = {node.host.name: node for node in nodes}
        self.hosts = tuple(node.host for node in nodes)
        self.nodes: dict[str, FakeNode] = {}
        self.fates: dict[str, TransportError] = {}

    def fate(self, name: str) -> TransportError | None:
        return self.fates.get(name)

    def open(self) -> FakeCluster:
        missing = [
            name
            for name in self.machines
            if name not in self.nodes or not self.nodes[name].transport.alive
        ]
        if errors := [_unreachable(name) for name in missing if self.machines[name].away]:
            raise Faults(errors)
        for name in missing:
            self.reconnect(name)
        return self

    def open_what_answers(self) -> dict[str, OrchError]:
        missing = [
            host.name
            for host in self.hosts
            if host.name not in self.nodes or not self.nodes[host.name].transport.alive
        ]
        errors = {}
        for name in missing:
            try:
                self.reconnect(name)
            except OrchError as error:
                errors[name] = error
        return errors

    def keep(self, hosts: Sequence[Host]) -> FakeCluster:
        self.hosts = tuple(hosts)
        names = [host.name for host in hosts]
        for name in [name for name in self.nodes if name not in names]:
            self.nodes.pop(name).close()
        self.machines = {name: self.machines[name] for name in names}
        return self

    def reconnect(self, name: str) -> FakeNode:
        if old := self.nodes.pop(name, None):
            old.transport.close()
        node = self.machines[name]
        if node.away:
            raise _unreachable(name)
        node.contacts += 1
        if node.stranger:
            raise TransportError(
                "the host key changed: known:1 has A, the host offers B",
                kind="host_key_changed",
                host=name,
            )
        node.transport = FakeTransport(node)
        self.nodes[name] = node
        return node

    def ready_for_runs(self, hosts: Sequence[Host]) -> None:
        """Nothing is needed: no relay ends what it starts here."""

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        self.nodes.clear()

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _unreachable(name: str) -> OrchError:
    return TransportError("connection refused", kind="host_unreachable", host=name)
