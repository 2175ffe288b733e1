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
from functools import partial
from typing import Any

import rank_progress
import torch
import trainer
from torch_ranks import World, leave_after, prove_world, run

os.environ.setdefault("HF_HUB_OFFLINE", "1")
BATCHES = 4
"""Different global batches."""


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options(
        "model", *trainer.SIZES, "kv_heads", "tied", "rope_theta", "device", "accumulation", "checkpointing", "seed",
        "backend", "threads", "timeout_s", batch_size=1, seq_len=128, steps=10, learning_rate=3e-4,
    )  # fmt: skip
    add = partial(trainer.add_option, parser)
    add("architecture", "gpt2", "", ["gpt2", "llama"])
    add("dtype", "bf16", "bf16 and fp16: autocast", ["bf16", "fp16", "tf32", "fp32"])
    add("parallel", "ddp", "", ["ddp", "fsdp"])
    add("compile", False, "Trainer's torch_compile")
    add("attention", "sdpa", "", ["sdpa", "eager", "flash_attention_2"])
    return parser.parse_args()


# --- model and data -------------------------------------------------------------------------------


def model_of(args: argparse.Namespace) -> Any:
    """Return transformers' model of these sizes, with random weights in fp32."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    if args.architecture == "gpt2":
        config: Any = GPT2Config(
            n_layer=args.layers, n_embd=args.width, n_head=args.heads, n_inner=args.mlp, vocab_size=args.vocab,
            n_positions=args.max_positions, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=args.tied, use_cache=False, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    else:
        config = LlamaConfig(
            num_hidden_layers=args.layers, hidden_size=args.width, num_attention_heads=args.heads,
            num_key_value_heads=args.kv_heads or args.heads, intermediate_size=args.mlp, vocab_size=args.vocab,
            max_position_embeddings=args.max_positions, rope_theta=args.rope_theta,
            tie_word_embeddings=args.tied, use_cache=False, bos_token_id=0, eos_token_id=0,
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
        torch_compile=args.compile,
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
    import accelerate
    import transformers
    from transformers import PrinterCallback, Trainer, TrainerCallback

    transformers.logging.set_verbosity_error()

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
                (step,) = clock.mark(state.global_step, logs["loss"])
                if world.me.rank == 0:
                    trainer.say_step(step, global_batch)
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
        "transformers": transformers.__version__,
        "accelerate": accelerate.__version__,
        "global_batch": global_batch,
        "parameters": parameters,
        "gradient_bytes": parameters * 4,
        "gradient_dtype": "float32",
    }


def main() -> None:
    """Read the options, train, report."""
    run(arguments(), train)


if __name__ == "__main__":
    leave_after(main)
