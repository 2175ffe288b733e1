"""Logs that come home from a node that behaves: resumed, proven, never overwritten, and nothing
that is no log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunError, TransportError
from orchestrator.inventory.hosts import Host
from orchestrator.nodes.collect import collect_host, is_complete, left_behind, settle
from orchestrator.plan.bench import plan_run
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.request import Request
from orchestrator.record.manifest import manifest_of
from orchestrator.record.rundir import RunDir
from tests.support import judge
from tests.support.fake_node import FakeNode
from tests.support.fake_supervisor import Rank

RUN = "r1"
ORDER = {"run_id": RUN, "node_rank": 0, "files": {}, "owner": {}}


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(
        Host("a", "10.11.0.2", gpus=0), tmp_path / "node", lambda order: {0: Rank(b"0123456789")}
    )
    (node.folder(RUN)).mkdir(parents=True)
    line = node.supervisor(RUN, start=True, timeout_s=1)
    line.send("arm", **ORDER)
    line.send("go", at=0.0)
    judge.wait_for(lambda: node.supervisors[RUN].started, 5, "it does not start")
    return node


def planned(host: Host, **facts: Any) -> dict[str, Any]:
    """Return the manifest of the run as its controller writes it before the start."""
    folder = open_framework("simulated")
    (spec,) = configure(Request("resnet50", nodes=(1,), gpus=(1,)), [folder], [host]).specs
    return manifest_of(
        plan_run(folder, spec, [host], run_id=RUN, repeat=1, port=20000),
        folder,
        "bench",
        {host.name: facts},
    )


def end(node: FakeNode, code: int = 0) -> None:
    node.supervisors[RUN].end_rank(0, code, None)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "bench").mkdir()
    return RunDir(tmp_path / "bench" / RUN)


def test_only_what_is_new_is_brought_and_a_run_that_goes_on_is_not_complete(
    node: FakeNode, run: RunDir
) -> None:
    moved: list[int] = []
    first = collect_host(node, run, moved=moved.append)
    assert (first.new_bytes, first.files, first.complete, first.note) == (
        10,
        4,
        False,
        "still running on the node",
    )
    assert first.lives
    log = node.folder(RUN) / "logs" / "rank-0.out"
    log.write_bytes(log.read_bytes() + b"abc")
    end(node)
    second = collect_host(node, run, moved=moved.append)
    assert (second.new_bytes, second.complete, second.note, second.lives) == (
        3,
        True,
        "",
        False,
    ) and moved == [10, 3]
    assert run.log_path("a", "rank-0.out").read_bytes() == b"0123456789abc" and is_complete(
        run, "a"
    )
    assert collect_host(node, run).new_bytes == 0


def test_a_log_that_came_altered_is_fetched_again_and_the_first_copy_is_kept(
    node: FakeNode, run: RunDir
) -> None:
    end(node)
    node.corrupt_fetches = 1
    assert collect_host(node, run).complete
    assert run.log_path("a", "rank-0.out").read_bytes() == b"0123456789"
    assert run.log_path("a", "rank-0.out.refused").read_bytes() == b"1123456789"


def test_logs_that_come_altered_twice_are_an_error_that_names_them(
    node: FakeNode, run: RunDir
) -> None:
    end(node)
    node.corrupt_fetches = 2
    with pytest.raises(TransportError, match=r"rank-0\.out") as caught:
        collect_host(node, run)
    assert (caught.value.kind, caught.value.host, caught.value.run_id) == (
        "transfer_corrupt",
        "a",
        RUN,
    )
    assert not is_complete(run, "a")


def test_what_is_no_log_is_named_and_left_there(node: FakeNode, run: RunDir) -> None:
    (node.folder(RUN) / "logs" / "link").symlink_to("/etc/passwd")
    end(node)
    collected = collect_host(node, run)
    assert (
        collected.complete
        and collected.odd == ("link",)
        and collected.note == "left on the node, because they are not logs: 'link'"
    )
    assert not run.log_path("a", "link").exists()


def test_a_run_that_the_node_knows_nothing_of(node: FakeNode, run: RunDir, tmp_path: Path) -> None:
    other = collect_host(node, RunDir(tmp_path / "bench" / "r2"))
    assert (other.files, other.complete, other.note) == (0, False, "not on the node")
    end(node)
    collect_host(node, run)
    node.supervisors.clear()  # its lines are gone
    node.ask("drop", run=RUN, finished=True, timeout_s=1)
    again = collect_host(node, run)
    assert (again.files, again.complete, again.note) == (4, True, "no longer on the node")


def test_a_node_that_does_not_answer_leaves_what_is_home(node: FakeNode, run: RunDir) -> None:
    end(node)
    collect_host(node, run)
    node.silent = True
    with pytest.raises(TransportError):
        collect_host(node, run)
    assert is_complete(run, "a")


def test_a_log_that_has_changed_here_is_not_complete(node: FakeNode, run: RunDir) -> None:
    end(node)
    collect_host(node, run)
    run.log_path("a", "rank-0.out").write_bytes(b"0123456780")
    assert not is_complete(run, "a")


@pytest.mark.parametrize(
    ("code", "state", "message"),
    [(0, "finished", None), (3, "failed", "rank 0 ended with exit code 3")],
)
def test_the_outcome_of_a_run_without_a_controller_follows_from_its_records(
    node: FakeNode, run: RunDir, code: int, state: str, message: str | None
) -> None:
    run.write_manifest(planned(node.host))
    settle(run, ["a"])
    assert run.manifest_content()["outcome"] is None
    end(node, code)
    collect_host(node, run)
    settle(run, ["a"])
    outcome = run.manifest_content()["outcome"]
    assert outcome["state"] == state and (outcome["error"] or {}).get("message") == message
    assert outcome["clean"] == {"a": {"checked": False, "left": []}}


@pytest.mark.parametrize(
    ("reason", "kind", "message"),
    [
        (
            "cancelled with orch cancel by me@desk: now",
            "interrupted",
            "cancelled with orch cancel by me@desk: now",
        ),
        ("a node of the run has failed", "interrupted", "a node of the run has failed"),
        ("lease_expired: nobody renewed it", "lease_expired", "nobody renewed it"),
    ],
)
def test_the_outcome_of_a_run_that_was_stopped_has_a_kind_that_exists(
    node: FakeNode, run: RunDir, reason: str, kind: str, message: str
) -> None:
    run.write_manifest(planned(node.host))
    node.supervisors[RUN].stop(reason)
    judge.wait_for(lambda: (node.folder(RUN) / "exit.json").exists(), 5, "it does not end")
    collect_host(node, run)
    settle(run, ["a"])
    error = run.manifest_content()["outcome"]["error"]
    assert (error["kind"], error["message"]) == (kind, message)


@pytest.mark.parametrize(
    ("boot_id", "note"),
    [
        ("boot of a", "its supervisor is gone"),
        (
            "another",
            "the node has restarted since (another boot id), and nothing of the run is left on it",
        ),
    ],
)
def test_a_node_that_has_restarted_since_is_told_from_one_that_lost_its_supervisor(
    node: FakeNode, run: RunDir, boot_id: str, note: str
) -> None:
    run.write_manifest(planned(node.host, boot_id=node.boot_id))
    node.die()
    node.boot_id = boot_id
    assert collect_host(node, run).note == f"without an exit record: {note}"


def test_what_is_left_of_a_run_is_asked_without_bringing_its_logs(node: FakeNode) -> None:
    left = left_behind(node, RUN, timeout_s=1)
    assert left and (left.record, left.alive, left.started, left.boot_id) == (
        None,
        True,
        True,
        node.boot_id,
    )
    end(node)
    left = left_behind(node, RUN, timeout_s=1)
    assert left and left.record and left.record.state == "finished"
    (node.folder(RUN) / "exit.json").write_text(json.dumps([1]))
    with pytest.raises(RunError, match="expected an exit record"):
        left_behind(node, RUN, timeout_s=1)
