"""A sealed bench is proven as it is; the same bench gives the same bytes, and what is no bench is
not sealed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.api.sealing import contents as tables
from orchestrator.errors import ConfigError, DataError, RunError
from orchestrator.record import sealed_tar as sealedtar
from orchestrator.record.archive import seal, verify
from orchestrator.record.archive_record import RECORD, SUMS
from orchestrator.record.ownership import hold
from orchestrator.record.rundir import BenchDir
from orchestrator.version import __version__
from tests.record.archive.packing import quoted, tree


def test_an_archive_is_proven_packed_and_unpacked_and_says_the_same(
    bench: BenchDir, archive: Path, unpacked: Path
) -> None:
    whole = verify(archive, tables)
    assert whole == verify(unpacked, tables) == verify(unpacked, tables, whole.seal)
    assert (whole.bench_id, whole.runs, whole.orch) == ("b1", 4, __version__)
    known = tables(bench)
    assert whole.tables == known["tables"]
    assert whole.history["benches"]["b1"]["cells"] == known["history"]["benches"]["b1"]["cells"]
    row = whole.tables["rows"][0]
    assert (row["n"], row["failed"]) == (2, 1)


def test_a_full_disk_is_named_with_the_size_of_the_whole_archive(
    bench: BenchDir, archive: Path, tmp_path: Path
) -> None:
    room, size = 16 << 10, archive.stat().st_size
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place)], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(
            DataError, match=f"space on the controller's disk: {size} bytes needed, {room} free"
        ) as caught:
            seal(bench, place / "b1.tar", tables)
        assert caught.value.kind == "storage_full" and size > room and not list(place.iterdir())
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_folder_that_cannot_be_written_is_named_by_the_archive(
    bench: BenchDir, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        seal(bench, tmp_path / "file/a.tar", tables)
    assert caught.value.where == str(tmp_path / "file/a.tar")


def test_other_programs_read_it_and_find_the_same_seal(archive: Path, unpacked: Path) -> None:
    subprocess.run(["sha256sum", "--quiet", "--strict", "--check", SUMS], cwd=unpacked, check=True)
    done = subprocess.run(
        ["sha256sum", SUMS], cwd=unpacked, check=True, capture_output=True, text=True
    )
    assert done.stdout.split()[0] == quoted(archive)
    listed = subprocess.run(
        ["tar", "-tf", archive], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert listed[:3] == [f"b1/{SUMS}", f"b1/{RECORD}", "b1/bench.json"] and listed[2:] == sorted(
        listed[2:]
    )


def test_the_same_bench_gives_the_same_bytes(
    bench: BenchDir, archive: Path, copied: BenchDir, unpacked: Path, tmp_path: Path
) -> None:
    (copied.path / "owner.lock").write_text("{}\n")
    (copied.path / "report.html").write_text("derived")
    (copied.path / ".r9.part").mkdir()
    copied.run("r1").write_result("throughput.json", {"derived": True})
    for path in copied.path.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o755)
    for number, each in enumerate((bench, copied, BenchDir(unpacked))):
        seal(each, tmp_path / f"{number}.tar", tables)
        assert (tmp_path / f"{number}.tar").read_bytes() == archive.read_bytes()


def test_the_bytes_of_a_tar_depend_on_nothing_but_what_is_in_it() -> None:
    """Versions of Python write headers in different ways; those that orch runs on have to agree for
    good.
    """
    out = io.BytesIO()
    for name, data in (
        ("b1/SHA256SUMS", b"x" * 700),
        (f"b1/{'r' * 120}/logs/{'h' * 60}/rank-0.out", b""),
        ("b1/z", b"z" * 512),
    ):
        sealedtar.append(out, name, len(data), [data])
    out.write(sealedtar.end(out.tell()))
    assert len(out.getvalue()) == 10240
    assert (
        hashlib.sha256(out.getvalue()).hexdigest()
        == "55dda419bff9d1148948a746bad3198eca14f2ae7173284e5d1d8c6a48184f65"
    )


def test_neither_command_writes_where_the_evidence_lies(
    copied: BenchDir, unpacked: Path, tmp_path: Path
) -> None:
    before = tree(copied.path), tree(unpacked)
    (tmp_path / "out").mkdir()
    seal(copied, tmp_path / "out" / "a.tar", tables)
    verify(unpacked, tables)
    assert (tree(copied.path), tree(unpacked)) == before
    assert os.listdir(tmp_path / "out") == ["a.tar"]


def test_what_names_its_file_is_told_alike_wherever_the_bench_lies(
    copied: BenchDir, tmp_path: Path
) -> None:
    (copied.path / "r2" / "manifest.json").write_text("{")
    done = seal(copied, tmp_path / "a.tar", tables)
    assert any("r2/manifest.json" in note for note in done.tables["notes"]) and str(
        tmp_path
    ) not in json.dumps(done.tables)
    damaged = done.history["benches"]["b1"]["damaged"]
    assert damaged["r2"].startswith("r2/manifest.json: ") and str(tmp_path) not in json.dumps(
        done.history
    )
    assert verify(tmp_path / "a.tar", tables) == done


def link(path: Path) -> None:
    (path / "r1" / "link").symlink_to("/etc/passwd")


def linked_folder(path: Path) -> None:
    (path / "r1" / "link").symlink_to("/etc")


def pipe(path: Path) -> None:
    os.mkfifo(path / "r1" / "logs" / "pipe")


def odd_name(path: Path) -> None:
    (path / "r1" / "a name\n").write_text("")


def derived_only(path: Path) -> None:
    (path / "r4" / "results").mkdir(parents=True)


@pytest.mark.parametrize("flaw", [link, linked_folder, pipe, odd_name, derived_only])
def test_what_no_bench_has_is_not_sealed(
    copied: BenchDir, tmp_path: Path, flaw: Callable[[Path], None]
) -> None:
    flaw(copied.path)
    with pytest.raises(DataError):
        seal(copied, tmp_path / "a.tar", tables)
    assert not list(tmp_path.glob("*.tar")) and not list(tmp_path.glob(".*"))


def test_a_bench_that_is_conducted_is_not_sealed(copied: BenchDir, tmp_path: Path) -> None:
    with hold(copied), pytest.raises(RunError, match="a controller is running this bench"):
        seal(copied, tmp_path / "a.tar", tables)
    seal(copied, tmp_path / "a.tar", tables)


def test_nothing_is_overwritten_and_a_bench_does_not_hold_its_own_archive(
    copied: BenchDir, tmp_path: Path
) -> None:
    (tmp_path / "a.tar").write_text("mine")
    for target in (tmp_path / "a.tar", copied.path / "a.tar", tmp_path / "none" / "a.tar"):
        with pytest.raises(ConfigError):
            seal(copied, target, tables)
    with pytest.raises(ConfigError, match="name another file with --output"):
        seal(copied, tmp_path / "a.tar", tables)
    assert (tmp_path / "a.tar").read_text() == "mine"


def test_a_large_log_is_never_held_in_memory(copied: BenchDir, tmp_path: Path) -> None:
    with (copied.path / "r1" / "large.txt").open("wb") as out:
        out.truncate(96 << 20)
    known = tables(copied)
    tracemalloc.start()
    seal(copied, tmp_path / "a.tar", lambda _: known)
    verify(tmp_path / "a.tar", lambda _: known)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
