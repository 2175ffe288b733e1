"""A store: what goes in comes out, what was changed is refused, and what a list shows is sealed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.sealing import contents
from orchestrator.errors import DataError
from orchestrator.features.store.archives import Store
from orchestrator.features.store.folder import FolderPlace
from orchestrator.record import archive
from orchestrator.record.archive import seal, verify
from orchestrator.record.archive_record import head_of
from orchestrator.record.rundir import BenchDir
from tests.support.acceptances import acceptance
from tests.support.benches import bench
from tests.support.features import needs
from tests.support.stores import archive_of, at, changed, files, orch, refusal, refuse_readers

OLD = Path(__file__).parents[2] / "data" / "store"


def test_a_bench_that_was_pulled_is_read_as_where_it_was_measured(
    project: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        ("summarize", "a", "--format", "json"),
        ("summarize", "a", "--format", "html"),
        ("compare", "a", "b", "--json"),
    )
    mine = [orch(*words).stdout for words in words]
    at(monkeypatch, project.parent / "theirs")
    said = orch("pull", str(team), "nightly", "b")
    assert said.exit_code == 0 and "a: verified, in " in said.stdout
    theirs = [orch(*words).stdout for words in words]
    assert (theirs[0], theirs[2]) == (mine[0], mine[2]) and len(theirs[1]) == len(mine[1])
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
    changed(path, path.stat().st_size - 30_000)
    for words in (("pull", str(team), "a", "-o", "out"), ("verify", str(team))):
        said = refusal(*words)
        assert said.startswith(f"{path}: expected ") and said.endswith(
            f"it: orch push --again {team} a"
        ), said
    assert not list((project / "out").iterdir())
    assert orch("pull", str(team), "b", "-o", "out").exit_code == 0
    assert "the store has it already" in orch("push", str(team), "a").stdout
    assert "sent and verified" in orch("push", str(team), "a", "--again").stdout
    assert orch("verify", str(team)).exit_code == 0


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


class Counting(FolderPlace):
    """A folder that notes the names it is asked for."""

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


def test_of_each_archive_the_head_is_read_and_once(project: Path, team: Path) -> None:
    log = project / "runs/a/a-1/large.txt"
    log.write_bytes(bytes(5 << 20))
    seal(BenchDir(project / "runs/a"), project / "large.tar", contents)
    archive = verify(project / "large.tar", contents)
    place, cache = Counting(team), project / ".orch" / "heads.json"
    store = Store(place, contents, cache).open()
    assert store.push(project / "large.tar", archive)
    place.asked.clear()
    listing = store.listing()
    heads = {f"archives/{name}.tar" for name in listing.entries}
    assert len(heads) == 3 and set(place.asked) == heads
    place.asked.clear()
    again = Store(place, contents, cache).listing()
    assert (again, place.asked) == (listing, [])
    cache.write_bytes(cache.read_bytes().replace(b'"runs": 3', b'"runs": 4'))
    assert Store(place, contents, cache).listing() == listing
    assert set(place.asked) == heads


def _kept_of(sealed: Any, computed: Any) -> Any:
    """Return what is computed now, without the keys that were not there when it was sealed."""
    match sealed, computed:
        case dict(), dict():
            return {key: _kept_of(sealed[key], computed[key]) for key in sealed if key in computed}
        case list(), list() if len(sealed) == len(computed):
            return [_kept_of(*pair) for pair in zip(sealed, computed, strict=True)]
    return computed


@needs("history")
def test_a_store_of_an_earlier_version_is_read_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by orch 0.1.0 when stores had an index, with one signature, and read by a later version,
    whose tables may have more columns.
    """
    monkeypatch.setattr(archive, "__version__", "0.2.0")
    team = shutil.copytree(OLD / "team", tmp_path / "team")
    at(monkeypatch, tmp_path / "theirs")
    index = (team / "index.sqlite").read_bytes()
    rows = json.loads(orch("pull", str(team), "--json").stdout)["archives"]
    assert [(row["id"], row["label"], row["runs"], row["signed"]) for row in rows] == [
        ("a", "nightly", 3, "unverified"),
        ("b", "", 1, ""),
    ]
    assert "a: verified, in " in orch("pull", str(team), "nightly").stdout
    said = orch("pull", str(team), "a", "-o", "out", "--signers", str(OLD / "signers"))
    assert "signed by ops@example.org" in said.stdout
    assert orch("pull", str(team), "b", "-o", "out").exit_code == 0
    for folder in (Path("out/a"), Path("out/b")):
        sealed = json.loads((folder / "archive.json").read_text())["tables"]
        assert _kept_of(sealed, dict(contents(BenchDir(folder)))["tables"]) == sealed
    cells = json.loads(orch("history", "--from", str(team), "--json").stdout)["cells"]
    assert [(cell["bench_id"], cell["n"]) for cell in cells] == [("a", 3), ("b", 1)]
    assert orch("verify", str(team)).exit_code == 0
    bench(Path("runs"), "c", "2026-11-01T08:00:00Z", [1.0])
    assert orch("push", str(team), "c").stdout.startswith("c: sent and verified")
    assert len(json.loads(orch("pull", str(team), "--json").stdout)["archives"]) == 3
    assert (team / "index.sqlite").read_bytes() == index  # earlier versions complete it


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
    for path in (team / "archives").glob("*.sig"):
        path.write_text("mine")
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
    assert "expected a store, found none" in str(orch("pull", "docs").exception)
    assert "mine.txt: expected a folder, found something else" in str(
        orch("push", "docs/mine.txt", "a").exception
    )
    assert "expected a store, found none" in str(orch("pull", "docs/mine.txt").exception)
    (project / "docs/orch-store.json").write_text('{"schema": 2}')
    assert "a newer orch may have made it" in str(orch("pull", "docs").exception)


def test_the_name_of_a_bench_makes_no_store(project: Path) -> None:
    for name in ("a", "nightly"):
        usage = f"{name}: expected a store, got the name of a bench. usage: orch push STORE {name};"
        for words in ((name,), (name, "b")):
            assert str(orch("push", *words).exception).startswith(usage)
        assert not (project / name).exists()
    assert orch("push", "./a", "b").exit_code == 0


def test_a_store_that_may_not_be_read_is_no_damage(project: Path, team: Path) -> None:
    for command in ("pull", "verify"):
        assert "cannot be read: Permission denied" in refuse_readers(team, command, str(team))


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
