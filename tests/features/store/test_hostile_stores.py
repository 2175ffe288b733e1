"""A store whose folder others may write to: what they put there holds nobody up, fills no disk, and
is believed by nobody.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from orchestrator import procs
from orchestrator.cli.main import program
from orchestrator.errors import DataError
from orchestrator.features.store.folder import FolderPlace
from tests.support.benches import bench
from tests.support.judge import LIMIT_S, wait_for


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of one bench, and the project that it came from."""
    made = tmp_path_factory.mktemp("pushed")
    bench(made / "mine/runs", "a", "2026-09-01T08:00:00Z", [0.5, 0.5, 0.51], label="nightly")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCH_PROJECT", str(made / "mine"))
        patch.chdir(made / "mine")
        assert orch("push", "../team", "a").exit_code == 0
    return made


@pytest.fixture
def team(tmp_path: Path, pushed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one bench, beside the project that it came from."""
    shutil.copytree(pushed, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "team"


def orch(*words: str) -> Result:
    return CliRunner().invoke(program(), words)


def said_by(*words: str) -> str:
    """Return what a command says that ends as one does that was refused, or that found all in
    order.
    """
    done = orch(*words)
    text = (
        done.output
        if done.exception is None or isinstance(done.exception, SystemExit)
        else str(done.exception)
    )
    assert "Traceback" not in text and not isinstance(
        done.exception, (OSError, TypeError, ValueError, KeyError)
    ), done.exception
    return text


def odd(path: Path, kind: str) -> None:
    """Put something that is no regular file in the place of a file."""
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)  # a path that is too long to be bound to


def archive_in(team: Path) -> Path:
    (path,) = (team / "archives").glob("*.tar")
    return path


KINDS = ("fifo", "link", "folder", "socket")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["orch-store.json", "archives.json", "archive", "signature"])
def test_nothing_but_a_regular_file_is_opened(team: Path, name: str, kind: str) -> None:
    paths = {"archive": archive_in(team), "signature": Path(f"{archive_in(team)}.sig")}
    path = paths.get(name, team / name)
    odd(path, kind)
    texts = [
        said_by("pull", str(team)),
        said_by("push", str(team), "a"),
    ]
    texts += [said_by("pull", str(team), "a", "-o", "out"), said_by("verify", str(team))]
    if name == "orch-store.json":
        assert all(
            f"{path}: expected a regular file, found something else" in text for text in texts[:3]
        ), texts
    if name == "signature":
        assert "invalid" in texts[0] and "unverified" not in texts[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_opens_regular_files_alone(tmp_path: Path, kind: str) -> None:
    place = FolderPlace(str(tmp_path), str(tmp_path))
    odd(tmp_path / "odd", kind)
    for open_it in (
        lambda: place.fetch("odd", tmp_path / "out", 100),
        lambda: place.read("odd", 0, 10),
    ):
        with pytest.raises(DataError, match="expected a regular file, found something else"):
            open_it()
    assert place.sizes("") == {"odd": None}


def test_no_more_is_fetched_than_a_file_may_have(team: Path, tmp_path: Path) -> None:
    place = FolderPlace(str(team), str(team))
    with (team / "orch-store.json").open("r+b") as marker:
        marker.truncate(1 << 40)  # sparse
    assert "orch-store.json: expected at most 65536 bytes, got more" in said_by("pull", str(team))
    with pytest.raises(DataError, match="expected at most 5 bytes"):
        place.fetch("archives.json", tmp_path / "out", 5)
    assert not (tmp_path / "out").exists()
    place.fetch("archives.json", tmp_path / "all", (team / "archives.json").stat().st_size)


# ------------------------------------------------------------------ signatures


def key(name: str) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    Path(f"{name}.signers").write_text(f"{name}@example.org {Path(f'{name}.pub').read_text()}")
    return Path(name)


def listed(team: Path, *words: str) -> Any:
    (row,) = json.loads(orch("pull", str(team), "--json", *words).stdout)["archives"]
    return row["signed"]


def test_signatures_of_several_people_are_kept_beside_each_other(team: Path) -> None:
    assert listed(team) == ""
    for name in ("ada", "bob", "eve", "bob"):
        assert (
            orch(
                "push",
                str(team),
                "a",
                "--sign",
                str(key(name) if not Path(name).exists() else name),
            ).exit_code
            == 0
        )
    assert len(list((team / "archives").glob("*.sig"))) == 3
    assert listed(team) == "unverified"
    for name in ("ada", "bob", "eve"):
        signers = ("--signers", f"{name}.signers")
        assert listed(team, *signers) == f"verified: {name}@example.org"
        pulled = orch("pull", str(team), "a", "-o", f"out-{name}", *signers)
        assert f"signed by {name}@example.org" in pulled.stdout, pulled.output
        assert f"signed by {name}@example.org" in orch("verify", str(team), *signers).stdout
    key("mallory")
    assert listed(team, "--signers", "mallory.signers") == "unverified"
    assert "expected a signature" in said_by(
        "pull", str(team), "a", "-o", "none", "--signers", "mallory.signers"
    )


def test_garbage_is_no_signature_and_hides_none(team: Path) -> None:
    first, seal = Path(f"{archive_in(team)}.sig"), archive_in(team).stem
    of_another = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", str(key("ada")), "-n", "orch"],
        input=b"0\n",
        capture_output=True,
        check=True,
    ).stdout
    for content in (
        b"",
        b"mine",
        b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n",
        of_another,
    ):
        first.write_bytes(content)
        assert listed(team) == "invalid", content
        assert "expected a signature" in said_by("verify", str(team), "--signers", "ada.signers")
    assert orch("push", str(team), "a", "--sign", str(key("bob"))).exit_code == 0
    (team / "archives" / f"{seal}.tar.{'0' * 16}.sig").write_bytes(b"mine")
    assert (
        listed(team) == "unverified"
        and listed(team, "--signers", "bob.signers") == "verified: bob@example.org"
    )


def test_a_file_that_is_no_signature_is_not_pushed(team: Path, tmp_path: Path) -> None:
    assert orch("archive", "a", "-o", "a.tar").exit_code == 0
    Path("a.tar.sig").write_text("mine")
    assert "a.tar.sig: expected a signature of ssh-keygen, found something else" in said_by(
        "push", str(team), "a.tar"
    )
    assert not list((team / "archives").glob("*.sig"))


# ------------------------------------------------------------------ what is left of a command that was killed or refused


def test_a_pull_removes_at_once_what_a_killed_one_left_and_spares_one_in_progress(
    team: Path, tmp_path: Path
) -> None:
    into = tmp_path / "out"
    for name in (".pull-dead", ".pull-alive"):
        (into / name / "inner").mkdir(parents=True)
    handle = os.open(into / ".pull-alive", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert orch("pull", str(team), "a", "-o", str(into)).exit_code == 0
    assert sorted(path.name for path in into.iterdir()) == [".pull-alive", "a"]
    os.close(handle)
    assert orch("pull", str(team), "a", "-o", str(into)).exit_code == 0
    assert [path.name for path in into.iterdir()] == ["a"]


def test_a_pull_removes_old_folders_where_folders_have_no_locks(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "out"
    for name in (".pull-dead", ".pull-new"):
        (into / name / "inner").mkdir(parents=True)
    os.utime(into / ".pull-dead", (1, 1))

    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)  # as NFS does for a folder
    assert orch("pull", str(team), "a", "-o", str(into)).exit_code == 0
    assert sorted(path.name for path in into.iterdir()) == [".pull-new", "a"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("words", [("pull", "TEAM", "a", "-o", "out"), ("verify", "TEAM")])
def test_a_command_that_is_told_to_end_leaves_nothing(
    team: Path, tmp_path: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    """The store is held up by another `head`, which waits in place of copying an archive."""
    programs, copies = tmp_path / "programs", tmp_path / "copies"
    for folder in (programs, copies):
        folder.mkdir()
    held_up = (
        f"*.tar) echo $$ >{tmp_path}/part; mv {tmp_path}/part {tmp_path}/asked; exec sleep 600;;"
    )
    (programs / "head").write_text(
        f'#!/bin/sh\ncase "$*" in {held_up} esac\nexec {shutil.which("head")} "$@"\n'
    )
    (programs / "head").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(copies)}
    argv = [sys.executable, "-m", "orchestrator"]
    argv += [str(team) if word == "TEAM" else word for word in words]
    orch = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "asked").exists, 120, "the store is not asked")
    orch.send_signal(number)
    _, said = orch.communicate(timeout=LIMIT_S)
    assert orch.returncode == 128 + number
    assert "orch: interrupted; whatever is in the store is complete" in said
    assert procs.stat(int((tmp_path / "asked").read_text())) is None
    assert not list(copies.iterdir())
    assert not list(Path("out").glob(".pull-*"))


def test_no_store_is_made_for_an_archive_that_is_refused(team: Path, tmp_path: Path) -> None:
    archive = tmp_path / "odd.tar"
    archive.write_bytes(b"no archive")
    assert "expected an archive" in said_by("push", str(tmp_path / "fresh"), str(archive))
    assert not (tmp_path / "fresh").exists()
