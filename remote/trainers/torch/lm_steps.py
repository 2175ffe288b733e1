"""One training step of a language model: its tokens, its micro-batches one after the other or as a pipeline, its update."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from inspect import signature
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist
from lm_loss import cross_entropy, loss_function, loss_over_ranks
from lm_models import Arithmetic, Decoder, Shape
from lm_optimizer import Optimizer, as_held
from lm_parallel import Layout, compiling, layers_of_stage, mesh_of, placed, synchronise
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch_stamps import unheard

COMPUTE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""The type of activations for each --dtype. fp8 is a type of matrix products alone."""
WEIGHTS = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""The types of parameters and of the optimizer's state, for each --weights."""
WITHOUT_OUTPUTS = {"return_outputs": False} if "return_outputs" in signature(PipelineScheduleSingle.step).parameters else {}
"""What keeps a pipeline from collecting the logits of a whole step, in versions of PyTorch that can leave it out."""


def arithmetic_of(args: argparse.Namespace, layout: Layout) -> Arithmetic:
    """Return the types of the model. FSDP casts parameters itself, before it gathers them; otherwise autocast does."""
    weights, compute = WEIGHTS[args.weights], COMPUTE[args.dtype]
    autocast = layout.kind != "fsdp" and compute != weights
    return Arithmetic(weights, compute, autocast, args.checkpointing)


class Tokens:
    """The same few batches of random tokens over and over, made once, on the device, so that the loss falls.

    Each sequence has a seed of its own, from its number in the global batch: however the batch is spread over ranks, it is the
    same batch. Ranks that share a copy of the model get the same sequences. Index with the step's number: tokens and targets,
    each (accumulation, batch_size, seq_len).
    """

    def __init__(self, args: argparse.Namespace, layout: Layout, data_rank: int, device: torch.device) -> None:
        generator = torch.Generator(device)
        shape = (args.accumulation, args.batch_size, args.seq_len + 1)
        self.batches = []
        for batch in range(args.batches):
            tokens = torch.empty(shape, dtype=torch.int64, device=device)
            for micro in range(args.accumulation):
                for row in range(args.batch_size):
                    number = (micro * layout.data_ranks + data_rank) * args.batch_size + row
                    # 2^20 sequences a batch, 2^12 batches: no two have the same seed.
                    generator.manual_seed((args.seed << 32) + (batch << 20) + number)
                    tokens[micro, row] = torch.randint(args.vocab, shape[2:], generator=generator, device=device)
            self.batches.append((tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()))

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batches[step % len(self.batches)]


class Learner(NamedTuple):
    """Everything that a step needs except tokens. ``schedule``: that of a pipeline, else None. ``table``: the group of ranks
    that have a copy of the same embedding table, else None; ``copy``: this rank's one."""

    args: argparse.Namespace
    layout: Layout
    decoder: Decoder
    model: nn.Module
    optimizer: Optimizer
    schedule: Any = None
    table: Any = None
    copy: Any = None


def learner(args: argparse.Namespace, shape: Shape, layout: Layout, device: torch.device) -> Learner:
    """Return a new model, spread over all ranks, and its optimizer."""
    mesh = mesh_of(layout, device)
    stage = mesh.get_local_rank("pipeline")
    numbers = layers_of_stage(shape.layers, layout.pipeline, stage)
    decoder = Decoder(shape, arithmetic_of(args, layout), args.seq_len, numbers)
    split = layout.tensor > 1
    share = 1 / args.accumulation
    options = compiling(args) if args.compile == "true" else None
    if decoder.output is not None:
        decoder.output.loss = loss_over_ranks(share) if split else loss_function(args.loss_chunks, options, share)
    model, masters = placed(args, decoder, layout, mesh, device)
    stages = mesh.get_group("pipeline") if layout.pipeline > 1 else None
    head: Any = decoder.head
    layers = [list(block.parameters()) for block in decoder.blocks.values()]
    inside = {parameter for layer in layers for parameter in layer}
    optimizer = Optimizer(
        [*layers, [parameter for parameter in decoder.parameters() if parameter not in inside]],
        device,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        clip=args.clip,
        scale=args.loss_scale if args.dtype == "fp16" else 0.0,
        stages=stages,
        copy=head.weight if decoder.has_copy else None,
        masters=masters,
        compiled=args.compile == "true",
    )
    made = Learner(args, layout, decoder, model, optimizer)
    if stages is None:
        return made
    made = made._replace(schedule=pipeline(made, stage, stages, device))
    if not shape.tied:
        return made
    first_and_last = mesh.mesh[[0, -1]].flatten(1).t().tolist()
    table, _ = dist.new_subgroups_by_enumeration(first_and_last)
    tied: Any = decoder.embedding or head
    return made._replace(table=table if tied is not None else None, copy=tied.weight if tied is not None else None)


def pipeline(learner: Learner, stage: int, group: Any, device: torch.device) -> Any:
    """Return the schedule of this rank's stage: GPipe (Huang et al., 2019), or one forward, one backward (Narayanan et al.,
    2021)."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    args, decoder = learner.args, learner.decoder
    compute = decoder.arithmetic.compute
    tokens = torch.zeros(args.batch_size, args.seq_len, dtype=torch.int64, device=device)
    between = torch.zeros(args.batch_size, args.seq_len, decoder.shape.width, dtype=compute, device=device, requires_grad=True)
    logits = between.new_zeros(args.batch_size, args.seq_len, decoder.shape.rows, device="meta") if decoder.head else between
    own = PipelineStage(
        learner.model,
        stage,
        learner.layout.pipeline,
        device,
        input_args=between if stage else tokens,
        output_args=logits,
        group=group,
    )
    split = learner.layout.tensor > 1
    of_logits: Any = torch.compile(cross_entropy, **compiling(args)) if args.compile == "true" and not split else cross_entropy

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        mean = of_logits(output, targets)
        return learner.optimizer.scaled((mean.to_local() if split else mean) / args.accumulation)

    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[args.pipeline_schedule]
    return kind(own, args.accumulation, loss_fn=loss, scale_grads=False)


# --- taking a step --------------------------------------------------------------------------------------------------------


def taken(
    learner: Learner, tokens: torch.Tensor, targets: torch.Tensor, stamp: Callable[[str], None] = unheard
) -> torch.Tensor:
    """Take a step; return the mean loss of the global batch, on every rank.

    ``stamp`` is called before each micro-batch, after its forward and after its backward pass; not with a pipeline.
    """
    loss = piped(learner, tokens, targets) if learner.schedule else accumulated(learner, tokens, targets, stamp)
    learner.optimizer.step()
    if learner.layout.data_ranks * learner.layout.pipeline > 1:
        # Four bytes after the update, so that every line is about all tokens: stages without a loss add zero.
        loss = loss / (learner.layout.data_ranks * learner.layout.tensor)
        dist.all_reduce(loss)
    return loss


def accumulated(
    learner: Learner, tokens: torch.Tensor, targets: torch.Tensor, stamp: Callable[[str], None] = unheard
) -> torch.Tensor:
    """Add up the gradients of all micro-batches, and reduce them with the last one; return the mean loss of this rank's."""
    from torch.distributed.tensor.parallel import loss_parallel

    count, total = len(tokens), None
    for number in range(count):
        stamp("micro_batch")
        synchronise(learner.model, learner.layout, number == count - 1, learner.args.reshard == "true")
        with loss_parallel() if learner.layout.tensor > 1 else nullcontext():
            loss = learner.model(tokens[number], targets[number])  # its share of the step's
            stamp("forward")
            learner.optimizer.scaled(loss).backward()
        stamp("backward")
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


def piped(learner: Learner, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Send all micro-batches through the stages; return their mean loss on the last stage, zero on others."""
    from torch.distributed.tensor.parallel import loss_parallel

    losses: list[torch.Tensor] = []
    first, last = learner.decoder.embedding is not None, learner.decoder.head is not None
    given: dict[str, Any] = {"target": targets.flatten(0, 1), "losses": losses} if last else {}
    scale = learner.optimizer.scaled(torch.ones((), device=tokens.device))
    with loss_parallel() if learner.layout.tensor > 1 else nullcontext():
        learner.schedule.step(*([tokens.flatten(0, 1)] if first else []), **given, **WITHOUT_OUTPUTS)
    if learner.table is not None:
        gradient = as_held(learner.copy)
        dist.all_reduce(gradient.to_local() if hasattr(gradient, "to_local") else gradient, group=learner.table)
        learner.copy.grad = gradient
    return torch.stack([loss.detach() for loss in losses]).sum() / scale if last else torch.zeros((), device=tokens.device)
