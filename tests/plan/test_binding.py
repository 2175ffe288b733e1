"""Ranks bound to CPUs, as planned: from the command line, a run file or the inventory to the file
that the wrapper reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.plan.binding import binding_of
from tests.support.cli_project import Project

INVENTORY = """\
schema: 1
hosts:
  a: {gpus: 4, address: 192.0.2.1, vars: {cpu_binding: numa, cuda_visible_devices: "3,2,1,0", gpu_burn_dir: /b}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "gpu.yaml").write_text(INVENTORY)
    return Project(tmp_path)


def planned(
    project: Project, *words: str, framework: str = "pytorch", model: str = "resnet50"
) -> list[dict[str, Any]]:
    fixed = (
        "-f",
        framework,
        "--hosts",
        "gpu.yaml",
        "--gpus",
        "2",
        "--no-baseline",
        "--repeats",
        "1",
        "--dry-run",
        "--json",
    )
    done = project.orch("bench", model, *fixed, *words)
    assert done.returncode == 0, done.stderr
    runs: list[dict[str, Any]] = json.loads(done.stdout)
    return runs


def files_of(run: dict[str, Any]) -> list[Any]:
    return [
        json.loads(file["content"])
        for file in run["nodes"][0]["files"]
        if file["path"] == "cpu_binding.json"
    ]


def test_the_inventory_binds_where_the_experiment_chooses_nothing(project: Project) -> None:
    (run,) = planned(project)
    assert files_of(run) == [{"binding": "numa", "ranks": 2, "devices": ["3", "2"]}]
    assert "cpu_binding" not in run["spec"]


def test_a_list_of_bindings_is_an_axis_and_none_overrides_the_inventory(project: Project) -> None:
    runs = planned(project, "--cpu-binding", "none,cores")
    assert [run["spec"]["cpu_binding"] for run in runs] == ["none", "cores"]
    assert [[file["binding"] for file in files_of(run)] for run in runs] == [[], ["cores"]]


def test_a_run_file_chooses_it_too_and_says_where(project: Project) -> None:
    (project.path / "run.yaml").write_text("cpu_binding: [numa, cores]\n")
    assert [run["spec"]["cpu_binding"] for run in planned(project, "--file", "run.yaml")] == [
        "numa",
        "cores",
    ]
    (project.path / "run.yaml").write_text("cpu_binding: nums\n")
    done = project.orch(
        "bench", "resnet50", "--file", "run.yaml", "--hosts", "gpu.yaml", "--dry-run"
    )
    assert done.returncode == 2
    assert (
        "run.yaml:1: cpu_binding: expected none, numa or cores, got 'nums'. did you mean 'numa'?"
        in done.stderr
    )


def test_a_program_without_the_wrapper_refuses_the_choice_and_leaves_the_inventorys_default(
    project: Project,
) -> None:
    words = (
        "bench",
        "gpu_burn",
        "-f",
        "gpu_burn",
        "--hosts",
        "gpu.yaml",
        "--dry-run",
        "--cpu-binding",
        "numa",
    )
    done = project.orch(*words)
    assert (
        done.returncode == 2
        and "starts its ranks without the wrapper that binds them to CPUs" in done.stderr
    ), done.stderr


def test_an_unknown_default_names_its_host() -> None:
    with pytest.raises(
        ConfigError, match=r"vars.cpu_binding of host n: expected none, numa or cores, got 'socket'"
    ):
        binding_of(Host("n", "n", vars={"cpu_binding": "socket"}), "")
    assert (
        binding_of(Host("n", "n"), "")
        == binding_of(Host("n", "n", vars={"cpu_binding": "cores"}), "none")
        == ""
    )
