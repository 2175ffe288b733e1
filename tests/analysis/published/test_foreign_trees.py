"""Trees of logs that this tool did not write, by published rules and by the patterns of a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.analysis.published.foreign import summary_of_tree
from orchestrator.analysis.published.rules import Case, rule_of
from orchestrator.analysis.published.tables import PublishedTable
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from orchestrator.logs.metrics import Metric
from orchestrator.plan.folders import open_framework
from orchestrator.plan.framework import Framework
from orchestrator.report.published import result_document
from orchestrator.results.numbers.throughput import published
from orchestrator.results.summary import Summary
from tests.support.published_trees import FILES, FRAMEWORKS, TF, plant, put, table_of

TABLES = [pytest.param(name, table, id=table.name) for name, file in FILES.items() for table in file.tables]


def rows(summary: Summary) -> dict[str, Any]:
    return {row.shape: row for row in summary.rows}


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_every_published_table_comes_out_of_a_tree_of_its_logs(name: str, table: PublishedTable, tmp_path: Path) -> None:
    plant(tmp_path, name, table)
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS[name], images=0))
    assert set(found) == {cell.case for cell in table.cells}
    for cell in table.cells:
        row = found[cell.case]
        middle, average = row.median, row.average
        assert abs((average if table.statistic == "mean" else middle) - cell.speed) <= 0.00501
        assert cell.average is None or abs(average - cell.average) <= 0.00501
        if cell.speedup is not None and table.divisor != "mean/latch":
            assert published(row.speedup) == cell.speedup


@pytest.mark.parametrize("seed", range(3))
def test_source_004_has_our_speedups_in_any_file_order(seed: int, tmp_path: Path) -> None:
    plant(tmp_path, "paddle_models", table_of("paddle_models", "paddle_rn50_fp32_b128"), seed)
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS["paddle_models"]))
    assert {case: published(row.speedup) for case, row in found.items()} == {
        "1n1g": 1.0, "1n2g": 1.8, "1n4g": 3.86, "1n8g": 7.44, "2n8g": 13.88, "4n8g": 26.51,
    }  # fmt: skip


def test_source_002_has_24_88_and_a_warning_of_uneven_repeats(tmp_path: Path) -> None:
    plant(tmp_path, "pytorch_examples", table_of("pytorch_examples", "pytorch_rn50_dali_j8"))
    summary = summary_of_tree(tmp_path, FRAMEWORKS["pytorch_examples"], images=1281167)
    row = rows(summary)["4n8g"]
    assert (row.n, published(row.median), published(row.speedup)) == (10, 8816.70, 24.88)
    assert "10 repeats where other cells have 5" in row.qualifications
    assert "the published procedure has 5 runs of each case; 4n8g has 10" in summary.notes


def test_the_data_set_of_the_published_runs_is_the_measure_unless_another_is_named(tmp_path: Path) -> None:
    plant(tmp_path, "pytorch_examples", table_of("pytorch_examples", "pytorch_rn50_dali_j8"))
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS["pytorch_examples"]))
    assert all(row.n == 0 and row.failed for row in found.values())
    assert "images, 1n1g, the log has 10009, which implies a different data set" in found["1n1g"].failures[0]


def test_more_than_nine_nodes_and_gpus_are_read_whole(tmp_path: Path) -> None:
    put(tmp_path / "12n16g" / "rn50_b128_fp32_1.log", "oneflow", 60000.0, Case(12, 16, 128))
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS["oneflow"]).rows
    assert (row.nodes, row.gpus, row.world_size, published(row.median)) == (12, 16, 192, 60000.0)


def test_types_sizes_and_folders_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for number, name in enumerate(("bz128/1n8g/rn50_b128_fp32_1", "bz128/1n8g/rn50_b128_fp16_1", "old/1n8g/rn50_b128_fp32_1")):
        put(tmp_path / f"{name}.log", speed=2000.0 + number)
    found = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    assert sorted(published(row.median or 0) for row in found) == [2000.0, 2001.0, 2002.0]
    assert {(row.dtype, row.options["folder"]) for row in found} == {("fp32", "bz128"), ("fp16", "bz128"), ("fp32", "old")}


def test_the_table_says_that_it_came_from_names_and_by_which_rule(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    notes = summary_of_tree(tmp_path, FRAMEWORKS[TF]).notes
    assert "case, batch size and type are taken from the names of folders and files: a log tree has no manifest" in notes
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
    assert "1n8g/rn50_b128_fp32_2.log has the same bytes as 1n8g/rn50_b128_fp32_1.log and is left out" in summary.notes


def test_a_run_id_that_is_there_twice_is_told(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log", speed=2458.74)
    put(tmp_path / "1n8g" / "rn50_b128_fp32_01.log", speed=2441.07)
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    names = [f"1n8g/rn50_b128_fp32_{number}.log" for number in ("01", "1")]
    assert row.n == 2
    assert {f"{name}: run id 1 occurs more than once, with different content" for name in names} <= set(row.qualifications)


def test_strange_names_are_named_and_not_guessed(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    for name in ("1n8g/rn50.log", "4x8/rn50_b128_fp32_1.log", "0n8g/rn50_b128_fp32_1.log", "1n8g/rn50_b0_fp32_1.log"):
        put(tmp_path / name)
    summary = summary_of_tree(tmp_path, FRAMEWORKS[TF])
    (row,) = summary.rows
    assert row.n == 1 and row.failed == 0
    (note,) = [note for note in summary.notes if note.startswith("not read")]
    assert note.endswith("0n8g/rn50_b128_fp32_1.log, 1n8g/rn50.log, 1n8g/rn50_b0_fp32_1.log, 4x8/rn50_b128_fp32_1.log")


def test_a_bad_log_fails_alone(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    (tmp_path / "1n8g" / "rn50_b128_fp32_2.log").write_bytes(b"Killed\n")
    (tmp_path / "1n8g" / "rn50_b128_fp32_3.log").symlink_to("/dev/zero")
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    assert (row.n, row.failed) == (1, 2)
    assert "found 0 of 6" in row.failures[0] and "cannot be read" in row.failures[1]


def test_an_empty_tree_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected logs such as 4n8g/rn50_b128_fp32_1.log, found none"):
        summary_of_tree(tmp_path, FRAMEWORKS[TF])
    with pytest.raises(ConfigError, match="expected a folder of logs"):
        summary_of_tree(tmp_path / "nowhere", FRAMEWORKS[TF])


def test_a_framework_without_a_rule_reads_no_tree_by_rule(tmp_path: Path) -> None:
    own: Framework = open_framework("pytorch").framework
    with pytest.raises(ConfigError, match="pytorch has no published tables"):
        rule_of(own)
    words = ["summarize", "--from-logs", str(tmp_path), "-f", "pytorch", "--rule", "dlperf"]
    done = CliRunner().invoke(program(), words)
    assert isinstance(done.exception, ConfigError) and "pytorch has no published tables" in done.exception.message


# Folders without a published rule


def log_of(steps: range, seconds: float, samples: int = 64) -> str:
    lines = [
        f"orch step={step} t={9 + step * seconds:.6f} step_time_s={seconds:.6f} samples={samples} loss=nan\n" for step in steps
    ]
    return "".join(lines)


def test_a_folder_without_a_rule_reads_a_tree_with_its_own_patterns(tmp_path: Path) -> None:
    for case, number, seconds in (("1n1g", 1, 0.5), ("1n1g", 2, 0.5), ("2n1g", 1, 0.25), ("2n1g", 2, 0.25)):
        path = tmp_path / case / f"resnet50_b64_fp32_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"noise {number}\n{log_of(range(121), seconds, 64 * int(case[0]))}")
    framework = open_framework("simulated").framework
    warmup_steps = framework.defaults["warmup_steps"]

    summary = summary_of_tree(tmp_path, framework)

    assert [(row.shape, row.n, row.median) for row in summary.rows] == [("1n1g", 2, 128.0), ("2n1g", 2, 512.0)]
    assert f"the window begins after {warmup_steps} steps and ends with the last line of a log" in " ".join(summary.notes)


def with_rates(scope: str = "global") -> Framework:
    """Return a framework whose logs have a rate of each step besides, of a layer."""
    framework = open_framework("simulated").framework
    rate = Metric(
        "rate", "tokens/s", keys=("layer",), over="harmonic_mean", scope=scope, across="sum" if scope == "rank" else ""
    )
    reading = r"^rate (?P<step>[0-9]+) (?P<layer>[a-z]+) (?P<rate>[0-9.]+)$"
    return replace(framework, log=replace(framework.log, readings=(reading,), metrics=(rate,)))


def plant_rates(root: Path, case: str) -> None:
    """Write two logs with rates of 7 during the warm-up, then by turns 20 and 30 of one layer, and 5 of another."""
    for number in (1, 2):
        path = root / case / f"resnet50_b64_fp32_{number}.log"
        path.parent.mkdir(exist_ok=True)
        lines = [f"rate {step} top {7 if step <= 5 else 20 + step % 2 * 10}\nrate {step} end 5.0\n" for step in range(1, 26)]
        path.write_text(f"noise {number}\n{log_of(range(26), 0.5, 64 * int(case[0]))}{''.join(lines)}")


def test_a_tree_of_a_training_has_the_metrics_of_its_folder_within_the_window(tmp_path: Path) -> None:
    plant_rates(tmp_path, "1n1g")
    rows_of = {(row.metric, *row.key.values()): row for row in summary_of_tree(tmp_path, with_rates()).rows}
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
    assert {f"2n1g/resnet50_b64_fp32_{number}.log: {text}" for number in (1, 2)} <= set(row.qualifications)


def test_a_tree_that_the_patterns_do_not_match_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "1n1g" / "resnet50_b64_fp32_1.log"
    path.parent.mkdir()
    path.write_text(log_of(range(121), 0.5).replace("samples=", "images="))

    (row,) = summary_of_tree(tmp_path, open_framework("simulated").framework).rows

    assert "expected lines with steps, found 0; log.patterns[0] comes nearest: line 1 matches up to" in row.failures[0]


def test_a_tree_of_what_is_no_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the speed of training"):
        summary_of_tree(tmp_path, open_framework("collectives").framework)


def test_what_a_program_says_of_its_speed_is_compared_with_its_log(tmp_path: Path) -> None:
    """Ten steps of 8 sequences of 2,048 tokens in 10 s are 16,384 tokens/s."""
    for number, said in ((1, "16,390"), (2, "8,192"), (3, "8,192")):
        path = tmp_path / "1n1g" / f"llama3-debug_b8_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        speeds = f"tps: {said}  tflops: 1.00  mfu: 0.10%"
        lines = [
            f"[titan] 2026-11-24 12:{second // 60:02d}:{second % 60:02d},000 - root - INFO - step: {second:2d}  "
            f"loss: 7.{99 - second}00  grad_norm: 1.0{number}  memory: 9.00GiB(6.00%)  {speeds}\n"
            for second in range(10, 90, 10)
        ]
        path.write_text("".join(lines))

    rows_of = {row.metric: row for row in summary_of_tree(tmp_path, open_framework("torchtitan").framework).rows}

    doubt = "the program reports tokens_per_s_per_device 8192.00 tokens/s, but its log gives 16384.00 tokens/s"
    (text,) = [note for note in rows_of["printed_tps"].qualifications if "the program reports" in note]
    assert text.startswith(doubt)


def nanogpt_log(losses: list[str], prefix: str = "") -> str:
    """Lines of nanoGPT, a step each 100 ms, as rank 0 prints them."""
    return "".join(f"{prefix}iter {step}: loss {loss}, time 100.00ms, mfu 30.00%\n" for step, loss in enumerate(losses))


FALLING = [f"{6 - step / 100:.4f}" for step in range(61)]


@pytest.mark.parametrize(
    ("losses", "error", "note"),
    [
        (FALLING, "", ""),
        ([*FALLING[:30], *["nan"] * 31], "expected a finite loss, got nan from step 31 on", ""),
        (["6.2000"] * 61, "", "the loss is 6.2 in all 41 lines of the window: the program may not train"),
    ],
)
def test_the_losses_of_a_tree_are_looked_at_as_those_of_a_bench(
    tmp_path: Path, losses: list[str], error: str, note: str
) -> None:
    path = tmp_path / "1n1g" / "gpt2-124m_b12_bf16_1.log"
    path.parent.mkdir()
    path.write_text(nanogpt_log(losses))
    speed = next(
        row for row in summary_of_tree(tmp_path, open_framework("nanogpt").framework).rows if row.metric == "tokens_per_s"
    )
    assert (speed.n == 0) is bool(error) and error in " ".join(speed.failures)
    assert note in " ".join(speed.qualifications) and ("train" in " ".join(speed.qualifications)) is bool(note)


@pytest.mark.parametrize("prefix", ["[rank0]:", "[default0]:"])
def test_what_torchrun_puts_before_lines_of_rank_0_is_no_part_of_them(tmp_path: Path, prefix: str) -> None:
    for number, before in ((1, ""), (2, prefix)):
        path = tmp_path / "1n8g" / f"gpt2-124m_b12_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {number}\n" + nanogpt_log(FALLING, before))
    rows_of = {row.metric: row for row in summary_of_tree(tmp_path, open_framework("nanogpt").framework).rows}
    assert (rows_of["tokens_per_s"].n, rows_of["printed_mfu"].n) == (2, 2) and not rows_of["tokens_per_s"].failures


def test_a_log_without_a_number_is_a_failed_repeat_of_the_others(tmp_path: Path) -> None:
    logs = {1: nanogpt_log(FALLING), 2: nanogpt_log(FALLING, "[rank0]:"), 3: nanogpt_log(FALLING[:15]), 4: ""}
    for number, text in logs.items():
        path = tmp_path / "1n8g" / f"gpt2-124m_b12_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    framework = open_framework("nanogpt").framework
    (row,) = [row for row in summary_of_tree(tmp_path, framework).rows if row.metric == "tokens_per_s"]
    assert (row.n, row.planned, row.failed, len(row.failures)) == (2, 4, 2, 2)


def test_a_log_that_ends_in_the_warm_up_and_a_model_that_the_folder_does_not_know_are_said(tmp_path: Path) -> None:
    for name, losses in (("gpt2-124m_b12_bf16_1", FALLING[:15]), ("ours_b12_bf16_1", FALLING)):
        path = tmp_path / "1n8g" / f"{name}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(nanogpt_log(losses))
    summary = summary_of_tree(tmp_path, open_framework("nanogpt").framework)
    short, unknown = [row for row in summary.rows if row.metric == "tokens_per_s"]
    assert "expected steps after the first 20, the warm-up of nanogpt, the last in the log is 15" in short.failures[0]
    assert not [row for row in summary.rows if row.metric == "mfu" or row.metric.startswith("tflops")]
    (note,) = [text for text in unknown.qualifications if "TFLOP/s" in text]
    assert "expected a model of the folder in the name of the file, got ours, nanogpt knows gpt2-124m" in note
    assert not [note for note in summary.notes if "a new orch bench" in note]


def test_rows_of_one_shape_are_all_in_the_result(tmp_path: Path) -> None:
    for number, losses in ((1, FALLING), (2, [*FALLING, *FALLING])):
        path = tmp_path / "1n8g" / f"gpt2-124m_b12_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(nanogpt_log(losses))
    (cases,) = result_document(summary_of_tree(tmp_path, open_framework("nanogpt").framework)).values()
    assert list(cases) == ["1n8g steps=61", "1n8g steps=122"]


MEGATRON = (
    " [2026-11-24 12:00:00] iteration {step:8d}/     100 | consumed samples: {seen:12d} | "
    "elapsed time per iteration (ms): 1300.0 | throughput per GPU (TFLOP/s/GPU): 300.0 | learning rate: 1.000000E-04 | "
    "global batch size: {batch:5d} | lm loss: {loss:.6E} | "
    "loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


@pytest.mark.parametrize(
    ("batch", "every", "speed", "said"),
    [
        (
            64,
            1,
            64 * 8192 / 1.3,
            "8192 tokens are the default of megatron_lm; 4 micro-batches by the samples of a step in the log",
        ),
        (16, 1, 16 * 8192 / 1.3, "8192 tokens and 1 micro-batch are the defaults of megatron_lm"),
        (
            64,
            5,
            64 * 8192 / 1.3,
            "8192 tokens are the default of megatron_lm; 4 micro-batches by the samples of a step in the log",
        ),
        (24, 1, None, "expected 16 samples per step, by 2n8g and batch size 1, the log counts 24"),
    ],
)
def test_samples_of_a_step_are_those_that_a_log_counts(
    tmp_path: Path, batch: int, every: int, speed: float | None, said: str
) -> None:
    path = tmp_path / "2n8g" / "llama3-8b_b1_bf16_1.log"
    path.parent.mkdir()
    steps = range(every, 101, every)
    path.write_text("".join(MEGATRON.format(step=step, seen=step * batch, batch=batch, loss=9 - step / 50) for step in steps))
    summary = summary_of_tree(tmp_path, open_framework("megatron_lm").framework)
    row = next(row for row in summary.rows if row.metric == "tokens_per_s")
    assert row.value == (speed and pytest.approx(speed)) and said in " ".join([*row.qualifications, *row.failures])
