"""What a node said about itself in an audit, as ``remote/noderun/host_audit.py`` sends it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.documents import read_leniently

NVIDIA, AMD = "0x10de", "0x1002"
_FAST_MBIT = 10_000


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A GPU or network card: its links in the kernel's words (``32.0 GT/s PCIe``), the bridges
    above it from the root down, its RDMA devices, and the type of its IOMMU domain.
    """

    address: str
    gpu: bool = False
    vendor: str = ""
    above: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()
    mbit: int = 0
    in_group: bool = False
    iommu: str = ""
    current_link_speed: str = ""
    max_link_speed: str = ""
    current_link_width: str = ""
    max_link_width: str = ""

    @property
    def counts(self) -> bool:
        """Whether a run may use it: not the display of a server's console, nor its slow ports."""
        if self.gpu:
            return self.vendor in (NVIDIA, AMD)
        return bool(self.rdma) or self.mbit >= _FAST_MBIT

    @property
    def name(self) -> str:
        """Its kind and address, as messages name it."""
        return f"{'GPU' if self.gpu else 'NIC'} {self.address.removeprefix('0000:')}"


@dataclass(frozen=True, slots=True)
class Bridge:
    """A PCIe bridge; ``acs`` is [capability, control], empty without ACS, None if not readable."""

    max_link_speed: str = ""
    acs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Processors:
    """Counts of processors: by driver, governor and preference; by idle state, with its exit
    latency in microseconds.
    """

    policies: Mapping[str, int] = field(default_factory=dict)
    idle_states: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a tenant of a host sees of others and of its machine (``remote/noderun/tenancy.py``).

    ``flaws``: what the kernel calls vulnerable, ``flaws_told`` all that it tells about.
    ``devices``: those of a hypervisor or controller that this user may open. ``strangers``: other
    people who have processes here. ``token``: one of a service account of Kubernetes is mounted.
    ``slurm``: settings; empty where there is no Slurm. ``adopts``: its sshd asks Slurm.
    """

    kernel: str = ""
    kernels: tuple[str, ...] = ()
    flaws: Mapping[str, str] = field(default_factory=dict)
    flaws_told: tuple[str, ...] = ()
    virtual: bool = False
    devices: tuple[str, ...] = ()
    strangers: int = 0
    token: bool = False
    slurm: Mapping[str, str] = field(default_factory=dict)
    adopts: bool = False


@dataclass(frozen=True, slots=True)
class HostReport:
    """A node's answer; empty for what it does not have or may not read. ``admin``: the login has
    CAP_SYS_ADMIN, as root has outside of most containers.
    """

    admin: bool = False
    command_line: str = ""
    memory_nodes: int = 0
    iommu_groups: int = 0
    numa_balancing: str = ""
    huge_pages: str = ""
    huge_pages_defrag: str = ""
    perf_event_paranoid: str = ""
    nvidia_driver: str = ""
    nvidia_params: str = ""
    gdrdrv: bool = False
    processors: Processors = Processors()
    devices: tuple[PciDevice, ...] = ()
    bridges: Mapping[str, Bridge] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    firmware: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    nccl: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: Mapping[str, bool] = field(default_factory=dict)
    tenant: Tenant = Tenant()

    @property
    def used(self) -> tuple[PciDevice, ...]:
        """The devices that a run may use."""
        return tuple(device for device in self.devices if device.counts)

    @property
    def has_nvidia(self) -> bool:
        """Whether there is an NVIDIA GPU."""
        return any(device.gpu and device.vendor == NVIDIA for device in self.devices)


def host_report(told: Any) -> HostReport:
    """Return what a node sent, leniently: what is not of its type is its default then."""
    return read_leniently(HostReport, told if isinstance(told, dict) else {})


def leading_number(text: str) -> float:
    """Return the number that a text begins with, 0 without one.

    >>> leading_number("32.0 GT/s PCIe"), leading_number("Unknown")
    (32.0, 0.0)
    """
    match = re.match(r"\d+(\.\d+)?", text)
    return float(match[0]) if match else 0.0
