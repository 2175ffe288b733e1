"""NVIDIA's GPUs: nvidia-smi, Xids of the driver in the kernel log, and the peaks of its data
sheets.

Peaks without sparsity are from data sheets and architecture papers (Tesla K80: half of the board,
which programs see as one device; Tesla P100, V100 and V100S, T4, A10, A10G, A30, A100, A800, L4,
L40S, H20, H100, H200, H800, GH200; HGX B200 and B300, GB200 and GB300 NVL72; RTX PRO 6000 Blackwell
with the clocks of its Workstation Edition). Where a sheet gives only the number with sparsity, half
of it is used. A name without a variant stands for the fastest, SXM, which drivers call so. The RTX
4090 adds up products in fp32, as programs do (Ada architecture paper, appendix A); in fp16 it would
be twice as fast. H800 and A800 differ from H100 and A100 only in fp64 and in their links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.devices.answers import why_silent
from orchestrator.devices.gpu_states import gpu_states
from orchestrator.devices.vendor import Device, Hints, Vendor


def _facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts from the output of nvidia-smi and the kernel log."""
    from orchestrator.devices import nvidia_smi  # which loads a parser of XML

    smi = raw.get("smi")
    facts: dict[str, Any] = {"gpus": None} if smi is None else _gpus(smi, raw.get("owners") or {})
    facts |= _topology(raw)
    bus_ids = [str(gpu.get("bus_id", "")) for gpu in gpu_states(facts)]
    log = raw.get("kernel_log")
    log = log if isinstance(log, Mapping) else {"closed": "not asked"}
    xids = (
        nvidia_smi.xids(log["lines"], bus_ids)
        if "lines" in log
        else f"not readable: {log.get('closed')}"
    )
    return facts | {"xids": xids}


def _topology(raw: Mapping[str, Any]) -> dict[str, Any]:
    from orchestrator.devices import nvidia_smi

    matrix = raw.get("topology")
    if not isinstance(matrix, Mapping) or matrix.get("code") != 0:
        return {}
    links = nvidia_smi.topology(str(matrix.get("text")))
    return {"topology": links} if links else {}


def _gpus(smi: Mapping[str, Any], owners: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of the GPUs; ``gpus`` is a text with the reason if they could not be read."""
    from orchestrator.devices import nvidia_smi

    if smi.get("code") != 0:
        return {"gpus": why_silent(smi, "nvidia-smi")}
    try:
        return nvidia_smi.gpu_facts(str(smi.get("text")), owners)
    except ValueError as error:
        return {"gpus": f"nvidia-smi -q -x wrote unexpected output: {error}"[:400]}


VENDOR = Vendor(
    name="nvidia",
    order=1,
    recognises=lambda raw: raw.get("smi") is not None,
    facts=_facts,
    show=lambda devices: "",  # launch scripts set CUDA_VISIBLE_DEVICES
    variables=("CUDA_VISIBLE_DEVICES",),
    driver="/proc/driver/nvidia/version",
    tools=("nvidia-smi",),
    hints=Hints(
        listing="nvidia-smi -L",
        reset="reset this GPU (nvidia-smi --gpu-reset, as root) or restart the machine; check dmesg on the node",
        ecc="set it with nvidia-smi -e 1",
        clocks="check cooling and power of this machine; nvidia-smi -q -d PERFORMANCE",
        limits="reset them with nvidia-smi -pl and -rac, as root",
        container="install the NVIDIA container toolkit on the node, or list the devices under container: devices:",
    ),
    has_peer_module=True,
    devices=(
        Device(
            "K80",
            4.37e12,
            0,
            4.37e12,
            0,
            240e9,
            1.5e6,
            named=r"K80|p2\.(?:8|16)?xlarge",
            has_bf16=False,
        ),
        Device("P100", 21.2e12, 0, 10.6e12, 0, 732e9, 4e6, has_bf16=False),
        Device(
            "P100 PCIe",
            18.7e12,
            0,
            9.3e12,
            0,
            732e9,
            4e6,
            named="P100-PCI[Ee]|P100 PCI[Ee]",
            has_bf16=False,
        ),
        Device("V100", 125e12, 0, 15.7e12, 0, 900e9, 6e6, has_bf16=False),
        Device(
            "V100 PCIe",
            112e12,
            0,
            14e12,
            0,
            900e9,
            6e6,
            named="V100-PCI[Ee]|V100 PCI[Ee]",
            has_bf16=False,
        ),
        Device("V100S", 130e12, 0, 16.4e12, 0, 1134e9, 6e6, has_bf16=False),
        Device("T4", 65e12, 0, 8.1e12, 0, 320e9, 6e6, has_bf16=False),
        Device("A100", 312e12, 156e12, 19.5e12, 0, 2039e9, 40e6),
        Device("A800", 312e12, 156e12, 19.5e12, 0, 2039e9, 40e6),
        Device("A10", 125e12, 62.5e12, 31.2e12, 0, 600e9, 6e6),
        Device("A10G", 70e12, 35e12, 31.52e12, 0, 600e9, 6e6),
        Device("A30", 165e12, 82e12, 10.3e12, 0, 933e9, 24e6),
        Device(
            "RTX 4090",
            165.2e12,
            82.6e12,
            82.6e12,
            330.3e12,
            1008e9,
            72e6,
            named=r"RTX 4090(?! D\b| Laptop)",
        ),
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
        Device(
            "RTX PRO 6000",
            503.8e12,
            251.9e12,
            125e12,
            1007.6e12,
            1792e9,
            128e6,
            named=r"RTX PRO 6000(?! Blackwell Max-Q)",
        ),
        Device("B200", 2250e12, 1125e12, 75e12, 4500e12, 8000e9, 126e6),
        Device("GB200", 2500e12, 1250e12, 80e12, 5000e12, 8000e9, 126e6),
        Device("B300", 2250e12, 1125e12, 75e12, 4500e12, 8000e9, 126e6),
        Device("GB300", 2500e12, 1250e12, 80e12, 5000e12, 8000e9, 126e6),
    ),
)
