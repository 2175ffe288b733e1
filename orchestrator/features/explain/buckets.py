"""Gradients that are all-reduced during the backward pass, by the buckets in which they are.

They are reduced one after the other, each bucket as soon as its gradients are complete, and the
optimizer waits for the last (S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data
Parallel Training", 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from orchestrator.results.parts.transfers import ALL_REDUCE, Transfer

BLOCKS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "resnet50": (
        (2_049_000, 0),
        *(
            (parameters, 1)
            for parameters in (4_462_592, 4_462_592, 6_039_552, *[1_117_184] * 5, 1_512_448)
        ),
        *(
            (parameters, 1)
            for parameters in (*[280_064] * 3, 379_392, 70_400, 70_400, 75_008, 9_536)
        ),
    )
}
"""By model: (parameters, relative time) of its blocks in the order of the backward pass. The
classifier of ResNet-50 takes next to no time; its 16 residual blocks and the stem take about
equally long (He et al., 2015: every stage halves the pixels and doubles the channels). For other
models the time of a block is assumed proportional to its parameters."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together. ``ready`` is the share of the backward pass after which
    they are complete.
    """

    size_bytes: int
    ready: float


def buckets_of(sizes_bytes: Sequence[int], model: str = "") -> tuple[Bucket, ...]:
    """Return buckets of these sizes in the order in which they are reduced, with ready times by the
    `BLOCKS` of the model.
    """
    blocks = BLOCKS.get(model, ((1, 1),))
    scale = sum(sizes_bytes) / sum(parameters for parameters, _ in blocks)
    all_time = sum(weight for _, weight in blocks)
    shares = []
    for end in accumulate(sizes_bytes):
        begins, time = 0.0, 0.0
        for parameters, weight in blocks:
            time += weight * min(1.0, max(0.0, (end - begins) / (parameters * scale)))
            begins += parameters * scale
        shares.append(time / all_time)
    if shares:
        shares[-1] = (
            1.0  # without a rounding error: the last gradients are the last work of the pass
        )
    return tuple(Bucket(size, share) for size, share in zip(sizes_bytes, shares, strict=True))


def reduce_buckets(buckets: Sequence[Bucket], backward: float) -> tuple[Transfer, ...]:
    """Return the all-reduces of a step whose backward pass, the last share ``backward`` of it,
    makes these buckets.
    """
    return tuple(
        Transfer(ALL_REDUCE, bucket.size_bytes, 1 - backward + bucket.ready * backward, 1.0)
        for bucket in buckets
    )
