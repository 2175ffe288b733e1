"""A node without the network, for tests of the node runner: a work directory, and the runner spoken
to as ssh would.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nodes.node import LEADER, boot_arguments
from orchestrator.plan.framework import run_path
from orchestrator.plan.payload import rank_source, runner_source
from tests.support import judge
from tests.support.judge import LIMIT_S

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="mounting and giving files away need root"
)


def old_interpreters() -> list[str]:
    """Return an interpreter of each version from 3.6 on that this machine has, this one included."""
    # pyenv's own folders first: its shims in PATH start slowly, and fail for all but the chosen
    # versions.
    folders = sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin"))
    folders += [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep)]
    interpreters: dict[tuple[int, int], str] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")) if folder.is_dir() else []:
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            if (
                match
                and int(match[1]) >= 6
                and (3, int(match[1])) not in interpreters
                and os.access(path, os.X_OK)
            ):
                probe = [str(path), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"]
                done = subprocess.run(
                    probe, capture_output=True, text=True, timeout=LIMIT_S, check=False
                )
                if done.returncode == 0:
                    major, minor = map(int, done.stdout.split())
                    interpreters.setdefault((major, minor), str(path))
    interpreters.setdefault(sys.version_info[:2], sys.executable)
    return [path for _, path in sorted(interpreters.items())]


def python_name(path: str) -> str:
    """Return what tells an interpreter from others in the name of a test."""
    return Path(path).name + "@" + Path(path).parent.parent.name


@dataclass(slots=True)
class Line:
    """One call of the runner through a pair of pipes: events come out, orders go in."""

    process: subprocess.Popen[bytes]
    buffer: bytearray = field(default_factory=bytearray)

    def send(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def order(self, do: str, **fields: Any) -> None:
        self.send(json.dumps({**fields, "do": do}).encode() + b"\n")

    def read_line(self) -> dict[str, Any]:
        while b"\n" not in self.buffer.lstrip(b"\n"):  # counted bytes may end with an empty line
            self.more()
        self.buffer[:] = self.buffer.lstrip(b"\n")
        line, _, rest = bytes(self.buffer).partition(b"\n")
        self.buffer[:] = rest
        value: dict[str, Any] = json.loads(line)
        return value

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.more()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def more(self) -> None:
        assert self.process.stdout
        ready = select.select([self.process.stdout], [], [], LIMIT_S)[0]
        assert ready, f"nothing within {LIMIT_S:g} s, so far {bytes(self.buffer)!r}"
        data = os.read(self.process.stdout.fileno(), 65536)
        assert data, f"the line ended, after {bytes(self.buffer)!r}"
        self.buffer += data

    def wait_for(self, event: str) -> dict[str, Any]:
        """Return the next event of that name; others are passed over."""
        while True:
            reply = self.read_line()
            if reply.get("event") == event or (event == "error" and "error" in reply):
                return reply

    def told(self, event: str, within_s: float) -> dict[str, Any] | None:
        """Return the next event of that name if it comes within that time, and None if it does not."""
        deadline = time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0:
            if (
                b"\n" in self.buffer.lstrip(b"\n")
                or select.select([self.process.stdout], [], [], left_s)[0]
            ):
                line = self.read_line()
                if line.get("event") == event:
                    return line
        return None

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            try:
                stream.close()
            except BrokenPipeError:
                continue
        self.process.wait(LIMIT_S)


@dataclass(slots=True)
class Machine:
    """A work directory and the runner over it: a node without the network. ``mark`` tells it from
    others of this machine, its own work directory if not given; ``user`` is who logs in, ``name``
    the node's name in the inventory."""

    root: Path
    python: str = sys.executable
    mark: str = ""
    user: int | None = None
    name: str = "node1"
    lines: list[Line] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def call(self, op: str, **request: Any) -> Line:
        """Start one operation; the answer's mark is taken off."""
        source = runner_source()
        argv = [self.python, *boot_arguments(source)]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={
                "PATH": os.environ["PATH"],
                "ORCH_LAB_NODE": self.mark or str(self.root),
                **self.environment,
            },
            user=self.user,
        )
        line = Line(process)
        self.lines.append(line)
        header = {"root": str(self.root), "node": self.name, **request, "op": op, "nonce": "n0nce"}
        line.send(LEADER + source + json.dumps(header).encode() + b"\n")
        assert line.read(len(b"ORCH n0nce\n")) == b"ORCH n0nce\n"
        return line

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        """Return the one line that answers an operation."""
        line = self.call(op, **request)
        answer = line.read_line()
        line.close()
        return answer

    def put(self, *files: tuple[str, bytes, int]) -> dict[str, Any]:
        """Send files as (path, content, mode); return the last answer."""
        listing = [
            {
                "path": path,
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "mode": mode,
            }
            for path, content, mode in files
        ]
        line = self.call("put", files=listing)
        answer = line.read_line()
        if "missing" in answer:
            try:
                for index in answer["missing"]:
                    line.send(files[index][1])
            except BrokenPipeError:
                pass
            answer = line.read_line()
        line.close()
        return answer

    def stage(self, run: str, script: str) -> dict[str, str]:
        """Put the wrapper of ranks and a launch script in place; return the digests of the run's
        files.
        """
        if run not in self.runs:
            self.runs.append(run)
        answer = self.put(
            ("payload/x/rank_wrapper.py", rank_source(), 0o600),
            (run_path(self.name, run) + "/launch.sh", script.encode(), 0o700),
        )
        assert answer == {"done": True}, answer
        return {"launch.sh": hashlib.sha256(script.encode()).hexdigest()}

    def supervisor(self, run: str, *, start: bool = True, **request: Any) -> Line:
        line = self.call("line", run=run, start=start, wait_s=5, stay=60, **request)
        assert line.read_line()["event"] == "hello"
        return line

    def arm(self, line: Line, run: str, files: dict[str, str], **changes: Any) -> None:
        order = {
            "run_id": run, "node_rank": 0, "argv": ["/bin/bash", "launch.sh"], "files": files, "ports": [],
            "lease_s": LIMIT_S, "limit_s": LIMIT_S, "variables": "export SECRET=1\n", "grace_s": 0.5,
            "output_limit_bytes": 1 << 30, "owner": {"user": "me", "run_id": run},
        }  # fmt: skip
        line.order("arm", **(order | changes))

    def start(self, run: str, script: str, **changes: Any) -> Line:
        """Stage, arm and start a run; return the line to its supervisor."""
        files = self.stage(run, script)
        line = self.supervisor(run)
        self.arm(line, run, files, **changes)
        line.wait_for("armed")
        line.order("go", at=None)
        line.wait_for("started")
        return line

    def close(self) -> None:
        """End every line, and find nothing of any run left."""
        for line in self.lines:
            line.process.kill()
            for stream in (line.process.stdin, line.process.stdout, line.process.stderr):
                assert stream
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
            line.process.wait(LIMIT_S)
        deadline = time.monotonic() + 3 * judge.patience
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "processes of the test's runs were left"

    def left(self) -> list[int]:
        return [pid for run in self.runs for pid in (*bearing(run), *supervisors(self.folder(run)))]

    def folder(self, run: str) -> Path:
        return self.root / run_path(self.name, run)

    def wait_for_log(self, run: str, name: str, content: bytes) -> None:
        """Wait until a log holds exactly this."""
        path = self.folder(run) / "logs" / name
        judge.wait_for(
            lambda: path.exists() and path.read_bytes() == content, 5, f"{path} does not come"
        )

    def record(self, run: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder(run) / "exit.json").read_text())
        return value


def bearing(run: str) -> list[int]:
    """Return the processes whose environment names the run, by our own look into /proc; defunct
    ones have none.
    """
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"ORCH_RUN_ID={run}\0".encode() in (entry / "environ").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


def wait_for_process(run: str) -> int:
    """Return the only process of a run, once its program is loaded: a process shows no environment
    while it executes one.
    """
    found: list[int] = []

    def there() -> bool:
        found[:] = bearing(run)
        return len(found) == 1

    judge.wait_for(there, LIMIT_S, "no process of the run is there")
    return found[0]


def supervisors(folder: Path) -> list[int]:
    """Return the supervisors of a run directory."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                at = str((entry / "cwd").readlink()).removesuffix(" (deleted)")
                if (entry / "comm").read_text() == "orch-supervisor\n" and at == str(
                    folder.resolve()
                ):
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


# A supervisor ends all processes with its run's id, also those of a suite beside this one.
RUN = f"run-{os.getpid()}"
SLEEP = "#!/bin/bash\nexec sleep 1000\n"


def rank(code: str, number: int = 0) -> str:
    """Return the lines of a launch script that start Python code as a rank."""
    wrapper = f"{sys.executable} -I -S ../../../../payload/x/rank_wrapper.py --"
    return f"RANK={number} LOCAL_RANK={number} {wrapper} {sys.executable} -c '{code}'"


DEAF = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"
)


def fetched(
    machine: Machine, have: dict[str, int], **limits: int
) -> tuple[dict[str, bytes], dict[str, Any]]:
    return read_logs(
        machine.call(
            "get", run=RUN, have=have, **({"max_bytes": 1 << 30, "max_files": 100} | limits)
        ),
        have,
    )


def read_logs(line: Line, have: dict[str, int]) -> tuple[dict[str, bytes], dict[str, Any]]:
    logs: dict[str, bytes] = {}
    while not (head := line.read_line()).get("done"):
        data = line.read(head["bytes"])
        data = zlib.decompress(data, -15) if head["packed"] else data
        assert head["offset"] == have.get(head["name"], 0) + len(logs.get(head["name"], b""))
        logs[head["name"]] = logs.get(head["name"], b"") + data
    head["record"] = line.read(head["bytes"])
    line.close()
    return logs, head
