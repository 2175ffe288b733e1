"""Measure the bandwidth of each device's memory with the kernels of STREAM, all devices at the same
time.

Needs PyTorch 1.13 or newer and Python 3.8 or newer and, next to this file, device_bench.py,
known_values.py, trainer.py, torch_ranks.py and torch_timing.py. One process per device, which reads
its rank from the environment, as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 memory_bandwidth.py --device cuda --sizes 1073741824

Kernels and bytes are from STREAM (McCalpin, "Memory Bandwidth and Machine Balance in Current High
Performance Computers", 1995; stream.c 5.10): with three arrays a, b, c of as many bytes and a
scalar s

    copy    c = a          2 arrays moved
    scale   b = s·c        2
    add     c = a + b      3
    triad   a = b + s·c    3

Each is one PyTorch operation into an existing array. A write counts once, whether or not the
processor reads the cache line first. As in STREAM the kernels follow each other, so each result is
known, and every element of it is verified.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Callable, NamedTuple

import device_bench
import torch
import trainer
from known_values import check, fill
from torch_ranks import World, leave_after, run, settle

TYPES = {"fp64": torch.float64, "fp32": torch.float32}
SCALAR = 3.0
VALUES = range(1, 252)
"""What `a` holds at first, again and again: integers, so that every result is exact, and differs
from what was there before.
"""


class Kernel(NamedTuple):
    """A kernel on three arrays.

    It has its name, how many arrays it moves, its call, the array that it writes, and the factor of
    that array's values to the first values of a.
    """

    name: str
    arrays: int
    call: Callable[[], Any]
    written: torch.Tensor
    multiple: int


def kernels(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[Kernel]:
    """Return the kernels in the order in which their results build on each other."""
    return [
        Kernel("copy", 2, lambda: c.copy_(a), c, 1),
        Kernel("scale", 2, lambda: torch.mul(c, SCALAR, out=b), b, 3),
        Kernel("add", 3, lambda: torch.add(a, b, out=c), c, 4),
        Kernel("triad", 3, lambda: torch.add(b, c, alpha=SCALAR, out=a), a, 15),
    ]


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = device_bench.options("memory_bandwidth", list(TYPES), "bytes of each of three arrays")
    return parser.parse_args()


def cache_bytes(device: torch.device) -> int:
    """Return the size of the device's last-level cache, 0 if it is not known."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    root = "/sys/devices/system/cpu/cpu0/cache"
    sizes_bytes = [0]
    for index in os.listdir(root) if os.path.isdir(root) else []:
        if os.path.exists(f"{root}/{index}/size"):
            with open(f"{root}/{index}/size") as text:
                sizes_bytes.append(int(text.read().strip().rstrip("K") or 0) << 10)
    return max(sizes_bytes)


def remarks(device: torch.device, sizes: list[int]) -> list[str]:
    """Return sentences about sizes that a cache may hold in part: STREAM asks for arrays of four
    times the cache.
    """
    cache = cache_bytes(device)
    small = [str(size) for size in sizes if size < 4 * cache]
    words = "may show the cache: STREAM asks for arrays of four times the last-level cache"
    return [f"arrays of {', '.join(small)} bytes {words}, which has {cache} bytes"] if small else []


def cases(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Measure and print every kernel with arrays of every size; return what qualifies the numbers."""
    dtype = TYPES[args.dtype]
    sizes = device_bench.sizes(args)
    device_bench.require_memory(world, lambda size: 3 * size, sizes)
    for size in sizes:
        count = size // torch.empty(0, dtype=dtype).element_size()
        a, b, c = (torch.full((count,), -1.0, dtype=dtype, device=world.device) for _ in range(3))
        fill(a, VALUES)
        for kernel in kernels(a, b, c):
            timing = device_bench.measure(args, world.device, kernel.call)
            settle(world.device)
            label = f"{kernel.name} of {size} bytes, rank {world.me.rank} on {world.host}"
            check(kernel.written, [kernel.multiple * value for value in VALUES], 0, label)
            moved = kernel.arrays * size
            trainer.say(
                f"memory kernel={kernel.name} size_bytes={size} {timing.words()} gb_per_s={moved / timing.time_s / 1e9:.6f}"
                f" best_gb_per_s={moved / timing.min_time_s / 1e9:.6f}"
            )
    return {"remarks": remarks(world.device, sizes)}


def main() -> None:
    """Read the options, measure, report."""
    run(arguments(), cases)


if __name__ == "__main__":
    leave_after(main)
