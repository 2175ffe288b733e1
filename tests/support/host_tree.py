"""A stand-in for a host's /sys, /proc and /usr/bin, below a folder: two GPUs and a network card, one
GPU and the card below one PCIe switch. Nothing is wrong with it; tests plant what is.
"""

from __future__ import annotations

from pathlib import Path

ROOT_PORT, SWITCH, TO_GPU, TO_NIC = "0000:40:01.0", "0000:41:00.0", "0000:42:00.0", "0000:42:01.0"
GPU, NIC = "0000:43:00.0", "0000:44:00.0"
OTHER_PORT, OTHER_GPU = "0000:60:01.0", "0000:61:00.0"
SLOW_NIC = "0000:00:1f.6"
SLURM = """\
HealthCheckInterval     = 300 sec
HealthCheckProgram      = /usr/sbin/nhc
PrivateData             = jobs,usage,users
ProctrackType           = proctrack/cgroup
Prolog                  = (null)
SlurmctldParameters     = (null)
TaskPlugin              = task/affinity,task/cgroup
Cgroup Support Configuration:
ConstrainCores          = yes
ConstrainDevices        = yes
ConstrainRAMSpace       = yes"""
"""Lines of `scontrol show config` of 22.05, on a cluster that keeps its tenants apart."""
LINK = {
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_width": "16",
}


class HostTree:
    """The stand-in below ``root``. ``vendor``: of its GPUs, empty for a node without any."""

    def __init__(self, root: Path, vendor: str = "0x10de") -> None:
        self.root = root
        self._settings()
        self.device(SLOW_NIC, [], "0x020000", "0x8086", link={})
        self.write(f"sys/bus/pci/devices/{SLOW_NIC}/net/eno1/speed", "1000")
        for name in ("lo", "eth0", "eth1", "eth2", "ib0"):
            (root / "sys/class/net" / name).mkdir(parents=True)
        if not vendor:
            return
        kind = "0x030200" if vendor == "0x10de" else "0x120000"
        self.device(GPU, [ROOT_PORT, SWITCH, TO_GPU], kind, vendor)
        self.device(OTHER_GPU, [OTHER_PORT], kind, vendor)
        self.device(NIC, [ROOT_PORT, SWITCH, TO_NIC], "0x020700", "0x15b3")
        (root / f"sys/bus/pci/devices/{NIC}/infiniband/mlx5_0").mkdir(parents=True)
        self.write("sys/class/infiniband/mlx5_0/fw_ver", "28.46.3008")
        for group, address in enumerate((GPU, OTHER_GPU, NIC)):
            self.group(address, group, "identity")
        if vendor == "0x10de":
            self.write("sys/module/nvidia/version", "580.159.03")
            self.write("proc/driver/nvidia/params", "RmProfilingAdminOnly: 0")
            (root / "sys/module/gdrdrv").mkdir(parents=True)

    def _settings(self) -> None:
        for path, text in {
            "proc/cmdline": "root=/dev/sda1 token=secret iommu=pt",
            "proc/self/status": "Name:\tpython3\nCapEff:\t0000000000000000",
            "proc/sys/kernel/numa_balancing": "0",
            "proc/sys/kernel/perf_event_paranoid": "2",
            "proc/sys/kernel/osrelease": "6.1.0-57-amd64",
            "proc/cpuinfo": "processor: 0\nflags\t\t: fpu vme hypervisor lahf_lm",
            "proc/7/comm": "init",
            "sys/devices/system/cpu/vulnerabilities/vmscape": "Mitigation: IBPB before exit to userspace",
            "boot/vmlinuz-6.1.0-57-amd64": "",
            "boot/vmlinuz-6.1.0-58-cloud-amd64": "",
            "etc/pam.d/sshd": "account required pam_slurm_adopt.so",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "sys/kernel/mm/transparent_hugepage/defrag": "always defer [madvise] never",
        }.items():
            self.write(path, text)
        for node in (0, 1):
            (self.root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
        for cpu in range(4):
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            self.write(f"{folder}/cpufreq/scaling_driver", "intel_pstate")
            self.write(f"{folder}/cpufreq/scaling_governor", "performance")
            for state, (name, latency, disable) in enumerate((("C1", 2, 0), ("C6", 290, 1))):
                self.write(f"{folder}/cpuidle/state{state}/name", name)
                self.write(f"{folder}/cpuidle/state{state}/latency", str(latency))
                self.write(f"{folder}/cpuidle/state{state}/disable", str(disable))
        for name, text in {
            "runc": "runc version 1.4.3\nspec: 1.2.1",
            "containerd": "containerd github.com/containerd/containerd/v2 v2.1.9 abc",
            "nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.19.1",
            "nvcc": "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.1, V13.1.80",
            "scontrol": SLURM,
        }.items():
            self.program(name, text)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def program(self, name: str, says: str) -> None:
        """A program that tells its version."""
        self.write(f"usr/bin/{name}", f"#!/bin/sh\necho '{says}'")
        (self.root / "usr/bin" / name).chmod(0o755)

    def device(
        self,
        address: str,
        above: list[str],
        kind: str,
        vendor: str,
        link: dict[str, str] = LINK,
    ) -> None:
        """A device below bridges, each of which has a link to itself, as the kernel shows them."""
        path = self.root / f"sys/devices/pci{address[:7]}"
        for place in (*above, address):
            path = path / place
            path.mkdir(parents=True, exist_ok=True)
            at = self.root / "sys/bus/pci/devices" / place
            at.parent.mkdir(parents=True, exist_ok=True)
            if not at.is_symlink():
                at.symlink_to(path)
            self.link(place, **LINK)
            self.acs(place, 0)
        for name, text in {"class": kind, "vendor": vendor}.items():
            (path / name).write_text(f"{text}\n")
        self.link(address, **(link or dict.fromkeys(LINK, "")))

    def link(self, address: str, **changes: str) -> None:
        """Change ``current_link_speed`` and the like of a device."""
        for name, text in changes.items():
            self.write(f"sys/bus/pci/devices/{address}/{name}", text)

    def acs(self, address: str, control: int, size: int = 4096) -> None:
        """Write a configuration space whose second extended capability is ACS; 64 bytes of it are
        what others than root may read."""
        space = bytearray(4096)
        space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
        space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x14C:0x14E], space[0x14E:0x150] = b"\x5f\x00", control.to_bytes(2, "little")
        (self.root / f"sys/bus/pci/devices/{address}/config").write_bytes(space[:size])

    def group(self, address: str, group: int, kind: str) -> None:
        """Put a device into an IOMMU group; kernels before 5.11 tell no type."""
        folder = self.root / f"sys/kernel/iommu_groups/{group}"
        folder.mkdir(parents=True, exist_ok=True)
        if kind:
            (folder / "type").write_text(f"{kind}\n")
        else:
            (folder / "type").unlink(missing_ok=True)
        link = self.root / f"sys/bus/pci/devices/{address}/iommu_group"
        if not link.is_symlink():
            link.symlink_to(folder)
