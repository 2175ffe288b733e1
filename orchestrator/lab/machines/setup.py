"""What the machines of a lab are to have; whether this computer can have them; their files."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.lab.machines import guest, qemu
from orchestrator.lab.machines.kernel import Kernel, find_kernel, install
from orchestrator.lab.programs import find, need, run
from orchestrator.lab.state import Lab, LabNode

SHARED = "/shared"
"""Where machines have the folder that the first of them serves over NFS."""
_MOST = 64
_TOOLS = ("dpkg", "mkfs.ext4", "prlimit", "rdma", "tc")
_NFS_TOOLS = ("exportfs", "mount.nfs4", "rpc.mountd", "rpc.nfsd")
_DISK_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class Machines:
    """What the machines of a lab are to have.

    ``kernel`` is a Debian package, None the newest installed one; ``nfs`` a shared home; ``loss`` a
    percentage of packets and ``delay`` a time by which each is late, as netem of Linux takes them.
    """

    kernel: Path | None = None
    nfs: bool = False
    loss: str = ""
    delay: str = ""

    @property
    def netem(self) -> str:
        """The arguments of netem; empty for a wire without loss and delay."""
        named = {"loss": self.loss, "delay": self.delay}
        return " ".join(f"{name} {value}" for name, value in named.items() if value)


def require(wanted: Machines, nodes: int, gpus: int) -> Kernel:
    """Return the kernel of the machines. Raises ConfigError, which names what is missing, unless
    this computer can have them.
    """
    where = "orch lab up --machines"
    _require_value("--loss", wanted.loss, r"\d+(\.\d+)?%", "1%")
    _require_value("--delay", wanted.delay, r"\d+(\.\d+)?(us|ms|s)", "5ms")
    if platform.machine() != "x86_64":
        raise ConfigError(f"expected an x86-64 computer, got {platform.machine()}", where=where)
    if nodes > _MOST:
        raise ConfigError(f"expected at most {_MOST} machines, got {nodes}", where=where)
    if gpus:
        raise ConfigError("machines have no GPUs", where=where, hint="--gpus-per-node 0")
    need([*_TOOLS, *(_NFS_TOOLS if wanted.nfs else ())], where)
    return find_kernel(wanted.kernel)


def _require_value(option: str, value: str, pattern: str, example: str) -> None:
    if value and not re.fullmatch(pattern, value):
        raise ConfigError(f"{option}: expected a value such as {example}, got {value!r}")


def prepare(
    lab: Lab, wanted: Machines, kernel: Kernel, *, cpus: int, prefix: int, shares: Sequence[Path]
) -> str:
    """Write the kernel and the files of every machine; return what runs them, in words.

    ``prefix`` is the length of that of the lab's network; ``shares`` are folders that all of them
    write to.
    """
    version = install(kernel, lab.kernel_folder)
    emulated = qemu.why_not_kvm(lab)
    folders = {"home": "/root", "var_tmp": "/var/tmp"}
    folders |= {f"share{number}": str(path) for number, path in enumerate(shares)}
    for node in lab.nodes:
        _make_disk(node.folder / "disk")
        boot = guest.boot_script(
            lab, node, folders, prefix, netem=wanted.netem, shared=SHARED if wanted.nfs else ""
        )
        (node.folder / "boot.sh").write_text(boot, encoding="utf-8")
        script = qemu.machine_script(lab, node, folders, "tcg" if emulated else "kvm", cpus)
        (node.folder / "machine.sh").write_text(script, encoding="utf-8")
    if emulated:
        return f"Linux {version}, emulated ({emulated}): they show function, not speed"
    return f"Linux {version} under KVM"


def _make_disk(path: Path) -> None:
    with path.open("wb") as disk:
        disk.truncate(_DISK_BYTES)
    run([find("mkfs.ext4"), "-q", "-F", str(path)], timeout_s=120)


def programs(node: LabNode) -> list[list[str]]:
    """Return the programs of a namespace node that is a machine."""
    return [[find("sh"), str(node.folder / "machine.sh")]]
