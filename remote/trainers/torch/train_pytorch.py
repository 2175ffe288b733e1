"""Train ResNet-50 v1.5 or VGG16 with DistributedDataParallel, and print one line per step.

Needs PyTorch 1.13 or newer and Python 3.8 or newer; with synthetic images nothing else. Next to
this file are the models (torch_models.py), the images (torch_images.py), one step (torch_steps.py),
its measured parts (torch_parts.py), the search for the largest batch (torch_batch_search.py), and
code shared with other programs: torch_ranks.py, torch_clock.py, step_timestamps.py, trainer.py,
rank_parts.py, loaders.py. Two files re-implement parts of PyTorch: torch_packed.py, with
--cuda-graphs, and torch_gathered_pool.py, with --compile on a GPU.

One process per device, which reads its rank from the environment (RANK, LOCAL_RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT), as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 train_pytorch.py --model resnet50 --device cuda --dtype fp16 --batch-size 256
    torchrun --nnodes 4 --nproc_per_node 8 --node_rank 0 --master_addr 10.11.0.2 --master_port 29500 train_pytorch.py ...

Every rank prints one `orch rank=` line, and `orch parts {json}` after the last step
(rank_parts.py); rank 0 prints one `orch step=` line per step and `orch done {json}` at the end.
Synthetic images are made once, on the device, in the type of the first layer: a step contains no
loading and no copy. The other loaders read image folders, see loaders.py: `native` is torch's
DataLoader with Pillow, which sends pixels as bytes and normalises them on the device; `dali-cpu`
and `dali-gpu` are NVIDIA DALI. Waiting for them is part of a step.

The last line also has the facts that explain a speedup, all of them measured, none derived from the
speed:

        input_wait_s            per rank: seconds of the window from the end of a step until the next one's images are ready
        gradient_buckets_bytes  size of each all-reduce, in order, in bytes of gradient_dtype
        solo_step_s             per rank: a step without communication, after the last step, on all ranks at the same time
        solo_forward_s          its part for network and loss; solo_backward_s: for the gradients
        gradient_ready_s        on rank 0: when each bucket was complete, counted from the start of such a backward pass
        solo_reduce_s           per rank: all-reduces of all buckets, and nothing else
        beside_reduce_s         the same, started together with a backward pass that does not wait for them
        beside_backward_s       that backward pass; beside_forward_s: the forward pass before it

From solo_step_s on these are medians over the later half of --solo-steps, null without a
measurement: on one rank the last four, and all but solo_step_s if a step is one CUDA graph, whose
parts cannot be timed.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from functools import partial
from typing import Any

import loaders
import rank_progress
import torch
import trainer
from rank_parts import StepLog
from step_timestamps import ignore_stamp
from torch import nn
from torch_batch_search import search_batch_size
from torch_clock import DeviceClock
from torch_gathered_pool import difference
from torch_images import batches
from torch_models import COMPILE_OPTIONS, MODELS, channels_last
from torch_packed import buckets
from torch_parts import parts
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
)
from torch_steps import (
    EAGER_STEPS,
    Replayed,
    averaging,
    learner,
    reduction,
    scale_of,
    sgd,
    static_graph,
    take_step,
)
from trainer import Identity

# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.image_options(MODELS, "backend", "loader")
    add = partial(trainer.add_option, parser)
    add("dtype", "fp32", "fp16 and bf16: autocast", ["fp32", "tf32", "fp16", "bf16"])
    add("channels_last", "auto", "auto: on cuda, except for fp32", ["auto", "on", "off"])
    add("solo_steps", 10, "steps without communication, after the last step")
    add("find_batch_size", 0, "first report the largest up to this that fits")
    add("compile", False, "torch.compile, PyTorch 2.0 or newer")
    add("compile_level", "default", "how long --compile searches", list(COMPILE_OPTIONS))
    add("compile_split", "stages", "graphs that --compile makes", ["stages", "whole", "buckets"])
    pools = ["auto", "torch", "gathered"]
    add("max_pool", "auto", "pooling of the stem; gathered: with --compile", pools)
    add("cuda_graphs", False, "replay each step as one CUDA graph")
    add("optimizer", "auto", "SGD kernels", ["auto", "fused", "foreach", "plain"])
    add("cudnn_benchmark", True, "let cuDNN search for the fastest kernels")
    add("cudnn_benchmark_limit", 10, "kernels it times per convolution; 0: all")
    add("reduce", "auto", "auto: packed in a CUDA graph", ["auto", "ddp", "packed"])
    add("bucket_view", True, "keep gradients in the reduced buckets")
    add("static_graph", "auto", "auto: on unless compiled", ["auto", "on", "off"])
    add("compress", "none", "dtype of gradients on the wire", ["none", "fp16"])
    return parser.parse_args()


def claim_device(args: argparse.Namespace, local_rank: int) -> torch.device:
    """Select this rank's device and set the arithmetic of its matrix units."""
    device = claim(args, local_rank)
    if device.type == "cpu":
        return device
    # Always set both: cuDNN defaults to TF32, so that "fp32" would silently be TF32 in every
    # convolution.
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = args.dtype == "tf32"
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    torch.backends.cudnn.benchmark_limit = args.cudnn_benchmark_limit
    return device


def refuse(args: argparse.Namespace, device: torch.device) -> None:
    """Raise SystemExit if this PyTorch has no such optimizer or pooling on this device, which only
    a trial shows.
    """
    kind = sgd(args, nn.Linear(1, 1).to(device))[1]
    if args.cuda_graphs and args.dtype == "fp16" and kind != "fused":
        raise SystemExit(
            f"--optimizer: expected fused with --cuda-graphs and fp16, got {kind}: it waits for the overflow check"
        )
    if args.max_pool == "gathered" and (why := difference(device)):
        raise SystemExit(
            f"--max-pool: expected torch with PyTorch {torch.__version__}, got gathered: {why}"
        )


# --- main -----------------------------------------------------------------------------------------


def chosen_pool(args: argparse.Namespace, device: torch.device) -> str:
    """Return the pooling for --max-pool, the same on all ranks, which must call it together."""
    if args.max_pool != "auto":
        return str(args.max_pool)
    if not args.compile or args.model != "resnet50" or device.type != "cuda":
        return "torch"
    if why := difference(device):
        trainer.say(f"max_pool=torch, because gathered cannot be used: {why}")
    return "gathered" if all_ranks(device, not why, "min") else "torch"


def train(
    args: argparse.Namespace, me: Identity, device: torch.device
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take all steps, rank 0 printing them; return (facts of this rank, facts of the run)."""
    model = learner(args, device)
    data = batches(args, device, me)
    samples = args.batch_size * me.world_size
    scale = args.loss_scale if model.scaler else 1.0
    clock: Any = (
        DeviceClock(args.steps, scale) if device.type == "cuda" else trainer.HostClock(scale)
    )
    one = torch.ones((), device=device)

    models = averaging(args, model, me.world_size)
    log = StepLog(args, me.rank, samples, clock)
    stamp = (
        ignore_stamp if args.cuda_graphs else clock.stamp
    )  # the parts of a graph cannot be timed

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return take_step(model, next(models), images, labels, stamp)

    take: Any = Replayed(step, EAGER_STEPS) if args.cuda_graphs else step

    profiler = Profiler(me.rank, args.warmup_steps + 1, device)
    prove_world(
        me, device
    )  # also the barrier before the first step: from here on all ranks are ready
    log.start(skipped=0)
    retries = 0
    for number in range(1, args.steps + 1):
        if number == args.warmup_steps + 1:
            retries = allocator_retries(device)
        with profiler.step(number):
            rank_progress.mark(number, "input")
            images, labels = next(data)
            clock.begin()
            rank_progress.mark(number, "step")
            with from_root() if number == 1 else nullcontext():
                loss, output = take(images, labels)
        log.tell(clock.mark(number, loss, scale_of(model, one)))
    profiler.end()
    log.end()

    remarks = memory_remarks(device, allocator_retries(device) - retries)
    held, output_dtype = memory_bytes(device), str(output.dtype).split(".")[-1]
    del take, loss, output  # and with them a graph's memory
    prove_world(me, device)  # also the barrier before the steps without communication
    alone = parts(args, model, data, device, me)
    wire = 2 if args.compress == "fp16" else 4
    parameters = sum(p.numel() for p in model.parallel.parameters())
    ready = alone.pop("gradient_ready_s")
    return {"memory_bytes": held, "input_wait_s": round(log.input_wait_s, 6), **alone}, {
        "global_batch": samples,
        "parameters": parameters,
        "gradient_bytes": parameters * wire,
        "gradient_buckets_bytes": [size * wire // 4 for size in buckets(model.parallel)[0]],
        "gradient_dtype": {2: "float16", 4: "float32"}[wire],
        "gradient_ready_s": ready,
        "channels_last": channels_last(args),
        "static_graph": static_graph(args),
        "reduce": reduction(args, me.world_size),
        "optimizer": f"sgd {model.kind}",
        "output_dtype": output_dtype,
        "loss_scale": float(model.scaler.get_scale()) if model.scaler else None,
        "remarks": remarks,
    }


def main() -> None:
    """Join, train, verify, report."""
    see_own_gpu()
    args = arguments()
    loaders.require(args.loader)
    me = identity()
    device = claim_device(args, me.local_rank)
    refuse(args, device)
    world = join(args, me, device)
    args.max_pool = chosen_pool(args, device)
    facts = search_batch_size(args, me, device)
    # A capture works neither on the default stream nor with parameters made there.
    graphs = args.cuda_graphs
    with torch.cuda.stream(torch.cuda.Stream(device)) if graphs else nullcontext():
        of_rank, of_run = train(args, me, device)
    world.report(args, of_rank, {**facts, **of_run})


if __name__ == "__main__":
    leave_after(main)
