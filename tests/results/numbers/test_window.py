"""Which lines are the window of a run, and what is said of a log that prints other steps."""

from __future__ import annotations

import pytest

from orchestrator.errors import DataError
from orchestrator.logs import StepSample
from orchestrator.results.numbers.window import window_lines


def log(*steps: int) -> list[StepSample]:
    return [StepSample(step, step_time_s=0.5) for step in steps]


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "last", "window"),
    [
        (range(1, 8), 2, 6, [3, 4, 5, 6]),
        (range(10, 201, 10), 50, 100, [60, 70, 80, 90, 100]),
        (range(60, 101, 10), 50, 100, [60, 70, 80, 90, 100]),
        (range(1, 7), 0, 6, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_window_is_what_is_printed_of_its_steps(
    steps: range, warmup_steps: int, last: int, window: list[int]
) -> None:
    assert [line.step for line in window_lines(log(*steps), warmup_steps, last)] == window


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "last", "message", "hint"),
    [
        ([], 2, 6, "expected lines for steps 3…6, found 0; the log has none at all", ""),
        ([0, 1, 2], 2, 6, "expected lines for steps 3…6, found 0; the last is 2", ""),
        (
            range(10, 201, 10), 50, 205,
            "expected a line for step 205, the last of the window; the log has one every 10 steps, from 50 to 200",
            "use --steps 200 or 210",
        ),
        (
            range(10, 201, 10), 55, 200,
            "expected a line for step 55, after which the window begins; the log has one every 10 steps, from 60 to 200",
            "use --warmup-steps 60",
        ),
        (
            range(200), 50, 200, "expected 150 lines for steps 51…200, found 149, the last for step 199; "
                "the first missing is step 200",
            "its first step is 0: write counts_from: 0 under log:",
        ),
        (
            range(1, 151), 50, 200, "expected 150 lines for steps 51…200, found 100, the last for step 150; "
                "the first missing is step 151",
            "it has as many steps as the window: if the program does not count its warm-up, write after_warmup: "
                "true under log:",
        ),
        (
            range(1, 41), 160, 200, "expected lines for steps 161…200, found 0; the last is 40",
            "it has as many steps as the window: if the program does not count its warm-up, write after_warmup: "
                "true under log:",
        ),
    ],
)  # fmt: skip
def test_a_log_of_other_steps_is_told_from_one_that_lacks_some(
    steps: range, warmup_steps: int, last: int, message: str, hint: str
) -> None:
    with pytest.raises(DataError) as caught:
        window_lines(log(*steps), warmup_steps, last)
    assert (caught.value.kind, caught.value.message, caught.value.hint) == (
        "log_unmatched",
        message,
        hint,
    )


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "last", "message"),
    [
        (range(1, 199), 50, 200, "expected 150 lines for steps 51…200, found 148, the last for step 198; "
            "the first missing is step 199"),
        ([10, 20, 40, 50], 10, 50, "expected 4 lines for steps 11…50, found 3, the last for step 50; "
            "the first missing is step 30"),
        (range(10, 191, 10), 100, 200, "expected 10 lines for steps 101…200, found 9, the last for step 190; "
            "the first missing is step 200"),
    ],
)  # fmt: skip
def test_a_log_that_lacks_lines_is_incomplete(
    steps: range, warmup_steps: int, last: int, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        window_lines(log(*steps), warmup_steps, last)
    assert (caught.value.kind, caught.value.message, caught.value.hint) == (
        "result_invalid",
        message,
        "the log is incomplete",
    )


def test_a_line_before_the_first_step_is_no_step() -> None:
    cut = [
        StepSample(0, timestamp=9.0, step_time_s=0.0, samples=0),
        *(StepSample(step, timestamp=9.0 + step) for step in range(1, 12)),
    ]
    with pytest.raises(DataError, match="found 9, the last for step 11") as caught:
        window_lines(cut, 2, 12)
    assert caught.value.kind == "result_invalid"
