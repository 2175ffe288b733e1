"""Checks of a host's PCIe, processors, kernel and drivers. Silent about what a host does not have."""

from __future__ import annotations

from itertools import combinations

from orchestrator.checks.check import Check, ok, unknown, warning
from orchestrator.features.audit.catalogue import CATALOGUE
from orchestrator.features.audit.report import HostReport, PciDevice, leading_number
from orchestrator.grouping import group_pairs
from orchestrator.plural import plural

_REDIRECTING = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x20: "EgressCtrl"}
_SAVES_POWER_GTS = (2.5, 5.0)
_MOST_EXIT_US = 50
_MOST_SHOWN = 8
_CURES = {entry.name: entry.cure for entry in CATALOGUE}


def _warn(host: str, name: str, found: str, expected: str) -> Check:
    return warning(host, name, found, expected, _CURES[name])


def _shown(texts: list[str]) -> str:
    more = f" and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    return ", ".join(texts[:_MOST_SHOWN]) + more


def check_acs(host: str, report: HostReport) -> Check | None:
    """Check that no bridge above two devices that may exchange data redirects it."""
    used = report.used
    above = {bridge for device in used for bridge in device.above}
    known = {name: report.bridges[name] for name in sorted(above) if name in report.bridges}
    if len(used) < 2 or not known:
        return None
    if any(bridge.acs is None for bridge in known.values()):
        hint = "log in as root for the audit, or see sudo lspci -vvv | grep ACSCtl"
        words = f"ACS of {plural(len(known), 'bridge')}: this user may not read it"
        return unknown(host, "acs", words, hint)
    bits = {
        name: [word for bit, word in _REDIRECTING.items() if bridge.acs and bridge.acs[1] & bit]
        for name, bridge in known.items()
    }
    bad = group_pairs((" ".join(words), name) for name, words in bits.items() if words)
    if not bad:
        return ok(host, "acs", f"no redirection on {plural(len(known), 'bridge')}")
    words = "; ".join(f"{bits} on {_shown(names)}" for bits, names in bad.items())
    redirecting = {name for names in bad.values() for name in names}
    pairs = [
        f"{one.name} and {other.name}"
        for one, other in combinations(used, 2)
        if _below_one_switch(one, other) and redirecting & {*one.above, *other.above}
    ]
    if pairs:
        words += f"; not direct any more: {_shown(pairs)}"
    return _warn(host, "acs", words, "ACS without redirection above GPUs and network cards")


def _below_one_switch(one: PciDevice, other: PciDevice) -> bool:
    """Return whether data between two devices needs no root complex. The first bridge above each
    is its root port.
    """
    return bool(set(one.above[1:]) & set(other.above[1:]))


def check_iommu(host: str, report: HostReport) -> Check | None:
    """Check that transfers of GPUs and network cards are not translated."""
    used = report.used
    if not used:
        return None
    grouped = [device for device in used if device.in_group]
    if not grouped:
        return ok(host, "iommu", "off")
    if any(device.iommu for device in grouped):
        is_direct = all(device.iommu in ("identity", "") for device in grouped)
    else:  # Linux before 5.11 tells no types
        is_direct = bool({"iommu=pt", "iommu.passthrough=1"} & {*report.command_line.split()})
    groups = plural(report.iommu_groups, "group")
    if is_direct:
        return ok(host, "iommu", f"pass-through, {groups}")
    by_type = group_pairs(
        (device.iommu or "translated", device.name)
        for device in grouped
        if device.iommu != "identity"
    )
    words = "; ".join(f"{kind} for {_shown(names)}" for kind, names in by_type.items())
    return _warn(host, "iommu", f"{words}; {groups}", "iommu=pt, or no IOMMU")


def check_links(host: str, report: HostReport) -> Check | None:
    """Check that each device uses all lanes and the full speed of its link, and has a slot that
    can.
    """
    linked = [device for device in report.used if leading_number(device.max_link_width)]
    if not linked:
        return None
    speeds = [leading_number(device.current_link_speed) for device in linked if device.gpu]
    is_saving = bool(speeds) and len(set(speeds)) == 1 and speeds[0] in _SAVES_POWER_GTS
    bad = group_pairs(
        (words, device.name)
        for device in linked
        if (words := _slow_link(device, report, device.gpu and is_saving))
    )
    if bad:
        words = "; ".join(f"{_shown(names)}: {words}" for words, names in bad.items())
        return _warn(host, "pcie_link", words, "all lanes at full speed")
    kinds = group_pairs(
        (f"{device.max_link_speed} x{device.max_link_width}", device.name) for device in linked
    )
    words = ", ".join(f"{len(names)} at {kind}" for kind, names in kinds.items())
    return ok(host, "pcie_link", words + (", GPUs now slower to save power" * is_saving))


def _slow_link(device: PciDevice, report: HostReport, is_saving: bool) -> str:
    speed, fastest = device.current_link_speed, device.max_link_speed
    width, widest = device.current_link_width, device.max_link_width
    texts = []
    if 0 < leading_number(width) < leading_number(widest):
        texts.append(f"x{width} of x{widest}")
    slot = report.bridges.get(device.above[-1]) if device.above else None
    limit = leading_number(slot.max_link_speed) if slot else 0.0
    if slot and 0 < limit < leading_number(fastest):
        texts.append(f"a slot of {slot.max_link_speed} for {fastest}")
    elif 0 < leading_number(speed) < leading_number(fastest) and not is_saving:
        texts.append(f"{speed} of {fastest}")
    return ", ".join(texts)


def check_governor(host: str, report: HostReport) -> Check | None:
    """Check that processors do not wait for load before they become fast."""
    policies = {tuple(text.split(" ")): count for text, count in report.processors.policies.items()}
    if not policies:
        return None
    slow = {words: count for words, count in policies.items() if "performance" not in words[1:]}
    if slow:
        words = ", ".join(
            f"{' '.join(filter(None, words[1:]))} ({words[0]}) on {plural(count, 'processor')}"
            for words, count in slow.items()
        )
        return _warn(host, "governor", words, "performance")
    return ok(host, "governor", f"performance on {plural(sum(policies.values()), 'processor')}")


def check_idle_states(host: str, report: HostReport) -> Check | None:
    """Check that no processor may sleep so deeply that it wakes late for a message."""
    states = [(name, us) for name, us, count in report.processors.idle_states if count]
    if not states:
        return None
    deep = [f"{name} ({us} µs)" for name, us in states if us > _MOST_EXIT_US]
    if deep:
        return _warn(
            host, "cstates", f"{_shown(deep)} enabled", f"at most {_MOST_EXIT_US} µs to leave"
        )
    return ok(host, "cstates", f"at most {max(us for _, us in states)} µs to leave")


def check_numa_balancing(host: str, report: HostReport) -> Check | None:
    """Check that the kernel does not move memory between NUMA nodes."""
    if not report.numa_balancing or report.memory_nodes < 2:
        return None
    if report.numa_balancing == "0":
        return ok(host, "numa_balancing", "off")
    return _warn(host, "numa_balancing", f"kernel.numa_balancing is {report.numa_balancing}", "0")


def check_huge_pages(host: str, report: HostReport) -> Check | None:
    """Check that large allocations get huge pages, and do not wait for them."""
    chosen = _chosen(report.huge_pages)
    if not chosen:
        return None
    if chosen == "never":
        return _warn(host, "huge_pages", "never", "always or madvise")
    if _chosen(report.huge_pages_defrag) == "always":
        return _warn(host, "huge_pages", f"{chosen}, defrag always", "defrag madvise or defer")
    return ok(host, "huge_pages", chosen)


def _chosen(text: str) -> str:
    """Return the word in brackets: ``always [madvise] never``."""
    return text.partition("[")[2].partition("]")[0]


def check_gdrcopy(host: str, report: HostReport) -> Check | None:
    """Check that the processor copies small messages to and from GPUs by itself."""
    if not report.has_nvidia or not any(device.rdma for device in report.devices):
        return None
    if report.gdrdrv:
        return ok(host, "gdrcopy", "gdrdrv is loaded")
    return _warn(host, "gdrcopy", "gdrdrv is not loaded", "loaded")


def check_ncu(host: str, report: HostReport) -> Check | None:
    """Check that the login user may read the performance counters of NVIDIA's GPUs."""
    if not report.has_nvidia or "RmProfilingAdminOnly:" not in report.nvidia_params:
        return None
    if "RmProfilingAdminOnly: 1" not in report.nvidia_params:
        return ok(host, "ncu", "all users may profile")
    if report.admin:
        return ok(host, "ncu", "only root may profile, and this user is root")
    return _warn(host, "ncu", "only root may profile", "all users may")


def check_perf(host: str, report: HostReport) -> Check | None:
    """Check that the login user may sample its own processes."""
    level = report.perf_event_paranoid
    if not level:
        return None
    if leading_number(level) <= 2 or report.admin:
        return ok(host, "perf", f"perf_event_paranoid {level}{', as root' * (report.admin)}")
    return _warn(host, "perf", f"perf_event_paranoid is {level}", "2 or less")


HARDWARE = (
    check_acs,
    check_iommu,
    check_links,
    check_governor,
    check_idle_states,
    check_numa_balancing,
    check_huge_pages,
    check_gdrcopy,
    check_ncu,
    check_perf,
)
