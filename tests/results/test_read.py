"""From run directories as collection leaves them to results: whole ones measure, and a bad one
prevents no other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import notes_of, read_bench
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support.run_folders import BATCH, WORLD, build, lasting, rank_line


def test_a_bench_that_ended_before_its_first_run_says_why_once_for_all_hosts(
    bench: BenchDir,
) -> None:
    errors = [
        {"kind": "node_unfit", "message": "no torch", "hint": "install it", "host": host}
        for host in ("n1", "n2")
    ]
    bench.event("begun")
    bench.event(
        "over", code=1, errors=[*errors, {"kind": "interrupted", "message": "stopped by a signal"}]
    )
    assert notes_of(bench) == [
        "nothing was run: n[1-2]: no torch. install it",
        "nothing was run: stopped by a signal",
    ]
    build(bench, "r1")
    assert notes_of(bench) == []


def test_borrowed_runs_are_among_the_notes(tmp_path: Path) -> None:
    content = {
        "bench_id": "b2",
        "created": "2025-01-01",
        "runs": ["r1", "r2", "r3"],
        "borrowed": {"r1": "b1", "r2": "b1"},
    }
    assert notes_of(BenchDir.create(tmp_path / "runs", content)) == [
        "runs borrowed from b1 as a baseline: 2"
    ]


def test_a_whole_run_has_its_speed(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1"))
    assert result.error is None and result.state == "finished"
    assert result.throughput is not None
    assert result.throughput.samples_per_s == pytest.approx(BATCH * WORLD / 0.5)
    assert (
        result.throughput.samples,
        result.throughput.first_step,
        result.throughput.last_step,
    ) == (640, 3, 12)
    assert result.step_times and result.step_times.variation == pytest.approx(0, abs=1e-9)
    assert result.observed["framework_version"] == "2.13.0"
    assert (result.repeat, result.simulated, result.qualifications) == (1, False, ())
    assert result.spec is not None and result.spec.origins == {"steps": "command line"}


def test_halving_the_speed_of_steps_halves_the_result(bench: BenchDir) -> None:
    fast, slow = (
        read_run(build(bench, "r1")),
        read_run(build(bench, "r2", after=lasting(13.0), seconds=1.0)),
    )
    assert fast.throughput and slow.throughput
    assert slow.throughput.samples_per_s == pytest.approx(fast.throughput.samples_per_s / 2)


@pytest.mark.parametrize("env", [{"NCCL_ALGO": 1}, "NCCL_ALGO", None])
def test_variables_of_the_experiment_are_read_and_have_to_be_text(
    bench: BenchDir, env: Any
) -> None:
    read = read_run(
        build(
            bench, "r1", before=lambda planned, _: planned["spec"].update(env={"NCCL_ALGO": "Tree"})
        )
    )
    assert read.throughput and read.spec and read.spec.env == {"NCCL_ALGO": "Tree"}
    forged = read_run(build(bench, "r2", before=lambda planned, _: planned["spec"].update(env=env)))
    assert forged.state == "damaged" and isinstance(forged.error, DataError)


def test_one_bad_run_never_prevents_the_others(bench: BenchDir) -> None:
    build(bench, "r1")
    build(bench, "r2", repeat=2)
    build(bench, "r3", repeat=3)
    (bench.path / "r2" / "manifest.json").write_text('{"schema": 1, "spec":')
    (bench.path / "r3" / "logs" / "node2" / "rank-3.out").write_text("gone")
    results = read_bench(bench)
    assert [(r.run_id, r.state, r.throughput is not None) for r in results] == [
        ("r1", "finished", True),
        ("r2", "damaged", False),
        ("r3", "failed", False),
    ]
    summary = summarize(results)
    assert [(row.n, row.failed) for row in summary.rows] == [(1, 1)]
    assert "run r2 is in no row" in " ".join(summary.notes)


def test_what_is_derived_is_kept_and_can_be_made_again(bench: BenchDir) -> None:
    build(bench, "r1")
    build(bench, "r2", lambda _planned, logs: logs[0].update({"rank-0.out": rank_line(0)}))
    read_bench(bench)
    path = bench.path / "r1" / "results" / "throughput.json"
    first = path.read_bytes()
    assert json.loads(first)["throughput"]["samples"] == 640
    assert (
        json.loads((bench.path / "r2" / "results" / "throughput.json").read_bytes())["error"][
            "kind"
        ]
        == "log_unmatched"
    )
    path.unlink()
    read_bench(bench)
    assert path.read_bytes() == first


def test_a_copy_that_cannot_be_written_is_read_all_the_same(
    bench: BenchDir, tmp_path: Path
) -> None:
    run = build(bench, "r1")
    (run.path / "results").symlink_to(tmp_path)
    assert read_bench(bench)[0].throughput
    assert not (tmp_path / "throughput.json").exists()
