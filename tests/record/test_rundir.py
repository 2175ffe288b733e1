"""Files of a bench and of its runs: private, named with care, checked when read; and which bench is
the latest.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, DataError
from orchestrator.record.ownership import take
from orchestrator.record.rundir import BenchDir, RunDir, bench_folders, benches, latest
from orchestrator.record.state_file import read_state
from tests.record.three_runs import BENCH


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
        assert all(
            mode(Path(folder, name)) == (0o700 if name == "launch.sh" else 0o600) for name in files
        )
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
    "name",
    [
        "..",
        ".",
        "",
        ".x",
        "-x",
        "a/b",
        "a b",
        "a\n",
        "a\x00",
        "é",
        "x" * 129,
        "a\\b",
        "/etc/passwd",
    ],
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


def test_whoever_only_asks_who_runs_a_bench_keeps_no_controller_from_it(bench: BenchDir) -> None:
    take(bench).release()
    asking = os.open(bench.path / "owner.lock", os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `holder` does, for a moment
    end = threading.Timer(0.02, os.close, (asking,))
    end.start()
    take(bench).release()
    end.join()


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


def test_the_latest_bench_is_so_by_its_own_record_then_by_name(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    assert latest(root) is None
    for name, created in (
        ("z", "2025-01-01T00:00:00Z"),
        ("a", "2025-03-01T00:00:00Z"),
        ("b", "2025-03-01T00:00:00Z"),
    ):
        BenchDir.create(root, BENCH | {"bench_id": name, "created": created})
    (root / "zz").mkdir()
    (root / "latest").symlink_to(root / "z")
    assert latest(root) == root / "b"
    (root / "z" / "bench.json").write_text(
        json.dumps({"schema": 1, "created": "2026-01-01T00:00:00Z"})
    )
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


def test_removal_is_the_cure_of_damage_in_the_project_alone(bench: BenchDir) -> None:
    record, runs = bench.path / "bench.json", bench.path.parent
    record.write_text('{"schema"')
    for root, hint in ((runs, f"restore the file, or orch rm {bench.path.name}"), (None, "")):
        with pytest.raises(DataError) as caught:
            BenchDir.open(bench.path, root)
        assert caught.value.hint == hint
    record.unlink()
    record.symlink_to("elsewhere.json")  # which is not followed: the record is not read
    with pytest.raises(DataError, match="cannot be read") as caught:
        BenchDir.open(bench.path, runs)
    assert caught.value.hint == ""


def test_a_run_is_named_by_its_folder(tmp_path: Path) -> None:
    assert RunDir(tmp_path / "r7").run_id == "r7"
