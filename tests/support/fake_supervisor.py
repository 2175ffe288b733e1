"""The supervisor of a run that behaves, and the line to it: it arms, starts, beats and ends, in
memory and in the run's folder.

Time limits of a run are not kept here: the supervisor's own tests have them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchError, RunError
from tests.support.timers import call_later

if TYPE_CHECKING:
    from tests.support.fake_node import FakeNode

__all__ = ["FakeSupervisor", "FakeLine", "Program", "Rank", "digest", "idle"]


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank: its output at the start, and its end some seconds later; by default it lasts until it
    is stopped.
    """

    out: bytes = b""
    code: int = 0
    after_s: float = math.inf


Program = Callable[[Mapping[str, Any]], Mapping[int, Rank]]
"""Takes a node's order to arm and returns what its ranks do."""


def idle(order: Mapping[str, Any]) -> dict[int, Rank]:
    """One rank a node, which says nothing and ends well at once."""
    return {order["node_rank"]: Rank(after_s=0.0)}


class FakeLine:
    """The line to a supervisor: what `SupervisorLine` is."""

    via = ""

    def __init__(self, supervisor: FakeSupervisor) -> None:
        self._supervisor, self._waiting, self._closed = supervisor, list[dict[str, Any]](), False
        self._deliver: Callable[[str, dict[str, Any]], None] | None = None
        self.host = supervisor.node.host
        self.hello = supervisor.hello()
        supervisor.lines.append(self)

    def start(self, deliver: Callable[[str, dict[str, Any]], None]) -> None:
        self._deliver = deliver
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.hand_over(event)

    def send(self, do: str, **fields: Any) -> None:
        if not self._closed:
            self._supervisor.obey(self, json.loads(json.dumps({**fields, "do": do})))

    def close(self, wait_s: float = 0.0) -> None:
        self._closed = True
        self._supervisor.hang_up(self)

    def hand_over(self, event: dict[str, Any]) -> None:
        if self._deliver is None:
            self._waiting.append(event)
        elif not self._closed:
            self._deliver(self.host.name, {**event, "line": self, "at": time.monotonic()})

    def lose(self, error: OrchError) -> None:
        self.hand_over({"event": "lost", "error": error})
        self.close()


class FakeSupervisor:
    """The owner of one run on one node. States: new, armed, running, stopping, ended, gone."""

    def __init__(self, node: FakeNode, run_id: str) -> None:
        self.node, self.run_id, self.folder = node, run_id, node.folder(run_id)
        self.state, self.reason = "new", ""
        self.started: float | None = None
        self.stopped: float | None = None
        self.record: dict[str, Any] | None = None
        self.order: dict[str, Any] = {}
        self.ranks: dict[int, dict[str, Any]] = {}
        self.program: Mapping[int, Rank] = {}
        self.lines: list[FakeLine] = []
        self.lock = threading.RLock()

    def hello(self) -> dict[str, Any]:
        state = {"state": self.state, "started": self.started, "record": self.record}
        return {"event": "hello", **state, "boot_id": self.node.boot_id}

    def tell(self, event: str, **fields: Any) -> None:
        for line in list(self.lines):
            self.answer(line, event, **fields)

    def answer(self, line: FakeLine, event: str, **fields: Any) -> None:
        if not self.node.silent:
            line.hand_over({**fields, "event": event})

    def hang_up(self, line: FakeLine) -> None:
        with self.lock:
            if line in self.lines:
                self.lines.remove(line)
            if not self.lines and self.state in ("new", "armed", "ended"):
                self.leave()

    def leave(self) -> None:
        self.state = "gone"
        self.node.supervisors.pop(self.run_id, None)

    def obey(self, line: FakeLine, order: dict[str, Any]) -> None:
        with self.lock:
            if self.node.silent or self.state == "gone":
                return
            match order["do"]:
                case "arm":
                    self.arm(line, order)
                case "beat":
                    self.beat(line, order)
                case "go":
                    self.state, wait_s = "running", order["at"] - time.monotonic()
                    call_later(wait_s, self.start)
                case "stop":
                    self.stop(order["reason"])
                case "finish" if (
                    self.state == "running"
                ):  # which what waits here takes for its good end
                    self.end_ranks(0, None)
                case "bye" if self.state in ("new", "armed", "ended"):
                    self.leave()

    def arm(self, line: FakeLine, order: dict[str, Any]) -> None:
        held = next(
            (
                other
                for other in self.node.supervisors.values()
                if other.order and other is not self
            ),
            None,
        )
        wrong = [
            path
            for path, sha in order["files"].items()
            if digest((self.folder / path).read_bytes()) != sha
        ]
        refused: dict[str, Any] = {}
        if self.node.refusals:
            kind, message = self.node.refusals.pop(0)
            refused = {"kind": kind, "message": message}
        elif held:
            owner = json.dumps(held.order["owner"])
            refused = {
                "kind": "node_busy",
                "message": "another run holds this node",
                "owner": owner,
            }
        elif wrong:
            refused = {
                "kind": "transfer_corrupt",
                "message": f"{self.folder / wrong[0]} differs from what was sent",
            }
        if refused:
            self.answer(line, "error", **refused)
            line.lose(
                RunError(
                    "the node runner ended before it had answered",
                    kind="node_unfit",
                    host=self.node.host.name,
                )
            )
            return
        self.order, self.program, self.state = order, self.node.program(order), "armed"
        (self.folder / "logs").mkdir()
        self.tell("armed", pid=1, boot_id=self.node.boot_id)

    def beat(self, line: FakeLine, order: dict[str, Any]) -> None:
        fields = {"n": order["n"], "mono": time.monotonic(), "state": self.state}
        if (tail := order.get("tail")) and self.state in ("running", "stopping"):
            log = self.folder / "logs" / tail["file"]
            data = log.read_bytes()[tail["offset"] :][:16384] if log.exists() else b""
            fields |= {"data": base64.b64encode(data).decode(), "offset": tail["offset"]}
        if self.node.waits:
            fields["waits_for"], fields["waits_s"] = self.node.waits
        self.answer(line, "beat", **fields)

    def start(self) -> None:
        with self.lock:
            if self.state != "running":
                return
            for name in (
                "node.out",
                "node.err",
                *(f"rank-{rank}.{end}" for rank in self.program for end in ("out", "err")),
            ):
                (self.folder / "logs" / name).touch()
            for rank, does in self.program.items():
                (self.folder / "logs" / f"rank-{rank}.out").write_bytes(does.out)
                call_later(
                    does.after_s, lambda rank=rank, code=does.code: self.end_rank(rank, code, None)
                )
            self.started = time.monotonic()
            self.tell("started", mono=self.started)

    def end_rank(self, rank: int, code: int | None, signal: str | None) -> None:
        with self.lock:
            if rank in self.ranks or self.state not in ("running", "stopping"):
                return
            fields = {
                "rank": rank,
                "code": code,
                "signal": signal,
                "ended_mono_s": time.monotonic(),
            }
            fields |= {"local_rank": 0, "wrapper": 1, "pid": 2, "started_mono_s": self.started}
            self.ranks[rank] = fields
            self.tell("rank", **fields)
            if code != 0 and self.state == "running":
                self.stop(f"rank_failed: rank {rank} ended with {signal or f'exit code {code}'}")
            elif len(self.ranks) == len(self.program) and self.state == "running":
                self.end()

    def stop(self, reason: str) -> None:
        with self.lock:
            if self.state == "running":
                self.state, self.reason, self.stopped = "stopping", reason, time.monotonic()
                self.tell("stopping", reason=reason, mono=self.stopped)
                self.end_ranks(None, "SIGTERM")
            elif self.state in ("new", "armed"):
                self.leave()

    def end_ranks(self, code: int | None, signal: str | None) -> None:
        self.state = "stopping"
        for rank in self.program:
            self.end_rank(rank, code, signal)
        self.end()

    def end(self) -> None:
        failed = any(rank["code"] != 0 for rank in self.ranks.values()) or bool(self.reason)
        state = "failed" if failed else "finished"
        if self.reason and not self.reason.startswith("rank_failed"):
            state = "stopped"
        logs = sorted(
            path
            for path in (self.folder / "logs").iterdir()
            if path.is_file() and not path.is_symlink()
        )
        self.record = {
            "schema": 1,
            "run_id": self.run_id,
            "node_rank": self.order["node_rank"],
            "state": state,
            "code": None if failed else 0,
            "signal": "SIGTERM" if failed else None,
            "reason": self.reason,
            "started_mono_s": self.started,
            "stopped_mono_s": self.stopped,
            "ended_mono_s": time.monotonic(),
            "boot_id": self.node.boot_id,
            "oom_kills": 0,
            "left_over": [],
            "stuck": [],
            "meter": {"growth": []},
            "ranks": [self.ranks[rank] for rank in sorted(self.ranks)],
            "files": {
                log.name: {"bytes": log.stat().st_size, "sha256": digest(log.read_bytes())}
                for log in logs
            },
        }
        (self.folder / "exit.json").write_text(json.dumps(self.record))
        self.state = "ended"
        self.tell("ended", record=self.record)
        if not self.lines:
            self.leave()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
