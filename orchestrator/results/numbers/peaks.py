"""The few numbers of devices and models that bound a training speed from above.

Devices: peaks without sparsity from data sheets and architecture papers of their makers (Tesla K80: half of the board, which
programs see as one device; Tesla P100 and V100, T4, A100, L40S, H100, H200, HGX B200, GB200 NVL72; AMD Instinct MI210, MI300X,
MI325X, and half of MI250 and MI250X, each of whose two dies is a device for programs). Where a sheet gives only the number with
sparsity, half of it. A name without a variant is that of the fastest, SXM, which drivers call so. The fp32 of CDNA 2 (MI200) is
that of its matrix units; it has no TF32.

Models: He et al., "Deep Residual Learning for Image Recognition" (2015), and Simonyan and Zisserman, "Very Deep Convolutional
Networks" (2014), for images of 224 x 224 and 1000 classes. ``resnet50`` is the paper's network in some programs,
and in others the variant with strides in the 3 x 3 convolutions (v1.5); the paper's, the smaller one, is used for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["DEVICES", "MODELS", "Device", "Model", "devices_in", "link_in"]


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device: dense operations per second, a multiply-add counting as two, 0 for types without a peak.

    ``half`` is the peak for 16-bit floats, ``fp32`` that for 32-bit floats, ``tf32`` that for their products in TF32, ``fp8``
    that for 8-bit floats. ``cache_bytes`` is the size of the last-level cache. ``named`` is a pattern of its other names.
    ``has_bf16``: it multiplies bf16, at the rate of ``half``; without, programs convert bf16 to other types.
    """

    name: str
    half: float
    tf32: float
    fp32: float
    fp8: float
    memory_bytes_per_s: float
    cache_bytes: float
    named: str = ""
    has_bf16: bool = True

    def rate(self, dtype: str) -> float | None:
        """Return the most operations per second that a program can reach with a dtype, None for one that does not determine
        the arithmetic: many programs compute fp32 in TF32 by default."""
        return self.peak({"amp": "fp16", "bf16": "fp16"}.get(dtype, dtype)) if dtype != "fp32" else max(self.fp32, self.tf32)

    def peak(self, dtype: str) -> float | None:
        """Return the peak of exactly this arithmetic, the divisor of an MFU; None if it is not known."""
        bf16 = self.half if self.has_bf16 else 0.0
        return {"fp16": self.half, "bf16": bf16, "tf32": self.tf32, "fp32": self.fp32, "fp8": self.fp8}.get(dtype) or None


@dataclass(frozen=True, slots=True)
class Model:
    """One model. ``multiply_adds`` is the minimum for training on one sample, ``kept`` the number of values per sample that the
    forward pass keeps for the backward pass.

    Training costs three forward passes: the pass itself, the gradients of each layer's input, and those of its weights; the
    gradient of the image is not needed. Convolutions of 3 x 3 and stride 1 count with the multiplications of F(6 x 6, 3 x 3),
    64 instead of 324 by definition: a larger saving than in any library (Lavin and Gray, "Fast Algorithms for Convolutional
    Neural Networks", 2015; cuDNN has F(4 x 4, 3 x 3), for 16-bit floats as well). ``kept`` counts the input of each layer,
    without the pixels that its stride skips.
    """

    parameters: int
    multiply_adds: float
    kept: float


DEVICES = (
    Device("K80", 4.37e12, 0, 4.37e12, 0, 240e9, 1.5e6, named=r"K80|p2\.(?:8|16)?xlarge", has_bf16=False),
    Device("P100", 21.2e12, 0, 10.6e12, 0, 732e9, 4e6, has_bf16=False),
    Device("V100", 125e12, 0, 15.7e12, 0, 900e9, 6e6, has_bf16=False),
    Device("V100 PCIe", 112e12, 0, 14e12, 0, 900e9, 6e6, named="V100-PCI[Ee]|V100 PCI[Ee]", has_bf16=False),
    Device("T4", 65e12, 0, 8.1e12, 0, 320e9, 6e6, has_bf16=False),
    Device("A100", 312e12, 156e12, 19.5e12, 0, 2039e9, 40e6),
    Device("L40S", 362e12, 183e12, 91.6e12, 733e12, 864e9, 96e6),
    Device("H100", 989.5e12, 494.5e12, 67e12, 1979e12, 3900e9, 50e6),
    Device("H100 PCIe", 756.5e12, 378e12, 51e12, 1513e12, 2000e9, 50e6),
    Device("H100 NVL", 835.5e12, 417.5e12, 60e12, 1670.5e12, 3900e9, 50e6),
    Device("H200", 989.5e12, 494.5e12, 67e12, 1979e12, 4800e9, 50e6),
    Device("H200 NVL", 835.5e12, 417.5e12, 60e12, 1670.5e12, 4800e9, 50e6),
    Device("B200", 2250e12, 1125e12, 75e12, 4500e12, 8000e9, 126e6),
    Device("GB200", 2500e12, 1250e12, 80e12, 5000e12, 8000e9, 126e6),
    Device("MI210", 181e12, 0, 45.3e12, 0, 1638.4e9, 8e6),
    Device("MI250", 181.05e12, 0, 45.25e12, 0, 1638.4e9, 8e6),
    Device("MI250X", 191.5e12, 0, 47.85e12, 0, 1638.4e9, 8e6, named=r"MI250X|MI200 \(MCM\) OAM LC MBA HPE C2"),
    Device("MI300X", 1307.4e12, 653.7e12, 163.4e12, 2614.9e12, 5300e9, 256e6),
    Device("MI325X", 1307.4e12, 653.7e12, 163.4e12, 2614.9e12, 6000e9, 256e6),
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
    """Return the devices named in a text (by nvidia-smi, a document, or a cloud's instance type), by display name.

    >>> list(devices_in("8 x Tesla V100-SXM2-16GB")), list(devices_in("AWS p2.16xlarge")), devices_in("H20, GH200 480GB")
    (['V100'], ['K80 (p2.16xlarge)'], {})
    >>> list(devices_in("NVIDIA H100 PCIe")), list(devices_in("NVIDIA H100 80GB HBM3"))
    (['H100 PCIe'], ['H100'])
    """
    named = [(device, match) for device in DEVICES for match in re.finditer(rf"\b(?:{device.named or device.name})\b", text)]
    matches: dict[str, Device] = {}
    for device, match in named:
        inside = any(other.start() <= match.start() and match.end() < other.end() for _, other in named)
        if not inside:  # H100 in H100 PCIe
            word = match[0]
            matches[device.name if word == device.name else f"{device.name} ({word})"] = device
    return matches


def link_in(text: str) -> float | None:
    """Return the bytes per second, one way, of the network named in a text; None if it names none or several.

    >>> link_in("4 nodes of 8 x V100, 100 Gb/s InfiniBand")
    12500000000.0
    """
    rates = {float(rate) * 1e9 / 8 for rate in _LINK.findall(text)}
    return rates.pop() if len(rates) == 1 else None
