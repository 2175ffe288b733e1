"""Pooling by gathering: the results of torch's own, and when it is chosen."""

from __future__ import annotations

import argparse
import shutil
from types import ModuleType
from typing import Any

import pytest

from tests.remote.torch_in_process import losses, neighbour


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (9, 7), (8, 8), (33, 112)])
@pytest.mark.parametrize("layout", ["channels_last", "contiguous_format"])
def test_pooling_by_gathering_is_that_of_torch_bit_for_bit(
    trainer: ModuleType, dtype: str, size: tuple[int, int], layout: str
) -> None:
    import torch

    torch.manual_seed(1)
    # Few different values, so that the largest is often there twice, and one that is no number.
    images = torch.randint(-3, 4, (2, 3, *size)).relu().to(getattr(torch, dtype))
    images[1, 2, 0, 0] = float("nan")
    found = []
    for pool in (
        torch.nn.MaxPool2d(3, stride=2, padding=1),
        neighbour("torch_gathered_pool").GatheredPool(),
    ):
        pixels = images.clone(memory_format=getattr(torch, layout)).requires_grad_()
        most = pool(pixels)
        torch.manual_seed(2)
        most.backward(torch.randn(most.shape).to(most.dtype))
        found.append((most.detach(), pixels.grad))
    for of_torch, ours in zip(*found, strict=True):
        assert torch.equal(torch.nan_to_num(ours, nan=9.0), torch.nan_to_num(of_torch, nan=9.0))
    assert found[0][0].isnan().sum() == 1 and found[1][1].is_contiguous(
        memory_format=getattr(torch, layout)
    )


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_pools_by_gathering_has_the_losses_of_another(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo
    from torch import nn

    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    made = []

    def pooled(num_classes: int) -> Any:
        stem = [
            nn.Conv2d(3, 8, 3, stride=2),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        made.append(
            nn.Sequential(
                *stem,
                nn.Conv2d(8, 16, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(16 * 6 * 6, num_classes),
            )
        )
        return made[-1]

    monkeypatch.setitem(trainer.MODELS, "resnet50", pooled)
    torch._dynamo.reset()
    found = [
        losses(trainer, argparse.Namespace(**vars(alone) | {"compile": on, "max_pool": pool}))[0]
        for on, pool in ((False, "torch"), (True, "gathered"))
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    gradients = [model[0].weight.grad for model in made]
    assert [type(model[3]) for model in made] == [
        nn.MaxPool2d,
        neighbour("torch_gathered_pool").GatheredPool,
    ] and all(each.any() for each in gradients)


@pytest.mark.filterwarnings("ignore")
def test_pooling_that_is_compiled_to_something_else_is_refused(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import torch._dynamo

    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    torch._dynamo.reset()
    cpu = torch.device("cpu")
    alone.compile, alone.max_pool = True, "gathered"
    trainer.refuse(alone, cpu)
    for change, why in (
        (lambda ctx, gradient: torch.zeros(2, 8, 9, 8), "its gradient differs from torch's"),
        (lambda ctx, gradient: [].pop(), "[A-Z]"),
    ):
        torch._dynamo.reset()
        monkeypatch.setattr(
            neighbour("torch_gathered_pool").Gather, "backward", staticmethod(change)
        )
        with pytest.raises(
            SystemExit, match=f"--max-pool: expected torch with PyTorch .*, got gathered: .*{why}"
        ):
            trainer.refuse(alone, cpu)


@pytest.mark.parametrize(
    ("device", "why", "pool"),
    [("cpu", "", "torch"), ("cuda", "", "gathered"), ("cuda", "no g++", "torch")],
)
def test_a_gpu_pools_by_gathering_unless_that_gives_another_result(
    *,
    trainer: ModuleType,
    alone: argparse.Namespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    why: str,
    pool: str,
) -> None:
    import torch

    agreed = trainer.all_ranks
    monkeypatch.setattr(trainer, "difference", lambda device: why)
    monkeypatch.setattr(
        trainer, "all_ranks", lambda device, value, how: agreed(torch.device("cpu"), value, how)
    )
    alone.compile = True
    assert trainer.chosen_pool(alone, torch.device(device)) == pool
    assert capsys.readouterr().out == (
        f"orch max_pool=torch, because gathered cannot be used: {why}\n" if why else ""
    )
