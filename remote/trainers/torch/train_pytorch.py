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
import inspect
from contextlib import nullcontext
from typing import Any

import rank_progress
import torch
import trainer
from rank_parts import RankParts
from step_timestamps import ignore_stamp
from torch import nn
from torch_batch_search import searched
from torch_clock import DeviceClock
from torch_gathered_pool import difference
from torch_images import batches
from torch_models import COMPILE_OPTIONS, HALF_TYPES, MODELS, channels_last
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
    unusable_gpu,
)
from torch_steps import (
    DDP_STEPS,
    EAGER_STEPS,
    Replayed,
    averaging,
    learner,
    reduction,
    scale_of,
    sgd,
    static_graph,
    taken,
)
from trainer import Identity, Step

# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options(MODELS)
    parser.add_argument(
        "--dtype",
        choices=["fp32", "tf32", "fp16", "bf16"],
        default="fp32",
        help="fp16 and bf16: autocast",
    )
    parser.add_argument(
        "--channels-last",
        choices=["auto", "on", "off"],
        default="auto",
        help="auto: on cuda, except for fp32",
    )
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
        "--find-batch-size",
        type=int,
        default=0,
        metavar="MAX",
        help="first report the largest that fits",
    )
    parser.add_argument(
        "--compile", default="false", help="torch.compile, PyTorch 2.0 or newer", **trainer.SWITCH
    )
    parser.add_argument(
        "--compile-level",
        choices=list(COMPILE_OPTIONS),
        default="default",
        help="how long --compile searches",
    )
    parser.add_argument(
        "--compile-split",
        choices=["stages", "whole", "buckets"],
        default="stages",
        help="graphs that --compile makes",
    )
    pools = ["auto", "torch", "gathered"]
    parser.add_argument(
        "--max-pool",
        choices=pools,
        default="auto",
        help="pooling of the stem; gathered: with --compile",
    )
    parser.add_argument(
        "--cuda-graphs",
        default="false",
        help="replay each step as one CUDA graph",
        **trainer.SWITCH,
    )
    parser.add_argument(
        "--optimizer",
        choices=["auto", "fused", "foreach", "plain"],
        default="auto",
        help="SGD kernels",
    )
    parser.add_argument(
        "--cudnn-benchmark",
        default="true",
        help="let cuDNN search for the fastest kernels",
        **trainer.SWITCH,
    )
    parser.add_argument(
        "--cudnn-benchmark-limit",
        type=int,
        default=10,
        help="kernels it times per convolution; 0: all",
    )
    parser.add_argument(
        "--backend",
        choices=["auto", "nccl", "gloo"],
        default="auto",
        help="auto: nccl on cuda, gloo on cpu",
    )
    parser.add_argument(
        "--reduce",
        choices=["auto", "ddp", "packed"],
        default="auto",
        help="auto: packed in a CUDA graph",
    )
    parser.add_argument(
        "--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once"
    )
    parser.add_argument(
        "--bucket-view",
        default="true",
        help="keep gradients in the reduced buckets",
        **trainer.SWITCH,
    )
    parser.add_argument(
        "--static-graph",
        choices=["auto", "on", "off"],
        default="auto",
        help="auto: on unless compiled",
    )
    parser.add_argument(
        "--compress",
        choices=["none", "fp16"],
        default="none",
        help="dtype of gradients on the wire",
    )
    parser.add_argument(
        "--loader", choices=["synthetic", "native", "dali-cpu", "dali-gpu"], default="synthetic"
    )
    parser.add_argument(
        "--data-dir",
        default="",
        help="where class folders of JPEG files are, in train/ or directly",
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="loader processes per rank, threads with DALI"
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
    counts = ("batch_size", "steps", "num_classes", "bucket_cap_mb", "threads", "workers")
    if problem := trainer.unusable_values(args, counts):
        return problem
    if problem := unusable_gpu(args):
        return problem
    if args.device == "cpu" and args.backend == "nccl":
        return "--backend: expected gloo on cpu, got nccl"
    if problem := trainer.unusable_loader(args):
        return problem
    if args.loader != "synthetic":
        import loaders

        if loaders.lacking(args.loader):
            return str(loaders.lacking(args.loader))
    if args.compile == "true" and not hasattr(torch, "compile"):
        return f"--compile: expected PyTorch 2.0 or newer, got {torch.__version__}"
    if args.max_pool == "gathered" and (args.compile == "false" or args.model != "resnet50"):
        return (
            "--max-pool: expected auto or torch, except for resnet50 with --compile, got gathered"
        )
    if not 0 <= args.warmup_steps < args.steps:
        return f"--warmup-steps: expected 0 to {args.steps - 1}, fewer than the steps, got {args.warmup_steps}"
    for name in ("solo_steps", "find_batch_size", "cudnn_benchmark_limit"):
        if getattr(args, name) < 0:
            return f"--{name.replace('_', '-')}: expected 0 or more, got {getattr(args, name)}"
    if args.find_batch_size and args.device == "cpu":
        return f"--find-batch-size: expected 0 on cpu, got {args.find_batch_size}: without memory the system kills the process"
    return unusable_reduction(args) if args.reduce == "packed" or args.cuda_graphs == "true" else ""


def unusable_reduction(args: argparse.Namespace) -> str:
    """Return why gradients cannot be packed, or a step cannot be captured as one CUDA graph, or an
    empty text.
    """
    graphs = args.cuda_graphs == "true"
    switch, before = ("--cuda-graphs", EAGER_STEPS) if graphs else ("--reduce packed", DDP_STEPS)
    if graphs and (args.device == "cpu" or args.backend == "gloo"):
        return f"{switch}: expected cuda and nccl, got {args.device} and {args.backend}"
    captures = "capture_error_mode" in inspect.signature(torch.cuda.graph.__init__).parameters
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook") or (graphs and not captures):
        return f"{switch}: expected PyTorch 2.1 or newer, got {torch.__version__}"
    if args.compress != "none":
        return f"--compress: expected none with {switch}, got {args.compress}: its hook waits in Python for each bucket"
    if args.steps <= before:
        return f"--steps: expected more than the {before} steps before {switch} takes effect, got {args.steps}"
    return ""


def claim_device(args: argparse.Namespace, local_rank: int) -> torch.device:
    """Select this rank's device and set the arithmetic of its matrix units."""
    device = claim(args, local_rank)
    if device.type == "cpu":
        return device
    # Always set both: cuDNN defaults to TF32, so that "fp32" would silently be TF32 in every
    # convolution.
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = args.dtype == "tf32"
    torch.backends.cudnn.benchmark = args.cudnn_benchmark == "true"
    torch.backends.cudnn.benchmark_limit = args.cudnn_benchmark_limit
    return device


def refuse(args: argparse.Namespace, device: torch.device) -> None:
    """Raise SystemExit if this PyTorch has no such type or optimizer on this device, which only a
    trial shows.
    """
    kind = sgd(args, nn.Linear(1, 1).to(device))[1]
    if args.cuda_graphs == "true" and args.dtype == "fp16" and kind != "fused":
        raise SystemExit(
            f"--optimizer: expected fused with --cuda-graphs and fp16, got {kind}: it waits for the overflow check"
        )
    if args.max_pool == "gathered" and (why := difference(device)):
        raise SystemExit(
            f"--max-pool: expected torch with PyTorch {torch.__version__}, got gathered: {why}"
        )
    half = HALF_TYPES.get(args.dtype)
    if half is None:
        return
    try:
        with torch.autocast(device.type, dtype=half):
            # Some versions without fp16 on cpu raise here, others only warn and continue in fp32.
            computed = (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).dtype
    except RuntimeError:
        computed = torch.float32
    if computed != half:
        raise SystemExit(
            f"--dtype: PyTorch {torch.__version__} does not compute {args.dtype} on {device.type}"
        )


# --- main -----------------------------------------------------------------------------------------


def chosen_pool(args: argparse.Namespace, device: torch.device) -> str:
    """Return which pooling --max-pool means, the same on all ranks, which call it together."""
    if args.max_pool != "auto":
        return str(args.max_pool)
    if args.compile == "false" or args.model != "resnet50" or device.type != "cuda":
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
    window = RankParts(args.warmup_steps + 1, args.steps)
    stamp = (
        ignore_stamp if args.cuda_graphs == "true" else clock.stamp
    )  # the parts of a graph cannot be timed

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return taken(model, next(models), images, labels, stamp)

    take: Any = Replayed(step, EAGER_STEPS) if args.cuda_graphs == "true" else step
    input_wait_s = 0.0

    def tell(finished: list[Step]) -> float:
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
        return sum(step.input_wait_s for step in finished if step.number > args.warmup_steps)

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
        with profiler.step(number):
            rank_progress.mark(number, "input")
            images, labels = next(data)
            clock.begin()
            rank_progress.mark(number, "step")
            with from_root() if number == 1 else nullcontext():
                loss, output = take(images, labels)
        input_wait_s += tell(clock.mark(number, loss, scale_of(model, one)))
    input_wait_s += tell(clock.rest())
    profiler.end()
    trainer.say(window.line(me.rank))
    rank_progress.mark(args.steps, "end")

    remarks = memory_remarks(device, allocator_retries(device) - retries)
    held, output_dtype = memory_bytes(device), str(output.dtype).split(".")[-1]
    del take, loss, output  # and with them a graph's memory
    prove_world(me, device)  # also the barrier before the steps without communication
    alone = parts(args, model, data, device, me)
    wire = 2 if args.compress == "fp16" else 4
    parameters = sum(p.numel() for p in model.parallel.parameters())
    ready = alone.pop("gradient_ready_s")
    return {"memory_bytes": held, "input_wait_s": round(input_wait_s, 6), **alone}, {
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
    me = identity()
    device = claim_device(args, me.local_rank)
    refuse(args, device)
    world = join(args, me, device)
    args.max_pool = chosen_pool(args, device)
    facts = searched(args, me, device)
    # A capture works neither on the default stream nor with parameters made there.
    graphs = args.cuda_graphs == "true"
    with torch.cuda.stream(torch.cuda.Stream(device)) if graphs else nullcontext():
        of_rank, of_run = train(args, me, device)
    switches = ("compile", "cuda_graphs", "cudnn_benchmark", "bucket_view")
    world.report(args, of_rank, {**facts, **of_run}, switches)


if __name__ == "__main__":
    leave_after(main)
