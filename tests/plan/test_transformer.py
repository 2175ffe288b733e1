"""The operations of a transformer, against numbers that others have published for the same sizes."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.plan.transformer import Transformer, transformer_of

LLAMA3_8B = Transformer(32, 4096, 32, 8, 128, 14336, gated=True, vocab=128256, tied=False)
"""Meta's Llama 3 8B."""
MIXTRAL = Transformer(32, 4096, 32, 8, 128, 14336, True, 32000, False, experts=8, active_experts=2)
"""Mistral AI's Mixtral 8x7B."""


@pytest.mark.parametrize(
    ("causal", "gflops"),
    [
        (False, 57.9),
        (True, 51.5),
    ],  # of a token of 8,192, as two programs count it for the same speed
)
def test_llama_3_8b_counts_as_others_count_it(causal: bool, gflops: float) -> None:
    assert LLAMA3_8B.flops_per_token(8192, causal=causal) / 1e9 == pytest.approx(gflops, abs=0.05)


def test_weights_that_no_product_reads_do_not_count() -> None:
    # 8,030,261,248 parameters, less the embedding table and the 65 norms of 4,096
    assert LLAMA3_8B.matmul_parameters == 8_030_261_248 - 128256 * 4096 - 65 * 4096


def test_of_experts_only_those_that_a_token_passes_count() -> None:
    # 46.7 billion parameters, of which a token meets 12.9 billion, the embedding table of 0.13
    # among them
    assert MIXTRAL.matmul_parameters == pytest.approx(12.9e9 - 0.131e9, rel=0.005)
    assert MIXTRAL.layer_parameters - Transformer(
        32, 4096, 32, 8, 128, 14336, True, 32000
    ).layer_parameters == (3 * 4096 * 14336 + 8 * 4096)


def test_megatrons_closed_form_is_the_same_for_equal_heads_and_four_times_the_width() -> None:
    # arXiv 2104.04473: 72·B·s·L·h²·(1 + s/(6h) + V/(12·h·L)) of one iteration without recomputation
    layers, width, tokens, vocab = 24, 2304, 2048, 51200
    sizes = Transformer(layers, width, 24, 24, 96, 4 * width, gated=False, vocab=vocab)
    closed = 72 * layers * width**2 * (1 + tokens / (6 * width) + vocab / (12 * width * layers))
    assert sizes.flops_per_token(tokens) == pytest.approx(closed, rel=1e-12)
    # with full recomputation: 96·…(1 + s/(6h) + V/(16·h·L))
    again = 96 * layers * width**2 * (1 + tokens / (6 * width) + vocab / (16 * width * layers))
    assert sizes.hardware_flops_per_token(tokens, "full") == pytest.approx(again, rel=1e-12)


def test_what_is_kept_costs_nothing_again() -> None:
    assert LLAMA3_8B.hardware_flops_per_token(4096, "none") == LLAMA3_8B.flops_per_token(4096)
    assert LLAMA3_8B.hardware_flops_per_token(4096, "selective") == LLAMA3_8B.flops_per_token(4096)


SIZES: dict[str, Any] = {
    "layers": 4,
    "width": 128,
    "heads": 4,
    "mlp": 512,
    "gated": False,
    "vocab": 512,
}


def test_heads_have_their_own_keys_and_divide_the_width_unless_it_is_said() -> None:
    assert transformer_of(SIZES) == Transformer(4, 128, 4, 4, 32, 512, False, 512)
    assert transformer_of(SIZES | {"kv_heads": 2, "head_width": 64}) == Transformer(
        4, 128, 4, 2, 64, 512, False, 512
    )


@pytest.mark.parametrize(
    "changes", [{"layers": "4"}, {"width": -1}, {"gated": 1}, {"vocab": True}, {"mlp": 1.5}]
)
def test_what_is_no_size_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="transformer"):
        transformer_of(SIZES | changes)
