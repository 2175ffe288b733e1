"""A store whose folder others may write to: what they put there holds nobody up, fills no disk, and
is believed by nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import program
from orchestrator.errors import DataError
from orchestrator.features.store.commands import _maker
from orchestrator.features.store.folder import FolderPlace
from orchestrator.features.store.index import read_index
from orchestrator.procs import machine_tag
from tests.support.benches import bench

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one bench, beside the project that it came from."""
    bench(tmp_path / "mine/runs", "a", "2026-09-01T08:00:00Z", [0.5, 0.5, 0.51], label="nightly")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path / "mine")
    assert orch("push", "../team", "a").exit_code == 0
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
@pytest.mark.parametrize("name", ["orch-store.json", "index.sqlite", "archive", "signature"])
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
        place.fetch("index.sqlite", tmp_path / "out", 5)
    assert not (tmp_path / "out").exists()
    place.fetch("index.sqlite", tmp_path / "all", (team / "index.sqlite").stat().st_size)


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {} FROM n"
CELLS = "x AS seal, x AS bench_id, x AS place"


@pytest.mark.parametrize(
    "statements",
    [
        [f"DROP TABLE cells; CREATE VIEW cells AS {ENDLESS.format(CELLS)}"],
        [
            f"DROP TABLE benches; CREATE VIEW benches AS {ENDLESS.format('x AS seal, x AS bench_id, x AS damaged')}"
        ],
        [f"DROP TABLE archives; CREATE VIEW archives AS {ENDLESS.format('x AS seal')}"],
        ["CREATE TRIGGER t AFTER INSERT ON cells BEGIN DELETE FROM archives; END"],
        ["CREATE TABLE more (x)"],
        ["CREATE INDEX more ON cells (value)"],
        ["ALTER TABLE cells ADD COLUMN more TEXT GENERATED ALWAYS AS (hex(seal)) VIRTUAL"],
        ["DROP TABLE cells", "CREATE TABLE cells (seal TEXT)"],
        ["CREATE VIRTUAL TABLE more USING fts5(x)"],
    ],
)
def test_an_index_is_asked_only_if_it_has_the_tables_of_one(
    team: Path, statements: list[str]
) -> None:
    path = team / "index.sqlite"
    with closing(sqlite3.connect(path)) as tables:
        for statement in statements:
            tables.executescript(statement)
    with pytest.raises(DataError, match="expected the tables of an index alone, found the "):
        read_index(path, "index")
    listed = orch("pull", str(team))
    assert (
        listed.exit_code == 0
        and "read from the archives instead" in listed.stderr
        and " a " in listed.stdout
    )
    assert "expected the tables of an index alone" in said_by("verify", str(team))


def test_an_index_is_not_asked_for_ever(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.features.store.index._MOST_S", -1.0)
    monkeypatch.setattr("orchestrator.features.store.index._STEPS", 1)
    with pytest.raises(DataError, match="expected an index: interrupted"):
        read_index(team / "index.sqlite", "index")


def test_an_index_has_no_more_rows_than_its_file_has_room_for(
    team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.features.store.index._LEAST_ROW_BYTES", 1 << 30)
    with pytest.raises(DataError, match="more rows than the file has room for"):
        read_index(team / "index.sqlite", "index")


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


def test_a_pull_removes_what_a_killed_one_left_and_spares_one_in_progress(
    team: Path, tmp_path: Path
) -> None:
    into = tmp_path / "out"
    for name in (".pull-dead", ".pull-alive"):
        (into / name / "inner").mkdir(parents=True)
        os.utime(into / name, (1, 1))
    (into / ".pull-fresh").mkdir()
    handle = os.open(into / ".pull-alive", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert orch("pull", str(team), "a", "-o", str(into)).exit_code == 0
    os.close(handle)
    assert sorted(path.name for path in into.iterdir()) == [".pull-alive", ".pull-fresh", "a"]


def test_a_pull_removes_at_once_what_a_process_that_is_gone_has_left(
    team: Path, tmp_path: Path
) -> None:
    into = tmp_path / "out"
    ended = subprocess.Popen(["sleep", "600"])
    made = {
        name: f".pull-{_maker(pid)}-x" for name, pid in (("gone", ended.pid), ("own", os.getpid()))
    }
    made["reused"] = (
        f".pull-{machine_tag()}-{os.getpid()}-1-x"  # another process had this id before
    )
    made["elsewhere"] = made["gone"].replace(machine_tag(), "0" * 8)
    ended.kill()
    ended.wait()
    for name in made.values():
        (into / name / "inner").mkdir(parents=True)

    assert orch("pull", str(team), "a", "-o", str(into)).exit_code == 0
    assert {path.name for path in into.iterdir()} == {"a", made["own"], made["elsewhere"]}


def test_no_store_is_made_for_an_archive_that_is_refused(team: Path, tmp_path: Path) -> None:
    archive = tmp_path / "odd.tar"
    archive.write_bytes(b"no archive")
    assert "expected an archive" in said_by("push", str(tmp_path / "fresh"), str(archive))
    assert not (tmp_path / "fresh").exists()
