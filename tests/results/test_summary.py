"""Rows, baselines, causes and qualifications of a scaling table."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DataError, RunError
from orchestrator.logs.metrics import Metric
from orchestrator.plan.measures import LANGUAGE_MODEL, MEASURES, TOKENS_PER_S
from orchestrator.plan.scaling import Step
from orchestrator.report.formats import json as jsonout
from orchestrator.report.tables import tables
from orchestrator.results.numbers.throughput import published
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Row, Summary, summarize
from orchestrator.results.values import Value
from tests.support.cells import SPEC, cell, failed
from tests.support.summaries import measured

# Published runs: DALI, 8 workers; the last cell was measured ten times.
PYTORCH = {
    "1n1g": [353.62, 354.44, 354.02, 354.47, 354.61],
    "1n4g": [1367.67, 1336.61, 1367.89, 1340.95, 1369.97],
    "1n8g": [2277.07, 2311.41, 2244.24, 2243.7, 2185.75],
    "2n8g": [4484.64, 4401.46, 4347.27, 4372.33, 4038.81],
    "4n8g": [8940.3, 8468.23, 8781.78, 8648.47, 8851.62, 8654.31, 9046.34, 8973.6, 8515.95, 8853.15],
}
PADDLE = {
    "4n8g": [9243.73, 9333.09, 9329.65, 9337.39, 9295.01, 9332.23],
    "1n8g": [2607.74, 2632.94, 2620.69, 2617.84, 2628.77, 2619.2],
    "1n4g": [1352.04, 1353.2, 1361.19, 1362.62, 1356.96, 1358.67],
    "1n1g": [353.77, 350.54, 354.28, 352.5, 351.55, 350.77],
    "1n2g": [654.9, 625.95, 631.3, 638.81, 611.51, 639.43],
    "2n8g": [4885.12, 4888.3, 4897.39, 4913.18, 4887.0, 4871.62],
}


def table(cells: dict[str, list[float]]) -> list[RunResult]:
    return [run for shape, speeds in cells.items() for run in cell(shape, speeds)]


def rows(summary: Summary) -> dict[str, Row]:
    return {row.shape: row for row in summary.rows}


@pytest.mark.parametrize(
    ("cells", "speedups"),
    [
        (PYTORCH, {"1n1g": 1.0, "1n4g": 3.86, "1n8g": 6.33, "2n8g": 12.34, "4n8g": 24.88}),
        (PADDLE, {"1n1g": 1.0, "1n2g": 1.80, "1n4g": 3.86, "1n8g": 7.44, "2n8g": 13.88, "4n8g": 26.51}),
    ],
)
def test_published_runs_give_median_over_median_in_any_file_order(
    cells: dict[str, list[float]], speedups: dict[str, float]
) -> None:
    results = table(cells)
    for seed in range(5):
        random.Random(seed).shuffle(results)
        found = rows(summarize(results, of_medians=True))
        assert {shape: published(row.speedup or 0) for shape, row in found.items()} == speedups
        assert list(found) == sorted(found, key=lambda shape: int(shape[0]) * int(shape[2]))


def test_published_average_and_median_stand_in_the_row() -> None:
    row = rows(summarize(table(PYTORCH), of_medians=True))["4n8g"]
    assert (published(row.average or 0), published(row.median or 0)) == (8773.38, 8816.7)
    assert (row.minimum, row.maximum, row.n, row.failed) == (8468.23, 9046.34, 10, 0)
    assert row.efficiency == pytest.approx(8816.7 / 354.44 / 32)


def test_uneven_repeats_are_said_where_they_differ() -> None:
    found = rows(summarize(table(PYTORCH)))
    assert found["4n8g"].qualifications == (
        "10 repeats where other cells have 5",
        "repeats spread over 6.6% of the median",
    )
    assert found["1n1g"].qualifications == ()


def drifting(larger: float = 190.0) -> list[RunResult]:
    """Return five repeats of two shapes, each of whose runs is 2 % slower than the one before it, in alternating order."""
    orders = {"1n1g": (0, 3, 4, 7, 8), "1n2g": (1, 2, 5, 6, 9)}
    return [
        replace(run, place=place)
        for shape, truth in (("1n1g", 100.0), ("1n2g", larger))
        for run, place in zip(cell(shape, [truth * 0.98**place for place in orders[shape]]), orders[shape], strict=True)
    ]


def test_metrics_of_one_name_and_different_units_have_drifts_of_their_own() -> None:
    orders = {"probe": (0, 3, 4, 7, 8), "other": (1, 2, 5, 6, 9)}
    numbers = {"probe": [10.0 * 1.1**place for place in orders["probe"]], "other": [100.0, 100.1, 100.2, 100.1, 100.0]}
    metrics = {"probe": Metric("t", "s", "lower"), "other": Metric("t", "MB/s")}
    results = [
        replace(run, run_id=f"{name}-{place}", place=place)
        for name, places in orders.items()
        for run, place in zip(
            measured("1n1g", (metrics[name],), *[{"t": number} for number in numbers[name]], spec={"framework": name}),
            places,
            strict=True,
        )
    ]
    summary = summarize(results)
    values = {row.framework: row.value for row in summary.rows}
    # The middle of the runs of probe is its run at place 4; what other prints does not change with time.
    assert values == {"probe": pytest.approx(10 * 1.1**4), "other": pytest.approx(100.08, abs=0.001)}
    assert set(summary.drifts) == {"t (s, lower is better)", "t (MB/s, higher is better)"}
    assert "t (s, lower is better) of all configurations changed by +114.4% during the bench" in summary.notes[0]


def test_metrics_that_no_run_has_are_named_and_those_of_some_runs_are_not() -> None:
    metrics = tuple(Metric(name, "s", "lower") for name in ("first", "second", "third"))
    results = measured("1n1g", metrics, {"first": 1.0}, {"first": 1.1, "second": 2.0}, {"first": 1.2})
    assert "no run has a value of third, which probe declares" in summarize(results).notes
    assert not [note for note in summarize(measured("1n1g", metrics, {})).notes if "declares" in note]


def test_what_follows_from_a_speed_has_a_note_on_drift_only_if_it_drifts_otherwise() -> None:
    of_speed, of_program = MEASURES[LANGUAGE_MODEL].derived, MEASURES[LANGUAGE_MODEL].reported
    metrics = tuple(metric for metric in (*of_speed, *of_program) if metric.name in ("mfu", "peak_memory"))
    places = (0, 1, 2, 3, 4)
    repeats = [{"mfu": 50 * 0.98**place, "peak_memory": 10 * 1.1**place} for place in places]
    speeds = [Value("tokens_per_s", (), 100 * 0.98**place) for place in places]
    results = [
        replace(
            run,
            place=place,
            measure=MEASURES[LANGUAGE_MODEL],
            metrics=(TOKENS_PER_S, *metrics),
            metric_values=(speed, *run.metric_values),
        )
        for run, place, speed in zip(measured("1n1g", metrics, *repeats), places, speeds, strict=True)
    ]
    slower, memory = summarize(results).notes
    assert slower.startswith("all configurations became 7.8% slower")
    assert memory == "peak_memory of all configurations changed by +46.4% during the bench; values are of its middle"


@pytest.mark.parametrize("of_medians", [False, True])
def test_the_note_on_drift_the_baseline_and_the_speedups_belong_to_each_other(of_medians: bool) -> None:
    summary = summarize(drifting(), of_medians=of_medians)
    (series,) = summary.baseline
    base, row = summary.rows
    divisor = summary.divisor(series)
    assert divisor == pytest.approx(100 * 0.98**4 if of_medians else 100 * 0.98**4.5)
    measured = row.median if of_medians else row.value
    assert divisor and measured and row.speedup == pytest.approx(measured / divisor)
    assert row.speedup == pytest.approx(1.9 * 0.98 if of_medians else 1.9)
    (note,) = summary.notes
    assert ("medians and speedups contain it" in note, "speed, speedup and their" in note) == (of_medians, not of_medians)
    assert tables(summary)[0].head[0] == f"baseline 1n1g: {divisor:.2f} samples/s{' (median)' if of_medians else ''}, n=5"
    assert json.loads(jsonout.render(summary))["baselines"][series]["value"] == divisor


def test_a_configuration_is_slower_by_the_speeds_that_are_shown() -> None:
    notes = {
        of_medians: [note for row in summarize(drifting(101.0), of_medians=of_medians).rows for note in row.qualifications]
        for of_medians in (False, True)
    }
    assert not any("slower" in note for note in notes[False])
    assert any("more ranks but slower than 1n1g (92.24 samples/s)" in note for note in notes[True])


shapes = st.sampled_from(["1n1g", "1n2g", "2n8g", "4n8g"])


@given(
    st.lists(st.tuples(shapes, st.floats(1, 1e5), st.sampled_from(["fp32", "fp16"]), st.booleans()), max_size=14),
    st.randoms(use_true_random=False),
)
def test_the_order_of_runs_changes_nothing(runs: list[tuple[str, float, str, bool]], chance: random.Random) -> None:
    results = [
        replace(cell(shape, [speed], dtype=dtype)[0], run_id=f"r{i}") if good else replace(failed(shape, 1), run_id=f"r{i}")
        for i, (shape, speed, dtype, good) in enumerate(runs)
    ]
    shuffled = list(results)
    chance.shuffle(shuffled)
    assert summarize(shuffled) == summarize(results)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=7))
def test_the_baseline_has_speedup_and_efficiency_one(speeds: list[float]) -> None:
    summary = summarize(cell("1n1g", speeds))
    (row,) = summary.rows
    assert (row.speedup, row.efficiency) == (1.0, 1.0)
    assert list(summary.baseline.values()) == [row]
    assert not any(text.startswith("superlinear") for text in row.qualifications)


def test_failed_runs_stay_with_their_first_cause_and_are_no_zeros() -> None:
    row = rows(summarize([*cell("1n1g", [100.0] * 3), *cell("1n2g", [200.0] * 2), failed("1n2g", 3)]))["1n2g"]
    assert (row.n, row.failed, row.average) == (2, 1, 200.0)
    assert row.failures == ("1n2g-bad3 failed: node2: rank 5 ended with SIGKILL",)
    assert row.run_ids == ("1n2g-1", "1n2g-2", "1n2g-bad3")


def test_a_cause_is_one_line_even_where_its_hint_quotes_a_log() -> None:
    error = RunError(
        "rank 5 ended with 1", kind="rank_failed", host="node2", hint="last lines of rank-5.err:\n  Traceback\n  x"
    )
    row = summarize([replace(failed("1n1g", 1), error=error)]).rows[0]
    assert row.failures == ("1n1g-bad1 failed: node2: rank 5 ended with 1",)
    error.cause = "the GPU had no memory left; lower --batch-size"
    row = summarize([replace(failed("1n1g", 1), error=error)]).rows[0]
    assert row.failures == (f"1n1g-bad1 failed: node2: rank 5 ended with 1: {error.cause}",)


def test_a_cell_whose_runs_all_failed_is_a_row_without_numbers() -> None:
    row = rows(summarize([*cell("1n1g", [100.0] * 3), failed("2n8g", 1), failed("2n8g", 2)]))["2n8g"]
    assert (row.n, row.failed) == (0, 2)
    numbers = (row.average, row.median, row.minimum, row.maximum, row.speedup, row.efficiency)
    assert numbers == (None,) * 6


def test_a_run_with_a_number_and_an_error_is_failed() -> None:
    bad = replace(cell("1n1g", [100.0])[0], error=DataError("digest differs", kind="result_invalid"))
    assert summarize([bad]).rows[0].n == 0


def test_without_a_baseline_there_is_a_note_with_what_gives_one_to_this_table() -> None:
    summary = summarize(cell("4n8g", [900.0] * 3, dtype="fp16"))
    assert summary.rows[0].speedup is None and not summary.baseline
    assert summary.notes == (
        "pytorch resnet50 fp16 b128 synthetic channels_last=true: no speedup, because there is no good 1n1g run; "
        "orch bench without --no-baseline measures one or borrows a good one of the same spec",
    )


def test_the_baseline_that_is_missing_is_one_copy_of_the_model() -> None:
    (note,) = summarize(cell("2n8g", [900.0] * 3, step=Step(model_ranks=2))).notes
    assert "there is no good 1n2g run; " in note and note.endswith(
        "--baseline-shape names another, where no node has so many devices"
    )


def test_a_failed_1n1g_is_no_baseline() -> None:
    for command, words in (
        ("orch resume --retry-failed", "orch resume --retry-failed repeats it"),
        ("orch resume", "orch resume repeats it"),
        ("", "a new orch bench measures a new one"),
    ):
        summary = summarize([replace(failed("1n1g", 1), repeated_by=command), *cell("1n2g", [10.0] * 3)])
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
    assert rows(summarize([*short, *long, *cell("1n2g", [180.0] * 3)]))["1n2g"].speedup == pytest.approx(1.8)
    row = rows(summarize([*short, *cell("1n2g", [180.0] * 3)]))["1n2g"]
    assert row.speedup == pytest.approx(2.0)
    assert row.qualifications == ("its baseline ran 60 steps (20 warm-up)",)
    assert row.options == {"steps": 120, "channels_last": True}


def test_options_that_differ_or_were_chosen_are_named_and_no_others() -> None:
    small = {"image_size": 64, "channels_last": True}
    summary = summarize([*cell("1n1g", [1.0] * 3), *cell("1n1g", [2.0] * 3, prefix="s", options=small)])
    assert [row.options for row in summary.rows] == [{"image_size": size, "channels_last": True} for size in (224, 64)]
    assert [row.series for row in summary.rows] == [
        "pytorch resnet50 fp32 b128 synthetic channels_last=true image_size=224",
        "pytorch resnet50 fp32 b128 synthetic channels_last=true image_size=64",
    ]


def test_an_option_whose_origin_nobody_knows_is_not_called_chosen() -> None:
    read = [replace(run, spec=replace(run.spec, origins={})) for run in cell("1n1g", [1.0] * 3) if run.spec]
    assert summarize(read).rows[0].series == "pytorch resnet50 fp32 b128 synthetic"


def test_runs_with_other_variables_are_other_cells_and_named_so() -> None:
    origins = {**SPEC.origins, "env.NCCL_ALGO": "tune"}
    tried = cell("2n1g", [300.0, 303.0], "b", env={"NCCL_ALGO": "Tree"}, origins=origins)
    summary = summarize([*cell("1n1g", [100.0]), *cell("2n1g", [200.0, 202.0]), *tried])
    tree, plain = [row for row in summary.rows if row.shape == "2n1g"]
    assert (plain.median, plain.speedup, "NCCL_ALGO" in plain.series) == (201.0, pytest.approx(2.01, rel=1e-3), False)
    assert (tree.median, tree.speedup, " NCCL_ALGO=Tree " in tree.series) == (301.5, None, True)
    assert summary.notes == (), "no command makes a baseline of what a tune tried"


def test_simulated_and_real_runs_are_never_pooled() -> None:
    simulated = cell("1n1g", [500.0] * 3, prefix="sim", result={"simulated": True})
    summary = summarize([*simulated, *cell("1n1g", [100.0] * 3)])
    assert [(row.series.endswith(" simulated"), row.median) for row in summary.rows] == [(False, 100.0), (True, 500.0)]
    assert summary.rows[1].qualifications[0].startswith("simulated")


@pytest.mark.parametrize(
    ("results", "shape", "text"),
    [
        (cell("1n1g", [100.0] * 2), "1n1g", "2 good repeats: interval unreliable below n=3"),
        (cell("1n1g", [100.0]), "1n1g", "1 good repeat: interval unreliable below n=3"),
        (cell("1n1g", [95.0, 100.0, 100.1]), "1n1g", "repeats spread over 5.1% of the median"),
        (cell("1n1g", [100.0] * 3, device="cpu"), "1n1g", "cpu: measured on CPUs"),
        ([*cell("1n1g", [99.0, 100.0, 101.0]), *cell("1n2g", [206.0] * 3)], "1n2g", "superlinear"),
        (
            [*cell("1n4g", [1079.19] * 3), *cell("1n8g", [1070.37] * 3)],
            "1n8g",
            "more ranks but slower than 1n4g (1079.19 samples/s)",
        ),
        (cell("1n1g", [9.0] * 3, result={"qualifications": ("rank count not verified",)}), "1n1g", "rank count not verified"),
    ],
)
def test_what_qualifies_a_number_stands_beside_it(results: list[RunResult], shape: str, text: str) -> None:
    assert [q for q in rows(summarize(results))[shape].qualifications if q.startswith(text)]


@pytest.mark.parametrize(
    ("results", "shape"),
    [
        (cell("1n1g", [97.5, 100.0, 102.5]), "1n1g"),
        ([*cell("1n1g", [99.0, 100.0, 101.0]), *cell("1n2g", [201.9, 203.0, 204.0])], "1n2g"),
        ([*cell("1n1g", [99.0, 100.0, 101.0]), *cell("1n2g", [202.3, 203.0, 204.0])], "1n2g"),
        ([*cell("1n1g", [100.0] * 3), *cell("1n2g", [100.0] * 3)], "1n2g"),
    ],
    ids=["spread of 5%", "superlinear within the spread", "superlinear by chance", "not slower"],
)
def test_a_number_without_a_doubt_has_no_qualification(results: list[RunResult], shape: str) -> None:
    assert rows(summarize(results))[shape].qualifications == ()


def facts(driver: str, torch: str, free: int) -> dict[str, Any]:
    return {
        "hostname": "x",
        "kernel": "6.1",
        "disk_free_bytes": free,
        "gpus": [{"index": "0", "name": "NVIDIA H200", "driver": driver, "used_mib": str(free)}] * 8,
        "framework": {"torch": torch, "cuda": "12.8"},
    }


def seen(networks: list[str], *gbit: Any) -> dict[str, Any]:
    """Return what a run on H200s observed, with the rates of its nodes' ports."""
    nodes = {f"node{i}": facts("550.54", "2.13.0", 0) | {"infiniband_gbit": rate} for i, rate in enumerate(gbit)}
    return {"facts": nodes, "observed": {"devices": {"NVIDIA H200": 8}, "networks": networks}}


IMPOSSIBLE = "impossible: the arithmetic of 1 × H200 allows at most 77724 samples/s"
TOO_FAST = "impossible: a link of 12.5 GB/s per node allows at most 500841 samples/s"


@pytest.mark.parametrize(
    ("results", "told"),
    [
        (cell("1n1g", [8e4] * 3, dtype="fp16", result=seen([], 400)), (IMPOSSIBLE,)),
        (cell("1n1g", [7e4] * 3, dtype="fp16", result=seen([], 400)), ()),
        (cell("1n1g", [8e4] * 3, dtype="fp16", options={"image_size": 64}, result=seen([], 400)), ()),
        (cell("1n1g", [8e4] * 3, dtype="fp16", options={"num_classes": 10}, result=seen([], 400)), ()),
        (
            cell("2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/IB on mlx5_0"], 100.0, 400.0)),
            (TOO_FAST, "InfiniBand differs: 100 Gb/s on node0, 400 Gb/s on node1"),
        ),
        (cell("2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/IB on mlx5_0"], 400.0, 400.0)), ()),
        (cell("2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/IB on mlx5_0"], 100.0, None)), ()),
        (cell("2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/Socket on eth0"], 100.0, 100.0)), ()),
        (cell("2n8g", [6e5] * 3, dtype="fp16", result=seen([], 100.0, 100.0)), ()),
    ],
)
def test_a_speed_is_called_impossible_where_device_or_link_are_known_and_only_there(
    results: list[RunResult], told: tuple[str, ...]
) -> None:
    assert rows(summarize(results))[results[0].spec.shape if results[0].spec else ""].qualifications == told


def test_repeats_on_different_devices_have_no_bound() -> None:
    first, second, third = cell("1n1g", [8e4] * 3, dtype="fp16", result=seen([], 400))
    other = replace(third, observed={"devices": {"NVIDIA B200": 8}})
    assert not [text for text in summarize([first, second, other]).rows[0].qualifications if text.startswith("impossible")]


def test_a_simulated_speed_is_never_called_impossible() -> None:
    results = [replace(run, simulated=True) for run in cell("1n1g", [8e4] * 3, dtype="fp16", result=seen([], 400))]
    assert not [text for text in summarize(results).rows[0].qualifications if text.startswith("impossible")]


def test_a_larger_batch_that_is_slower_is_told_beside_it_in_a_table_of_several() -> None:
    summary = summarize([*cell("1n1g", [512.0] * 3, "a"), *cell("1n1g", [439.0] * 3, "b", batch_size=256)])
    assert {row.batch_size: row.qualifications for row in summary.rows} == {
        128: (),
        256: ("a larger batch but slower than b128 (512.00 samples/s)",),
    }


def test_facts_that_must_be_alike_are_folded_by_value_where_they_are_not() -> None:
    nodes = {f"gpu{i:02d}": facts("550.54" if i < 4 else "535.86", "2.13.0", i) for i in range(1, 5)}
    row = summarize(cell("4n8g", [9.0] * 3, result={"facts": nodes})).rows[0]
    assert row.qualifications == ("driver differs: 535.86 on gpu04, 550.54 on gpu[01-03]",)


def test_a_version_that_changes_between_repeats_is_said() -> None:
    first, second, third = cell("1n1g", [9.0] * 3)
    results = [replace(r, facts={"a": facts("1", v, 0)}) for r, v in ((first, "2.13"), (second, "2.13"), (third, "2.14"))]
    assert summarize(results).rows[0].qualifications == ("torch differs: 2.13 on a, 2.14 on a",)


def test_a_baseline_measured_with_another_driver_is_said() -> None:
    old = cell("1n1g", [9.0] * 3, result={"facts": {"a": facts("535.86", "2.13", 0)}})
    new = cell("1n2g", [9.0] * 3, result={"facts": {"a": facts("550.54", "2.13", 0)}})
    found = rows(summarize([*old, *new]))
    assert found["1n1g"].qualifications == ()
    assert found["1n2g"].qualifications == ("driver is 550.54, the baseline's was 535.86",)


def test_a_number_measured_on_ailing_gpus_says_so_once_with_the_nodes() -> None:
    ailing = {"pcie_width": [16] * 7 + [8], "pcie_width_max": 16, "ecc_now": [0, 2] + [0] * 6}
    nodes = {f"gpu0{n}": facts("580.95", "2.13.0", 0) | ({"gpu": ailing} if n < 3 else {}) for n in (1, 2, 3, 4)}
    for node in nodes.values():
        node["gpus"] = [{**gpu, "index": str(index)} for index, gpu in enumerate(node["gpus"])]
    row = summarize(cell("4n8g", [9.0] * 3, result={"facts": nodes})).rows[0]
    assert row.qualifications == (
        "before it ran on gpu[01-02]: GPU 1: 2 uncorrected errors since the driver was loaded",
        "before it ran on gpu[01-02]: GPU 7: 8 lanes of 16",
    )
    on_cpu = cell("4n8g", [9.0] * 3, device="cpu", result={"facts": nodes})
    assert not [text for text in summarize(on_cpu).rows[0].qualifications if text.startswith("before")]


def test_nodes_whose_mtu_or_power_limit_is_not_the_same_are_said() -> None:
    nodes = {name: facts("580.95", "2.13.0", 0) | {"interface": {"mtu": mtu}, "gpu": {"power_limit_w": watts}}
             for name, mtu, watts in (("a", 9000, 700), ("b", 1500, 700), ("c", 9000, 500))}  # fmt: skip
    row = summarize(cell("3n8g", [9.0] * 3, result={"facts": nodes})).rows[0]
    assert row.qualifications == ("MTU differs: 1500 on b, 9000 on a,c", "power limit differs: 500 W on c, 700 W on a,b")


@pytest.mark.parametrize(
    "odd",
    [
        {"gpus": [{}], "xids": [1], "gpu": 7, "topology": {"links": 3}, "interface": "x"},
        {},
        {"gpus": None, "framework": None},
        {"gpus": "nvidia-smi failed"},
        {"gpus": [1, {}], "framework": [2]},
    ],
)
def test_odd_facts_say_nothing(odd: dict[str, Any]) -> None:
    assert summarize(cell("1n1g", [9.0] * 3, result={"facts": {"a": odd}})).rows[0].qualifications == ()


@pytest.mark.parametrize(
    "devices", [{"NVIDIA H200": 8}, [["NVIDIA H200", 8]], [{"name": "NVIDIA H200", "count": 8}], ["NVIDIA H200", "NVIDIA H200"]]
)
def test_hardware_and_versions_are_one_line(devices: Any) -> None:
    seen = {
        "devices": devices,
        "framework": "torch",
        "framework_version": "2.13.0",
        "cuda": "12.8",
        "cudnn": None,
        "nccl": "2.27.3",
    }
    result = {"observed": seen, "facts": {"a": facts("550.54", "2.13.0", 1)}}
    row = summarize(cell("1n1g", [9.0] * 3, result=result)).rows[0]
    assert row.hardware == "NVIDIA H200 · torch 2.13.0 · CUDA 12.8 · NCCL 2.27.3 · driver 550.54"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda", "NVIDIA H200 · torch 2.13.0 · CUDA 12.8 · driver 550.54"),
        ("cpu", "cpu EPYC · torch 2.13.0 · CUDA 12.8 · driver 550.54"),
    ],
)
def test_of_a_program_that_does_not_speak_of_itself_preflight_knows_the_hardware(device: str, expected: str) -> None:
    nodes = {host: {**facts("550.54", "2.13.0", 1), "cpu": "EPYC"} for host in "ab"}
    result = {"observed": {"networks": []}, "facts": nodes}
    assert summarize(cell("2n1g", [9.0] * 3, result=result, device=device)).rows[0].hardware == expected


def test_a_run_without_a_readable_manifest_is_named_in_a_note() -> None:
    lost = RunResult(
        "r9", 0, None, False, "damaged", error=DataError("cut at byte 7", kind="state_damaged", where="manifest.json")
    )
    assert summarize([lost]).notes == ("run r9 is in no row: manifest.json: cut at byte 7",)


def test_a_run_given_twice_is_refused() -> None:
    with pytest.raises(DataError, match="1n1g-1 again"):
        summarize(cell("1n1g", [1.0]) * 2)


def test_nothing_gives_an_empty_table() -> None:
    assert summarize([]) == Summary((), {}, ())


def test_a_repeat_that_is_no_part_of_the_others_is_said_and_counts() -> None:
    (row,) = summarize(cell("1n1g", [100.0, 100.4, 92.0, 100.2, 100.1])).rows
    assert (row.n, row.minimum) == (5, 92.0) and row.average == pytest.approx(98.54)
    assert "repeat 3 is 8.1% slower than the others, more than chance explains; it still counts" in row.qualifications
    (steady,) = summarize(cell("1n1g", [100.0, 100.4, 99.2, 100.2, 100.1])).rows
    assert not [text for text in steady.qualifications if "too far" in text]


def test_strong_scaling_by_the_batch_size_compares_shapes_of_one_global_batch() -> None:
    runs = [*cell("1n1g", [100.0, 110.0], batch_size=32, follows="batch_size")]
    runs += [*cell("1n2g", [180.0, 198.0], batch_size=16, follows="batch_size")]
    runs += [*cell("1n2g", [150.0, 165.0], "half-", batch_size=8, follows="batch_size")]
    summary = summarize(runs)
    assert [(row.shape, row.batch_size, row.global_batch, row.scaling) for row in summary.rows] == [
        ("1n2g", 8, 16, "strong"), ("1n1g", 32, 32, "strong"), ("1n2g", 16, 32, "strong"),
    ]  # fmt: skip
    half, one, two = summary.rows
    assert (one.speedup, two.speedup, two.efficiency) == (1.0, pytest.approx(1.8), pytest.approx(0.9))
    assert half.speedup is None and one.series == two.series
    # 32 samples at the geometric mean of 180 and 198 samples/s
    assert two.step_s == pytest.approx(32 / (180 * 198) ** 0.5)
