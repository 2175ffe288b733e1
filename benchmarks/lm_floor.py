"""A language model as a careful engineer trains it, in one file and PyTorch's own words; see
language_models.py.

    python benchmarks/lm_floor.py --family gpt --layers 12 --width 768 --heads 12 --mlp 3072 --vocab 50257 --batch-size 64
    torchrun --standalone --nproc_per_node 8 benchmarks/lm_floor.py ... --parallel fsdp

Written like nanoGPT, with nothing of orch in it: fused matrix of queries, keys and values,
scaled_dot_product_attention, bf16 by autocast or by bf16 weights, torch.compile, fused AdamW,
clipping, DistributedDataParallel or FSDP2, a vocabulary rounded up to a multiple of 64. Two batches
of random tokens stay on the device. Rank 0 prints one line per step, two steps late, so that the
device never waits for it: `floor step=3 seconds=0.1204 loss=10.71`.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        """Return the normed x."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(
            x
        ) * self.weight.type_as(x)


def rope(x, cos, sin):
    """Turn x (batch, heads, tokens, head width) by its positions."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        gpt = a.family == "gpt"
        self.heads, self.kv_heads, self.head_width = (
            a.heads,
            a.kv_heads or a.heads,
            a.width // a.heads,
        )
        self.norm1, self.norm2 = (
            nn.LayerNorm(a.width) if gpt else RMSNorm(a.width) for _ in range(2)
        )
        self.qkv = nn.Linear(a.width, (self.heads + 2 * self.kv_heads) * self.head_width, bias=gpt)
        self.proj = nn.Linear(a.width, a.width, bias=gpt)
        self.up = nn.Linear(a.width, a.mlp, bias=gpt)
        self.gate = None if gpt else nn.Linear(a.width, a.mlp, bias=False)
        self.down = nn.Linear(a.mlp, a.width, bias=gpt)

    def forward(self, x, cos, sin):
        """Return the next x."""
        batch, tokens, width = x.shape
        sizes = [
            self.heads * self.head_width,
            self.kv_heads * self.head_width,
            self.kv_heads * self.head_width,
        ]
        q, k, v = self.qkv(self.norm1(x)).split(sizes, dim=2)
        q, k, v = (
            part.view(batch, tokens, -1, self.head_width).transpose(1, 2) for part in (q, k, v)
        )
        if cos is not None:
            q, k = rope(q, cos, sin), rope(k, cos, sin)
        if self.kv_heads != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        h = self.norm2(x)
        h = (
            functional.gelu(self.up(h), approximate="tanh")
            if self.gate is None
            else functional.silu(self.gate(h)) * self.up(h)
        )
        return x + self.down(h)


class Output(nn.Module):
    """The last norm, the output layer and the loss; a module of its own, as torchtitan shards them."""

    def __init__(self, a: argparse.Namespace, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(a.width) if a.family == "gpt" else RMSNorm(a.width)
        self.head = nn.Linear(a.width, vocab, bias=False)

    def forward(self, x, targets):
        """Return the mean loss."""
        return self.loss(self.norm(x), self.head.weight, targets)

    @staticmethod
    def loss(x, weight, targets):
        """Return the mean loss of the last norm's output."""
        logits = functional.linear(x, weight)
        return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


class Model(nn.Module):
    """A GPT-2 or a Llama."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        gpt = a.family == "gpt"
        vocab = -(-a.vocab // 64) * 64
        self.wte = nn.Embedding(vocab, a.width)
        self.wpe = nn.Embedding(a.seq_len, a.width) if gpt else None
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.output = Output(a, vocab)
        if a.tied == "true":
            self.output.head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(
                    parameter,
                    std=0.02 / (2 * a.layers) ** 0.5 if "proj" in name or "down" in name else 0.02,
                )
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.cos = self.sin = None
        if not gpt:
            width = a.width // a.heads
            angles = torch.outer(
                torch.arange(a.seq_len).float(),
                500000.0 ** (-torch.arange(0, width, 2).float() / width),
            )
            self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, tokens, targets):
        """Return the mean loss."""
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.output(x, targets)


def made(a: argparse.Namespace, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Return the model as it is called, and the module that has its parameters."""
    torch.manual_seed(0)
    with device:
        torch.set_default_dtype(torch.bfloat16 if a.weights == "bf16" else torch.float32)
        model = Model(a)
        torch.set_default_dtype(torch.float32)
    if model.cos is not None:
        model.cos, model.sin = model.cos.float(), model.sin.float()
    if a.compile == "blocks":
        for block in model.blocks:
            block.compile()
        model.output.loss = torch.compile(model.output.loss)
    called: nn.Module = model
    if a.parallel == "ddp":
        called = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
    elif a.parallel == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if a.dtype == "bf16" else None, reduce_dtype=torch.float32
        )
        for block in model.blocks:  # the last is needed again at once
            fully_shard(
                block, mp_policy=policy, reshard_after_forward=block is not model.blocks[-1]
            )
        if a.tied == "false":
            fully_shard(model.output, mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mp_policy=policy)
    if a.compile == "whole":
        called = torch.compile(called)
    return called, model


def main() -> None:
    """Train, and print the steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=["gpt", "llama"], default="gpt")
    for name in ("layers", "width", "heads", "mlp", "vocab"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--kv-heads", type=int, default=0)
    parser.add_argument("--tied", choices=["true", "false"], default="true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--weights", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", choices=["whole", "blocks", "false"], default="whole")
    parser.add_argument("--parallel", choices=["none", "ddp", "fsdp"], default="none")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    a = parser.parse_args()
    cuda, rank = a.device == "cuda", int(os.environ.get("RANK", "0"))
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if cuda
        else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if a.parallel != "none":
        dist.init_process_group("nccl" if cuda else "gloo")
    called, model = made(a, device)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=a.learning_rate, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(1 + rank)
    data = [torch.randint(a.vocab, (a.batch_size, a.seq_len + 1), device=device) for _ in range(2)]
    batches = [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in data]
    mixed = a.dtype == "bf16" and a.weights == "fp32" and a.parallel != "fsdp"

    losses = torch.zeros(a.steps, pin_memory=cuda)
    ends: list = (
        [torch.cuda.Event(enable_timing=True) for _ in range(a.steps + 1)]
        if cuda
        else [0.0] * (a.steps + 1)
    )

    def stamp(number: int) -> None:
        if cuda:
            ends[number].record()
        else:
            ends[number] = time.perf_counter()

    def tell(number: int) -> None:
        if cuda:
            ends[number].synchronize()
        seconds = (
            ends[number - 1].elapsed_time(ends[number]) / 1000
            if cuda
            else ends[number] - ends[number - 1]
        )
        if rank == 0:
            print(
                f"floor step={number} seconds={seconds:.6f} loss={float(losses[number - 1]):.6g}",
                flush=True,
            )

    stamp(0)
    for number in range(1, a.steps + 1):
        tokens, targets = batches[number % 2]
        with torch.autocast(device.type, dtype=torch.bfloat16) if mixed else nullcontext():
            loss = called(tokens, targets)
        loss.backward()
        if a.clip:
            nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[number - 1].copy_(loss.detach(), non_blocking=True)
        stamp(number)
        if number > 2:
            tell(number - 2)
    for number in range(max(1, a.steps - 1), a.steps + 1):
        tell(number)
    if cuda and rank == 0:
        print(f"floor memory_bytes={torch.cuda.max_memory_allocated()}", flush=True)
    if a.parallel != "none" and cuda:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
