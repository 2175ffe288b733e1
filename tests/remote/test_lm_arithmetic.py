"""The arithmetic of the trainer of language models, each part against the plain way to compute it."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("torch_of_trainers")


def test_8_bit_products_are_those_of_fp32_within_their_error() -> None:
    """E4M3 has 3 bits after the point, E5M2 two: relative rounding errors up to 2^-4 and 2^-3, a
    third of it on average.
    """
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
    errors = [
        float((got - right).norm() / right.norm())
        for got, right in zip(results(), expected, strict=True)
    ]
    assert (
        0.005 < errors[0] < 2**-4
        and 0.005 < errors[1] < 2**-3
        and 0.005 < errors[2] < 2**-3
        and errors[3] < 2**-7
    )


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning"
)  # of torch.compile's own imports
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
    fused = Fused(
        [[Updated(value, None, decay) for value, decay in zip(expected, decays, strict=True)]], 0.01
    )
    sources: list[str] = []
    for _ in range(4):
        gradients = [torch.randn(size, generator=generator) for size in sizes]
        _, code = run_and_get_code(compiled.step, gradients, torch.tensor(1.7))
        sources += code
        fused.step([gradient.clone() for gradient in gradients], torch.tensor(1.7))
    for value, copy, right in zip(values, copies, expected, strict=True):
        assert torch.allclose(value, right, rtol=1e-5, atol=1e-6)
        assert torch.equal(copy, value.bfloat16())
    assert sources and not any(
        "aten._foreach_" in source for source in sources
    )  # one kernel, none of PyTorch besides


@pytest.mark.parametrize("chunks", [1, 3])
def test_gradients_of_the_forward_pass_are_those_of_the_loss(chunks: int) -> None:
    import torch
    from lm_loss import compute_loss, loss_function

    torch.manual_seed(0)
    hidden, targets = torch.randn(2, 10, 16, requires_grad=True), torch.randint(40, (2, 10))
    head = torch.nn.Linear(16, 40, bias=False)
    expected = compute_loss(hidden, head.weight, targets) / 4
    of_expected = torch.autograd.grad(expected, [hidden, head.weight])
    loss = loss_function(chunks, None, 1 / 4)(hidden, head, targets)
    assert torch.allclose(loss, expected)
    for got, right in zip(
        torch.autograd.grad(loss, [hidden, head.weight]), of_expected, strict=True
    ):
        assert torch.allclose(got, right, rtol=1e-4, atol=1e-7)


def test_expanded_keys_give_what_grouped_keys_give_and_cudnn_is_not_asked_for_on_a_cpu() -> None:
    import torch
    from lm_kernels import takes_groups
    from lm_models import attend

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    assert torch.allclose(attend(q, k, v, "grouped"), attend(q, k, v, "expanded"), atol=1e-6)
    assert not takes_groups(4, 2, 8, torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize(
    ("asked", "layers", "layout", "graphs"),
    [
        ("auto", 24, ("none", 1, 1), "whole"),
        ("auto", 25, ("none", 1, 1), "blocks"),
        ("auto", 12, ("ddp", 1, 2), "blocks"),
        ("auto", 12, ("fsdp", 1, 2), "blocks"),
        ("blocks", 12, ("none", 1, 1), "blocks"),
        ("whole", 48, ("none", 1, 1), "whole"),
    ],
)
def test_few_layers_on_one_rank_are_one_graph(
    asked: str, layers: int, layout: tuple[Any, ...], graphs: str
) -> None:
    from argparse import Namespace

    from lm_parallel import Layout, split_of

    args = Namespace(
        compile=True,
        compile_split=asked,
        layers=layers,
        checkpointing="none",
        experts=1,
        dtype="bf16",
    )
    assert split_of(args, Layout(*layout)) == graphs
    assert split_of(Namespace(**{**vars(args), "compile": False}), Layout(*layout)) == "none"


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
    from lm_models import rotate, rotation

    table = rotation(40, 16, 500000.0, torch.device("cpu"))
    q, k = torch.randn(16), torch.randn(16)
    turned_q, turned_k = (rotate(x.expand(1, 1, 40, 16), table)[0, 0] for x in (q, k))
    scores = turned_q @ turned_k.t()
    assert torch.allclose(scores[3, 1], scores[37, 35], atol=1e-4)
    assert torch.allclose(scores.diagonal(), (q @ k).expand(40), atol=1e-4)
    assert not torch.allclose(scores[3, 1], scores[3, 2], atol=1e-4)


def test_selective_checkpointing_computes_no_matrix_product_again() -> None:
    """Counted by operations of the backward pass, against full checkpointing, which computes all of
    them again.
    """
    import torch
    from lm_models import Arithmetic, Decoder, Shape, fill
    from torch.utils.flop_counter import FlopCounterMode

    sizes = Shape(1, 64, 4, 4, 16, 256, False, 512, True, 1, 1, "layer", "learned", 64, 0.0, True)
    flops = {}
    for what in ("none", "selective", "full"):
        decoder = Decoder(sizes, Arithmetic(torch.float32, torch.float32, False, what), 32)
        block = decoder.blocks["0"]
        fill(block, "blocks.0", decoder, torch.device("cpu"), 0)
        x = torch.randn(2, 32, 64, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            block(x).sum().backward()
        flops[what] = counter.get_total_flops()
    assert flops["selective"] == flops["none"]
    assert flops["full"] > 1.2 * flops["none"]
