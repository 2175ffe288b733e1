"""The audit of a host: settings of its kernel, PCIe, drivers and NCCL, as they are.

A program of its own, which ``orch check --audit`` sends: no bench carries or waits for it. It only
reads, and every path is below ``root``, which is / on a node.
"""

import json
import os
import re
import sys

from noderun.files import read_slice
from noderun.sysfs import first_line, names_in
from noderun.tenancy import tenancy
from noderun.vendor_tools import begin, collect_output

MARK = "ORCH-AUDIT "
PROGRAM_S = 20
MOST_BYTES = 1 << 16
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
PROGRAMS = {
    "runc": ["runc", "--version"],
    "containerd": ["containerd", "--version"],
    "nvidia-container-toolkit": ["nvidia-ctk", "--version"],
    "docker": ["docker", "--version"],
    "cuda-toolkit": ["nvcc", "--version"],
    "dcgm": ["dcgmi", "--version"],
}
FOLDERS = (
    "usr/local/bin", "usr/local/sbin", "usr/bin", "usr/sbin", "usr/local/nvidia/toolkit", "usr/local/cuda/bin",
)  # fmt: skip
SETTINGS = {
    "numa_balancing": "proc/sys/kernel/numa_balancing",
    "huge_pages": "sys/kernel/mm/transparent_hugepage/enabled",
    "huge_pages_defrag": "sys/kernel/mm/transparent_hugepage/defrag",
    "perf_event_paranoid": "proc/sys/kernel/perf_event_paranoid",
    "nvidia_driver": "sys/module/nvidia/version",
}
LINK = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
CAP_SYS_ADMIN = 21
EXTENDED, ACS = 0x100, 0xD
"""Offset of the first extended capability in PCI configuration space, and the one of ACS."""
GPU_CLASSES, NETWORK_CLASS = ("0x03", "0x12"), "0x02"


def host_audit_main():
    """Read a one-line request, ``files`` whose existence is asked, and print what the host is."""
    request = json.loads(sys.stdin.buffer.readline().decode())
    sys.stdout.write(MARK + json.dumps(host_report("/", request["files"])) + "\n")


def host_report(root, files=()):
    """Return what the audit reads, in the kernel's own words; no value for what is not there."""
    report = {name: first_line(root, path) for name, path in SETTINGS.items()}
    held = re.search(r"^CapEff:\s*([0-9a-f]+)", text_of(root, "proc/self/status"), re.M)
    report["admin"] = bool(held and int(held.group(1), 16) >> CAP_SYS_ADMIN & 1)
    words = first_line(root, "proc/cmdline").split()  # the rest may have what nobody should read
    report["command_line"] = " ".join(word for word in words if "iommu" in word)
    report["memory_nodes"] = numbered(root, "sys/devices/system/node", "node")
    report["iommu_groups"] = len(names_in(os.path.join(root, "sys/kernel/iommu_groups")))
    report["gdrdrv"] = os.path.isdir(os.path.join(root, "sys/module/gdrdrv"))
    report["nvidia_params"] = text_of(root, "proc/driver/nvidia/params")
    report["processors"] = cpu_settings(root)
    report["devices"], report["bridges"] = pci_devices(root)
    report["interfaces"] = sorted(names_in(os.path.join(root, "sys/class/net")))
    report["firmware"] = rdma_firmware(root)
    report["programs"] = program_versions(root)
    report["tenant"] = tenancy(root, FOLDERS)
    report["nccl"] = nccl_settings(root)
    named = list(files) + [
        value for settings in report["nccl"].values() for value in topology_files(settings)
    ]
    paths = {path: os.path.join(root, os.path.expanduser(path).lstrip("/")) for path in named}
    report["files"] = {name: os.access(path, os.R_OK) for name, path in paths.items()}
    return report


def text_of(root, path):
    """Return the beginning of a file as text; empty if it cannot be read."""
    return read_slice(os.path.join(root, path), 0, MOST_BYTES).decode("utf-8", "replace")


def numbered(root, folder, word):
    """Return how many entries of a folder are a word and a number: cpu0, node1."""
    names = names_in(os.path.join(root, folder))
    return sum(name.startswith(word) and name[len(word) :].isdigit() for name in names)


def cpu_settings(root):
    """Return how many processors have each frequency governor and preference, and each idle state:
    its name, exit latency in microseconds, and on how many it may be entered.
    """
    base = os.path.join(root, "sys/devices/system/cpu")
    policies, states = {}, {}
    for cpu in names_in(base):
        if not (cpu.startswith("cpu") and cpu[3:].isdigit()):
            continue
        words = [
            first_line(base, cpu, "cpufreq", name)
            for name in ("scaling_driver", "scaling_governor", "energy_performance_preference")
        ]
        if words[1]:
            policies[" ".join(words)] = policies.get(" ".join(words), 0) + 1
        folder = os.path.join(base, cpu, "cpuidle")
        for state in names_in(folder):
            latency = first_line(folder, state, "latency")
            if latency.isdigit():
                key = (first_line(folder, state, "name"), int(latency))
                is_used = first_line(folder, state, "disable") == "0"
                states[key] = states.get(key, 0) + is_used
    return {
        "policies": policies,
        "idle_states": sorted([name, us, count] for (name, us), count in states.items()),
    }


def pci_devices(root):
    """Return the GPUs and fast network cards, and the bridges above them by address: their fastest
    link, and the bits of ACS that they can have and that are set. ``acs`` is None for a bridge
    whose configuration this user may not read, empty for one without ACS.
    """
    base = os.path.join(root, "sys/bus/pci/devices")
    devices, bridges = [], {}
    for address in sorted(names_in(base)):
        path = os.path.join(base, address)
        kind = first_line(path, "class")
        is_gpu = kind.startswith(GPU_CLASSES)
        if not is_gpu and not kind.startswith(NETWORK_CLASS) or os.path.exists(path + "/physfn"):
            continue
        above = [part for part in os.path.realpath(path).split(os.sep) if ADDRESS.match(part)][:-1]
        device = {name: first_line(path, name) for name in ("vendor",) + LINK}
        device["rdma"] = sorted(names_in(os.path.join(path, "infiniband")))
        device["mbit"] = max(
            (speed_of(path, name) for name in names_in(os.path.join(path, "net"))), default=0
        )
        group = os.path.join(path, "iommu_group")
        device["iommu"] = first_line(group, "type") if os.path.isdir(group) else ""
        device["in_group"] = os.path.isdir(group)
        devices.append(dict(device, address=address, gpu=is_gpu, above=above))
        for bridge in above:
            if bridge not in bridges:
                at = os.path.join(base, bridge)
                bridges[bridge] = {
                    "max_link_speed": first_line(at, "max_link_speed"),
                    "acs": acs_of(os.path.join(at, "config")),
                }
    return devices, bridges


def speed_of(path, interface):
    """Return the speed of a network interface in Mb/s, 0 for one without a cable."""
    speed = first_line(path, "net", interface, "speed")
    return int(speed) if speed.isdigit() else 0


def acs_of(path):
    """Return [capability, control] of ACS in a device's configuration space (PCI Express Base,
    7.7.11); [] without ACS, None if only root may read that far: others get 64 bytes.
    """
    config = read_slice(path, 0, 4096)
    if len(config) < EXTENDED:
        return None
    at, seen = EXTENDED, set()
    while EXTENDED <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACS:
            return [int.from_bytes(config[at + n : at + n + 2], "little") for n in (4, 6)]
        at = header >> 20 & 0xFFC
    return []


def rdma_firmware(root):
    """Return {device: version of its firmware}."""
    base = os.path.join(root, "sys/class/infiniband")
    return {name: first_line(base, name, "fw_ver") for name in sorted(names_in(base))}


def program_versions(root):
    """Return {name: first line with a number} of the programs that are installed and tell their
    version.
    """
    started = {}
    for name, argv in PROGRAMS.items():
        paths = [os.path.join(root, folder, argv[0]) for folder in FOLDERS]
        path = next((path for path in paths if os.access(path, os.X_OK)), None)
        started[name] = path and begin([path] + argv[1:], "/tmp")
    told = {name: collect_output(program, PROGRAM_S) for name, program in started.items()}
    lines = {}
    for name, answer in told.items():
        if answer and answer["code"] == 0:
            found = re.search(r"^.*\d\.\d.*$", answer["text"], re.M)
            lines[name] = found.group()[:200] if found else ""
    return lines


def nccl_settings(root):
    """Return {where: {name: value}} of the variables of NCCL that a login and its files set; what
    is set first counts.
    """
    own = os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")
    settings = {
        "the login's environment": {
            name: value for name, value in os.environ.items() if name.startswith("NCCL_")
        }
    }
    for path in (own, "/etc/nccl.conf"):
        lines = text_of(root, path.lstrip("/")).splitlines()
        # As NCCL reads it: whatever stands before the first "=" is the name, spaces too.
        pairs = (line.partition("=") for line in lines if "=" in line and line[0] != "#")
        settings[path] = {name: value for name, _, value in pairs}
    return {where: values for where, values in settings.items() if values}


def topology_files(settings):
    """Return the files that variables of NCCL have it read."""
    return [settings[name] for name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE") if settings.get(name)]


if __name__ == "__main__":
    host_audit_main()
