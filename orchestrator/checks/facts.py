"""The facts of a node in the form that checks and the manifest use, from what the node runner
sends.

The runner sends the output of nvidia-smi or of AMD's, the driver's lines in the kernel log and the
files of the InfiniBand devices unparsed and packed. Parsing them on the controller keeps the runner
small, and lets tests run on the output of many machines.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.devices.gpu_states import gpu_states, selected
from orchestrator.devices.vendor import vendor_facts

__all__ = ["infiniband_gbit", "ports_of", "serials", "told_facts", "unpacked"]

_MOST_BYTES = 1 << 23
_ADDRESS_OF_IPV4 = re.compile(r"(?:0000:){5}ffff:")


def unpacked(packed: Any) -> dict[str, Any]:
    """Return what a runner has packed. Raise ValueError if it is damaged, or holds more than 8 MiB."""
    if not isinstance(packed, str):
        raise ValueError("packed facts: expected text")
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
        value = json.loads(raw) if inflate.eof else None
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(f"packed facts: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("packed facts: expected at most 8 MiB of one JSON object")
    return value


def told_facts(raw: Mapping[str, Any], devices: str | None = None) -> dict[str, Any]:
    """Return the facts parsed from the output of nvidia-smi or AMD's, driver, kernel and devices.
    ``devices``: the GPUs that runs use, in the format of CUDA_VISIBLE_DEVICES; the facts are about
    these, or about all for None."""
    ports = ports_of(raw.get("infiniband") or ())
    facts: dict[str, Any] = {
        "gpus": None,
        "infiniband": ports,
        "infiniband_gbit": infiniband_gbit(ports),
        "peermem": bool(raw.get("peermem")),
        "open_driver": "Open Kernel Module" in str(raw.get("driver")),
    }
    facts |= vendor_facts(raw)
    return facts if devices is None else selected(facts, devices)


def serials(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies a machine and its devices, by name: host key, boot, processor, and
    each GPU's serial or UUID.

    >>> gpu = {"name": "NVIDIA H200", "uuid": ["GPU-a", "GPU-b"], "serial": "N/A"}
    >>> serials({"hostname": "n1", "gpus": [{"index": "0"}, {"index": "1"}], "gpu": gpu})
    {'hostname': 'n1', 'gpu 0': 'NVIDIA H200 GPU-a', 'gpu 1': 'NVIDIA H200 GPU-b'}
    """
    known = {
        name.replace("_", " "): str(facts[name])
        for name in ("hostname", "host_key", "boot_id", "cpu")
        if facts.get(name)
    }
    for state in gpu_states(facts):
        words = [str(state.get(name, "")) for name in ("name", "serial", "uuid")]
        known[f"gpu {state.get('index', '')}"] = " ".join(
            word for word in words if word and word != "N/A"
        )
    return known


def ports_of(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return InfiniBand and RoCE ports, ``state`` and ``physical`` without their numbers, with
    ``rate_gbit``.

    The kernel writes ``4: ACTIVE``, ``5: LinkUp``, ``400 Gb/sec (4X NDR)``
    (ABI/stable/sysfs-class-infiniband).
    ``gids`` lists by type the indexes of the GIDs that are set; ``ipv4_gid`` is the first GID of type RoCE v2 with an IPv4
    address, which is the one that NCCL needs on a routed network.
    """
    ports = []
    for entry in entries:
        gids: dict[str, list[str]] = {}
        ipv4 = None
        for index, gid, kind, *_ in entry.get("gids", ()):
            gids.setdefault(kind or "IB", []).append(str(index))
            if ipv4 is None and kind == "RoCE v2" and _ADDRESS_OF_IPV4.match(gid):
                ipv4 = index
        port = {name: entry.get(name, "") for name in ("device", "port", "firmware", "link_layer")}
        port |= {
            "state": _word(entry.get("state")),
            "physical": _word(entry.get("phys_state")),
            "lid": entry.get("lid", ""),
        }
        port |= {
            "rate_gbit": _rate(entry.get("rate")),
            "interfaces": " ".join(entry.get("interfaces", ())),
        }
        port |= {
            "gids": {kind: ",".join(indexes) for kind, indexes in gids.items()},
            "ipv4_gid": ipv4,
        }
        ports.append(port)
    return ports


def _word(text: Any) -> str:
    return str(text or "").partition(":")[2].strip() or str(text or "")


def _rate(text: Any) -> float | None:
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", str(text or ""))
    return float(match[1]) if match else None


def infiniband_gbit(ports: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the summed rate of all active InfiniBand and RoCE ports in Gb/s; None without any, or
    if one is not known.
    """
    rates = [port["rate_gbit"] for port in ports if port["state"] == "ACTIVE"]
    return sum(rates) if rates and None not in rates else None
