"""The same assertions about a real node behind a real sshd and about the fake one, so that the fake
cannot drift.
"""

from __future__ import annotations

import hashlib
import queue
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunError, TransportError
from orchestrator.inventory.hosts import Host
from orchestrator.nodes.collect import collect_host, left_behind
from orchestrator.nodes.deploy import is_unchanged
from orchestrator.nodes.node import Node, Upload
from orchestrator.plan.framework import run_path
from orchestrator.plan.payload import rank_source, runner_source
from orchestrator.record.deploys import Deployed
from orchestrator.record.node_record import ExitRecord
from orchestrator.record.rundir import RunDir
from orchestrator.transport.ssh import Transport
from tests.contract.rig import Rig
from tests.support.fake_node import FakeNode
from tests.support.fake_supervisor import Rank
from tests.support.judge import LIMIT_S

WRAPPER = Upload("payload/x/rank_wrapper.py", rank_source())
# Names of their own: a node runner knows what is a run's by its marker, on the whole machine.
RUN, OTHER = (f"contract-{secrets.token_hex(8)}-{number}" for number in (1, 2))
OWNER = {"user": "u", "controller": "c", "process": 1, "since": "now"}
FACTS = {
    "python": [sys.executable],
    "probe": "print('{}')",
    "probe_timeout_s": 20,
    "environment": "",
    "ports": [],
    "programs": [],
    "capture": "c1",
}


def script(rank: Rank) -> bytes:
    """The launch script of one rank that does what the fake is told to do."""
    wait = f"sleep {rank.after_s if rank.after_s < 60 else 60}"
    body = f"printf %s '{rank.out.decode()}'; {wait}; exit {rank.code}"
    start = f'{sys.executable} -I -S "$PWD/../../../../{WRAPPER.path}" -- sh -c "$BODY"'
    return f"BODY=$(cat <<'END'\n{body}\nEND\n)\nexport BODY RANK=0 LOCAL_RANK=0\nexec {start}\n".encode()


@dataclass
class Subject:
    """A node, real or fake, and the events of its supervisor."""

    node: Any
    fake: FakeNode | None

    def line(self, rank: Rank, run: str = RUN) -> Any:
        """Stage a run of one rank and return the line to its supervisor."""
        if self.fake:
            self.fake.program = lambda order: {0: rank}
        self.node.put(
            [
                WRAPPER,
                Upload(f"{run_path(self.node.host.name, run)}/launch.sh", script(rank), 0o700),
            ],
            timeout_s=LIMIT_S,
        )
        return self.listen(self.node.supervisor(run, start=True, timeout_s=LIMIT_S))

    def listen(self, line: Any) -> Any:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        line.start(lambda host, event: self.events.put({**event, "host": host}))
        return line

    def event(self, name: str) -> dict[str, Any]:
        """Wait for the next event, which has to be of that name; the answers to beats are passed
        over.
        """
        while (event := self.events.get(timeout=LIMIT_S))["event"] == "beat" and name != "beat":
            continue
        assert event["event"] == name, event
        assert event["host"] == self.node.host.name and event["at"] <= time.monotonic()
        return event

    def arm(self, line: Any, rank: Rank, run: str = RUN, **changes: Any) -> None:
        files = {"launch.sh": hashlib.sha256(script(rank)).hexdigest()}
        order = {
            "run_id": run,
            "node_rank": 0,
            "argv": ["sh", "launch.sh"],
            "files": files,
            "variables": "",
            "ports": [],
        }
        order |= {
            "by_marker": False,
            "lease_s": 20.0,
            "limit_s": 60.0,
            "first_line_s": 60.0,
            "stall_s": 60.0,
            "progress": [],
        }
        line.send(
            "arm",
            **order
            | {"grace_s": 0.5, "output_limit_bytes": 1 << 30, "owner": OWNER | {"run_id": run}}
            | changes,
        )

    def started(self, rank: Rank) -> Any:
        line = self.line(rank)
        self.arm(line, rank)
        self.event("armed")
        line.send("go", at=time.monotonic() + 0.05)
        self.event("started")
        return line


@pytest.fixture(params=["real", "fake"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    root = tmp_path / "work"
    if request.param == "fake":
        fake = FakeNode(Host("lab1", "127.0.0.1", gpus=0), root)
        yield Subject(fake, fake)
        return
    rig: Rig = request.getfixturevalue("rig")
    # A node of its own, so that a run of another test on this machine does not hold it.
    transport: Transport = rig.connect(rig.serve(f"SetEnv HOME={tmp_path} ORCH_LAB_NODE={root}"))
    transport.host = replace(transport.host, vars={"workdir": str(root)})
    node = Node(transport, runner_source())
    yield Subject(node, None)
    for run in (RUN, OTHER):
        node.ask("stop", run=run, grace_s=0.2, reason="over", timeout_s=LIMIT_S)
    node.close()


def shape(value: Any) -> Any:
    """The names and types of an answer, without its values."""
    if isinstance(value, Mapping):
        return {key: shape(one) for key, one in sorted(value.items())}
    return (
        type(value).__name__ if not isinstance(value, list) else [shape(one) for one in value[:1]]
    )


def test_files_are_sent_once_and_only_below_the_work_directory(subject: Subject) -> None:
    files = [Upload("payload/x/a", b"aa"), Upload("payload/x/b", b"b")]
    assert [subject.node.put(files, timeout_s=LIMIT_S) for _ in range(2)] == [3, 0]
    assert subject.node.put([Upload("payload/x/b", b"cc")], timeout_s=LIMIT_S) == 2
    with pytest.raises(RunError, match="unsafe path") as caught:
        subject.node.put([Upload("../out", b"x")], timeout_s=LIMIT_S)
    assert (caught.value.kind, caught.value.host) == ("unsafe_path", subject.node.host.name)


def test_what_another_set_holds_is_copied_and_not_sent(subject: Subject, tmp_path: Path) -> None:
    first, other = (
        Upload(f"payload/{name}/a", b"aaa", elsewhere="payload/*/a") for name in ("x", "y")
    )
    assert (
        subject.node.put([first, other], timeout_s=LIMIT_S) == 6
    )  # asked for before either was there
    third = Upload("payload/z/a", b"aaa", 0o700, elsewhere="payload/*/a")
    assert subject.node.put([third], timeout_s=LIMIT_S) == 0
    copy = tmp_path / "work" / third.path
    assert copy.read_bytes() == b"aaa" and copy.stat().st_mode & 0o777 == 0o700
    assert (
        subject.node.put(
            [Upload("payload/z/b", b"aaa", elsewhere="payload/*/b")], timeout_s=LIMIT_S
        )
        == 3
    )
    assert (
        subject.node.put(
            [Upload("payload/v/a", b"bbb", elsewhere="payload/*/a")], timeout_s=LIMIT_S
        )
        == 3
    )


def test_a_run_that_is_not_there(subject: Subject) -> None:
    node = subject.node
    assert node.ask("left", run=RUN, timeout_s=LIMIT_S) == {"left": [], "supervisor": False}
    status = node.ask("status", timeout_s=LIMIT_S)
    assert (
        set(status) == {"runs", "owner"} and RUN not in status["runs"] and status["owner"] is None
    )
    assert node.ask("drop", run=RUN, finished=False, timeout_s=LIMIT_S) == {"dropped": True}
    assert node.ask("stop", run=RUN, grace_s=0.1, reason="x", timeout_s=LIMIT_S) == {
        "stopped": [],
        "left": [],
    }
    assert left_behind(node, RUN, timeout_s=LIMIT_S) is None
    node.put([Upload(f"{run_path(node.host.name, RUN)}/launch.sh", b"")], timeout_s=LIMIT_S)
    with pytest.raises(TransportError) as caught:
        node.supervisor(RUN, start=False, timeout_s=LIMIT_S)
    assert (
        caught.value.kind == "node_lost"
        and node.transport.alive
        and not node.transport.unread
        and node.transport.via == ""
    )


def test_a_run_that_ends_well_is_told_and_recorded_and_fetched(
    subject: Subject, tmp_path: Path
) -> None:
    rank = Rank(b"hello", after_s=0.3)
    line = subject.line(rank)
    assert shape(line.hello) == {
        "boot_id": "str",
        "event": "str",
        "record": "NoneType",
        "started": "NoneType",
        "state": "str",
    }
    assert line.hello["state"] == "new" and line.host == subject.node.host
    subject.arm(line, rank)
    assert shape(subject.event("armed"))["boot_id"] == "str"
    at = time.monotonic() + 0.05
    line.send("go", at=at)
    assert at <= subject.event("started")["mono"] < at + 2
    line.send("beat", n=7, tail={"file": "rank-0.out", "offset": 0})
    beat = subject.event("beat")
    assert (beat["n"], beat["state"], beat["offset"]) == (7, "running", 0) and beat["mono"] >= at
    ended = subject.event("rank")
    assert (ended["rank"], ended["code"], ended["signal"]) == (0, 0, None)
    assert {"ended_mono_s", "started_mono_s", "local_rank", "pid", "wrapper"} <= set(ended)
    record = subject.event("ended")["record"]
    names = {
        "code",
        "signal",
        "state",
        "reason",
        "ranks",
        "files",
        "schema",
        "run_id",
        "node_rank",
        "boot_id",
        "oom_kills",
        "left_over",
        "stuck",
        "meter",
    }
    assert set(record) == names | {"started_mono_s", "stopped_mono_s", "ended_mono_s"}
    assert (record["state"], record["code"], record["signal"], record["reason"]) == (
        "finished",
        0,
        None,
        "",
    )
    assert set(record["files"]) == {"node.out", "node.err", "rank-0.out", "rank-0.err"}
    line.send("bye")
    line.close(5)
    run = RunDir(tmp_path / RUN)
    collected = collect_host(subject.node, run)
    assert (
        collected.complete
        and (collected.files, collected.new_bytes) == (4, 5)
        and run.exit_content("lab1") == record
    )
    assert run.log_path("lab1", "rank-0.out").read_bytes() == b"hello"
    left = left_behind(subject.node, RUN, timeout_s=LIMIT_S)
    assert (
        left
        and left.record == ExitRecord.of(record)
        and left.started
        and left.boot_id == record["boot_id"]
    )
    assert subject.node.ask("drop", run=RUN, finished=False, timeout_s=LIMIT_S) == {
        "dropped": False
    }
    assert subject.node.ask("drop", run=RUN, finished=True, timeout_s=LIMIT_S) == {"dropped": True}


def test_a_rank_that_fails_stops_the_node_at_once(subject: Subject) -> None:
    line = subject.started(Rank(code=3, after_s=0.2))
    assert subject.event("rank")["code"] == 3
    assert subject.event("stopping")["reason"] == "rank_failed: rank 0 ended with exit code 3"
    record = subject.event("ended")["record"]
    assert (
        record["state"] == "failed"
        and record["reason"].startswith("rank_failed")
        and record["ranks"][0]["code"] == 3
    )
    assert record["ranks"][0]["ended_mono_s"] <= record["stopped_mono_s"] <= record["ended_mono_s"]
    line.close()


def test_a_run_that_is_stopped_says_why(subject: Subject) -> None:
    line = subject.started(Rank(b"up"))
    assert subject.node.ask("left", run=RUN, timeout_s=LIMIT_S)["supervisor"] is True
    data = ""
    while not data:  # its launch script may have started and its rank not
        line.send("beat", n=1, tail={"file": "rank-0.out", "offset": 0})
        data = subject.event("beat")["data"]
    line.send("stop", reason="interrupted: by me")
    assert subject.event("stopping")["reason"] == "interrupted: by me"
    assert subject.event("rank")["signal"] == "SIGTERM"
    record = subject.event("ended")["record"]
    assert (record["state"], record["reason"]) == ("stopped", "interrupted: by me") and record[
        "code"
    ] != 0
    line.close()


def test_another_may_stop_it_by_its_name(subject: Subject) -> None:
    line = subject.started(Rank())
    answer = subject.node.ask(
        "stop", run=RUN, grace_s=0.5, reason="cancelled by me", timeout_s=LIMIT_S
    )
    assert answer == {"stopped": [RUN], "left": []}
    assert subject.event("stopping")["reason"] == "cancelled by me"
    line.close()


def test_a_second_line_finds_the_run_where_it_is_and_hears_its_end(subject: Subject) -> None:
    first = subject.started(Rank(after_s=1.0))
    first.close()
    assert left_behind(subject.node, RUN, timeout_s=LIMIT_S).alive  # type: ignore[union-attr]
    second = subject.listen(subject.node.supervisor(RUN, start=False, timeout_s=5))
    assert (
        second.hello["state"] == "running"
        and second.hello["started"]
        and second.hello["record"] is None
    )
    subject.event("rank")
    assert subject.event("ended")["record"]["state"] == "finished"
    second.close()


def test_what_was_altered_on_its_way_is_not_armed(subject: Subject) -> None:
    line = subject.line(Rank())
    subject.arm(line, Rank(), files={"launch.sh": "0" * 64})
    refused = subject.event("error")
    assert (
        refused["kind"] == "transfer_corrupt"
        and "launch.sh differs from what was sent" in refused["message"]
    )
    assert shape(subject.event("lost"))["error"] == "RunError"
    line.close()
    assert subject.node.ask("drop", run=RUN, finished=False, timeout_s=LIMIT_S) == {"dropped": True}


def test_a_node_has_one_run_at_a_time_and_says_whose(subject: Subject) -> None:
    first = subject.started(Rank())
    hold, second = subject.events, subject.line(Rank(), run=OTHER)
    subject.arm(second, Rank(), run=OTHER)
    refused = subject.event("error")
    assert refused["kind"] == "node_busy" and RUN in refused["owner"]
    second.close()
    subject.events = hold
    first.send("stop", reason="interrupted: enough")
    subject.event("stopping")
    first.close()


def test_without_a_go_word_a_supervisor_leaves_with_its_line(subject: Subject) -> None:
    line = subject.line(Rank())
    subject.arm(line, Rank())
    subject.event("armed")
    line.send("bye")
    line.close(5)
    assert subject.node.ask("drop", run=RUN, finished=False, timeout_s=LIMIT_S) == {"dropped": True}
    assert subject.node.ask("left", run=RUN, timeout_s=LIMIT_S)["supervisor"] is False


def test_what_waits_for_the_first_node_is_told_to_finish(subject: Subject) -> None:
    waits = Rank(after_s=30.0)
    line = subject.line(waits)
    content = b"trap 'exit 0' TERM\nsleep 30 & wait\n"
    subject.node.put(
        [Upload(f"{run_path(subject.node.host.name, RUN)}/launch.sh", content, 0o700)],
        timeout_s=LIMIT_S,
    )
    subject.arm(line, waits, files={"launch.sh": hashlib.sha256(content).hexdigest()})
    subject.event("armed")
    line.send("go", at=time.monotonic() + 0.05)
    subject.event("started")
    time.sleep(0.2)
    line.send("finish")
    event = subject.events.get(timeout=LIMIT_S)
    event = subject.events.get(timeout=LIMIT_S) if event["event"] == "rank" else event
    assert event["event"] == "ended" and (event["record"]["state"], event["record"]["code"]) == (
        "finished",
        0,
    )
    line.close()


def test_facts_have_the_same_names(subject: Subject) -> None:
    answer = subject.node.ask("facts", timeout_s=LIMIT_S, peer="127.0.0.1", **FACTS)
    assert set(answer) == {"facts", "told", "standing"} and set(answer["standing"]) == {
        "machine",
        "paths",
    }
    other = FakeNode(Host("lab1", "127.0.0.1", gpus=0), Path(answer["facts"]["workdir"]))
    assert set(answer["facts"]) == set(
        other.ask("facts", timeout_s=1, peer="127.0.0.1", **FACTS)["facts"]
    )


def test_what_a_deploy_left_is_seen_to_stand_and_seen_to_have_changed(subject: Subject) -> None:
    file, *others = [Upload(f"payload/{name}", name.encode()) for name in ("x/a", "x/sub/b", "y/a")]
    subject.node.put([file, *others], timeout_s=LIMIT_S)
    sets = {"x": {"a": file.sha256, "sub/b": others[0].sha256}, "y": {"a": others[1].sha256}}
    answer = subject.node.ask("facts", timeout_s=LIMIT_S, distributions=[], **FACTS)
    standing, root = answer["standing"], answer["facts"]["workdir"]
    paths = standing["paths"] or {"/": "0 0 0 0"}
    left = Deployed("k", root, sets, standing["machine"], paths, {}, 0.0)
    assert is_unchanged(subject.node, left)
    assert not is_unchanged(subject.node, replace(left, machine="another boot\n"))
    assert not is_unchanged(subject.node, replace(left, sets=sets | {"z": {"a": file.sha256}}))
    subject.node.put([replace(file, content=b"b")], timeout_s=LIMIT_S)
    assert not is_unchanged(subject.node, left)
