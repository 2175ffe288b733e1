"""The trainer of language models: what it counts, and that every way to spread a model trains as one device does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ranks import ranks
from tests.support.trainers import DONE_KEYS, ROOT, closing, flags, needs, rank_lines, samples

PROGRAM = ROOT / "remote" / "train_lm.py"
FOLDER = ROOT / "templates" / "pytorch_lm"
MODELS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "framework.yaml").read_text())["models"]
STEPS = 6
Run = tuple[list[float], dict[str, Any]]
"""The losses of a run, and its closing facts."""
IMPORTS = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.utils.checkpoint",
)
"""What ranks need besides, imported once for all of them."""
FP32_ERROR = 1e-5
"""Relative error of losses and norms after some steps in fp32: sums in another order, 24 bits each, a few hundred of them."""


@pytest.fixture(autouse=True)
def _torch() -> None:
    needs("torch")


def shape(model: str) -> list[str]:
    """The flags of a model, as the launch script writes them."""
    own = MODELS[model]
    values = {
        **own["transformer"],
        **{name: own[name] for name in ("norm", "positions", "max_positions", "rope_theta", "bias") if name in own},
    }
    words = {f"--{name.replace('_', '-')}": str(value).lower() for name, value in values.items()}
    return ["--model", model, *(word for pair in words.items() for word in pair)]


def common(model: str, dtype: str = "fp32") -> list[str]:
    """Arguments of every run."""
    return [
        *shape(model),
        *("--device", "cpu", "--seq-len", "32", "--steps", str(STEPS), "--dtype", dtype, "--learning-rate", "0.001"),
    ]


def trained(
    model: str, arguments: Sequence[str], folder: Path, nproc: int, dtype: str = "fp32"
) -> tuple[list[float], dict[str, Any]]:
    """Train; return the losses of all steps, and the facts of the run."""
    folder.mkdir(exist_ok=True)
    texts = ranks(PROGRAM, [*common(model, dtype), *arguments], folder, nproc, imports=IMPORTS)
    assert [rank_lines("pytorch_lm", text) for text in texts] == [[(rank, nproc)] for rank in range(nproc)]
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


# --- one device -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gpt-tiny", "llama-tiny", "moe-tiny"])
def test_the_loss_falls_on_tokens_that_repeat(alone: Any, model: str) -> None:
    losses, facts = alone(model)
    # ln(vocabulary) at first, less for each of the two batches whenever it comes again
    assert losses[0] == pytest.approx(6.25, abs=0.15)
    assert losses[2] < losses[0] - 0.1 and losses[4] < losses[2] - 0.1
    assert losses[3] < losses[1] - 0.1 and losses[5] < losses[3] - 0.1
    assert facts["parallel"] == "none" and facts["global_batch"] == 4


def test_the_last_line_is_complete(alone: Any) -> None:
    _, facts = alone("llama-tiny")
    assert set(facts) >= DONE_KEYS
    assert facts["parameters"] == MODELS["llama-tiny"]["parameters"]
    assert facts["memory_bytes"] == [facts["max_memory_bytes"]]
    assert facts["gradient_bytes"] == 4 * facts["parameters"]
    assert (facts["seq_len"], facts["kv_heads"], facts["gated"], facts["compile"]) == (32, 2, True, False)


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
def test_the_same_tokens_give_the_same_losses(alone: Any, model: str, arguments: list[str], tmp_path: Path) -> None:
    same(alone(model), trained(model, arguments, tmp_path, 1))


def same(
    expected: tuple[list[float], dict[str, Any]], got: tuple[list[float], dict[str, Any]], error: float = FP32_ERROR
) -> None:
    """Losses and the norm of the last gradients agree: AdamW alone would hide gradients of a wrong size."""
    assert got[0] == pytest.approx(expected[0], rel=error)
    assert got[1]["gradient_norm"] == pytest.approx(expected[1]["gradient_norm"], rel=10 * error)
    assert got[1]["global_batch"] == expected[1]["global_batch"]


@pytest.mark.parametrize("model", ["gpt-tiny", "llama-tiny"])
def test_compiled_layers_train_as_they_do_without(alone: Any, model: str, tmp_path: Path) -> None:
    got = trained(model, ["--batch-size", "4", "--compile", "true", "--compile-split", "blocks"], tmp_path, 1)
    same(alone(model), got)
    assert got[1]["optimizer"] == "adamw compiled" and got[1]["compile_split"] == "blocks"


def test_compiled_as_a_whole_with_layers_in_bf16_it_trains_like_fp32_within_its_error(alone: Any, tmp_path: Path) -> None:
    losses, facts = trained("gpt-tiny", ["--batch-size", "4", "--compile", "true"], tmp_path, 1, "bf16")
    assert losses == pytest.approx(alone("gpt-tiny")[0], rel=HALF_ERRORS["bf16"])
    assert facts["gradient_norm"] == pytest.approx(alone("gpt-tiny")[1]["gradient_norm"], rel=2**-6)
    assert facts["optimizer"] == "adamw compiled" and facts["compile_split"] == "whole"


HALF_ERRORS = {"bf16": 2**-9, "fp16": 2**-12}
"""Half a unit in the last place of a product's result; those of a loss are averaged over 128 tokens."""


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
    text = ranks(PROGRAM, [*common("gpt-tiny", "fp16"), "--batch-size", "4", "--loss-scale", str(2.0**20)], tmp_path, 1)[0]
    steps = samples("pytorch_lm", text)[1:]
    skipped = [int(step["skipped"]) for step in steps]
    assert skipped[0] == 1 and 0 in skipped
    # the third step has the tokens of the first, and the weights too if none of the two was an update
    assert (steps[2]["loss"] == steps[0]["loss"]) is (skipped[:2] == [1, 1])
    assert closing("pytorch_lm", text)["loss_scale"] == 2.0 ** (20 - sum(skipped))


# --- several ranks --------------------------------------------------------------------------------------------------------

SPREAD = {
    "ddp": (2, ["--batch-size", "2", "--parallel", "ddp"]),
    "ddp with accumulation": (2, ["--batch-size", "1", "--accumulation", "2"]),
    "fsdp": (2, ["--batch-size", "2", "--parallel", "fsdp"]),
    "fsdp without resharding": (2, ["--batch-size", "1", "--accumulation", "2", "--parallel", "fsdp", "--reshard", "false"]),
    "fsdp with accumulation": (
        2,
        ["--batch-size", "1", "--accumulation", "2", "--parallel", "fsdp", "--checkpointing", "full"],
    ),
    "fsdp that gathers ahead": (2, ["--batch-size", "2", "--parallel", "fsdp", "--prefetch", "2"]),
    "fsdp with chunks of the loss": (2, ["--batch-size", "2", "--parallel", "fsdp", "--loss-chunks", "2"]),
    "replicas of shards": (4, ["--batch-size", "1", "--parallel", "fsdp", "--replicas", "2"]),
    "tensor": (2, ["--batch-size", "4", "--tensor-parallel", "2"]),
    "tensor with checkpointing": (2, ["--batch-size", "4", "--tensor-parallel", "2", "--checkpointing", "full"]),
    "data and tensor": (4, ["--batch-size", "2", "--tensor-parallel", "2"]),
    "pipeline": (2, ["--batch-size", "1", "--accumulation", "4", "--pipeline-parallel", "2"]),
    "pipeline of GPipe": (
        2,
        ["--batch-size", "2", "--accumulation", "2", "--pipeline-parallel", "2", "--pipeline-schedule", "gpipe"],
    ),
    "data and pipeline": (4, ["--batch-size", "1", "--accumulation", "2", "--pipeline-parallel", "2"]),
    "shards and pipeline": (
        4,
        ["--batch-size", "1", "--accumulation", "2", "--pipeline-parallel", "2", "--parallel", "fsdp"],
    ),
    "tensor and pipeline": (
        4,
        ["--batch-size", "1", "--accumulation", "4", "--pipeline-parallel", "2", "--tensor-parallel", "2"],
    ),
    "shards, tensor and pipeline": (
        8,
        ["--batch-size", "1", "--accumulation", "2", "--pipeline-parallel", "2", "--tensor-parallel", "2"],
    ),
}


OF_LLAMA = ("fsdp", "tensor", "data and tensor", "pipeline", "tensor and pipeline")
"""What is different where keys are grouped, positions are rotations and the output layer is a table of its own."""


OUTER, LAYER = 4 * (512 * 64 + 64 * 64 + 2 * 64), 4 * (12 * 64 * 64 + 3 * 64 + 64 + 256 + 64 + 4 * 64)
"""Bytes of gpt-tiny: table, positions and last norm; matrices, biases and norms of a layer."""
NORM, LOSS_OF_TWO, LOSS_OF_FOUR = ["allreduce", 4, 2, 1], ["allreduce", 4, 2, 1], ["allreduce", 4, 4, 1]
GATHERED_ONCE = [["all_gather", size, 2, 1] for size in (OUTER, LAYER, LAYER)]
GATHERED = [*GATHERED_ONCE, ["all_gather", LAYER, 2, 1]]
"""Everything for the forward pass, and the first layer again for the backward pass; the last one is kept for it."""
SCATTERED = [["reduce_scatter", size, 2, 1] for size in (LAYER, LAYER, OUTER)]
SENT: dict[str, list[list[Any]] | None] = {
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
    "tensor": None,
    "pipeline": None,
}
"""What a step of gpt-tiny sends in fp32: collective, bytes, number of ranks, distance from one to the next."""
TABLE, LLAMA_LAYER, LLAMA_OUTPUT = 4 * 512 * 64, 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 192 * 64 + 2 * 64), 4 * (512 * 64 + 64)
SENT_OF_LLAMA = {
    "fsdp": [
        *(["all_gather", size, 2, 1] for size in (TABLE, LLAMA_LAYER, LLAMA_LAYER, LLAMA_OUTPUT)),
        ["reduce_scatter", LLAMA_OUTPUT, 2, 1],
        ["all_gather", LLAMA_LAYER, 2, 1],
        *(["reduce_scatter", size, 2, 1] for size in (LLAMA_LAYER, LLAMA_LAYER, TABLE)),
        *(NORM, LOSS_OF_TWO),
    ]
}
"""The same of llama-tiny, whose output layer is gathered, and its gradient reduced, while layers compute."""


@pytest.mark.parametrize(("model", "how"), [*(("gpt-tiny", how) for how in SPREAD), *(("llama-tiny", how) for how in OF_LLAMA)])
def test_a_spread_model_trains_as_on_one_device(alone: Any, model: str, how: str, tmp_path: Path) -> None:
    nproc, arguments = SPREAD[how]
    got = trained(model, arguments, tmp_path, nproc)
    same(alone(model), got)
    assert len(got[1]["memory_bytes"]) == nproc
    assert got[1]["parameters"] == MODELS[model]["parameters"]
    sent = SENT if model == "gpt-tiny" else SENT_OF_LLAMA
    if how in sent:
        sends(got[1], sent[how])


def sends(facts: dict[str, Any], expected: list[list[Any]] | None) -> None:
    """A step makes these collectives, at moments of it; ranks that share a copy of the model report none."""
    rows, steps_s = facts["collectives"], facts["solo_step_s"]
    if expected is None:
        assert rows is None and set(steps_s) == {None}
        return
    assert [row[:4] for row in rows] == expected
    moments = [moment for row in rows for moment in row[4:]]
    assert moments == sorted(moments) and moments[0] > 0 and moments[-1] < steps_s[0]
    # Only DDP reduces while something is computed; on a CPU, FSDP waits for each collective.
    assert all((time_s is not None) == (facts["parallel"] == "ddp") for time_s in facts["beside_reduce_s"])


def test_a_mixture_of_experts_in_shards_trains_as_on_one_device(alone: Any, tmp_path: Path) -> None:
    same(alone("moe-tiny"), trained("moe-tiny", ["--batch-size", "2", "--parallel", "fsdp"], tmp_path, 2))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_types_in_parallel_train_like_fp32_within_their_error(
    alone: Any, dtype: str, parallel: str, tmp_path: Path
) -> None:
    losses, _ = trained("llama-tiny", ["--batch-size", "2", "--parallel", parallel], tmp_path, 2, dtype)
    assert losses == pytest.approx(alone("llama-tiny")[0], rel=HALF_ERRORS[dtype])


# --- refusals -------------------------------------------------------------------------------------------------------------

REFUSED = [
    ("gpt-tiny", ["--tensor-parallel", "3"], 3, "--tensor-parallel: expected a divisor of --kv-heads 4, got 3"),
    ("gpt-tiny", ["--tensor-parallel", "2"], 3, "expected a number of ranks that 2 divides, got 3"),
    (
        "moe-tiny",
        ["--tensor-parallel", "2", "--pipeline-parallel", "2", "--accumulation", "2"],
        4,
        "--tensor-parallel: expected 1 for a mixture of experts",
    ),
    ("moe-tiny", ["--tensor-parallel", "2"], 2, "--tensor-parallel: expected 1 for a mixture of experts"),
    ("gpt-tiny", ["--pipeline-parallel", "2"], 2, "--accumulation: expected 2 or more, a micro-batch for each stage, got 1"),
    (
        "gpt-tiny",
        ["--pipeline-parallel", "3", "--accumulation", "3"],
        3,
        "--pipeline-parallel: expected at most the 2 layers, got 3",
    ),
    ("gpt-tiny", ["--replicas", "2"], 3, "--replicas: expected a divisor of the 3 data-parallel ranks, got 2"),
    ("gpt-tiny", ["--replicas", "2", "--parallel", "ddp"], 2, "--replicas: expected 1 with --parallel ddp"),
    (
        "gpt-tiny",
        ["--tensor-parallel", "2", "--parallel", "ddp"],
        2,
        "--parallel: expected fsdp with --tensor-parallel",
    ),
    ("gpt-tiny", ["--compile", "true", "--compile-split", "whole"], 2, "--compile-split: expected blocks on several ranks"),
    ("gpt-tiny", ["--kv-heads", "3"], 1, "--kv-heads: expected a divisor of the 4 heads, got 3"),
    ("gpt-tiny", ["--dtype", "fp8"], 1, "--dtype: expected fp32, bf16 or fp16 on cpu, got fp8"),
    ("gpt-tiny", ["--weights", "bf16"], 1, "--weights: expected fp32 with --dtype fp32, got bf16"),
    ("gpt-tiny", ["--attention", "cudnn"], 1, "--attention: expected auto or math on cpu, got cudnn"),
    ("gpt-tiny", ["--seed", str(2**31)], 1, "--seed: expected less than 2^31, got 2147483648"),
    ("gpt-tiny", ["--seq-len", "0"], 1, "--seq-len: expected 1 or more, got 0"),
    ("gpt-tiny", ["--loss-chunks", "2", "--dtype", "fp16"], 1, "--loss-chunks: expected 1 with --dtype fp16"),
]


@pytest.mark.parametrize(("model", "arguments", "world_size", "sentence"), REFUSED, ids=[row[-1] for row in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence_before_ranks_meet(
    model: str,
    arguments: list[str],
    world_size: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import train_lm
    from trainer import Identity

    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common(model), *arguments])
    with pytest.raises(SystemExit) as refusal:
        train_lm.refuse(train_lm.arguments(), Identity(0, 0, world_size, 0))
    said = capsys.readouterr().err.splitlines() if refusal.value.code == 2 else [str(refusal.value.code)]
    assert sentence in said[-1]


# --- sizes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", list(MODELS))
def test_parameters_are_those_that_the_folder_declares(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import train_lm
    from trainer import Identity

    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common(model)])
    _, layout, parameters = train_lm.refuse(train_lm.arguments(), Identity(0, 0, 8, 0))
    assert parameters == MODELS[model]["parameters"]
    assert layout.kind == ("fsdp" if parameters > 2e9 else "ddp")


def test_stages_have_all_parameters_once() -> None:
    import torch
    from lm_models import Arithmetic, Decoder, Shape
    from lm_parallel import layers_of_stage

    sizes = Shape(5, 64, 4, 4, 16, 256, False, 500, True, 1, 1, "layer", "learned", 64, 0.0, True)
    types = Arithmetic(torch.float32, torch.float32, False)
    whole = Decoder(sizes, types, 128).own_parameters()
    for stages in (2, 3, 5):
        parts = [Decoder(sizes, types, 128, layers_of_stage(5, stages, stage)).own_parameters() for stage in range(stages)]
        assert sum(parts) == whole


def test_the_launch_script_passes_every_flag() -> None:
    template = (FOLDER / "launch.sh.j2").read_text()
    own = {"--attempts"}  # the program gives it to the process that its search for a batch size starts
    declared = flags(PROGRAM) - own | {f"--{name}" for name in ("layers", "width", "heads", "mlp", "vocab")}
    assert [flag for flag in declared if f"{flag} " not in template] == []


# --- arithmetic -----------------------------------------------------------------------------------------------------------


def test_8_bit_products_are_those_of_fp32_within_their_error() -> None:
    """E4M3 has 3 bits after the point, E5M2 two: relative rounding errors up to 2^-4 and 2^-3, a third of it on average."""
    import torch
    from lm_float8 import Float8Linear, use_float8

    generator = torch.Generator().manual_seed(1)
    layer = torch.nn.Linear(64, 128)
    x = torch.randn(4, 16, 64, generator=generator, requires_grad=True)
    gradient = torch.randn(4, 16, 128, generator=generator)

    def results() -> list[torch.Tensor]:
        y = layer(x)
        of = torch.autograd.grad(y, [x, layer.weight, layer.bias], gradient.to(y.dtype))
        return [part.detach().float() for part in (y, *of)]

    expected = results()
    use_float8(torch.nn.Sequential(layer))
    assert type(layer) is Float8Linear
    errors = [float((got - right).norm() / right.norm()) for got, right in zip(results(), expected, strict=True)]
    assert 0.005 < errors[0] < 2**-4 and 0.005 < errors[1] < 2**-3 and 0.005 < errors[2] < 2**-3 and errors[3] < 2**-7


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch.compile's own imports
def test_the_compiled_update_is_that_of_pytorch_and_leaves_copies() -> None:
    import torch
    from lm_adamw import Compiled, Fused, Updated
    from torch._inductor.utils import run_and_get_code

    generator = torch.Generator().manual_seed(3)
    sizes, decays = ((5, 7), (7,), (3, 2)), (0.1, 0.0, 0.1)
    values = [torch.randn(size, generator=generator) for size in sizes]
    expected = [value.clone().requires_grad_() for value in values]
    copies = [value.bfloat16() for value in values]
    rows = [Updated(*row) for row in zip(values, copies, decays, strict=True)]
    compiled = Compiled([rows[:2], rows[2:]], 0.01, torch.device("cpu"))
    fused = Fused([[Updated(value, None, decay) for value, decay in zip(expected, decays, strict=True)]], 0.01)
    sources: list[str] = []
    for _ in range(4):
        gradients = [torch.randn(size, generator=generator) for size in sizes]
        _, code = run_and_get_code(compiled.step, gradients, torch.tensor(1.7))
        sources += code
        fused.step([gradient.clone() for gradient in gradients], torch.tensor(1.7))
    for value, copy, right in zip(values, copies, expected, strict=True):
        assert torch.allclose(value, right, rtol=1e-5, atol=1e-6)
        assert torch.equal(copy, value.bfloat16())
    assert sources and not any("aten._foreach_" in source for source in sources)  # one kernel, none of PyTorch besides


@pytest.mark.parametrize("chunks", [1, 3])
def test_gradients_of_the_forward_pass_are_those_of_the_loss(chunks: int) -> None:
    import torch
    from lm_loss import loss_function, projected

    torch.manual_seed(0)
    hidden, targets = torch.randn(2, 10, 16, requires_grad=True), torch.randint(40, (2, 10))
    head = torch.nn.Linear(16, 40, bias=False)
    expected = projected(hidden, head.weight, targets) / 4
    of_expected = torch.autograd.grad(expected, [hidden, head.weight])
    loss = loss_function(chunks, None, 1 / 4)(hidden, head, targets)
    assert torch.allclose(loss, expected)
    for got, right in zip(torch.autograd.grad(loss, [hidden, head.weight]), of_expected, strict=True):
        assert torch.allclose(got, right, rtol=1e-4, atol=1e-7)


def test_expanded_keys_give_what_grouped_keys_give_and_cudnn_is_not_asked_for_on_a_cpu() -> None:
    import torch
    from lm_kernels import takes_groups
    from lm_models import attended

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    assert torch.allclose(attended(q, k, v, "grouped"), attended(q, k, v, "expanded"), atol=1e-6)
    assert not takes_groups(4, 2, 8, torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize(
    ("asked", "layers", "layout", "graphs"),
    [
        ("auto", 24, ("none", 1, 1, 1, 1), "whole"),
        ("auto", 25, ("none", 1, 1, 1, 1), "blocks"),
        ("auto", 12, ("ddp", 1, 1, 2, 1), "blocks"),
        ("auto", 12, ("none", 1, 1, 1, 2), "blocks"),
        ("blocks", 12, ("none", 1, 1, 1, 1), "blocks"),
        ("whole", 48, ("none", 1, 1, 1, 1), "whole"),
    ],
)
def test_few_layers_on_one_rank_are_one_graph(asked: str, layers: int, layout: tuple[Any, ...], graphs: str) -> None:
    from argparse import Namespace

    from lm_parallel import Layout, split_of

    args = Namespace(compile="true", compile_split=asked, layers=layers, checkpointing="none", experts=1, dtype="bf16")
    assert split_of(args, Layout(*layout)) == graphs
    assert split_of(Namespace(**{**vars(args), "compile": "false"}), Layout(*layout)) == "none"


def test_experts_compute_what_each_token_alone_would() -> None:
    """Against a loop over tokens and their experts."""
    import torch
    from lm_experts import Experts
    from torch.nn import functional

    class Sizes:
        width, mlp, experts, active_experts, gated = 32, 48, 4, 2, True

    torch.manual_seed(0)
    experts = Experts(Sizes)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(2, 9, 32)
    assert experts.gate is not None
    expected = torch.zeros(2, 9, 32)
    for row, token in ((row, token) for row in range(2) for token in range(9)):
        vector = x[row, token]
        scores, chosen = experts.router(vector).topk(2)
        for share, number in zip(scores.softmax(0), chosen.tolist(), strict=True):
            hidden = functional.silu(vector @ experts.gate[number]) * (vector @ experts.up[number])
            expected[row, token] += share * (hidden @ experts.down[number])
    assert torch.allclose(experts(x), expected, rtol=1e-4, atol=1e-5)


def test_rotary_positions_make_scores_depend_on_distances_alone() -> None:
    import torch
    from lm_models import rotated, rotation

    table = rotation(40, 16, 500000.0, torch.device("cpu"))
    q, k = torch.randn(16), torch.randn(16)
    turned_q, turned_k = (rotated(x.expand(1, 1, 40, 16), table)[0, 0] for x in (q, k))
    scores = turned_q @ turned_k.t()
    assert torch.allclose(scores[3, 1], scores[37, 35], atol=1e-4)
    assert torch.allclose(scores.diagonal(), (q @ k).expand(40), atol=1e-4)
    assert not torch.allclose(scores[3, 1], scores[3, 2], atol=1e-4)


def test_selective_checkpointing_computes_no_matrix_product_again() -> None:
    """Counted by operations of the backward pass, against full checkpointing, which computes all of them again."""
    import torch
    from lm_models import Arithmetic, Decoder, Shape, filled
    from torch.utils.flop_counter import FlopCounterMode

    sizes = Shape(1, 64, 4, 4, 16, 256, False, 512, True, 1, 1, "layer", "learned", 64, 0.0, True)
    flops = {}
    for what in ("none", "selective", "full"):
        decoder = Decoder(sizes, Arithmetic(torch.float32, torch.float32, False, what), 32)
        block = decoder.blocks["0"]
        filled(block, "blocks.0", decoder, torch.device("cpu"), 0)
        x = torch.randn(2, 32, 64, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            block(x).sum().backward()
        flops[what] = counter.get_total_flops()
    assert flops["selective"] == flops["none"]
    assert flops["full"] > 1.2 * flops["none"]
