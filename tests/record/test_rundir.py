"""Files of a bench: atomic, private, checked when read, whole after a cut at any byte."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, DataError, OrchError
from orchestrator.files import remove_parts, write_atomic
from orchestrator.record.journal import Entry
from orchestrator.record.ownership import take
from orchestrator.record.rundir import BenchDir, RunDir, bench_folders, benches, latest
from orchestrator.record.state_file import read_state

BENCH = {"bench_id": "b1", "created": "2025-01-02T03:04:05Z", "runs": ["r1", "r2", "r3"]}


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    return BenchDir.create(tmp_path / "runs", BENCH)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_bench_reads_back_what_was_written(bench: BenchDir) -> None:
    assert read_state(bench.path / "bench.json") == {"schema": 1, **BENCH}
    bench.change(lambda record: replace(record, runs=("r1",)))
    assert BenchDir.open(bench.path).record().runs == ("r1",)
    assert read_state(bench.path / "bench.json") == {"schema": 1, **BENCH, "runs": ["r1"]}


def test_runs_are_those_written_in_execution_order(bench: BenchDir) -> None:
    bench.run("r3").write_manifest({"run_id": "r3"})
    bench.run("r1").write_manifest({"run_id": "r1"})
    bench.run("r2").path.mkdir()
    (bench.run("r2").path / ".0a1b.part").write_bytes(b"{")  # where a controller was killed
    assert [run.run_id for run in bench.runs()] == ["r1", "r3"]
    assert bench.runs()[0].manifest_content() == {"schema": 1, "run_id": "r1"}


def test_fields_of_a_manifest_are_replaced_one_by_one(bench: BenchDir) -> None:
    run = bench.run("r1")
    run.write_manifest({"repeat": 1, "outcome": None})
    run.update_manifest(outcome={"state": "finished"})
    assert run.manifest_content() == {"schema": 1, "repeat": 1, "outcome": {"state": "finished"}}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        bench = BenchDir.create(tmp_path / "runs", BENCH)
        run = bench.run("r1")
        run.write_manifest({})
        run.write_rendered("node1", "launch.sh", b"exit 0\n", 0o700)
        run.write_rendered("node1", "conf/a.yaml", b"")
        run.write_log("node1", "exit.json", b"{}")
        run.log_path("node2", "rank-0.out")
        run.write_result("throughput.json", {})
        bench.event("planned")
    finally:
        os.umask(before)
    for folder, folders, files in os.walk(bench.path):
        assert all(mode(Path(folder, name)) == 0o700 for name in folders)
        assert all(mode(Path(folder, name)) == (0o700 if name == "launch.sh" else 0o600) for name in files)
    assert mode(bench.path) == 0o700
    assert run.rendered_path("node1").joinpath("launch.sh").read_bytes() == b"exit 0\n"


def test_a_bench_is_never_made_over_another(bench: BenchDir) -> None:
    with pytest.raises(ConfigError, match="already exists") as caught:
        BenchDir.create(bench.path.parent, BENCH)
    assert caught.value.kind == "unsafe_path"


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError):
        BenchDir.create(tmp_path / "runs", BENCH)


@pytest.mark.parametrize(
    "name", ["..", ".", "", ".x", "-x", "a/b", "a b", "a\n", "a\x00", "é", "x" * 129, "a\\b", "/etc/passwd"]
)
def test_names_outside_the_allow_list_are_refused(bench: BenchDir, name: str) -> None:
    run = bench.run("r1")
    refused: list[Callable[[], object]] = [
        lambda: run.log_path("node1", name),
        lambda: run.log_path(name, "x"),
        lambda: run.logs(name),
        lambda: run.exit_content(name),
        lambda: run.write_rendered(name, "x", b""),
        lambda: run.write_result(name, {}),
        lambda: bench.run(name),
        lambda: BenchDir.create(bench.path.parent, BENCH | {"bench_id": name}),
    ]
    for call in refused:
        with pytest.raises(DataError, match="expected a name of letters"):
            call()


@pytest.mark.parametrize("path", ["../x", "a/../x", "/etc/x", "a//x", "a/", "", "a/.x"])
def test_rendered_files_stay_below_their_host(bench: BenchDir, path: str) -> None:
    with pytest.raises(DataError):
        bench.run("r1").write_rendered("node1", path, b"")


def test_names_on_the_allow_list_are_taken(bench: BenchDir) -> None:
    for name in ("rank-0.out", "_x", "0", "x" * 128, "a..b"):
        assert bench.run("r1").log_path("10.11.0.2", name).parent.is_dir()


def test_logs_are_the_regular_files_without_the_exit_record(bench: BenchDir) -> None:
    run = bench.run("r1")
    assert run.logs("node1") == [] and run.exit_content("node1") is None
    for name in ("rank-1.out", "rank-0.out", "exit.json"):
        run.write_log("node1", name, b"{}")
    run.log_path("node1", "link.out").symlink_to("/etc/passwd")
    os.mkfifo(run.log_path("node1", "pipe.out"))
    assert [path.name for path in run.logs("node1")] == ["rank-0.out", "rank-1.out"]
    assert run.exit_content("node1") == {}


def _giant(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


def _link(path: Path) -> None:
    good = path.with_name("good.json")
    good.write_text("{}")
    path.symlink_to(good)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text(""),
        lambda path: path.write_text('{"code": NaN}'),
        lambda path: path.write_text('{"a": ' + "[" * 100_000),
        lambda path: path.write_bytes(b"\xff"),
        _giant,
        lambda path: path.mkdir(),
        _link,
        os.mkfifo,
    ],
    ids=["cut", "list", "empty", "nan", "deep", "bytes", "sparse giant", "folder", "link", "fifo"],
)
def test_a_malformed_exit_record_is_an_error_that_names_it(bench: BenchDir, make: Any) -> None:
    run = bench.run("r1")
    make(run.log_path("node1", "exit.json"))
    with pytest.raises(DataError, match="node1/exit.json") as caught:
        run.exit_content("node1")
    assert caught.value.kind == "result_invalid"


# ------------------------------------------------------------------ atomic writes


def test_a_link_at_the_place_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "a").symlink_to(target)
    write_atomic(tmp_path / "a", b"new")
    assert (target.read_text(), (tmp_path / "a").read_text(), (tmp_path / "a").is_symlink()) == ("mine", "new", False)


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
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=60)
    assert b"DataError" in done.stderr and b"File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_temporary_files_of_a_writer_that_was_killed_are_removed_and_those_of_another_are_not(bench: BenchDir) -> None:
    code = (
        "import os, sys; from pathlib import Path; from orchestrator.files import write_atomic\n"
        "os.fsync = lambda file: (print('on', flush=True), sys.stdin.read())\n"
        "write_atomic(Path(sys.argv[1]), b'x')"
    )
    argv = [sys.executable, "-c", code, str(bench.path / "state.json")]
    writers = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout and writer.stdout.readline() == b"on\n"
    other = bench.path / ".mine.part"
    other.write_text("somebody's own")
    writers[0].kill()
    writers[0].communicate(timeout=10)
    assert len(list(bench.path.glob(".*.part"))) == 3
    remove_parts(bench.path)
    assert len(list(bench.path.glob(".*.part"))) == 2 and other.exists()
    writers[1].communicate(timeout=10)
    assert (bench.path / "state.json").read_bytes() == b"x" and list(bench.path.glob(".*.part")) == [other]


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
    assert (caught.value.kind, caught.value.where) == ("storage_full", str(bench.path / "owner.lock"))
    monkeypatch.undo()
    take(bench).release()


def test_whoever_only_asks_who_runs_a_bench_keeps_no_controller_from_it(bench: BenchDir) -> None:
    take(bench).release()
    asking = os.open(bench.path / "owner.lock", os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `holder` does, for a moment
    end = threading.Timer(0.02, os.close, (asking,))
    end.start()
    take(bench).release()
    end.join()


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


# ------------------------------------------------------------------ damage


def test_state_cut_at_any_byte_is_damaged_or_whole(bench: BenchDir) -> None:
    run = bench.run("r1")
    run.write_manifest({"run_id": "r1", "spec": {"nodes": 4}})
    path = run.path / "manifest.json"
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        if cut == len(data) - 1:  # only the final line end is gone
            assert run.manifest_content()["spec"] == {"nodes": 4}
            continue
        with pytest.raises(DataError, match="manifest.json.* at byte ") as caught:
            run.manifest_content()
        assert caught.value.kind == "state_damaged"


@pytest.mark.parametrize("schema", ["2", '"1"', "null", "true", "0", "1.5"])
def test_another_schema_is_refused_by_name(bench: BenchDir, schema: str) -> None:
    (bench.path / "bench.json").write_text(f'{{"schema": {schema}}}')
    with pytest.raises(DataError, match="bench.json: .*schema") as caught:
        BenchDir.open(bench.path)
    assert caught.value.kind == "state_damaged"


@pytest.mark.parametrize("runs", ['"r1"', "[1]", '["../.."]', "{}"])
def test_a_bench_with_odd_runs_is_refused(bench: BenchDir, runs: str) -> None:
    (bench.path / "bench.json").write_text(f'{{"schema": 1, "runs": {runs}}}')
    with pytest.raises(DataError):
        bench.runs()


def test_a_folder_that_is_no_bench_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="bench.json: expected a file"):
        BenchDir.open(tmp_path)


# ------------------------------------------------------------------ events


def test_events_keep_order_and_fields(bench: BenchDir) -> None:
    assert bench.events() == []
    bench.event("planned", at=1.5, port=2)
    bench.event("reattached", run="r1", host="node1")
    first, second = bench.events()
    assert first == Entry("planned", 1.5, "", {"port": 2})
    assert second.at and second.at > 1e9 and (second.run, second.fields) == ("r1", {"host": "node1"})


def test_events_cut_at_any_byte_lose_only_the_torn_line_and_go_on(bench: BenchDir) -> None:
    for name in ("planned", "staged", "armed"):
        bench.event(name, at=0)
    path = bench.path / "events.jsonl"
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        names = [entry.event for entry in bench.events()]
        assert names == ["planned", "staged", "armed"][: data[:cut].count(b"\n")]
        bench.event("over", at=0)
        assert [entry.event for entry in bench.events()] == [*names, "over"]


def test_damage_inside_the_events_names_file_and_byte(bench: BenchDir) -> None:
    for name in ("planned", "staged"):
        bench.event(name, at=0)
    path = bench.path / "events.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"event": "staged"', b'{"event": staged', 1))
    with pytest.raises(DataError, match=f"events.jsonl: line at byte {data.find(10) + 1}"):
        bench.events()
    path.write_bytes(b"3\n" + data)
    with pytest.raises(DataError, match="byte 0: expected an event"):
        bench.events()


def test_events_of_many_threads_and_processes_are_all_whole(bench: BenchDir) -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.record.rundir import BenchDir\n"
        "b = BenchDir(Path(sys.argv[1]))\nfor i in range(50): b.event('over', code=i, errors=['x' * 5000])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(bench.path)])

    def append() -> None:
        for i in range(50):
            bench.event("planned", port=i)

    threads = [threading.Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.wait(timeout=60) == 0
    events = bench.events()
    assert len(events) == 200
    assert [entry.code for entry in events if entry.event == "over"] == list(range(50))


def test_an_event_waits_for_another_writer(bench: BenchDir) -> None:
    """A writer mends a torn end before it appends; it must not take the half-written line of another for one."""
    bench.event("begun", at=0)
    with (bench.path / "events.jsonl").open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"event": "staged",')
        thread = threading.Thread(target=bench.event, args=("over",))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        other.write(b' "at": 0}\n')
    thread.join(10)
    assert [entry.event for entry in bench.events()] == ["begun", "staged", "over"]


def test_an_event_is_never_written_through_a_link(bench: BenchDir, tmp_path: Path) -> None:
    (bench.path / "events.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OrchError):
        bench.event("begun")
    assert not (tmp_path / "target").exists()


# ------------------------------------------------------------------ latest


def test_the_latest_bench_is_so_by_its_own_record_then_by_name(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    assert latest(root) is None
    for name, created in (("z", "2025-01-01T00:00:00Z"), ("a", "2025-03-01T00:00:00Z"), ("b", "2025-03-01T00:00:00Z")):
        BenchDir.create(root, BENCH | {"bench_id": name, "created": created})
    (root / "zz").mkdir()
    (root / "latest").symlink_to(root / "z")
    assert latest(root) == root / "b"
    (root / "z" / "bench.json").write_text(json.dumps({"schema": 1, "created": "2026-01-01T00:00:00Z"}))
    assert latest(root) == root / "z"


def test_a_bench_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    BenchDir.create(root, BENCH)
    BenchDir.create(root, BENCH | {"bench_id": "b2"})
    (root / "b2" / "bench.json").write_text('{"schema"')
    with pytest.raises(DataError, match="b2/bench.json"):
        latest(root)


def test_benches_come_newest_first_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    assert list(benches(root)) == [] and bench_folders(root) == []
    for name in ("b1", "b3", "b2"):
        BenchDir.create(root, BENCH | {"bench_id": name})
    (root / "empty").mkdir()
    (root / "b2" / "bench.json").write_text('{"schema": 1, "bench_id": "b2", "runs": [3]}')
    assert [bench.path.name for bench in benches(root)] == ["b3", "b1"]
    assert bench_folders(root) == [root / "b3", root / "b2", root / "b1"]


def test_a_run_is_named_by_its_folder(tmp_path: Path) -> None:
    assert RunDir(tmp_path / "r7").run_id == "r7"
