"""The facts of a node as checks and the manifest have them, from what its runner found and what others told it there.

The runner sends the words of nvidia-smi, of the driver in the kernel log and of the InfiniBand devices as they are, packed: to
understand them here keeps the runner small, and their grammar where it can be tested on the output of many machines.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.checks import nvidia_smi

__all__ = ["infiniband_gbit", "ports_of", "told_facts", "unpacked"]

_MOST_BYTES = 1 << 23
_ADDRESS_OF_IPV4 = re.compile(r"(?:0000:){5}ffff:")


def unpacked(packed: Any) -> dict[str, Any]:
    """Return what a runner has packed. Raises ValueError where it is not that, or more than 8 MiB."""
    if not isinstance(packed, str):
        raise ValueError("facts that others told: expected text")
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
        value = json.loads(raw) if inflate.eof else None
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(f"facts that others told: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("facts that others told: expected at most 8 MiB of one JSON object")
    return value


def told_facts(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that follow from what nvidia-smi, driver, kernel and devices said."""
    ports = ports_of(told.get("infiniband") or ())
    facts: dict[str, Any] = {
        "gpus": None,
        "infiniband": ports,
        "infiniband_gbit": infiniband_gbit(ports),
        "peermem": bool(told.get("peermem")),
        "open_driver": "Open Kernel Module" in str(told.get("driver")),
    }
    if (smi := told.get("smi")) is not None:
        facts |= _gpus(smi, told.get("owners") or {})
    matrix = told.get("topology")
    if isinstance(matrix, Mapping) and matrix.get("code") == 0 and (found := nvidia_smi.topology(str(matrix.get("text")))):
        facts["topology"] = found
    bus_ids = [str(gpu.get("bus_id", "")) for gpu in nvidia_smi.gpu_states(facts)]
    log = told.get("kernel_log")
    log = log if isinstance(log, Mapping) else {"closed": "not asked"}
    facts["xids"] = nvidia_smi.xids(log["lines"], bus_ids) if "lines" in log else f"not readable: {log.get('closed')}"
    return facts


def _gpus(smi: Mapping[str, Any], owners: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of the GPUs, or as ``gpus`` a text that says why there are none."""
    code, text = smi.get("code"), str(smi.get("text"))
    if code is None:
        return {"gpus": "nvidia-smi did not answer in 10 s"}
    if code:
        return {"gpus": text.strip()[-400:] or f"nvidia-smi ended with {code}"}
    try:
        return nvidia_smi.gpu_facts(text, owners)
    except ValueError as error:
        return {"gpus": f"nvidia-smi -q -x wrote something else than expected: {error}"[:400]}


def ports_of(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return InfiniBand and RoCE ports with ``state`` and ``physical`` without their numbers, and ``rate_gbit``.

    The kernel writes ``4: ACTIVE``, ``5: LinkUp``, ``400 Gb/sec (4X NDR)`` (ABI/stable/sysfs-class-infiniband).
    ``gids`` names by type the indexes of those that are set; ``ipv4_gid`` is the first of type RoCE v2 that stands for an IPv4
    address, which is the one that NCCL wants on a routed network.
    """
    found = []
    for entry in entries:
        gids: dict[str, list[str]] = {}
        ipv4 = None
        for index, gid, kind, *_ in entry.get("gids", ()):
            gids.setdefault(kind or "IB", []).append(str(index))
            if ipv4 is None and kind == "RoCE v2" and _ADDRESS_OF_IPV4.match(gid):
                ipv4 = index
        port = {name: entry.get(name, "") for name in ("device", "port", "firmware", "link_layer")}
        port |= {"state": _word(entry.get("state")), "physical": _word(entry.get("phys_state")), "lid": entry.get("lid", "")}
        port |= {"rate_gbit": _rate(entry.get("rate")), "interfaces": " ".join(entry.get("interfaces", ()))}
        port |= {"gids": {kind: ",".join(indexes) for kind, indexes in gids.items()}, "ipv4_gid": ipv4}
        found.append(port)
    return found


def _word(text: Any) -> str:
    return str(text or "").partition(":")[2].strip() or str(text or "")


def _rate(text: Any) -> float | None:
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", str(text or ""))
    return float(match[1]) if match else None


def infiniband_gbit(ports: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the rates of all active ports together, in Gb/s, InfiniBand and RoCE alike; None where one cannot be told."""
    rates = [port["rate_gbit"] for port in ports if port["state"] == "ACTIVE"]
    return sum(rates) if rates and None not in rates else None
