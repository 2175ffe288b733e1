"""Projects that cannot be written: named with what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_project import Project


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on a disk that is mounted read-only, and beside it one that has ``.orch``."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True
    ).returncode:
        pytest.skip("mounting a disk needs root")
    (place / "new").mkdir()
    (place / "old" / ".orch").mkdir(parents=True)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


COMMANDS = [["deploy"], ["lab", "up", "--kind", "asyncssh", "--nodes", "1"], ["bench", "resnet50"]]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("where", ["new", "old"])
def test_a_project_that_cannot_be_written_is_named_with_what_to_do(
    project: Project, read_only: Path, words: list[str], where: str
) -> None:
    done = project.orch(*words, ORCH_PROJECT=str(read_only / where))
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("orch: ")]
    assert done.returncode == 2 and message.startswith(f"orch: {read_only}/{where}/"), done
    assert "ORCH_PROJECT" in message and ".part" not in message, message


def test_a_project_with_a_path_that_is_too_long_is_refused(project: Project) -> None:
    long = "/".join(["/" + "d" * 200] * 18)
    for words in COMMANDS:
        done = project.orch(*words, ORCH_PROJECT=long)
        assert (
            done.returncode == 2
            and "expected a project's path of at most 3546 bytes" in done.stderr
        ), done


def test_what_lies_where_a_projects_folder_should_be_is_named(project: Project) -> None:
    for name, refused in ((".orch", COMMANDS[:2]), ("runs", COMMANDS[2:])):
        path = project.path / name
        path.touch()
        for words in refused:
            assert f"orch: {path}: cannot be written: it is not a folder. " in project.refused(
                *words
            )
        path.unlink()
