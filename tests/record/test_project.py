"""Where a project looks for framework folders, and what it remembers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.record import Project
from orchestrator.record.deploys import recall_facts
from orchestrator.record.submission import submissions


def test_options_come_before_the_environment_and_that_before_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("given", "listed", "also", "templates"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    environment = {"ORCH_TEMPLATES": f"{tmp_path}/listed::{tmp_path}/also"}
    project = Project.here(environment)
    assert project.template_folders([Path("given")], environment) == (
        Path("given"), tmp_path / "listed", tmp_path / "also", Path("templates"),
    )  # fmt: skip


def test_the_templates_of_a_project_elsewhere_are_named_whole(tmp_path: Path) -> None:
    environment = {"ORCH_PROJECT": str(tmp_path)}
    project = Project.here(environment)
    assert project.template_folders((), environment) == ()
    (tmp_path / "templates").mkdir()
    assert project.template_folders((), environment) == (tmp_path / "templates",)


@pytest.mark.parametrize(
    ("given", "listed", "said"),
    [
        ("gone", "", "gone: expected a folder with framework folders, found no such folder"),
        (
            "one",
            "",
            "one: expected a folder with framework folders, got one framework. give the folder above it: --templates .",
        ),
        (
            "",
            "/gone/a",
            "ORCH_TEMPLATES: expected folders with framework folders, found no folder /gone/a",
        ),
    ],
)
def test_a_folder_that_is_none_is_refused_with_where_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, listed: str, said: str
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "framework.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        Project(tmp_path).template_folders(
            [Path(given)] if given else [], {"ORCH_TEMPLATES": listed}
        )
    assert str(caught.value).startswith(said)


def test_nothing_waits_for_a_pipe_in_the_place_of_a_state_file(tmp_path: Path) -> None:
    project = Project.here({"ORCH_PROJECT": str(tmp_path)})
    (tmp_path / ".orch/jobs").mkdir(parents=True)
    for path in (".orch/project.json", ".orch/deployed.json", ".orch/jobs/b.json"):
        os.mkfifo(tmp_path / path)
    assert project.inventory_source("", {})[1] == "the default"
    assert submissions(project) == []
    assert recall_facts(project.deployed, [Host("n1", "n1")]) == {}
