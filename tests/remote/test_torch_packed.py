"""Gradients that are packed before they are reduced: those of DDP, and so are the losses."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests.remote.torch_in_process import small
from tests.support.ranks import OPTIMIZERS, ranks
from tests.support.trainers import PYTORCH, closing


def program_of(folder: Path, body: str) -> Path:
    """Write a program that knows the PyTorch trainer as ``trainer``, with a small model in the
    place of ResNet-50.
    """
    program = folder / "small.py"
    program.write_text(f"""
from __future__ import annotations
import sys
sys.path.insert(0, {str(PYTORCH.parent)!r})
import train_pytorch as trainer
{inspect.getsource(small)}
trainer.MODELS["resnet50"] = small
{body}
""")
    return program


def gradients_compared() -> None:
    """Say of how many parameters two ways of averaging one batch's gradients differ: DDP twice,
    packed, and not at all.
    """
    import torch
    import train_pytorch as trainer
    from torch_images import synthetic
    from torch_packed import Packed

    asked, me = trainer.arguments(), trainer.identity()
    device = trainer.claim_device(asked, me.local_rank)
    torch.use_deterministic_algorithms(True, warn_only=True)
    trainer.join(asked, me, device)
    model, batch = trainer.learner(asked, device), synthetic(asked, device, me.rank)
    for _ in range(3):
        trainer.take_step(model, model.parallel, *batch)

    def averages(network):
        model.parallel.zero_grad()
        network(*batch)[0].backward()
        if isinstance(network, Packed):
            network.finish()
        return [parameter.grad.detach().clone() for parameter in model.parallel.parameters()]

    ddp = averages(model.parallel)
    others = [
        averages(each) for each in (model.parallel, Packed(model.parallel), model.parallel.module)
    ]
    differ = [
        sum(not torch.equal(one, other) for one, other in zip(ddp, each, strict=True))
        for each in others
    ]
    print("differ", *differ, "of", len(ddp), flush=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_packed_gradients_are_those_of_ddp_bit_for_bit(tmp_path: Path, device: str) -> None:
    torch = pytest.importorskip("torch")
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("no two GPUs")
    program = program_of(
        tmp_path,
        f"{inspect.getsource(gradients_compared)}\ntrainer.leave_after(gradients_compared)",
    )
    arguments = [
        "--device",
        device,
        "--image-size",
        "32",
        "--batch-size",
        "4",
        "--steps",
        "20",
        "--dtype",
        "fp32",
    ]
    arguments += ["--channels-last", "on", "--bucket-cap-mb", "1", "--cudnn-benchmark", "false"]
    texts = ranks(program, arguments, tmp_path, 2, imports=OPTIMIZERS)
    said = [re.findall("^differ (.*)", text, re.MULTILINE) for text in texts]
    (of,) = {line.split()[-1] for (line,) in said}
    assert int(of) == 8 and said == [[f"0 0 {of} of {of}"]] * 2


def test_a_run_whose_gradients_are_packed_has_the_losses_of_ddp(tmp_path: Path) -> None:
    """A small model in channels-last, on two ranks with images of their own: without an average
    each would go its own way.
    """
    pytest.importorskip("torch")
    program = program_of(tmp_path, "trainer.leave_after(trainer.main)")
    found = {}
    for reduce in ("ddp", "packed"):
        folder = tmp_path / reduce
        folder.mkdir()
        arguments = [
            "--device",
            "cpu",
            "--image-size",
            "32",
            "--batch-size",
            "4",
            "--steps",
            "20",
            "--learning-rate",
            "0.0005",
        ]
        arguments += ["--channels-last", "on", "--bucket-cap-mb", "1", "--reduce", reduce]
        text = ranks(program, arguments, folder, 2, imports=OPTIMIZERS)[0]
        assert [path.read_text() for path in sorted(folder.glob("*.err"))] == ["", ""]
        found[reduce] = [
            float(loss) for loss in re.findall(r"orch step=[1-9].* loss=([0-9.]+)", text)
        ]
        facts = closing("pytorch", text)
        assert facts["reduce"] == reduce and len(facts["gradient_buckets_bytes"]) > 1
    assert len(found["ddp"]) == 20 and len(set(found["ddp"])) == 20
    assert found["packed"] == pytest.approx(found["ddp"], abs=2e-4)
