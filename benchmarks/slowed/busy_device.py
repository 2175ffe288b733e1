"""Take a share of a GPU's time until killed: python busy_device.py DEVICE PERCENT

Matrix products of about half a millisecond, and between them pauses so long that a program which
always has work for the GPU gets 1/(1 + PERCENT/100) of its time: while both have work, each gets
half. Prints the length of a product and of a pause.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

PRODUCT_S = 0.0005


def main() -> None:
    """Compute and pause."""
    device, share = torch.device("cuda", int(sys.argv[1])), float(sys.argv[2]) / 100
    torch.cuda.set_device(device)
    size = 1024
    while (took := seconds(product(size, device))) < PRODUCT_S:
        size += 512
    matrix = product(size, device)
    pause_s = max(took * (1 + share) / share - 2 * took, 0.0)
    print(f"products of {took * 1000:.3f} ms, {pause_s * 1000:.3f} ms apart", flush=True)
    while True:
        matrix @ matrix
        torch.cuda.synchronize()
        time.sleep(pause_s)


def product(size: int, device: torch.device) -> torch.Tensor:
    """Return a square matrix to multiply with itself."""
    return torch.full((size, size), 0.5, dtype=torch.bfloat16, device=device)


def seconds(matrix: torch.Tensor) -> float:
    """Return how long a product takes on an idle GPU."""
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        matrix @ matrix
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


if __name__ == "__main__":
    main()
