"""Published rules for benches of our own, and the command line for them and for trees of logs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from orchestrator.features.published.log_trees import by_rule, summary_of_tree
from orchestrator.features.published.reference import reference_tables
from orchestrator.features.published.run_size import Case
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import read_bench
from orchestrator.results.numbers.throughput import round_like_numpy
from orchestrator.results.summary import summarize
from tests.support import systemlogs
from tests.support.published_trees import FILES, FRAMEWORKS, TF, plant, put, table_of
from tests.support.run_folders import build, lasting

# Benches of our own


def bench_of(tmp_path: Path, log: str, steps: int = 600) -> BenchDir:
    """Return a bench of one 2n2g run of the TensorFlow program, as collection leaves it."""
    bench = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2026-01-01", "runs": ["r1"]}
    )

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {
            "framework": TF,
            "dtype": "fp32",
            "batch_size": 128,
            "steps": steps,
            "warmup_steps": 100,
        }
        planned["framework"] |= {"name": TF, "log": asdict(FRAMEWORKS[TF].log)}
        for files in logs:
            files.clear()
            files["node.out"] = log
            files["node.err"] = ""

    build(bench, "r1", before, lasting(1e6))
    return bench


def test_the_published_rule_measures_our_own_run_in_its_own_way(tmp_path: Path) -> None:
    case = Case(2, 2, 128)
    # Five rates of 100 steps each: their mean is the published speed, their combination by time is
    # ours.
    bench = bench_of(tmp_path, systemlogs.tensorflow(1000.0, case, first_speed=500.0).decode())
    results = read_bench(bench)
    (ours,), (theirs,) = summarize(results).rows, by_rule(bench, results).rows
    assert round_like_numpy(theirs.median or 0) == 900.0
    assert round_like_numpy(ours.median or 0) == pytest.approx(833.33)
    output = orch(str(bench.path), "--rule", "dlperf")
    assert "900.00" in output and "rule tf_timehistory_1_6" in output
    by_clock = summarize_by_name(bench, "tf_timehistory_clock")
    # 5 times 51,200 images in 4 times 51.2 s and once 102.4 s
    assert by_clock.median == pytest.approx(833.33, abs=0.005)
    assert (
        orch(str(bench.path), "--rule", "tf_timehistory_clock").count("rule tf_timehistory_clock: ")
        == 1
    )
    assert orch(str(bench.path), "--rule", TF) == output


def summarize_by_name(bench: BenchDir, name: str) -> Any:
    (row,) = by_rule(bench, read_bench(bench), name=name).rows
    return row


def test_a_run_that_does_not_hold_the_published_window_has_no_number_by_that_rule(
    tmp_path: Path,
) -> None:
    lines = systemlogs.tensorflow(1000.0, Case(2, 2, 128)).decode().splitlines(keepends=True)
    bench = bench_of(tmp_path, "".join(lines[:5]), steps=400)
    results = read_bench(bench)
    assert summarize(results).rows[0].n == 1
    (row,) = by_rule(bench, results).rows
    assert (row.n, row.failed) == (0, 1)
    assert "expected lines of steps 100-600 every 100, found 4 of 6" in row.failures[0]


def test_a_bench_of_an_unpublished_system_has_no_published_rule(tmp_path: Path) -> None:
    bench = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2026-01-01", "runs": ["r1"]}
    )
    build(bench, "r1")
    with pytest.raises(ConfigError, match="pytorch has no published tables"):
        by_rule(bench, read_bench(bench))


# The command line


def orch(*words: str) -> str:
    result = CliRunner().invoke(
        program(), ["summarize", *words], env={"COLUMNS": "160"}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    plant(tmp_path, TF, table_of(TF, "tf2_rn50_fp32_b128"))
    return tmp_path


RESULT = {
    "average_speed": 9412.91,
    "batch_size_per_device": 128,
    "median_speed": 9418.44,
    "speedup": 29.27,
}


def test_the_command_prints_the_table_and_the_result_in_dlperfs_shape(tree: Path) -> None:
    output = orch("--from-logs", str(tree), "--framework", TF)
    interval = r"\d+\.\d\d to \d+\.\d\d"
    row = rf"4n8g +5 +9412\.91 +9418\.44 +9369\.06 +9454\.31 +9412\.\d\d +{interval} +[\d.]+ +[\d.]+ +29\.27 +– +91\.5%"
    assert re.search(row, output)
    assert "are taken from the names of folders and files" in output
    result = json.loads(output[output.index("\n{") :])
    assert result["rn50"]["4n8g"] == RESULT
    assert list(result["rn50"]) == ["1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g"]
    assert (
        json.loads(orch("--from-logs", str(tree), "--framework", TF, "--format", "dlperf"))
        == result
    )


def test_a_result_without_a_baseline_has_null_and_not_one(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    put(tmp_path / "1n8g" / "rn50_b128_fp16_1.log", speed=5000.0)
    result = json.loads(orch("--from-logs", str(tmp_path), "-f", TF, "--format", "dlperf"))
    assert {name: cases["1n8g"]["speedup"] for name, cases in result.items()} == {
        f"{TF} rn50 fp16 b128 unstated": None,
        f"{TF} rn50 fp32 b128 unstated": None,
    }


def test_against_published_sets_both_and_both_kinds_of_hardware(tree: Path) -> None:
    output = orch("--from-logs", str(tree), "--framework", TF, "--against", "published")
    assert "ours:      not recorded" in output
    assert (
        "published: 1 to 4 nodes of 8 × V100-SXM2-16GB, 100 Gb/s InfiniBand, NCCL 2.7.3, CUDA 10.2"
        in output
    )
    assert re.search(r"4n8g +9418\.44 +9418\.44 +1\.00 +29\.27 +29\.27", output)
    document = json.loads(
        orch("--from-logs", str(tree), "--framework", TF, "--against", "published", "--json")
    )
    (beside,) = document["published"]
    assert beside["pairs"][0]["case"] == "1n1g" and beside["pairs"][0]["ratio"] == pytest.approx(
        1.0
    )


def test_our_own_trainer_stands_beside_the_published_runs_of_its_framework(tree: Path) -> None:
    summary = summary_of_tree(tree, FRAMEWORKS[TF])
    own = tuple(
        replace(row, framework="pytorch", model="resnet50", hardware="8 × H200", series="own")
        for row in summary.rows
    )
    found, notes = reference_tables(replace(summary, rows=own), FILES.values())
    assert [each.title.partition(",")[2].partition("(")[0].strip() for each in found] == [
        "native DataLoader, --workers 8 per node",
        "native DataLoader, --workers 48 per node",
        "DALI, --workers 8 per node",
        "DALI, --workers 48 per node",
    ]
    assert {(each.our_hardware, each.published_hardware[:33]) for each in found} == {
        ("8 × H200", "1 to 4 nodes of 8 × V100-SXM2-16G")
    }
    largest = found[2].pairs[-1]
    assert (largest.case, largest.ours, largest.published) == ("4n8g", 9418.44, 8816.70)
    assert largest.ratio == pytest.approx(1.068, abs=5e-4)
    assert found[2].pairs[1].published is None and notes == ()


def test_against_published_says_what_there_is_where_nothing_fits(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b64_fp32_1.log", case=Case(1, 8, 64))
    output = orch("--from-logs", str(tmp_path), "-f", TF, "--against", "published")
    assert (
        "no published table fits; the published tables have resnet50 fp16 b128, resnet50 fp16 b256, resnet50 fp16"
        in output
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-logs", "."], "--from-logs and --framework go together"),
        (["--framework", TF], "--from-logs and --framework go together"),
        (["--from-logs", ".", "--framework", TF, "b1"], "got both"),
        (["--rule", "mlperf"], "expected dlperf"),
        (["--against", "memory"], "expected published"),
        (["--against", "published", "--format", "csv"], "expected table, html or json"),
        (["--images", "5"], "it can only be used with --from-logs"),
        (
            ["--format", "xml"],
            "expected table, html, markdown, csv, json, junit, prometheus, mllog or dlperf",
        ),
        (["--from-logs", ".", "--framework", "tensorflow_offical"], "no framework"),
        (
            ["--from-logs", ".", "--framework", TF, "--reread"],
            "is always read with the folder as it is now",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(program(), ["summarize", *words], catch_exceptions=False)
