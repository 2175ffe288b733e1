"""orch archive and orch verify: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.api.sealing import contents as tables
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, OrchError
from orchestrator.record.rundir import BenchDir
from orchestrator.version import __version__
from tests.record.archive.packing import quoted


def orch(*words: str) -> Result:
    return CliRunner().invoke(program(), words)


def test_the_commands_print_the_seal_and_what_it_is_of(
    bench: BenchDir, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sealed = orch("archive", str(bench.path))
    found = quoted(archive)
    assert (
        sealed.stdout == f"b1.tar: sealed 48 files of b1; 2 of 4 runs have a number\nseal {found}\n"
    )
    assert (tmp_path / "b1.tar").read_bytes() == archive.read_bytes()
    proven = orch("verify", "b1.tar", "--seal", found)
    text = f"b1.tar: 48 files and the tables are as sealed by orch {__version__}; 2 of 4 runs have a number\nseal {found}\n"
    assert (proven.exit_code, proven.stdout, proven.stderr) == (0, text, "")
    assert "--seal SHA256 also verifies" in orch("verify", "b1.tar").stderr
    as_json = json.loads(orch("verify", "b1.tar", "--json").stdout)
    assert (as_json["seal"], as_json["measured"], as_json["tables"]) == (
        found,
        2,
        tables(bench)["tables"],
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["verify", "nowhere.tar"], 2),
        (["verify", "/dev/null"], 2),
        (["verify", ".", "--seal", "abc"], 2),
        (["verify", "."], 4),
        (["archive", "nothing"], 2),
    ],
)
def test_what_is_no_archive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    error = orch(*words).exception
    assert isinstance(error, OrchError) and error.exit_code == code
    if words == ["verify", "nowhere.tar"]:
        assert str(error).endswith("found none. orch archive BENCH writes one")


@pytest.mark.parametrize("content", [None, "hello", "-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_a_key_that_does_not_sign_leaves_no_archive_behind(
    bench: BenchDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    if content:
        (tmp_path / "key").write_text(content)
        (tmp_path / "key").chmod(0o600)
    done = orch("archive", str(bench.path), "--sign", "key", "-o", "b.tar")
    assert isinstance(done.exception, ConfigError) and "--sign key: " in str(done.exception)
    assert not list(tmp_path.glob("*.tar*"))
    assert orch("archive", str(bench.path), "-o", "b.tar").exit_code == 0
