"""What a tenant of a host can see: of other users, of what separates it from them, of its machine.

A part of the audit of a host: it only reads, below ``root``, which is / on a node.
"""

import contextlib
import os
import re
import shutil

from noderun.sysfs import first_line, names_in
from noderun.vendor_tools import begin, collect_output

SLURM_S = 10
MOST_VALUE = 200
SLURM_SETTINGS = {
    "AccountingStorageType", "AuthType", "ConstrainCores", "ConstrainDevices", "ConstrainRAMSpace", "DefMemPerCPU",
    "DefMemPerGPU", "DefMemPerNode", "Epilog", "HealthCheckInterval", "HealthCheckProgram", "JobAcctGatherType",
    "MpiDefault", "PrivateData", "ProctrackType", "Prolog", "PrologFlags", "SLURM_VERSION", "TaskPlugin", "TopologyPlugin",
}  # fmt: skip
"""Settings of Slurm that are told: the rest may have what nobody should read."""
TOOLS = (
    "apptainer", "dcgmi", "docker", "enroot", "helm", "ibstat", "mpirun", "ncu", "nvcc", "nvidia-ctk", "perf", "podman",
    "sacct", "singularity", "srun", "sudo", "useradd",
)  # fmt: skip
FILES = {
    "lmod": ("usr/share/lmod", "opt/apps/lmod", "usr/share/lmod/lmod"),
    "nccl": ("usr/include/nccl.h", "usr/lib/x86_64-linux-gnu/libnccl.so.2", "usr/lib64/libnccl.so.2",
             "usr/lib/aarch64-linux-gnu/libnccl.so.2", "usr/local/lib/libnccl.so.2"),
    "hpc_sdk": ("opt/nvidia/hpc_sdk",),
    "sssd": ("etc/sssd/sssd.conf", "etc/sssd/conf.d"),
}  # fmt: skip
TOKEN = "var/run/secrets/kubernetes.io/serviceaccount/token"
FIRST_USER, FIRST_DYNAMIC = 1000, 61184
"""Numbers of people's accounts; from the second on, of systemd and of nobody."""


def tenancy(root, folders, environment=os.environ):
    """Return what a tenant sees; ``folders``: where programs are besides those of the PATH."""
    places = [os.path.join(root, folder) for folder in folders]
    if root == "/":
        places = environment.get("PATH", "").split(os.pathsep) + places
    path = os.pathsep.join(places)
    boot = names_in(os.path.join(root, "boot"))
    flaws = os.path.join(root, "sys/devices/system/cpu/vulnerabilities")
    told = {name: first_line(flaws, name) for name in sorted(names_in(flaws))}
    cpu = first_line(root, "proc/sys/kernel/osrelease")
    devices = [name for name in names_in(os.path.join(root, "dev")) if is_guarded(name)]
    found = [name for name in TOOLS if shutil.which(name, path=path)]
    found += [name for name, files in FILES.items() if has_any(root, files)]
    found += ["pyxis"] if "--container-image" in said_by(path, "srun", "--help") else []
    return {
        "kernel": cpu,
        "kernels": sorted(name[8:] for name in boot if name.startswith("vmlinuz-")),
        "flaws": {name: text for name, text in told.items() if text.startswith("Vulnerable")},
        "flaws_told": sorted(told),
        "kptr_restrict": first_line(root, "proc/sys/kernel/kptr_restrict"),
        "virtual": is_virtual(root),
        "devices": sorted(name for name in devices if can_open(os.path.join(root, "dev", name))),
        "strangers": strangers(root),
        "tools": sorted(found),
        "token": os.access(os.path.join(root, TOKEN), os.R_OK),
        "slurm": slurm_settings(said_by(path, "scontrol", "show", "config")),
        "adopts": "pam_slurm" in text_below(os.path.join(root, "etc/pam.d/sshd")),
    }


def is_guarded(name):
    """Whether a device leads out of the tenant's own machine: to its hypervisor or controller."""
    return name == "kvm" or re.match(r"(ipmi|rshim)\d*\Z", name) is not None


def can_open(path):
    """Return True if this user may read and write a device."""
    return os.access(path, os.R_OK | os.W_OK)


def has_any(root, paths):
    """Return True if one of these paths exists."""
    return any(os.path.exists(os.path.join(root, path)) for path in paths)


def text_below(path):
    """Return a small file as text; empty if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def is_virtual(root):
    """Return True on a virtual machine, as its processor says."""
    flags = re.search(r"^flags\s*:(.*)$", text_below(os.path.join(root, "proc/cpuinfo")), re.M)
    return bool(flags and "hypervisor" in flags.group(1).split())


def strangers(root):
    """Return how many other people have processes that this user sees."""
    users = set()
    for name in names_in(os.path.join(root, "proc")):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                users.add(os.stat(os.path.join(root, "proc", name)).st_uid)
    return sum(FIRST_USER <= user < FIRST_DYNAMIC and user != os.geteuid() for user in users)


def said_by(path, name, *arguments):
    """Return what a program says; empty where there is none, it fails, or does not answer."""
    program = shutil.which(name, path=path)
    answer = collect_output(begin((program,) + arguments, "/tmp"), SLURM_S) if program else None
    return answer["text"] if answer and answer["code"] == 0 else ""


def slurm_settings(text):
    """Return {name: value} of settings of Slurm, as it tells them any of its users."""
    pairs = (line.partition("=") for line in text.splitlines())
    told = {name.strip(): value.strip()[:MOST_VALUE] for name, sign, value in pairs if sign}
    return {
        name: "" if told[name] == "(null)" else told[name]
        for name in sorted(SLURM_SETTINGS & set(told))
    }
