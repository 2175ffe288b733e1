"""A bench on disk explained: what its logs tell, beside the all-reduces of another bench on the
same hosts.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from orchestrator.features.explain.bench import explain_bench
from orchestrator.features.explain.measured import newest_curve, settings_of
from orchestrator.features.explain.prediction import Explanation
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import read_bench
from orchestrator.results.run_history import history_of
from orchestrator.results.summary import summarize
from tests.support.explained_benches import (
    TIMES,
    all_reduces,
    bench_of,
    collectives,
    one_gpu,
    several,
)
from tests.support.run_folders import (
    BATCH,
    GPUS,
    NODES,
    STEPS,
    WARMUP,
    WORLD,
    build,
    closing,
    rank_line,
    step_lines,
)

TO_2_MIB = "--set max_bytes=2097152"


def explained(bench: BenchDir) -> list[Explanation]:
    results = read_bench(bench)
    return list(explain_bench(bench, summarize(results), results, history_of(bench, results)))


def test_a_bench_is_explained_by_its_logs_and_the_all_reduces_of_another(tmp_path: Path) -> None:
    one, four = explained(bench_of(tmp_path))
    assert (one.case, one.predicted) == ("1n1g", pytest.approx(BATCH / 0.40))
    seconds = {part.name: part.seconds for part in four.parts}
    # 500 ms a step, ideal 400. Solo 420 on the average, 450 at most, 400 alone. 0.1 s of waits in
    # 10 steps. One bucket, 20 ms.
    expected = {
        "communication": 0.020,
        "input": 0.010,
        "straggler": 0.030,
        "contention": 0.020,
        "unexplained": 0.020,
    }
    assert (four.step_s, four.ideal_s) == (
        pytest.approx(0.5),
        pytest.approx(0.4),
    ) and STEPS - WARMUP == 10
    assert seconds == {name: pytest.approx(value) for name, value in expected.items()}
    assert (
        four.predicted == pytest.approx(BATCH * WORLD / 0.470) and four.case == f"{NODES}n{GPUS}g"
    )
    assert "all-reduced in 20.00 ms according to b0" in four.parts[0].behind and four.missing == ()
    # Step 0 at 900 s of a clock by which the node started at 898 s, two steps of warm-up, and the
    # end at 908 s.
    assert four.startup and (four.startup.until_window_s, four.startup.run_s) == (
        pytest.approx(3.0),
        pytest.approx(10.0),
    )


def test_without_all_reduces_there_is_the_command_that_measures_them(tmp_path: Path) -> None:
    _, four = explained(bench_of(tmp_path, measured=False))
    assert four.predicted is None and four.missing == (
        f"orch bench allreduce --shape {NODES}n{GPUS}g {TO_2_MIB}",
    )
    assert four.parts[-1].seconds == pytest.approx(0.04)


def test_all_reduces_of_one_size_are_no_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(TIMES, 1_000_000)
    _, four = explained(bench_of(tmp_path))
    assert four.predicted is None and four.missing == (
        f"orch bench allreduce --shape {NODES}n{GPUS}g {TO_2_MIB}",
    )


def test_all_reduces_that_end_far_below_the_buckets_foretell_nothing_and_say_what_does(
    tmp_path: Path,
) -> None:
    # A bucket of 2 MB. Small all-reduces are latency: carried on to it, these would take 4.9 s of a
    # step of 0.5 s.
    small = {1_024: 0.010, 4_096: 0.010}
    bench = bench_of(tmp_path, measured=False)
    short = BenchDir.create(tmp_path, {"bench_id": "b2", "runs": ["small"]})
    build(short, "small", partial(all_reduces, measured=small))
    _, four = explained(bench)
    assert (four.predicted, four.from_baseline, four.parts[0].seconds) == (None, None, None)
    assert four.parts[0].behind.startswith(
        "the sizes of allreduce in b2 end at 4096 bytes, and the largest of a step has 2000000, 488"
    )
    assert four.missing == (f"orch bench allreduce --shape {NODES}n{GPUS}g {TO_2_MIB}",)
    # What that command makes is taken, also where it is not the newest.
    build(BenchDir.create(tmp_path, {"bench_id": "b0", "runs": ["sizes"]}), "sizes", all_reduces)
    _, four = explained(bench)
    assert four.predicted == pytest.approx(BATCH * WORLD / 0.470) and four.missing == ()
    assert (
        "all-reduced in 20.00 ms according to b0, because the sizes in b2 end too far below, during"
        in four.parts[0].behind
    )


def test_repeats_of_all_reduces_tell_how_far_their_times_may_be_off(tmp_path: Path) -> None:
    other = BenchDir.create(tmp_path, {"bench_id": "b0", "runs": ["r1", "r2", "r3"]})
    for repeat, times in enumerate((0.99, 1.0, 1.01), start=1):
        build(other, f"r{repeat}", partial(all_reduces, times=times), repeat=repeat)
    found = newest_curve(tmp_path, f"{NODES}n{GPUS}g", {"node1": {}, "node2": {}})
    # Student's t of three, 4.303, times a deviation of 1 %, over the square root of three, 2.48 %,
    # as a ratio.
    assert (
        found
        and found.times_s == TIMES
        and found.uncertain == pytest.approx(math.expm1(0.0248), abs=0.0002)
    )


def test_all_reduces_with_other_settings_of_nccl_count_for_nothing(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    four, sizes = bench.run("four"), BenchDir.open(tmp_path / "b0").run("sizes")
    for host in ("node1", "node2"):
        text = "export LC_ALL=C\nexport NCCL_DEBUG=INFO\nexport NCCL_ALGO='Ring Tree'\nexport TORCH_NCCL_HIGH_PRIORITY=1\n"
        four.write_rendered(host, "env.sh", text.encode(), 0o600)
    assert settings_of(four)["node2"] == {"NCCL_ALGO": "Ring Tree", "TORCH_NCCL_HIGH_PRIORITY": "1"}
    assert explained(bench)[1].predicted is None
    for host in ("node1", "node2"):
        text = "export NCCL_ALGO='Ring Tree'\nexport TORCH_NCCL_HIGH_PRIORITY=1\nexport NCCL_DEBUG=WARN\n"
        sizes.write_rendered(host, "env.sh", text.encode(), 0o600)
    assert explained(bench)[1].predicted == pytest.approx(BATCH * WORLD / 0.470)


def test_all_reduces_on_other_hosts_count_for_nothing(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, measured=False)

    def elsewhere(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        all_reduces(planned, logs)
        planned["placement"]["slots"][1]["host"] = "node9"

    other = build(
        BenchDir.create(tmp_path, {"bench_id": "b0", "runs": ["sizes"]}), "sizes", elsewhere
    )
    (other.path / "logs" / "node2").rename(other.path / "logs" / "node9")
    assert explained(bench)[1].predicted is None


def test_shards_are_explained_by_benches_of_each_of_their_collectives(tmp_path: Path) -> None:
    # One at once, 20 ms; one at the end, 30 ms; a sum of pairs after the step, 5 ms.
    rows = [
        ["all_gather", 1_048_576, WORLD, 1, 0.0, 0.0],
        ["reduce_scatter", 2_097_152, WORLD, 1, 0.41, 0.41],
        ["allreduce", 1_048_576, 2, 2, 0.41, 0.41],
    ]

    def in_shards(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        said = closing(
            solo_step_s=[0.41] * WORLD, collectives=rows, parallel="fsdp", gradient_bytes=4_000_000
        )
        logs[0]["rank-0.out"] = rank_line(0) + step_lines(0.50) + said

    bench = BenchDir.create(tmp_path, {"bench_id": "b1", "runs": ["one", "four"]})
    build(bench, "one", one_gpu)
    build(bench, "four", in_shards)
    shape = f"--shape {NODES}n{GPUS}g"
    _, four = explained(bench)
    assert four.predicted is None and four.missing == (
        f"orch bench all_gather {shape} --set max_bytes=1048576",
        f"orch bench allreduce {shape} --set group_ranks=2 --set group_distance=2 --set max_bytes=1048576",
        f"orch bench reduce_scatter {shape} --set max_bytes=2097152",
    )
    times = {
        "b2": ("all_gather", {1_048_576: 0.020, 2_097_152: 0.040}, {}),
        "b3": ("reduce_scatter", {1_048_576: 0.015, 2_097_152: 0.030}, {}),
        "b4": (
            "allreduce",
            {1_048_576: 0.005, 2_097_152: 0.010},
            {"group_ranks": 2, "group_distance": 2},
        ),
        "b5": ("allreduce", {1_048_576: 0.5, 2_097_152: 0.5}, {}),  # of all ranks: of no use here
    }
    for name, (collective, measured, groups) in times.items():
        made = partial(collectives, collective=collective, measured=measured, **groups)
        build(BenchDir.create(tmp_path, {"bench_id": name, "runs": ["sizes"]}), "sizes", made)
    _, four = explained(bench)
    # Ideal 400 ms, 410 without communication, and 55 of it.
    assert four.missing == () and four.predicted == pytest.approx(BATCH * WORLD / 0.465)
    assert [part.seconds for part in four.parts] == pytest.approx([0.055, None, 0.0, 0.010, 0.035])
    assert (
        "in 55.00 ms according to b2 and b4 and b3, during which nothing is computed"
        in four.parts[0].behind
    )


def test_what_is_not_reported_is_not_asked_to_be_measured(tmp_path: Path) -> None:
    def in_parts(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] = (
            rank_line(0) + step_lines(0.50) + closing(collectives=None, gradient_bytes=4_000_000)
        )

    bench = BenchDir.create(tmp_path, {"bench_id": "b1", "runs": ["one", "four"]})
    build(bench, "one", one_gpu)
    build(bench, "four", in_parts)
    _, four = explained(bench)
    assert (four.predicted, four.missing) == (None, ())
    assert four.parts[0].behind == "the program did not report what ranks send each other in a step"


def test_a_bench_without_a_baseline_is_not_explained(tmp_path: Path) -> None:
    bench = BenchDir.create(tmp_path, {"bench_id": "b1", "runs": ["four"]})
    build(bench, "four", several)
    assert explained(bench) == []


def orch(*words: str) -> str:
    return CliRunner().invoke(program(), ["summarize", *words], catch_exceptions=False).stdout


def test_table_page_and_json_tell_the_same(tmp_path: Path) -> None:
    bench = str(bench_of(tmp_path).path)
    document = json.loads(orch(bench, "--explain", "--json"))
    assert [each["case"] for each in document["explained"]] == ["1n1g", "2n2g"]
    predicted = document["explained"][1]["predicted"]
    assert f"{predicted:.2f}" in orch(bench, "--explain") and "why it scales as it does" in orch(
        bench, "--explain"
    )
    page = orch(bench, "--explain", "--format", "html")
    assert (
        f"<td>{predicted:.2f}</td>" in page
        and "Why it scales as it does" in page
        and "all-reduced in 20.00 ms according to b0" in page
    )
    for form in ("table", "html", "json"):
        assert "explained" not in orch(bench, "--format", form) and "Why it scales" not in orch(
            bench, "--format", form
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "csv"], "expected table, html or json"),
        (["--rule", "dlperf"], "it explains a bench with its own window"),
    ],
)
def test_what_has_no_room_for_it_refuses(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        orch("--explain", *words)
