"""Measure how fast data moves between host memory and GPU memory, all GPUs at the same time.

Needs PyTorch 1.13 or newer and Python 3.8 or newer and, next to this file, device_bench.py,
known_values.py, trainer.py, torch_ranks.py and torch_timing.py. One process per GPU, which reads
its rank from the environment, as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 host_device.py --sizes 1048576,268435456

`h2d` is host to device, `d2h` device to host, `both` is one copy each way at the same time on two
streams, whose bytes are added up; it is done when both are. Host memory is `pinned` (page-locked)
or `pageable`. A copy from or to pageable memory goes through buffers of the driver and occupies the
calling thread, so `both` is measured with pinned memory alone. Every byte that the last copies
leave is verified.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple, Tuple

import device_bench
import torch
import trainer
from known_values import check, fill
from torch_ranks import World, leave_after, run, settle

SENT = range(1, 252)
"""What the sending side holds, again and again; the receiving side holds zeros before."""


class Copy(NamedTuple):
    """A measurement: its direction, the kind of host memory, how many buffers it moves, its call,
    and the buffers it writes.
    """

    direction: str
    memory: str
    buffers: int
    call: Callable[[], Any]
    written: Tuple[torch.Tensor, ...]


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    return device_bench.options("host_device", ["none"], "bytes of a copy").parse_args()


def copies(device: torch.device, size: int) -> Iterator[Copy]:
    """Yield the measurements of a size, in bytes. Nothing was copied yet into the buffers that each
    of them writes.
    """
    sent = torch.empty(size, dtype=torch.uint8, device=device)
    fill(sent, SENT)
    for memory in ("pinned", "pageable"):
        source, target = (
            torch.zeros(size, dtype=torch.uint8, pin_memory=memory == "pinned") for _ in range(2)
        )
        fill(source, SENT)
        received = torch.zeros_like(sent)
        upload = partial(received.copy_, source, non_blocking=True)
        download = partial(target.copy_, sent, non_blocking=True)
        yield Copy("h2d", memory, 1, upload, (received,))
        yield Copy("d2h", memory, 1, download, (target,))
        if memory == "pinned":
            for buffer in (received, target):
                buffer.zero_()
            yield Copy("both", memory, 2, at_once(device, upload, download), (received, target))


def at_once(device: torch.device, *calls: Callable[[], Any]) -> Callable[[], None]:
    """Return a call that begins each of these on a stream of its own, and after which the current
    stream waits for all.
    """
    streams = [torch.cuda.Stream(device) for _ in calls]

    def call() -> None:
        current = torch.cuda.current_stream(device)
        for stream in streams:
            stream.wait_stream(current)
        for stream, begin in zip(streams, calls):
            with torch.cuda.stream(stream):
                begin()
        for stream in streams:
            current.wait_stream(stream)

    return call


def cases(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Measure and print every copy of every size."""
    sizes = device_bench.sizes(args)
    device_bench.require_memory(world, lambda size: 2 * size, sizes)
    for size in sizes:
        for copy in copies(world.device, size):
            timing = device_bench.measure(args, world.device, copy.call)
            settle(world.device)
            for buffer in copy.written:
                check(
                    buffer,
                    SENT,
                    0,
                    f"{copy.direction}, {copy.memory}, {size} bytes, rank {world.me.rank} on {world.host}",
                )
            trainer.say(
                f"copy direction={copy.direction} memory={copy.memory} size_bytes={size} {timing.words()}"
                f" gb_per_s={copy.buffers * size / timing.time_s / 1e9:.6f}"
            )
    return {"remarks": []}


def main() -> None:
    """Read the options, measure, report."""
    run(arguments(), cases)


if __name__ == "__main__":
    leave_after(main)
