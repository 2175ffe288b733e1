"""The models that train_pytorch.py trains, ResNet-50 v1.5 and VGG16, their loss, and their
compilation in stages.

PyTorch 1.13 or newer, Python 3.8 or newer; compilation needs 2.0.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

HALF_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPILE_OPTIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "tuned": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True},
    "max-autotune": {"coordinate_descent_tuning": True, "max_autotune": True},
}
"""Options of inductor for each value of --compile-level."""


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut. Version 1.5: the stride is in the 3x3; version 1 had it in the
    first 1x1.
    """

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * width:
            project = nn.Conv2d(channels_in, 4 * width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, at 1/stride of the size."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet50(num_classes: int) -> nn.Sequential:
    """Return ResNet-50 v1.5: 25,557,032 parameters with 1000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, first_stride if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )


def vgg16(num_classes: int) -> nn.Sequential:
    """Return VGG16 without BatchNorm: 138,357,544 parameters with 1000 classes, for any image size
    of 32 or more.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    layers += [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    layers += [
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, num_classes),
    ]
    return nn.Sequential(*layers)


MODELS = {"resnet50": resnet50, "vgg16": vgg16}
CUTS = {"resnet50": (11, 17), "vgg16": (17, 31)}
"""Indices of the layers at which a model is cut into stages. The last two stages hold nearly all
gradients: of ResNet-50, the stages of 1024 and of 2048 channels; of VGG16, the later convolutions
and the head."""


def initialise(model: nn.Module) -> None:
    """Initialise weights as in the papers, so that the loss stays finite: He for convolutions,
    small normal for the head.

    BatchNorm does not count batches: only an average without momentum reads that number, and each
    count is a kernel.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)


class Trained(nn.Module):
    """A network and its loss, in the requested arithmetic. ``half``: the type of autocast, None for
    no autocast.
    """

    def __init__(
        self, network: nn.Module, device_type: str, half: torch.dtype | None, label_smoothing: float
    ) -> None:
        super().__init__()
        self.network = network
        self.device_type, self.half, self.label_smoothing = device_type, half, label_smoothing

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss, and the network's output without a gradient."""
        with torch.autocast(self.device_type, dtype=self.half, enabled=self.half is not None):
            output = self.network(images)
            return cross_entropy(
                output, labels, label_smoothing=self.label_smoothing
            ), output.detach()


def compile_model(model: Trained, level: str, split: str, cuts: tuple[int, ...]) -> nn.Module:
    """Return the model compiled as one graph or as several.

    All gradients of a graph become available at its end. With one graph nothing is reduced while it
    computes; cut into ``stages``, the gradients of the last two are reduced while the first is
    still computing. ``buckets`` leaves the cuts to PyTorch's DDPOptimizer, one graph per bucket.
    """
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = split == "buckets"
    how: dict[str, Any] = {"dynamic": False, "fullgraph": True, "options": COMPILE_OPTIONS[level]}
    if split != "stages":
        whole: nn.Module = torch.compile(model, **how)
        return whole
    layers = list(model.network.children())
    edges = [0, *cuts, len(layers)]
    stages = [nn.Sequential(*layers[start:end]) for start, end in zip(edges, edges[1:])]
    model.network = nn.Sequential(*(torch.compile(stage, **how) for stage in stages))
    return model


def channels_last(args: argparse.Namespace) -> bool:
    """Return True if the channels of a pixel are adjacent in memory."""
    return bool(
        {"on": True, "off": False, "auto": args.device == "cuda" and args.dtype != "fp32"}[
            args.channels_last
        ]
    )
