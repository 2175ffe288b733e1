"""One training step of a language model: its tokens, its micro-batches one after the other, its
update.
"""

from __future__ import annotations

import argparse
from typing import Callable, NamedTuple

import torch
import torch.distributed as dist
from lm_loss import loss_function
from lm_models import Arithmetic, Decoder, Shape
from lm_optimizer import Optimizer
from lm_parallel import Layout, compiling, mesh_of, place, synchronise
from step_timestamps import ignore_stamp
from torch import nn

COMPUTE = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}
"""The type of activations for each --dtype. fp8 is a type of matrix products alone."""
WEIGHTS = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""The types of parameters and of the optimizer's state, for each --weights."""


def arithmetic_of(args: argparse.Namespace, layout: Layout) -> Arithmetic:
    """Return the types of the model. FSDP casts parameters itself, before it gathers them;
    otherwise autocast does.
    """
    weights, compute = WEIGHTS[args.weights], COMPUTE[args.dtype]
    autocast = layout.kind != "fsdp" and compute != weights
    return Arithmetic(weights, compute, autocast, args.checkpointing)


class Tokens:
    """The same few batches of random tokens over and over, made once, on the device, so that the
    loss falls.

    Each sequence has a seed of its own, from its number in the global batch: however the batch is
    spread over ranks, it is the same batch. Index with the step's number: tokens and targets, each
    (accumulation, batch_size, seq_len).
    """

    def __init__(
        self, args: argparse.Namespace, layout: Layout, rank: int, device: torch.device
    ) -> None:
        generator = torch.Generator(device)
        shape = (args.accumulation, args.batch_size, args.seq_len + 1)
        self.batches = []
        for batch in range(args.batches):
            tokens = torch.empty(shape, dtype=torch.int64, device=device)
            for micro in range(args.accumulation):
                for row in range(args.batch_size):
                    number = (micro * layout.ranks + rank) * args.batch_size + row
                    # 2^20 sequences a batch, 2^12 batches: no two have the same seed.
                    generator.manual_seed((args.seed << 32) + (batch << 20) + number)
                    tokens[micro, row] = torch.randint(
                        args.vocab, shape[2:], generator=generator, device=device
                    )
            self.batches.append((tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()))

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batches[step % len(self.batches)]


class Learner(NamedTuple):
    """Everything that a step needs except tokens."""

    args: argparse.Namespace
    layout: Layout
    decoder: Decoder
    model: nn.Module
    optimizer: Optimizer


def learner(
    args: argparse.Namespace, shape: Shape, layout: Layout, device: torch.device
) -> Learner:
    """Return a new model, spread over all ranks, and its optimizer."""
    mesh = mesh_of(layout, device)
    decoder = Decoder(shape, arithmetic_of(args, layout), args.seq_len)
    options = compiling(args) if args.compile else None
    decoder.output.loss = loss_function(args.loss_chunks, options, 1 / args.accumulation)
    model, masters = place(args, decoder, layout, mesh, device)
    layers = [list(block.parameters()) for block in decoder.blocks.values()]
    inside = {parameter for layer in layers for parameter in layer}
    optimizer = Optimizer(
        [*layers, [parameter for parameter in decoder.parameters() if parameter not in inside]],
        device,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        clip=args.clip,
        scale=args.loss_scale if args.dtype == "fp16" else 0.0,
        masters=masters,
        compiled=args.compile,
    )
    return Learner(args, layout, decoder, model, optimizer)


# --- taking a step --------------------------------------------------------------------------------


def take_step(
    learner: Learner,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    stamp: Callable[[str], None] = ignore_stamp,
) -> torch.Tensor:
    """Take a step; return the mean loss of the global batch, on every rank.

    ``stamp`` is called before each micro-batch, after its forward and after its backward pass.
    """
    loss = accumulate_gradients(learner, tokens, targets, stamp)
    learner.optimizer.step()
    if learner.layout.ranks > 1:
        # Four bytes after the update, so that every line is about all tokens.
        loss = loss / learner.layout.ranks
        dist.all_reduce(loss)
    return loss


def accumulate_gradients(
    learner: Learner,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    stamp: Callable[[str], None] = ignore_stamp,
) -> torch.Tensor:
    """Add up the gradients of all micro-batches, and reduce them with the last one; return the mean
    loss of this rank's.
    """
    count, total = len(tokens), None
    for number in range(count):
        stamp("micro_batch")
        synchronise(learner.model, learner.layout, number == count - 1, learner.args.reshard)
        loss = learner.model(tokens[number], targets[number])  # its share of the step's
        stamp("forward")
        learner.optimizer.scale_loss(loss).backward()
        stamp("backward")
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total
