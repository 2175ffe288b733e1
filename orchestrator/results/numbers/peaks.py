"""The few numbers of devices and models that bound a training speed from above.

Devices: peaks without sparsity from data sheets and architecture papers of their makers (Tesla K80: half of the board, which
programs see as one device; Tesla P100, V100 and V100S, T4, A10, A10G, A30, A100, A800, L4, L40S, H20, H100, H200, H800, GH200;
HGX B200 and B300, GB200 and GB300 NVL72; RTX PRO 6000 Blackwell with the clocks of its Workstation Edition; AMD Instinct
MI210, MI300X, MI325X, MI350X, MI355X, and half of MI250 and MI250X, each of whose two dies is a device for programs). Where a
sheet gives only the number with sparsity, half of it. A name without a variant is that of the fastest, SXM, which drivers call
so. The fp32 of CDNA 2 (MI200) is that of its matrix units; it has no TF32, nor has CDNA 4. The RTX 4090 adds up products in
fp32, as programs do (Ada architecture paper, appendix A); in fp16 it would be twice as fast. H800 and A800 differ from H100
and A100 in fp64 and in their links alone.

Models: He et al., "Deep Residual Learning for Image Recognition" (2015), and Simonyan and Zisserman, "Very Deep Convolutional
Networks" (2014), for images of 224 x 224 and 1000 classes. ``resnet50`` is the paper's network in some programs,
and in others the variant with strides in the 3 x 3 convolutions (v1.5); the paper's, the smaller one, is used for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["DEVICES", "DIVISORS", "MODELS", "Device", "Model", "devices_in", "link_in"]


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
    Device("P100 PCIe", 18.7e12, 0, 9.3e12, 0, 732e9, 4e6, named="P100-PCI[Ee]|P100 PCI[Ee]", has_bf16=False),
    Device("V100", 125e12, 0, 15.7e12, 0, 900e9, 6e6, has_bf16=False),
    Device("V100 PCIe", 112e12, 0, 14e12, 0, 900e9, 6e6, named="V100-PCI[Ee]|V100 PCI[Ee]", has_bf16=False),
    Device("V100S", 130e12, 0, 16.4e12, 0, 1134e9, 6e6, has_bf16=False),
    Device("T4", 65e12, 0, 8.1e12, 0, 320e9, 6e6, has_bf16=False),
    Device("A100", 312e12, 156e12, 19.5e12, 0, 2039e9, 40e6),
    Device("A800", 312e12, 156e12, 19.5e12, 0, 2039e9, 40e6),
    Device("A10", 125e12, 62.5e12, 31.2e12, 0, 600e9, 6e6),
    Device("A10G", 70e12, 35e12, 31.52e12, 0, 600e9, 6e6),
    Device("A30", 165e12, 82e12, 10.3e12, 0, 933e9, 24e6),
    Device("RTX 4090", 165.2e12, 82.6e12, 82.6e12, 330.3e12, 1008e9, 72e6, named=r"RTX 4090(?! D\b| Laptop)"),
    Device("L4", 121e12, 60e12, 30.3e12, 242.5e12, 300e9, 48e6),
    Device("L40S", 362e12, 183e12, 91.6e12, 733e12, 864e9, 96e6),
    Device("H100", 989.5e12, 494.5e12, 67e12, 1979e12, 3900e9, 50e6),
    Device("H100 PCIe", 756.5e12, 378e12, 51e12, 1513e12, 2000e9, 50e6),
    Device("H100 NVL", 835.5e12, 417.5e12, 60e12, 1670.5e12, 3900e9, 50e6),
    Device("H200", 989.5e12, 494.5e12, 67e12, 1979e12, 4800e9, 50e6),
    Device("H200 NVL", 835.5e12, 417.5e12, 60e12, 1670.5e12, 4800e9, 50e6),
    Device("H20", 148e12, 74e12, 44e12, 296e12, 4800e9, 60e6),
    Device("H800", 989.5e12, 494.5e12, 67e12, 1979e12, 3350e9, 50e6),
    Device("H800 PCIe", 756.5e12, 378e12, 51e12, 1513e12, 2000e9, 50e6),
    Device("GH200", 989.5e12, 494.5e12, 67e12, 1979e12, 4900e9, 50e6),
    Device("RTX PRO 6000", 503.8e12, 251.9e12, 125e12, 1007.6e12, 1792e9, 128e6, named=r"RTX PRO 6000(?! Blackwell Max-Q)"),
    Device("B200", 2250e12, 1125e12, 75e12, 4500e12, 8000e9, 126e6),
    Device("GB200", 2500e12, 1250e12, 80e12, 5000e12, 8000e9, 126e6),
    Device("B300", 2250e12, 1125e12, 75e12, 4500e12, 8000e9, 126e6),
    Device("GB300", 2500e12, 1250e12, 80e12, 5000e12, 8000e9, 126e6),
    Device("MI210", 181e12, 0, 45.3e12, 0, 1638.4e9, 8e6),
    Device("MI250", 181.05e12, 0, 45.25e12, 0, 1638.4e9, 8e6),
    Device("MI250X", 191.5e12, 0, 47.85e12, 0, 1638.4e9, 8e6, named=r"MI250X|MI200 \(MCM\) OAM LC MBA HPE C2"),
    Device("MI300X", 1307.4e12, 653.7e12, 163.4e12, 2614.9e12, 5300e9, 256e6),
    Device("MI325X", 1307.4e12, 653.7e12, 163.4e12, 2614.9e12, 6000e9, 256e6),
    Device("MI350X", 2306.9e12, 0, 144.2e12, 4613.7e12, 8000e9, 256e6),
    Device("MI355X", 2516.6e12, 0, 157.3e12, 5033.2e12, 8000e9, 256e6),
)

_RARE_CONSTANTS: tuple[str, ...] = (
    *("P100 PCIe", "V100S", "A800", "A10", "A10G", "A30", "RTX 4090", "L4", "H20", "H800", "H800 PCIe", "GH200"),
    *("RTX PRO 6000", "B300", "GB300", "MI350X", "MI355X"),
)
DIVISORS = tuple(device for device in DEVICES if device.name not in _RARE_CONSTANTS)
"""Devices whose peak programs have as a constant, whatever they run on. With all devices, nearly every ratio would fit one."""

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

    >>> list(devices_in("8 x Tesla V100-SXM2-16GB")), list(devices_in("AWS p2.16xlarge")), devices_in("L20, GB10")
    (['V100'], ['K80 (p2.16xlarge)'], {})
    >>> list(devices_in("NVIDIA H100 PCIe")), list(devices_in("NVIDIA H100 80GB HBM3"))
    (['H100 PCIe'], ['H100'])
    >>> list(devices_in("Tesla P100-PCIE-16GB")), list(devices_in("NVIDIA GeForce RTX 4090 Laptop GPU"))
    (['P100 PCIe (P100-PCIE)'], [])
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
