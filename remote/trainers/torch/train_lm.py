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

The flags of the shape say everything about the model; --model is its name alone. A step is one update: --accumulation
micro-batches of --batch-size sequences on each data-parallel rank. Every rank prints one `orch rank=` line, and `orch parts
{json}` after the last step (rank_parts.py); rank 0 prints one `orch step=` line per step, with the loss of the whole batch,
and `orch done {json}` at the end, with the peak memory of all ranks in `memory_bytes`, in order of rank. It also has the
facts that explain a speedup, all of them measured, none derived from the speed:

        solo_step_s        per rank: a step without communication, after the last step, on all ranks at the same time
        solo_forward_s     the forward pass of its last micro-batch; solo_backward_s: the backward pass
        collectives        of rank 0, in order: [collective, bytes, number of its ranks, distance from one to the next, begins,
                           needed]: seconds of such a step after which it may begin, and after which computing waits for it
        solo_reduce_s      per rank: the collectives that may run during the last backward pass, and nothing else
        beside_reduce_s    the same, started together with a backward pass that does not wait for them
        beside_backward_s  that backward pass; beside_forward_s: the forward pass before it

Bytes are those of what is reduced, gathered or scattered, on all ranks together. Times are medians over the later half of
--solo-steps, null without a measurement: the last four where no collective runs while something is computed, as with FSDP on a
CPU.
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext
from typing import Any

import rank_progress
import torch
import trainer
from lm_adamw import Compiled
from lm_batch_search import attempt_all, largest_batch, memory_limit
from lm_embedding import embedding_of, unusable_rows
from lm_float8 import lacking
from lm_kernels import prefer_kernel
from lm_models import Arithmetic, Decoder, Shape
from lm_optimizer import scale_now
from lm_parallel import COMPILE_LEVELS, Layout, bucket_cap_mib, layout_of, split_of, unusable_layout
from lm_parts import parts
from lm_steps import COMPUTE, Tokens, learner, taken
from rank_parts import RankParts
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
    see_own_gpu,
    unusable_gpu,
)
from trainer import Identity, Step

SHAPE_COUNTS = ("layers", "width", "heads", "mlp", "vocab", "experts", "active_experts")
GONE = ("--tensor-parallel", "--pipeline-parallel", "--pipeline-schedule")
"""Flags that framework folders written for earlier versions still pass."""
KERNELS = {"cudnn": "cudnn", "flash": "flash", "efficient": "mem_efficient", "math": "math"}
"""The names of attention kernels in torch.backends.cuda, by --attention."""

# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="", help="name of the shape")
    shape = parser.add_argument_group("shape")
    for name in ("layers", "width", "heads", "mlp", "vocab"):
        shape.add_argument(f"--{name}", type=int, required=True)
    shape.add_argument(
        "--kv-heads", type=int, default=0, help="key/value heads; 0: as many as --heads"
    )
    shape.add_argument("--head-width", type=int, default=0, help="0: --width / --heads")
    shape.add_argument("--gated", default="false", help="SwiGLU instead of GELU", **trainer.SWITCH)
    shape.add_argument(
        "--tied", default="true", help="the output layer is the embedding table", **trainer.SWITCH
    )
    shape.add_argument("--experts", type=int, default=1, help="experts per layer")
    shape.add_argument(
        "--active-experts", type=int, default=1, help="experts that each token passes"
    )
    shape.add_argument("--norm", choices=["layer", "rms"], default="layer")
    shape.add_argument("--positions", choices=["learned", "rotary"], default="learned")
    shape.add_argument(
        "--max-positions", type=int, default=1024, help="positions of the published model"
    )
    shape.add_argument(
        "--rope-theta", type=float, default=500000.0, help="base of rotary positions"
    )
    shape.add_argument(
        "--bias", default="false", help="biases of matrix products", **trainer.SWITCH
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=16,
        help="sequences per micro-batch and data-parallel rank",
    )
    parser.add_argument("--seq-len", type=int, default=1024, help="tokens per sequence")
    parser.add_argument(
        "--find-batch-size",
        type=int,
        default=0,
        help="first search for the largest size up to this; 0: no",
    )
    parser.add_argument(
        "--attempts", default="false", choices=["true", "false"], help=argparse.SUPPRESS
    )
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--warmup-steps", type=int, default=0, help="steps before the measured window"
    )
    parser.add_argument(
        "--solo-steps",
        type=int,
        default=10,
        help="steps without communication, after the last step",
    )
    parser.add_argument(
        "--batches", type=int, default=2, help="different batches of tokens, used in turn"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument(
        "--clip", type=float, default=1.0, help="maximum norm of all gradients; 0: no clipping"
    )
    parser.add_argument(
        "--loss-scale",
        type=float,
        default=4096.0,
        help="initial value with fp16; halved at each overflow",
    )
    parser.add_argument(
        "--dtype", choices=list(COMPUTE), default="bf16", help="dtype of matrix products"
    )
    parser.add_argument(
        "--weights",
        choices=["fp32", "bf16"],
        default="fp32",
        help="dtype of parameters and optimizer state",
    )
    parser.add_argument(
        "--attention",
        choices=["auto", *KERNELS],
        default="auto",
        help="kernel; auto: PyTorch chooses",
    )
    parser.add_argument("--compile", default="false", help="torch.compile", **trainer.SWITCH)
    parser.add_argument(
        "--compile-level",
        choices=list(COMPILE_LEVELS),
        default="default",
        help="how long --compile searches",
    )
    parser.add_argument(
        "--compile-split",
        choices=["auto", "blocks", "whole"],
        default="auto",
        help="graphs of --compile",
    )
    parser.add_argument(
        "--checkpointing",
        choices=["none", "selective", "full"],
        default="none",
        help="what is recomputed",
    )
    parser.add_argument(
        "--loss-chunks",
        type=int,
        default=1,
        help="parts into which tokens are split for the logits",
    )
    parser.add_argument(
        "--parallel",
        choices=["auto", "ddp", "fsdp"],
        default="auto",
        help="auto: ddp up to 2e9 parameters",
    )
    parser.add_argument(
        "--reshard",
        default="true",
        help="fsdp: gather layers again for the backward pass",
        **trainer.SWITCH,
    )
    parser.add_argument(
        "--prefetch", type=int, default=0, help="fsdp: layers gathered ahead; 0: one, in backward"
    )
    parser.add_argument(
        "--embedding",
        choices=["auto", "gathered", "row-wise"],
        default="auto",
        help="fsdp: the table is gathered, or ranks look up tokens in the rows that they hold; auto: what sends less",
    )
    parser.add_argument(
        "--replicas", type=int, default=1, help="fsdp: groups of ranks, each with a whole copy"
    )
    for flag in GONE:
        parser.add_argument(flag, default="1", help=argparse.SUPPRESS)
    parser.add_argument(
        "--bucket-cap-mb",
        type=int,
        default=0,
        help="ddp: MiB of gradients reduced at once; 0: by the model",
    )
    parser.add_argument(
        "--backend",
        choices=["auto", "nccl", "gloo"],
        default="auto",
        help="auto: nccl on cuda, gloo on cpu",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads per rank on cpu")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=600.0,
        help="longest wait for other ranks, also at the start",
    )
    return trainer.parsed(parser, unusable)


def shape_of(args: argparse.Namespace) -> Shape:
    """Return the sizes of the model."""
    values = {name: getattr(args, name) for name in Shape._fields}
    for name in ("gated", "tied", "bias"):
        values[name] = values[name] == "true"
    values["kv_heads"] = values["kv_heads"] or values["heads"]
    values["head_width"] = values["head_width"] or values["width"] // values["heads"]
    return Shape(**values)


def unusable(args: argparse.Namespace) -> str:
    """Return why these arguments cannot be used, or an empty text."""
    counts = (
        "batch_size",
        "seq_len",
        "accumulation",
        "steps",
        "batches",
        "loss_chunks",
        "replicas",
    )
    for name in (*SHAPE_COUNTS, *counts, "threads", "max_positions"):
        if getattr(args, name) < 1:
            return f"--{name.replace('_', '-')}: expected 1 or more, got {getattr(args, name)}"
    counts = (
        "kv_heads",
        "head_width",
        "seed",
        "clip",
        "find_batch_size",
        "prefetch",
        "learning_rate",
        "weight_decay",
    )
    for name in (*counts, "solo_steps", "bucket_cap_mb"):
        if getattr(args, name) < 0:
            return f"--{name.replace('_', '-')}: expected 0 or more, got {getattr(args, name)}"
    for name in ("timeout_s", "loss_scale", "rope_theta"):
        if getattr(args, name) <= 0:
            return f"--{name.replace('_', '-')}: expected more than 0, got {getattr(args, name):g}"
    if not 0 <= args.warmup_steps < args.steps:
        return f"--warmup-steps: expected 0 to {args.steps - 1}, fewer than the steps, got {args.warmup_steps}"
    if args.seed >= 2**31:
        return f"--seed: expected less than 2^31, got {args.seed}"
    for flag in GONE[:2]:
        if getattr(args, flag[2:].replace("-", "_")) != "1":
            return f"{flag}: expected 1, this program does not split layers; torchtitan and megatron_lm do"
    for flag in GONE:
        delattr(args, flag[2:].replace("-", "_"))
    return unusable_shape(args) or unusable_device(args) or unusable_arithmetic(args)


def unusable_shape(args: argparse.Namespace) -> str:
    """Return why there is no such model, or an empty text."""
    if not args.head_width and args.width % args.heads:
        return f"--heads: expected a divisor of --width {args.width}, or --head-width, got {args.heads}"
    shape = shape_of(args)
    if shape.heads % shape.kv_heads:
        return f"--kv-heads: expected a divisor of the {shape.heads} heads, got {shape.kv_heads}"
    if shape.positions == "rotary" and shape.head_width % 2:
        return (
            f"--head-width: expected an even number with rotary positions, got {shape.head_width}"
        )
    if shape.active_experts > shape.experts:
        return f"--active-experts: expected at most the {shape.experts} of --experts, got {shape.active_experts}"
    if shape.experts > 1 and not hasattr(torch, "_grouped_mm"):
        return f"--experts: expected PyTorch 2.8 or newer, got {torch.__version__}"
    return ""


def unusable_device(args: argparse.Namespace) -> str:
    """Return what this device cannot do, or an empty text."""
    if problem := unusable_gpu(args):
        return problem
    if args.device == "cuda":
        reason = lacking() if args.dtype == "fp8" else ""
        return f"--dtype: {reason}, for fp8" if reason else ""
    if args.backend == "nccl":
        return "--backend: expected gloo on cpu, got nccl"
    if args.dtype in ("tf32", "fp8"):
        return f"--dtype: expected fp32, bf16 or fp16 on cpu, got {args.dtype}"
    if args.attention not in ("auto", "math"):
        return f"--attention: expected auto or math on cpu, got {args.attention}"
    if args.find_batch_size and not memory_limit():
        limit = "a limit of memory (ulimit -d), without which the system kills a process"
        return f"--find-batch-size: expected 0 on cpu, or {limit}, got {args.find_batch_size}"
    return ""


def unusable_arithmetic(args: argparse.Namespace) -> str:
    """Return which types and ways of computing exclude each other, or an empty text."""
    if args.weights == "bf16" and args.dtype not in ("bf16", "fp8"):
        return f"--weights: expected fp32 with --dtype {args.dtype}, got bf16"
    if args.dtype == "fp16" and args.loss_chunks > 1:
        return "--loss-chunks: expected 1 with --dtype fp16: gradients of parts are not scaled, and would vanish"
    sizes = {name: getattr(args, name) for name in ("width", "mlp")}
    sizes["tokens of a micro-batch"] = args.batch_size * args.seq_len
    if args.dtype == "fp8" and (
        odd := [f"{name} {size}" for name, size in sizes.items() if size % 16]
    ):
        return f"--dtype: expected sizes that 16 divides for fp8, got {', '.join(odd)}"
    return ""


def refuse(args: argparse.Namespace, me: Identity) -> tuple[Shape, Layout, int]:
    """Return the sizes of the model, how it is spread, and its parameters. Raises SystemExit if
    that is impossible.
    """
    shape = shape_of(args)
    if problem := unusable_layout(args, me.world_size):
        raise SystemExit(f"train_lm.py: {problem}")
    parameters = Decoder(
        shape, Arithmetic(torch.float32, torch.float32, False), args.seq_len
    ).own_parameters()
    layout = layout_of(args, me.world_size, parameters)
    args.bucket_cap_mb = args.bucket_cap_mb or bucket_cap_mib(parameters)
    if (
        args.embedding == "row-wise"
        and layout.kind != "none"
        and (unmet := unusable_rows(shape, layout))
    ):
        raise SystemExit(f"train_lm.py: --embedding row-wise: expected {unmet}")
    if args.compile_split == "whole" and me.world_size > 1:
        raise SystemExit(
            "train_lm.py: --compile-split: expected blocks on several ranks, got whole: all gradients would wait"
        )
    return shape, layout, parameters


def claim_device(args: argparse.Namespace, local_rank: int) -> torch.device:
    """Select this rank's device and set the arithmetic and the attention kernels of it."""
    device = claim(args, local_rank)
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

    window = RankParts(args.warmup_steps + 1, args.steps)
    # FSDP gathers layers in the forward pass: computing waits for them.
    stamp = clock.stamp if layout.kind in ("none", "ddp") else ignore_stamp

    def tell(finished: list[Step]) -> None:
        if me.rank == 0:
            trainer.say_steps(finished, samples)
        for step in finished:
            window.add(
                step.number,
                step.seconds,
                step.input_wait_s,
                step.compute_s,
                step.compute_cpu_s,
                step.gpu_waits,
            )

    profiler = Profiler(me.rank, args.warmup_steps + 1, device)
    prove_world(
        me, device
    )  # also the barrier before the first step: from here on all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start, skipped=0)
    retries = 0
    for number in range(1, args.steps + 1):
        if number == args.warmup_steps + 1:
            retries = allocator_retries(device)
        clock.begin()
        rank_progress.mark(number, "step")
        # In the first step, cuDNN's attention compiles its kernels.
        with profiler.step(number), from_root() if number == 1 else nullcontext():
            loss = taken(model, *batches[number], stamp)
        tell(clock.mark(number, loss, scale_now(model.optimizer)))
    tell(clock.rest())
    profiler.end()
    trainer.say(window.line(me.rank))
    rank_progress.mark(args.steps, "end")
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
    shape, layout, parameters = refuse(args, me)
    if args.attempts == "true":
        attempt_all(args, shape, layout, me, claim_device(args, me.local_rank), prefer_kernel)
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
    world.report(args, of_rank, {**sizes, **of_run}, ("compile", "reshard"))


if __name__ == "__main__":
    leave_after(main)
