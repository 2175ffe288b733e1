"""Payloads on nodes that behave: sent once, then only looked at, and sent again where anything has
changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Faults
from orchestrator.inventory.hosts import Host
from orchestrator.nodes.deploy import deploy, stage_payload
from orchestrator.plan.folders import FrameworkFolder, open_framework
from orchestrator.plan.framework import payload_path
from orchestrator.record.deploys import Memory
from tests.support.fake_node import FakeCluster, FakeNode

FOLDER = open_framework("simulated")
SIZE = sum(map(len, FOLDER.payload.values()))


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    hosts = [Host("a", "10.11.0.2", gpus=0), Host("b", "10.11.0.3", gpus=0)]
    return FakeCluster([FakeNode(host, tmp_path / host.name) for host in hosts]).open()


def deployed(
    cluster: Any, path: Path, *folders: FrameworkFolder
) -> tuple[dict[str, int], dict[str, float]]:
    """Deploy, as a command does that reads its memory anew; return bytes sent, and when facts were
    captured that still hold.
    """
    for node in cluster.nodes.values():
        node.asked.clear()
    chosen = folders or (FOLDER,)
    sent, facts, kept = deploy(cluster, chosen, Memory(path, chosen))
    assert all(set(by_host) == {"a", "b"} for by_host in facts.values())
    return sent[chosen[0].framework.name], kept


def test_what_stands_is_only_looked_at(cluster: Any, tmp_path: Path) -> None:
    memory = tmp_path / "deployed.json"
    assert deployed(cluster, memory) == ({"a": SIZE, "b": SIZE}, {})
    assert cluster.nodes["a"].asked == ["status", "facts"]
    sent, kept = deployed(cluster, memory)
    assert sent == {"a": 0, "b": 0} and set(kept) == {"a", "b"} and cluster.nodes["a"].asked == []


@pytest.mark.parametrize("change", ["payload", "boot", "interpreter", "memory"])
def test_a_node_on_which_anything_has_changed_is_deployed_anew(
    cluster: Any, tmp_path: Path, change: str
) -> None:
    memory, b = tmp_path / "deployed.json", cluster.nodes["b"]
    deployed(cluster, memory)
    match change:
        case "payload":
            next(b.root.rglob("train_simulated.py")).write_text("other")
        case "boot":
            b.machine = "another boot\n"
        case "interpreter":
            b.paths = {"/usr/bin/python3": "1 2 4"}
        case "memory":
            memory.write_text("}")
    sent, kept = deployed(cluster, memory)
    assert set(kept) == (set() if change == "memory" else {"a"}) and b.asked == ["status", "facts"]
    assert sent == {
        "a": 0,
        "b": len(FOLDER.payload["train_simulated.py"]) if change == "payload" else 0,
    }


def test_a_lock_that_was_seen_once_is_not_remembered(cluster: Any, tmp_path: Path) -> None:
    cluster.nodes["a"].facts = {"held_by": "run r9"}
    memory = Memory(tmp_path / "deployed.json", [FOLDER])
    _, facts, _ = deploy(cluster, [FOLDER], memory)
    remembered = memory.of(cluster.hosts[0])
    assert (
        facts["simulated"]["a"]["held_by"] == "run r9"
        and remembered
        and remembered.facts["simulated"]["held_by"] is None
    )


def test_two_names_of_one_machine_are_refused(cluster: Any, tmp_path: Path) -> None:
    a, b = cluster.nodes.values()
    b.boot_id, b.transport.host_key = a.boot_id, a.transport.host_key
    with pytest.raises(Faults, match="one machine"):
        deployed(cluster, tmp_path / "deployed.json")
    assert not (tmp_path / "deployed.json").exists()


def test_a_node_that_does_not_answer_is_named(cluster: Any, tmp_path: Path) -> None:
    cluster.nodes["b"].silent = True
    with pytest.raises(Faults) as caught:
        deployed(cluster, tmp_path / "deployed.json")
    assert [(error.kind, error.host) for error in caught.value.errors] == [("node_lost", "b")]


def test_a_set_is_named_by_its_digest_and_sent_once(cluster: Any) -> None:
    node = cluster.nodes["a"]
    assert [stage_payload(node, FOLDER), stage_payload(node, FOLDER)] == [SIZE, 0]
    sent = {
        path.relative_to(node.root).as_posix(): path.read_bytes()
        for path in node.root.rglob("*")
        if path.is_file()
    }
    assert sent == {
        payload_path(name, FOLDER.payload_digest): content
        for name, content in FOLDER.payload.items()
    }


def test_what_a_node_holds_in_another_set_is_not_sent_again(cluster: Any) -> None:
    node = cluster.nodes["a"]
    stage_payload(node, FOLDER)
    changed = replace(FOLDER, payload={**FOLDER.payload, "train_simulated.py": b"print()\n"})
    assert changed.payload_digest != FOLDER.payload_digest
    assert [
        stage_payload(node, changed),
        stage_payload(node, changed),
        stage_payload(node, FOLDER),
    ] == [8, 0, 0]
    for folder in (FOLDER, changed):
        for name, content in folder.payload.items():
            assert (node.root / payload_path(name, folder.payload_digest)).read_bytes() == content
