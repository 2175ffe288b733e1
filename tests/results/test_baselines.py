"""The baseline of a series: which run it is, what is said where there is none, and the speedups
over it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.scaling import Step
from orchestrator.plan.spec import Skipped
from orchestrator.results.summary import summarize
from tests.support.cells import SPEC, cell, failed
from tests.support.summaries import rows


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=7))
def test_the_baseline_has_speedup_and_efficiency_one(speeds: list[float]) -> None:
    summary = summarize(cell("1n1g", speeds))
    (row,) = summary.rows
    assert (row.speedup, row.efficiency) == (1.0, 1.0)
    assert list(summary.baseline.values()) == [row]
    assert not any(text.startswith("superlinear") for text in row.qualifications)


def test_without_a_baseline_there_is_a_note_with_what_gives_one_to_this_table() -> None:
    summary = summarize(cell("4n8g", [900.0] * 3, dtype="fp16"))
    assert summary.rows[0].speedup is None and not summary.baseline
    assert summary.notes == (
        "pytorch resnet50 fp16 b128 synthetic channels_last=true: no speedup, because there is no good 1n1g run; "
        "orch bench without --no-baseline measures one, or borrows a good run of the same spec",
    )


def test_the_baseline_that_is_missing_is_one_copy_of_the_model() -> None:
    (note,) = summarize(cell("2n8g", [900.0] * 3, step=Step(model_ranks=2))).notes
    assert "there is no good 1n2g run; " in note and note.endswith(
        "if no node has so many devices, --baseline-shape chooses another one"
    )


def test_of_a_baseline_that_is_impossible_no_run_is_proposed() -> None:
    skipped = [
        Skipped(
            "pytorch",
            "resnet50",
            {"nodes": 1, "gpus": 1, "dtype": "fp16"},
            "as a baseline: expected 2 or more",
        )
    ]
    (note,) = summarize(cell("4n8g", [900.0] * 3, dtype="fp16"), skipped=skipped).notes
    assert note.endswith(
        "no speedup, because 1n1g is impossible; --baseline-shape chooses another baseline"
    )
    for other in ({"dtype": "fp32"}, {"dtype": "fp16", "model": "vgg16"}):
        (note,) = summarize(cell("4n8g", [900.0] * 3, **other), skipped=skipped).notes
        assert "there is no good 1n1g run" in note


def test_a_failed_1n1g_is_no_baseline() -> None:
    for command, words in (
        ("orch resume --retry-failed", "orch resume --retry-failed repeats it"),
        ("orch resume", "orch resume repeats it"),
        ("", "a new orch bench measures a new one"),
    ):
        summary = summarize(
            [replace(failed("1n1g", 1), repeated_by=command), *cell("1n2g", [10.0] * 3)]
        )
        assert [row.speedup for row in summary.rows] == [None, None]
        (note,) = summary.notes
        assert note.endswith(f"there is no good 1n1g run; {words}")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "fp16"},
        {"batch_size": 64},
        {"loader": "native"},
        {"model": "vgg16"},
        {"framework": "paddle"},
        {"device": "cpu"},
        {"options": {"image_size": 64, "channels_last": True}},
    ],
)
def test_the_baseline_shares_all_of_the_spec_but_shape_and_length(change: dict[str, Any]) -> None:
    results = [*cell("1n1g", [100.0] * 3), *cell("1n2g", [150.0] * 3, prefix="x", **change)]
    assert rows(summarize(results))["1n2g"].speedup is None
    assert len(summarize(results).by_series()) == 2
    results += cell("1n1g", [50.0] * 3, prefix="y", **change)
    assert rows(summarize(results))["1n2g"].speedup == pytest.approx(3.0)


def test_the_baseline_of_equal_length_is_taken_and_another_length_is_said() -> None:
    short = cell("1n1g", [90.0] * 3, prefix="s", steps=60)
    long = cell("1n1g", [100.0] * 3)
    assert rows(summarize([*short, *long, *cell("1n2g", [180.0] * 3)]))[
        "1n2g"
    ].speedup == pytest.approx(1.8)
    row = rows(summarize([*short, *cell("1n2g", [180.0] * 3)]))["1n2g"]
    assert row.speedup == pytest.approx(2.0)
    assert row.qualifications == ("its baseline ran 60 steps (20 warm-up)",)
    assert row.options == {"steps": 120, "channels_last": True}


def test_options_that_differ_or_were_chosen_are_named_and_no_others() -> None:
    small = {"image_size": 64, "channels_last": True}
    summary = summarize(
        [*cell("1n1g", [1.0] * 3), *cell("1n1g", [2.0] * 3, prefix="s", options=small)]
    )
    assert [row.options for row in summary.rows] == [
        {"image_size": size, "channels_last": True} for size in (224, 64)
    ]
    assert [row.series for row in summary.rows] == [
        "pytorch resnet50 fp32 b128 synthetic channels_last=true image_size=224",
        "pytorch resnet50 fp32 b128 synthetic channels_last=true image_size=64",
    ]


def test_an_option_whose_origin_nobody_knows_is_not_called_chosen() -> None:
    read = [
        replace(run, spec=replace(run.spec, origins={}))
        for run in cell("1n1g", [1.0] * 3)
        if run.spec
    ]
    assert summarize(read).rows[0].series == "pytorch resnet50 fp32 b128 synthetic"


def test_runs_with_other_variables_are_other_cells_and_named_so() -> None:
    origins = {**SPEC.origins, "env.NCCL_ALGO": "tune"}
    tried = cell("2n1g", [300.0, 303.0], "b", env={"NCCL_ALGO": "Tree"}, origins=origins)
    summary = summarize([*cell("1n1g", [100.0]), *cell("2n1g", [200.0, 202.0]), *tried])
    tree, plain = [row for row in summary.rows if row.shape == "2n1g"]
    assert (plain.median, plain.speedup, "NCCL_ALGO" in plain.series) == (
        201.0,
        pytest.approx(2.01, rel=1e-3),
        False,
    )
    assert (tree.median, tree.speedup, " NCCL_ALGO=Tree " in tree.series) == (301.5, None, True)
    assert summary.notes == (), "no command makes a baseline of what a tune tried"


def test_simulated_and_real_runs_are_never_pooled() -> None:
    simulated = cell("1n1g", [500.0] * 3, prefix="sim", result={"simulated": True})
    summary = summarize([*simulated, *cell("1n1g", [100.0] * 3)])
    assert [(row.series.endswith(" simulated"), row.median) for row in summary.rows] == [
        (False, 100.0),
        (True, 500.0),
    ]
    assert summary.rows[1].qualifications[0].startswith("simulated")


def test_strong_scaling_by_the_batch_size_compares_shapes_of_one_global_batch() -> None:
    runs = [*cell("1n1g", [100.0, 110.0], batch_size=32, follows="batch_size")]
    runs += [*cell("1n2g", [180.0, 198.0], batch_size=16, follows="batch_size")]
    runs += [*cell("1n2g", [150.0, 165.0], "half-", batch_size=8, follows="batch_size")]
    summary = summarize(runs)
    assert [(row.shape, row.batch_size, row.global_batch, row.scaling) for row in summary.rows] == [
        ("1n2g", 8, 16, "strong"), ("1n1g", 32, 32, "strong"), ("1n2g", 16, 32, "strong"),
    ]  # fmt: skip
    half, one, two = summary.rows
    assert (one.speedup, two.speedup, two.efficiency) == (
        1.0,
        pytest.approx(1.8),
        pytest.approx(0.9),
    )
    assert half.speedup is None and one.series == two.series
    # 32 samples at the geometric mean of 180 and 198 samples/s
    assert two.step_s == pytest.approx(32 / (180 * 198) ** 0.5)
