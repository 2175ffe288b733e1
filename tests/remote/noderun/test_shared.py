"""Two nodes with one work directory: what is of one node is never touched by the other."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import judge
from tests.support.machine import RUN, SLEEP, Machine, supervisors


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two nodes that share a work directory: `Machine` gives each the mark of its own, as a lab
    without namespaces has.
    """
    pair = tuple(
        Machine(tmp_path / "work", mark=f"{tmp_path}/{name}", name=name)
        for name in ("node1", "node2")
    )
    yield pair
    for machine in pair:
        machine.close()


def stop(*machines: Machine) -> None:
    for machine in machines:
        assert machine.ask("stop", run=RUN, grace_s=0.2, reason="over")["left"] == []


def test_each_node_has_its_own_supervisor_and_files_of_one_run(
    pair: tuple[Machine, Machine],
) -> None:
    for machine in pair:
        machine.start(RUN, f"#!/bin/bash\necho {machine.name}\n{SLEEP}")
    for machine in pair:
        machine.wait_for_log(RUN, "node.out", f"{machine.name}\n".encode())
        assert len(supervisors(machine.folder(RUN))) == 1
    stop(*pair)


def test_the_supervisor_of_another_node_is_no_supervisor_here(
    pair: tuple[Machine, Machine],
) -> None:
    one, other = pair
    one.start(RUN, SLEEP)
    other.stage(RUN, SLEEP)
    assert other.ask("left", run=RUN)["supervisor"] is False
    assert one.ask("left", run=RUN)["supervisor"] is True
    assert (
        other.ask("status")["owner"] is None
        and json.loads(one.ask("status")["owner"])["run_id"] == RUN
    )
    refused = other.call("line", run=RUN, start=False, wait_s=5).read_line()["error"]
    assert refused["kind"] == "node_lost"
    stop(one)


def test_one_machine_under_two_names_has_one_run_at_a_time(tmp_path: Path) -> None:
    """Two inventories may name a machine differently: it has two folders in the work directory
    then, and is still one node.
    """
    one, alias = (
        Machine(tmp_path / "work", mark=str(tmp_path), name=name) for name in ("node1", "alias")
    )
    one.start(RUN, SLEEP, owner={"user": "alice", "controller": "desk", "run_id": RUN})
    assert json.loads(alias.ask("status")["owner"])["user"] == "alice"
    files = alias.stage(f"{RUN}-b", SLEEP)
    line = alias.supervisor(f"{RUN}-b")
    alias.arm(line, f"{RUN}-b", files)
    error = line.wait_for("error")
    assert error["kind"] == "node_busy" and json.loads(error["owner"])["run_id"] == RUN
    stop(one)
    for machine in (one, alias):
        machine.close()


def test_a_sweep_leaves_variables_of_another_machine_alone(machine: Machine) -> None:
    """Two inventories may give one name to two machines that share the directory."""
    machine.start(f"{RUN}-a", SLEEP)
    (supervisor,) = supervisors(machine.folder(f"{RUN}-a"))
    os.kill(supervisor, signal.SIGKILL)
    record = machine.folder(f"{RUN}-a") / "owner.json"
    judge.wait_for(lambda: not supervisors(machine.folder(f"{RUN}-a")), 3, "it stays")
    owner = json.loads(record.read_text())
    for host, swept in (("another", False), (owner["machine"][0], True)):
        record.write_text(json.dumps({**owner, "machine": [host, owner["machine"][1]]}))
        machine.ask("stop", run="none", grace_s=0.1, reason="to sweep")
        assert (machine.folder(f"{RUN}-a") / "env.sh").exists() is not swept
    assert machine.ask("stop", run=f"{RUN}-a", grace_s=0.2, reason="over")["left"] == []


def test_many_nodes_send_one_payload_at_the_same_time(tmp_path: Path) -> None:
    nodes = [Machine(tmp_path / "work", name=f"node{number}") for number in range(6)]
    content, answers = os.urandom(1 << 20), []
    threads = [
        threading.Thread(
            target=lambda node=node: answers.append(node.put(("payload/x/big", content, 0o600)))
        )
        for node in nodes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{"done": True}] * len(nodes)
    assert [
        (path.name, path.read_bytes() == content)
        for path in (tmp_path / "work/payload/x").iterdir()
    ] == [("big", True)]
    for node in nodes:
        node.close()


def test_altered_bytes_never_replace_a_good_file(machine: Machine) -> None:
    good = ("payload/x/a.py", b"good", 0o600)
    assert machine.put(good) == {"done": True}
    line = machine.call(
        "put", files=[{"path": good[0], "bytes": 4, "sha256": "0" * 64, "mode": 0o600}]
    )
    assert line.read_line()["missing"] == [0]
    line.send(b"evil")
    assert line.read_line()["error"]["kind"] == "transfer_corrupt"
    line.close()
    assert [(path.name, path.read_bytes()) for path in (machine.root / "payload/x").iterdir()] == [
        ("a.py", b"good")
    ]


def test_nodes_that_share_a_directory_name_the_same_node_as_the_first(
    pair: tuple[Machine, Machine], machine: Machine
) -> None:
    request = {
        "python": [machine.python],
        "probe": "print('{}')",
        "probe_timeout_s": 20,
        "environment": "",
        "ports": [],
    }
    one, other = pair
    firsts = [
        node.ask("facts", capture="c1", **request)["facts"]["workdir_first"]
        for node in (one, other, machine)
    ]
    assert firsts == ["node1 in c1", "node1 in c1", "node1 in c1"]
