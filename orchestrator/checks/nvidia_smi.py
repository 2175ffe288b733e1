"""What nvidia-smi and the driver's lines in the kernel log say, understood: pure functions from their text to facts.

One ``nvidia-smi -q -x`` holds everything on all generations of drivers, and an element that a driver does not know is just not
there; named fields of ``--query-gpu`` are refused as a whole by drivers that lack one of them.

>>> found = topology("\\tGPU0\\tGPU1\\tNIC0\\tCPU Affinity\\nGPU0\\t X \\tNV4\\tPIX\\t0-9\\nGPU1\\tNV4\\t X \\tSYS\\t0-9\\n")
>>> found["links"], pairs(found)
({'GPU0': 'X NV4 PIX', 'GPU1': 'NV4 X SYS'}, {('GPU0', 'GPU1'): 'NV4'})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

__all__ = ["gpu_facts", "gpu_states", "pairs", "topology", "xids"]

_NOTHING = {"", "N/A", "[N/A]", "None", "Not Supported", "Unknown Error", "Requested functionality has been deprecated"}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|(?:mlx|bnxt|irdma|efa|hfi|rxe|ib)\w*")
_LINK = re.compile(r"X|NV\d+|[A-Z]{3,4}")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+),?\s*(.*)")
_IDLE = {"gpu_idle", "applications_clocks_setting", "display_clocks_setting"}
"""Reasons for clocks below the maximum that are nothing to worry about."""
_MAX_PROCESSES = 32


def gpu_facts(text: str, owners: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what ``nvidia-smi -q -x`` says. Raises ValueError where it is not that.

    ``gpus`` has one entry a GPU: index, name, driver, memory and use; ``gpu`` has all else that is known of them, by name: one
    value where all GPUs of the machine have the same, a list of theirs otherwise (`gpu_states` undoes this). ``gpu_processes``
    are those that use a GPU for computing, with the first word of their name; ``owners`` are users by process number.
    Memory is in MiB, power in W, clocks in MHz, temperature in °C; counts of ECC errors are of uncorrected ones.
    """
    if "<!ENTITY" in text:
        raise ValueError("declarations of entities")
    if (at := text.find("<nvidia_smi_log")) < 0:
        raise ValueError("no <nvidia_smi_log>")
    try:
        root = ElementTree.fromstring(text[at:])
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from None
    nodes = root.findall("gpu")
    driver = _text(root, "driver_version") or ""
    gpus = [
        {
            "index": str(index),
            "name": _text(node, "product_name") or "",
            "driver": driver,
            "memory_mib": _number(node, "fb_memory_usage/total"),
            "used_mib": _number(node, "fb_memory_usage/used"),
            "utilization": _number(node, "utilization/gpu_util"),
        }
        for index, node in enumerate(nodes)
    ]
    processes = [each for index, node in enumerate(nodes) for each in _processes(str(index), node, owners or {})]
    return {
        "gpus": gpus,
        "gpu": _columns([_state(node) for node in nodes]),
        "cuda_driver": _text(root, "cuda_version"),
        "gpu_processes": processes[:_MAX_PROCESSES],
    }


def gpu_states(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for each GPU of a machine with everything that is known of it; none where that is nothing."""
    gpus, columns = facts.get("gpus"), facts.get("gpu")
    if not isinstance(gpus, (list, tuple)) or not all(isinstance(gpu, Mapping) for gpu in gpus):
        return []
    found = [{"index": str(at), **gpu} for at, gpu in enumerate(gpus)]
    for name, values in columns.items() if isinstance(columns, Mapping) else ():
        own = values if isinstance(values, (list, tuple)) else [values] * len(found)
        for entry, value in zip(found, own, strict=False):
            if value is not None:
                entry[str(name)] = value
    return found


def topology(text: str) -> dict[str, Any] | None:
    """Return the matrix of ``nvidia-smi topo -m``; None where there is none.

    ``links`` has for each GPU how it reaches every one of ``devices``, in their order: X itself, NV# over so many NVLinks,
    PIX and PXB over one and several PCIe bridges, PHB over the host bridge, NODE and SYS within and beyond a NUMA node.
    ``nics`` are names of devices that the matrix only numbers; ``cpus`` and ``numa`` stand for each GPU, empty where unknown.
    """
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    head = next((at for at, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "X" not in line.split()), None)
    if head is None:
        return None
    devices = _DEVICE.findall(lines[head].partition("CPU Affinity")[0])
    links, cpus, numa = {}, [], []
    for line in lines[head + 1 :]:
        words = line.split()
        if not words or not re.fullmatch(r"GPU\d+", words[0]):
            continue
        row = words[1 : len(devices) + 1]
        if len(row) < len(devices) or not all(map(_LINK.fullmatch, row)):
            return None
        links[words[0]] = " ".join(row)
        places = [word for word in words[len(devices) + 1 :] if re.fullmatch(r"[\d,-]+", word)]
        cpus.append(places[0] if places else "")
        numa.append(places[1] if len(places) > 1 else "")
    nics = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", "\n".join(lines), re.MULTILINE))
    return {"devices": devices, "links": links, "nics": nics, "cpus": cpus, "numa": numa} if links else None


def pairs(found: Any) -> dict[tuple[str, str], str]:
    """Return the kind of link between each two GPUs of a `topology`; nothing of what is none."""
    links = found.get("links") if isinstance(found, Mapping) else None
    if not isinstance(links, Mapping) or not isinstance(found.get("devices"), (list, tuple)):
        return {}
    rows = {name: dict(zip(found["devices"], str(row).split(), strict=False)) for name, row in links.items()}
    return {(one, other): rows[one][other] for one, other in combinations(rows, 2) if other in rows[one]}


def xids(lines: Iterable[Sequence[Any]], bus_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the driver's errors from [age in seconds, text] of the kernel log, each code of each GPU once, the newest last.

    ``gpu`` is the index in ``bus_ids``, as nvidia-smi has them, else the bus id itself.
    """
    index = {_bus(bus_id): str(at) for at, bus_id in enumerate(bus_ids)}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for age_s, text in lines:
        if match := _XID.search(str(text)):
            gpu, code = index.get(_bus(match[1]), match[1]), int(match[2])
            count = found.pop((gpu, code), {"count": 0})["count"] + 1
            found[gpu, code] = {"gpu": gpu, "code": code, "count": count, "age_s": round(float(age_s)), "text": match[3][:120]}
    return list(found.values())


def _bus(text: str) -> str:
    """Return domain, bus and device of a PCI address, which the driver, the kernel and nvidia-smi write differently."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([(parts[-3] if len(parts) > 2 else "0").lstrip("0") or "0", *parts[-2:]])


def _text(node: ElementTree.Element, path: str) -> str | None:
    value = (node.findtext(path) or "").strip()
    return None if value in _NOTHING else value


def _number(node: ElementTree.Element, path: str) -> float | int | None:
    """Return the number with which a text begins: ``700.00 W``, ``16x``, ``143771 MiB``."""
    match = re.match(r"-?\d+(?:\.\d+)?", _text(node, path) or "")
    value = float(match[0]) if match else None
    return int(value) if value is not None and value.is_integer() else value


def _first(node: ElementTree.Element, read: Callable[[ElementTree.Element, str], Any], *paths: str) -> Any:
    """Return the first of several places that has a value: drivers have renamed elements in the course of time."""
    return next((value for path in paths if (value := read(node, path)) is not None), None)


def _state(node: ElementTree.Element) -> dict[str, Any]:
    fabric = [_text(node, f"fabric/{name}") for name in ("state", "status")]
    numbers = {
        "sm_mhz": ("clocks/sm_clock",),
        "sm_max_mhz": ("max_clocks/sm_clock",),
        "mem_mhz": ("clocks/mem_clock",),
        "mem_max_mhz": ("max_clocks/mem_clock",),
        "sm_set_mhz": ("applications_clocks/graphics_clock",),
        "sm_default_mhz": ("default_applications_clocks/graphics_clock",),
        "power_limit_w": (
            "gpu_power_readings/current_power_limit",
            "gpu_power_readings/power_limit",
            "power_readings/power_limit",
        ),
        "power_default_w": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        "temperature_c": ("temperature/gpu_temp",),
        "pcie_gen": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
        "pcie_gen_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
        "pcie_width": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
        "pcie_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    }
    texts = {
        "persistence": ("persistence_mode",),
        "compute_mode": ("compute_mode",),
        "mig": ("mig_mode/current_mig",),
        "ecc": ("ecc_mode/current_ecc",),
        "pages_pending": ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        "rows_pending": ("remapped_rows/remapped_row_pending",),
        "rows_failed": ("remapped_rows/remapped_row_failure",),
        "vbios": ("vbios_version",),
        "uuid": ("uuid",),
        "bus_id": ("pci/pci_bus_id",),
    }
    return {
        **{name: _first(node, _number, *paths) for name, paths in numbers.items()},
        **{name: _first(node, _text, *paths) for name, paths in texts.items()},
        "ecc_now": _uncorrected(node.find("ecc_errors/volatile")),
        "ecc_ever": _uncorrected(node.find("ecc_errors/aggregate")),
        "slowed_by": _reasons(node),
        "fabric": "/".join(word for word in fabric if word) or None,
    }


def _uncorrected(node: ElementTree.Element | None) -> int | None:
    """Return the uncorrected errors of one kind of counters: up to Volta as double bits, later by kind of memory."""
    if node is None:
        return None
    if (total := _number(node, "double_bit/total")) is not None:
        return int(total)
    each = [_number(node, child.tag) for child in node if re.match(r"[sd]ram_uncorrectable", child.tag)]
    known = [int(count) for count in each if count is not None]
    return sum(known) if known else None


def _reasons(node: ElementTree.Element) -> str | None:
    """Return why clocks are lowered at this moment; older drivers speak of throttling, newer ones of events."""
    found = {}
    for group, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        for child in node.findall(f"{group}/*"):
            found[child.tag.removeprefix(prefix)] = (child.text or "").strip() == "Active"
    return ", ".join(name for name, active in found.items() if active and name not in _IDLE) or None


def _processes(index: str, node: ElementTree.Element, owners: Mapping[str, str]) -> list[dict[str, Any]]:
    found = []
    for process in node.findall("processes/process_info"):
        words = (_text(process, "process_name") or "?").split()
        pid = _text(process, "pid") or "?"
        if "C" in (_text(process, "type") or "C"):  # G alone is a display's
            name = words[0].rpartition("/")[2][:40]
            used = _number(process, "used_memory")
            found.append({"gpu": index, "pid": pid, "user": owners.get(pid), "name": name, "used_mib": used})
    return found


def _columns(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of like entries by name: one where all have the same, else a list; what none has is left out."""
    found: dict[str, Any] = {}
    for name in entries[0] if entries else ():
        values = [entry[name] for entry in entries]
        if any(value is not None for value in values):
            found[name] = values[0] if all(value == values[0] for value in values) else values
    return found
