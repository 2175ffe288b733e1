"""An embedding table sharded by rows over data-parallel ranks; no rank ever gathers the table.

Row-wise sharding, as recommendation models have it (Ivchenko et al., "TorchRec", 2022): every rank
looks up the tokens of all ranks in its own rows, and the results are scattered to the ranks that
asked. A step then sends activations, twice, in place of the table and its gradient. No computation
hides these two: the first layer waits for the table, and its gradient is complete last. PyTorch 2.7
or newer.
"""

from __future__ import annotations

import argparse
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from lm_models import Shape
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

GATHER, SCATTER = (
    ("all_gather_single", "reduce_scatter_single")
    if hasattr(dist, "all_gather_single")
    else ("all_gather_into_tensor", "reduce_scatter_tensor")
)
"""PyTorch 2.13 renamed the two collectives. Each call looks them up, because lm_parts.py puts
others in their place.
"""
SPARE = 512
"""Rows after a rank's last one, which stand for those of other ranks. They are many because CUDA's
kernel adds up one after the other whatever belongs to the same row, even if that row is padding."""


def embedding_of(args: argparse.Namespace, shape: Shape, layout: Any) -> str:
    """Return how the table is sharded: gathered; row-wise, where ranks look up tokens in the rows
    that they hold. By itself the latter, if that is possible and sends less."""
    if layout.kind == "fsdp" and args.embedding != "auto":
        return str(args.embedding)
    if unusable_rows(shape, layout):
        return "gathered"
    # What all ranks send: the vectors of tokens, there and back; or the table, for each micro-batch
    # if it is freed after each, and once its gradient, in fp32.
    tokens = args.accumulation * layout.data * args.batch_size * args.seq_len
    gathers = args.accumulation if args.reshard else 1
    element = 4 if args.dtype in ("fp32", "tf32") else 2
    return "row-wise" if tokens * 2 * element < shape.rows * (gathers * element + 4) else "gathered"


def unusable_rows(shape: Shape, layout: Any) -> str:
    """Return the requirement that --embedding row-wise lacks, or an empty text."""
    from torch.distributed.fsdp import fully_shard

    if layout.kind != "fsdp" or layout.replica > 1:
        return "--parallel fsdp without replicas"
    if shape.tied:
        return "an output layer of its own (--tied false)"
    if shape.rows % layout.data:
        return f"a number of ranks that divides the {shape.rows} rows of the table"
    return "" if "ignored_params" in signature(fully_shard).parameters else "PyTorch 2.7 or newer"


class RowWiseEmbedding(nn.Module):
    """The rows of ``table`` that belong to this rank of a mesh of one dimension. ``compute``: the
    type of the result.
    """

    def __init__(self, table: nn.Embedding, mesh: DeviceMesh, compute: torch.dtype) -> None:
        super().__init__()
        from torch.distributed.tensor import DTensor, Shard

        self.group, self.compute = mesh.get_group(), compute
        own = table.weight.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
        self.weight = nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)]))

    @torch.compiler.disable
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return (batch, tokens, width) of (batch, tokens). All ranks call it together."""
        table: Any = self.weight
        x: torch.Tensor = _LookUp.apply(
            table.to_local(grad_placements=table.placements), tokens, self.group, self.compute
        )
        return x


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, tokens: torch.Tensor, group: Any, compute: torch.dtype
    ) -> torch.Tensor:
        rows = gather(tokens, group) - dist.get_rank(group) * len(own)
        elsewhere = (rows < 0) | (rows >= len(own))
        x = (
            functional.embedding(rows.masked_fill(elsewhere, 0), own)
            .to(compute)
            .masked_fill_(elsewhere.unsqueeze(-1), 0)
        )
        mine = x.new_empty(*tokens.shape, x.shape[-1])
        getattr(dist, SCATTER)(mine, x, group=group)
        ctx.save_for_backward(torch.where(elsewhere, len(own) + rows % SPARE, rows))
        ctx.group, ctx.size, ctx.dtype = group, len(own), own.dtype
        return mine

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        # The mean over ranks, added up in fp32, as FSDP's.
        gradients = gather(gradient, ctx.group).float().div_(dist.get_world_size(ctx.group))
        own = torch.ops.aten.embedding_dense_backward(gradients, rows, ctx.size + SPARE, -1, False)[
            : ctx.size
        ]
        return own.to(ctx.dtype), None, None, None


def gather(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the tensors (n, …) of all ranks of a group, one after the other: (ranks * n, …)."""
    rank, length = dist.get_rank(group), len(tensor)
    whole = tensor.new_empty(dist.get_world_size(group) * length, *tensor.shape[1:])
    mine = whole[rank * length : (rank + 1) * length].copy_(tensor)
    getattr(dist, GATHER)(whole, mine, group=group)
    return whole
