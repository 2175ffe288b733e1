"""Trees of logs of language models: on what their numbers depend that a log says, its name, or the
folder of its program.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.features.published.log_trees import summary_of_tree
from orchestrator.plan.folders import open_framework
from orchestrator.report.formats.dlperf import result_document


def test_what_a_program_says_of_its_speed_is_compared_with_its_log(tmp_path: Path) -> None:
    """Ten steps of 8 sequences of 2,048 tokens in 10 s are 16,384 tokens/s."""
    for number, said in ((1, "16,390"), (2, "12,288"), (3, "12,288")):
        path = tmp_path / "1n1g" / f"llama3-debug_b8_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        speeds = f"tps: {said}  tflops: 1.00  mfu: 0.10%"
        lines = [
            f"[titan] 2026-11-24 12:{second // 60:02d}:{second % 60:02d},000 - root - INFO - step: {second:2d}  "
            f"loss: 7.{99 - second}00  grad_norm: 1.0{number}  memory: 9.00GiB(6.00%)  {speeds}\n"
            for second in range(10, 90, 10)
        ]
        path.write_text("".join(lines))

    rows_of = {
        row.metric: row
        for row in summary_of_tree(tmp_path, open_framework("torchtitan").framework).rows
    }

    doubt = "the program reports tokens_per_s_per_device 12288.00 tokens/s, but its log gives 16384.00 tokens/s"
    (text,) = [
        note for note in rows_of["printed_tps"].qualifications if "the program reports" in note
    ]
    assert text.startswith(doubt)


def nanogpt_log(losses: list[str], prefix: str = "") -> str:
    """Lines of nanoGPT, a step each 100 ms, as rank 0 prints them."""
    return "".join(
        f"{prefix}iter {step}: loss {loss}, time 100.00ms, mfu 30.00%\n"
        for step, loss in enumerate(losses)
    )


FALLING = [f"{6 - step / 100:.4f}" for step in range(61)]


@pytest.mark.parametrize(
    ("losses", "error", "note"),
    [
        (FALLING, "", ""),
        ([*FALLING[:30], *["nan"] * 31], "expected a finite loss, got nan from step 31 on", ""),
        (
            ["6.2000"] * 61,
            "",
            "the loss is 6.2 in all 41 lines of the window: the program may not train",
        ),
    ],
)
def test_the_losses_of_a_tree_are_looked_at_as_those_of_a_bench(
    tmp_path: Path, losses: list[str], error: str, note: str
) -> None:
    path = tmp_path / "1n1g" / "gpt2-124m_b12_bf16_1.log"
    path.parent.mkdir()
    path.write_text(nanogpt_log(losses))
    speed = next(
        row
        for row in summary_of_tree(tmp_path, open_framework("nanogpt").framework).rows
        if row.metric == "tokens_per_s"
    )
    assert (speed.n == 0) is bool(error) and error in " ".join(speed.failures)
    assert note in " ".join(speed.qualifications) and (
        "train" in " ".join(speed.qualifications)
    ) is bool(note)


@pytest.mark.parametrize("prefix", ["[rank0]:", "[default0]:"])
def test_what_torchrun_puts_before_lines_of_rank_0_is_no_part_of_them(
    tmp_path: Path, prefix: str
) -> None:
    for number, before in ((1, ""), (2, prefix)):
        path = tmp_path / "1n8g" / f"gpt2-124m_b12_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {number}\n" + nanogpt_log(FALLING, before))
    rows_of = {
        row.metric: row
        for row in summary_of_tree(tmp_path, open_framework("nanogpt").framework).rows
    }
    assert (rows_of["tokens_per_s"].n, rows_of["printed_mfu"].n) == (2, 2) and not rows_of[
        "tokens_per_s"
    ].failures


def test_a_log_without_a_number_is_a_failed_repeat_of_the_others(tmp_path: Path) -> None:
    logs = {
        1: nanogpt_log(FALLING),
        2: nanogpt_log(FALLING, "[rank0]:"),
        3: nanogpt_log(FALLING[:15]),
        4: "",
    }
    for number, text in logs.items():
        path = tmp_path / "1n8g" / f"gpt2-124m_b12_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    framework = open_framework("nanogpt").framework
    (row,) = [
        row for row in summary_of_tree(tmp_path, framework).rows if row.metric == "tokens_per_s"
    ]
    assert (row.n, row.planned, row.failed, len(row.failures)) == (2, 4, 2, 2)


def test_a_log_that_ends_in_the_warm_up_and_a_model_that_the_folder_does_not_know_are_said(
    tmp_path: Path,
) -> None:
    for name, losses in (("gpt2-124m_b12_bf16_1", FALLING[:15]), ("ours_b12_bf16_1", FALLING)):
        path = tmp_path / "1n8g" / f"{name}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(nanogpt_log(losses))
    summary = summary_of_tree(tmp_path, open_framework("nanogpt").framework)
    short, unknown = [row for row in summary.rows if row.metric == "tokens_per_s"]
    assert (
        "expected steps after the first 20, the warm-up, the last in the log is 15"
        in short.failures[0]
    )
    assert not [
        row for row in summary.rows if row.metric == "mfu" or row.metric.startswith("tflops")
    ]
    (note,) = [text for text in unknown.qualifications if "TFLOP/s" in text]
    assert (
        "expected a model of the folder in the name of the file, got ours, nanogpt knows gpt2-124m"
        in note
    )
    assert not [note for note in summary.notes if "a new orch bench" in note]


def test_rows_of_one_shape_are_all_in_the_result(tmp_path: Path) -> None:
    for number, losses in ((1, FALLING), (2, [*FALLING, *FALLING])):
        path = tmp_path / "1n8g" / f"gpt2-124m_b12_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(nanogpt_log(losses))
    (cases,) = result_document(
        summary_of_tree(tmp_path, open_framework("nanogpt").framework)
    ).values()
    assert list(cases) == ["1n8g steps=61", "1n8g steps=122"]


COPY = "8192 tokens and 1 rank for each copy of the model"
MEGATRON = (
    " [2026-11-24 12:00:00] iteration {step:8d}/     100 | consumed samples: {seen:12d} | "
    "elapsed time per iteration (ms): 1300.0 | throughput per GPU (TFLOP/s/GPU): 300.0 | learning rate: 1.000000E-04 | "
    "global batch size: {batch:5d} | lm loss: {loss:.6E} | "
    "loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def megatron_log(batch: int, every: int = 1) -> str:
    """Lines of 100 steps of 1.3 s, each ``batch`` sequences, one line for ``every`` so many."""
    steps = range(every, 101, every)
    return "".join(
        MEGATRON.format(step=step, seen=step * batch, batch=batch, loss=9 - step / 50)
        for step in steps
    )


@pytest.mark.parametrize(
    ("batch", "every", "speed", "said"),
    [
        (
            64,
            1,
            64 * 8192 / 1.3,
            f"{COPY} are the defaults of megatron_lm; 4 micro-batches by the samples",
        ),
        (
            16,
            1,
            16 * 8192 / 1.3,
            "8192 tokens, 1 micro-batch and 1 rank for each copy of the model are the defaults",
        ),
        (
            64,
            5,
            64 * 8192 / 1.3,
            f"{COPY} are the defaults of megatron_lm; 4 micro-batches by the samples",
        ),
        (24, 1, None, "expected 16 samples per step, by 2n8g and batch size 1, the log counts 24"),
    ],
)
def test_samples_of_a_step_are_those_that_a_log_counts(
    tmp_path: Path, batch: int, every: int, speed: float | None, said: str
) -> None:
    path = tmp_path / "2n8g" / "llama3-8b_b1_bf16_1.log"
    path.parent.mkdir()
    path.write_text(megatron_log(batch, every))
    summary = summary_of_tree(tmp_path, open_framework("megatron_lm").framework)
    row = next(row for row in summary.rows if row.metric == "tokens_per_s")
    assert row.value == (speed and pytest.approx(speed)) and said in " ".join(
        [*row.qualifications, *row.failures]
    )


def test_logs_of_different_global_batches_are_different_cases(tmp_path: Path) -> None:
    for number, batch in ((1, 64), (2, 64), (3, 128)):
        path = tmp_path / "2n8g" / f"llama3-8b_b1_bf16_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {number}\n{megatron_log(batch)}")
    summary = summary_of_tree(tmp_path, open_framework("megatron_lm").framework)
    rows_of = [row for row in summary.rows if row.metric == "tokens_per_s"]
    assert [(row.n, row.global_batch, row.options["accumulation"]) for row in rows_of] == [
        (2, 64, 4),
        (1, 128, 8),
    ]
    speeds = [
        cell["median_speed"]
        for cases in result_document(summary).values()
        for cell in cases.values()
    ]
    assert speeds == pytest.approx([row.value for row in rows_of], rel=1e-6)


def test_a_copy_of_the_model_takes_its_ranks(tmp_path: Path) -> None:
    """By its folder, 16 ranks compute a copy of llama3-70b: 8 cannot, and 16 are the baseline of
    32.
    """
    for case, batch in (("1n8g", 8), ("2n8g", 64), ("4n8g", 128)):
        path = tmp_path / case / "llama3-70b_b1_bf16_1.log"
        path.parent.mkdir()
        path.write_text(megatron_log(batch))
    summary = summary_of_tree(tmp_path, open_framework("megatron_lm").framework)
    rows_of = {row.shape: row for row in summary.rows if row.metric == "tokens_per_s"}
    assert (
        "expected a multiple of the 16 ranks that compute a copy of llama3-70b"
        in rows_of["1n8g"].failures[0]
    )
    assert (rows_of["2n8g"].speedup, rows_of["4n8g"].speedup) == (1.0, pytest.approx(2.0))


def own_log(**facts: object) -> str:
    """Lines of the folder pytorch_lm, a step each 100 ms, of 4 sequences of 32 tokens, and what its
    last line reports.
    """
    reported = {
        "model": "gpt-tiny",
        "batch_size": 4,
        "dtype": "fp32",
        "world_size": 1,
        "seq_len": 32,
        "device": "cpu",
    }
    line = "orch step={0} t={1:.6f} step_time_s=0.100000 samples=4 loss={2:.5f} skipped=0\n"
    steps = "".join(line.format(step, 100 + step / 10, 6 - step / 100) for step in range(31))
    return f"{steps}orch done {json.dumps(reported | {'warmup_steps': 5, 'accumulation': 1} | facts)}\n"


def test_what_the_last_line_of_a_log_reports_counts_and_not_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "1n1g" / "gpt-tiny_b4_fp32_1.log"
    path.parent.mkdir()
    path.write_text(own_log())
    row = summary_of_tree(tmp_path, open_framework("pytorch_lm").framework).rows[0]
    assert (row.value, row.device) == (pytest.approx(4 * 32 / 0.1), "cpu")
    assert (
        "32 tokens, 1 micro-batch and 1 rank for each copy of the model as the log reports"
        in row.qualifications
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"world_size": 4}, "expected world_size 1 by the name, the log reports 4"),
        ({"batch_size": 8}, "expected batch_size 4 by the name, the log reports 8"),
        ({"dtype": "bf16"}, "expected dtype fp32 by the name, the log reports 'bf16'"),
        (
            {"model": "llama-tiny"},
            "expected model gpt-tiny by the name, the log reports 'llama-tiny'",
        ),
        (
            {"tensor_parallel": 2},
            "expected a multiple of the 2 ranks that compute a copy of gpt-tiny",
        ),
        (
            {"tensor_parallel": 0},
            "tensor_parallel in the closing line: expected a whole number ≥ 1",
        ),
        ({"accumulation": 0}, "accumulation in the closing line: expected a whole number ≥ 1"),
        ({"seq_len": 10**30}, "seq_len in the closing line: expected a whole number"),
        ({"seq_len": None}, "seq_len in the closing line: expected a whole number"),
        (
            {"checkpointing": ["full"]},
            "checkpointing in the closing line: expected one of none, selective, full",
        ),
        (
            {"device": [], "world_size": "1"},
            "expected world_size 1 by the name, the log reports '1'",
        ),
    ],
)
def test_a_log_of_another_run_than_its_name_says_is_refused(
    tmp_path: Path, facts: dict[str, object], words: str
) -> None:
    path = tmp_path / "1n1g" / "gpt-tiny_b4_fp32_1.log"
    path.parent.mkdir()
    path.write_text(own_log(**facts))
    row = summary_of_tree(tmp_path, open_framework("pytorch_lm").framework).rows[0]
    assert row.n == 0 and words in row.failures[0]


def test_speedups_of_a_tree_are_ratios_of_medians(tmp_path: Path) -> None:
    """Nothing says which logs were measured together."""
    for case, times in (("1n1g", (100, 100, 100)), ("1n2g", (100, 50, 100))):
        for number, milliseconds in enumerate(times, start=1):
            path = tmp_path / case / f"gpt2-124m_b12_bf16_{number}.log"
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                f"# {case} {number}\n"
                + nanogpt_log(FALLING).replace("100.00ms", f"{milliseconds:.2f}ms")
            )
    summary = summary_of_tree(tmp_path, open_framework("nanogpt").framework)
    _, two = [row for row in summary.rows if row.metric == "tokens_per_s"]
    assert (two.speedup, two.speedup_interval) == (pytest.approx(2.0), None)


def test_a_dtype_that_the_folder_does_not_have_is_said(tmp_path: Path) -> None:
    path = tmp_path / "1n1g" / "gpt2-124m_b12_fb16_1.log"
    path.parent.mkdir()
    path.write_text(nanogpt_log(FALLING))
    row = summary_of_tree(tmp_path, open_framework("nanogpt").framework).rows[0]
    assert "expected a dtype of nanogpt in the name of the file, " in " ".join(row.qualifications)
