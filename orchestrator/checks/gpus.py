"""Checks of a machine's GPUs: their number, whether they are idle, healthy and at full speed, and
how they are linked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.checks.check import Check, failed, ok, warning
from orchestrator.devices.gpu_states import UNKNOWN_GPU, gpu_states, is_partition
from orchestrator.devices.nvidia_smi import pairs
from orchestrator.inventory import Host
from orchestrator.inventory.versions import number
from orchestrator.plural import plural

__all__ = ["conditions", "count_check", "gpu_checks"]

_BUSY_MIB = 1024
_BUSY_PERCENT = 10
_OF_PROGRAMS = {8, 13, 31, 32, 43, 45, 68, 69, 109}
"""Xids that a faulty program can cause too: for these NVIDIA's catalogue recommends restarting the
application first.
"""
_XID_WORDS = {
    48: "double-bit ECC error",
    61: "firmware halted",
    62: "firmware halted",
    63: "memory retired or rows remapped",
    64: "memory could not be retired",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP did not answer",
    120: "GSP error",
}
_SLOWDOWNS = {
    "hw_slowdown": "the hardware, by half or more",
    "hw_thermal_slowdown": "temperature, by half or more",
    "hw_power_brake_slowdown": "the power supply, by half or more",
    "sw_thermal_slowdown": "temperature",
    "sync_boost": "the slowest GPU of a group",
}


def gpu_checks(host: Host, facts: Mapping[str, Any], ranks: int | None) -> list[Check]:
    """Return every check of a machine that is measured on its GPUs."""
    checks = [count_check(host, facts, ranks)]
    return [*checks, *conditions(host.name, facts)] if checks[0].verdict != "failed" else checks


def count_check(host: Host, facts: Mapping[str, Any], ranks: int | None) -> Check:
    """Check that the machine has as many GPUs as the run needs, or as the inventory lists if no run
    is known.
    """
    gpus = facts["gpus"]
    required = ranks if ranks is not None else host.gpus
    expected = plural(required, "GPU") if required else "at least one GPU"
    if not isinstance(gpus, list):
        hint = "install the driver, or set gpus: 0 and slots: in the inventory to measure the CPU"
        if gpus:
            hint = f"{_tool(facts)} must succeed on the node: check dmesg, reload the driver or restart the machine"
        return failed(
            host.name, "gpus", str(gpus or "no nvidia-smi, amd-smi or rocm-smi"), expected, hint
        )
    if facts.get("instances", len(gpus)) < (1 if required is None else required):
        listing = "nvidia-smi -L" if "gpu_tool" not in facts else _tool(facts)
        hint = f"correct gpus: in the inventory, or check {listing} and dmesg on the node"
        listed = f" in vars.cuda_visible_devices {facts['devices']}" if "devices" in facts else ""
        return failed(host.name, "gpus", f"{plural(len(gpus), 'GPU')}{listed}", expected, hint)
    states = gpu_states(facts)
    if broken := _per_gpu(states, lambda gpu: str(gpu.get("broken") or "")):
        hint = "reset this GPU (nvidia-smi --gpu-reset, as root) or restart the machine; check dmesg on the node"
        if "gpu_tool" in facts:
            hint = "restart the machine; check dmesg on the node"
        return failed(host.name, "gpus", broken, f"{expected} that answers", hint)
    if silent := _per_gpu(states, lambda gpu: str(gpu.get("silent") or "")):
        hint = f"see {_tool(facts)} and dmesg on the node: a GPU that does not tell all its values may be about to fail"
        return warning(
            host.name,
            "gpus",
            f"{plural(len(gpus), 'GPU')}; {silent}",
            "an answer for every value",
            hint,
        )
    models = sorted(
        {
            f"{gpu['name'] or 'unnamed GPU'}{_memory(gpu)}, driver {gpu['driver'] or 'unknown'}"
            for gpu in gpus
        }
    )
    return ok(host.name, "gpus", f"{len(gpus)} x {', '.join(models)}")


def _tool(facts: Mapping[str, Any]) -> str:
    """Return the program that told the facts of the GPUs."""
    return str(facts.get("gpu_tool", "nvidia-smi"))


def _memory(gpu: Mapping[str, Any]) -> str:
    size = gpu.get("memory_mib")
    return f" {size / 1024:.0f} GiB" if isinstance(size, (int, float)) else ""


def conditions(host: str, facts: Mapping[str, Any]) -> list[Check]:
    """Return the checks of the GPUs' state: anything that may affect a number measured on them."""
    gpus = gpu_states(facts)
    checks = [judge(host, gpus, facts) for judge in _CONDITIONS] if gpus else []
    return [check for check in checks if check]


def _idle(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check:
    busy = {
        str(gpu["index"])
        for gpu in gpus
        if number(gpu.get("used_mib")) > _BUSY_MIB or number(gpu.get("utilization")) > _BUSY_PERCENT
    }
    processes = [
        process for process in facts.get("gpu_processes") or () if isinstance(process, Mapping)
    ]
    unknown = [
        str(gpu["index"])
        for gpu in gpus
        if gpu.get("used_mib") is None and gpu.get("utilization") is None
    ]
    if unknown and not busy and not processes:
        words = (
            f"{_tool(facts)} tells neither memory in use nor utilization of GPU {','.join(unknown)}"
        )
        return warning(
            host, "idle", f"not known: {words}", "idle GPUs", f"see {_tool(facts)} on the node"
        )
    if not busy and not processes:
        return ok(host, "idle", f"{'all ' if len(gpus) > 1 else ''}{plural(len(gpus), 'GPU')} idle")
    users = _folded(
        (
            f"{process.get('name')} of {process.get('user') or 'an unknown user'} (process {process.get('pid')})",
            str(process.get("gpu")),
        )
        for process in processes
    )
    known = {str(process.get("gpu")) for process in processes}
    rest = set() if UNKNOWN_GPU in known else busy - known
    users += _folded(
        (f"memory or time used by processes that {_tool(facts)} does not list", gpu) for gpu in rest
    )
    hint = "wait for it to end, or choose other nodes; other work distorts what is measured"
    return warning(host, "idle", "; ".join(users), "idle GPUs", hint)


def _folded(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return each distinct text once, with the GPUs that it holds for. ``texts`` are (text, GPU
    index).
    """
    by_text: dict[str, list[str]] = {}
    for text, gpu in texts:
        by_text.setdefault(text, []).append(gpu)
    return [
        text
        if UNKNOWN_GPU in gpus
        else f"GPU {','.join(sorted(set(gpus), key=lambda gpu: (len(gpu), gpu)))}: {text}"
        for text, gpus in by_text.items()
    ]


def _per_gpu(
    gpus: Sequence[Mapping[str, Any]], describe: Callable[[Mapping[str, Any]], str]
) -> str:
    """Return the descriptions of all GPUs as one text; empty if no GPU has one."""
    return "; ".join(_folded((text, str(gpu["index"])) for gpu in gpus if (text := describe(gpu))))


def _ecc(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    if bad := _per_gpu(
        gpus,
        lambda gpu: "a memory row could not be remapped" if gpu.get("rows_failed") == "Yes" else "",
    ):
        return failed(host, "ecc", bad, "memory that can be repaired", "have this GPU replaced")

    def memory_faults(gpu: Mapping[str, Any]) -> str:
        errors = number(gpu.get("ecc_now"))
        texts = []
        if errors > 0:
            texts.append(
                f"{plural(round(errors), 'uncorrected error')} since the driver was loaded"
            )
        if gpu.get("pages_pending") == "Yes":
            texts.append("page retirement pending")
        if gpu.get("rows_pending") == "Yes":
            texts.append("row remapping pending")
        return ", ".join(texts)

    if bad := _per_gpu(gpus, memory_faults):
        return warning(
            host,
            "ecc",
            bad,
            "no uncorrected errors, nothing pending",
            "reset this GPU or restart the machine",
        )
    modes = sorted({str(gpu["ecc"]) for gpu in gpus if gpu.get("ecc")})
    if len(modes) > 1:
        hint = (
            "set it with nvidia-smi -e 1"
            if "gpu_tool" not in facts
            else "compare amd-smi static --ras of these GPUs"
        )
        return warning(host, "ecc", "on for some GPUs and off for others", "the same for all", hint)
    if not modes:
        return None
    ever = sum(int(number(gpu.get("ecc_ever"))) for gpu in gpus)
    mode = {"Enabled": "on", "Disabled": "off"}.get(modes[0], modes[0])
    return ok(host, "ecc", f"{mode}, {ever} uncorrected errors ever" if ever else mode)


def _xid(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    xids = facts.get("xids")
    if isinstance(xids, str):
        return ok(host, "xid", f"kernel log {xids}")
    if not isinstance(xids, (list, tuple)):
        return None
    serious = [xid for xid in xids if xid["code"] not in _OF_PROGRAMS]
    if not serious:
        return ok(host, "xid", _xid_words(xids) or "no Xid since the machine started")
    hint = "check dmesg on the node; reset the GPU or restart the machine, and take it out of use if this recurs"
    return warning(
        host, "xid", _xid_words(serious), "no hardware Xid since the machine started", hint
    )


def _xid_words(xids: Sequence[Mapping[str, Any]]) -> str:
    def words(xid: Mapping[str, Any]) -> str:
        meaning = _XID_WORDS.get(xid["code"], str(xid["text"])[:40])
        return f"Xid {xid['code']} ({meaning}) {_ago(xid['age_s'])} ago"

    return "; ".join(_folded((words(xid), str(xid["gpu"])) for xid in xids))


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _clocks(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    def slowed(gpu: Mapping[str, Any]) -> str:
        reasons = [
            _SLOWDOWNS[name]
            for name in str(gpu.get("slowed_by") or "").split(", ")
            if name in _SLOWDOWNS
        ]
        return f"clocks lowered by {' and '.join(reasons)}" if reasons else ""

    def capped(gpu: Mapping[str, Any]) -> str:
        limit, usual = number(gpu.get("power_limit_w")), number(gpu.get("power_default_w"))
        set_to, default = number(gpu.get("sm_set_mhz")), number(gpu.get("sm_default_mhz"))
        texts = []
        if 0 < limit < usual:
            texts.append(f"power limited to {limit:g} W, default {usual:g} W")
        if 0 < set_to < default:
            texts.append(f"clock set to {set_to:g} MHz, default {default:g} MHz")
        return ", ".join(texts)

    if bad := _per_gpu(gpus, slowed):
        return warning(
            host,
            "clocks",
            bad,
            "full clocks",
            "check cooling and power of this machine; nvidia-smi -q -d PERFORMANCE",
        )
    if bad := _per_gpu(gpus, capped):
        return warning(
            host,
            "clocks",
            bad,
            "the default limits",
            "reset them with nvidia-smi -pl and -rac, as root",
        )
    limits = {
        f"up to {gpu['sm_max_mhz']} MHz" + _watts(gpu) for gpu in gpus if gpu.get("sm_max_mhz")
    }
    return ok(host, "clocks", ", ".join(sorted(limits))) if limits else None


def _watts(gpu: Mapping[str, Any]) -> str:
    return f", {number(gpu['power_limit_w']):g} W" if gpu.get("power_limit_w") else ""


def _modes(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    if bad := _per_gpu(
        gpus,
        lambda gpu: "compute mode Prohibited" if gpu.get("compute_mode") == "Prohibited" else "",
    ):
        return failed(
            host, "modes", bad, "compute mode Default", "set it with nvidia-smi -c 0, as root"
        )
    if bad := _per_gpu(gpus, lambda gpu: "MIG is on" if gpu.get("mig") == "Enabled" else ""):
        return warning(
            host,
            "modes",
            bad,
            "whole GPUs",
            "each rank gets only a slice of a GPU; disable MIG with nvidia-smi -mig 0, as root",
        )
    if bad := _per_gpu(
        gpus, lambda gpu: f"in partitions ({gpu['partition']})" if is_partition(gpu) else ""
    ):
        hint = "each rank gets only a partition of a GPU; amd-smi set --compute-partition SPX, as root, makes it one device"
        return warning(host, "modes", bad, "whole GPUs (SPX)", hint)
    modes = {f"compute mode {gpu['compute_mode']}" for gpu in gpus if gpu.get("compute_mode")}
    modes |= {f"partition {gpu['partition']}" for gpu in gpus if gpu.get("partition")}
    modes |= {
        f"memory partition {gpu['memory_partition']}" for gpu in gpus if gpu.get("memory_partition")
    }
    held = {
        f"persistence {str(gpu['persistence']).lower()}" for gpu in gpus if gpu.get("persistence")
    }
    return ok(host, "modes", ", ".join([*sorted(modes), *sorted(held)])) if modes or held else None


def _pcie(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    def narrow(gpu: Mapping[str, Any]) -> str:
        width, maximum = number(gpu.get("pcie_width")), number(gpu.get("pcie_width_max"))
        return f"{width:g} of {maximum:g} lanes" if 0 < width < maximum else ""

    if bad := _per_gpu(gpus, narrow):
        return warning(
            host,
            "pcie",
            bad,
            "all lanes",
            "reseat the card or its riser; compare LnkSta with LnkCap in lspci -vv",
        )
    # An idle GPU lowers the generation of its link to save power, so the current generation is not
    # judged.
    links = {
        f"generation {gpu['pcie_gen_max']} x{gpu['pcie_width']}"
        for gpu in gpus
        if {"pcie_gen_max", "pcie_width"} <= gpu.keys()
    }
    return ok(host, "pcie", ", ".join(sorted(links))) if links else None


def _fabric(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    states = {str(gpu["fabric"]) for gpu in gpus if gpu.get("fabric")}
    if not states:
        return None
    complete = (None, "Completed", "Completed/Success")
    if bad := _per_gpu(
        gpus, lambda gpu: "" if gpu.get("fabric") in complete else str(gpu["fabric"])
    ):
        hint = "CUDA cannot start; see systemctl status nvidia-fabricmanager, whose version must equal the driver's"
        return failed(host, "fabric", bad, "Completed/Success", hint)
    return ok(host, "fabric", "NVSwitch fabric complete")


def _links(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    links = pairs(facts.get("topology"))
    if not links:
        return None
    kinds = list(links.values())
    usual = max(sorted(set(kinds)), key=kinds.count)
    # If most pairs have the same NVLink, a switch joins all GPUs. Other wirings have several kinds
    # by design.
    odd = {pair: kind for pair, kind in links.items() if kind != usual}
    if odd and usual.startswith("NV") and kinds.count(usual) > len(kinds) / 2:
        words = ", ".join(
            f"{first}-{second} {kind}" for (first, second), kind in list(odd.items())[:8]
        )
        return warning(
            host,
            "links",
            words,
            f"{usual} between all GPUs",
            "see nvidia-smi nvlink --status and dmesg (Xid 74) on the node",
        )
    counts = [f"{kind} {plural(count, 'pair')}" for kind, count in sorted(Counter(kinds).items())]
    return ok(host, "links", ", ".join(counts))


def _cuda(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    versions = facts.get("framework")
    built, supported = (
        versions.get("cuda") if isinstance(versions, Mapping) else None,
        facts.get("cuda_driver"),
    )
    if not supported:
        return None
    if built and number(str(built).partition(".")[0]) > number(str(supported).partition(".")[0]):
        hint = "install a newer driver, the cuda-compat package, or a framework built for the driver's CUDA"
        return warning(
            host,
            "cuda",
            f"the driver's CUDA is {supported}, the framework's {built}",
            f"a driver for CUDA {built}",
            hint,
        )
    of_driver = f"the driver's {supported}"
    return ok(host, "cuda", f"{of_driver}, the framework's {built}" if built else of_driver)


_CONDITIONS = (_idle, _cuda, _ecc, _xid, _clocks, _modes, _pcie, _fabric, _links)
