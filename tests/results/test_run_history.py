"""What a bench directory tells besides its numbers, from directories as collection leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.logs.steps import StepSample
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import read_bench
from orchestrator.results.numbers.tempo import tempo
from orchestrator.results.numbers.throughput import Terms
from orchestrator.results.run_history import history_of
from tests.support.examples import examples
from tests.support.run_folders import BATCH, NODES, STEPS, WORLD, build, closing, rank_line

HOSTS = {
    f"node{i + 1}": {"started_mono_s": 1.0, "offset_s": -0.25 * i, "bound_s": 0.001}
    for i in range(NODES)
}


def placed(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    planned["start"] = {"skew_s": 0.25, "bound_s": 0.002, "hosts": HOSTS}


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    made = BenchDir.create(
        tmp_path,
        {"bench_id": "b1", "argv": ["/opt/bin/orch", "bench", "resnet50"], "runs": ["r1", "r2"]},
    )
    for number, run_id in enumerate(("r1", "r2"), start=1):
        run = build(made, run_id, placed, repeat=number)
        for node in range(NODES):
            text = f"export MASTER_PORT={29500} NODE_RANK={node}\nstart\n"
            run.write_rendered(f"node{node + 1}", "launch.sh", text.encode())
            run.write_rendered(f"node{node + 1}", "env.sh", b"export LC_ALL=C\n")
        for at, event in enumerate(
            ("planned", "staged", "armed", "started", "finished", "collected")
        ):
            made.event(event, at=100.0 * number + at, run=run_id)
    return made


def test_phases_count_from_the_start_and_nodes_from_the_first_of_them(bench: BenchDir) -> None:
    one = history_of(bench, read_bench(bench)).runs["r2"]
    assert one.phases == {
        "planned": -3,
        "staged": -2,
        "armed": -1,
        "started": 0,
        "over": 1,
        "collected": 2,
    }
    # The second node's clock is behind by 0.25 s, so the same reading is a quarter of a second
    # later.
    assert [(node.host, node.began_s, node.took_s) for node in one.nodes] == [
        ("node1", 0, 80),
        ("node2", 0.25, 80),
    ]
    assert (one.skew_s, one.bound_s) == (0.25, 0.002)


def test_a_first_step_is_told_only_where_the_log_speaks_by_the_nodes_own_clock(
    bench: BenchDir,
) -> None:
    def by_monotonic_clock(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        placed(planned, logs)
        lines = (
            f"orch step={step} t={2.0 + 0.5 * step:.6f} step_time_s=0.5 samples={BATCH * WORLD} loss=1\n"
            for step in range(STEPS + 1)
        )
        logs[0]["rank-0.out"] = rank_line(0) + "".join(lines) + closing()

    # Steps end at 900.5, 901.0 … s, and the node ran from 1 to 81 s by its own clock: the log goes
    # by another one.
    assert history_of(bench, read_bench(bench)).runs["r1"].first_step_s is None
    build(bench, "r2", by_monotonic_clock, repeat=2)
    assert history_of(bench, read_bench(bench)).runs["r2"].first_step_s == pytest.approx(1.5)


def test_files_that_are_alike_stand_once_and_others_as_the_lines_that_differ(
    bench: BenchDir,
) -> None:
    found = history_of(bench, read_bench(bench))
    env, launch = found.files["r1"]
    assert (env.path, env.hosts, env.others) == ("env.sh", ("node1", "node2"), ())
    assert launch.hosts == ("node1",) and launch.text.startswith(
        "export MASTER_PORT=29500 NODE_RANK=0\n"
    )
    difference = (
        "@@ -1 +1 @@",
        "-export MASTER_PORT=29500 NODE_RANK=0",
        "+export MASTER_PORT=29500 NODE_RANK=1",
    )
    assert launch.others == ((("node2",), difference),)
    assert list(found.files) == ["r1"] and found.unlike == {}
    assert found.commands == (("orch", "bench", "resnet50"),)


def test_a_repeat_with_other_files_is_named(bench: BenchDir) -> None:
    bench.run("r2").write_rendered(
        "node2", "launch.sh", b"export MASTER_PORT=29500 NODE_RANK=1\nstart --faster\n"
    )
    assert history_of(bench, read_bench(bench)).unlike == {"r1": ("r2",)}


def test_damage_costs_a_detail_and_never_the_account(bench: BenchDir) -> None:
    (bench.path / "events.jsonl").write_text('{"event": "planned"\n{}\n')
    (bench.path / "r1" / "manifest.json").write_text("{")
    (bench.path / "r2" / "logs" / "node2" / "exit.json").write_text("[]")
    found = history_of(bench, read_bench(bench))
    assert "journal cannot be read" in found.notes[0]
    assert found.runs["r1"].nodes == () and [node.host for node in found.runs["r2"].nodes] == [
        "node1"
    ]
    assert all(run.phases == {} for run in found.runs.values())


@pytest.mark.parametrize(
    "start",
    [
        [],
        {"hosts": [1]},
        {"hosts": {"node1": 7}},
        {"skew_s": "x", "hosts": {"../x": {"offset_s": 0}}},
    ],
)
def test_a_record_of_the_start_that_is_none_is_left_out(bench: BenchDir, start: Any) -> None:
    bench.run("r1").update_manifest(start=start)
    one = history_of(bench, read_bench(bench)).runs["r1"]
    assert (one.nodes, one.skew_s, one.bound_s) == ((), None, None)


@settings(max_examples=examples(50), deadline=None)
@given(
    times=st.lists(st.floats(0.001, 10), min_size=3, max_size=900),
    warmup=st.integers(0, 2),
    clock=st.booleans(),
)
def test_a_tempo_has_all_samples_and_all_seconds_of_the_run(
    times: list[float], warmup: int, clock: bool
) -> None:
    ends = [sum(times[:count]) for count in range(len(times) + 1)]
    log = [
        StepSample(
            step,
            timestamp=1000 + end if clock else None,
            step_time_s=None if clock else times[step - 1],
        )
        for step, end in enumerate(ends)
        if step or clock
    ]
    found = tempo(log, Terms(warmup_steps=warmup, steps=len(times), global_batch=64))
    assert found is not None and len(found.points) <= 302
    begins = [-ends[warmup], *(end for end, _ in found.points)]
    assert begins[-1] == pytest.approx(ends[-1] - ends[warmup], rel=1e-6, abs=1e-6)
    assert begins == sorted(begins) and found.first_s == pytest.approx(
        times[0] - ends[warmup], abs=1e-6
    )
    samples = sum(
        (end - begin) * speed for begin, (end, speed) in zip(begins, found.points, strict=False)
    )
    assert samples == pytest.approx(64 * len(times), rel=1e-6)
    assert found.clock == (pytest.approx(1000 + ends[warmup]) if clock else None)


def test_results_that_have_not_changed_are_not_written_again(bench: BenchDir) -> None:
    read_bench(bench)
    path = bench.path / "r1" / "results" / "throughput.json"
    before = path.stat().st_ino
    read_bench(bench)
    assert path.stat().st_ino == before
    path.write_text("{}")
    read_bench(bench)
    assert json.loads(path.read_text())["run_id"] == "r1"
