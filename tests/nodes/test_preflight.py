"""The facts of nodes that behave: what is asked of which node, and what becomes of an answer that
is none.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.inventory.hosts import Host
from orchestrator.nodes.preflight import capture
from orchestrator.plan.folders import open_framework
from tests.support.fake_node import FakeCluster, FakeNode

FRAMEWORK = open_framework("simulated").framework


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    hosts = [Host(name, f"10.11.0.{last}", gpus=0) for name, last in (("a", 2), ("b", 3), ("c", 4))]
    return FakeCluster([FakeNode(host, tmp_path / host.name) for host in hosts]).open()


def noted(node: FakeNode) -> list[dict[str, Any]]:
    """Return the list that a node's requests for facts will stand in."""
    requests: list[dict[str, Any]] = []
    answer = node._facts
    node._facts = lambda **request: requests.append(request) or answer(**request)  # type: ignore[method-assign]
    return requests


def test_every_node_is_asked_and_its_line_is_among_its_facts(cluster: Any) -> None:
    cluster.nodes["b"].login_s = 1.23456
    facts, errors = capture(cluster, FRAMEWORK)
    assert list(facts) == ["a", "b", "c"] and errors == {}
    assert (
        facts["b"]["host_key"] == "SHA256:b"
        and facts["b"]["login_s"] == 1.235
        and facts["a"]["login_s"] == 0
    )
    assert (
        facts["a"]["gpus"] is None
        and facts["a"]["infiniband"] == []
        and "standing" not in facts["a"]
    )


def test_a_node_is_asked_for_its_way_to_the_master_and_to_a_few_others(
    cluster: Any, tmp_path: Path
) -> None:
    requests = {name: noted(node) for name, node in cluster.nodes.items()}
    capture(cluster, None)
    assert {name: asked[0]["peers"] for name, asked in requests.items()} == {
        "a": ["10.11.0.3", "10.11.0.4"],
        "b": ["10.11.0.2", "10.11.0.4"],
        "c": ["10.11.0.2", "10.11.0.3"],
    }
    many = [
        FakeNode(Host(f"n{last}", f"10.11.0.{last}", gpus=0), tmp_path / f"n{last}")
        for last in range(2, 42)
    ]
    asked = noted(many[9])
    capture(FakeCluster(many).open(), None, names=["n11"])
    assert asked[0]["peers"] == ["10.11.0.2", "10.11.0.12", "10.11.0.10", "10.11.0.31"]


def test_the_framework_is_probed_by_its_own_interpreter_and_briefly_only_looked_up(
    cluster: Any, tmp_path: Path
) -> None:
    host = Host("z", "10.11.0.9", gpus=0, vars={"python": "/opt/python", "data_dir": "/data"})
    alone: Any = FakeCluster([FakeNode(host, tmp_path / "z")]).open()
    requests = noted(alone.nodes["z"])
    capture(alone, FRAMEWORK)
    facts, _ = capture(alone, FRAMEWORK, briefly=True)
    whole, brief = requests
    assert (whole["python"], whole["probe"], whole["data_dir"], whole["peers"]) == (
        ["/opt/python"],
        FRAMEWORK.probe,
        "/data",
        [],
    )
    assert "distributions" not in whole and brief["distributions"] == list(FRAMEWORK.distributions)
    assert set(facts["z"]["standing"]) == {"machine", "paths"}


def test_the_framework_sees_the_devices_that_runs_on_the_node_may_use(
    cluster: Any, tmp_path: Path
) -> None:
    hosts = [
        Host("y", "10.11.0.8", gpus=1, vars={"cuda_visible_devices": "3"}),
        Host("z", "10.11.0.9", gpus=1),
    ]
    both: Any = FakeCluster([FakeNode(host, tmp_path / host.name) for host in hosts]).open()
    requests = {name: noted(both.nodes[name]) for name in ("y", "z")}
    capture(both, FRAMEWORK)
    environments = {name: asked[-1]["environment"] for name, asked in requests.items()}
    assert (
        "export CUDA_VISIBLE_DEVICES=3\n" in environments["y"]
        and "HIP_VISIBLE_DEVICES=3" in environments["y"]
    )
    assert "VISIBLE_DEVICES" not in environments["z"]


def test_only_those_that_are_named_are_asked(cluster: Any) -> None:
    facts, _ = capture(cluster, None, names=["c"])
    assert list(facts) == ["c"] and cluster.nodes["a"].asked == []


def test_a_node_that_does_not_answer_is_an_error_and_the_others_are_facts(cluster: Any) -> None:
    cluster.nodes["b"].silent = True
    facts, errors = capture(cluster, None)
    assert list(facts) == ["a", "c"] and [(name, error.kind) for name, error in errors.items()] == [
        ("b", "node_lost")
    ]


@pytest.mark.parametrize("told", [3, "!", "bm90IHBhY2tlZA=="])
def test_facts_that_are_not_packed_as_expected_are_refused_with_the_host(
    cluster: Any, told: Any
) -> None:
    node = cluster.nodes["b"]
    answer = node._facts
    node._facts = lambda **request: {**answer(**request), "told": told}
    _, errors = capture(cluster, None)
    error = errors["b"]
    assert (error.kind, error.host, error.phase) == (
        "result_invalid",
        "b",
        "preflight",
    ) and "packs them" in error.message


def test_the_owner_of_a_lock_is_said_in_words(cluster: Any) -> None:
    owner = {"user": "me", "controller": "desk", "process": 7, "run_id": "r1", "since": "noon"}
    cluster.nodes["a"].facts = {"held_by": json.dumps(owner)}
    facts, _ = capture(cluster, None)
    assert facts["a"]["held_by"] == "run r1 of me@desk, process 7, since noon"


@pytest.mark.parametrize(("off_s", "found"), [(-100, -100), (0, 0), (100, 100)])
def test_a_clock_is_off_by_what_the_time_of_the_question_does_not_explain(
    cluster: Any, off_s: int, found: int
) -> None:
    begin = time.time()
    cluster.nodes["a"].facts = {"time": begin + off_s}
    facts, _ = capture(cluster, None, names=["a"])
    assert abs(facts["a"]["clock_off_s"] - found) <= 1 + time.time() - begin
