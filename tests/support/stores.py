"""A project with two benches, a store with both, and the commands that are tried on them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, DataError, Faults
from tests.support.benches import bench


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two benches, a month apart."""
    bench(tmp_path / "mine/runs", "a", "2026-09-01T08:00:00Z", [0.5, 0.5, 0.51], label="nightly")
    bench(tmp_path / "mine/runs", "b", "2026-10-01T08:00:00Z", [1.0, 1.01, 0.99])
    monkeypatch.setenv("COLUMNS", "160")
    at(monkeypatch, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture
def team(project: Path) -> Path:
    """The folder of a store with both benches."""
    said = orch("push", "../team", "--all")
    assert (said.exit_code, said.stderr) == (0, "made a store: ../team\n"), said.output
    return project.parent / "team"


def at(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    project.mkdir(exist_ok=True)
    monkeypatch.chdir(project)
    monkeypatch.setenv("ORCH_PROJECT", str(project))


def orch(*words: str) -> Result:
    return CliRunner().invoke(program(), words)


def refusal(*words: str) -> str:
    """Return what a command says that ends with 4."""
    with pytest.raises((DataError, Faults)) as caught:
        CliRunner().invoke(program(), words, catch_exceptions=False)
    assert caught.value.exit_code == 4
    return str(caught.value)


def archive_of(team: Path, bench_id: str) -> Path:
    (row,) = [
        row
        for row in json.loads(orch("pull", str(team), "--json").stdout)["archives"]
        if row["id"] == bench_id
    ]
    return team / "archives" / f"{row['seal']}.tar"


def changed(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refuse_readers(team: Path, *words: str) -> str:
    """Return how a command refuses a store that nobody may read. As root every folder can be read;
    so another user asks, who may not even enter the folder of the test, nor one of this checkout
    that is private: what the command imports is imported by a first call.
    """
    assert not orch(*words).exception
    is_root = os.geteuid() == 0
    if is_root:
        os.setresuid(65534, 65534, 0)  # a shell drops an effective user that is not its own
    else:
        team.chmod(0)
    try:
        said = orch(*words)
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        else:
            team.chmod(0o700)
    assert isinstance(said.exception, ConfigError), said
    return str(said.exception)
