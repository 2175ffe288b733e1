"""Train a GPT-2 or Llama with DeepSpeed's engine (`deepspeed.initialize`, ZeRO 0 to 3), and print one line per step.

Needs PyTorch 2.6 or newer, DeepSpeed (0.19.8 was run) and Python 3.10 or newer. Next to this file are the model (lm_models.py
and what it needs), the tokens (lm_steps.py), and code shared with other programs: torch_ranks.py, torch_clock.py,
rank_parts.py, trainer.py.

One process per device, which reads its rank from the environment, as torchrun sets it; DeepSpeed's own launcher is not needed:

    torchrun --standalone --nproc_per_node 8 train_deepspeed_lm.py --zero 3 --layers 12 --width 768 --heads 12 --mlp 3072 \\
        --vocab 50257 --norm layer --positions learned --max-positions 1024 --bias true --batch-size 16 --seq-len 1024

Every rank prints one `orch rank=` line, and `orch parts {json}` after the last step (rank_parts.py); rank 0 prints one `orch
step=` line per step and `orch done {json}` at the end. Model, tokens and loss are those of train_lm.py, so that a step differs
by DeepSpeed alone: what it does with types, gradients, optimizer state and, from ZeRO 3 on, parameters. The optimizer is
PyTorch's AdamW, which needs no extension of DeepSpeed's.

On a CPU, DeepSpeed compiles an extension for its collectives when it starts, where TORCH_EXTENSIONS_DIR says. A run that is
stopped meanwhile leaves a file `lock` there, for which every later one waits without a word: remove it before the start.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Callable

import rank_progress
import torch
import torch.distributed as dist
import trainer
from lm_loss import cross_entropy
from lm_models import Arithmetic, Decoder, Shape, filled, turned
from lm_parallel import Layout
from lm_steps import COMPUTE, Tokens
from rank_parts import RankParts
from step_timestamps import ignore_stamp
from torch_clock import DeviceClock
from torch_ranks import (
    World,
    claim,
    identity,
    join,
    leave_after,
    memory_bytes,
    prove_world,
    unusable_gpu,
)
from trainer import Step

# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="", help="name of the shape")
    for name in ("layers", "width", "heads", "mlp", "vocab"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument(
        "--kv-heads", type=int, default=0, help="key/value heads; 0: as many as --heads"
    )
    parser.add_argument("--head-width", type=int, default=0, help="0: --width / --heads")
    parser.add_argument("--gated", default="false", help="SwiGLU instead of GELU", **trainer.SWITCH)
    parser.add_argument(
        "--tied", default="true", help="the output layer is the embedding table", **trainer.SWITCH
    )
    parser.add_argument("--norm", choices=["layer", "rms"], default="layer")
    parser.add_argument("--positions", choices=["learned", "rotary"], default="learned")
    parser.add_argument(
        "--max-positions", type=int, default=1024, help="positions of the published model"
    )
    parser.add_argument(
        "--rope-theta", type=float, default=500000.0, help="base of rotary positions"
    )
    parser.add_argument(
        "--bias", default="false", help="biases of matrix products", **trainer.SWITCH
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--dtype",
        choices=["bf16", "tf32", "fp32"],
        default="bf16",
        help="bf16: DeepSpeed's, with fp32 master weights",
    )
    parser.add_argument(
        "--zero",
        type=int,
        choices=[0, 1, 2, 3],
        default=1,
        help="what is sharded: 1 optimizer state, 2 also gradients, 3 also weights",
    )
    parser.add_argument(
        "--batch-size", type=int, default=16, help="sequences per micro-batch and rank"
    )
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--seq-len", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--warmup-steps", type=int, default=0, help="steps before the measured window"
    )
    parser.add_argument(
        "--batches", type=int, default=2, help="different batches of tokens, used in turn"
    )
    parser.add_argument(
        "--checkpointing",
        choices=["none", "full"],
        default="none",
        help="full: recompute each layer",
    )
    parser.add_argument(
        "--overlap",
        default="true",
        help="reduce gradients during the backward pass",
        **trainer.SWITCH,
    )
    parser.add_argument(
        "--bucket-elements", type=int, default=500_000_000, help="gradients reduced at once"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1, help="weight decay of matrices")
    parser.add_argument(
        "--clip", type=float, default=1.0, help="maximum norm of all gradients; 0: no clipping"
    )
    parser.add_argument("--seed", type=int, default=0)
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


def unusable(args: argparse.Namespace) -> str:
    """Return why these arguments cannot be used, or an empty text."""
    sizes = (
        "layers",
        "width",
        "heads",
        "mlp",
        "vocab",
        "max_positions",
        "seq_len",
        "bucket_elements",
    )
    for name in (*sizes, "batch_size", "accumulation", "steps", "batches", "threads"):
        if getattr(args, name) < 1:
            return f"--{name.replace('_', '-')}: expected 1 or more, got {getattr(args, name)}"
    if not 0 <= args.warmup_steps < args.steps:
        return f"--warmup-steps: expected 0 to {args.steps - 1}, fewer than the steps, got {args.warmup_steps}"
    if not args.head_width and args.width % args.heads:
        return f"--heads: expected a divisor of --width {args.width}, or --head-width, got {args.heads}"
    if args.heads % (args.kv_heads or args.heads):
        return f"--kv-heads: expected a divisor of the {args.heads} heads, got {args.kv_heads}"
    if args.device == "cpu" and args.dtype == "tf32":
        return "--dtype: expected fp32 or bf16 on cpu, got tf32"
    if problem := unusable_gpu(args):
        return problem
    return (
        "" if args.timeout_s > 0 else f"--timeout-s: expected more than 0, got {args.timeout_s:g}"
    )


def shape_of(args: argparse.Namespace) -> Shape:
    """Return the sizes of the model."""
    given = {name: getattr(args, name) for name in Shape._fields if hasattr(args, name)}
    given |= {name: given[name] == "true" for name in ("gated", "tied", "bias")}
    given |= {
        "kv_heads": args.kv_heads or args.heads,
        "head_width": args.head_width or args.width // args.heads,
    }
    return Shape(**given, experts=1, active_experts=1)


def configuration(args: argparse.Namespace, world_size: int) -> dict[str, Any]:
    """Return what DeepSpeed reads from a file otherwise."""
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": args.accumulation,
        "train_batch_size": args.batch_size * args.accumulation * world_size,
        "gradient_clipping": args.clip,
        "bf16": {"enabled": args.dtype == "bf16"},
        "zero_optimization": {
            "stage": args.zero,
            "overlap_comm": args.overlap == "true",
            "reduce_bucket_size": args.bucket_elements,
        },
        "steps_per_print": 1 << 40,
    }


# --- main -----------------------------------------------------------------------------------------


def decoder_of(args: argparse.Namespace, device: torch.device) -> Decoder:
    """Return the whole model on the device, in fp32; DeepSpeed casts it."""
    decoder = Decoder(
        shape_of(args),
        Arithmetic(torch.float32, COMPUTE[args.dtype], False, args.checkpointing),
        args.seq_len,
    )
    blocks = {f"blocks.{number}": block for number, block in decoder.blocks.items()}
    for name, part in {**decoder.outer(), **blocks}.items():
        filled(part, name, decoder, device, args.seed)
    decoder.tie()
    turned(decoder, device)
    return decoder


def engine_of(args: argparse.Namespace, decoder: Decoder, world_size: int) -> Any:
    """Return DeepSpeed's engine around the model."""
    import deepspeed

    if args.zero == 3 and decoder.positions is not None:
        # Read by the decoder itself and not by a call of its own module, before which ZeRO gathers
        # weights.
        deepspeed.zero.register_external_parameter(decoder, decoder.positions.weight)
    matrices = [parameter for parameter in decoder.parameters() if parameter.dim() > 1]
    rest = [parameter for parameter in decoder.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=args.learning_rate, betas=(0.9, 0.95), fused=args.device == "cuda"
    )
    engine, *_ = deepspeed.initialize(
        model=decoder, optimizer=optimizer, config=configuration(args, world_size)
    )
    return engine


def taken(
    engine: Any, tokens: torch.Tensor, targets: torch.Tensor, stamp: Callable[[str], None]
) -> torch.Tensor:
    """Take a step of all micro-batches, each (batch, tokens); return the mean loss of the global
    batch.

    ``stamp`` gets the end of the first forward pass: in every backward pass DeepSpeed may communicate, whatever is accumulated.
    """
    losses = []
    for micro_tokens, micro_targets in zip(tokens, targets):
        loss = cross_entropy(engine(micro_tokens), micro_targets)
        if not losses:
            stamp("forward")
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    loss = torch.stack(losses).mean() / dist.get_world_size()
    dist.all_reduce(loss)
    return loss


def train(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return the facts of the run."""
    me, device = world.me, world.device
    decoder = decoder_of(args, device)
    parameters = decoder.own_parameters()
    engine = engine_of(args, decoder, me.world_size)
    batches = Tokens(args, Layout("ddp", 1, me.world_size), me.rank, device)
    samples = args.batch_size * args.accumulation * me.world_size
    clock: Any = DeviceClock(args.steps) if device.type == "cuda" else trainer.HostClock()
    window = RankParts(args.warmup_steps + 1, args.steps)
    stamp = (
        ignore_stamp if args.zero == 3 else clock.stamp
    )  # whose forward pass waits for the weights of other ranks

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

    prove_world(me, device)  # also the barrier before the first step
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start, skipped=0)
    for number in range(1, args.steps + 1):
        clock.begin()
        rank_progress.mark(number, "step")
        loss = taken(engine, *batches[number], stamp)
        tell(clock.mark(number, loss, 1.0))
    tell(clock.rest())
    trainer.say(window.line(me.rank))
    rank_progress.mark(args.steps, "end")
    if engine.global_steps != args.steps:
        raise RuntimeError(
            f"steps: expected {args.steps} updates, DeepSpeed counts {engine.global_steps}"
        )
    return {
        **decoder.shape._asdict(),
        "global_batch": samples,
        "parameters": parameters,
        "gradient_bytes": parameters * (2 if args.dtype == "bf16" else 4),
        "zero_stage": int(engine.zero_optimization_stage()),
        "optimizer": type(engine.optimizer).__name__,
    }


def main() -> None:
    """Join, train, verify, report."""
    args = arguments()
    me = identity()
    device = claim(args, me.local_rank)
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    os.environ.setdefault("DS_ACCELERATOR", args.device)
    # ninja, with which extensions are compiled, is next to this environment's interpreter.
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    world = join(args, me, device)
    import deepspeed

    of_run = train(args, world)
    prove_world(me, device)
    facts = {"deepspeed": deepspeed.__version__, **of_run}
    world.report(args, {"memory_bytes": memory_bytes(device)}, facts, ("overlap",))


if __name__ == "__main__":
    leave_after(main)
