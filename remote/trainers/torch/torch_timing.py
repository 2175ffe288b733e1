"""The time of calls on a device, and the memory that they may use. PyTorch 1.13 or newer, Python
3.8 or newer.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable

import torch
from torch_ranks import settle

SPARE_BYTES = 1 << 30
"""Memory of a device that is left free for the buffers of NCCL and of the programs."""


def time_calls(device: torch.device, call: Callable[[], Any], times: int) -> float:
    """Return the seconds of ``times`` calls, one after the other, on a device that is idle before:
    on a GPU between two of its own events, on a CPU by the monotonic clock."""
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


def free_bytes(device: torch.device) -> int:
    """Return the memory of the device that this rank may use."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as lines:
        available = next(
            int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")
        )
    return available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
