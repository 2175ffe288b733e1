"""From the words of orch tune to one cell and the knobs that it may turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.features.search.tune import allows_numerics, free_knobs, tune_request
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule
from tests.plan.mill_benches import FRAMEWORK, bench_of, cells_of, refusal


def tune(**words: Any) -> Request:
    return tune_request(
        "resnet50", **{"shape": "", "sets": [], "budget": "20m", "single": {}, **words}
    )


def test_a_tune_is_one_cell_run_once_within_its_budget_and_without_a_baseline() -> None:
    bench = bench_of(
        tune(shape="2n4g", sets=["seed=5"], single={"dtype": "fp16", "steps": 40}), seed=0
    )
    assert cells_of(bench) == ["mill 2n4g fp16"] and bench.schedule == Schedule(budget_s=1200.0)
    assert (bench.cells[0].steps, bench.cells[0].options["seed"]) == (40, 5)
    assert cells_of(bench_of(tune())) == ["mill 4n8g fp32"]
    assert (
        bench_of(tune(single={"container": "podman:localhost/pt"})).cells[0].container
        == "podman:localhost/pt"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"shape": "1n1g,2n1g"},
         "--shape: expected one shape, got 1n1g,2n1g. tune each shape by itself: good settings of one may not suit another"),
        ({"shape": "all"}, "--shape: expected shapes such as 1n1g,4n8g, got 'all'"),
        ({"sets": ["seed"]}, "--set: expected key=value, got 'seed'"),
        ({"sets": ["seed=1,2"]},
         "--set seed: expected one value, got 1,2. put quotes around a value that contains a comma"),
        ({"budget": "soon"}, "--budget: expected a time such as 90s, 30m, 1h30m or 90 (seconds), got 'soon'"),
    ],
)  # fmt: skip
def test_a_tune_that_cannot_be_is_refused_with_its_option(
    words: dict[str, Any], message: str
) -> None:
    assert refusal(lambda: bench_of(tune(**words))) == message


def test_a_knob_that_an_option_fixes_is_not_turned() -> None:
    assert [knob.name for knob in free_knobs(FRAMEWORK, tune())] == ["NCCL_ALGO", "layout", "seed"]
    assert [knob.name for knob in free_knobs(FRAMEWORK, tune(sets=["seed=5"]))] == [
        "NCCL_ALGO",
        "layout",
    ]
    message = (
        "--framework: mill has no parameters to tune. list them under tunes: in its framework.yaml"
    )
    assert refusal(lambda: free_knobs(replace(FRAMEWORK, tunes=()), tune())) == message


def test_one_word_lets_a_tune_change_the_computed_numbers() -> None:
    assert allows_numerics("numerics") and not allows_numerics("")
    assert refusal(lambda: allows_numerics("all")) == "--allow: expected numerics, got 'all'"
