"""What devices and models are, in the few numbers that bound a training speed from above.

Devices: peaks without sparsity of the fastest variant that goes by the name, from NVIDIA's data sheets and architecture papers
(Tesla K80 by the half, which is what a program sees as one device; Tesla P100 and V100, T4, A100, H100, H200, HGX B200).

Models: He et al., "Deep Residual Learning for Image Recognition" (2015), and Simonyan and Zisserman, "Very Deep Convolutional
Networks" (2014), for images of 224 x 224 and 1000 classes. By ``resnet50`` some programs mean the paper's network, others the
one with strides in the 3 x 3 convolutions (v1.5): the paper's is the smaller one and stands for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["DEVICES", "MODELS", "Device", "Model", "devices_in", "link_in"]


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device. ``half`` and ``single`` are operations per second, a multiply-add being two: on 16-bit floats, and
    on 32-bit ones or, where it is quicker, TF32, which programs take for fp32 unasked. ``cache_bytes`` is the last cache."""

    name: str
    half: float
    single: float
    memory_bytes_per_s: float
    cache_bytes: float
    called: str = ""

    def rate(self, dtype: str) -> float | None:
        """Return operations per second of a type, None for one that does not say what is computed in."""
        return {"fp16": self.half, "bf16": self.half, "amp": self.half, "fp32": self.single, "tf32": self.single}.get(dtype)


@dataclass(frozen=True, slots=True)
class Model:
    """One model. ``multiply_adds`` are the fewest that train on one sample, ``kept`` the values of one sample that the forward
    pass leaves for the backward pass.

    Training takes the forward pass three times: itself, the gradients of what each layer got, the gradients of its weights; no
    gradient of the image is needed. Convolutions of 3 x 3 and stride 1 count by the multiplications of F(6 x 6, 3 x 3), 64
    where the definition has 324: more than any library saves (Lavin and Gray, "Fast Algorithms for Convolutional Neural
    Networks", 2015; cuDNN has F(4 x 4, 3 x 3), for 16-bit floats as well). Kept is what each layer got, without the pixels
    that its stride leaves out.
    """

    parameters: int
    multiply_adds: float
    kept: float


DEVICES = (
    Device("K80", 4.37e12, 4.37e12, 240e9, 1.5e6, called=r"K80|p2\.(?:8|16)?xlarge"),
    Device("P100", 21.2e12, 10.6e12, 732e9, 4e6),
    Device("V100", 125e12, 15.7e12, 900e9, 6e6),
    Device("T4", 65e12, 8.1e12, 320e9, 6e6),
    Device("A100", 312e12, 156e12, 2039e9, 40e6),
    Device("H100", 990e12, 495e12, 3900e9, 50e6),
    Device("H200", 990e12, 495e12, 4800e9, 50e6),
    Device("B200", 2250e12, 1125e12, 8000e9, 126e6),
)

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
    """Return the devices that a text names, as nvidia-smi, a document or a cloud's instance type does, by name for a reader.

    >>> list(devices_in("8 x Tesla V100-SXM2-16GB")), list(devices_in("AWS p2.16xlarge")), devices_in("H20, GH200 480GB")
    (['V100'], ['K80 (p2.16xlarge)'], {})
    """
    named = ((device, re.search(rf"\b(?:{device.called or device.name})\b", text)) for device in DEVICES)
    return {device.name + f" ({word[0]})" * (word[0] != device.name): device for device, word in named if word}


def link_in(text: str) -> float | None:
    """Return the bytes per second, one way, of the network that a text names, None where it names none or several.

    >>> link_in("4 nodes of 8 x V100, 100 Gb/s InfiniBand")
    12500000000.0
    """
    rates = {float(rate) * 1e9 / 8 for rate in _LINK.findall(text)}
    return rates.pop() if len(rates) == 1 else None
