"""The trainer of language models: every way to spread a model trains as one device does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.strictjson import strict_json
from tests.remote.lm_arguments import MODELS, PROGRAM, SPREAD, SPREAD_UNTIED, STEPS, common
from tests.support.ranks import OPTIMIZERS, ranks
from tests.support.trainers import DONE_KEYS, closing, rank_lines, samples

pytestmark = pytest.mark.usefixtures("torch_of_trainers")

Run = tuple[list[float], dict[str, Any]]
"""The losses of a run, and its closing facts."""
IMPORTS = (
    *OPTIMIZERS,
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.utils.checkpoint",
)
"""What ranks need besides, imported once for all of them."""
FP32_ERROR = 1e-5
"""Relative error of losses and norms after some steps in fp32: sums in another order, 24 bits each,
a few hundred of them.
"""


def trained(
    model: str, arguments: Sequence[str], folder: Path, nproc: int, dtype: str = "fp32"
) -> tuple[list[float], dict[str, Any]]:
    """Train; return the losses of all steps, and the facts of the run."""
    folder.mkdir(exist_ok=True)
    texts = ranks(PROGRAM, [*common(model, dtype), *arguments], folder, nproc, imports=IMPORTS)
    assert [rank_lines("pytorch_lm", text) for text in texts] == [
        [(rank, nproc)] for rank in range(nproc)
    ]
    steps = samples("pytorch_lm", texts[0])
    assert [step["step"] for step in steps] == list(range(STEPS + 1))
    assert not any(samples("pytorch_lm", text) for text in texts[1:])
    facts = closing("pytorch_lm", texts[0])
    assert {step["samples"] for step in steps[1:]} == {facts["global_batch"]}
    return [step["loss"] for step in steps[1:]], facts


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One device with four sequences, for each model and type once."""

    @cache
    def result(model: str, dtype: str = "fp32", weights: str = "fp32") -> Run:
        folder = tmp_path_factory.mktemp(model)
        return trained(model, ["--batch-size", "4", "--weights", weights], folder, 1, dtype)

    return result


@pytest.mark.parametrize("model", ["gpt-tiny", "llama-tiny", "moe-tiny"])
def test_the_loss_falls_on_tokens_that_repeat(alone: Any, model: str) -> None:
    losses, facts = alone(model)
    # ln(vocabulary) at first, less for each of the two batches whenever it comes again
    assert losses[0] == pytest.approx(6.25, abs=0.15)
    assert losses[2] < losses[0] - 0.1 and losses[4] < losses[2] - 0.1
    assert losses[3] < losses[1] - 0.1 and losses[5] < losses[3] - 0.1
    assert facts["parallel"] == "none" and facts["global_batch"] == 4


def test_the_last_line_of_a_run_that_did_not_train_is_strict_json(tmp_path: Path) -> None:
    (text,) = ranks(
        PROGRAM, [*common("gpt-tiny"), "--learning-rate", "1e30"], tmp_path, 1, imports=IMPORTS
    )
    assert f"orch step={STEPS} " in text and " loss=nan " in text
    (line,) = [line for line in text.splitlines() if line.startswith("orch done ")]
    assert strict_json(line.removeprefix("orch done "), "closing line")["gradient_norm"] is None


def test_the_last_line_is_complete(alone: Any) -> None:
    _, facts = alone("llama-tiny")
    assert set(facts) >= DONE_KEYS
    assert facts["parameters"] == MODELS["llama-tiny"]["parameters"]
    assert facts["memory_bytes"] == [facts["max_memory_bytes"]]
    assert facts["gradient_bytes"] == 4 * facts["parameters"]
    assert (facts["seq_len"], facts["kv_heads"], facts["gated"], facts["compile"]) == (
        32,
        2,
        True,
        False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--batch-size", "2", "--accumulation", "2"],
        ["--batch-size", "1", "--accumulation", "4", "--checkpointing", "full"],
        ["--batch-size", "4", "--checkpointing", "selective"],
        ["--batch-size", "4", "--loss-chunks", "3"],
        ["--batch-size", "4", "--attention", "math"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("model", ["gpt-tiny", "llama-tiny"])
def test_the_same_tokens_give_the_same_losses(
    alone: Any, model: str, arguments: list[str], tmp_path: Path
) -> None:
    same(alone(model), trained(model, arguments, tmp_path, 1))


def same(
    expected: tuple[list[float], dict[str, Any]],
    got: tuple[list[float], dict[str, Any]],
    error: float = FP32_ERROR,
) -> None:
    """Losses and the norm of the last gradients agree: AdamW alone would hide gradients of a wrong
    size.
    """
    assert got[0] == pytest.approx(expected[0], rel=error)
    assert got[1]["gradient_norm"] == pytest.approx(expected[1]["gradient_norm"], rel=10 * error)
    assert got[1]["global_batch"] == expected[1]["global_batch"]


def test_compiled_layers_train_as_they_do_without(alone: Any, tmp_path: Path) -> None:
    words = ["--batch-size", "4", "--compile", "true", "--compile-split", "blocks"]
    got = trained("llama-tiny", words, tmp_path, 1)
    same(alone("llama-tiny"), got)
    assert got[1]["optimizer"] == "adamw compiled" and got[1]["compile_split"] == "blocks"


def test_compiled_as_a_whole_with_layers_in_bf16_it_trains_like_fp32_within_its_error(
    alone: Any, tmp_path: Path
) -> None:
    losses, facts = trained(
        "gpt-tiny", ["--batch-size", "4", "--compile", "true"], tmp_path, 1, "bf16"
    )
    assert losses == pytest.approx(alone("gpt-tiny")[0], rel=HALF_ERRORS["bf16"])
    assert facts["gradient_norm"] == pytest.approx(alone("gpt-tiny")[1]["gradient_norm"], rel=2**-6)
    assert facts["optimizer"] == "adamw compiled" and facts["compile_split"] == "whole"


HALF_ERRORS = {"bf16": 2**-9, "fp16": 2**-12}
"""Half a unit in the last place of a product's result; those of a loss are averaged over 128
tokens.
"""


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_types_train_like_fp32_within_their_error(alone: Any, dtype: str) -> None:
    losses, facts = alone("gpt-tiny", dtype)
    assert losses == pytest.approx(alone("gpt-tiny")[0], rel=HALF_ERRORS[dtype])
    assert losses != alone("gpt-tiny")[0]
    assert facts["loss_scale"] == {"bf16": None, "fp16": 4096.0}[dtype]


def test_bf16_weights_train_like_fp32_within_their_error(alone: Any) -> None:
    losses, facts = alone("gpt-tiny", "bf16", "bf16")
    assert losses == pytest.approx(alone("gpt-tiny")[0], rel=2**-8)
    assert facts["gradient_bytes"] == 2 * facts["parameters"]


def test_a_loss_scale_that_overflows_is_halved_and_its_steps_change_nothing(tmp_path: Path) -> None:
    text = ranks(
        PROGRAM,
        [*common("gpt-tiny", "fp16"), "--batch-size", "4", "--loss-scale", str(2.0**20)],
        tmp_path,
        1,
        imports=IMPORTS,
    )[0]
    steps = samples("pytorch_lm", text)[1:]
    skipped = [int(step["skipped"]) for step in steps]
    assert skipped[0] == 1 and 0 in skipped
    # the third step has the tokens of the first, and the weights too if none of the two was an
    # update
    assert (steps[2]["loss"] == steps[0]["loss"]) is (skipped[:2] == [1, 1])
    assert closing("pytorch_lm", text)["loss_scale"] == 2.0 ** (20 - sum(skipped))


OF_LLAMA = (*SPREAD_UNTIED, "fsdp")
"""What is different where keys are grouped, positions are rotations and the output layer is a table
of its own.
"""
OUTER, LAYER = (
    4 * (512 * 64 + 64 * 64 + 2 * 64),
    4 * (12 * 64 * 64 + 3 * 64 + 64 + 256 + 64 + 4 * 64),
)
"""Bytes of gpt-tiny: table, positions and last norm; matrices, biases and norms of a layer."""
NORM, LOSS_OF_TWO, LOSS_OF_FOUR = (
    ["allreduce", 4, 2, 1],
    ["allreduce", 4, 2, 1],
    ["allreduce", 4, 4, 1],
)
GATHERED_ONCE = [["all_gather", size, 2, 1] for size in (OUTER, LAYER, LAYER)]
GATHERED = [*GATHERED_ONCE, ["all_gather", LAYER, 2, 1]]
"""Everything for the forward pass, and the first layer again for the backward pass; the last one is
kept for it.
"""
SCATTERED = [["reduce_scatter", size, 2, 1] for size in (LAYER, LAYER, OUTER)]
SENT: dict[str, list[list[Any]]] = {
    "ddp": [["allreduce", OUTER + 2 * LAYER, 2, 1], LOSS_OF_TWO],
    "ddp with accumulation": [["allreduce", OUTER + 2 * LAYER, 2, 1], LOSS_OF_TWO],
    "fsdp": [*GATHERED, *SCATTERED, NORM, LOSS_OF_TWO],
    "fsdp without resharding": [*GATHERED_ONCE, *SCATTERED, NORM, LOSS_OF_TWO],
    "fsdp with accumulation": [*GATHERED, *GATHERED, *SCATTERED, NORM, LOSS_OF_TWO],
    "replicas of shards": [
        *GATHERED,
        *(row for whole in SCATTERED for row in (whole, ["allreduce", whole[1] // 2, 2, 2])),
        *(NORM, LOSS_OF_FOUR),
    ],
}
"""What a step of gpt-tiny sends in fp32: collective, bytes, number of ranks, distance from one to
the next.
"""
TABLE, LLAMA_LAYER, LLAMA_OUTPUT = (
    4 * 512 * 64,
    4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 192 * 64 + 2 * 64),
    4 * (512 * 64 + 64),
)
LOOKED_UP = [["all_gather", 8 * 4 * 32, 2, 1], ["reduce_scatter", 4 * 4 * 32 * 64, 2, 1]]
GRADIENTS_OF_ROWS = ["all_gather", 4 * 4 * 32 * 64, 2, 1]
OF_LAYERS = [
    *(["all_gather", size, 2, 1] for size in (LLAMA_LAYER, LLAMA_LAYER, LLAMA_OUTPUT)),
    ["reduce_scatter", LLAMA_OUTPUT, 2, 1],
    ["all_gather", LLAMA_LAYER, 2, 1],
    *(["reduce_scatter", size, 2, 1] for size in (LLAMA_LAYER, LLAMA_LAYER)),
]
SENT_OF_LLAMA = {
    "fsdp": [*LOOKED_UP, *OF_LAYERS, GRADIENTS_OF_ROWS, NORM, LOSS_OF_TWO],
    "fsdp with a gathered table": [
        ["all_gather", TABLE, 2, 1],
        *OF_LAYERS,
        ["reduce_scatter", TABLE, 2, 1],
        *(NORM, LOSS_OF_TWO),
    ],
}
"""The same of llama-tiny, whose output layer is gathered, and its gradient reduced, while layers
compute.
"""


@pytest.mark.parametrize(
    ("model", "how"),
    [*(("gpt-tiny", how) for how in SPREAD), *(("llama-tiny", how) for how in OF_LLAMA)],
)
def test_a_spread_model_trains_as_on_one_device(
    alone: Any, model: str, how: str, tmp_path: Path
) -> None:
    nproc, arguments = {**SPREAD, **SPREAD_UNTIED}[how]
    got = trained(model, arguments, tmp_path, nproc)
    same(alone(model), got)
    assert len(got[1]["memory_bytes"]) == nproc
    assert got[1]["parameters"] == MODELS[model]["parameters"]
    if got[1]["parallel"] == "fsdp" and (how == "fsdp" or how in SPREAD_UNTIED):
        assert got[1]["embedding"] == (
            "gathered" if model == "gpt-tiny" or "gathered" in how else "row-wise"
        )
    sent = SENT if model == "gpt-tiny" else SENT_OF_LLAMA
    if how in sent:
        sends(got[1], sent[how])


def sends(facts: dict[str, Any], expected: list[list[Any]]) -> None:
    """A step makes these collectives, at moments of it."""
    rows, steps_s = facts["collectives"], facts["solo_step_s"]
    assert [row[:4] for row in rows] == expected
    moments = [moment for row in rows for moment in row[4:]]
    assert moments == sorted(moments) and moments[0] > 0 and moments[-1] < steps_s[0]
    # Only DDP reduces while something is computed; on a CPU, FSDP waits for each collective.
    assert all(
        (time_s is not None) == (facts["parallel"] == "ddp") for time_s in facts["beside_reduce_s"]
    )


def test_a_mixture_of_experts_in_shards_trains_as_on_one_device(alone: Any, tmp_path: Path) -> None:
    same(
        alone("moe-tiny"),
        trained("moe-tiny", ["--batch-size", "2", "--parallel", "fsdp"], tmp_path, 2),
    )


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_types_in_parallel_train_like_fp32_within_their_error(
    alone: Any, dtype: str, parallel: str, tmp_path: Path
) -> None:
    losses, _ = trained(
        "llama-tiny", ["--batch-size", "2", "--parallel", parallel], tmp_path, 2, dtype
    )
    assert losses == pytest.approx(alone("llama-tiny")[0], rel=HALF_ERRORS[dtype])


def test_gradients_of_rows_are_added_up_in_fp32_whatever_the_weights(tmp_path: Path) -> None:
    tokens = [
        "--vocab",
        "3",
        "--seq-len",
        "512",
        "--learning-rate",
        "0",
        "--weights",
        "bf16",
    ]  # hundreds of tokens for a row
    _, alone = trained("llama-tiny", [*tokens, "--batch-size", "2"], tmp_path / "alone", 1, "bf16")
    arguments = [*tokens, "--batch-size", "1", "--parallel", "fsdp", "--embedding", "row-wise"]
    _, spread = trained("llama-tiny", arguments, tmp_path / "spread", 2, "bf16")
    assert spread["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=0.005)
