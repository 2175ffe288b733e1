"""Rows, causes and qualifications of a scaling table."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DataError, RunError
from orchestrator.logs.metrics import Metric
from orchestrator.results.numbers.throughput import round_like_numpy
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Summary, summarize
from tests.support.cells import cell, failed
from tests.support.summaries import measured, rows

# Published runs: DALI, 8 workers; the last cell was measured ten times.
PYTORCH = {
    "1n1g": [353.62, 354.44, 354.02, 354.47, 354.61],
    "1n4g": [1367.67, 1336.61, 1367.89, 1340.95, 1369.97],
    "1n8g": [2277.07, 2311.41, 2244.24, 2243.7, 2185.75],
    "2n8g": [4484.64, 4401.46, 4347.27, 4372.33, 4038.81],
    "4n8g": [
        8940.3,
        8468.23,
        8781.78,
        8648.47,
        8851.62,
        8654.31,
        9046.34,
        8973.6,
        8515.95,
        8853.15,
    ],
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


@pytest.mark.parametrize(
    ("cells", "speedups"),
    [
        (PYTORCH, {"1n1g": 1.0, "1n4g": 3.86, "1n8g": 6.33, "2n8g": 12.34, "4n8g": 24.88}),
        (
            PADDLE,
            {"1n1g": 1.0, "1n2g": 1.80, "1n4g": 3.86, "1n8g": 7.44, "2n8g": 13.88, "4n8g": 26.51},
        ),
    ],
)
def test_published_runs_give_median_over_median_in_any_file_order(
    cells: dict[str, list[float]], speedups: dict[str, float]
) -> None:
    results = table(cells)
    for seed in range(5):
        random.Random(seed).shuffle(results)
        found = rows(summarize(results, of_medians=True))
        assert {
            shape: round_like_numpy(row.speedup or 0) for shape, row in found.items()
        } == speedups
        assert list(found) == sorted(found, key=lambda shape: int(shape[0]) * int(shape[2]))


def test_published_average_and_median_stand_in_the_row() -> None:
    row = rows(summarize(table(PYTORCH), of_medians=True))["4n8g"]
    assert (round_like_numpy(row.average or 0), round_like_numpy(row.median or 0)) == (
        8773.38,
        8816.7,
    )
    assert (row.minimum, row.maximum, row.n, row.failed) == (8468.23, 9046.34, 10, 0)
    assert row.efficiency == pytest.approx(8816.7 / 354.44 / 32)


def test_uneven_repeats_are_said_where_they_differ() -> None:
    found = rows(summarize(table(PYTORCH)))
    assert found["4n8g"].qualifications == (
        "10 repeats where other cells have 5",
        "repeats spread over 6.6% of the median",
    )
    assert found["1n1g"].qualifications == ()


def test_metrics_that_no_run_has_are_named_and_those_of_some_runs_are_not() -> None:
    metrics = tuple(Metric(name, "s", "lower") for name in ("first", "second", "third"))
    results = measured(
        "1n1g", metrics, {"first": 1.0}, {"first": 1.1, "second": 2.0}, {"first": 1.2}
    )
    assert "no run has a value of third, which probe declares" in summarize(results).notes
    assert not [
        note for note in summarize(measured("1n1g", metrics, {})).notes if "declares" in note
    ]


shapes = st.sampled_from(["1n1g", "1n2g", "2n8g", "4n8g"])


@given(
    st.lists(
        st.tuples(shapes, st.floats(1, 1e5), st.sampled_from(["fp32", "fp16"]), st.booleans()),
        max_size=14,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_runs_changes_nothing(
    runs: list[tuple[str, float, str, bool]], chance: random.Random
) -> None:
    results = [
        replace(cell(shape, [speed], dtype=dtype)[0], run_id=f"r{i}")
        if good
        else replace(failed(shape, 1), run_id=f"r{i}")
        for i, (shape, speed, dtype, good) in enumerate(runs)
    ]
    shuffled = list(results)
    chance.shuffle(shuffled)
    assert summarize(shuffled) == summarize(results)


def test_failed_runs_stay_with_their_first_cause_and_are_no_zeros() -> None:
    row = rows(
        summarize([*cell("1n1g", [100.0] * 3), *cell("1n2g", [200.0] * 2), failed("1n2g", 3)])
    )["1n2g"]
    assert (row.n, row.failed, row.average) == (2, 1, 200.0)
    assert row.failures == ("1n2g-bad3 failed: node2: rank 5 ended with SIGKILL",)
    assert row.run_ids == ("1n2g-1", "1n2g-2", "1n2g-bad3")


def test_a_cause_is_one_line_even_where_its_hint_quotes_a_log() -> None:
    error = RunError(
        "rank 5 ended with 1",
        kind="rank_failed",
        host="node2",
        hint="last lines of rank-5.err:\n  Traceback\n  x",
    )
    row = summarize([replace(failed("1n1g", 1), error=error)]).rows[0]
    assert row.failures == ("1n1g-bad1 failed: node2: rank 5 ended with 1",)
    error.cause = "the GPU had no memory left; lower --batch-size"
    row = summarize([replace(failed("1n1g", 1), error=error)]).rows[0]
    assert row.failures == (f"1n1g-bad1 failed: node2: rank 5 ended with 1: {error.cause}",)


def test_a_cell_whose_runs_all_failed_is_a_row_without_numbers() -> None:
    row = rows(summarize([*cell("1n1g", [100.0] * 3), failed("2n8g", 1), failed("2n8g", 2)]))[
        "2n8g"
    ]
    assert (row.n, row.failed) == (0, 2)
    numbers = (row.average, row.median, row.minimum, row.maximum, row.speedup, row.efficiency)
    assert numbers == (None,) * 6


def test_a_run_with_a_number_and_an_error_is_failed() -> None:
    bad = replace(
        cell("1n1g", [100.0])[0], error=DataError("digest differs", kind="result_invalid")
    )
    assert summarize([bad]).rows[0].n == 0


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
        (
            cell("1n1g", [9.0] * 3, result={"qualifications": ("rank count not verified",)}),
            "1n1g",
            "rank count not verified",
        ),
    ],
)
def test_what_qualifies_a_number_stands_beside_it(
    results: list[RunResult], shape: str, text: str
) -> None:
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
def test_a_number_without_a_doubt_has_no_qualification(
    results: list[RunResult], shape: str
) -> None:
    assert rows(summarize(results))[shape].qualifications == ()


def test_a_larger_batch_that_is_slower_is_told_beside_it_in_a_table_of_several() -> None:
    summary = summarize(
        [*cell("1n1g", [512.0] * 3, "a"), *cell("1n1g", [439.0] * 3, "b", batch_size=256)]
    )
    assert {row.batch_size: row.qualifications for row in summary.rows} == {
        128: (),
        256: ("a larger batch but slower than b128 (512.00 samples/s)",),
    }


def test_a_run_without_a_readable_manifest_is_named_in_a_note() -> None:
    lost = RunResult(
        "r9",
        0,
        None,
        False,
        "damaged",
        error=DataError("cut at byte 7", kind="state_damaged", where="manifest.json"),
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
    assert (
        "repeat 3 is 8.1% slower than the others, more than chance explains; it still counts"
        in row.qualifications
    )
    (steady,) = summarize(cell("1n1g", [100.0, 100.4, 99.2, 100.2, 100.1])).rows
    assert not [text for text in steady.qualifications if "too far" in text]
