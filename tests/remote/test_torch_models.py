"""The models of the PyTorch trainer: their sizes, and the images they take."""

from __future__ import annotations

from types import ModuleType

import pytest
import yaml

from tests.remote.torch_in_process import neighbour
from tests.support.trainers import ROOT


@pytest.mark.parametrize(
    ("model", "parameters"), [("resnet50", 25_557_032), ("vgg16", 138_357_544)]
)
def test_models_have_the_published_number_of_parameters(
    trainer: ModuleType, model: str, parameters: int
) -> None:
    import torch

    with torch.device("meta"):
        network = trainer.MODELS[model](1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    declared = yaml.safe_load((ROOT / "templates/pytorch/framework.yaml").read_text())["models"][
        model
    ]["parameters"]
    assert declared == parameters


def test_resnet50_is_version_1_5(trainer: ModuleType) -> None:
    """The stride of a down-sampling block is in its 3x3 convolution, not in the 1x1 before it."""
    import torch

    with torch.device("meta"):
        blocks = [
            layer
            for layer in neighbour("torch_models").resnet50(10)
            if isinstance(layer, neighbour("torch_models").Bottleneck)
        ]
    strides = [(block.conv1.stride[0], block.conv2.stride[0]) for block in blocks]
    assert len(strides) == 16
    assert [at for at, stride in enumerate(strides) if stride == (1, 2)] == [3, 7, 13]
    assert all(stride == (1, 1) for at, stride in enumerate(strides) if at not in (3, 7, 13))


@pytest.mark.parametrize(
    ("model", "size"), [("resnet50", 32), ("resnet50", 224), ("vgg16", 32), ("vgg16", 50)]
)
def test_models_take_images_of_any_size_from_32(trainer: ModuleType, model: str, size: int) -> None:
    import torch

    with torch.device("meta"):
        assert trainer.MODELS[model](7)(torch.empty(2, 3, size, size)).shape == (2, 7)
