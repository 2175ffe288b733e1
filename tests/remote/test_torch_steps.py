"""The steps of the PyTorch trainer in a group of one rank: losses with each option of speed, and
what is reduced.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.remote.torch_in_process import losses, neighbour


def test_a_step_of_the_module_alone_trains_and_reduces_nothing(
    trainer: ModuleType, alone: argparse.Namespace
) -> None:
    found, counts = losses(trainer, alone)
    assert all(count > 0 for count in counts[:3]) and counts[3:] == [0, 0, 0]
    assert len(set(found)) == 6


def test_only_the_first_step_works_from_the_root_directory(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    directories: list[str] = []
    take = trainer.take_step

    def recorded(*arguments: Any) -> Any:
        directories.append(os.getcwd())
        return take(*arguments)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "take_step", recorded)
    asked = argparse.Namespace(**vars(alone) | {"steps": 3, "solo_steps": 0})
    trainer.train(asked, trainer.Identity(0, 0, 1, 0), torch.device("cpu"))
    assert directories == ["/", str(tmp_path), str(tmp_path)]


@pytest.mark.parametrize(("option", "values"), [("static_graph", ["on", "off"]), ("bucket_view", [True, False]),
                                                ("optimizer", ["fused", "foreach", "plain"])])  # fmt: skip
def test_options_of_speed_leave_the_losses_as_they_are(
    trainer: ModuleType, alone: argparse.Namespace, option: str, values: list[str]
) -> None:
    every = [
        losses(trainer, argparse.Namespace(**vars(alone) | {option: value}))[0] for value in values
    ]
    assert all(one == pytest.approx(every[0], rel=1e-4) for one in every[1:])


def test_training_after_an_overflow_in_the_first_step_is_that_of_unfused_sgd(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    # Fused SGD once took its momentum from memory that nothing had written: here such memory holds
    # NaN.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        overflowing = vars(alone) | {"dtype": "fp16", "loss_scale": 2.0**22}
        fused, plain = (
            losses(trainer, argparse.Namespace(**overflowing | {"optimizer": kind}), steps=20)[0]
            for kind in ("fused", "plain")
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert plain[0] == plain[1] != plain[-1]  # the first step was skipped, and later ones trained
    assert fused == pytest.approx(plain, rel=1e-3)


@pytest.mark.filterwarnings(
    "ignore"
)  # PyTorch deprecates what its own compiler imports, and reads .grad where it warns of that
@pytest.mark.parametrize("split", ["whole", "stages", "buckets"])
def test_a_compiled_model_has_the_losses_of_an_eager_one(
    trainer: ModuleType, alone: argparse.Namespace, split: str
) -> None:
    import torch
    import torch._dynamo

    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    eager = losses(trainer, alone)[0]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(optimize_ddp=True):
        found, counts = losses(
            trainer, argparse.Namespace(**vars(alone) | {"compile": True, "compile_split": split})
        )
    assert found == pytest.approx(eager, rel=1e-3) and counts[3:] == [0, 0, 0]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (3 if split == "stages" else 1)


@pytest.mark.parametrize(
    ("asked_for", "kind"), [("auto", "fused"), ("foreach", "foreach"), ("plain", "plain")]
)
def test_the_optimizer_is_the_kind_that_was_asked_for(
    trainer: ModuleType, asked_for: str, kind: str
) -> None:
    import torch

    asked = argparse.Namespace(
        optimizer=asked_for, learning_rate=0.1, momentum=0.9, weight_decay=0.0, device="cpu"
    )
    optimizer, found = trainer.sgd(asked, torch.nn.Linear(2, 2))
    chosen = {name for name in ("fused", "foreach") if optimizer.param_groups[0][name]}
    assert (found, chosen) == (kind, {kind} - {"plain"})


def test_a_batch_that_memory_does_not_hold_is_a_reason_and_the_next_one_trains(
    trainer: ModuleType, alone: argparse.Namespace
) -> None:
    import torch

    device = torch.device("cpu")
    model = trainer.learner(alone, device)
    assert neighbour("torch_batch_search").attempt(alone, model, device, 8) == ""
    assert "memory" in neighbour("torch_batch_search").attempt(alone, model, device, 1 << 40)
    assert neighbour("torch_batch_search").attempt(alone, model, device, 8) == ""
    assert all(parameter.grad is None for parameter in model.parallel.parameters())
