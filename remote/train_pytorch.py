"""Train ResNet-50 v1.5 or VGG16 with DistributedDataParallel, and print one line per step.

Needs PyTorch 1.13 or newer and Python 3.8 or newer, with synthetic images nothing else. Beside this file lie the models
(torch_models.py), the images (torch_images.py), one step (torch_steps.py), its measured parts (torch_parts.py), the search for
the largest batch (torch_batch_search.py), and what other programs share: torch_ranks.py, trainer.py, loaders.py. Two files
re-implement PyTorch and are off unless asked for: torch_packed.py and torch_gathered_pool.py.

One process per device, which reads who it is from the environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 train_pytorch.py --model resnet50 --device cuda --dtype fp16 --batch-size 256
    torchrun --nnodes 4 --nproc_per_node 8 --node_rank 0 --master_addr 10.11.0.2 --master_port 29500 train_pytorch.py ...

Every rank prints one `orch rank=` line; rank 0 prints one `orch step=` line for each step and `orch done {json}` at the end.
Synthetic images are made once, on the device, in the type the first layer computes in: no loader and no copy is part of a
step. The other loaders read image folders, see loaders.py: `native` is torch's DataLoader over Pillow, whose
pixels travel as bytes and are normalised on the device; `dali-cpu` and `dali-gpu` are NVIDIA DALI. Waiting for them is part of
a step.

The last line also holds what explains a speedup, each of it measured and none derived from the speed:

    input_wait_s            for each rank: seconds of the window between the end of a step and the next one's images being there
    gradient_buckets_bytes  what is all-reduced at once, in order, in bytes of gradient_dtype
    solo_step_s             for each rank: a step without communication, after the last step, while all ranks do the same
    solo_forward_s          of it: network and loss; solo_backward_s: the gradients
    gradient_ready_s        on rank 0: when each bucket was complete, counted from the start of such a backward pass
    solo_reduce_s           for each rank: all-reduces of all buckets, and nothing else
    beside_reduce_s         the same begun together with a backward pass that does not wait for them
    beside_backward_s       that backward pass; beside_forward_s: the forward pass before it

From solo_step_s on these are medians of the later half of --solo-steps, null where there were none: the last four on one rank,
and all but solo_step_s where a step is one CUDA graph, which cannot be looked into.
"""

from __future__ import annotations

import argparse
import inspect
from contextlib import nullcontext
from typing import Any

import torch
import trainer
from torch import nn
from torch_batch_search import searched
from torch_gathered_pool import refuse_pool
from torch_images import batches
from torch_models import COMPILE_OPTIONS, HALF_TYPES, MODELS, channels_last
from torch_packed import buckets
from torch_parts import parts
from torch_ranks import claim, identity, join, leave_after, memory_bytes, prove_world
from torch_steps import DDP_STEPS, EAGER_STEPS, DeviceClock, Replayed, averaging, learner, reduction, sgd, static_graph, taken
from trainer import Identity, Step

# --- options --------------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = trainer.options(MODELS)
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp32", help="fp16 and bf16: autocast")
    parser.add_argument("--channels-last", choices=["auto", "on", "off"], default="auto", help="auto: on cuda, but for fp32")
    parser.add_argument("--warmup-steps", type=int, default=0, help="of the steps, those before the window of input_wait_s")
    parser.add_argument("--solo-steps", type=int, default=10, help="steps without communication, after the last step")
    parser.add_argument("--find-batch-size", type=int, default=0, metavar="MOST", help="say the largest that fits, at first")
    parser.add_argument("--compile", default="false", help="torch.compile, PyTorch 2.0 or newer", **trainer.SWITCH)
    parser.add_argument("--compile-level", choices=list(COMPILE_OPTIONS), default="default", help="search of --compile")
    parser.add_argument("--compile-split", choices=["stages", "whole", "buckets"], default="stages", help="graphs of --compile")
    parser.add_argument("--max-pool", choices=["torch", "gathered"], default="torch", help="kernels of --compile for the stem")
    parser.add_argument("--cuda-graphs", default="false", help="replay each step as one CUDA graph", **trainer.SWITCH)
    parser.add_argument("--optimizer", choices=["auto", "fused", "foreach", "plain"], default="auto", help="kernels of SGD")
    parser.add_argument("--cudnn-benchmark", default="true", help="let cuDNN search for the fastest kernels", **trainer.SWITCH)
    parser.add_argument("--cudnn-benchmark-limit", type=int, default=10, help="kernels it times for each convolution, 0: all")
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl on cuda, gloo on cpu")
    parser.add_argument("--reduce", choices=["auto", "ddp", "packed"], default="auto", help="auto: packed in a CUDA graph")
    parser.add_argument("--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once")
    parser.add_argument("--bucket-view", default="true", help="gradients live in the buckets that travel", **trainer.SWITCH)
    parser.add_argument("--static-graph", choices=["auto", "on", "off"], default="auto", help="auto: on unless compiled")
    parser.add_argument("--compress", choices=["none", "fp16"], default="none", help="type of gradients on the wire")
    parser.add_argument("--loader", choices=["synthetic", "native", "dali-cpu", "dali-gpu"], default="synthetic")
    parser.add_argument("--data-dir", default="", help="where class folders of JPEG files lie, in train/ or directly")
    parser.add_argument("--workers", type=int, default=4, help="processes, with DALI threads, that load for one rank")
    parser.add_argument("--threads", type=int, default=1, help="threads of one rank on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait for other ranks, at start and in a step")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    counts = ("batch_size", "steps", "num_classes", "bucket_cap_mb", "threads", "workers")
    if problem := trainer.unusable_values(asked, counts):
        return problem
    if asked.device == "cuda" and not torch.cuda.is_available():
        return f"--device: expected a usable GPU, PyTorch {torch.__version__} finds none"
    if asked.device == "cpu" and asked.backend == "nccl":
        return "--backend: expected gloo on cpu, got nccl"
    if problem := trainer.unusable_loader(asked):
        return problem
    if asked.loader != "synthetic":
        import loaders

        if loaders.lacking(asked.loader):
            return str(loaders.lacking(asked.loader))
    if asked.compile == "true" and not hasattr(torch, "compile"):
        return f"--compile: expected PyTorch 2.0 or newer, got {torch.__version__}"
    if asked.max_pool == "gathered" and (asked.compile == "false" or asked.model != "resnet50"):
        return "--max-pool: expected torch but for resnet50 with --compile, got gathered"
    if not 0 <= asked.warmup_steps < asked.steps:
        return f"--warmup-steps: expected 0 or more and below the {asked.steps} steps, got {asked.warmup_steps}"
    for name in ("solo_steps", "find_batch_size", "cudnn_benchmark_limit"):
        if getattr(asked, name) < 0:
            return f"--{name.replace('_', '-')}: expected 0 or more, got {getattr(asked, name)}"
    if asked.find_batch_size and asked.device == "cpu":
        return f"--find-batch-size: expected 0 on cpu, got {asked.find_batch_size}: the system ends processes where memory ends"
    return unusable_reduction(asked) if reduction(asked) == "packed" or asked.cuda_graphs == "true" else ""


def unusable_reduction(asked: argparse.Namespace) -> str:
    """Return why gradients cannot be packed, or a step not be captured as one CUDA graph, or nothing."""
    graphs = asked.cuda_graphs == "true"
    switch, before = ("--cuda-graphs", EAGER_STEPS) if graphs else ("--reduce packed", DDP_STEPS)
    if graphs and (asked.device == "cpu" or asked.backend == "gloo"):
        return f"{switch}: expected cuda and nccl, got {asked.device} and {asked.backend}"
    captures = "capture_error_mode" in inspect.signature(torch.cuda.graph.__init__).parameters
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook") or (graphs and not captures):
        return f"{switch}: expected PyTorch 2.1 or newer, got {torch.__version__}"
    if asked.compress != "none":
        return f"--compress: expected none with {switch}, got {asked.compress}: its hook waits in Python for each bucket"
    if asked.steps <= before:
        return f"--steps: expected more than the {before} before {switch} takes over, got {asked.steps}"
    return ""


def claim_device(asked: argparse.Namespace, local_rank: int) -> torch.device:
    """Take this rank's device and set the arithmetic of its matrix units."""
    device = claim(asked, local_rank)
    if device.type == "cpu":
        return device
    # Both are set, always: cuDNN's default is TF32 on, so that "fp32" would silently be TF32 in every convolution.
    torch.backends.cuda.matmul.allow_tf32 = asked.dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = asked.dtype == "tf32"
    torch.backends.cudnn.benchmark = asked.cudnn_benchmark == "true"
    torch.backends.cudnn.benchmark_limit = asked.cudnn_benchmark_limit
    return device


def refuse(asked: argparse.Namespace, device: torch.device) -> None:
    """Raise SystemExit where this PyTorch lacks the type or the optimizer on this device, which is known only by trying."""
    kind = sgd(asked, nn.Linear(1, 1).to(device))[1]
    if asked.cuda_graphs == "true" and asked.dtype == "fp16" and kind != "fused":
        raise SystemExit(
            f"--optimizer: expected fused with --cuda-graphs and fp16, got {kind}: it waits for the overflow check"
        )
    if asked.max_pool == "gathered":
        refuse_pool(device)
    half = HALF_TYPES.get(asked.dtype)
    if half is None:
        return
    try:
        with torch.autocast(device.type, dtype=half):
            # Some versions without fp16 on cpu refuse it here, some only warn and go on in fp32.
            computed = (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).dtype
    except RuntimeError:
        computed = torch.float32
    if computed != half:
        raise SystemExit(f"--dtype: PyTorch {torch.__version__} computes no {asked.dtype} on {device.type}")


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def train(asked: argparse.Namespace, me: Identity, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take all steps, rank 0 printing them; return what this rank says of itself, and what holds for all."""
    model = learner(asked, device)
    data = batches(asked, device, me)
    samples = asked.batch_size * me.world_size
    clock = DeviceClock(asked.steps) if device.type == "cuda" else trainer.HostClock()

    models = averaging(asked, model)

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return taken(model, next(models), images, labels)

    take: Any = Replayed(step, EAGER_STEPS) if asked.cuda_graphs == "true" else step
    input_wait_s = 0.0

    def tell(finished: list[Step]) -> float:
        if me.rank == 0:
            trainer.say_steps(finished, samples)
        return sum(each.input_wait_s for each in finished if each.number > asked.warmup_steps)

    prove_world(me, device)  # also the barrier before the first step: from here on, all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    for number in range(1, asked.steps + 1):
        images, labels = next(data)
        clock.begin()
        loss, output = take(images, labels)
        input_wait_s += tell(clock.mark(number, loss))
    input_wait_s += tell(clock.rest())

    held, output_dtype = memory_bytes(device), str(output.dtype).split(".")[-1]
    del take, loss, output  # and with them the memory of a graph
    prove_world(me, device)  # also the barrier before the steps without communication
    alone = parts(asked, model, data, device, me)
    wire = 2 if asked.compress == "fp16" else 4
    parameters = sum(p.numel() for p in model.parallel.parameters())
    ready = alone.pop("gradient_ready_s")
    return {"memory_bytes": held, "input_wait_s": round(input_wait_s, 6), **alone}, {
        "global_batch": samples,
        "parameters": parameters,
        "gradient_bytes": parameters * wire,
        "gradient_buckets_bytes": [size * wire // 4 for size in buckets(model.parallel)[0]],
        "gradient_dtype": {2: "float16", 4: "float32"}[wire],
        "gradient_ready_s": ready,
        "channels_last": channels_last(asked),
        "static_graph": static_graph(asked),
        "reduce": reduction(asked),
        "optimizer": f"sgd {model.kind}",
        "output_dtype": output_dtype,
        "loss_scale": float(model.scaler.get_scale()) if model.scaler else None,
    }


def main() -> None:
    """Join, train, prove, report."""
    asked = arguments()
    me = identity()
    device = claim_device(asked, me.local_rank)
    refuse(asked, device)
    world = join(asked, me, device)
    found = searched(asked, me, device)
    # A capture cannot be made on the default stream, nor of parameters that were made there.
    with torch.cuda.stream(torch.cuda.Stream(device)) if asked.cuda_graphs == "true" else nullcontext():
        said, more = train(asked, me, device)
    switches = ("compile", "cuda_graphs", "cudnn_benchmark", "bucket_view")
    world.report(asked, said, {**found, **more}, switches)


if __name__ == "__main__":
    leave_after(main)
