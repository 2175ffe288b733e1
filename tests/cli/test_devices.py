"""Nodes that differ, on the command line: devices left out, counts that differ, MIG instances, and
waits with a limit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.defaults import _with_limit
from tests.support.cli_project import Project

INVENTORY = "schema: 1\nhosts:\n  'a[1-2]': {gpus: 4, address: '192.0.2.[1-2]'}\n  b: {gpus: 8, address: 192.0.2.9}\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "gpu.yaml").write_text(INVENTORY)
    return Project(tmp_path)


def planned(project: Project, *words: str) -> tuple[dict[str, str], str]:
    """Devices by host of the last run of a bench on all nodes, and what was said."""
    fixed = (
        "-f",
        "pytorch",
        "--hosts",
        "gpu.yaml",
        "--no-baseline",
        "--repeats",
        "1",
        "--dry-run",
        "--json",
    )
    done = project.orch("bench", "resnet50", *fixed, *words)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert all(
        f"export {name}_VISIBLE_DEVICES={node['slot']['devices']}\n"
        in str(node["files"]).replace("\\n", "\n")
        for node in run["nodes"]
        for name in ("CUDA", "HIP")
    )
    return {node["slot"]["host"]: node["slot"]["devices"] for node in run["nodes"]}, done.stderr


def test_ranks_are_placed_on_the_devices_that_are_left(project: Project) -> None:
    slots, said = planned(project, "-x", "a1:gpu0,a2:gpu[2-3]")
    assert slots == {"a1": "1,2", "a2": "0,1", "b": "0,1"}
    assert "devices: a1: 1,2,3\n" in said and "devices: a2: 0,1\n" in said
    assert "idle: 1 of 3 GPUs of a1; 6 of 8 GPUs of b: hosts differ in size" in said


def test_cells_that_fit_run_where_counts_differ_and_the_idle_rest_is_said(project: Project) -> None:
    slots, said = planned(project, "--nodes", "1", "--gpus", "8")
    assert slots == {"b": "0,1,2,3,4,5,6,7"} and "idle: 4 of 4 GPUs of each of a[1-2]" in said
    assert "idle" not in planned(project, "-x", "b")[1]


def test_a_node_has_one_rank_on_mig_instances(project: Project) -> None:
    slots, _ = planned(project, "--devices", "b:MIG-1,MIG-2", "-x", "a1,a2", "--gpus", "1")
    assert slots == {"b": "MIG-1"}
    words = (
        "bench",
        "resnet50",
        "-f",
        "pytorch",
        "--hosts",
        "gpu.yaml",
        "--devices",
        "b:MIG-1,MIG-2",
        "-x",
        "a[1-2]",
        "--gpus",
        "2",
    )
    assert "orch: devices of b: expected --gpus 1 on MIG instances, got 2." in project.refused(
        *words
    ).replace("devices: b: MIG-1,MIG-2\n", "")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("--wait 30m", "--wait --wait-limit 30m"),
        ("--wait=1h30m x", "--wait --wait-limit 1h30m x"),
        ("--wait resnet50", "--wait resnet50"),
        ("--nodes 4 --wait", "--nodes 4 --wait"),
    ],
)
def test_a_wait_may_have_a_limit(words: str, read: str) -> None:
    assert _with_limit(words.split()) == read.split()
