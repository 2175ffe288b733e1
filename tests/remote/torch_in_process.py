"""The PyTorch trainer inside the process of a test: its neighbours, a small model, and the losses
of its steps.
"""

from __future__ import annotations

import argparse
import sys
from types import ModuleType
from typing import Any


def neighbour(name: str) -> Any:
    """A file of the trainer's own folder, as the trainer has imported it."""
    return sys.modules[name]


def small(num_classes: int) -> Any:
    """Return a model of three stages; its source is also that of a program."""
    from torch import nn

    layers = [
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(16 * 13 * 13, num_classes))


def losses(
    trainer: ModuleType, asked: argparse.Namespace, steps: int = 3
) -> tuple[list[float], list[int]]:
    """The losses of some steps with and three without communication, and how many buckets each had
    reduced.
    """
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    device = torch.device("cpu")
    model = trainer.learner(asked, device)
    counts: list[int] = []

    def counted(_: Any, bucket: Any) -> Any:
        counts[-1] += 1
        return allreduce_hook(None, bucket)

    counted.__annotations__.clear()  # DDP refuses what is not its own type, and knows no name of one
    model.parallel.register_comm_hook(None, counted)
    batch = neighbour("torch_images").synthetic(asked, device, 0)
    found = []
    for network in [model.parallel] * steps + [model.parallel.module] * 3:
        counts.append(0)
        found.append(float(trainer.take_step(model, network, *batch)[0]))
    return found, counts
