"""A vendor of GPUs, as the controller knows one: how its facts are read, its devices are shown to a
run, and their peaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from orchestrator.plural import join_words


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device: dense operations per second, a multiply-add counting as two, 0 for types
    without a peak; bytes per second of its memory, 0 if nobody knows.

    ``half`` is the peak for 16-bit floats, ``fp32`` that for 32-bit floats, ``tf32`` that for their
    products in TF32, ``fp8`` that for 8-bit floats. ``cache_bytes`` is the size of the last-level
    cache. ``named`` is the regular expression by which a text names it; empty: ``name``.
    ``has_bf16``: it multiplies bf16, at the rate of ``half``; without, programs convert bf16 to
    other types.
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
        """Return the most operations per second that a program can reach with a dtype; None if it is
        not known, as for a dtype that does not determine the arithmetic. Many programs compute fp32
        in TF32 by default.
        """
        if dtype != "fp32":
            return self.peak({"amp": "fp16", "bf16": "fp16"}.get(dtype, dtype))
        return max(self.fp32, self.tf32) or None

    def peak(self, dtype: str) -> float | None:
        """Return the peak of exactly this arithmetic, the divisor of an MFU; None if it is not
        known.
        """
        bf16 = self.half if self.has_bf16 else 0.0
        return {
            "fp16": self.half,
            "bf16": bf16,
            "tf32": self.tf32,
            "fp32": self.fp32,
            "fp8": self.fp8,
        }.get(dtype) or None


@dataclass(frozen=True, slots=True)
class Hints:
    """Advice after a failed check.

    ``listing`` is a command that lists the GPUs; if empty, the tool itself.
    """

    listing: str = ""
    reset: str = "restart the machine; check dmesg on the node"
    ecc: str = "set it to the same for all"
    clocks: str = "check cooling and power of this machine"
    limits: str = "set them to their defaults"
    container: str = "list the devices under container: devices:"


@dataclass(frozen=True, slots=True)
class Vendor:
    """All that depends on a vendor in facts, environment, checks and peaks.

    ``order``: its turn to recognise what a node runner sent. ``recognises(raw)`` says if that comes
    from its tools, and ``facts(raw)`` returns the facts in it, in the form of `gpu_states`;
    ``gpus`` is a text with the reason if they could not be read. ``show(devices)`` returns the
    shell text by which a run sees only these devices, in the format of CUDA_VISIBLE_DEVICES, which
    launch scripts set; it does nothing on nodes without this vendor's driver.

    ``driver``: the file on a node that changes with its driver, that of the node's half.
    ``variables``: those by which its programs choose devices, left out of a command that becomes a
    framework folder. ``tools``: the programs that a node runner asks, ``gpu_tool`` in the facts.
    ``has_peer_module``: a module of the kernel shows whether network cards read the memory of its
    GPUs. The node's half is the file of the same name in ``remote/noderun``.
    """

    name: str
    order: int
    recognises: Callable[[Mapping[str, Any]], bool]
    facts: Callable[[Mapping[str, Any]], dict[str, Any]]
    show: Callable[[str], str]
    devices: tuple[Device, ...]
    driver: str = ""
    variables: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    hints: Hints = Hints()
    has_peer_module: bool = False


@cache
def vendors() -> tuple[Vendor, ...]:
    """Return the vendors: each module of this package with a ``VENDOR``, by their order."""
    package = import_module("orchestrator.devices")
    modules = [
        import_module(f"{package.__name__}.{entry.name}")
        for entry in iter_modules(package.__path__)
    ]
    found = [module.VENDOR for module in modules if hasattr(module, "VENDOR")]
    return tuple(sorted(found, key=lambda vendor: (vendor.order, vendor.name)))


def vendor_facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the GPUs by the first vendor that recognises what a node runner sent;
    without one by the first of all, which reads the kernel log of any node."""
    vendor = next((vendor for vendor in vendors() if vendor.recognises(raw)), vendors()[0])
    return vendor.facts(raw)


def vendor_of(tool: str) -> Vendor:
    """Return the vendor of a tool that told the facts of a node's GPUs."""
    return next((vendor for vendor in vendors() if tool in vendor.tools), vendors()[0])


def any_tool() -> str:
    """Return the tools of all vendors: ``nvidia-smi, amd-smi or rocm-smi``."""
    return join_words([tool for vendor in vendors() for tool in vendor.tools], "or")


def device_variables() -> frozenset[str]:
    """Return the variables by which programs of any vendor choose devices."""
    return frozenset(name for vendor in vendors() for name in vendor.variables)


def show_devices(devices: str) -> str:
    """Return the shell text that shows a run only these devices, whatever a scheduler or the
    inventory has set.
    """
    return "".join(vendor.show(devices) for vendor in vendors())


def peaks() -> tuple[Device, ...]:
    """Return the devices of all vendors."""
    return tuple(device for vendor in vendors() for device in vendor.devices)
