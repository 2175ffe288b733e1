"""Parsers of nvidia-smi's output and of the driver's lines in the kernel log: pure functions from
text to facts.

One ``nvidia-smi -q -x`` holds everything on all generations of drivers, and omits an element that
the driver does not support.
``--query-gpu`` fails as a whole if the driver does not support one of the named fields.

>>> links = topology("\\tGPU0\\tGPU1\\tNIC0\\tCPU Affinity\\nGPU0\\t X \\tNV4\\tPIX\\t0-9\\nGPU1\\tNV4\\t X \\tSYS\\t0-9\\n")
>>> links["links"], pairs(links)
({'GPU0': 'X NV4 PIX', 'GPU1': 'NV4 X SYS'}, {('GPU0', 'GPU1'): 'NV4'})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

from orchestrator.devices.answers import program_name
from orchestrator.devices.gpu_states import (
    MOST_PROCESSES,
    columns,
    complaints,
    is_lost,
    is_unsupported,
)

_END = "</nvidia_smi_log>"
_PROLOG = re.compile(r"<\?xml[^>]*>|<!DOCTYPE[^>]*>")
_MOST_REMARK = 200
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_AFTER_DEVICES = re.compile(r"\b(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)", re.IGNORECASE)
"""The columns of the matrix that are no devices; every other column is one, whatever its name."""
_PLACES = re.compile(r"[\d,-]+")
_LINK = re.compile(r"X|NV\d+|[A-Z]{3,4}")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+),?\s*(.*)")
_IDLE = {"gpu_idle", "applications_clocks_setting", "display_clocks_setting"}
"""Reasons for clocks below the maximum that are harmless."""


_NUMBERS = {
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
    "power_default_w": (
        "gpu_power_readings/default_power_limit",
        "power_readings/default_power_limit",
    ),
    "temperature_c": ("temperature/gpu_temp",),
    "pcie_gen": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "pcie_gen_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie_width": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "pcie_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
}
_TEXTS = {
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
"""Where `gpu_facts` finds the values of a GPU; of several paths the first with a value, because
drivers rename elements.
"""
_NOW = ("fb_memory_usage/total", "fb_memory_usage/used", "utilization/gpu_util")
_NUMERIC = {path for paths in _NUMBERS.values() for path in paths} | set(_NOW)
_COUNTS = re.compile(r"ecc_errors/\w+/(?:double_bit/total|[sd]ram_uncorrectable\w*)")
_FLAGS = {
    path
    for name, paths in _TEXTS.items()
    if name.endswith(("_pending", "_failed"))
    for path in paths
}
_READ = {
    path.partition("/")[0]
    for paths in (*_NUMBERS.values(), *_TEXTS.values(), _NOW)
    for path in paths
}
_READ |= {"product_name", "ecc_errors", "fabric", "clocks_event_reasons", "clocks_throttle_reasons"}
_WELL = (None, "Healthy", "Full", "False", "No")
"""The answers of a fabric's health that need no word."""
_REPAIRS = {"gpu_recovery_action": "None", "gpu_reset_status.reset_required": "No"}
"""What a driver since 535 or 560 says of a GPU that needs no repair."""


def gpu_facts(text: str, owners: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the facts of ``nvidia-smi -q -x``. Raise ValueError if the text is not its output.

    ``gpus_missing`` is the number of attached GPUs without an entry, and ``gpu_remark`` a text
    beside the document; both are left out without any.

    ``gpus`` has one entry per GPU: index, name, driver, memory and utilization. ``gpu`` has all
    other values by name: a single value if all GPUs of the machine have the same, else a list
    (`gpu_states` undoes this). ``gpu_processes`` are the processes that compute on a GPU, with the
    first word of their name; ``owners`` are users by process id. Memory is in MiB, power in W,
    clocks in MHz, temperature in °C; ECC errors are counts of uncorrected errors.
    """
    if "<!ENTITY" in text:
        raise ValueError("declarations of entities")
    document, remark = _split(text)
    try:
        root = ElementTree.fromstring(document)
    except ElementTree.ParseError as error:
        raise ValueError(f"{error}; {remark}" if remark else str(error)) from None
    nodes = root.findall("gpu")
    attached = _number(root, "attached_gpus") or 0
    apart = {"gpu_remark": remark, "gpus_missing": max(int(attached) - len(nodes), 0)}
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
    processes = [
        process
        for index, node in enumerate(nodes)
        for process in _processes(str(index), node, owners or {})
    ]
    return {
        "gpus": gpus,
        "gpu": columns([_state(node) for node in nodes]),
        "cuda_driver": _text(root, "cuda_version"),
        "gpu_processes": processes[:MOST_PROCESSES],
        **{name: value for name, value in apart.items() if value},
    }


def _split(text: str) -> tuple[str, str]:
    """Return the document, and what nvidia-smi printed before and behind it: of a GPU that is lost,
    or whose infoROM is corrupted, it says so there. Raises ValueError without a document.
    """
    begin, end = text.find("<nvidia_smi_log"), text.rfind(_END)
    if begin < 0:
        words = " ".join(text.split())[-_MOST_REMARK:]
        raise ValueError(f"no <nvidia_smi_log>; {words}" if words else "no <nvidia_smi_log>")
    end = len(text) if end < 0 else end + len(_END)
    outside = _PROLOG.sub("", text[:begin]) + text[end:]
    return text[begin:end], " ".join(outside.split())[:_MOST_REMARK]


def topology(text: str) -> dict[str, Any] | None:
    """Return the matrix of ``nvidia-smi topo -m``; None if the text has no matrix.

    ``links`` has for each GPU how it reaches each of ``devices``, in their order: X is itself, NV#
    a number of NVLinks, PIX and PXB one and several PCIe bridges, PHB the host bridge, NODE and SYS
    within a NUMA node and across NUMA nodes. ``nics`` has the names of devices that the matrix only
    numbers; ``cpus`` and ``numa`` have an entry per GPU, empty if not known.
    """
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    head = next(
        (
            at
            for at, line in enumerate(lines)
            if line.split()[:1] == ["GPU0"] and "X" not in line.split()
        ),
        None,
    )
    if head is None:
        return None
    devices = _AFTER_DEVICES.split(lines[head], maxsplit=1)[0].split()
    links, cpus, numa = {}, [], []
    for line in lines[head + 1 :]:
        words = line.split()
        if not words or not re.fullmatch(r"GPU\d+", words[0]):
            continue
        row = words[1 : len(devices) + 1]
        is_matrix = (
            len(row) == len(devices) and all(map(_LINK.fullmatch, row)) and words[0] in devices
        )
        if not is_matrix or row[devices.index(words[0])] != "X":
            return None  # a column too many or too few would give one device the links of another
        links[words[0]] = " ".join(row)
        places = [*words[len(devices) + 1 :], "", ""]
        cpus.append(places[0] if _PLACES.fullmatch(places[0]) else "")
        numa.append(places[1] if _PLACES.fullmatch(places[1]) else "")
    nics = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", "\n".join(lines), re.MULTILINE))
    if not links:
        return None
    return {"devices": devices, "links": links, "nics": nics, "cpus": cpus, "numa": numa}


def pairs(matrix: Any) -> dict[tuple[str, str], str]:
    """Return the kind of link between every two GPUs of a `topology`; empty if ``matrix`` is not
    one.
    """
    links = matrix.get("links") if isinstance(matrix, Mapping) else None
    if not isinstance(links, Mapping) or not isinstance(matrix.get("devices"), (list, tuple)):
        return {}
    rows = {
        name: dict(zip(matrix["devices"], str(row).split(), strict=False))
        for name, row in links.items()
    }
    return {
        (first, second): rows[first][second]
        for first, second in combinations(rows, 2)
        if second in rows[first]
    }


def xids(lines: Iterable[Sequence[Any]], bus_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the driver's errors from [age in seconds, text] of the kernel log: one entry per GPU
    and code, the newest last.

    ``gpu`` is the index in ``bus_ids``, which are in the order of nvidia-smi, else the bus id
    itself.
    """
    index = {_bus(bus_id): str(at) for at, bus_id in enumerate(bus_ids)}
    errors: dict[tuple[str, int], dict[str, Any]] = {}
    for age_s, text in lines:
        if match := _XID.search(str(text)):
            gpu, code = index.get(_bus(match[1]), match[1]), int(match[2])
            count = errors.pop((gpu, code), {"count": 0})["count"] + 1
            errors[gpu, code] = {
                "gpu": gpu,
                "code": code,
                "count": count,
                "age_s": round(float(age_s)),
                "text": match[3][:120],
            }
    return list(errors.values())


def _bus(text: str) -> str:
    """Return domain, bus and device of a PCI address, which driver, kernel and nvidia-smi write in
    different forms.
    """
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([(parts[-3] if len(parts) > 2 else "0").lstrip("0") or "0", *parts[-2:]])


def _text(node: ElementTree.Element, path: str) -> str | None:
    value = (node.findtext(path) or "").strip()
    return None if is_unsupported(value) else value


def _number(node: ElementTree.Element, path: str) -> float | int | None:
    """Return the number at the start of a text: ``700.00 W``, ``16x``, ``143771 MiB``; None for
    one below 0, which nothing here can be.
    """
    match = re.match(r"\d+(?:\.\d+)?", _text(node, path) or "")
    value = float(match[0]) if match else None
    if value is not None and value.is_integer():
        return int(value)
    return value


def _first(
    node: ElementTree.Element, read: Callable[[ElementTree.Element, str], Any], *paths: str
) -> Any:
    """Return the first value among several paths: later drivers have renamed elements."""
    return next((value for path in paths if (value := read(node, path)) is not None), None)


def _state(node: ElementTree.Element) -> dict[str, Any]:
    fabric = [_text(node, f"fabric/{name}") for name in ("state", "status")]
    return {
        **{name: _first(node, _number, *paths) for name, paths in _NUMBERS.items()},
        **{name: _first(node, _text, *paths) for name, paths in _TEXTS.items()},
        "ecc_now": _uncorrected_errors(node.find("ecc_errors/volatile")),
        "ecc_ever": _uncorrected_errors(node.find("ecc_errors/aggregate")),
        "slowed_by": _reasons(node),
        "fabric": "/".join(word for word in fabric if word) or None,
        "fabric_ill": _ill(node),
        **complaints(_answers(node), _READ),
    }


def _ill(node: ElementTree.Element) -> str | None:
    """Return what a driver since 560 says of a fabric that is complete and yet not whole, such as
    ``bandwidth Degraded``.
    """
    told = {
        child.tag: _text(node, f"fabric/health/{child.tag}")
        for child in node.iterfind("fabric/health/*")
    }
    ill = [f"{name.replace('_', ' ')} {word}" for name, word in told.items() if word not in _WELL]
    return ", ".join(ill) or None


def _answers(node: ElementTree.Element, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of every value of a GPU: an error for what cannot be where it stands, and
    for a repair.
    """
    for child in node:
        path = f"{above}.{child.tag}" if above else child.tag
        text = (child.text or "").strip()
        if child.tag in ("processes", "accounted_processes"):
            continue
        if len(child):
            yield from _answers(child, path)
        elif path in _REPAIRS:
            is_needed = text != _REPAIRS[path] and not is_unsupported(text)
            yield path, f"{'reset' if text == 'Yes' else text} required" if is_needed else ""
        elif is_lost(text) or is_unsupported(text) or _is_possible(path.replace(".", "/"), text):
            yield path, text
        else:
            yield path, f"error: {text.strip('[]')}"


def _is_possible(path: str, text: str) -> bool:
    """Return True if a value is of the kind that belongs there: a number of 0 or more, yes or no."""
    if path in _NUMERIC or _COUNTS.fullmatch(path):
        return re.match(r"\d", text) is not None
    return path not in _FLAGS or text in ("Yes", "No")


def _uncorrected_errors(node: ElementTree.Element | None) -> int | None:
    """Return the uncorrected errors of one group of counters: double bits up to Volta, later by
    kind of memory.
    """
    if node is None:
        return None
    total = _number(node, "double_bit/total")
    if total is not None:
        return int(total)
    counts = [
        _number(node, child.tag) for child in node if re.match(r"[sd]ram_uncorrectable", child.tag)
    ]
    valid = [int(count) for count in counts if count is not None]
    return sum(valid) if valid else None


def _reasons(node: ElementTree.Element) -> str | None:
    """Return why clocks are lowered at the moment: throttle reasons of older drivers, event reasons
    of newer ones.
    """
    is_active = {}
    for group, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        for child in node.findall(f"{group}/*"):
            is_active[child.tag.removeprefix(prefix)] = (child.text or "").strip() == "Active"
    return (
        ", ".join(name for name, active in is_active.items() if active and name not in _IDLE)
        or None
    )


def _processes(
    index: str, node: ElementTree.Element, owners: Mapping[str, str]
) -> list[dict[str, Any]]:
    processes = []
    for process in node.findall("processes/process_info"):
        pid = _text(process, "pid") or "?"
        if "C" in (_text(process, "type") or "C"):  # type G alone is graphics
            name = program_name(_text(process, "process_name"))
            used = _number(process, "used_memory")
            processes.append(
                {"gpu": index, "pid": pid, "user": owners.get(pid), "name": name, "used_mib": used}
            )
    return processes
