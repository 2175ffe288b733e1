"""A language model spread over ranks, as replicas, shards, or replicas of shards.

Ranks form a mesh of replica × data, the last one the fastest: ranks that share a copy of the model
are neighbours. Each rank has tokens of its own.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NamedTuple

import torch
from lm_embedding import RowWiseEmbedding, embedding_of
from lm_float8 import use_float8
from lm_models import Decoder, fill, set_rotations
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

DDP_LIMIT = 2_000_000_000
"""Parameters of a rank up to which --parallel auto gives each rank a whole copy: with fp32 weights
and AdamW 16 bytes each.
"""
WHOLE_LAYERS = 24
"""Layers up to which --compile-split auto makes one graph of all of them, on a single rank."""
COMPILE_LEVELS: dict[str, dict[str, bool]] = {
    "default": {},
    "tuned": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True},
}
"""Options of inductor for each value of --compile-level."""


class Layout(NamedTuple):
    """The distribution of a model over ranks. ``kind``: none, for one rank; ddp; fsdp."""

    kind: str
    replica: int
    data: int

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.replica * self.data


def layout_of(args: argparse.Namespace, world_size: int, parameters: int) -> Layout:
    """Return the layout of all ranks. ``parameters``: of the whole model."""
    kind = args.parallel
    if kind == "auto":
        kind = "fsdp" if args.replicas > 1 or parameters > DDP_LIMIT else "ddp"
        kind = "none" if world_size == 1 else kind
    return Layout(kind, args.replicas, world_size // args.replicas)


def mesh_of(layout: Layout, device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks."""
    return init_device_mesh(
        device.type, (layout.replica, layout.data), mesh_dim_names=("replica", "data")
    )


def place(
    args: argparse.Namespace,
    decoder: Decoder,
    layout: Layout,
    mesh: DeviceMesh,
    device: torch.device,
) -> tuple[nn.Module, dict[nn.Parameter, torch.Tensor]]:
    """Fill the decoder, compile its layers and spread it over ranks, layer by layer.

    Return the module that is trained, and the values in fp32 of those parameters that have the type
    of matrix products.
    """
    masters: dict[nn.Parameter, torch.Tensor] = {}
    split = split_of(args, layout)
    shard = _sharding(args, decoder, layout, mesh) if layout.kind == "fsdp" else None
    numbers = list(decoder.blocks)
    for number, block in decoder.blocks.items():
        fill(block, f"blocks.{number}", decoder, device, args.seed)
        if args.dtype == "fp8":
            use_float8(block)
        if lowers(args, layout):
            masters |= lower_precision(block, decoder.arithmetic.compute)
        if split == "blocks":
            block.compile(**compiling(args))
        if shard:
            # The backward pass begins with the last layer: freeing it in between would gather it
            # twice in a row.
            shard(block, reshard_after_forward=args.reshard and number != numbers[-1])
    for name, part in decoder.outer().items():
        fill(part, name, decoder, device, args.seed)
    set_rotations(decoder, device)
    decoder.tie()
    if split == "blocks":
        compile_ends(decoder, compiling(args))
    if split == "whole":
        decoder.compile(**compiling(args))
    if shard:
        for part in units(decoder)[len(numbers) :]:
            shard(part, reshard_after_forward=False)
        if embedding_of(args, decoder.shape, layout) == "row-wise":
            decoder.embedding = RowWiseEmbedding(
                decoder.embedding, mesh["data"], decoder.arithmetic.compute
            )
            shard(decoder, reshard_after_forward=False, ignored_params={decoder.embedding.weight})
        else:
            shard(decoder, reshard_after_forward=False)
        gather_ahead(decoder, args.prefetch)
    return _replica(args, decoder, mesh, device) if layout.kind == "ddp" else decoder, masters


def split_of(args: argparse.Namespace, layout: Layout) -> str:
    """Return the graphs that are compiled: none; blocks; whole, by itself only where one rank has
    few layers.

    One graph of 12 layers of GPT-2 takes 12 s longer to compile than one layer, and its steps are 1
    to 2 % shorter on an H200.
    """
    if not args.compile:
        return "none"
    plain = (
        args.checkpointing == "none" and args.experts == 1 and args.dtype != "fp8"
    )  # what was measured
    whole = layout.kind == "none" and plain and args.layers <= WHOLE_LAYERS
    return {"auto": "whole" if whole else "blocks"}.get(args.compile_split, args.compile_split)


def compiling(args: argparse.Namespace) -> dict[str, Any]:
    """Return how torch.compile is called for the model and its loss."""
    options = COMPILE_LEVELS[args.compile_level]
    return {"dynamic": False, **({"options": options} if options else {})}


def lowers(args: argparse.Namespace, layout: Layout) -> bool:
    """Return whether layers keep parameters in bf16, with the values in fp32 in the optimizer.

    No cast of weights and gradients then reads and writes all of them in each step. This applies
    only if a gradient is the result of one matrix product, which has that type anyway: gradients of
    micro-batches and of ranks are added up in fp32.
    """
    alone = layout.kind == "none" and args.accumulation == 1
    return alone and args.compile and args.dtype == "bf16" and args.weights == "fp32"


def lower_precision(block: nn.Module, compute: torch.dtype) -> dict[nn.Parameter, torch.Tensor]:
    """Give a layer parameters of the type of matrix products; return their values as they were."""
    masters = {parameter: parameter.detach() for parameter in block.parameters()}
    for parameter, master in masters.items():
        parameter.data = master.to(compute)
    return masters


def compile_ends(decoder: Decoder, options: dict[str, Any]) -> None:
    """Compile the parts before and after the layers. ``options``: of torch.compile."""
    # Without positions to add there is nothing to fuse, and the compiled gradient of the embedding
    # takes longer than PyTorch's.
    if decoder.positions is not None:
        own: Any = decoder
        own.embed = torch.compile(decoder.embed, **options)
    decoder.output.norm.compile(**options)


def units(decoder: Decoder) -> list[Any]:
    """Return the units that FSDP gathers and reduces one after the other.

    These are the layers, and the output unless it shares the embedding table. The rest is gathered
    with the first call, before anything is computed, and reduced at the end, after everything.
    """
    after = [] if decoder.shape.tied else [decoder.output]
    return [*decoder.blocks.values(), *after]


def gather_ahead(decoder: Decoder, layers: int) -> None:
    """Have FSDP gather the parameters of ``layers`` layers while another one before them computes,
    in either direction.

    With 0, the order is FSDP's own: in the forward pass a layer is gathered once the host gets
    there, and in the backward pass one ahead.
    """
    parts = units(decoder)
    for place, part in enumerate(parts if layers else ()):
        part.set_modules_to_forward_prefetch(parts[place + 1 : place + 1 + layers])
        part.set_modules_to_backward_prefetch(parts[max(0, place - layers) : place][::-1])
    if layers:
        whole: Any = decoder
        if not isinstance(decoder.embedding, RowWiseEmbedding):  # its look-up is sent first
            whole.set_modules_to_forward_prefetch(parts[:layers])
        whole.set_modules_to_backward_prefetch(parts[: -layers - 1 : -1])


def _sharding(args: argparse.Namespace, decoder: Decoder, layout: Layout, mesh: DeviceMesh) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    compute = decoder.arithmetic.compute
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    own_mesh = mesh["replica", "data"] if layout.replica > 1 else mesh["data"]
    return partial(fully_shard, mesh=own_mesh, mp_policy=policy)


def bucket_cap_mib(parameters: int) -> int:
    """Return the MiB of gradients that DDP reduces at once: a 64th of them in fp32, and not less
    than its own default.

    Launching a step of many layers takes the host nearly as long as the GPU computes. With 250
    buckets of 25 MiB for GPT-2 1.5B, steps on two H100 took 219 to 244 ms, as the host's core was
    free or not; with 63 they took 213 to 227.
    """
    return max(25, parameters * 4 // 64 >> 20)


def _replica(
    args: argparse.Namespace, decoder: Decoder, mesh: DeviceMesh, device: torch.device
) -> nn.Module:
    return DistributedDataParallel(
        decoder,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=mesh["data"].get_group(),
        broadcast_buffers=False,
        bucket_cap_mb=args.bucket_cap_mb,
        gradient_as_bucket_view=True,
    )


def synchronise(model: nn.Module, layout: Layout, now: bool, reshard: bool) -> None:
    """Set whether the next backward pass reduces gradients, as in a step's last micro-batch."""
    if layout.kind == "ddp":
        model.require_backward_grad_sync = (
            now  # what DDP's no_sync sets; it counts from the forward pass on
        )
    elif layout.kind == "fsdp":
        sharded: Any = model
        sharded.set_requires_gradient_sync(now)
        if not reshard:
            sharded.set_reshard_after_backward(now)
