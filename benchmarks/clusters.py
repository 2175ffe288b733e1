"""Simulated clusters whose truth is known, for rules that call a node slow.

    log(speed of a node in a repeat) = drift of the repeat + lasting difference + noise

Each node differs from its peers by a lasting share of 0.5 % (standard deviation), each measurement
has noise of its own, and all nodes share a drift from repeat to repeat. Needs the standard library
alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

NATURAL = 0.005
# Residuals of three repeats each of ten configurations of ResNet-50 on H200, in % of the speed,
# scaled to a standard deviation with two degrees of freedom: all rows with n = 3 in
# docs/results/*.json.
MEASURED = (
    -0.715, -0.324, -0.281, -0.235, -0.188, -0.111, -0.099, -0.092, -0.042, -0.041, -0.036, -0.031, -0.03, -0.006, 0.004,
    0.025, 0.027, 0.032, 0.036, 0.072, 0.086, 0.088, 0.1, 0.142, 0.182, 0.191, 0.254, 0.276, 0.32, 0.395,
)  # fmt: skip
# The same of two or three runs each of 18 programs on H100, ResNet-50 and language models, which
# docs/results/2026-11-25-h100-two.txt, 2026-11-27-h100-two.txt and 2026-11-27-h200-h100.txt have.
MEASURED_ON_H100 = (
    -2.144, -1.469, -1.287, -0.982, -0.699, -0.625, -0.572, -0.413, -0.257, -0.172, -0.157, -0.095, -0.094, -0.089, -0.084,
    -0.081, -0.071, -0.041, -0.036, -0.022, -0.007, 0.018, 0.022, 0.036, 0.041, 0.071, 0.081, 0.089, 0.091, 0.094, 0.095,
    0.139, 0.172, 0.257, 0.413, 0.625, 0.699, 1.287, 2.041, 3.125,
)  # fmt: skip
# The same of five repeats of a matrix product in a lab, on 8 nodes that share two processors with
# other work at a load of about 30; 2026-11-29.
MEASURED_IN_LAB = (
    -25.4, -19.1, -18.7, -18.3, -13.1, -12.3, -11.9, -10.8, -9.0, -7.8, -7.3, -6.7, -6.6, -5.7, -5.6, -4.0, -3.9, -3.6, -3.2,
    -2.8, -2.7, -0.6, -0.3, 0.0, 0.4, 2.6, 3.0, 4.6, 5.6, 9.0, 9.4, 11.2, 12.7, 12.8, 13.0, 15.4, 16.2, 16.6, 27.9, 39.0,
)  # fmt: skip
Noise = Callable[[random.Random, int], list[float]]
"""Returns the noise of one node in so many repeats, in logarithms of its speed."""


def each(draw: Callable[[random.Random], float]) -> Noise:
    """Return noise of which each repeat is drawn by itself."""
    return lambda generator, repeats: [draw(generator) for _ in range(repeats)]


def _heavy(generator: random.Random, scale: float) -> float:
    """Return a value of Student's t with 3 degrees of freedom, times ``scale``."""
    chi = sum(generator.gauss(0, 1) ** 2 for _ in range(3))
    return scale * generator.gauss(0, 1) / math.sqrt(chi / 3)


def _laplace(generator: random.Random, scale: float) -> float:
    return generator.choice((-1, 1)) * generator.expovariate(1 / scale)


def _measured(
    generator: random.Random, factor: float, residuals: Sequence[float] = MEASURED
) -> float:
    return factor * generator.choice(residuals) / 100


def _sometimes(generator: random.Random, share: float, slower: float) -> float:
    """Return measured noise, with a share of the measurements slower because something else runs on
    the node.
    """
    return _measured(generator, 1.0) - (slower if generator.random() < share else 0.0)


def _one_sided(generator: random.Random, scale: float) -> float:
    return -generator.expovariate(1 / scale)


def _lognormal(generator: random.Random, scale: float) -> float:
    return -scale * math.exp(generator.gauss(0, 1))


def _carried(generator: random.Random, repeats: int, carried: float, scale: float) -> list[float]:
    """Return normal noise of which a share is carried from repeat to repeat."""
    noise = [generator.gauss(0, scale)]
    while len(noise) < repeats:
        noise.append(carried * noise[-1] + math.sqrt(1 - carried**2) * generator.gauss(0, scale))
    return noise


def _staying(
    generator: random.Random, repeats: int, share: float, slower: float, stays: float
) -> list[float]:
    """Return measured noise, with a share of the measurements slower; each stays as the last one
    with a chance of ``stays``.
    """
    noise, is_slow = [], generator.random() < share
    for _ in range(repeats):
        noise.append(_measured(generator, 1.0) - (slower if is_slow else 0.0))
        if generator.random() >= stays:
            is_slow = generator.random() < share
    return noise


NOISE: Mapping[str, Noise] = {
    "measured": each(partial(_measured, factor=1.0)),
    "measured, five times": each(partial(_measured, factor=5.0)),
    "H100": each(partial(_measured, factor=1.0, residuals=MEASURED_ON_H100)),
    "lab": each(partial(_measured, factor=1.0, residuals=MEASURED_IN_LAB)),
    "normal, 1 %": each(lambda generator: generator.gauss(0, 0.01)),
    "Laplace, 1 %": each(partial(_laplace, scale=0.01)),
    "t with 3 degrees, 1 %": each(partial(_heavy, scale=0.01)),
    "t with 3 degrees, 3 %": each(partial(_heavy, scale=0.03)),
    "one in 20 slower by 10 %": each(partial(_sometimes, share=0.05, slower=0.10)),
    "one in 10 slower by 6 %": each(partial(_sometimes, share=0.1, slower=0.06)),
    "one in 4 slower by 6 %": each(partial(_sometimes, share=0.25, slower=0.06)),
    "one in 3 slower by 6 %": each(partial(_sometimes, share=1 / 3, slower=0.06)),
    "one-sided, exponential 2 %": each(partial(_one_sided, scale=0.02)),
    "one-sided, lognormal 2 %": each(partial(_lognormal, scale=0.02)),
    "normal, 1 %, 0.6 carried on": partial(_carried, carried=0.6, scale=0.01),
    "one in 4 slower by 6 %, half stay": partial(_staying, share=0.25, slower=0.06, stays=0.5),
    "one in 10 slower by 10 %, three in four stay": partial(
        _staying, share=0.1, slower=0.10, stays=0.75
    ),
}


def cluster(
    generator: random.Random, nodes: int, repeats: int, noise: Noise, slow: float = 0.0
) -> dict[str, list[float]]:
    """Return the speeds of each node, repeat by repeat; node 0 is slower by the share ``slow``."""
    return cluster_and_drift(generator, nodes, repeats, noise, slow)[0]


def cluster_and_drift(
    generator: random.Random, nodes: int, repeats: int, noise: Noise, slow: float = 0.0
) -> tuple[dict[str, list[float]], list[float]]:
    """Return the speeds as `cluster` does, and the drift of each repeat as a factor of them all."""
    drift = _carried(generator, repeats, 0.8, 0.03)
    values = {}
    for node in range(nodes):
        lasting = generator.gauss(0, NATURAL) - (math.log1p(slow) if node == 0 else 0.0)
        logs = zip(drift, noise(generator, repeats), strict=True)
        values[str(node)] = [math.exp(lasting + shared + own) for shared, own in logs]
    return values, [math.exp(shared) for shared in drift]
