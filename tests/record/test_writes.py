"""Files are written whole or not at all, through no link, and a disk that takes nothing is named."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, DataError
from orchestrator.files import remove_parts, write_atomic
from orchestrator.record.ownership import take
from orchestrator.record.rundir import BenchDir
from tests.record.three_runs import BENCH
from tests.support.judge import LIMIT_S


def test_a_link_at_the_place_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "a").symlink_to(target)
    write_atomic(tmp_path / "a", b"new")
    assert (target.read_text(), (tmp_path / "a").read_text(), (tmp_path / "a").is_symlink()) == (
        "mine",
        "new",
        False,
    )


def test_a_file_that_has_to_be_new_replaces_none(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"first", is_new=True)
    with pytest.raises(ConfigError, match="already exists"):
        write_atomic(tmp_path / "a", b"second", is_new=True)
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a", b"first")]


def test_a_link_where_a_folder_should_be_is_refused(bench: BenchDir, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = bench.run("r1")
    run.write_manifest({})
    (run.path / "logs").symlink_to(elsewhere)
    (run.path / "results").symlink_to(elsewhere)
    for call in (lambda: run.log_path("node1", "x"), lambda: run.write_result("x", {})):
        with pytest.raises(DataError):
            call()
    assert not list(elsewhere.iterdir())


def test_a_write_that_fails_halfway_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, b"old")
    code = (
        "import resource, signal, sys; from pathlib import Path; from orchestrator.files import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_atomic(Path(sys.argv[1]), b'x' * 9999)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, timeout=LIMIT_S
    )
    assert b"DataError" in done.stderr and b"File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_temporary_files_of_a_writer_that_was_killed_are_removed_and_those_of_another_are_not(
    bench: BenchDir,
) -> None:
    code = (
        "import os, sys; from pathlib import Path; from orchestrator.files import write_atomic\n"
        "os.fsync = lambda file: (print('on', flush=True), sys.stdin.read())\n"
        "write_atomic(Path(sys.argv[1]), b'x')"
    )
    argv = [sys.executable, "-c", code, str(bench.path / "state.json")]
    writers = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout and writer.stdout.readline() == b"on\n"
    other = bench.path / ".mine.part"
    other.write_text("somebody's own")
    writers[0].kill()
    writers[0].communicate(timeout=LIMIT_S)
    assert len(list(bench.path.glob(".*.part"))) == 3
    remove_parts(bench.path)
    assert len(list(bench.path.glob(".*.part"))) == 2 and other.exists()
    writers[1].communicate(timeout=LIMIT_S)
    assert (bench.path / "state.json").read_bytes() == b"x" and list(
        bench.path.glob(".*.part")
    ) == [other]


def test_a_disk_that_became_read_only_is_no_bad_input(small_disk: Path) -> None:
    """Exit status 2 means that no host was contacted, and a run may be under way."""
    bench = BenchDir.create(small_disk, BENCH)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    writes = (
        lambda: bench.run("r1").write_manifest({}),
        lambda: bench.event("over"),
        lambda: bench.change(lambda record: replace(record, notes=("x",))),
        lambda: take(bench),
    )
    for write in writes:
        with pytest.raises(DataError, match="Read-only file system") as caught:
            write()
        assert (caught.value.kind, caught.value.exit_code) == ("storage_failed", 4)
        assert caught.value.where.startswith(str(bench.path)), caught.value.where
    with pytest.raises(ConfigError, match="Read-only file system"):
        BenchDir.create(small_disk / "new", BENCH)


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_no_space_for_the_record_of_an_owner_is_said_with_its_path(
    bench: BenchDir, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DataError) as caught:
        take(bench)
    assert (caught.value.kind, caught.value.where) == (
        "storage_full",
        str(bench.path / "owner.lock"),
    )
    monkeypatch.undo()
    take(bench).release()


def test_a_full_disk_is_named_with_what_is_needed_and_free(small_disk: Path) -> None:
    bench = BenchDir.create(small_disk, BENCH)
    with pytest.raises(DataError, match=r"100\d\d\d bytes needed, \d+ free") as caught:
        bench.run("r1").write_manifest({"x": "y" * 100_000})
    assert caught.value.kind == "storage_full"
    assert not [path for path in bench.path.rglob("*") if path.name.endswith(".part")]
    with pytest.raises(DataError):
        for _ in range(3000):
            bench.event("stopping", reason="z" * 100)
    events = len(bench.events())
    (small_disk / "b1" / "bench.json").unlink()
    bench.event("over")
    assert [entry.event for entry in bench.events()[events - 1 :]] == ["stopping", "over"]


def test_nothing_that_json_lacks_is_written(bench: BenchDir) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        bench.run("r1").write_manifest({"speed": float("nan")})
    assert not (bench.run("r1").path / "manifest.json").exists()
