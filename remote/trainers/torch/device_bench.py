"""Common code of the programs that measure devices: gemm.py, memory_bandwidth.py and
host_device.py.

PyTorch 1.13 or newer, Python 3.8 or newer. Every rank measures its own device, all ranks at the
same time, so that devices share power, memory and buses as in training. A case is a call on
prepared data, such as a product of one size. A step is a series of calls that takes about
`--step-seconds`; `--steps` of them are made, of which the first `--warmup-steps` do not count.
Every rank prints a line for each case:

    orch gemm size=8192 calls=1700 time_s=0.001468190 min_time_s=0.001466802 tflops=748.902131

`calls` are those that count, `time_s` is their mean and `min_time_s` the mean of the fastest step,
in seconds for a call.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Callable, NamedTuple, Sequence

import torch
import trainer
from torch_ranks import World, all_ranks
from torch_timing import SPARE_BYTES, free_bytes, time_calls

MOST_CALLS = 1 << 16
"""Most calls of a step."""


class Timing(NamedTuple):
    """The time of a call: how many were timed, the mean, and the mean of the fastest step, in
    seconds.
    """

    calls: int
    time_s: float
    min_time_s: float

    def words(self) -> str:
        """Return the part of a line that all programs print."""
        return f"calls={self.calls} time_s={self.time_s:.9f} min_time_s={self.min_time_s:.9f}"


# --- options --------------------------------------------------------------------------------------


def options(model: str, dtypes: Sequence[str], sizes: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all programs have. ``sizes``: what the sizes are, in
    words. The first type is the default."""
    parser = trainer.options("device", "backend", "threads", "timeout_s", steps=12, warmup_steps=2)
    add = partial(trainer.add_option, parser)
    add("model", model, "", [model])
    add("dtype", dtypes[0], "", list(dtypes))
    add("step_seconds", 0.25, "approximate seconds per step")
    parser.add_argument("--sizes", required=True, help=f"{sizes}, separated by commas")
    return parser


def sizes(args: argparse.Namespace) -> list[int]:
    """Return the sizes, in the order in which they were given, each once."""
    return list(dict.fromkeys(int(word) for word in args.sizes.split(",")))


def require_memory(world: World, needed: Callable[[int], int], all_sizes: Sequence[int]) -> None:
    """Raise SystemExit unless every size fits into this rank's memory. ``needed``: the bytes that a
    size takes.
    """
    space = max(0, free_bytes(world.device) - SPARE_BYTES)
    largest = max(all_sizes, key=needed)
    if needed(largest) > space:
        raise SystemExit(
            f"rank {world.me.rank}: --sizes: {largest} needs {needed(largest)} bytes, {space} are free on {world.name},"
            f" {SPARE_BYTES} left out for other buffers. choose smaller sizes"
        )


# --- timing ---------------------------------------------------------------------------------------


def calls_of_a_step(device: torch.device, call: Callable[[], Any], step_seconds: float) -> int:
    """Return how many calls take about that long. Calls are tried in growing numbers; the first
    loads what it needs.
    """
    time_calls(device, call, 1)
    calls = 1
    taken = time_calls(device, call, calls)
    while taken < step_seconds / 4 and calls < MOST_CALLS:
        calls *= 2
        taken = time_calls(device, call, calls)
    return max(1, min(MOST_CALLS, round(calls * step_seconds / max(taken, 1e-9))))


def measure(args: argparse.Namespace, device: torch.device, call: Callable[[], Any]) -> Timing:
    """Return the time of a call. All ranks begin together, and measure for about the same time."""
    all_ranks(device, 0.0)
    calls = calls_of_a_step(device, call, args.step_seconds)
    all_ranks(device, 0.0)
    seconds = [time_calls(device, call, calls) for _ in range(args.steps)][args.warmup_steps :]
    return Timing(calls * len(seconds), sum(seconds) / (calls * len(seconds)), min(seconds) / calls)
