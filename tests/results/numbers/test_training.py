"""A window whose steps did not train has no number where that is certain, and a note where it is
likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from orchestrator.errors import DataError
from orchestrator.logs import RankAggregate, StepSample
from orchestrator.results.numbers.throughput import Terms
from orchestrator.results.numbers.training import verify_training

TERMS = Terms(warmup_steps=2, steps=12, global_batch=64)
SKIPPED = "the optimizer skipped 3 of 10 steps of the window after an overflow"


def window(
    losses: Mapping[int, float] | None = None, skipped: Mapping[int, float] | None = None
) -> list[StepSample]:
    """Return the lines of a training whose loss falls, except in the given steps; as in real logs,
    step 0 has none.
    """
    values = {step: 7.0 - 0.1 * step if step else math.nan for step in range(13)} | dict(
        losses or {}
    )
    return [
        StepSample(step, loss=loss, skipped=(skipped or {}).get(step, 0.0))
        for step, loss in values.items()
    ]


@pytest.mark.parametrize(
    ("samples", "notes"),
    [
        (window(), []),
        (window({1: math.nan, 2: math.inf}, {1: 1.0, 2: 1.0}), []),  # the warm-up may find the loss scale
        ([StepSample(step, step_time_s=0.5) for step in range(13)], []),
        (window({5: math.nan, 6: math.inf}), ["the loss is not finite in 2 of 10 lines of the window"]),
        (window(dict.fromkeys(range(3, 13), 6.9)),
         ["the loss is 6.9 in all 10 lines of the window: the program may not train"]),
        (window(dict.fromkeys(range(3, 12), 6.9)), []),
        (window(skipped=dict.fromkeys((3, 4, 9), 1.0)),
         [f"{SKIPPED}; a larger batch size, a lower loss scale or more --warmup-steps may help"]),
        (window(skipped={5: 3.0}), [f"{SKIPPED}; a larger batch size, a lower loss scale or more --warmup-steps may help"]),
    ],
)  # fmt: skip
def test_signs_that_a_window_did_not_train_are_noted(
    samples: list[StepSample], notes: list[str]
) -> None:
    assert verify_training(samples, TERMS) == notes


def test_few_lines_of_one_loss_may_be_rounded() -> None:
    assert verify_training([StepSample(step, loss=6.9) for step in (4, 8, 12)], TERMS) == []


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (window(dict.fromkeys(range(13), math.nan)), "expected a finite loss, got nan in every step of the window"),
        (window({step: math.inf for step in range(9, 13)}), "expected a finite loss, got inf from step 9 on"),
        (window({4: math.nan} | {step: math.nan for step in range(9, 13)}), "expected a finite loss, got nan from step 9 on"),
        (window(skipped=dict.fromkeys(range(1, 13), 1.0)),
         "expected steps that train, the optimizer skipped all 10 steps of the window"),
    ],
)  # fmt: skip
def test_a_window_that_certainly_did_not_train_is_refused(
    samples: list[StepSample], message: str
) -> None:
    with pytest.raises(DataError, match=message) as refused:
        verify_training(samples, TERMS)
    assert refused.value.kind == "result_invalid"


def test_one_rank_with_a_loss_of_nan_spoils_the_loss_of_all() -> None:
    aggregate, steps = RankAggregate(), list(range(3, 13))
    for last in (1.0, math.nan):
        aggregate.add(
            steps,
            {
                "step_time_s": [0.5] * 10,
                "loss": [1e-20, *(2.0 / step for step in steps[1:-1]), last],
            },
        )
    with pytest.raises(DataError, match="got nan from step 12 on"):
        verify_training(aggregate.samples(), TERMS)
    finite = RankAggregate()
    finite.add(steps, {"step_time_s": [0.5] * 10, "loss": [1e-20] * 9 + [2e-20]})
    assert (
        verify_training(finite.samples(), TERMS) == []
    )  # a loss may be smaller than any time or rate
