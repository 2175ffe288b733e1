"""Checks of a machine's GPUs: their number, whether they are idle, healthy and at full speed, and
how they are linked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.checks.check import Check, failure, ok, warning
from orchestrator.checks.facts import GpuFacts, NodeFacts, Xid, node_facts
from orchestrator.devices.gpu_states import UNKNOWN_GPU, is_partition
from orchestrator.devices.nvidia_smi import pairs
from orchestrator.devices.vendor import any_tool, vendor_of
from orchestrator.grouping import group_pairs
from orchestrator.inventory import Host
from orchestrator.inventory.versions import number
from orchestrator.plural import plural

_BUSY_MIB = 1024
_BUSY_PERCENT = 10
_UNKNOWN_USE = {
    (True, True): "neither memory in use nor utilization",
    (True, False): "no memory in use",
    (False, True): "no utilization",
}
"""Words for a GPU by its unknown values: memory in use, utilization."""
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


def gpu_checks(host: Host, facts: NodeFacts | Mapping[str, Any], ranks: int | None) -> list[Check]:
    """Return every check of a machine that is measured on its GPUs."""
    known = node_facts(facts)
    count = count_check(host, known, ranks)
    if count.verdict == "failed":
        return [count]
    return [count, *conditions(host.name, known)]


def count_check(host: Host, facts: NodeFacts, ranks: int | None) -> Check:
    """Check that the machine has as many GPUs as the run needs, or as the inventory lists if no run
    is known.
    """
    gpus = facts.gpus
    required = ranks if ranks is not None else host.gpus
    expected = plural(required, "GPU") if required else "at least one GPU"
    if gpus is None:
        hint = "install the driver, or set gpus: 0 and slots: in the inventory to measure the CPU"
        if facts.gpu_fault:
            hint = f"{facts.gpu_tool} must succeed on the node: check dmesg, reload the driver or restart the machine"
        return failure(
            host.name,
            "gpus",
            facts.gpu_fault or f"no {any_tool()}",
            expected,
            hint,
        )
    count = len(gpus) if facts.instances is None else facts.instances
    if count < (1 if required is None else required):
        listing = vendor_of(facts.gpu_tool).hints.listing or facts.gpu_tool
        hint = f"correct gpus: in the inventory, or check {listing} and dmesg on the node"
        listed = f" in vars.cuda_visible_devices {facts.devices}" if "devices" in facts.told else ""
        found = f"{plural(len(gpus), 'GPU')}{listed}{_beside(facts)}"
        return failure(host.name, "gpus", found, expected, hint)
    if facts.gpus_missing and "devices" not in facts.told:
        found = f"{plural(len(gpus), 'GPU')}{_beside(facts)}"
        hint = "a GPU is lost: check dmesg, restart the machine, or list the others in vars.cuda_visible_devices"
        return failure(
            host.name, "gpus", found, f"{expected}, and an answer from every other", hint
        )
    if broken := _per_gpu(gpus, lambda gpu: gpu.broken):
        hint = vendor_of(facts.gpu_tool).hints.reset
        return failure(host.name, "gpus", broken, f"{expected} that answers", hint)
    if silent := _per_gpu(gpus, lambda gpu: gpu.silent):
        hint = f"see {facts.gpu_tool} and dmesg on the node: a GPU that does not tell all its values may be about to fail"
        return warning(
            host.name,
            "gpus",
            f"{plural(len(gpus), 'GPU')}; {silent}",
            "an answer for every value",
            hint,
        )
    if remark := _beside(facts):
        hint = f"run {facts.gpu_tool} on the node, and check dmesg"
        found = f"{plural(len(gpus), 'GPU')}{remark}"
        return warning(host.name, "gpus", found, "an answer for every GPU, and no other", hint)
    # One that does not tell its memory may well be like the others.
    telling = [gpu for gpu in gpus if gpu.memory_mib is not None] or gpus
    names = ((f"{gpu.name or 'unnamed GPU'}{_memory(gpu)}", gpu.index) for gpu in telling)
    models = group_pairs(names)
    if len(models) > 1:
        found = "; ".join(f"GPU {','.join(of)}: {model}" for model, of in models.items())
        hint = "ranks wait for the slowest GPU; choose equal ones with --devices"
        return warning(host.name, "gpus", found, "GPUs of one model", hint)
    drivers = sorted({gpu.driver or "unknown" for gpu in gpus})
    return ok(host.name, "gpus", f"{len(gpus)} x {next(iter(models))}, driver {', '.join(drivers)}")


def _beside(facts: NodeFacts) -> str:
    """Return words for attached GPUs that are not listed, and for a remark of the tool."""
    missing = f"{plural(facts.gpus_missing, 'other')} attached" if facts.gpus_missing else ""
    remark = f"{facts.gpu_tool} says: {facts.gpu_remark}" if facts.gpu_remark else ""
    return "".join(f"; {words}" for words in (missing, remark) if words)


def _memory(gpu: GpuFacts) -> str:
    if gpu.memory_mib is None:
        return ""
    return f" {gpu.memory_mib / 1024:.0f} GiB"


def conditions(host: str, facts: NodeFacts) -> list[Check]:
    """Return the checks of the GPUs' state: anything that may affect a number measured on them."""
    if not facts.gpus:
        return []
    checks = [judge(host, facts.gpus, facts) for judge in _CONDITIONS]
    return [check for check in checks if check]


def _idle(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check:
    busy = {
        gpu.index
        for gpu in gpus
        if number(gpu.used_mib) > _BUSY_MIB or number(gpu.utilization) > _BUSY_PERCENT
    }
    processes = facts.gpu_processes
    unknown = _unknown_use(gpus)
    if unknown and not busy and not processes:
        words = f"not known: {facts.gpu_tool} tells {unknown}"
        return warning(host, "idle", words, "idle GPUs", f"see {facts.gpu_tool} on the node")
    if not busy and not processes:
        return ok(host, "idle", f"{'all ' if len(gpus) > 1 else ''}{plural(len(gpus), 'GPU')} idle")
    users = _fold_texts(
        (
            f"{process.name} of {process.user or 'an unknown user'} (process {process.pid})",
            process.gpu,
        )
        for process in processes
    )
    known = {process.gpu for process in processes}
    rest = set() if UNKNOWN_GPU in known else busy - known
    users += _fold_texts(
        (f"memory or time used by processes that {facts.gpu_tool} does not list", gpu)
        for gpu in rest
    )
    hint = "wait for it to end, or choose other nodes; other work distorts what is measured"
    return warning(host, "idle", "; ".join(users), "idle GPUs", hint)


def _unknown_use(gpus: Sequence[GpuFacts]) -> str:
    """Return a phrase that names the GPUs whose use is unknown. A part of a GPU has no utilization
    of its own.
    """
    by_words: dict[str, list[str]] = {}
    for gpu in gpus:
        is_part = gpu.mig == "Enabled" or is_partition(gpu.partition)
        missing = gpu.used_mib is None, gpu.utilization is None and not is_part
        if words := _UNKNOWN_USE.get(missing):
            by_words.setdefault(words, []).append(gpu.index)
    return " and ".join(f"{words} of GPU {','.join(of)}" for words, of in by_words.items())


def _fold_texts(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return each distinct text once, with the GPUs that it holds for. ``texts`` are (text, GPU
    index).
    """
    by_text = group_pairs(texts)
    folded = []
    for text, gpus in by_text.items():
        if UNKNOWN_GPU not in gpus:
            numbers = sorted(set(gpus), key=lambda gpu: (len(gpu), gpu))
            text = f"GPU {','.join(numbers)}: {text}"
        folded.append(text)
    return folded


def _per_gpu(gpus: Sequence[GpuFacts], describe: Callable[[GpuFacts], str]) -> str:
    """Return the descriptions of all GPUs as one text; empty if no GPU has one."""
    return "; ".join(_fold_texts((text, gpu.index) for gpu in gpus if (text := describe(gpu))))


def _ecc(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    bad = _per_gpu(
        gpus,
        lambda gpu: "a memory row could not be remapped" if gpu.rows_failed == "Yes" else "",
    )
    if bad:
        return failure(host, "ecc", bad, "memory that can be repaired", "have this GPU replaced")

    def memory_faults(gpu: GpuFacts) -> str:
        errors = number(gpu.ecc_now)
        texts = []
        if errors > 0:
            texts.append(
                f"{plural(round(errors), 'uncorrected error')} since the driver was loaded"
            )
        if gpu.pages_pending == "Yes":
            texts.append("page retirement pending")
        if gpu.rows_pending == "Yes":
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
    modes = sorted({gpu.ecc for gpu in gpus if gpu.ecc})
    if len(modes) > 1:
        hint = vendor_of(facts.gpu_tool).hints.ecc
        return warning(host, "ecc", "on for some GPUs and off for others", "the same for all", hint)
    if not modes:
        return None
    ever = sum(int(number(gpu.ecc_ever)) for gpu in gpus)
    mode = {"Enabled": "on", "Disabled": "off"}.get(modes[0], modes[0])
    return ok(host, "ecc", f"{mode}, {ever} uncorrected errors ever" if ever else mode)


def _xid(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    if facts.kernel_log:
        return ok(host, "xid", f"kernel log {facts.kernel_log}")
    xids = facts.xids
    if xids is None:
        return None
    serious = [xid for xid in xids if xid.code not in _OF_PROGRAMS]
    if not serious:
        return ok(host, "xid", _xid_words(xids) or "no Xid since the machine started")
    hint = "check dmesg on the node; reset the GPU or restart the machine, and take it out of use if this recurs"
    return warning(
        host, "xid", _xid_words(serious), "no hardware Xid since the machine started", hint
    )


def _xid_words(xids: Sequence[Xid]) -> str:
    def words(xid: Xid) -> str:
        meaning = _XID_WORDS.get(xid.code, xid.text[:40])
        return f"Xid {xid.code} ({meaning}) {_ago(xid.age_s)} ago"

    return "; ".join(_fold_texts((words(xid), xid.gpu) for xid in xids))


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _clocks(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    def find_slowdowns(gpu: GpuFacts) -> str:
        reasons = [_SLOWDOWNS[name] for name in gpu.slowed_by.split(", ") if name in _SLOWDOWNS]
        if not reasons:
            return ""
        return f"clocks lowered by {' and '.join(reasons)}"

    def find_caps(gpu: GpuFacts) -> str:
        limit, usual = number(gpu.power_limit_w), number(gpu.power_default_w)
        set_to, default = number(gpu.sm_set_mhz), number(gpu.sm_default_mhz)
        texts = []
        if 0 < limit < usual:
            texts.append(f"power limited to {limit:g} W, default {usual:g} W")
        if 0 < set_to < default:
            texts.append(f"clock set to {set_to:g} MHz, default {default:g} MHz")
        return ", ".join(texts)

    if bad := _per_gpu(gpus, find_slowdowns):
        return warning(
            host,
            "clocks",
            bad,
            "full clocks",
            vendor_of(facts.gpu_tool).hints.clocks,
        )
    if bad := _per_gpu(gpus, find_caps):
        return warning(
            host,
            "clocks",
            bad,
            "the default limits",
            vendor_of(facts.gpu_tool).hints.limits,
        )
    limits = {f"up to {gpu.sm_max_mhz} MHz" + _watts(gpu) for gpu in gpus if gpu.sm_max_mhz}
    if not limits:
        return None
    return ok(host, "clocks", ", ".join(sorted(limits)))


def _watts(gpu: GpuFacts) -> str:
    if not gpu.power_limit_w:
        return ""
    return f", {number(gpu.power_limit_w):g} W"


def _modes(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    bad = _per_gpu(
        gpus,
        lambda gpu: "compute mode Prohibited" if gpu.compute_mode == "Prohibited" else "",
    )
    if bad:
        return failure(
            host, "modes", bad, "compute mode Default", "set it with nvidia-smi -c 0, as root"
        )
    bad = _per_gpu(gpus, lambda gpu: "MIG is on" if gpu.mig == "Enabled" else "")
    if bad:
        return warning(
            host,
            "modes",
            bad,
            "whole GPUs",
            "each rank gets only a slice of a GPU; disable MIG with nvidia-smi -mig 0, as root",
        )
    bad = _per_gpu(
        gpus, lambda gpu: f"in partitions ({gpu.partition})" if is_partition(gpu.partition) else ""
    )
    if bad:
        hint = "each rank gets only a partition of a GPU; amd-smi set --compute-partition SPX, as root, makes it one device"
        return warning(host, "modes", bad, "whole GPUs (SPX)", hint)
    modes = {f"compute mode {gpu.compute_mode}" for gpu in gpus if gpu.compute_mode}
    modes |= {f"partition {gpu.partition}" for gpu in gpus if gpu.partition}
    modes |= {f"memory partition {gpu.memory_partition}" for gpu in gpus if gpu.memory_partition}
    held = {f"persistence {str(gpu.persistence).lower()}" for gpu in gpus if gpu.persistence}
    if modes or held:
        return ok(host, "modes", ", ".join([*sorted(modes), *sorted(held)]))
    return None


def _pcie(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    def narrow(gpu: GpuFacts) -> str:
        width, maximum = number(gpu.pcie_width), number(gpu.pcie_width_max)
        if 0 < width < maximum:
            return f"{width:g} of {maximum:g} lanes"
        return ""

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
        f"generation {gpu.pcie_gen_max} x{gpu.pcie_width}"
        for gpu in gpus
        if gpu.pcie_gen_max is not None and gpu.pcie_width is not None
    }
    if not links:
        return None
    return ok(host, "pcie", ", ".join(sorted(links)))


def _fabric(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    states = {gpu.fabric for gpu in gpus if gpu.fabric}
    if not states:
        return None
    complete = ("", "Completed", "Completed/Success")
    bad = _per_gpu(gpus, lambda gpu: "" if gpu.fabric in complete else gpu.fabric)
    if bad:
        hint = "CUDA cannot start; see systemctl status nvidia-fabricmanager, whose version must equal the driver's"
        return failure(host, "fabric", bad, "Completed/Success", hint)
    if ill := _per_gpu(gpus, lambda gpu: gpu.fabric_ill):
        hint = "see nvidia-smi nvlink --status, dmesg, and the log of nvidia-fabricmanager"
        return warning(host, "fabric", ill, "a healthy fabric", hint)
    return ok(host, "fabric", "NVSwitch fabric complete")


def _links(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    links = pairs(facts.topology)
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


def _cuda(host: str, gpus: Sequence[GpuFacts], facts: NodeFacts) -> Check | None:
    built, supported = facts.framework.get("cuda"), facts.cuda_driver
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
