"""The PyTorch trainer as a module, a group of one rank for it, and a skip where there is no
PyTorch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.remote.torch_in_process import neighbour, small
from tests.support.ports import free_port
from tests.support.trainers import PYTORCH, module, needs

# Compile in the test's process: processes for it would each import PyTorch first.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


@pytest.fixture(scope="session")
def trainer() -> ModuleType:
    """The PyTorch trainer as a module."""
    pytest.importorskip("torch")
    return module(PYTORCH)


@pytest.fixture
def alone(trainer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[argparse.Namespace]:
    """A group of one rank, a small model with the name of ResNet-50 and three stages, and what is
    asked of it.
    """
    import torch.distributed as dist

    monkeypatch.setitem(trainer.MODELS, "resnet50", small)
    monkeypatch.setitem(neighbour("torch_models").CUTS, "resnet50", (3, 6))
    monkeypatch.setattr(
        sys,
        "argv",
        ["train_pytorch.py", "--device", "cpu", "--image-size", "32", "--batch-size", "4"],
    )
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    try:
        yield trainer.arguments()
    finally:
        dist.destroy_process_group()


@pytest.fixture
def torch_of_trainers() -> None:
    """Skip where the interpreter of the trainers has no PyTorch."""
    needs("torch")
