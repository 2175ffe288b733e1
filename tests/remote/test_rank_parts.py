"""The blocks of a rank's steps, that trainers print them with what they know, and the traces of
their steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from orchestrator.features.profile.trace import parse_trace
from tests.remote.simulated_ranks import all_ended
from tests.support.ranks import OPTIMIZERS, ranks
from tests.support.trainers import FLAT, grammar, module, torchrun

RANK_PARTS = module(FLAT / "rank_parts.py")


def parts(text: str) -> dict[str, Any]:
    """The facts of the only line with parts in a log."""
    (line,) = (line for line in text.splitlines() if line.startswith("orch parts "))
    facts: dict[str, Any] = json.loads(line.removeprefix("orch parts "))
    return facts


@pytest.mark.parametrize(
    ("steps", "blocks"), [(1, 1), (5, 5), (16, 16), (17, 16), (100, 16), (1000, 16)]
)
def test_every_step_of_the_window_is_in_one_block_and_no_other_step_is(
    steps: int, blocks: int
) -> None:
    window = RANK_PARTS.RankParts(21, 20 + steps)
    for number in range(1, 30 + steps):
        inside = 21 <= number <= 20 + steps
        window.add(
            number, 1.0 if inside else 1e9, 0.25 if inside else 1e9, 0.5 if inside else None, 0.375
        )
    facts = json.loads(window.line(3).removeprefix("parts "))
    assert facts == {
        **{"rank": 3, "first_step": 21, "last_step": 20 + steps},
        **{"step_s": [1.0] * blocks, "input_s": [0.25] * blocks, "compute_s": [0.5] * blocks},
        "compute_cpu_s": [0.375] * blocks,
    }


def test_a_block_has_the_medians_of_its_steps_so_that_one_stall_does_not_show() -> None:
    window = RANK_PARTS.RankParts(1, 48)
    for number in range(1, 49):
        window.add(number, 100.0 if number % 3 == 0 else 2.0, 0.0, 1.0)
    assert window.medians == [(2.0, 0.0, 1.0, None)] * 16


def test_computing_that_is_unknown_in_one_step_is_unknown() -> None:
    window = RANK_PARTS.RankParts(1, 4)
    for number in range(1, 5):
        window.add(number, 1.0, 0.0, None if number == 2 else 0.5)
    assert json.loads(window.line(0).removeprefix("parts "))["compute_s"] == []


def test_the_share_of_steps_in_which_the_gpu_waits_is_that_of_the_window_and_known_of_all_steps_or_not_at_all() -> (
    None
):
    window, unknown = RANK_PARTS.RankParts(3, 6), RANK_PARTS.RankParts(3, 6)
    for number in range(1, 7):
        window.add(number, 1.0, 0.0, 0.5, None, number != 4)
        unknown.add(number, 1.0, 0.0, 0.5, None, None if number == 4 else True)
    assert json.loads(window.line(0).removeprefix("parts "))["gpu_waits"] == 0.75
    assert "gpu_waits" not in unknown.line(0)


def test_a_slowed_simulated_rank_computes_longer_and_the_other_waits_for_it() -> None:
    arguments = [
        "--steps",
        "12",
        "--warmup-steps",
        "2",
        "--compute-ms",
        "40",
        "--gradient-mb",
        "0.01",
    ]
    normal, slow = (
        parts(rank.out) for rank in all_ended(2, [*arguments, "--slow-rank", "1", "--slow-percent", "50"])
    )  # fmt: skip
    assert (normal["rank"], slow["rank"], slow["first_step"], slow["last_step"]) == (0, 1, 3, 12)
    assert min(slow["compute_s"]) >= 0.06 and min(normal["compute_s"]) < 0.06
    assert normal["compute_cpu_s"] == []  # it sleeps
    # A rank that was woken late after one step has a shorter next one.
    assert fmean(normal["step_s"]) >= 0.058


SMALL = [
    "--model",
    "gpt-tiny",
    "--layers",
    "2",
    "--width",
    "64",
    "--heads",
    "2",
    "--mlp",
    "128",
    "--vocab",
    "256",
]
SMALL += [
    "--device",
    "cpu",
    "--dtype",
    "fp32",
    "--seq-len",
    "16",
    "--solo-steps",
    "0",
    "--steps",
    "6",
    "--warmup-steps",
    "2",
]
LAYOUTS = {
    "ddp": ([], True),
    "ddp with accumulation": (["--accumulation", "2"], True),
    "fsdp": (["--parallel", "fsdp"], False),
}


@pytest.mark.parametrize(("arguments", "is_known"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_language_model_says_how_long_it_computes_where_its_forward_pass_waits_for_nobody(
    arguments: list[str], is_known: bool, tmp_path: Any
) -> None:
    pytest.importorskip("torch")
    words = [*SMALL, "--batch-size", "2", *arguments]
    for rank, text in enumerate(
        ranks(FLAT / "train_lm.py", words, tmp_path, 2, imports=OPTIMIZERS)
    ):
        facts = parts(text)
        assert (facts["rank"], facts["first_step"], facts["last_step"], len(facts["step_s"])) == (
            rank,
            3,
            6,
            4,
        )
        assert len(facts["compute_s"]) == len(facts["compute_cpu_s"]) == (4 if is_known else 0)
        assert all(
            0 < own < step for own, step in zip(facts["compute_s"], facts["step_s"], strict=False)
        )


@pytest.mark.parametrize("framework", ["pytorch", "pytorch_lm", "simulated"])
def test_folders_whose_trainers_print_parts_read_them(framework: str) -> None:
    assert grammar(framework)["rank_parts"] == r"^orch parts (?P<json>\{.*\})$"


def test_a_trace_of_the_chosen_steps_and_rank_is_one_that_the_analysis_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)  # as in a run's directory
    torchrun(
        [*SMALL, "--batch-size", "2"],
        tmp_path,
        2,
        "train_lm.py",
        {"ORCH_PROFILE": "steps=3 ranks=1"},
    )
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["trace-rank-1.json.gz"]
    trace = parse_trace((tmp_path / "logs" / "trace-rank-1.json.gz").read_bytes(), 1, "node1").trace
    assert (trace.steps, trace.of_device) == (3, False)
    assert 0 < trace.exposed <= trace.communication < 1 and 0 <= trace.idle < 1
    assert any(each.name.startswith("aten::") for each in trace.top)
