"""Facts of a node in the form that checks and the manifest use, read from the node runner's answer.

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
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Annotated, Any

from orchestrator.devices.gpu_states import gpu_states, select_gpus
from orchestrator.devices.vendor import vendor_facts
from orchestrator.documents import document_field, read, read_leniently

_MOST_BYTES = 1 << 23
_LINK_LOCAL = "fe80:0000:0000:0000:"
_ADDRESS_OF_IPV4 = re.compile(r"(?:0000:){5}ffff:")


def _figure(value: Any) -> float:
    """Return a number, also if an earlier version stored it as text."""
    if not isinstance(value, str):
        return read(float, value)
    figure = read(float, float(value))
    return int(figure) if figure.is_integer() else figure


def _word_of(value: Any) -> str:
    """Return a text or number as text."""
    if type(value) not in (str, int, float):
        raise ValueError(f"expected text or a number, got {value!r:.80}")
    return str(value)


def _addresses(value: Any) -> tuple[str, ...]:
    addresses = read(tuple[str, ...], value)
    for address in addresses:
        ip_address(address)
    return addresses


def _programs(value: Any) -> dict[str, Any]:
    """Return by path a digest, None for no file, or an object with the error."""
    programs = read(dict[str, Any], value)
    return {path: found for path, found in programs.items() if isinstance(found, str | dict | None)}


def _interfaces(value: Any) -> tuple[IPv4Interface | IPv6Interface, ...]:
    return tuple(map(ip_interface, read(tuple[str, ...], value)))


Figure = Annotated[float | None, document_field(by=_figure)]
Word = Annotated[str, document_field(by=_word_of)]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU as its vendor's tool describes it; None or empty for what it does not tell.

    ``broken`` and ``silent`` are errors in place of values (`complaints`). ``slowed_by`` names why
    clocks are lowered now. ``used_mib`` and ``utilization`` (in percent) are of this moment.
    """

    index: Word = ""
    name: str = ""
    driver: str = ""
    uuid: str = ""
    serial: str = ""
    broken: str = ""
    silent: str = ""
    memory_mib: Figure = None
    used_mib: Figure = None
    utilization: Figure = None
    ecc: str = ""
    ecc_now: Figure = None
    ecc_ever: Figure = None
    pages_pending: str = ""
    rows_pending: str = ""
    rows_failed: str = ""
    slowed_by: str = ""
    power_limit_w: Figure = None
    power_default_w: Figure = None
    sm_set_mhz: Figure = None
    sm_default_mhz: Figure = None
    sm_max_mhz: Figure = None
    compute_mode: str = ""
    mig: str = ""
    persistence: str = ""
    partition: str = ""
    memory_partition: str = ""
    pcie_width: Figure = None
    pcie_width_max: Figure = None
    pcie_gen_max: Figure = None
    fabric: str = ""
    fabric_ill: str = ""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU, `UNKNOWN_GPU` if it is not known on which."""

    gpu: Word = "None"
    pid: Word = "None"
    name: Word = "None"
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of the NVIDIA driver in the kernel log."""

    gpu: Word
    code: int
    age_s: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class InterfaceFacts:
    """A network interface: ``kind`` is its ARPHRD number; ``why`` it was chosen, if orch did."""

    name: str = ""
    state: str = ""
    mtu: int | None = None
    speed_mbit: Figure = None
    kind: Word = ""
    why: str | None = None


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """An interface with its addresses."""

    name: str
    addresses: Annotated[tuple[IPv4Interface | IPv6Interface, ...], document_field(by=_interfaces)]
    state: str = ""
    mtu: int | None = None
    speed_mbit: Figure = None
    kind: Word = ""


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """The way to the address of the master; ``local``: it is this machine's own."""

    interface: str = ""
    mtu: int | None = None
    speed_mbit: Figure = None
    to: Word = ""
    local: bool = False


@dataclass(frozen=True, slots=True)
class PortFacts:
    """A port of an InfiniBand or RoCE device, as `ports_of` returns it."""

    device: str = ""
    port: Word = ""
    state: str = ""
    physical: str = ""
    link_layer: str = ""
    rate_gbit: Figure = None
    interfaces: str = ""
    gids: Mapping[str, str] = field(default_factory=dict)
    ipv4_gid: int | None = None
    link_local: str = ""
    pkeys: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """The container in which runs start; ``error``: nothing could be run in it."""

    what: str = ""
    engine: str = ""
    image: str = ""
    digest: str = ""
    error: Word = ""
    workdir: bool | str = False
    same_user: bool = True
    owner: int | str | None = None
    devices: Mapping[str, float] = field(default_factory=dict)
    python: str = ""
    nccl: Word = ""


@dataclass(frozen=True, slots=True)
class DataSetFacts:
    """A look at a data set; ``error`` in place of the rest if it could not be read."""

    digest: str | None = None
    names: int = 0
    sizes: int = 0
    bytes: int = 0
    whole: bool = False
    error: Word = ""


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """A look at the processors: their number, its length, and how long they were in use."""

    count: int
    seconds: float
    busy_s: float
    own_s: float
    switches: tuple[int, int]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Known facts of a node; None or empty if the node, or an older runner, did not report them.

    ``told`` holds the names of all facts that it reported. If the GPU tool listed no GPUs, ``gpus``
    is None and ``gpu_fault`` says why; likewise ``xids`` and ``kernel_log``. ``gpus_missing`` are
    attached to the machine, but not in its list; ``gpu_remark`` is what the tool printed beside it.
    ``routes`` are interfaces by the address of another node, the master's first; ``unresolved`` are
    those addresses that are names unknown to the node.
    """

    told: frozenset[str]
    gpus: tuple[GpuFacts, ...] | None = None
    gpu_fault: str = ""
    gpu_tool: str = "nvidia-smi"
    gpu_remark: str = ""
    gpus_missing: int = 0
    gpu_processes: tuple[GpuProcess, ...] = ()
    instances: int | None = None
    devices: str = ""
    xids: tuple[Xid, ...] | None = None
    kernel_log: str = ""
    topology: Any = None
    cuda_driver: str | None = None
    hostname: str = ""
    host_key: str = ""
    boot_id: Word = ""
    cpu: str = ""
    cores: int | None = None
    cpu_limit: float | None = None
    kernel: str = ""
    machine: str = ""
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    runner_python: str = ""
    held_by: Word = ""
    processes_left: tuple[tuple[Any, Any, Any, Any], ...] = ()
    containers_left: tuple[tuple[Any, Any], ...] = ()
    container: ContainerFacts | None = None
    framework: Mapping[str, Any] = field(default_factory=dict)
    imported: bool = True
    workdir: str = ""
    workdir_first: Word = ""
    workdir_open: str = ""
    disk_error: str = ""
    disk_free_bytes: int = 0
    disk_free_inodes: int | None = None
    limits: Mapping[str, tuple[int | None, int | None]] | None = None
    login_s: float = 0.0
    clock_off_s: float = 0.0
    ports_busy: tuple[int, ...] = ()
    data_dir: bool | None = None
    data_set: DataSetFacts | None = None
    data_made: bool = False
    programs: Annotated[Mapping[str, Any], document_field(by=_programs)] = field(
        default_factory=dict
    )
    interface: InterfaceFacts | None = None
    route: RouteFacts | None = None
    routes: Mapping[str, str | None] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()
    networks: tuple[NetworkFacts, ...] = ()
    hostname_addresses: Annotated[tuple[str, ...] | None, document_field(by=_addresses)] = None
    infiniband: tuple[PortFacts, ...] = ()
    infiniband_gbit: float | None = None
    verbs: int | None = None
    peermem: bool = False
    open_driver: bool = False
    load: LoadFacts | None = None


def node_facts(told: Any) -> NodeFacts:
    """Return the facts of a node from what it sent, or from a manifest.

    >>> node_facts({"cores": "many", "kernel": "6.1", "gpus": "nvidia-smi ended with 9"}).kernel
    '6.1'
    """
    if isinstance(told, NodeFacts):
        return told
    if not isinstance(told, dict):
        return NodeFacts(frozenset())
    known = {name: told[name] or None for name in ("interface", "route") if name in told}
    known["told"] = frozenset(told)
    if isinstance(told.get("xids"), str):
        known |= {"xids": None, "kernel_log": told["xids"]}
    gpus = told.get("gpus")
    if isinstance(gpus, list | tuple):
        known["gpus"] = gpu_states(told)
    else:
        known |= {"gpus": None, "gpu_fault": str(gpus or "")}
    return read_leniently(NodeFacts, {**told, **known})


def unpack_facts(packed: Any) -> dict[str, Any]:
    """Unpack a runner's answer. Raise ValueError if it is damaged, or holds more than 8 MiB."""
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


def parse_facts(raw: Mapping[str, Any], devices: str | None = None) -> dict[str, Any]:
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
    return facts if devices is None else select_gpus(facts, devices)


def serials(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return identifiers of a machine and its devices, by name: host key, boot, processor, and each
    GPU's serial or UUID.

    >>> gpu = {"name": "NVIDIA H200", "uuid": ["GPU-a", "GPU-b"], "serial": "N/A"}
    >>> serials({"hostname": "n1", "gpus": [{"index": "0"}, {"index": "1"}], "gpu": gpu})
    {'hostname': 'n1', 'gpu 0': 'NVIDIA H200 GPU-a', 'gpu 1': 'NVIDIA H200 GPU-b'}
    """
    told = node_facts(facts)
    names = ("hostname", "host_key", "boot_id", "cpu")
    values = {name.replace("_", " "): getattr(told, name) for name in names}
    known = {name: value for name, value in values.items() if value}
    for gpu in told.gpus or ():
        words = (gpu.name, gpu.serial, gpu.uuid)
        known[f"gpu {gpu.index}"] = " ".join(word for word in words if word and word != "N/A")
    return known


def ports_of(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return InfiniBand and RoCE ports, ``state`` and ``physical`` without their numbers, with
    ``rate_gbit``.

    The kernel writes ``4: ACTIVE``, ``5: LinkUp``, ``400 Gb/sec (4X NDR)``
    (ABI/stable/sysfs-class-infiniband). ``gids`` lists by type the indexes of the GIDs that are
    set, ``link_local`` those that no router passes on; ``ipv4_gid`` is the first GID of type RoCE
    v2 with an IPv4 address, which is the one that NCCL needs on a routed network. ``pkeys`` has the
    partition keys that are set, by their index; earlier runners tell none.
    """
    ports = []
    for entry in entries:
        gids: dict[str, list[str]] = {}
        local: list[str] = []
        ipv4 = None
        for index, gid, kind, *_ in entry.get("gids", ()):
            gids.setdefault(kind or "IB", []).append(str(index))
            if gid.startswith(_LINK_LOCAL):
                local.append(str(index))
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
            "link_local": ",".join(local),
        }
        if "pkeys" in entry:
            port["pkeys"] = {str(index): key for index, key in entry["pkeys"]}
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
