"""Time one device at the request of the node test, which starts one such process for each device and
asks all of them at the same time.

Needs PyTorch 1.13 or newer and Python 3.8 or newer and, next to this file, gemm.py,
memory_bandwidth.py, host_device.py and what these import. A request is a line on standard input,
the name of a metric and the seconds it may take; an answer is a line of JSON on standard output:
``{"value": 668.7}`` in TFLOP/s or GB/s, ``{"wrong": "…"}`` for a wrong result, or ``{"absent":
"…"}`` where the device cannot do it. It ends with the end of its input.

On a GPU, CUDA_VISIBLE_DEVICES names the device, and then the one that `peer` copies from.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from typing import Any, Callable, NamedTuple

import gemm
import host_device
import memory_bandwidth
import torch
from device_bench import calls_of_a_step
from known_values import check, fill
from torch_ranks import device_name
from torch_timing import time_calls

STEP_S = 0.2
GEMM_SIZE = {"cuda": 8192, "cpu": 1024}
ARRAY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
COPY_BYTES = 1 << 28


class Case(NamedTuple):
    """A call, the TFLOP or GB of one call, and what verifies its result."""

    call: Callable[[], Any]
    amount: float
    verify: Callable[[], None]


def gemm_case(device: torch.device) -> Case:
    """Multiply matrices: bf16 on a GPU that has it, else fp16, fp32 on a processor."""
    dtype, size = "fp32", GEMM_SIZE[device.type]
    if device.type == "cuda":
        has_bf16 = torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)
        dtype = "bf16" if has_bf16 else "fp16"
    made = gemm.product(argparse.Namespace(dtype=dtype), device, size)
    return Case(made.call, gemm.tflops(size, 1.0), partial(gemm.verify, dtype, made, "gemm"))


def memory_case(device: torch.device) -> Case:
    """Run STREAM's triad, a = b + s·c, in the memory of the device."""
    size = ARRAY_BYTES[device.type]
    a, b, c = (torch.empty(size // 8, dtype=torch.float64, device=device) for _ in range(3))
    for array in (b, c):
        fill(array, memory_bandwidth.VALUES)
    triad = memory_bandwidth.kernels(a, b, c)[3]
    expected = [int(1 + memory_bandwidth.SCALAR) * value for value in memory_bandwidth.VALUES]
    verify = partial(check, a, expected, 0, "triad")
    return Case(triad.call, triad.arrays * size / 1e9, verify)


def host_case(direction: str, device: torch.device) -> Case:
    """Copy between page-locked memory of the host and the device. Raises LookupError on a processor."""
    if device.type == "cpu":
        raise LookupError("a processor has no memory of its own")
    copy = next(
        made for made in host_device.copies(device, COPY_BYTES) if made.direction == direction
    )
    verify = partial(check, copy.written[0], host_device.SENT, 0, direction)
    return Case(copy.call, COPY_BYTES / 1e9, verify)


def peer_case(device: torch.device) -> Case:
    """Copy from the memory of the second visible device. Raises LookupError if there is none."""
    if device.type == "cpu" or torch.cuda.device_count() < 2:
        raise LookupError("the node has no second device")
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda:1")
    fill(source, host_device.SENT)
    torch.cuda.synchronize("cuda:1")
    target = torch.zeros_like(source, device=device)
    verify = partial(check, target, host_device.SENT, 0, "copy from a peer")
    return Case(partial(target.copy_, source, non_blocking=True), COPY_BYTES / 1e9, verify)


CASES: dict[str, Callable[[torch.device], Case]] = {
    "gemm": gemm_case,
    "memory": memory_case,
    "h2d": partial(host_case, "h2d"),
    "d2h": partial(host_case, "d2h"),
    "peer": peer_case,
}


def measure(device: torch.device, metric: str, seconds: float) -> dict[str, Any]:
    """Return the answer to a request. The value is the median step: what disturbs less than half of
    them does not count.
    """
    try:
        case = CASES[metric](device)
    except LookupError as error:
        return {"absent": str(error)}
    calls = calls_of_a_step(device, case.call, STEP_S)
    steps = max(3, round(seconds / STEP_S))
    times = [time_calls(device, case.call, calls) / calls for _ in range(steps)]
    try:
        case.verify()
    except RuntimeError as error:
        if str(error).startswith("wrong result"):
            return {"wrong": str(error)}
        raise
    return {"value": case.amount / statistics.median(times)}


def main() -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    print(json.dumps({"name": device_name(device), "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        metric, seconds = line.split()
        print(json.dumps(measure(device, metric, float(seconds))), flush=True)


if __name__ == "__main__":
    main()
