"""Time a collective over a range of sizes, and print one line per size: in place and out of place, each proven right first.

Needs PyTorch 1.13 or newer and Python 3.8 or newer. Beside this file lie the calls themselves, collective_calls.py, and what
other programs share, trainer.py and torch_ranks.py. One process per device, who reads from the environment who it is, as
torchrun sets it:

    torchrun --standalone --nproc_per_node 8 collectives.py --collective allreduce --device cuda --dtype fp32

A line tells time and size and no bandwidth: bandwidths are computed from these. The method is that of nccl-tests: a barrier,
some calls that are not timed, then many between two marks; a rank's time is the mean of its calls, `time_s` the mean of all
ranks (its default, `-a 1`), `max_time_s` that of the slowest. Where a form does not exist, that is said and the others are
measured.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any, Callable, Mapping, Sequence

import torch
import torch.distributed as dist
import trainer
from collective_calls import COLLECTIVES, Calls, Case, rounded
from torch_ranks import World, claim, identity, join, leave_after, memory_bytes, prove_world, settle

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FORMS = {"both": (0, 1), "out": (0,), "in": (1,)}
SPARE_BYTES = 1 << 30
"""Of a device's memory, for NCCL's buffers and ours."""


# --- what is asked for ----------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--collective", choices=COLLECTIVES, default="allreduce")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=sorted(TYPES), default="fp32")
    parser.add_argument("--min-bytes", type=int, default=1 << 10, help="smallest size")
    parser.add_argument("--max-bytes", type=int, default=4 << 30, help="largest size")
    parser.add_argument("--factor", type=int, default=2, help="from one size to the next")
    parser.add_argument("--sizes", default="", help="sizes in bytes instead, with commas")
    parser.add_argument("--in-place", choices=sorted(FORMS), default="both")
    parser.add_argument("--steps", type=int, default=25, help="calls of each size, warm-up included")
    parser.add_argument("--warmup-steps", type=int, default=5, help="calls that are not timed")
    parser.add_argument(
        "--size-seconds", type=float, default=4.0, help="where a size takes longer, fewer calls are made, at least 2"
    )
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl on cuda, gloo on cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of one rank on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait for other ranks")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    if not all(word.isdigit() and int(word) for word in asked.sizes.split(",") if asked.sizes):
        return f"--sizes: expected whole numbers of bytes with commas, got {asked.sizes}"
    if not 0 < asked.min_bytes <= asked.max_bytes:
        return f"--min-bytes: expected 1 to {asked.max_bytes}, got {asked.min_bytes}"
    if asked.factor < 2:
        return f"--factor: expected 2 or more, got {asked.factor}"
    if not 0 <= asked.warmup_steps < asked.steps:
        return f"--warmup-steps: expected less than the {asked.steps} steps, got {asked.warmup_steps}"
    if asked.size_seconds <= 0 or asked.timeout_s <= 0:
        return "--size-seconds, --timeout-s: expected more than 0"
    if asked.device == "cuda" and not torch.cuda.is_available():
        return f"--device: expected a usable GPU, PyTorch {torch.__version__} finds none"
    if asked.device == "cpu" and asked.backend == "nccl":
        return "--backend: expected gloo on cpu, got nccl"
    return ""


def wanted_sizes(asked: argparse.Namespace) -> list[int]:
    """Return the sizes asked for, in bytes."""
    if asked.sizes:
        return [int(word) for word in asked.sizes.split(",")]
    sizes = [asked.min_bytes]
    while sizes[-1] * asked.factor <= asked.max_bytes:
        sizes.append(sizes[-1] * asked.factor)
    return sizes


def free_bytes(device: torch.device) -> int:
    """Return the memory that this rank may take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as lines:
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


# --- time -----------------------------------------------------------------------------------------------------------------


def all_ranks(device: torch.device, value: float, how: str = "max") -> float:
    """Return the largest, the least or the sum of a number over all ranks; it is a barrier as well."""
    number = torch.tensor([value], dtype=torch.float64, device=device)
    operations: Any = dist.ReduceOp
    dist.all_reduce(number, {"max": operations.MAX, "min": operations.MIN, "sum": operations.SUM}[how])
    return float(number)


def seconds(device: torch.device, call: Callable[[], Any], times: int) -> float:
    """Return the seconds of so many calls, one after the other, on this rank."""
    all_ranks(device, 0.0)
    settle(device)
    if device.type == "cpu":
        start = time.perf_counter()
        for _ in range(times):
            call()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000.0


def measure(asked: argparse.Namespace, world: World, call: Callable[[], Any]) -> tuple[int, float, float]:
    """Return how many calls were timed, and the mean seconds of one: of all ranks, and of the slowest."""
    device = world.device
    once = max(all_ranks(device, seconds(device, call, 1)), 1e-9)
    iterations = max(2, min(asked.steps - asked.warmup_steps, int(asked.size_seconds / once)))
    # The call that proves and the one above are warm-up as well.
    seconds(device, call, max(0, min(asked.warmup_steps - 2, int(asked.size_seconds / once / 4))))
    mine = seconds(device, call, iterations) / iterations
    return iterations, all_ranks(device, mine, "sum") / world.me.world_size, all_ranks(device, mine)


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def usable(calls: Calls, collective: str, in_place: bool) -> str:
    """Return why a form cannot be measured, or nothing. The smallest size is tried."""
    count, share = rounded(collective, 1, calls.send.element_size(), calls.me.world_size)
    why = ""
    try:
        calls.call(Case(collective, count, share, in_place))()
        settle(calls.device)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, OSError) as error:
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    elsewhere = all_ranks(calls.device, float(bool(why)))
    return why or "not on every rank" * bool(elsewhere)


def run(asked: argparse.Namespace, world: World) -> dict[str, Any]:
    """Measure every size in every form, rank 0 printing; return what was found out on the way."""
    item = torch.empty(0, dtype=TYPES[asked.dtype]).element_size()
    room = int(all_ranks(world.device, float(free_bytes(world.device)), "min")) - SPARE_BYTES
    shapes = list(dict.fromkeys(rounded(asked.collective, size, item, world.me.world_size) for size in wanted_sizes(asked)))
    fitting = [shape for shape in shapes if 2 * shape[0] * item <= room]
    left_out = [shape[0] * item for shape in shapes if shape not in fitting]
    if not fitting:
        raise SystemExit(f"memory: expected room for two buffers of {shapes[0][0] * item} bytes, {max(0, room)} bytes are left")
    calls = Calls(world, TYPES[asked.dtype], max(count for count, _ in fitting))
    unsupported = {}
    for in_place in FORMS[asked.in_place]:
        why = usable(calls, asked.collective, bool(in_place))
        if why:
            unsupported[in_place] = why
    for count, share in fitting:
        for in_place in FORMS[asked.in_place]:
            if in_place in unsupported:
                continue
            case = Case(asked.collective, count, share, bool(in_place))
            call = calls.call(case)
            calls.prove(case, call)
            iterations, mean, slowest = measure(asked, world, call)
            if world.me.rank == 0:
                trainer.say(
                    f"collective={asked.collective} size_bytes={count * item} in_place={in_place}"
                    f" iterations={iterations} time_s={mean:.9f} max_time_s={slowest:.9f}"
                )
    return {
        "sizes_bytes": [count * item for count, _ in fitting],
        "left_out_bytes": left_out,
        "unsupported": [{"in_place": in_place, "why": why} for in_place, why in unsupported.items()],
        "remarks": remarks(unsupported, left_out, room),
    }


def remarks(unsupported: Mapping[int, str], left_out: Sequence[int], room: int) -> list[str]:
    """Return in words what was not measured, and why."""
    names = ("out of place", "in place")
    found = [f"{names[in_place]} was not measured: {why}" for in_place, why in unsupported.items()]
    if left_out:
        sizes = f"{min(left_out)} bytes and more were left out"
        found.append(f"{sizes}: two buffers have to fit into {room} bytes, what the fullest device had free less {SPARE_BYTES}")
    return found


def main() -> None:
    """Join, measure, prove, report."""
    asked = arguments()
    me = identity()
    device = claim(asked, me.local_rank)
    world = join(asked, me, device)
    prove_world(me, device)
    found = run(asked, world)
    prove_world(me, device)
    world.report(asked, {"memory_bytes": memory_bytes(device)}, {"model": asked.collective, **found})


if __name__ == "__main__":
    leave_after(main)
