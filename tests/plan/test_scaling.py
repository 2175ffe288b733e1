"""Weak and strong scaling: what a rank computes in each shape, and the shape that speedups are
over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.plan.baselines import baseline_of, is_baseline
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import FrameworkFolder, read_folder
from orchestrator.plan.planning import plan_bench
from orchestrator.plan.request import request_of
from orchestrator.plan.spec import RunSpec
from tests.support.mill import MILL
from tests.support.own_folders import LANGUAGE_MODEL, folder_of

HOSTS = [Host(f"node{n}", f"10.11.0.{n + 1}", gpus=8) for n in range(1, 5)]
IMAGES = FrameworkFolder(MILL, {"launch.sh.j2": ""}, {"rank_wrapper.py": b""})


@pytest.fixture
def tokens(tmp_path: Path) -> FrameworkFolder:
    return read_folder(folder_of(tmp_path / "lm", LANGUAGE_MODEL))


def bench(folder: FrameworkFolder, model: str, **words: Any) -> Bench:
    single = words.pop("single", {})
    return plan_bench(request_of(model, **single, **words), [folder], HOSTS, bench_id="b1", seed=0)


def by_shape(cells: tuple[RunSpec, ...]) -> dict[str, RunSpec]:
    return {spec.shape: spec for spec in cells}


def test_with_a_global_batch_the_batch_size_follows_from_the_shape() -> None:
    cells = by_shape(
        bench(IMAGES, "resnet50", shape="1n8g,4n8g", single={"global_batch": 256}).cells
    )
    assert {shape: spec.batch_size for shape, spec in cells.items()} == {
        "1n1g": 256,
        "1n8g": 32,
        "4n8g": 8,
    }
    assert {spec.global_batch for spec in cells.values()} == {256}
    assert {spec.follows for spec in cells.values()} == {"batch_size"}


def test_forward_passes_of_a_language_model_stay_as_large_and_become_fewer(
    tokens: FrameworkFolder,
) -> None:
    sets = ["tensor_parallel=2"]
    cells = by_shape(
        bench(tokens, "nine", shape="1n8g,4n8g", options=sets, single={"global_batch": 160}).cells
    )
    counts = {
        shape: (spec.batch_size, spec.step.micro_batches, spec.options["accumulation"])
        for shape, spec in cells.items()
    }
    assert counts == {"1n2g": (5, 32, 32), "1n8g": (5, 8, 8), "4n8g": (5, 2, 2)}
    assert {spec.global_batch for spec in cells.values()} == {160}


@pytest.mark.parametrize(
    ("single", "words", "said"),
    [
        (
            {"global_batch": 100},
            {"shape": "1n8g"},
            "--global-batch: expected a multiple of 8, for 8 copies of the model",
        ),
        (
            {"global_batch": 4},
            {"shape": "1n8g"},
            "expected a multiple of 8, for 8 copies of the model, got 4",
        ),
        (
            {"global_batch": 0},
            {"shape": "1n8g"},
            "--global-batch: expected a whole number ≥ 1, got 0",
        ),
        (
            {"global_batch": 64},
            {"shape": "1n8g", "batch_size": "8"},
            "expected no --batch-size, which follows from the global batch",
        ),
    ],
)
def test_a_global_batch_that_cannot_be_is_refused(
    single: dict[str, Any], words: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        bench(IMAGES, "resnet50", single=single, **words)
    assert said in str(caught.value)


def test_a_batch_size_that_runs_find_need_not_divide_a_global_batch(tmp_path: Path) -> None:
    searching = LANGUAGE_MODEL.replace(
        "  tokens: seq_len", "  tokens: seq_len\n  batch_size_up_to: largest"
    )
    searching = searching.replace(
        "options:\n", "options:\n  largest: {type: int, default: 0, minimum: 0, help: search}\n"
    )
    folder = read_folder(folder_of(tmp_path / "lm", searching))
    assert (
        bench(folder, "nine", shape="1n8g", single={"global_batch": 40})
        .cells[-1]
        .step.batch_size_up_to
        == 0
    )
    with pytest.raises(ConfigError) as caught:
        bench(folder, "nine", shape="1n8g", options=["largest=64"], single={"global_batch": 40})
    assert (
        "--global-batch: expected no --set largest: a batch size that a run searches for may not divide the global batch"
        in str(caught.value)
    )


def test_a_shape_that_cannot_divide_the_global_batch_is_left_out_and_named() -> None:
    made = bench(IMAGES, "resnet50", shape="1n8g,3n8g", single={"global_batch": 256})
    assert [spec.shape for spec in made.cells] == ["1n1g", "1n8g"]
    assert "expected a multiple of 24" in str(made.skipped[0].reason)


def test_speedups_are_over_the_requested_shape(tokens: FrameworkFolder) -> None:
    cells = bench(tokens, "nine", nodes="2,4", gpus="8", baseline_shape="1n8g").cells
    assert [(spec.shape, is_baseline(spec)) for spec in cells] == [
        ("1n8g", True),
        ("2n8g", False),
        ("4n8g", False),
    ]
    # a shape that is requested too is measured once
    cells = bench(tokens, "nine", nodes="1,2", gpus="8", baseline_shape="1n8g").cells
    assert [(spec.shape, is_baseline(spec)) for spec in cells] == [("1n8g", True), ("2n8g", False)]


def test_without_a_request_it_is_one_copy_of_the_model(tokens: FrameworkFolder) -> None:
    cells = bench(
        tokens, "nine", shape="1n8g", options=["tensor_parallel=2", "pipeline_parallel=2"]
    ).cells
    assert [spec.shape for spec in cells] == ["1n4g", "1n8g"]
    assert all(spec.global_batch == 5 * spec.world_size // 4 for spec in cells)
    # one copy that is requested too is measured once, and is the baseline; the same shape without
    # such a copy is none
    cells = bench(tokens, "nine", shape="1n2g,1n8g", options=["tensor_parallel=1,2"]).cells
    own = {(spec.shape, spec.options["tensor_parallel"]): is_baseline(spec) for spec in cells}
    assert own == {
        ("1n1g", 1): True,
        ("1n2g", 1): False,
        ("1n8g", 1): False,
        ("1n2g", 2): True,
        ("1n8g", 2): False,
    }


def test_a_copy_that_needs_more_than_a_node_has_no_baseline_and_the_reason_is_said(
    tokens: FrameworkFolder,
) -> None:
    made = bench(tokens, "nine", shape="2n8g", options=["tensor_parallel=16"])
    assert [spec.shape for spec in made.cells] == ["2n8g"]
    assert made.skipped and "1n16g" in str(made.skipped[0])
    (spec,) = made.cells
    assert baseline_of(spec, (2, 8)).global_batch == spec.global_batch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"baseline_shape": "1n8g,2n8g"}, "--baseline-shape: expected one shape such as 1n8g"),
        (
            {"baseline_shape": "1n0g"},
            "--baseline-shape: expected 1 node or more and 1 rank or more on each, got '1n0g'",
        ),
        (
            {"baseline_shape": "eight"},
            "--baseline-shape: expected shapes such as 1n1g,4n8g, got 'eight'",
        ),
        (
            {"baseline_shape": "9n8g"},
            "--baseline-shape: expected a shape that a configuration can have: --nodes: expected 9 hosts",
        ),
        (
            {"baseline_shape": "1n1g", "options": ["tensor_parallel=2"]},
            "--baseline-shape: expected a shape that a configuration can have: expected a multiple of the 2 ranks",
        ),
        (
            {"baseline_shape": "1n8g", "baseline": False},
            "expected either --baseline-shape or --no-baseline, got both",
        ),
    ],
)
def test_a_baseline_that_cannot_be_is_refused(
    tokens: FrameworkFolder, words: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        bench(tokens, "nine", shape="2n8g", **words)
    assert said in str(caught.value)
