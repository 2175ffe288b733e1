"""A store: what goes in comes out, what was changed is refused, and the index is only ever a copy
of what is sealed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from orchestrator.api.sealing import contents
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, DataError, Faults
from orchestrator.features.store.archives import Store
from orchestrator.features.store.folder import FolderPlace
from orchestrator.features.store.index import read_index, write_index
from orchestrator.record.archive import RECORD, seal, verify
from orchestrator.record.archive_record import head_of
from orchestrator.record.rundir import BenchDir
from tests.record.archive.packing import packed
from tests.support.acceptances import STEADY, acceptance
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


def test_history_of_a_store_is_that_of_the_projects_it_came_from(project: Path, team: Path) -> None:
    mine = json.loads(orch("history", "--json", "--metric", "all").stdout)
    ours = json.loads(orch("history", "--from", str(team), "--json", "--metric", "all").stdout)
    assert ours["cells"] == mine["cells"] and [cell["bench_id"] for cell in ours["cells"]] == [
        "a",
        "b",
    ]
    assert ours["seals"] == {
        name: verify(archive_of(team, name), contents).seal for name in ("a", "b")
    }
    assert orch("history", "--from", str(team)).stdout == orch("history").stdout


def test_a_bench_that_was_pulled_is_read_as_where_it_was_measured(
    project: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        ("summarize", "a", "--format", "json"),
        ("summarize", "a", "--format", "html"),
        ("compare", "a", "b", "--json"),
        ("history",),
    )
    mine = [orch(*words).stdout for words in words]
    at(monkeypatch, project.parent / "theirs")
    said = orch("pull", str(team), "nightly", "b")
    assert said.exit_code == 0 and "a: verified, in " in said.stdout
    theirs = [orch(*words).stdout for words in words]
    assert (theirs[0], *theirs[2:]) == (mine[0], *mine[2:]) and len(theirs[1]) == len(mine[1])
    assert orch("verify", "runs/a", "--seal", archive_of(team, "a").stem).exit_code == 0
    assert "has it already" in orch("pull", str(team), "a").stdout
    assert orch("push", str(team), "a").stdout.startswith(
        "a: the store has it already; 3 of 3 runs have a number\nseal "
    )


def test_what_is_there_under_its_name_is_never_overwritten(project: Path, team: Path) -> None:
    log = project / "runs/a/a-1/logs/node1/rank-0.out"
    log.write_bytes(log.read_bytes() + b"more")
    before = files(project / "runs")
    said = orch("pull", str(team), "a")
    assert (
        said.exit_code == 1
        and "found one with other files" in str(said.exception)
        and files(project / "runs") == before
    )
    assert orch("pull", str(team), "a", "--output", "elsewhere").exit_code == 0
    assert (project / "elsewhere/a/bench.json").is_file()


def test_an_acceptance_goes_in_and_out_and_its_stages_are_in_the_history(
    project: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = acceptance(project / "runs", {1: tuple(0.8 * value for value in STEADY)}, nodes=3)
    assert orch("push", str(team), made.path.name).exit_code == 0
    at(monkeypatch, project.parent / "theirs")
    said = orch("pull", str(team), made.path.name)
    assert said.exit_code == 0, said.exception
    assert files(project.parent / "theirs/runs" / made.path.name).keys() >= files(
        made.path
    ).keys() - {"certificate.tar"}
    shown = json.loads(orch("history", "--from", str(team), "--json", "--metric", "all").stdout)
    (stage,) = {attempt.bench_id for attempt in made.record().attempts}
    assert stage in {cell["bench_id"] for cell in shown["cells"]}
    # The history names stages, and so does who pulls: what comes is the acceptance.
    at(monkeypatch, project.parent / "others")
    assert orch("pull", str(team), stage).stdout.startswith(f"{made.path.name}: verified, in ")
    assert orch("summarize", stage).exit_code == 0


def test_the_history_of_a_store_has_the_acceptances_of_a_project_as_it_has_them_itself(
    project: Path, team: Path
) -> None:
    made = acceptance(project / "runs", {1: tuple(0.8 * value for value in STEADY)}, nodes=3)
    assert orch("push", str(team), made.path.name).exit_code == 0
    here, there = (
        json.loads(orch("history", *words, "--json").stdout)
        for words in ((), ("--from", str(team)))
    )
    (past,) = here["acceptances"]
    assert there["acceptances"] == [past] and made.path.name in there["seals"]
    assert (past["acceptance_id"], past["suite"], past["verdict"]) == (
        made.path.name,
        "small",
        "fail",
    )
    assert past["hosts"] == ["node1", "node2", "node3"] and [
        name for name, _ in past["failed"]
    ] == ["node2"]
    # A store that has no index is read from the archives themselves.
    (team / "index.sqlite").unlink()
    assert json.loads(orch("history", "--from", str(team), "--json").stdout)["acceptances"] == [
        past
    ]
    text = orch("history", "--from", str(team)).stdout
    assert (
        "acceptances of node[1-3]" in text and "fail       small" in text and "    node2: " in text
    )
    assert (
        "acceptances of" not in orch("history", "--from", str(team), "--model", "resnet50").stdout
    )
    assert (
        "acceptances of" not in orch("history", "--from", str(team), "--since", "2027-01-01").stdout
    )


def test_a_changed_archive_is_not_let_in(project: Path, team: Path) -> None:
    orch("archive", "a", "-o", "a.tar")
    size = Path("a.tar").stat().st_size
    whole, before = Path("a.tar").read_bytes(), files(team)
    chance = random.Random(1)
    for place in chance.sample(range(size), 10):
        Path("a.tar").write_bytes(whole)
        changed(Path("a.tar"), place)
        assert refusal("push", str(team), "a.tar").startswith("a.tar")
        assert files(team) == before


def test_an_archive_that_was_changed_in_the_store_does_not_come_out(
    project: Path, team: Path
) -> None:
    path = archive_of(team, "a")
    index = (team / "index.sqlite").read_bytes()
    changed(path, path.stat().st_size - 30_000)
    for words in (("pull", str(team), "a", "-o", "out"), ("verify", str(team))):
        said = refusal(*words)
        assert said.startswith(f"{path}: expected ") and said.endswith(
            f"it: orch push --again {team} a"
        ), said
    assert not list((project / "out").iterdir())
    assert orch("pull", str(team), "b", "-o", "out").exit_code == 0
    assert (
        orch("push", str(team), "b").exit_code == 0
        and (team / "index.sqlite").read_bytes() == index
    )

    assert "the store has it already" in orch("push", str(team), "a").stdout
    assert "sent and verified" in orch("push", str(team), "a", "--again").stdout
    assert orch("verify", str(team)).exit_code == 0


def test_a_stranger_under_the_name_of_a_seal_gets_into_no_index(project: Path, team: Path) -> None:
    """Put there by hand: another bench, what is no archive, and one that was cut."""
    archives = team / "archives"
    whole = archive_of(team, "a").read_bytes()
    index = (team / "index.sqlite").read_bytes()
    for digit, data in (("0", whole), ("1", b"no archive"), ("2", whole[:20000]), ("3", b"")):
        (archives / f"{digit * 64}.tar").write_bytes(data)
    said = orch("history", "--from", str(team))
    assert (
        isinstance(said.exception, Faults)
        and len(said.exception.errors) == 4
        and said.exception.exit_code == 4
    )
    assert said.stdout == orch("history").stdout
    assert orch("push", str(team), "b").exit_code == 0
    assert (team / "index.sqlite").read_bytes() == index


def test_a_figure_that_no_double_holds_gets_into_no_index(project: Path, team: Path) -> None:
    record: dict[str, Any] = {
        "schema": 2,
        "orch": "0.1.0",
        **contents(BenchDir(project / "runs/a")),
    }
    record["history"]["benches"]["a"]["cells"][0]["value"] = 10**400
    own = json.dumps(record).encode()
    path = packed(project / "large.tar", {RECORD: own})
    seal = hashlib.sha256(f"{hashlib.sha256(own).hexdigest()}  {RECORD}\n".encode()).hexdigest()
    path.rename(team / f"archives/{seal}.tar")
    assert f"{seal}.tar: history: expected valid values" in refusal("history", "--from", str(team))


def test_a_full_disk_for_temporary_files_is_named(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        monkeypatch.setattr("tempfile.tempdir", str(small))
        said = refusal("pull", str(team), "a", "-o", "out")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert said.startswith(f"{small}/orch-") and "no space on the controller's disk" in said


def test_the_index_is_made_again_from_the_archives(project: Path, team: Path) -> None:
    shown, index = (
        orch("history", "--from", str(team), "--json").stdout,
        (team / "index.sqlite").read_bytes(),
    )
    for damage in (
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"SQLite"),
        lambda path: changed(path, 100),
    ):
        damage(team / "index.sqlite")
        assert orch("history", "--from", str(team), "--json").stdout == shown
        assert orch("push", str(team), "b").exit_code == 0
        assert (team / "index.sqlite").read_bytes() == index


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE cells SET value = value * 1.01 WHERE bench_id = 'a'",
        "UPDATE cells SET low = low - 1",
        "DELETE FROM cells WHERE bench_id = 'a'",
        "UPDATE archives SET measured = 4 WHERE id = 'a'",
        "UPDATE benches SET damaged = '{'",
        "UPDATE cells SET qualifications = X'00'",
        "INSERT INTO cells SELECT seal, bench_id, 9, created, series, framework, model, dtype, shape, spec, metric, unit,"
        " is_primary, value, low, high, level, n, failed, qualifications, hardware, label FROM cells WHERE bench_id = 'a'",
        "ALTER TABLE benches RENAME COLUMN damaged TO other",
        "ALTER TABLE cells RENAME COLUMN value TO other",
        "ALTER TABLE archives RENAME COLUMN checksum TO other",
    ],
)
def test_a_figure_that_was_changed_in_the_index_is_read_from_the_archive(
    project: Path, team: Path, statement: str
) -> None:
    shown = orch("history", "--from", str(team), "--json").stdout
    with sqlite3.connect(team / "index.sqlite") as tables:
        assert tables.execute(statement).rowcount
    tables.close()
    assert orch("history", "--from", str(team), "--json").stdout == shown
    assert orch("push", str(team), "b").exit_code == 0
    entries, broken = read_index(team / "index.sqlite", "index")
    assert len(entries) == 2 and not broken


def test_an_index_with_nonsense_and_true_checksums_is_no_index(project: Path, team: Path) -> None:
    """What somebody writes who can write into the store, and knows how."""
    shown = orch("history", "--from", str(team)).stdout
    entries, _ = read_index(team / "index.sqlite", "index")
    for changes in ({"runs": "many"}, {"created": None}, {"label": b"x"}, {"files": -1}):
        odd = {seal: replace(entry, **changes) for seal, entry in entries.items()}
        (team / "index.sqlite").unlink()
        with suppress(TypeError):  # which JSON refuses already
            write_index(team / "index.sqlite", odd)
        assert orch("history", "--from", str(team)).stdout == shown
    for changes in (
        {"spec": "no JSON"},
        {"spec": "[]"},
        {"spec": '{"key": {"a": []}}'},
        {"value": "fast"},
        {"n": None},
        {"unit": 7},
    ):
        odd = {
            seal: replace(entry, benches=with_cells(entry.benches, changes))
            for seal, entry in entries.items()
        }
        (team / "index.sqlite").unlink()
        write_index(team / "index.sqlite", odd)
        assert orch("history", "--from", str(team)).stdout == shown


def with_cells(benches: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {**one, "cells": [{**cell, **changes} for cell in one["cells"]]}
        for name, one in benches.items()
    }


def test_history_reads_no_archive_but_those_that_the_index_lacks_and_of_these_the_head(
    project: Path, team: Path
) -> None:
    class Counting(FolderPlace):
        def __init__(self, root: Path) -> None:
            super().__init__(str(root), str(root))
            self.asked: list[str] = []

        def fetch(self, name: str, target: Path, most: int) -> None:
            self.asked.append(name)
            super().fetch(name, target, most)

        def read(self, name: str, start: int, size: int) -> bytes:
            self.asked.append(name)
            assert start + size <= 1 << 20
            return super().read(name, start, size)

    log = project / "runs/a/a-1/large.txt"
    log.write_bytes(bytes(5 << 20))
    seal(BenchDir(project / "runs/a"), project / "large.tar", contents)
    place = Counting(team)
    store = Store(place, contents).open()
    assert len(store.listing().entries) == 2 and place.asked == ["orch-store.json", "index.sqlite"]
    archive = verify(project / "large.tar", contents)
    assert store.push(project / "large.tar", archive)
    place.asked.clear()
    assert len(store.listing().entries) == 3
    assert set(place.asked) == {"index.sqlite", f"archives/{archive.seal}.tar"}


def test_of_two_archives_of_a_bench_that_with_more_runs_counts(project: Path, team: Path) -> None:
    bench(
        project.parent / "later/runs",
        "a",
        "2026-09-01T08:00:00Z",
        [0.5, 0.5, 0.51, 0.5],
        label="nightly",
    )
    assert orch("push", str(team), str(project.parent / "later/runs/a")).exit_code == 0
    cells = json.loads(orch("history", "--from", str(team), "--json").stdout)["cells"]
    assert [(cell["bench_id"], cell["n"]) for cell in cells] == [("a", 4), ("b", 3)]
    said = orch("pull", str(team), "a", "-o", "out")
    assert (
        "2 archives are 'a'" in str(said.exception)
        and len(json.loads(orch("pull", str(team), "--json").stdout)["archives"]) == 3
    )


def test_an_archive_of_before_there_were_stores_goes_in_too(project: Path, team: Path) -> None:
    bench(project.parent / "old/runs", "b1", "2026-01-01T08:00:00Z", [0.5, 0.5])
    folder = project.parent / "old/runs/b1"
    record = {"schema": 1, "orch": "0.1.0", "tables": contents(BenchDir(folder))["tables"]}
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    packed(
        project / "old.tar",
        {
            RECORD: json.dumps(record).encode(),
            **{name: (folder / name).read_bytes() for name in names},
        },
    )
    assert orch("push", str(team), "old.tar").exit_code == 0
    cells = json.loads(orch("history", "--from", str(team), "--json").stdout)["cells"]
    assert [cell["bench_id"] for cell in cells] == ["b1", "a", "b"]


@pytest.mark.parametrize("kind", ["sent", "of a file"])
def test_signatures_come_along(project: Path, team: Path, kind: str) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    Path("signers").write_text(f"ops@example.org {Path('key.pub').read_text()}")
    if kind == "sent":
        assert orch("push", str(team), "a", "--sign", "key").exit_code == 0
    else:
        orch("archive", "a", "-o", "a.tar", "--sign", "key")
        assert orch("push", str(team), "a.tar").exit_code == 0
    assert (
        "signed by ops@example.org"
        in orch("pull", str(team), "a", "-o", "out", "--signers", "signers").stdout
    )
    missing = f"{archive_of(team, 'b')}.sig: expected a signature, found none"
    assert missing in refusal("pull", str(team), "b", "-o", "out", "--signers", "signers")
    assert not (project / "out/b").exists()
    assert missing in refusal("verify", str(team), "--signers", "signers")
    archive_of(team, "a").with_suffix(".tar.sig").write_text("mine")
    assert "archives/" in refusal("pull", str(team), "a", "-o", "more", "--signers", "signers")


def test_a_folder_of_other_files_becomes_no_store(project: Path) -> None:
    assert "expected a store or an empty folder, found runs" in str(
        orch("push", str(project), "a").exception
    )
    (project / "docs").mkdir()
    (project / "docs/mine.txt").write_text("x")
    said = orch("push", str(project / "docs"), "a")
    assert "expected a store or an empty folder, found mine.txt" in str(said.exception)
    assert [path.name for path in (project / "docs").iterdir()] == ["mine.txt"]
    for words in (("pull", "docs"), ("history", "--from", "docs")):
        assert "expected a store, found none" in str(orch(*words).exception)
    assert "mine.txt: expected a folder, found something else" in str(
        orch("push", "docs/mine.txt", "a").exception
    )
    for words in (("pull", "docs/mine.txt"), ("history", "--from", "docs/mine.txt")):
        assert "expected a store, found none" in str(orch(*words).exception)
    assert "--from: expected a value, got an empty text" in str(
        orch("history", "--from", "").exception
    )
    (project / "docs/orch-store.json").write_text('{"schema": 2}')
    assert "a newer orch may have made it" in str(orch("pull", "docs").exception)


def test_a_store_that_may_not_be_read_is_no_damage(project: Path, team: Path) -> None:
    # As root every folder can be read; so another user asks, who may not even enter that of the
    # test.
    is_root = os.geteuid() == 0
    if is_root:
        os.setresuid(65534, 65534, 0)  # a shell drops an effective user that is not its own
    else:
        team.chmod(0)
    try:
        for words in (("pull", str(team)), ("history", "--from", str(team)), ("verify", str(team))):
            said = orch(*words)
            assert isinstance(
                said.exception, ConfigError
            ) and "cannot be read: Permission denied" in str(said.exception), said
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        else:
            team.chmod(0o700)


def test_four_digits_of_a_seal_are_enough_and_fewer_are_told(project: Path, team: Path) -> None:
    seal_of_a = archive_of(team, "a").stem
    assert "a: verified" in orch("pull", str(team), seal_of_a[:4], "-o", "out").stdout
    said = orch("pull", str(team), seal_of_a[:3])
    assert str(said.exception).endswith(
        f"orch pull {team} lists them; the first 4 digits of a seal are enough"
    )


def test_without_a_name_the_newest_bench_or_acceptance_is_sealed_and_none_without_runs(
    project: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, project.parent / "accepted")
    made = acceptance(Path("runs"), {}, nodes=3, name="a2-small")
    assert orch("archive", "-o", "a.tar").stdout.startswith("a.tar: sealed ")
    assert orch("push", str(team)).stdout.startswith("a2-small: sent and verified")
    empty = acceptance(Path("runs"), {}, nodes=3, name="a3-small")
    for run in empty.path.glob("*/*/manifest.json"):
        shutil.rmtree(run.parent)
    assert orch("push", str(team), "--all").stdout.startswith("a2-small: the store has it already")
    bench(Path("runs"), "b9", "2026-10-01T08:00:00Z", [1.0])
    assert orch("push", str(team)).stdout.startswith("b9: sent") and made.path.is_dir()


def test_a_head_is_proven_by_its_seal_alone(project: Path, team: Path) -> None:
    path = archive_of(team, "a")
    whole, seal = path.read_bytes(), path.stem

    def reader(data: bytes) -> Callable[[int, int], bytes]:
        return lambda start, size: data[start : start + size]

    head = head_of(reader(whole), len(whole), seal, "x")
    assert (
        head.history == verify(path, contents).history
        and head.files == verify(path, contents).files
    )
    end = whole.index(b'"schema": 2') + 4000
    for place in random.Random(2).sample(range(end), 60):
        data = bytearray(whole)
        data[place] ^= 1
        with pytest.raises(DataError):
            head_of(reader(bytes(data)), len(data), seal, "x")
