"""Train a language model with Hugging Face's Trainer, and print one line per step.

Needs PyTorch 2.1 or newer, transformers and accelerate (5.23 and 1.15 were run), and Python 3.9 or
newer. Next to this file are torch_ranks.py and trainer.py. The model is transformers' own GPT-2 or
Llama, made from its sizes with random weights; all of a step is Trainer's: loading, accumulation,
mixed precision, clipping, AdamW, and the reading of the loss.

One process per device, which reads its rank from the environment, as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 train_hf_lm.py --device cuda --dtype bf16 --layers 12 --width 768 --heads 12 ...

Every rank prints one `orch rank=` line; rank 0 prints one `orch step=` line per step and `orch done
{json}` at the end. A step is over when Trainer has logged its loss (`logging_steps=1`), for which
it waits for the device. Trainer itself only reports the speed of a whole run, from its start to its
end.

Sequences are random tokens, four global batches that return in random order, so the loss falls.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import rank_progress
import torch
import trainer
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

os.environ.setdefault("HF_HUB_OFFLINE", "1")
BATCHES = 4
"""Different global batches."""


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--model", default="custom", help="name of the shape, printed in the last line"
    )
    parser.add_argument("--architecture", choices=["gpt2", "llama"], default="gpt2")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument(
        "--kv-heads", type=int, default=0, help="key/value heads of a llama; 0: one per head"
    )
    parser.add_argument("--mlp", type=int, default=256, help="hidden width of the MLP")
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument(
        "--tied", default="true", help="the output layer is the embedding table", **trainer.SWITCH
    )
    parser.add_argument("--max-positions", type=int, default=1024)
    parser.add_argument(
        "--rope-theta", type=float, default=10000.0, help="base of rotary positions of a llama"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--dtype",
        choices=["bf16", "fp16", "tf32", "fp32"],
        default="bf16",
        help="bf16 and fp16: autocast",
    )
    parser.add_argument(
        "--batch-size", type=int, default=1, help="sequences per device and micro-batch"
    )
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument(
        "--checkpointing",
        choices=["none", "full"],
        default="none",
        help="full: recompute each layer",
    )
    parser.add_argument(
        "--compile", default="false", help="Trainer's torch_compile", **trainer.SWITCH
    )
    parser.add_argument(
        "--attention", choices=["sdpa", "eager", "flash_attention_2"], default="sdpa"
    )
    parser.add_argument("--learning-rate", type=float, default=3e-4)
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
        default=120.0,
        help="longest wait for other ranks, also at the start",
    )
    return trainer.parsed(parser, unusable)


def unusable(args: argparse.Namespace) -> str:
    """Return why these arguments cannot be used, or an empty text."""
    sizes = ("layers", "width", "heads", "mlp", "vocab", "max_positions", "seq_len")
    for name in (*sizes, "batch_size", "accumulation", "steps", "threads"):
        if getattr(args, name) < 1:
            return f"--{name.replace('_', '-')}: expected 1 or more, got {getattr(args, name)}"
    if args.width % args.heads:
        return f"--heads: expected a divisor of --width {args.width}, got {args.heads}"
    if args.kv_heads and (
        args.heads % args.kv_heads or args.architecture == "gpt2" and args.kv_heads != args.heads
    ):
        return (
            f"--kv-heads: expected a divisor of --heads {args.heads} for a llama, got "
            f"{args.kv_heads} for {args.architecture}"
        )
    if args.seq_len > args.max_positions:
        return (
            f"--seq-len: expected at most --max-positions {args.max_positions}, got {args.seq_len}"
        )
    if args.device == "cpu" and args.dtype in ("tf32", "fp16"):
        return f"--dtype: expected fp32 or bf16 on cpu, got {args.dtype}"
    if args.device == "cpu" and args.parallel == "fsdp":
        return "--parallel: expected ddp on cpu, got fsdp, which accelerate leaves out there"
    if problem := unusable_gpu(args):
        return problem
    return (
        "" if args.timeout_s > 0 else f"--timeout-s: expected more than 0, got {args.timeout_s:g}"
    )


# --- model and data -------------------------------------------------------------------------------


def model_of(args: argparse.Namespace) -> Any:
    """Return transformers' model of these sizes, with random weights in fp32."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    if args.architecture == "gpt2":
        config: Any = GPT2Config(
            n_layer=args.layers, n_embd=args.width, n_head=args.heads, n_inner=args.mlp, vocab_size=args.vocab,
            n_positions=args.max_positions, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=args.tied == "true", use_cache=False, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    else:
        config = LlamaConfig(
            num_hidden_layers=args.layers, hidden_size=args.width, num_attention_heads=args.heads,
            num_key_value_heads=args.kv_heads or args.heads, intermediate_size=args.mlp, vocab_size=args.vocab,
            max_position_embeddings=args.max_positions, rope_theta=args.rope_theta,
            tie_word_embeddings=args.tied == "true", use_cache=False, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=args.attention)


class Tokens(torch.utils.data.Dataset):
    """As many sequences as the run takes, which are a few that repeat; the model itself shifts the
    labels.
    """

    def __init__(self, args: argparse.Namespace, global_batch: int) -> None:
        generator = torch.Generator().manual_seed(args.seed)
        self.rows = torch.randint(
            args.vocab, (BATCHES * global_batch, args.seq_len), generator=generator
        )
        self.length = args.steps * global_batch

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index % len(self.rows)]
        return {"input_ids": row, "labels": row}


# --- main -----------------------------------------------------------------------------------------


def settings(args: argparse.Namespace) -> Any:
    """Return Trainer's settings: nothing is saved or evaluated, and each step is logged."""
    from transformers import TrainingArguments

    # transformers 5 renames it.
    recompute = next(
        name
        for name in ("activation_checkpointing", "gradient_checkpointing")
        if name in TrainingArguments.__dataclass_fields__
    )
    return TrainingArguments(
        output_dir="output",
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulation,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.1,
        max_grad_norm=1.0,
        optim="adamw_torch_fused" if args.device == "cuda" else "adamw_torch",
        bf16=args.dtype == "bf16",
        fp16=args.dtype == "fp16",
        tf32=args.dtype == "tf32" if args.device == "cuda" else None,
        use_cpu=args.device == "cpu",
        torch_compile=args.compile == "true",
        fsdp="full_shard auto_wrap" if args.parallel == "fsdp" else "",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
        ddp_find_unused_parameters=False,
        dataloader_num_workers=0,
        **({recompute: True} if args.checkpointing == "full" else {}),
    )


def train(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return the facts of the run."""
    from transformers import PrinterCallback, Trainer, TrainerCallback

    global_batch = args.batch_size * args.accumulation * world.me.world_size
    clock = trainer.HostClock()

    class Lines(TrainerCallback):
        """Prints a line when the loss of a step has been logged."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            prove_world(world.me, world.device)  # also the barrier before the first step
            start = clock.start()
            if world.me.rank == 0:
                trainer.say_start(start)
            rank_progress.mark(1, "step")

        def on_log(
            self, _: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **__: Any
        ) -> None:
            del control
            if logs and "loss" in logs:
                steps = clock.mark(state.global_step, logs["loss"])
                if world.me.rank == 0:
                    trainer.say_steps(steps, global_batch)
                # After the line, which a full pipe may hold up. The end is in the last step: in a
                # later one this rank would be taken for one that has left out what others still
                # wait for.
                has_more = state.global_step < args.steps
                rank_progress.mark(state.global_step + has_more, "step" if has_more else "end")

    torch.manual_seed(args.seed)
    model = model_of(args)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    loop = Trainer(
        model=model,
        args=settings(args),
        train_dataset=Tokens(args, global_batch),
        callbacks=[Lines()],
    )
    loop.remove_callback(PrinterCallback)
    if loop.args.world_size != world.me.world_size:
        raise RuntimeError(
            f"ranks: expected Trainer to count {world.me.world_size}, got {loop.args.world_size}"
        )
    loop.train()
    if args.parallel == "fsdp" and loop.accelerator.distributed_type.value != "FSDP":
        # accelerate takes the setting and leaves it out where it does not apply, without a word.
        raise RuntimeError(
            f"--parallel: expected fsdp, accelerate trained with {loop.accelerator.distributed_type.value}"
        )
    return {
        "global_batch": global_batch,
        "parameters": parameters,
        "gradient_bytes": parameters * 4,
        "gradient_dtype": "float32",
    }


def main() -> None:
    """Join, train, verify, report."""
    args = arguments()
    import accelerate
    import transformers

    transformers.logging.set_verbosity_error()
    me = identity()
    device = claim(args, me.local_rank)
    world = join(args, me, device)
    of_run = train(args, world)
    prove_world(me, device)
    versions = {"transformers": transformers.__version__, "accelerate": accelerate.__version__}
    world.report(
        args, {"memory_bytes": memory_bytes(device)}, {**versions, **of_run}, ("tied", "compile")
    )


if __name__ == "__main__":
    leave_after(main)
