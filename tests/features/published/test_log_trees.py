"""Trees of logs that this tool did not write, by published rules and by the patterns of a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from orchestrator.features.published.log_trees import summary_of_tree
from orchestrator.features.published.rules import rule_of
from orchestrator.features.published.run_size import Case
from orchestrator.features.published.tables import PublishedTable
from orchestrator.logs.metrics import Metric
from orchestrator.plan.folders import open_framework
from orchestrator.plan.framework import Framework
from orchestrator.results.numbers.throughput import round_like_numpy
from orchestrator.results.summary import Summary
from tests.support.published_trees import FILES, FRAMEWORKS, TF, plant, put, table_of

TABLES = [
    pytest.param(name, table, id=table.name)
    for name, file in FILES.items()
    for table in file.tables
]


def rows(summary: Summary) -> dict[str, Any]:
    return {row.shape: row for row in summary.rows}


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_every_published_table_comes_out_of_a_tree_of_its_logs(
    name: str, table: PublishedTable, tmp_path: Path
) -> None:
    plant(tmp_path, name, table)
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS[name], images=0))
    assert set(found) == {cell.case for cell in table.cells}
    for cell in table.cells:
        row = found[cell.case]
        middle, average = row.median, row.average
        assert abs((average if table.statistic == "mean" else middle) - cell.speed) <= 0.00501
        assert cell.average is None or abs(average - cell.average) <= 0.00501
        if cell.speedup is not None and table.divisor != "mean/latch":
            assert round_like_numpy(row.speedup) == cell.speedup


@pytest.mark.parametrize("seed", range(3))
def test_source_004_has_our_speedups_in_any_file_order(seed: int, tmp_path: Path) -> None:
    plant(tmp_path, "paddle_models", table_of("paddle_models", "paddle_rn50_fp32_b128"), seed)
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS["paddle_models"]))
    assert {case: round_like_numpy(row.speedup) for case, row in found.items()} == {
        "1n1g": 1.0, "1n2g": 1.8, "1n4g": 3.86, "1n8g": 7.44, "2n8g": 13.88, "4n8g": 26.51,
    }  # fmt: skip


def test_source_002_has_24_88_and_a_warning_of_uneven_repeats(tmp_path: Path) -> None:
    plant(tmp_path, "pytorch_examples", table_of("pytorch_examples", "pytorch_rn50_dali_j8"))
    summary = summary_of_tree(tmp_path, FRAMEWORKS["pytorch_examples"], images=1281167)
    row = rows(summary)["4n8g"]
    assert (row.n, round_like_numpy(row.median), round_like_numpy(row.speedup)) == (
        10,
        8816.70,
        24.88,
    )
    assert "10 repeats where other cells have 5" in row.qualifications
    assert "the published procedure has 5 runs of each case; 4n8g has 10" in summary.notes


def test_the_data_set_of_the_published_runs_is_the_measure_unless_another_is_named(
    tmp_path: Path,
) -> None:
    plant(tmp_path, "pytorch_examples", table_of("pytorch_examples", "pytorch_rn50_dali_j8"))
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS["pytorch_examples"]))
    assert all(row.n == 0 and row.failed for row in found.values())
    assert (
        "images, 1n1g, the log has 10009, which implies a different data set"
        in found["1n1g"].failures[0]
    )


def test_more_than_nine_nodes_and_gpus_are_read_whole(tmp_path: Path) -> None:
    put(tmp_path / "12n16g" / "rn50_b128_fp32_1.log", "oneflow", 60000.0, Case(12, 16, 128))
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS["oneflow"]).rows
    assert (row.nodes, row.gpus, row.world_size, round_like_numpy(row.median)) == (
        12,
        16,
        192,
        60000.0,
    )


def test_types_sizes_and_folders_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for number, name in enumerate(
        ("bz128/1n8g/rn50_b128_fp32_1", "bz128/1n8g/rn50_b128_fp16_1", "old/1n8g/rn50_b128_fp32_1")
    ):
        put(tmp_path / f"{name}.log", speed=2000.0 + number)
    found = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    assert sorted(round_like_numpy(row.median or 0) for row in found) == [2000.0, 2001.0, 2002.0]
    assert {(row.dtype, row.options["folder"]) for row in found} == {
        ("fp32", "bz128"),
        ("fp16", "bz128"),
        ("fp32", "old"),
    }


def test_the_table_says_that_it_came_from_names_and_by_which_rule(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    notes = summary_of_tree(tmp_path, FRAMEWORKS[TF]).notes
    assert (
        "case, batch size and type are taken from the names of folders and files: a log tree has no manifest"
        in notes
    )
    assert (
        "rule tf_timehistory_1_6: mean of the 5 rates printed for steps 100-600; the median of 5 runs was published; "
        "speedup is median over median of 1n1g"
    ) in notes
    assert any(note.endswith("no speedup, because there is no good 1n1g run") for note in notes)


def test_a_copied_log_is_no_second_run(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    put(tmp_path / "1n8g" / "rn50_b128_fp32_2.log")
    summary = summary_of_tree(tmp_path, FRAMEWORKS[TF])
    assert summary.rows[0].n == 1
    assert (
        "1n8g/rn50_b128_fp32_2.log has the same bytes as 1n8g/rn50_b128_fp32_1.log and is left out"
        in summary.notes
    )


def test_a_run_id_that_is_there_twice_is_told(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log", speed=2458.74)
    put(tmp_path / "1n8g" / "rn50_b128_fp32_01.log", speed=2441.07)
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    names = [f"1n8g/rn50_b128_fp32_{number}.log" for number in ("01", "1")]
    assert row.n == 2
    assert {
        f"{name}: run id 1 occurs more than once, with different content" for name in names
    } <= set(row.qualifications)


def test_strange_names_are_named_and_not_guessed(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    for name in (
        "1n8g/rn50.log",
        "4x8/rn50_b128_fp32_1.log",
        "0n8g/rn50_b128_fp32_1.log",
        "1n8g/rn50_b0_fp32_1.log",
    ):
        put(tmp_path / name)
    summary = summary_of_tree(tmp_path, FRAMEWORKS[TF])
    (row,) = summary.rows
    assert row.n == 1 and row.failed == 0
    (note,) = [note for note in summary.notes if note.startswith("not read")]
    assert note.endswith(
        "0n8g/rn50_b128_fp32_1.log, 1n8g/rn50.log, 1n8g/rn50_b0_fp32_1.log, 4x8/rn50_b128_fp32_1.log"
    )


def test_a_bad_log_fails_alone(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    (tmp_path / "1n8g" / "rn50_b128_fp32_2.log").write_bytes(b"Killed\n")
    (tmp_path / "1n8g" / "rn50_b128_fp32_3.log").symlink_to("/dev/zero")
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    assert (row.n, row.failed) == (1, 2)
    assert (
        "found 0 of 6" in row.failures[0]
        and "expected a file, got a symbolic link" in row.failures[1]
    )


def test_an_empty_tree_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="expected logs such as 4n8g/rn50_b128_fp32_1.log, found none"
    ):
        summary_of_tree(tmp_path, FRAMEWORKS[TF])
    with pytest.raises(ConfigError, match="expected a folder of logs"):
        summary_of_tree(tmp_path / "nowhere", FRAMEWORKS[TF])


def test_a_framework_without_a_rule_reads_no_tree_by_rule(tmp_path: Path) -> None:
    own: Framework = open_framework("pytorch").framework
    with pytest.raises(ConfigError, match="pytorch has no published tables"):
        rule_of(own)
    words = ["summarize", "--from-logs", str(tmp_path), "-f", "pytorch", "--rule", "dlperf"]
    done = CliRunner().invoke(program(), words)
    assert (
        isinstance(done.exception, ConfigError)
        and "pytorch has no published tables" in done.exception.message
    )


# Folders without a published rule


def log_of(steps: range, seconds: float, samples: int = 64) -> str:
    lines = [
        f"orch step={step} t={9 + step * seconds:.6f} step_time_s={seconds:.6f} samples={samples} loss=nan\n"
        for step in steps
    ]
    return "".join(lines)


def test_a_folder_without_a_rule_reads_a_tree_with_its_own_patterns(tmp_path: Path) -> None:
    for case, number, seconds in (
        ("1n1g", 1, 0.5),
        ("1n1g", 2, 0.5),
        ("2n1g", 1, 0.25),
        ("2n1g", 2, 0.25),
    ):
        path = tmp_path / case / f"resnet50_b64_fp32_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"noise {number}\n{log_of(range(121), seconds, 64 * int(case[0]))}")
    framework = open_framework("simulated").framework
    warmup_steps = framework.defaults["warmup_steps"]

    summary = summary_of_tree(tmp_path, framework)

    assert [(row.shape, row.n, row.median) for row in summary.rows] == [
        ("1n1g", 2, 128.0),
        ("2n1g", 2, 512.0),
    ]
    window = f"the window begins after {warmup_steps} steps, or those that a log reports, and ends with the last line of a log"
    assert window in " ".join(summary.notes)


def with_rates(scope: str = "global") -> Framework:
    """Return a framework whose logs have a rate of each step besides, of a layer."""
    framework = open_framework("simulated").framework
    rate = Metric(
        "rate",
        "tokens/s",
        keys=("layer",),
        over="harmonic_mean",
        scope=scope,
        across="sum" if scope == "rank" else "",
    )
    reading = r"^rate (?P<step>[0-9]+) (?P<layer>[a-z]+) (?P<rate>[0-9.]+)$"
    return replace(framework, log=replace(framework.log, readings=(reading,), metrics=(rate,)))


def plant_rates(root: Path, case: str) -> None:
    """Write two logs with rates of 7 during the warm-up, then by turns 20 and 30 of one layer, and
    5 of another.
    """
    for number in (1, 2):
        path = root / case / f"resnet50_b64_fp32_{number}.log"
        path.parent.mkdir(exist_ok=True)
        lines = [
            f"rate {step} top {7 if step <= 5 else 20 + step % 2 * 10}\nrate {step} end 5.0\n"
            for step in range(1, 26)
        ]
        path.write_text(
            f"noise {number}\n{log_of(range(26), 0.5, 64 * int(case[0]))}{''.join(lines)}"
        )


def test_a_tree_of_a_training_has_the_metrics_of_its_folder_within_the_window(
    tmp_path: Path,
) -> None:
    plant_rates(tmp_path, "1n1g")
    rows_of = {
        (row.metric, *row.key.values()): row for row in summary_of_tree(tmp_path, with_rates()).rows
    }
    # The harmonic mean of 20 and 30 is 24.
    assert {name: (row.n, row.value) for name, row in rows_of.items()} == {
        ("samples_per_s",): (2, pytest.approx(128.0)),
        ("rate", "top"): (2, pytest.approx(24.0)),
        ("rate", "end"): (2, pytest.approx(5.0)),
    }


def test_a_metric_of_ranks_that_one_log_cannot_hold_is_said_to_be_left_out(tmp_path: Path) -> None:
    plant_rates(tmp_path, "2n1g")
    (row,) = summary_of_tree(tmp_path, with_rates("rank")).rows
    assert (row.metric, row.n, row.value) == ("samples_per_s", 2, pytest.approx(256.0))
    text = "metrics of the folder are left out: expected rate at layer=top of 2 ranks, got it of 1"
    assert {f"2n1g/resnet50_b64_fp32_{number}.log: {text}" for number in (1, 2)} <= set(
        row.qualifications
    )


def test_a_tree_that_the_patterns_do_not_match_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "1n1g" / "resnet50_b64_fp32_1.log"
    path.parent.mkdir()
    path.write_text(log_of(range(121), 0.5).replace("samples=", "images="))

    (row,) = summary_of_tree(tmp_path, open_framework("simulated").framework).rows

    assert (
        "expected lines with steps, found 0; log.patterns[0] comes nearest: line 1 matches up to"
        in row.failures[0]
    )


def test_a_tree_of_what_is_no_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the speed of training"):
        summary_of_tree(tmp_path, open_framework("collectives").framework)
