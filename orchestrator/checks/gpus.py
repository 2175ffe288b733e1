"""What is judged of a machine's GPUs: whether they are there and idle, whole and at full speed, and how they are linked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.checks.check import Check, failed, ok, warning
from orchestrator.checks.nvidia_smi import gpu_states, pairs
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.versions import number

__all__ = ["conditions", "count_check", "gpu_checks"]

_BUSY_MIB = 1024
_BUSY_PERCENT = 10
_OF_PROGRAMS = {8, 13, 31, 32, 43, 45, 68, 69, 109}
"""Xids that a faulty program causes as well: NVIDIA's catalogue asks for a restart of the application at first."""
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
    """Return every check of a machine whose GPUs are measured."""
    checks = [count_check(host, facts, ranks)]
    return [*checks, *conditions(host.name, facts)] if checks[0].verdict == "ok" else checks


def count_check(host: Host, facts: Mapping[str, Any], ranks: int | None) -> Check:
    """Judge whether there are as many GPUs as a run, or else the inventory, asks for."""
    found = facts["gpus"]
    wanted = ranks if ranks is not None else host.gpus
    expected = f"{wanted or 'some'} GPUs"
    if not isinstance(found, list):
        hint = "install the driver, or say gpus: 0 and slots: in the inventory to measure the CPU"
        if found:
            hint = "nvidia-smi must end well there: look at dmesg, reload the driver or restart the machine"
        return failed(host.name, "gpus", str(found or "no nvidia-smi"), expected, hint)
    if len(found) < (1 if wanted is None else wanted):
        hint = "correct gpus: in the inventory, or look at nvidia-smi -L and dmesg on the node"
        return failed(host.name, "gpus", f"{len(found)} GPUs", expected, hint)
    models = sorted({f"{gpu['name']}{_memory(gpu)}, driver {gpu['driver']}" for gpu in found})
    return ok(host.name, "gpus", f"{len(found)} x {', '.join(models)}")


def _memory(gpu: Mapping[str, Any]) -> str:
    size = gpu.get("memory_mib")
    return f" {size / 1024:.0f} GiB" if isinstance(size, (int, float)) else ""


def conditions(host: str, facts: Mapping[str, Any]) -> list[Check]:
    """Return the checks of the state that GPUs are in: what may qualify a number that was measured on them."""
    gpus = gpu_states(facts)
    checks = [judged(host, gpus, facts) for judged in _CONDITIONS] if gpus else []
    return [check for check in checks if check]


def _idle(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check:
    busy = {
        str(gpu["index"])
        for gpu in gpus
        if number(gpu.get("used_mib")) > _BUSY_MIB or number(gpu.get("utilization")) > _BUSY_PERCENT
    }
    processes = [each for each in facts.get("gpu_processes") or () if isinstance(each, Mapping)]
    if not busy and not processes:
        return ok(host, "idle", f"all {len(gpus)} GPUs idle")
    whose = _folded(
        (f"{each.get('name')} of {each.get('user') or 'somebody'} (process {each.get('pid')})", str(each.get("gpu")))
        for each in processes
    )
    rest = busy - {str(each.get("gpu")) for each in processes}
    whose += _folded(("memory or time used by processes that are not shown", gpu) for gpu in rest)
    hint = "wait for its end or choose other nodes; a number measured beside other work says little"
    return warning(host, "idle", "; ".join(whose), "idle GPUs", hint)


def _folded(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return each distinct text once, with the GPUs of which it was said."""
    by_text: dict[str, list[str]] = {}
    for text, gpu in said:
        by_text.setdefault(text, []).append(gpu)
    return [f"GPU {','.join(sorted(set(gpus), key=lambda gpu: (len(gpu), gpu)))}: {text}" for text, gpus in by_text.items()]


def _each(gpus: Sequence[Mapping[str, Any]], say: Callable[[Mapping[str, Any]], str]) -> str:
    """Return what there is to say of each GPU, in one text; an empty one where that is nothing of any."""
    return "; ".join(_folded((text, str(gpu["index"])) for gpu in gpus if (text := say(gpu))))


def _ecc(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    if bad := _each(gpus, lambda gpu: "rows of memory could not be remapped" if gpu.get("rows_failed") == "Yes" else ""):
        return failed(host, "ecc", bad, "memory that can be repaired", "have this GPU replaced")

    def say(gpu: Mapping[str, Any]) -> str:
        errors = number(gpu.get("ecc_now"))
        words = [f"{errors:.0f} uncorrected errors since the driver was loaded"] * (errors > 0)
        words += ["pages wait to be retired"] * (gpu.get("pages_pending") == "Yes")
        words += ["rows wait to be remapped"] * (gpu.get("rows_pending") == "Yes")
        return ", ".join(words)

    if bad := _each(gpus, say):
        return warning(host, "ecc", bad, "no uncorrected errors, nothing pending", "reset this GPU or restart the machine")
    modes = sorted({str(gpu["ecc"]) for gpu in gpus if gpu.get("ecc")})
    if len(modes) > 1:
        return warning(host, "ecc", "on for some GPUs and off for others", "the same for all", "set it by nvidia-smi -e 1")
    if not modes:
        return None
    ever = sum(int(number(gpu.get("ecc_ever"))) for gpu in gpus)
    return ok(host, "ecc", f"{'on' if modes == ['Enabled'] else 'off'}" + f", {ever} uncorrected errors ever" * (ever > 0))


def _xid(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    found = facts.get("xids")
    if isinstance(found, str):
        return ok(host, "xid", f"kernel log {found}")
    if not isinstance(found, (list, tuple)):
        return None
    serious = [each for each in found if each["code"] not in _OF_PROGRAMS]
    if not serious:
        return ok(host, "xid", _xid_words(found) or "no Xid since the machine was started")
    hint = "look at dmesg there; reset the GPU or restart the machine, and take it out where this comes again"
    return warning(host, "xid", _xid_words(serious), "no Xid of the hardware since the machine was started", hint)


def _xid_words(found: Sequence[Mapping[str, Any]]) -> str:
    def words(each: Mapping[str, Any]) -> str:
        what = _XID_WORDS.get(each["code"], str(each["text"])[:40])
        return f"Xid {each['code']} ({what}) {_ago(each['age_s'])} ago"

    return "; ".join(_folded((words(each), str(each["gpu"])) for each in found))


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _clocks(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    def slowed(gpu: Mapping[str, Any]) -> str:
        reasons = [_SLOWDOWNS[name] for name in str(gpu.get("slowed_by") or "").split(", ") if name in _SLOWDOWNS]
        return f"clocks lowered by {' and '.join(reasons)}" if reasons else ""

    def capped(gpu: Mapping[str, Any]) -> str:
        limit, usual = number(gpu.get("power_limit_w")), number(gpu.get("power_default_w"))
        set_to, default = number(gpu.get("sm_set_mhz")), number(gpu.get("sm_default_mhz"))
        words = [f"power limited to {limit:g} W of {usual:g} W"] * (0 < limit < usual)
        return ", ".join(words + [f"clock set to {set_to:g} MHz of {default:g} MHz"] * (0 < set_to < default))

    if bad := _each(gpus, slowed):
        return warning(
            host, "clocks", bad, "full clocks", "look at cooling and power of this machine; nvidia-smi -q -d PERFORMANCE"
        )
    if bad := _each(gpus, capped):
        return warning(host, "clocks", bad, "the default limits", "nvidia-smi -pl and -rac set them back, as root")
    limits = {f"up to {gpu['sm_max_mhz']} MHz" + _watts(gpu) for gpu in gpus if gpu.get("sm_max_mhz")}
    return ok(host, "clocks", ", ".join(sorted(limits))) if limits else None


def _watts(gpu: Mapping[str, Any]) -> str:
    return f", {number(gpu['power_limit_w']):g} W" if gpu.get("power_limit_w") else ""


def _modes(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    if bad := _each(gpus, lambda gpu: "compute mode Prohibited" if gpu.get("compute_mode") == "Prohibited" else ""):
        return failed(host, "modes", bad, "compute mode Default", "set it by nvidia-smi -c 0, as root")
    if bad := _each(gpus, lambda gpu: "MIG is on" if gpu.get("mig") == "Enabled" else ""):
        return warning(host, "modes", bad, "whole GPUs", "ranks get slices of a GPU; nvidia-smi -mig 0 turns it off, as root")
    modes = {f"compute mode {gpu['compute_mode']}" for gpu in gpus if gpu.get("compute_mode")}
    held = {f"persistence {str(gpu['persistence']).lower()}" for gpu in gpus if gpu.get("persistence")}
    return ok(host, "modes", ", ".join([*sorted(modes), *sorted(held)])) if modes or held else None


def _pcie(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    def narrow(gpu: Mapping[str, Any]) -> str:
        now, most = number(gpu.get("pcie_width")), number(gpu.get("pcie_width_max"))
        return f"{now:g} lanes of {most:g}" if 0 < now < most else ""

    if bad := _each(gpus, narrow):
        return warning(host, "pcie", bad, "all lanes", "reseat the card or its riser; see lspci -vv, LnkSta against LnkCap")
    # An idle GPU lowers the generation of its link to save power, so nothing can be said of that here.
    links = {
        f"generation {gpu['pcie_gen_max']} x{gpu['pcie_width']}" for gpu in gpus if {"pcie_gen_max", "pcie_width"} <= gpu.keys()
    }
    return ok(host, "pcie", ", ".join(sorted(links))) if links else None


def _fabric(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    states = {str(gpu["fabric"]) for gpu in gpus if gpu.get("fabric")}
    if not states:
        return None
    bad = _each(gpus, lambda gpu: "" if gpu.get("fabric") in (None, "Completed", "Completed/Success") else str(gpu["fabric"]))
    if bad:
        hint = "CUDA does not start before that; see systemctl status nvidia-fabricmanager, of the driver's own version"
        return failed(host, "fabric", bad, "Completed/Success", hint)
    return ok(host, "fabric", "NVSwitch fabric complete")


def _links(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    found = pairs(facts.get("topology"))
    if not found:
        return None
    kinds = list(found.values())
    usual = max(sorted(set(kinds)), key=kinds.count)
    # Most pairs joined alike by NVLink is a switch, which joins all; other wirings have several kinds by design.
    odd = {pair: kind for pair, kind in found.items() if kind != usual}
    if odd and usual.startswith("NV") and kinds.count(usual) > len(kinds) / 2:
        words = ", ".join(f"{one}-{other} {kind}" for (one, other), kind in list(odd.items())[:8])
        return warning(
            host, "links", words, f"{usual} between all GPUs", "see nvidia-smi nvlink --status and dmesg (Xid 74) there"
        )
    alike = [f"{kind} {count} pair{'s' * (count > 1)}" for kind, count in sorted(Counter(kinds).items())]
    return ok(host, "links", ", ".join(alike))


def _cuda(host: str, gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Check | None:
    versions = facts.get("framework")
    built, speaks = versions.get("cuda") if isinstance(versions, Mapping) else None, facts.get("cuda_driver")
    if not speaks:
        return None
    if built and number(str(built).partition(".")[0]) > number(str(speaks).partition(".")[0]):
        hint = "a newer driver, the cuda-compat package, or a framework built for the driver's CUDA"
        return warning(
            host, "cuda", f"the driver's CUDA is {speaks}, the framework's {built}", f"a driver for CUDA {built}", hint
        )
    return ok(host, "cuda", f"the driver's {speaks}" + f", the framework's {built}" * bool(built))


_CONDITIONS = (_idle, _cuda, _ecc, _xid, _clocks, _modes, _pcie, _fabric, _links)
