"""AMD's GPUs: amd-smi or rocm-smi, the variables of HIP, and the peaks of its data sheets.

Peaks are without sparsity, for the Instinct MI210, MI300X, MI325X, MI350X and MI355X. MI250 and
MI250X have half of theirs, because programs see each of the two dies as a device. For CDNA 2
(MI200), fp32 is the peak of the matrix units. CDNA 2 and CDNA 4 have no TF32.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.devices import amd_smi
from orchestrator.devices.answers import why_silent
from orchestrator.devices.vendor import Device, Hints, Vendor

# HIP takes CUDA_VISIBLE_DEVICES, which launch scripts set, only where HIP_VISIBLE_DEVICES is not
# set, and counts among the devices that the others leave (https://rocm.docs.amd.com, GPU isolation
# techniques).
_AMD = """\
if [ -e /dev/kfd ]; then
unset ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL
export HIP_VISIBLE_DEVICES={devices}
fi
"""


def _show(devices: str) -> str:
    return _AMD.format(devices=shlex.quote(devices))


def _facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of AMD's GPUs, from amd-smi if it answered, else from rocm-smi; ``gpus`` is
    the reason if neither did.

    amd-smi may end with 0 where it could not read the driver ("Invalid platform"), so its text
    decides.
    """
    owners = raw.get("owners") or {}
    answers = {
        name: raw[name]
        for name in ("amd_static", "amd_metric", "amd_process", "rocm")
        if isinstance(raw.get(name), Mapping)
    }
    texts = {
        name: str(answer.get("text")) for name, answer in answers.items() if answer.get("code") == 0
    }
    reasons = []
    for tool, name in (("amd-smi", "amd_static"), ("rocm-smi", "rocm")):
        if name not in answers:
            continue
        if name not in texts:
            reasons.append(why_silent(answers[name], tool))
            continue
        try:
            if tool == "rocm-smi":
                return amd_smi.rocm_gpu_facts(texts[name], owners)
            return amd_smi.amd_gpu_facts(
                texts[name], texts.get("amd_metric", ""), texts.get("amd_process", ""), owners
            )
        except ValueError as error:
            reasons.append(f"{tool} wrote unexpected output: {error}: {texts[name].strip()[:100]}")
    return {"gpus": "; ".join(reasons)[:400], "gpu_tool": "amd-smi"}


VENDOR = Vendor(
    name="amd",
    order=2,
    recognises=lambda raw: raw.get("amd_static") is not None or raw.get("rocm") is not None,
    facts=_facts,
    show=_show,
    variables=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    driver="/sys/module/amdgpu/version",
    tools=("amd-smi", "rocm-smi"),
    hints=Hints(
        ecc="compare amd-smi static --ras of these GPUs",
        container="set gpus: false and devices: [/dev/kfd, /dev/dri] of container:, or options: [--rocm] for apptainer",
    ),
    devices=(
        Device("MI210", 181e12, 0, 45.3e12, 0, 1638.4e9, 8e6),
        Device("MI250", 181.05e12, 0, 45.25e12, 0, 1638.4e9, 8e6),
        Device(
            "MI250X",
            191.5e12,
            0,
            47.85e12,
            0,
            1638.4e9,
            8e6,
            named=r"MI250X|MI200 \(MCM\) OAM LC MBA HPE C2",
        ),
        Device("MI300X", 1307.4e12, 653.7e12, 163.4e12, 2614.9e12, 5300e9, 256e6),
        Device("MI325X", 1307.4e12, 653.7e12, 163.4e12, 2614.9e12, 6000e9, 256e6),
        Device("MI350X", 2306.9e12, 0, 144.2e12, 4613.7e12, 8000e9, 256e6),
        Device("MI355X", 2516.6e12, 0, 157.3e12, 5033.2e12, 8000e9, 256e6),
    ),
)
