"""A bench on disk explained: what its logs tell, beside the all-reduces of another bench on the same hosts."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.analysis.explain.bench import explain_bench
from orchestrator.analysis.explain.curves import newest_curve, settings_of
from orchestrator.analysis.explain.prediction import Explanation
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from orchestrator.record.rundir import BenchDir
from orchestrator.results.account import account_of
from orchestrator.results.bench import read_bench
from orchestrator.results.summary import summarize
from tests.test_results import BATCH, GPUS, NODES, STEPS, WARMUP, WORLD, build, closing, rank_line, step_lines

READINGS = (
    r"^orch collective=(?P<collective>\S+) size_bytes=(?P<size_bytes>[0-9]+) in_place=(?P<in_place>[01]) "
    r"iterations=(?P<iterations>[0-9]+) time_s=(?P<time_s>[0-9.]+) max_time_s=(?P<max_time_s>[0-9.]+)$"
)
TO_2_MIB = "--set max_bytes=2097152"
TIMES = {1_000_000: 0.010, 2_000_000: 0.020}
SOLO = {"solo_step_s": [0.41, 0.41, 0.41, 0.45], "input_wait_s": [0.0, 0.1, 0.0, 0.0], "gradient_buckets_bytes": [2_000_000]}


def one_gpu(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    """Make a run of `build` one of a single rank."""
    planned["spec"] |= {"nodes": 1, "gpus": 1}
    planned["placement"] |= {"world_size": 1, "slots": [{**planned["placement"]["slots"][0], "nproc": 1}]}
    one = {"world_size": 1, "ranks": [0], "global_batch": BATCH, "solo_step_s": [0.40], "input_wait_s": [0.0]}
    lines = step_lines(0.40).replace(f"samples={BATCH * WORLD}", f"samples={BATCH}")
    logs[0] = {"node.out": "", "rank-0.out": rank_line(0, 1) + lines + closing(**one)}


def several(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    """Let a run of `build` tell the parts of its steps, and when its nodes started by clocks that its log speaks by."""
    logs[0]["rank-0.out"] = rank_line(0) + step_lines(0.50) + closing(**SOLO, networks=[])
    hosts = {f"node{n + 1}": {"started_mono_s": 898.0, "offset_s": 0.0, "bound_s": 0.001} for n in range(NODES)}
    planned["start"] = {"skew_s": 0.0, "bound_s": 0.001, "hosts": hosts}


def by_the_logs_clock(records: list[dict[str, Any]]) -> None:
    for record in records:
        record |= {"started_mono_s": 898.0, "ended_mono_s": 908.0}


def all_reduces(
    planned: dict[str, Any], logs: list[dict[str, str]], times: float = 1.0, measured: dict[int, float] = TIMES
) -> None:
    """Make a run of `build` one that measured all-reduces, each so many ``times`` as long."""
    spec = {"framework": "collectives", "model": "allreduce", "dtype": "fp32", "batch_size": 1, "loader": "none"}
    planned["spec"] |= spec | {"options": {"sizes": ",".join(map(str, measured)), "in_place": "in"}}
    log = planned["framework"]["log"]
    planned["framework"] |= {
        "name": "collectives",
        "measures": "collectives",
        "log": {**log, "patterns": [], "readings": READINGS},
    }
    lines = [
        f"orch collective=allreduce size_bytes={size} in_place=1 iterations=20 time_s={time_s:.6f} max_time_s={time_s:.6f}\n"
        for size, time_s in ((size, times * time_s) for size, time_s in measured.items())
    ]
    said = closing(model="allreduce", dtype="fp32", batch_size=1, global_batch=WORLD)
    logs[0]["rank-0.out"] = rank_line(0) + "".join(lines) + said


def bench_of(root: Path, *more: str, measured: bool = True) -> BenchDir:
    """Write a bench of 1n1g and 2n2g, and ``more`` runs to come, and beside it, where ``measured``, one of all-reduces."""
    bench = BenchDir.create(root, {"bench_id": "b1", "runs": ["one", "four", *more]})
    build(bench, "one", one_gpu)
    build(bench, "four", several, by_the_logs_clock)
    if measured:
        build(BenchDir.create(root, {"bench_id": "b0", "runs": ["sizes"]}), "sizes", all_reduces)
    return bench


def explained(bench: BenchDir) -> list[Explanation]:
    results = read_bench(bench)
    return list(explain_bench(bench, summarize(results), results, account_of(bench, results)))


def test_a_bench_is_explained_by_its_logs_and_the_all_reduces_of_another(tmp_path: Path) -> None:
    one, four = explained(bench_of(tmp_path))
    assert (one.case, one.predicted) == ("1n1g", pytest.approx(BATCH / 0.40))
    seconds = {part.name: part.seconds for part in four.parts}
    # 500 ms a step, ideal 400. Solo 420 on the average, 450 at most, 400 alone. 0.1 s of waits in 10 steps. One bucket, 20 ms.
    expected = {"communication": 0.020, "input": 0.010, "straggler": 0.030, "contention": 0.020, "unexplained": 0.020}
    assert (four.step_s, four.ideal_s) == (pytest.approx(0.5), pytest.approx(0.4)) and STEPS - WARMUP == 10
    assert seconds == {name: pytest.approx(value) for name, value in expected.items()}
    assert four.predicted == pytest.approx(BATCH * WORLD / 0.470) and four.case == f"{NODES}n{GPUS}g"
    assert "all-reduced in 20.00 ms according to b0" in four.parts[0].behind and four.missing == ()
    # Step 0 at 900 s of a clock by which the node started at 898 s, two steps of warm-up, and the end at 908 s.
    assert four.startup and (four.startup.until_window_s, four.startup.run_s) == (pytest.approx(3.0), pytest.approx(10.0))


def test_without_all_reduces_there_is_the_command_that_measures_them(tmp_path: Path) -> None:
    _, four = explained(bench_of(tmp_path, measured=False))
    assert four.predicted is None and four.missing == (f"orch bench allreduce --shape {NODES}n{GPUS}g {TO_2_MIB}",)
    assert four.parts[-1].seconds == pytest.approx(0.04)


def test_all_reduces_of_one_size_are_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TIMES, 1_000_000)
    _, four = explained(bench_of(tmp_path))
    assert four.predicted is None and four.missing == (f"orch bench allreduce --shape {NODES}n{GPUS}g {TO_2_MIB}",)


def test_all_reduces_that_end_far_below_the_buckets_foretell_nothing_and_say_what_does(tmp_path: Path) -> None:
    # A bucket of 2 MB. Small all-reduces are latency: carried on to it, these would take 4.9 s of a step of 0.5 s.
    small = {1_024: 0.010, 4_096: 0.010}
    bench = bench_of(tmp_path, measured=False)
    short = BenchDir.create(tmp_path, {"bench_id": "b2", "runs": ["small"]})
    build(short, "small", partial(all_reduces, measured=small))
    _, four = explained(bench)
    assert (four.predicted, four.from_baseline, four.parts[0].seconds) == (None, None, None)
    assert four.parts[0].behind.startswith("the all-reduces of b2 end at 4096 bytes, and the largest bucket has 2000000, 488")
    assert four.missing == (f"orch bench allreduce --shape {NODES}n{GPUS}g {TO_2_MIB}",)
    # What that command makes is taken, also where it is not the newest.
    build(BenchDir.create(tmp_path, {"bench_id": "b0", "runs": ["sizes"]}), "sizes", all_reduces)
    _, four = explained(bench)
    assert four.predicted == pytest.approx(BATCH * WORLD / 0.470) and four.missing == ()
    assert "all-reduced in 20.00 ms according to b0, because the sizes in b2 end too far below, during" in four.parts[0].behind


def test_repeats_of_all_reduces_tell_how_far_their_times_may_be_off(tmp_path: Path) -> None:
    other = BenchDir.create(tmp_path, {"bench_id": "b0", "runs": ["r1", "r2", "r3"]})
    for repeat, times in enumerate((0.99, 1.0, 1.01), start=1):
        build(other, f"r{repeat}", partial(all_reduces, times=times), repeat=repeat)
    found = newest_curve(tmp_path, f"{NODES}n{GPUS}g", {"node1": {}, "node2": {}})
    # Student's t of three, 4.303, times a deviation of 1 %, over the square root of three, 2.48 %, as a ratio.
    assert found and found.times_s == TIMES and found.uncertain == pytest.approx(math.expm1(0.0248), abs=0.0002)


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

    other = build(BenchDir.create(tmp_path, {"bench_id": "b0", "runs": ["sizes"]}), "sizes", elsewhere)
    (other.path / "logs" / "node2").rename(other.path / "logs" / "node9")
    assert explained(bench)[1].predicted is None


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
    assert f"{predicted:.2f}" in orch(bench, "--explain") and "why it scales as it does" in orch(bench, "--explain")
    page = orch(bench, "--explain", "--format", "html")
    assert (
        f"<td>{predicted:.2f}</td>" in page
        and "Why it scales as it does" in page
        and "all-reduced in 20.00 ms according to b0" in page
    )
    for form in ("table", "html", "json"):
        assert "explained" not in orch(bench, "--format", form) and "Why it scales" not in orch(bench, "--format", form)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--format", "csv"], "expected table, html or json"), (["--rule", "dlperf"], "it explains a bench, by its own window")],
)
def test_what_has_no_room_for_it_refuses(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        orch("--explain", *words)
