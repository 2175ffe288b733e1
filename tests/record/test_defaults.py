"""Defaults of options in files: which file wins, what a value may be, and how a wrong one is
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, Faults
from orchestrator.record.defaults import KEYS, defaults, json_schema, value_of
from orchestrator.record.project import Project


def written(folder: Path, project: str = "", user: str = "") -> dict[str, str]:
    """Write the files of a project and of its user; return the environment of the user."""
    if project:
        (folder / "orch.yaml").write_text(project)
    if user:
        (folder / ".config" / "orch").mkdir(parents=True, exist_ok=True)
        (folder / ".config" / "orch" / "config.yaml").write_text(user)
    return {"HOME": str(folder)}


def test_the_project_wins_over_the_user_key_by_key(tmp_path: Path) -> None:
    environment = written(
        tmp_path,
        "repeats: 2\nlease: 90\n",
        "schema: 1\nrepeats: 7\naccept_new: true\nlease: 1h30m\n",
    )
    found = defaults(tmp_path, environment)
    assert {key: (each.value, each.origin) for key, each in found.items()} == {
        "repeats": (2, "orch.yaml"), "lease": (90.0, "orch.yaml"), "accept_new": (True, "~/.config/orch/config.yaml"),
    }  # fmt: skip
    assert found["lease"].where == f"{tmp_path}/orch.yaml:2: lease"


def test_a_folder_in_place_of_the_file_is_refused_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").mkdir()
    with pytest.raises(ConfigError, match="expected a file, got a directory") as refused:
        defaults(tmp_path, {})
    assert refused.value.where == f"{tmp_path}/orch.yaml"


def test_the_users_file_lies_where_xdg_says_unless_that_is_relative(tmp_path: Path) -> None:
    written(tmp_path, user="repeats: 7\n")
    (tmp_path / "xdg" / "orch").mkdir(parents=True)
    (tmp_path / "xdg" / "orch" / "config.yaml").write_text("repeats: 8\n")
    home = {"HOME": str(tmp_path)}
    given = {
        xdg: defaults(tmp_path, {**home, "XDG_CONFIG_HOME": xdg})["repeats"].value
        for xdg in (f"{tmp_path}/xdg", "xdg", "")
    }
    assert given == {f"{tmp_path}/xdg": 8, "xdg": 7, "": 7}
    assert defaults(tmp_path, {}) == {}


def test_paths_are_those_from_the_folder_of_the_file_on(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("n1\n")
    for text, hosts in (
        ("inv/c.yaml", f"{tmp_path}/inv/c.yaml"),
        ("list", f"{tmp_path}/list"),
        ("n[1-4]", "n[1-4]"),
    ):
        environment = written(tmp_path, f"hosts: '{text}'\ntemplates: [a, ~/b]\n")
        found = defaults(tmp_path, environment)
        assert found["hosts"].value == hosts
        assert found["templates"].value == (tmp_path / "a", Path("~/b").expanduser())


def test_an_inventory_is_chosen_by_option_environment_project_deploy_user_in_this_order(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    environment = written(tmp_path, user="hosts: of-user\n")
    assert project.inventory_source("", environment) == ("of-user", "~/.config/orch/config.yaml")
    project.remember("of-deploy")
    assert project.inventory_source("", environment) == ("of-deploy", "the last deploy")
    written(tmp_path, project="hosts: of-project\n")
    assert project.inventory_source("", environment) == ("of-project", "orch.yaml")
    assert project.inventory_source("", {**environment, "ORCH_HOSTS": "of-env"}) == (
        "of-env",
        "ORCH_HOSTS",
    )
    assert project.inventory_source("given", {**environment, "ORCH_HOSTS": "of-env"}) == (
        "given",
        "--hosts",
    )


def test_template_folders_of_a_file_come_before_the_projects_own_and_must_exist(
    tmp_path: Path,
) -> None:
    for name in ("given", "env", "kept", "templates"):
        (tmp_path / name).mkdir()
    environment = {
        **written(tmp_path, "templates: kept\n"),
        "ORCH_TEMPLATES": str(tmp_path / "env"),
    }
    folders = Project(tmp_path).template_folders([tmp_path / "given"], environment)
    assert [path.name for path in folders] == ["given", "env", "kept", "templates"]
    written(tmp_path, "\ntemplates: gone\n")
    with pytest.raises(ConfigError) as caught:
        Project(tmp_path).template_folders([], environment)
    assert (
        str(caught.value)
        == f"{tmp_path}/orch.yaml:2: templates: expected folders with framework folders, found no folder {tmp_path}/gone"
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("repeat", 3, "did you mean 'repeats'?"),
        ("repeats", 0, "expected a whole number ≥ 1, got 0"),
        ("repeats", True, "expected a whole number ≥ 1, got True"),
        ("nodes", [1, "2"], "expected a whole number ≥ 1, or a list of them, got [1, '2']"),
        ("nodes", [], "expected a whole number ≥ 1, or a list of them, got []"),
        ("accept_new", "yes", "expected true or false, got 'yes'"),
        ("lease", "1x", "expected a time such as 90s"),
        ("lease", [1], "expected a time such as 30m, or seconds, got [1]"),
        ("until_ci", "1", "expected a percentage above 0"),
        ("order", "alphabetic", "expected balanced, random, interleaved, got 'alphabetic'"),
        ("hosts", {"n1": "x" * 80}, "expected text, got a dict"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        value_of(key, value, f"orch.yaml:1: {key}")
    assert str(caught.value).startswith(f"orch.yaml:1: {key}: ") and message in str(caught.value)


def test_all_faults_of_a_file_are_reported_together(tmp_path: Path) -> None:
    environment = written(tmp_path, "schema: 2\nrepeat: 3\nlease: soon\n")
    with pytest.raises(Faults) as caught:
        defaults(tmp_path, environment)
    assert [str(fault).split(": ")[0].rpartition("/")[2] for fault in caught.value.errors] == [
        "orch.yaml:1", "orch.yaml:2", "orch.yaml:3",
    ]  # fmt: skip


def test_the_schema_has_every_key() -> None:
    assert set(json_schema()["properties"]) == {"schema", *KEYS}
