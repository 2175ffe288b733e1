"""The checks of steps that every log passes, whoever reads it."""

from __future__ import annotations

import math

import pytest

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar, StepSample
from orchestrator.logs.parse import parse
from orchestrator.results.log_checks import read_window, verify_statements
from orchestrator.results.numbers.clock import Clock, Sizes
from orchestrator.results.numbers.throughput import Terms
from orchestrator.results.numbers.training import verify_training

TERMS = Terms(warmup_steps=4, steps=40, global_batch=64)


def clocked(*, jump_s: float = 0.0, at: int = 20, steps: int = 40) -> list[StepSample]:
    """Steps of half a second on a clock that is set forward by ``jump_s`` in one of them."""
    return [
        StepSample(step, timestamp=1000 + step * 0.5 + (jump_s if step >= at else 0.0))
        for step in range(steps + 1)
    ]


@pytest.mark.parametrize(
    ("last", "remedy"),
    [
        (160, "4 numbers are one step, such as micro-batches, write micro_batches: 4"),
        (50, "several numbers are one step"),
    ],
)
def test_a_log_beyond_the_plan_counts_something_else_than_steps(last: int, remedy: str) -> None:
    with pytest.raises(
        DataError,
        match=f"expected steps up to 40 as planned, the log goes to step {last}.*{remedy}.*--steps",
    ):
        read_window(clocked(steps=last), TERMS, {})


def test_a_log_that_ends_as_planned_has_a_number() -> None:
    read = read_window(clocked(), TERMS, {})

    assert read.throughput.samples_per_s == 128.0
    assert (read.notes, read.unsteady) == ((), ())
    assert read.tempo is not None
    assert len(read.digest) == 64


@pytest.mark.parametrize("jump_s", [3600.0, 1800.0, 7200.3])
def test_a_clock_that_is_set_by_whole_half_hours_gives_no_number(jump_s: float) -> None:
    with pytest.raises(
        DataError, match="expected a clock that nobody sets, got a jump of .* at step 20"
    ):
        read_window(clocked(jump_s=jump_s), TERMS, {})


def test_a_long_pause_is_noted() -> None:
    read = read_window(clocked(jump_s=47.0), TERMS, {})

    assert "1 of 36 steps took 95 times as long as the median: step 20" in read.unsteady[0]


def test_rates_that_are_twice_what_times_say_are_noted() -> None:
    log = [StepSample(step, timestamp=step * 0.5, samples_per_s=256.0) for step in range(41)]

    assert read_window(log, TERMS, {}).notes == (
        "the log disagrees with itself: 256.00 samples/s by its rates, 128.00 by the elapsed time",
    )


def test_rates_are_not_compared_where_the_batch_is_not_known() -> None:
    log = [StepSample(step, timestamp=step * 0.5, samples_per_s=256.0) for step in range(41)]

    assert read_window(log, TERMS, {}, sized=False).notes == ()


def test_slow_steps_cost_no_seconds_where_there_are_rates_alone_and_no_batch() -> None:
    rates = [StepSample(step, samples_per_s=20.0 if step == 30 else 100.0) for step in range(41)]
    unknown = Terms(warmup_steps=4, steps=40, global_batch=1)
    (of_batch,) = read_window(rates, TERMS, {}).unsteady
    (of_rates,) = read_window(rates, unknown, {}, sized=False).unsteady
    (of_times,) = read_window(clocked(jump_s=47.0), unknown, {}, sized=False).unsteady
    assert "that is 2.56 s, 10.0% of the window" in of_batch
    assert "that is 10.0% of the window" in of_rates
    assert "that is 47 s, " in of_times


def test_means_since_the_start_that_no_grammar_declares_are_noted() -> None:
    log = [StepSample(step, samples_per_s=64 * step / (4 + 0.5 * step)) for step in range(1, 41)]

    (note,) = read_window(log, TERMS, {}).notes
    assert "write cumulative: true" in note
    assert not read_window(log, Terms(4, 40, 64, cumulative=True), {}).notes


@pytest.mark.parametrize("drift", [0.001, -0.001])
def test_a_machine_that_gets_slower_or_faster_is_not_taken_for_means(drift: float) -> None:
    log = [StepSample(step, samples_per_s=128 / (1 + drift * step)) for step in range(1, 41)]

    assert not read_window(log, TERMS, {}).notes


def test_an_evaluation_in_a_printed_step_counts_once() -> None:
    log = [StepSample(step, step_time_s=5.5 if step == 60 else 1.0) for step in range(10, 101, 10)]
    terms = Terms(warmup_steps=10, steps=100, global_batch=8)

    assert read_window(log, terms, {}, sampled=True).throughput.seconds == pytest.approx(94.5)
    assert read_window(log, terms, {}).throughput.seconds == pytest.approx(135.0)


def losses(
    *values: float | None, norms: tuple[float, ...] = (), skipped: tuple[int, ...] = ()
) -> list[StepSample]:
    return [
        StepSample(
            step,
            step_time_s=0.5,
            loss=loss,
            grad_norm=norms[step - 1] if norms else None,
            skipped=float(step in skipped),
        )
        for step, loss in enumerate(values, start=1)
    ]


def test_a_loss_that_is_no_longer_printed_is_no_number() -> None:
    with pytest.raises(DataError, match="expected a loss up to step 6, got none from step 4 on"):
        verify_training(losses(3.0, 2.9, 2.8, None, None, None), Terms(1, 6, 8))


def test_a_loss_that_is_printed_on_some_lines_may_be_missing_at_the_end() -> None:
    assert not verify_training(losses(3.0, None, None, 2.8, None, None), Terms(1, 6, 8))
    assert not verify_training(losses(3.0, None, None, None), Terms(1, 4, 8))


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_gradients_that_are_no_numbers_do_not_train(norm: float) -> None:
    log = losses(*[None] * 6, norms=(1.0, 1.0, 1.0, norm, norm, norm))

    with pytest.raises(
        DataError, match="expected finite gradients, got a norm of (nan|inf) from step 4 on"
    ):
        verify_training(log, Terms(1, 6, 8))


def test_an_overflow_that_the_loss_scaler_skipped_is_noted() -> None:
    log = losses(
        3.0, 2.9, 2.8, 2.7, 2.6, 2.5, norms=(1.0, 1.0, 1.0, 1.0, 1.0, math.inf), skipped=(6,)
    )

    notes = verify_training(log, Terms(1, 6, 8))
    assert notes[-1] == "the norm of the gradients is not finite in 1 of 5 lines of the window"


@pytest.mark.parametrize("line", ["dtype: float16", "half: True"])
def test_a_log_of_another_dtype_is_refused_by_any_of_its_names(line: str) -> None:
    facts = ("^dtype: (?P<dtype>.*)$", "^half: (?P<fp16>True|False)$")
    log = parse(f"{line}\n".encode(), LogGrammar((), facts=facts))

    verify_statements(log, {"dtype": "fp16", "fp16": True, "fp32": False})
    with pytest.raises(DataError, match=f"expected (dtype fp32|fp16 False), the log says .*{line}"):
        verify_statements(log, {"dtype": "fp32", "fp16": False, "fp32": True})


def test_a_window_is_longer_than_the_run_by_more_than_its_lines_are_rounded() -> None:
    # 36 steps of half a second are 18 s, more than 1.1 · 16 s = 17.6 s.
    clock = Clock(life_s=16.0), Sizes(1, 1)
    with pytest.raises(DataError, match=r"18\.0 s for the window of a run of 16\.0 s"):
        read_window(clocked(), TERMS, {"timestamp": 0.001}, clock=clock)
    assert read_window(clocked(), TERMS, {"timestamp": 1.0}, clock=clock).throughput.seconds == 18.0
