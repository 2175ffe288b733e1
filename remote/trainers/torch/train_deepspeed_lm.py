"""Train a GPT-2 or Llama with DeepSpeed's engine (`deepspeed.initialize`, ZeRO 0 to 3), and print one line per step.

Needs PyTorch 2.6 or newer, DeepSpeed (0.19.8 was run) and Python 3.10 or newer. Next to this file are the model (lm_models.py
and what it needs), the tokens (lm_steps.py), and code shared with other programs: torch_ranks.py, torch_clock.py,
rank_parts.py, trainer.py.

One process per device, which reads its rank from the environment, as torchrun sets it; DeepSpeed's own launcher is not needed:

    torchrun --standalone --nproc_per_node 8 train_deepspeed_lm.py --zero 3 --layers 12 --width 768 --heads 12 --mlp 3072 \\
        --vocab 50257 --norm layer --positions learned --max-positions 1024 --bias true --batch-size 16 --seq-len 1024

Every rank prints one `orch rank=` line, and `orch parts {json}` after the last step
(rank_parts.py); rank 0 prints one `orch step=` line per step and `orch done {json}` at the end.
Model, tokens and loss are the same as in train_lm.py, so a step differs by DeepSpeed alone: by its
handling of types, gradients, optimizer state and, from ZeRO 3 on, parameters. The optimizer is
PyTorch's AdamW, which needs no extension of DeepSpeed's.

On a CPU, DeepSpeed compiles an extension for its collectives when it starts, in
TORCH_EXTENSIONS_DIR. A run that is stopped meanwhile leaves a file `lock` there, for which every
later one waits without a word: remove it before the start.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable

import rank_progress
import torch
import torch.distributed as dist
import trainer
from lm_loss import cross_entropy
from lm_models import Arithmetic, Decoder, Shape, fill, set_rotations
from lm_parallel import Layout
from lm_steps import COMPUTE, Tokens
from rank_parts import StepLog
from step_timestamps import ignore_stamp
from torch_clock import DeviceClock
from torch_ranks import World, leave_after, prove_world, run

# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options(
        *trainer.SHAPE, "device", "batch_size", "accumulation", "seq_len", "steps", "warmup_steps", "batches",
        "checkpointing", "learning_rate", "weight_decay", "clip", "seed", "backend", "threads", timeout_s=600.0,
    )  # fmt: skip
    add = partial(trainer.add_option, parser)
    add("dtype", "bf16", "bf16: DeepSpeed's, with fp32 master weights", ["bf16", "tf32", "fp32"])
    sharded = "what is sharded: 1 optimizer state, 2 also gradients, 3 also weights"
    add("zero", 1, sharded, [0, 1, 2, 3])
    add("overlap", True, "reduce gradients during the backward pass")
    add("bucket_elements", 500_000_000, "gradients reduced at once")
    return parser.parse_args()


def shape_of(args: argparse.Namespace) -> Shape:
    """Return the sizes of the model."""
    values = trainer.shape_values(args, Shape._fields)
    return Shape(**values, experts=1, active_experts=1)


def configuration(args: argparse.Namespace, world_size: int) -> dict[str, Any]:
    """Return the configuration that DeepSpeed otherwise reads from a file."""
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": args.accumulation,
        "train_batch_size": args.batch_size * args.accumulation * world_size,
        "gradient_clipping": args.clip,
        "bf16": {"enabled": args.dtype == "bf16"},
        "zero_optimization": {
            "stage": args.zero,
            "overlap_comm": args.overlap,
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
        fill(part, name, decoder, device, args.seed)
    decoder.tie()
    set_rotations(decoder, device)
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


def take_step(
    engine: Any, tokens: torch.Tensor, targets: torch.Tensor, stamp: Callable[[str], None]
) -> torch.Tensor:
    """Take a step of all micro-batches, each (batch, tokens); return the mean loss of the global
    batch.

    ``stamp`` gets the end of the first forward pass: in every backward pass DeepSpeed may
    communicate, whatever is accumulated.
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
    import deepspeed

    me, device = world.me, world.device
    decoder = decoder_of(args, device)
    parameters = decoder.own_parameters()
    engine = engine_of(args, decoder, me.world_size)
    batches = Tokens(args, Layout("ddp", 1, me.world_size), me.rank, device)
    samples = args.batch_size * args.accumulation * me.world_size
    clock: Any = DeviceClock(args.steps) if device.type == "cuda" else trainer.HostClock()
    log = StepLog(args, me.rank, samples, clock)
    stamp = (
        ignore_stamp if args.zero == 3 else clock.stamp
    )  # whose forward pass waits for the weights of other ranks

    prove_world(me, device)  # also the barrier before the first step
    log.start(skipped=0)
    for number in range(1, args.steps + 1):
        clock.begin()
        rank_progress.mark(number, "step")
        loss = take_step(engine, *batches[number], stamp)
        log.tell(clock.mark(number, loss, 1.0))
    log.end()
    if engine.global_steps != args.steps:
        raise RuntimeError(
            f"steps: expected {args.steps} updates, DeepSpeed counts {engine.global_steps}"
        )
    return {
        "deepspeed": deepspeed.__version__,
        **decoder.shape._asdict(),
        "global_batch": samples,
        "parameters": parameters,
        "gradient_bytes": parameters * (2 if args.dtype == "bf16" else 4),
        "zero_stage": int(engine.zero_optimization_stage()),
        "optimizer": type(engine.optimizer).__name__,
    }


def main() -> None:
    """Read the options, train, report."""
    args = arguments()
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    os.environ.setdefault("DS_ACCELERATOR", args.device)
    # ninja, with which extensions are compiled, is next to this environment's interpreter.
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    run(args, train)


if __name__ == "__main__":
    leave_after(main)
