"""The placement of ranks on nodes: the controller computes `Placement` and renders it literally; no
node computes a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host, fold, is_loopback
from orchestrator.plan.spec import RunSpec
from orchestrator.plural import plural


@dataclass(frozen=True, slots=True)
class Slot:
    """One node's share of a run: ranks ``first_rank`` … ``first_rank + nproc - 1`` on ``devices``
    of ``host``.

    ``devices`` is in the format of CUDA_VISIBLE_DEVICES, one entry per rank.
    """

    host: str
    address: str
    node_rank: int
    first_rank: int
    nproc: int
    devices: str

    @property
    def ranks(self) -> range:
        """The ranks on this node, in order of local_rank."""
        return range(self.first_rank, self.first_rank + self.nproc)


@dataclass(frozen=True, slots=True)
class Placement:
    """All slots of a run in order of node_rank. Slot 0 is the master, which hosts the rendezvous."""

    slots: tuple[Slot, ...]
    master_addr: str
    master_port: int
    world_size: int


def place(spec: RunSpec, hosts: Sequence[Host], port: int) -> Placement:
    """Place the run's nodes on the hosts that its spec names, else on the first with enough GPUs;
    slot 0 is the master.

    Raises ConfigError for a named host that is not there, too few hosts, too few GPUs on them, or
    too few in their
    ``vars.cuda_visible_devices``.
    """
    if spec.hosts:
        hosts = _named_hosts(spec, hosts)
    if len(hosts) < spec.nodes:
        raise ConfigError(
            f"expected {plural(spec.nodes, 'host')}, {len(hosts)} selected: {fold(h.name for h in hosts)}",
            where="--nodes",
            hint="select more hosts with --hosts, or lower --nodes",
        )
    fitting = [host for host in hosts if host.capacity is None or host.capacity >= spec.gpus]
    if len(fitting) < spec.nodes:
        small = [host for host in hosts if host not in fitting]
        unit = "slots" if spec.device == "cpu" else "gpus"
        raise ConfigError(
            f"expected {spec.gpus} {unit} per node on {plural(spec.nodes, 'node')}, too few on {fold(h.name for h in small)}",
            where="--gpus",
            hint=f"lower --gpus, or correct {unit}: for these hosts in the inventory",
        )
    slots = tuple(
        Slot(
            host.name, host.address, index, index * spec.gpus, spec.gpus, _devices(host, spec.gpus)
        )
        for index, host in enumerate(fitting[: spec.nodes])
    )
    _refuse_loopback(slots)
    return Placement(slots, slots[0].address, port, spec.world_size)


def _refuse_loopback(slots: Sequence[Slot]) -> None:
    """Raise ConfigError if only some nodes have an address of the loopback: the others would find
    themselves there.
    """
    local = [slot for slot in slots if is_loopback(slot.address)]
    others = fold(slot.host for slot in slots if slot not in local)
    if local and others:
        message = f"expected addresses that all nodes of a run can reach, got {local[0].address} for {local[0].host}"
        hint = f"to {others}, {local[0].address} is itself: give {local[0].host} the name or address by which they reach it"
        raise ConfigError(message, where="--hosts", hint=hint)


def _named_hosts(spec: RunSpec, hosts: Sequence[Host]) -> list[Host]:
    by_name = {host.name: host for host in hosts}
    missing = [name for name in spec.hosts if name not in by_name]
    if missing:
        raise ConfigError(
            f"expected {fold(spec.hosts)}, {fold(missing)} is not selected", where="--hosts"
        )
    return [by_name[name] for name in spec.hosts]


def used_hosts(specs: Iterable[RunSpec], hosts: Sequence[Host]) -> list[Host]:
    """Return the hosts used by any of these runs, in order. Given only these hosts, `place` places
    every run as before.
    """
    names = {slot.host for spec in specs for slot in place(spec, hosts, 0).slots}
    return [host for host in hosts if host.name in names]


def most_ranks(specs: Iterable[RunSpec], hosts: Sequence[Host]) -> dict[str, int]:
    """Return the most ranks that any of these runs places on each host, 0 on one that none uses."""
    most = {host.name: 0 for host in hosts}
    for spec in specs:
        for slot in place(spec, hosts, 0).slots:
            most[slot.host] = max(most[slot.host], slot.nproc)
    return most


def idle_gpus(specs: Iterable[RunSpec], hosts: Sequence[Host]) -> list[str]:
    """Return the GPUs that none of these runs uses, where hosts differ in size, as a text for hosts
    with equal numbers.
    """
    most = most_ranks(specs, hosts)
    if len({host.gpus for host in hosts}) < 2:
        return []
    words: dict[str, list[str]] = {}
    for host in hosts:
        if host.gpus and most[host.name] < host.gpus:
            words.setdefault(f"{host.gpus - most[host.name]} of {host.gpus} GPUs", []).append(
                host.name
            )
    return [
        f"{text} of {'each of ' if len(names) > 1 else ''}{fold(names)}"
        for text, names in words.items()
    ]


def _devices(host: Host, count: int) -> str:
    """Return the first ``count`` devices of a host: those listed in the inventory, or 0, 1, 2 …"""
    listed = host.vars.get("cuda_visible_devices")
    devices = [str(index) for index in range(count)] if listed is None else str(listed).split(",")
    if len(devices) < count:
        raise ConfigError(
            f"expected {count} devices or more, got {listed}",
            where=f"vars.cuda_visible_devices of host {host.name}",
            hint="list more, or lower --gpus",
        )
    if count > 1 and any(device.strip().startswith("MIG-") for device in devices):
        hint = "CUDA shows a process a single MIG instance; use one rank per node, or whole GPUs"
        raise ConfigError(
            f"expected --gpus 1 on MIG instances, got {count}",
            where=f"devices of {host.name}",
            hint=hint,
        )
    return ",".join(device.strip() for device in devices[:count])


def ladder(nodes: int, gpus: int) -> tuple[tuple[int, int], ...]:
    """Return the shapes of a scaling curve as (nodes, gpus): 1, 2, 4 … all GPUs of one node, then
    2, 4 … all nodes.

    >>> ladder(4, 8)
    ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8))
    """
    return tuple((1, g) for g in _doublings(gpus)) + tuple((n, gpus) for n in _doublings(nodes)[1:])


def _doublings(limit: int) -> list[int]:
    counts = [1]
    while counts[-1] * 2 < limit:
        counts.append(counts[-1] * 2)
    return [*counts, limit] if limit > counts[-1] else counts
