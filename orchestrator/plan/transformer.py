"""The arithmetic of a transformer: how many floating-point operations training on one token takes,
in the conventions of the field. A multiply-add counts as two operations.

A weight of a matrix product costs 6 operations per token: 2 in the forward pass, 2 for the gradient
of its input, 2 for its own (Kaplan et al., "Scaling Laws for Neural Language Models", 2020).
Attention costs 12·L·d·T per token more, for the products of queries with keys and of scores with
values, where d is heads × head_width (Chowdhery et al., "PaLM", 2022, appendix B). A causal mask
needs half of that, if a kernel leaves the other half out; some programs count it in full, some by
half.

>>> gpt2 = Transformer(layers=12, width=768, heads=12, kv_heads=12, head_width=64, mlp=3072, gated=False, vocab=50257)
>>> gpt2.matmul_parameters, gpt2.flops_per_token(1024), gpt2.flops_per_token(1024, causal=True)
(123532032, 854438400, 797815296)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.documents import Invalid, read

RECOMPUTATIONS = ("none", "selective", "full")
"""What a backward pass computes again because it was not kept: nothing, everything but the results
of matrix products and attention, or all of each layer."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """The sizes of a decoder.

    ``width`` is the size of a token between layers, ``head_width`` the size of a head's queries,
    ``mlp`` the hidden width of an MLP or of one expert. ``gated``: the MLP has a third matrix
    (SwiGLU). ``tied``: the output layer is the embedding table. Of ``experts``, each token passes
    ``active_experts``.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp: int
    gated: bool
    vocab: int
    tied: bool = True
    experts: int = 1
    active_experts: int = 1

    @property
    def layer_parameters(self) -> int:
        """Weights of the matrix products of one layer that a token meets: of attention, router and
        active experts.
        """
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        router = self.width * self.experts if self.experts > 1 else 0
        return (
            attention
            + router
            + self.active_experts * (3 if self.gated else 2) * self.width * self.mlp
        )

    @property
    def matmul_parameters(self) -> int:
        """Weights of all matrix products that a token meets: all layers and the output layer.

        Embedding tables are looked up and not multiplied, so they do not count.
        """
        return self.layers * self.layer_parameters + self.width * self.vocab

    @property
    def parameters(self) -> int:
        """Weights of all matrix products, every expert's included, and of the embedding table.

        A tied table counts once. Positions, norms and biases do not count.
        """
        unused = (
            (self.experts - self.active_experts) * (3 if self.gated else 2) * self.width * self.mlp
        )
        return (
            self.matmul_parameters
            + self.layers * unused
            + (0 if self.tied else self.width * self.vocab)
        )

    def flops_per_token(self, tokens: int, *, causal: bool = False) -> int:
        """Return the operations of training on one token of a sequence of ``tokens``: 6 N +
        12·L·d·T.

        ``causal``: the masked half of attention does not count, 6·L·d·T.
        """
        return 6 * self.matmul_parameters + (6 if causal else 12) * self._attention(tokens)

    def hardware_flops_per_token(self, tokens: int, recomputation: str) -> int:
        """Return the operations that the hardware executes for one token: with full recomputation,
        the forward pass of all layers twice, 2 N + 4·L·d·T more, where N are the weights of the
        layers. Attention counts in full."""
        again = 0
        if recomputation == "full":
            again = 2 * self.layers * self.layer_parameters + 4 * self._attention(tokens)
        return self.flops_per_token(tokens) + again

    def _attention(self, tokens: int) -> int:
        return self.layers * self.heads * self.head_width * tokens


def transformer_of(content: Mapping[str, Any]) -> Transformer:
    """Return the transformer that a folder or a manifest describes.

    Without ``kv_heads`` and ``head_width``, each head has keys of its own, and heads divide the
    width. Raises KeyError, TypeError or ValueError for an invalid description.
    """
    values = {"kv_heads": content["heads"], **content}
    if "head_width" not in values:
        values["head_width"] = values["width"] // values["heads"]
    try:
        transformer = read(Transformer, values)
    except Invalid as error:
        raise error.within("transformer") from None
    if min(asdict(transformer).values()) < 0:
        raise Invalid("expected sizes ≥ 0", "transformer")
    return transformer
