"""What a shell gets when it asks `orch` to complete a line, in the way in which bash and zsh ask."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_project import Project
from tests.support.commands import REPOSITORY

# Typer itself loads pydantic where it is installed.
HEAVY = ("orchestrator.inventory.schema", "yaml", "paramiko", "numpy", "jinja2")
INVENTORY = "schema: 1\ngroups: {rack: 'n[1-2]'}\nhosts: {'n[1-3]': {address: '192.0.2.[1-3]'}, login: {}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "cluster.yaml").write_text(INVENTORY)
    for name, label in (("20260101-000000-aaaa", ""), ("20260102-000000-bbbb", "night run")):
        folder = tmp_path / "runs" / name
        (folder / f"{name}.001-x").mkdir(parents=True)
        (folder / "bench.json").write_text(json.dumps({"label": label}))
        (folder / f"{name}.001-x" / "manifest.json").write_text("{}")
    (tmp_path / "templates" / "mine").mkdir(parents=True)
    text = "title: Mine\nmodels:\n  net-1: {title: a}\n  'net-2':\n    title: b\noptions:\n  size: {type: int}\n"
    (tmp_path / "templates" / "mine" / "framework.yaml").write_text(text)
    return Project(tmp_path)


def completed(project: Project, line: str) -> list[str]:
    """What bash offers with the cursor at the end of the line."""
    at = len(line.split()) - (not line.endswith(" "))
    done = project.orch(_ORCH_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(at))
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [word for word in done.stdout.split("\n") if word]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("orch ben", ["bench"]),
        ("orch lab u", ["up"]),
        ("orch bench --stall", ["--stall-timeout"]),
        ("orch check -H n", ["n1", "n2", "n3"]),
        ("orch check --hosts @", ["@all", "@rack"]),
        ("orch check -x n1,l", ["n1,login"]),
        ("orch check -H other.yaml -x ", ["o1", "@all"]),
        ("orch check -H gone.yaml -x ", []),
        ("orch check --only ec", ["ecc"]),
        ("orch bench -f mi", ["mine"]),
        ("orch bench net", ["net-1", "net-2"]),
        ("orch bench -f simulated,mi", ["simulated,mine"]),
        ("orch bench -f mine vg", []),
        ("orch bench net-1 -f mine --set ", ["size="]),
        ("orch summarize 2026", ["20260102-000000-bbbb", "20260101-000000-aaaa"]),
        ("orch summarize ni", ["night run"]),
        ("orch logs ", ["20260102-000000-bbbb.001-x"]),
    ],
)
def test_values_are_completed(project: Project, line: str, offered: list[str]) -> None:
    (project.path / "other.yaml").write_text("schema: 1\nhosts: {o1: {}}\n")
    found = completed(project, line)
    assert found == offered if line.endswith(" ") or offered == [] else set(found) >= set(offered)
    assert all(name.startswith(line.rpartition(" ")[2]) for name in found)


def test_names_of_hosts_are_remembered_until_the_inventory_changes(project: Project) -> None:
    kept = project.path / ".orch" / "completion.json"
    kept.parent.mkdir()
    assert "n3" in completed(project, "orch check -H n")
    remembered = json.loads(kept.read_text())
    kept.write_text(json.dumps({**remembered, "names": ["n-remembered"]}))
    assert completed(project, "orch check -H n") == ["n-remembered"]
    (project.path / "inventory" / "cluster.yaml").write_text("schema: 1\nhosts: {n8: {}}\n")
    assert completed(project, "orch check -H n") == ["n8"]
    kept.write_text("damaged")
    assert completed(project, "orch check -H n") == ["n8"]


def test_nothing_is_started_and_nothing_reported_by_a_completion(project: Project) -> None:
    program = project.path / "cloud"
    program.write_text("#!/bin/sh\ntouch started\necho '{}'\n")
    program.chmod(0o755)
    assert completed(project, f"orch check -H {program} -x ") == []
    assert not (project.path / "started").exists()
    (project.path / "orch.yaml").write_text("repeat: 1\n")
    assert completed(project, "orch check -x n1,n") == []


def test_completion_of_hosts_that_are_remembered_loads_nothing_heavy(project: Project) -> None:
    (project.path / ".orch").mkdir()
    completed(project, "orch check -H n")
    code = (
        "import sys\n"
        "sys.argv = ['orch']\n"
        "from orchestrator.cli.main import main\n"
        "try: main()\n"
        f"finally: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    environment = {
        "_ORCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "orch check -H n",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project.path,
        env={**environment, "PYTHONPATH": str(REPOSITORY), "HOME": str(project.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["n1", "n2", "n3"] and done.stderr.strip() == "[]"
