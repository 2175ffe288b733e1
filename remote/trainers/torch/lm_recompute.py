"""Activation checkpointing: what the backward pass computes again because the forward pass did not
keep it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

KEPT = (
    *(
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "_scaled_mm",
        "_grouped_mm",
        "_scaled_dot_product_cudnn_attention",
    ),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *(
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
)
"""Operations of torch.ops.aten whose results selective checkpointing keeps: matrix products and
attention.
"""


def _list_kept_operations() -> frozenset[Any]:
    operations = [getattr(torch.ops.aten, name, None) for name in KEPT]
    return frozenset(operation.default for operation in operations if operation is not None)


def _policy(
    kept: frozenset[Any], _: Any, operation: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE


def recomputing(
    layer: Callable[[torch.Tensor], torch.Tensor], recomputation: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the layer as the backward pass should see it. ``what``: none; selective: keep results
    of matrix products and attention, compute the rest again; full: keep the input alone."""
    if recomputation == "none":
        return layer
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if recomputation == "selective":
        options["context_fn"] = partial(
            create_selective_checkpoint_contexts, partial(_policy, _list_kept_operations())
        )
    return partial(checkpoint, layer, **options)
