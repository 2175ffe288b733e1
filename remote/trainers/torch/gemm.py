"""Measure how fast each device multiplies square matrices, all devices at the same time, and verify
the products.

Needs PyTorch 1.13 or newer (for fp8 2.5) and Python 3.8 or newer and, next to this file,
device_bench.py, trainer.py, torch_ranks.py and torch_timing.py. One process per device, which reads
its rank from the environment, as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 gemm.py --device cuda --dtype bf16 --sizes 4096,8192

A size n is a product of two n x n matrices, 2·n^3 floating-point operations. The matrices hold
normally distributed numbers, the same on every device: products of zeros need less power, and a GPU
at its power limit is then faster. The product that the measured calls leave is compared, every
element of it, with one of higher precision; a wrong product ends the run.

tf32, bf16 and fp8 are refused on GPUs that do not have them. fp8 is e4m3 with a scale of 1 and a
result in bf16, by torch._scaled_mm, with fast accumulation unless `--fast-accumulation false`.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, Callable, NamedTuple

import device_bench
import torch
import trainer
from torch_ranks import World, leave_after, require_type, run, settle

TYPES: dict[str, Any] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": getattr(torch, "float8_e4m3fn", None),
}
TOLERANCE = {"fp32": 2**-12, "tf32": 2**-5, "fp16": 2**-6, "bf16": 2**-5, "fp8": 2**-2}
"""The largest error of an element, as a fraction of its absolute value plus the root of n, which is
the standard deviation of all elements: ten times what the rounding of inputs and results and the
accumulation of the type cause, or more."""
ROWS = 1024
"""Rows of a product that are compared at once."""


class Product(NamedTuple):
    """Two matrices, their product, and the call that computes it."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    call: Callable[[], Any]


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = device_bench.options("gemm", list(TYPES), "rows of the square matrices")
    trainer.add_option(parser, "fast_accumulation", True, "fp8: accumulate in fewer bits")
    return parser.parse_args()


def needed_bytes(dtype: str, size: int) -> int:
    """Return the memory that a product and its verification take."""
    item = torch.empty(0, dtype=TYPES[dtype]).element_size()
    wide = 8 if dtype == "fp32" else 4
    return size * size * (2 * item + max(2, item) + wide) + 5 * min(ROWS, size) * size * wide


# --- the product ----------------------------------------------------------------------------------


def product(args: argparse.Namespace, device: torch.device, size: int) -> Product:
    """Return matrices of a size with the call that multiplies them. Until the first call the result
    is not a number.
    """
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device=device).to(TYPES[args.dtype]) for _ in range(2))
    if args.dtype != "fp8":
        out = torch.full_like(a, math.nan)
        return Product(a, b, out, lambda: torch.mm(a, b, out=out))
    out = torch.full((size, size), math.nan, dtype=torch.bfloat16, device=device)
    scale = torch.ones((), device=device)
    options = {
        "out_dtype": out.dtype,
        "use_fast_accum": args.fast_accumulation,
        "out": out,
    }
    by_columns = b.t()  # cuBLAS takes the second matrix of an fp8 product in this order only
    return Product(
        a,
        by_columns,
        out,
        lambda: torch._scaled_mm(a, by_columns, scale_a=scale, scale_b=scale, **options),
    )


def verify(dtype: str, made: Product, label: str) -> None:
    """Compare every element with the product in higher precision: of fp32 in fp64, of the others in
    fp32.

    Raises RuntimeError at the first element whose error is above `TOLERANCE`, or that is not a
    number.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    wide = torch.float64 if dtype == "fp32" else torch.float32
    second = made.b.to(wide)
    size = len(made.out)
    for first in range(0, size, ROWS):
        expected = made.a[first : first + ROWS].to(wide) @ second
        got = made.out[first : first + ROWS].to(wide)
        right = (got - expected).abs() <= TOLERANCE[dtype] * (expected.abs() + math.sqrt(size))
        if not bool(right.all()):
            row, column = (~right).nonzero()[0].tolist()
            values = (
                f"expected {float(expected[row, column]):.6g}, got {float(got[row, column]):.6g}"
            )
            raise RuntimeError(
                f"wrong result: {label}: row {first + row}, column {column}: {values}"
            )
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"


def tflops(size: int, time_s: float) -> float:
    """Return 10^12 floating-point operations per second: a multiplication and an addition for each
    of n^3 pairs.
    """
    return 2.0 * size**3 / time_s / 1e12


# --- main -----------------------------------------------------------------------------------------


def cases(args: argparse.Namespace, world: World) -> dict[str, Any]:
    """Measure and print every size."""
    require_type(world.device, args.dtype)
    sizes = device_bench.sizes(args)
    device_bench.require_memory(world, lambda size: needed_bytes(args.dtype, size), sizes)
    for size in sizes:
        made = product(args, world.device, size)
        timing = device_bench.measure(args, world.device, made.call)
        settle(world.device)
        verify(
            args.dtype,
            made,
            f"gemm of size {size}, {args.dtype}, rank {world.me.rank} on {world.host}",
        )
        trainer.say(f"gemm size={size} {timing.words()} tflops={tflops(size, timing.time_s):.6f}")
    return {"remarks": []}


def main() -> None:
    """Read the options, measure, report."""
    run(arguments(), cases)


if __name__ == "__main__":
    leave_after(main)
