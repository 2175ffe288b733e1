"""Train a GPT-2, Llama or mixture of experts of any shape on random tokens, and print one line per step.

Needs PyTorch 2.6 or newer (2.8 for mixtures of experts) and Python 3.10 or newer, nothing else. Next to this file are the
model (lm_models.py, lm_experts.py, lm_recompute.py, lm_loss.py, lm_float8.py, lm_kernels.py), how it is spread over ranks
(lm_parallel.py), the optimizer (lm_optimizer.py, lm_adamw.py), one step (lm_steps.py), its measured parts (lm_parts.py), the
search for a batch size (lm_batch_search.py), and code shared with other programs: torch_ranks.py, torch_clock.py,
step_timestamps.py, torch_packed.py, rank_parts.py, trainer.py.

One process per device, which reads its rank from the environment, as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 train_lm.py --model gpt2-124m --layers 12 --width 768 --heads 12 --mlp 3072 \\
        --vocab 50257 --norm layer --positions learned --max-positions 1024 --bias true --batch-size 16 --seq-len 1024 \\
        --dtype bf16 --compile true

The flags of the shape define the model; --model is its name alone. A step is one update:
--accumulation micro-batches of --batch-size sequences on each data-parallel rank. Every rank prints
one `orch rank=` line, and `orch parts {json}` after the last step (rank_parts.py). Rank 0 prints
one `orch step=` line per step, with the loss of the whole batch, and `orch done {json}` at the end,
with the peak memory of all ranks in `memory_bytes`, in order of rank. It also has the facts that
explain a speedup, all of them measured, none derived from the speed:

        solo_step_s        per rank: a step without communication, after the last step, on all ranks at the same time
        solo_forward_s     the forward pass of its last micro-batch; solo_backward_s: the backward pass
        collectives        of rank 0, in order: [collective, bytes, number of its ranks, distance from one to the next, begins,
                           needed]: seconds of such a step after which it may begin, and after which computing waits for it
        solo_reduce_s      per rank: the collectives that may run during the last backward pass, and nothing else
        beside_reduce_s    the same, started together with a backward pass that does not wait for them
        beside_backward_s  that backward pass; beside_forward_s: the forward pass before it

Bytes count the reduced, gathered or scattered data on all ranks together. Times are medians over
the later half of --solo-steps, null without a measurement: the last four if no collective runs
during computation, as with FSDP on a CPU.
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import rank_progress
import torch
import trainer
from lm_adamw import Compiled
from lm_batch_search import attempt_all, largest_batch
from lm_embedding import embedding_of
from lm_kernels import prefer_kernel
from lm_models import Arithmetic, Decoder, Shape
from lm_optimizer import scale_now
from lm_parallel import COMPILE_LEVELS, Layout, bucket_cap_mib, layout_of, split_of
from lm_parts import parts
from lm_steps import COMPUTE, Tokens, learner, take_step
from rank_parts import StepLog
from step_timestamps import ignore_stamp
from torch_clock import DeviceClock
from torch_profile import Profiler
from torch_ranks import (
    all_ranks,
    allocator_retries,
    claim,
    from_root,
    identity,
    join,
    leave_after,
    memory_bytes,
    memory_remarks,
    prove_world,
    require_type,
    see_own_gpu,
)
from trainer import Identity

GONE = ("tensor_parallel", "pipeline_parallel", "pipeline_schedule")
"""Options that framework folders written for earlier versions still pass."""
KERNELS = {"cudnn": "cudnn", "flash": "flash", "efficient": "mem_efficient", "math": "math"}
"""The names of attention kernels in torch.backends.cuda, by --attention."""

# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options(
        *trainer.SHAPE, "device", "batch_size", "seq_len", "accumulation", "steps", "warmup_steps", "batches", "seed",
        "learning_rate", "weight_decay", "clip", "backend", "threads", timeout_s=600.0, loss_scale=4096.0,
    )  # fmt: skip
    add = partial(trainer.add_option, parser)
    add("experts", 1, "experts per layer")
    add("active_experts", 1, "experts that each token passes")
    add("find_batch_size", 0, "first search for the largest size up to this; 0: no")
    add("attempts", False, argparse.SUPPRESS)
    add("solo_steps", 10, "steps without communication, after the last step")
    add("dtype", "bf16", "dtype of matrix products", list(COMPUTE))
    add("weights", "fp32", "dtype of parameters and optimizer state", ["fp32", "bf16"])
    add("attention", "auto", "kernel; auto: PyTorch chooses", ["auto", *KERNELS])
    add("compile", False, "torch.compile")
    add("compile_level", "default", "how long --compile searches", list(COMPILE_LEVELS))
    add("compile_split", "auto", "graphs of --compile", ["auto", "blocks", "whole"])
    add("checkpointing", "none", "what is recomputed", ["none", "selective", "full"])
    add("loss_chunks", 1, "parts into which tokens are split for the logits")
    add("parallel", "auto", "auto: ddp up to 2e9 parameters", ["auto", "ddp", "fsdp"])
    add("reshard", True, "fsdp: gather layers again for the backward pass")
    add("prefetch", 0, "fsdp: layers gathered ahead; 0: one, in backward")
    looked_up = "ranks look up tokens in the rows that they hold; auto: what sends less"
    choices = ["auto", "gathered", "row-wise"]
    add("embedding", "auto", f"fsdp: the table is gathered, or {looked_up}", choices)
    add("replicas", 1, "fsdp: groups of ranks, each with a whole copy")
    add("bucket_cap_mb", 0, "ddp: MiB of gradients reduced at once; 0: by the model")
    for name in GONE:
        add(name, "1", argparse.SUPPRESS)
    args = parser.parse_args()
    for name in GONE:
        delattr(args, name)
    return args


def shape_of(args: argparse.Namespace) -> Shape:
    """Return the sizes of the model."""
    return Shape(**trainer.shape_values(args, Shape._fields))


def spread(args: argparse.Namespace, me: Identity) -> tuple[Shape, Layout, int]:
    """Return the sizes of the model, how it is spread over ranks, and its parameters."""
    shape = shape_of(args)
    whole = Arithmetic(torch.float32, torch.float32, False)
    parameters = Decoder(shape, whole, args.seq_len).own_parameters()
    args.bucket_cap_mb = args.bucket_cap_mb or bucket_cap_mib(parameters)
    return shape, layout_of(args, me.world_size, parameters), parameters


def claim_device(args: argparse.Namespace, local_rank: int) -> torch.device:
    """Select this rank's device and set the arithmetic and the attention kernels of it."""
    device = claim(args, local_rank)
    if args.dtype == "fp8":
        require_type(device, args.dtype)
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    if args.attention != "auto":
        for name, kernel in KERNELS.items():
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(name == args.attention)
    return device


# --- main -----------------------------------------------------------------------------------------


def train(
    args: argparse.Namespace, shape: Shape, layout: Layout, me: Identity, device: torch.device
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take all steps, rank 0 printing them; return (facts of this rank, facts of the run)."""
    model = learner(args, shape, layout, device)
    kernel, keys = prefer_kernel(args, model, device)
    batches = Tokens(args, layout, me.rank, device)
    samples = args.batch_size * args.accumulation * layout.ranks
    scale = args.loss_scale if args.dtype == "fp16" else 1.0
    clock: Any = (
        DeviceClock(args.steps, scale) if device.type == "cuda" else trainer.HostClock(scale)
    )

    log = StepLog(args, me.rank, samples, clock)
    # FSDP gathers layers in the forward pass: computing waits for them.
    stamp = clock.stamp if layout.kind in ("none", "ddp") else ignore_stamp

    profiler = Profiler(me.rank, args.warmup_steps + 1, device)
    prove_world(
        me, device
    )  # also the barrier before the first step: from here on all ranks are ready
    log.start(skipped=0)
    retries = 0
    for number in range(1, args.steps + 1):
        if number == args.warmup_steps + 1:
            retries = allocator_retries(device)
        clock.begin()
        rank_progress.mark(number, "step")
        # In the first step, cuDNN's attention compiles its kernels.
        with profiler.step(number), from_root() if number == 1 else nullcontext():
            loss = take_step(model, *batches[number], stamp)
        log.tell(clock.mark(number, loss, scale_now(model.optimizer)))
    profiler.end()
    log.end()
    remarks = memory_remarks(device, allocator_retries(device) - retries)
    held = memory_bytes(device)
    norm = None if model.optimizer.last_norm is None else float(model.optimizer.last_norm)
    of_steps = {
        "gradient_norm": norm if norm is not None and math.isfinite(norm) else None,
        "loss_scale": float(model.optimizer.scale) if model.optimizer.scale is not None else None,
    }
    prove_world(me, device)  # also the barrier before the steps without communication
    alone, collectives = parts(args, model, batches, device)
    return {"memory_bytes": held, **alone}, {
        **of_steps,
        "remarks": remarks,
        "collectives": collectives,
        **shape._asdict(),
        "global_batch": samples,
        "parallel": layout.kind,
        "data_ranks": layout.ranks,
        "attention_kernel": kernel,
        "attention_keys": keys,
        "compile_split": split_of(args, layout),
        "embedding": embedding_of(args, shape, layout) if layout.kind == "fsdp" else None,
        "optimizer": "adamw compiled"
        if isinstance(model.optimizer.adamw, Compiled)
        else "adamw fused",
    }


def main() -> None:
    """Join, train, verify, report."""
    see_own_gpu()
    args = arguments()
    me = identity()
    shape, layout, parameters = spread(args, me)
    if args.attempts:
        attempt_all(args, shape, layout, me, claim_device(args, me.local_rank))
        return
    own_largest = largest_batch(args) if args.find_batch_size else 0
    device = claim_device(args, me.local_rank)
    world = join(args, me, device)
    if own_largest:
        args.batch_size = int(all_ranks(device, own_largest, "min"))
        most = int(all_ranks(device, own_largest, "max"))
        if me.rank == 0:
            trainer.say(
                f"batch_size={args.batch_size}, the smallest of what fits on each rank; {most} on another rank"
            )
    del args.attempts
    of_rank, of_run = train(args, shape, layout, me, device)
    # What each rank hands in to be reduced: FSDP reduces in fp32, DDP in the type of the
    # parameters.
    width = 2 if args.weights == "bf16" and layout.kind != "fsdp" else 4
    sizes = {"parameters": parameters, "gradient_bytes": parameters * width}
    world.report(args, of_rank, {**sizes, **of_run})


if __name__ == "__main__":
    leave_after(main)
