"""Time a collective over a range of sizes and print one line per size, in place and out of place,
each result verified first.

Needs PyTorch 1.13 or newer and Python 3.8 or newer and, next to this file, the calls themselves,
collective_calls.py, and the shared modules trainer.py, torch_ranks.py, torch_timing.py and
known_values.py. One process per device, which reads its rank from the environment, as torchrun sets
it:

    torchrun --standalone --nproc_per_node 8 collectives.py --collective allreduce --device cuda --dtype fp32

A line has time and size and no bandwidth: bandwidths are computed from these. The method is
nccl-tests': a barrier, some untimed calls, then many between two timestamps. A rank's time is the
mean of its calls, `time_s` the mean of all ranks (the default of nccl-tests, `-a 1`), `max_time_s`
the time of the slowest. A form that does not exist is reported, and the others are measured.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Callable, Mapping, Sequence

import torch
import torch.distributed as dist
import trainer
from collective_calls import COLLECTIVES, TWO_BUFFERS, Calls, Case, Group, groups_of, round_size
from torch_ranks import World, all_ranks, leave_after, run, settle
from torch_timing import SPARE_BYTES, free_bytes, time_calls

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FORMS = {"both": (0, 1), "out": (0,), "in": (1,)}


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options("device", "backend", "threads", "timeout_s", steps=25, warmup_steps=5)
    add = partial(trainer.add_option, parser)
    add("collective", "allreduce", "", list(COLLECTIVES))
    add("dtype", "fp32", "", sorted(TYPES))
    add("min_bytes", 1 << 10, "smallest size")
    add("max_bytes", 4 << 30, "largest size")
    add("factor", 2, "ratio of each size to the previous one")
    add("sizes", "", "explicit sizes in bytes, separated by commas")
    add("group_ranks", 0, "ranks per group; all groups call at once; 0: all ranks")
    add("group_distance", 1, "distance between the ranks of a group")
    add("in_place", "both", "", sorted(FORMS))
    add("size_seconds", 4.0, "time limit per size; to meet it, fewer calls, at least 2, are made")
    return parser.parse_args()


def wanted_sizes(args: argparse.Namespace) -> list[int]:
    """Return the requested sizes, in bytes."""
    if args.sizes:
        return [int(word) for word in args.sizes.split(",")]
    sizes = [args.min_bytes]
    while sizes[-1] * args.factor <= args.max_bytes:
        sizes.append(sizes[-1] * args.factor)
    return sizes


# --- timing ---------------------------------------------------------------------------------------


def seconds(device: torch.device, call: Callable[[], Any], times: int) -> float:
    """Return this rank's seconds for ``times`` calls, one after the other, that all ranks begin
    together.
    """
    all_ranks(device, 0.0)
    return time_calls(device, call, times)


def measure(
    args: argparse.Namespace, world: World, call: Callable[[], Any]
) -> tuple[int, float, float]:
    """Return how many calls were timed, and the mean seconds per call: over all ranks, and of the
    slowest.
    """
    device = world.device
    once = max(all_ranks(device, seconds(device, call, 1)), 1e-9)
    iterations = max(2, min(args.steps - args.warmup_steps, int(args.size_seconds / once)))
    # The verifying call and the one above count as warm-up.
    seconds(device, call, max(0, min(args.warmup_steps - 2, int(args.size_seconds / once / 4))))
    own_mean = seconds(device, call, iterations) / iterations
    return (
        iterations,
        all_ranks(device, own_mean, "sum") / world.me.world_size,
        all_ranks(device, own_mean),
    )


# --- main -----------------------------------------------------------------------------------------


def usable(calls: Calls, collective: str, in_place: bool) -> str:
    """Return why a form cannot be measured, or an empty text. The smallest size is tried."""
    count, share = round_size(collective, 1, calls.send.element_size(), len(calls.group.ranks))
    why = ""
    try:
        calls.call(Case(collective, count, share, in_place))()
        settle(calls.device)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, OSError) as error:
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    failed_elsewhere = all_ranks(calls.device, float(bool(why)))
    return why or ("not available on every rank" if failed_elsewhere else "")


def group_of(args: argparse.Namespace, world: World) -> Group:
    """Return the group of this rank."""
    groups = groups_of(world.me.world_size, args.group_ranks, args.group_distance)
    handle = dist.new_subgroups_by_enumeration(groups)[0] if args.group_ranks else None
    own = next(ranks for ranks in groups if world.me.rank in ranks)
    return Group(own, own.index(world.me.rank), handle)


def measure_all(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Measure every size in every form, rank 0 printing; return the facts for the last line."""
    group = group_of(args, world)
    item = torch.empty(0, dtype=TYPES[args.dtype]).element_size()
    space = int(all_ranks(world.device, float(free_bytes(world.device)), "min")) - SPARE_BYTES
    shapes = list(
        dict.fromkeys(
            round_size(args.collective, size, item, len(group.ranks)) for size in wanted_sizes(args)
        )
    )
    fitting = [shape for shape in shapes if 2 * shape[0] * item <= space]
    left_out = [shape[0] * item for shape in shapes if shape not in fitting]
    if not fitting:
        needed = shapes[0][0] * item
        raise SystemExit(
            f"memory: expected space for two buffers of {needed} bytes, {max(0, space)} bytes are free"
        )
    calls = Calls(
        world, group, args.collective, TYPES[args.dtype], max(count for count, _ in fitting)
    )
    unsupported = {}
    for in_place in FORMS[args.in_place]:
        why = usable(calls, args.collective, bool(in_place))
        if why:
            unsupported[in_place] = why
    for count, share in fitting:
        for in_place in FORMS[args.in_place]:
            if in_place in unsupported:
                continue
            case = Case(args.collective, count, share, bool(in_place))
            call = calls.call(case)
            calls.prove(case, call)
            iterations, mean, slowest = measure(args, world, call)
            if world.me.rank == 0:
                trainer.say(
                    f"collective={args.collective} size_bytes={count * item} in_place={in_place}"
                    f" iterations={iterations} time_s={mean:.9f} max_time_s={slowest:.9f}"
                )
    return {
        "model": args.collective,
        "sizes_bytes": [count * item for count, _ in fitting],
        "left_out_bytes": left_out,
        "unsupported": [
            {"in_place": in_place, "why": why} for in_place, why in unsupported.items()
        ],
        "remarks": remarks({} if args.collective in TWO_BUFFERS else unsupported, left_out, space),
    }


def remarks(unsupported: Mapping[int, str], left_out: Sequence[int], space: int) -> list[str]:
    """Return sentences about what was not measured, and why."""
    names = ("out of place", "in place")
    sentences = [
        f"{names[in_place]} was not measured: {why}" for in_place, why in unsupported.items()
    ]
    if left_out:
        sizes = f"sizes from {min(left_out)} bytes on were left out"
        limit = f"the free memory of the fullest device less {SPARE_BYTES}"
        sentences.append(f"{sizes}: two buffers must fit into {space} bytes, {limit}")
    return sentences


def main() -> None:
    """Read the options, measure, report."""
    run(arguments(), measure_all)


if __name__ == "__main__":
    leave_after(main)
