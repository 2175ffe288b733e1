"""The few numbers of devices and models that bound a training speed from above.

Models: He et al., "Deep Residual Learning for Image Recognition" (2015), and Simonyan and
Zisserman, "Very Deep Convolutional Networks" (2014), for images of 224 x 224 and 1000 classes.
``resnet50`` is the paper's network in some programs, and in others the variant with strides in the
3 x 3 convolutions (v1.5); the paper's, the smaller one, is used for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.devices.vendor import Device, peaks


@dataclass(frozen=True, slots=True)
class Model:
    """One model.

    ``multiply_adds`` is the minimum for training on one sample, ``kept`` the number of values per
    sample that the forward pass keeps for the backward pass.

    Training costs three forward passes: the pass itself, the gradients of each layer's input, and
    the gradients of its weights; the gradient of the image is not needed. Convolutions of 3 x 3 and
    stride 1 count with the multiplications of F(6 x 6, 3 x 3), 64 instead of 324 by definition: a
    larger saving than in any library (Lavin and Gray, "Fast Algorithms for Convolutional Neural
    Networks", 2015; cuDNN has F(4 x 4, 3 x 3), for 16-bit floats as well). ``kept`` counts the
    input of each layer, without the pixels that its stride skips.
    """

    parameters: int
    multiply_adds: float
    kept: float


DEVICES = peaks()

_DIVISORS = (
    "K80",
    "P100",
    "V100",
    "V100 PCIe",
    "T4",
    "A100",
    "L40S",
    "H100",
    "H100 PCIe",
    "H100 NVL",
    "H200",
    "H200 NVL",
    "B200",
    "GB200",
    "MI210",
    "MI250",
    "MI250X",
    "MI300X",
    "MI325X",
)
DIVISORS = tuple(device for device in DEVICES if device.name in _DIVISORS)
"""Devices by whose peak programs divide on any device, because it is a constant in them. With more
devices nearly every ratio would fit one.
"""

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "resnet18": Model(11_689_512, 1.706e9, 1.831e6),
        "resnet50": Model(25_557_032, 7.002e9, 7.478e6),
        "resnet50_v1.5": Model(25_557_032, 8.531e9, 9.058e6),
        "resnet101": Model(44_549_160, 13.408e9, 12.596e6),
        "resnet152": Model(60_192_808, 19.813e9, 18.918e6),
        "vgg16": Model(138_357_544, 9.448e9, 9.115e6),
    }
)

_LINK = re.compile(r"(?<![\d.])(\d{1,4}) Gb/s (?:InfiniBand|Ethernet)")


def devices_in(text: str) -> dict[str, Device]:
    """Return the devices named in a text (by nvidia-smi, a document, or a cloud's instance type),
    by display name.

    >>> list(devices_in("8 x Tesla V100-SXM2-16GB")), list(devices_in("AWS p2.16xlarge")), devices_in("L20, GB10")
    (['V100'], ['K80 (p2.16xlarge)'], {})
    >>> list(devices_in("NVIDIA H100 PCIe")), list(devices_in("NVIDIA H100 80GB HBM3"))
    (['H100 PCIe'], ['H100'])
    >>> list(devices_in("Tesla P100-PCIE-16GB")), list(devices_in("NVIDIA GeForce RTX 4090 Laptop GPU"))
    (['P100 PCIe (P100-PCIE)'], [])
    """
    named = [
        (device, match)
        for device in DEVICES
        for match in re.finditer(rf"\b(?:{device.named or device.name})\b", text)
    ]
    matches = {}
    for device, match in named:
        inside = any(
            other.start() <= match.start() and match.end() < other.end() for _, other in named
        )
        if not inside:  # H100 in H100 PCIe
            word = match[0]
            matches[device.name if word == device.name else f"{device.name} ({word})"] = device
    return matches


def device_in(text: str) -> Device | None:
    """Return the device named in a text; None if it names none or several.

    >>> device_in("8 x H200, 64 x H100"), device_in("8 x H200").name
    (None, 'H200')
    """
    devices = tuple(devices_in(text).values())
    return devices[0] if len(devices) == 1 else None


def link_in(text: str) -> float | None:
    """Return the bytes per second, one way, of the network named in a text; None if it names none
    or several.

    >>> link_in("4 nodes of 8 x V100, 100 Gb/s InfiniBand")
    12500000000.0
    """
    rates = {float(rate) * 1e9 / 8 for rate in _LINK.findall(text)}
    return rates.pop() if len(rates) == 1 else None
