"""`orch nodes`, and the hosts that a bench goes without because of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.node_verdicts import remember
from orchestrator.record import Project
from orchestrator.record.node_states import OUT, node_states
from tests.support.acceptances import STEADY, acceptance

INVENTORY = "schema: 1\ndefaults: {gpus: 1}\nhosts:\n  'node[1-3]': {address: '10.11.0.[2-4]'}\n"
BENCH = ("bench", "resnet50", "-f", "simulated", "--no-baseline", "--dry-run")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    monkeypatch.setenv("ORCH_HOSTS", str(tmp_path / "cluster.yaml"))
    return Project(tmp_path)


def orch(*words: str) -> Result:
    return CliRunner().invoke(program(), list(words))


def test_a_node_that_failed_is_left_out_until_it_passes(project: Project, tmp_path: Path) -> None:
    slow = {1: tuple(0.8 * value for value in STEADY)}
    remember(project, certificate_of(acceptance(tmp_path / "runs", slow, nodes=3, name="a1")))
    listed = orch("nodes")
    assert (
        "node2  suspect" in listed.output
        and "slower than its peers" in listed.output
        and "(a1)" in listed.output
    )
    left = orch(*BENCH)
    assert (
        left.exit_code == 0
        and "left out: node2 is suspect since" in left.output
        and "2n1g" in left.output
    ), left.output
    assert "3n1g" in orch(*BENCH, "--with-suspects").output
    assert "left out: node2" in orch("accept", "quick", "--dry-run").output
    remember(project, certificate_of(acceptance(tmp_path / "runs", {}, nodes=3, name="a2")))
    assert "node2  good" in orch("nodes").output and "left out: node" not in orch(*BENCH).output


def test_a_person_takes_nodes_out_and_back(project: Project) -> None:
    done = orch("nodes", "node[1-2]", "--out", "--reason", "sent back")
    assert done.exit_code == 0 and done.output.count("sent back") == 2
    assert "left out: node1 is out since" in orch(*BENCH, "--with-suspects").output
    orch("nodes", "node3", "--out")
    refused = orch(*BENCH)
    assert isinstance(refused.exception, ConfigError) and "all are suspect or out" in str(
        refused.exception
    )
    orch("nodes", "node[1-3]", "--good")
    assert "left out: node" not in orch(*BENCH).output


@pytest.mark.parametrize(
    "words", [("--out",), ("node1",), ("node1", "--out", "--good"), ("--reason", "x")]
)
def test_half_a_change_is_refused(words: tuple[str, ...], project: Project) -> None:
    assert isinstance(orch("nodes", *words).exception, ConfigError)


def test_two_states_at_once_are_refused_as_such(project: Project) -> None:
    assert (
        str(orch("nodes", "node1", "--out", "--good").exception)
        == "orch nodes: expected --out or --good, got both"
    )


def test_a_mistyped_host_is_forgotten(project: Project) -> None:
    orch("nodes", "node2", "--out")
    orch("nodes", "nosuch", "--out")
    assert set(node_states(project.nodes)) == {"node2", "nosuch"}
    done = orch("nodes", "nosuch", "--good")
    assert (
        done.exit_code == 0 and "nosuch: in no inventory, so its state is forgotten" in done.output
    )
    assert set(node_states(project.nodes)) == {"node2"}


def test_a_node_that_is_taken_out_by_its_name_alone_stays_out_in_an_inventory_with_addresses(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCH_HOSTS")
    monkeypatch.chdir(project.root)
    done = orch("nodes", "node2", "--out", "--reason", "sent back")
    assert (
        done.exit_code == 0
        and "node2: in no inventory, so the state applies to any host of this name" in done.output
    )
    bench = (*BENCH, "--hosts", "cluster.yaml")
    assert "left out: node2 is out since" in orch(*bench).output
    remember(project, certificate_of(acceptance(project.runs, {}, nodes=3, name="a1")))
    assert (
        node_states(project.nodes)["node2"].state == OUT
        and node_states(project.nodes)["node3"].address == "10.11.0.4"
    )
    again = orch("nodes", "node3", "--out")
    assert (
        "in no inventory" not in again.output
        and node_states(project.nodes)["node3"].address == "10.11.0.4"
    )
    orch("nodes", "node[2-3]", "--good")
    assert "left out: node" not in orch(*bench).output
