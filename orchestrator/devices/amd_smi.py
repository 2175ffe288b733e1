"""Parsers of the output of AMD's programs: pure functions from their JSON to the facts that
`nvidia_smi` makes for NVIDIA's.

amd-smi, since ROCm 6, tells what a GPU is (``static``), does (``metric``) and whom it works for
(``process``); rocm-smi, older, has all three in one object of texts. A device is what HIP shows to
a program: one die (GCD) of an MI250, which has two, and one partition of an MI300.
`tests/data/amd-smi` holds what real machines said, and where that was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.devices.answers import measure, program_name, read_json, value_at
from orchestrator.devices.gpu_states import MOST_PROCESSES, UNKNOWN_GPU, columns, complaints

_CARD = re.compile(r"card(\d{1,3})")
_PROCESS = re.compile(r"PID(\d{1,9})")
_UNITS_MIB = {"B": 2**-20, "KB": 2**-10, "MB": 1, "GB": 2**10}
_MIB = 2**20
_READ = ("driver", "limit", "usage", "mem_usage", "power", "clock", "temperature", "pcie", "ecc")
_READ_OF_CARD = (
    "GPU use (%)",
    "VRAM Total Memory (B)",
    "VRAM Total Used Memory (B)",
    "Max Graphics Package Power (W)",
)
"""The parts of amd-smi's and rocm-smi's answers in which an unknown value is a fault; others do not
know e.g. a vendor.
"""


def amd_gpu_facts(
    static: str, metric: str, process: str, owners: Mapping[str, str]
) -> dict[str, Any]:
    """Return the facts of ``amd-smi static``, ``metric`` and ``process``, each with ``--json``, as
    `nvidia_smi.gpu_facts` does.

    What ``metric`` and ``process`` tell is not known if they are empty or no JSON. ``owners`` are
    users by process id. Raises ValueError if ``static`` is not what amd-smi writes.
    """
    entries = _entries(static)
    if not entries or not all(value_at(entry, "asic", "market_name") for entry in entries):
        raise ValueError("no gpu with asic.market_name")
    metrics = {_number(entry): entry for entry in _entries_if_any(metric)}
    told = [(entry, metrics.get(_number(entry), {})) for entry in entries]
    gpus = [
        {
            "index": str(index),
            "name": str(value_at(entry, "asic", "market_name")),
            "driver": str(value_at(entry, "driver", "version") or ""),
            "memory_mib": _mib(value_at(entry, "vram", "size"))
            or _mib(value_at(now, "mem_usage", "total_vram")),
            "used_mib": _mib(value_at(now, "mem_usage", "used_vram")),
            "utilization": measure(value_at(now, "usage", "gfx_activity")),
        }
        for index, (entry, now) in enumerate(told)
    ]
    order = {_number(entry): str(index) for index, entry in enumerate(entries)}
    processes = [
        {
            "gpu": order[_number(entry)],
            "pid": str(info.get("pid")),
            "user": owners.get(str(info.get("pid"))),
            "name": program_name(info.get("name")),
            "used_mib": _mib(value_at(info, "memory_usage", "vram_mem")),
        }
        for entry in _entries_if_any(process)
        if _number(entry) in order
        for info in _processes_of(entry)
    ]
    return {
        "gpus": gpus,
        "gpu": columns([_state(entry, now) for entry, now in told]),
        "gpu_processes": processes[:MOST_PROCESSES],
        "gpu_tool": "amd-smi",
    }


def rocm_gpu_facts(text: str, owners: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of ``rocm-smi --json``. Its processes have no GPU: the program tells only on
    how many each works.

    Raises ValueError if the text is not what rocm-smi writes.
    """
    whole = read_json(text)
    whole = whole if isinstance(whole, Mapping) else {}
    cards = sorted(
        (int(match[1]), card)
        for name, card in whole.items()
        if (match := _CARD.fullmatch(name)) and card
    )
    if not cards:
        raise ValueError("no card0")
    system = whole.get("system")
    system = system if isinstance(system, Mapping) else {}
    driver = str(system.get("Driver version") or "")
    gpus = [
        {
            "index": str(index),
            "name": str(
                _first(card, "Card Series", "Card series", "Device Name", "Card model") or "AMD GPU"
            ),
            "driver": driver,
            "memory_mib": _bytes_as_mib(_first(card, "VRAM Total Memory (B)")),
            "used_mib": _bytes_as_mib(_first(card, "VRAM Total Used Memory (B)")),
            "utilization": measure(_first(card, "GPU use (%)")),
        }
        for index, (_, card) in enumerate(cards)
    ]
    states = [
        {
            "uuid": _uuid(_first(card, "Unique ID")),
            "bus_id": _first(card, "PCI Bus"),
            "vbios": _first(card, "VBIOS version"),
            "sm_mhz": measure(_first(card, "sclk clock speed:")),
            "mem_mhz": measure(_first(card, "mclk clock speed:")),
            "power_limit_w": measure(_first(card, "Max Graphics Package Power (W)")),
            "partition": _first(card, "Compute Partition"),
            "memory_partition": _first(card, "Memory Partition"),
            **complaints(_answers(card), _READ_OF_CARD),
        }
        for _, card in cards
    ]
    processes = []
    for name, value in system.items():
        match = _PROCESS.fullmatch(name)
        if match and len(words := str(value).split(", ")) >= 3 and words[1] != "0":
            process = {
                "gpu": UNKNOWN_GPU,
                "pid": match[1],
                "user": owners.get(match[1]),
                "name": program_name(words[0]),
            }
            processes.append({**process, "used_mib": _bytes_as_mib(words[2])})
    return {
        "gpus": gpus,
        "gpu": columns(states),
        "gpu_processes": processes[:MOST_PROCESSES],
        "gpu_tool": "rocm-smi",
    }


def _entries(text: str) -> list[Mapping[str, Any]]:
    """Return an entry for each GPU: a list up to ROCm 6.4, and later ``gpu_data`` of an object."""
    whole = read_json(text)
    entries = whole.get("gpu_data") if isinstance(whole, Mapping) else whole
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _entries_if_any(text: str) -> list[Mapping[str, Any]]:
    try:
        return _entries(text)
    except ValueError:
        return []


def _number(entry: Mapping[str, Any]) -> str:
    """Return the number of a GPU in amd-smi, as text."""
    return str(entry.get("gpu"))


def _first(card: Any, *names: str) -> str | None:
    """Return the first value that a card of rocm-smi has under one of the names, which differ
    between its versions.
    """
    values = (str(card[name]) for name in names if isinstance(card, Mapping) and card.get(name))
    return next((value for value in values if value not in ("N/A", "0x0")), None)


def _mib(value: Any) -> float | int | None:
    number = measure(value)
    unit = str(value.get("unit", "MB")) if isinstance(value, Mapping) else "MB"
    if number is None:
        return None
    return round(number * _UNITS_MIB.get(unit, 1))


def _bytes_as_mib(text: str | None) -> int | None:
    number = measure(text)
    return None if number is None else round(number / _MIB)


def _state(entry: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    ecc = value_at(entry, "ras", "ecc_block_state", "UMC") or value_at(
        entry, "ras", "ecc_block_state", "umc"
    )
    limit = value_at(entry, "limit", "socket_power") or value_at(
        entry, "limit", "ppt0", "socket_power_limit"
    )
    return {
        "uuid": _uuid(value_at(entry, "asic", "asic_serial")),
        "bus_id": value_at(entry, "bus", "bdf"),
        "vbios": value_at(entry, "vbios", "part_number")
        or value_at(entry, "vbios", "name")
        or value_at(entry, "ifwi", "part_number"),
        "sm_mhz": measure(value_at(now, "clock", "gfx_0", "clk")),
        "sm_max_mhz": measure(value_at(now, "clock", "gfx_0", "max_clk"))
        or _highest(value_at(entry, "clock", "sys", "frequency_levels")),
        "mem_mhz": measure(value_at(now, "clock", "mem_0", "clk")),
        "mem_max_mhz": measure(value_at(now, "clock", "mem_0", "max_clk"))
        or _highest(value_at(entry, "clock", "mem", "frequency_levels")),
        "power_limit_w": measure(limit),
        "temperature_c": measure(value_at(now, "temperature", "hotspot")),
        "pcie_gen_max": measure(value_at(entry, "bus", "pcie_interface_version")),
        "pcie_width": measure(value_at(now, "pcie", "width")),
        "pcie_width_max": measure(value_at(entry, "bus", "max_pcie_width")),
        "partition": value_at(entry, "partition", "accelerator_partition")
        or value_at(entry, "partition", "compute_partition"),
        "memory_partition": value_at(entry, "partition", "memory_partition"),
        "numa_node": measure(value_at(entry, "numa", "node")),
        "ecc": None if ecc is None else str(ecc).capitalize(),
        "ecc_now": measure(value_at(now, "ecc", "total_uncorrectable_count")),
        **complaints([*_answers(entry), *_answers(now)], _READ),
    }


def _answers(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of every text in the answer about a GPU: an error for a number below 0
    in a part that is read.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _answers(item, f"{path}.{key}" if path else str(key))
    elif re.match(r"-\d", str(value)) and path.partition(".")[0] in _READ + _READ_OF_CARD:
        yield path, f"error: {value}"
    elif isinstance(value, str):
        yield path, value


def _highest(levels: Any) -> float | int | None:
    values = [measure(text) for text in levels.values()] if isinstance(levels, Mapping) else []
    return max((value for value in values if value is not None), default=None)


def _uuid(text: Any) -> str | None:
    """Return the UUID that ROCR_VISIBLE_DEVICES takes: GPU- and the 16 digits of the unique id or
    serial of the die.
    """
    digits = str(text or "").lower().removeprefix("0x")
    if re.fullmatch(r"[0-9a-f]{1,16}", digits) and digits.strip("0"):
        return f"GPU-{digits:0>16}"
    return None


def _processes_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the processes of one GPU; where none runs, amd-smi has a sentence in place of a
    process.
    """
    listed = entry.get("process_list")
    listed = listed if isinstance(listed, Sequence) and not isinstance(listed, str) else []
    processes = [item.get("process_info", item) for item in listed if isinstance(item, Mapping)]
    return [
        info
        for info in processes
        if isinstance(info, Mapping) and str(info.get("pid", "")).isdigit()
    ]
