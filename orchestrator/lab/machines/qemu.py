"""The hardware of a lab's machines, as arguments of qemu."""

from __future__ import annotations

import ipaddress
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from orchestrator.lab.programs import find
from orchestrator.lab.state import Lab, LabNode

MEMORY_MIB = 1024
INTERFACES = ("eth0", "eth1")
"""The interface of the lab's network, and one of a network of its own for RoCE, which can be taken
down while the machine is still reached. Both are on one cable.
"""
_TRIAL_S = 15.0
_TRIAL = "lab: the kernel has started"
"""What `init.sh` prints in a trial."""


def why_not_kvm(lab: Lab) -> str:
    """Return why KVM cannot run the lab's kernel; empty if it can. Only a boot shows it: /dev/kvm is
    also in virtual machines in which a guest does not start.
    """
    if not Path("/dev/kvm").exists():
        return "no /dev/kvm"
    argv = [*_computer("kvm", 1), *_kernel(lab, "lab_trial=1"), "-no-reboot", "-serial", "stdio"]
    with tempfile.TemporaryFile() as output:
        try:
            subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_TRIAL_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no kernel starts within {_TRIAL_S:g} s under /dev/kvm"
        output.seek(0)
        text = output.read().decode(errors="replace")
    if _TRIAL in text:
        return ""
    return f"a kernel fails under /dev/kvm: {text.strip().partition(chr(10))[0]}"


def machine_script(
    lab: Lab, node: LabNode, folders: Mapping[str, str], accelerator: str, cpus: int
) -> str:
    """Return the script that joins the node's cable to the machine's interfaces and runs it. The
    node ends with the machine.

    ``folders`` are those that the machine can write to, by their 9p tags.
    """
    argv = [*_computer(accelerator, cpus), *_kernel(lab, f'lab_boot="{node.folder}/boot.sh"')]
    argv += _folder("root", "/", "readonly=on,")
    for tag, path in folders.items():
        argv += _folder(tag, path)
    argv += ["-drive", "file=disk,format=raw,if=virtio"]
    taps = []
    for number, name in enumerate(INTERFACES):
        argv += ["-netdev", f"tap,id=tap{number},ifname=tap{number},script=no,downscript=no"]
        wire = f"netdev=tap{number},id={name},mac={_mac(number, node)}"
        argv += ["-device", f"virtio-net-pci,romfile=,{wire}"]
        taps += [
            f"tuntap add dev tap{number} mode tap",
            f"link set tap{number} mtu {lab.mtu} master br0 up",
        ]
    argv += ["-chardev", "file,id=console,path=console.log,append=on", "-serial", "chardev:console"]
    argv += ["-qmp", "unix:qmp,server=on,wait=off"]
    lines = [
        f"cd {shlex.quote(str(node.folder))}",
        "ip -batch - <<'END'",
        f"link add br0 mtu {lab.mtu} type bridge forward_delay 0 mcast_snooping 0",
        *taps,
        "link set eth0 master br0",
        "link set br0 up",
        "END",
        shlex.join(argv),
        "kill -TERM 1",
    ]
    return "\n".join(lines) + "\n"


def _computer(accelerator: str, cpus: int) -> list[str]:
    return [
        *(find("qemu-system-x86_64"), "-accel", accelerator, "-M", "q35", "-cpu", "max"),
        *("-smp", str(cpus), "-m", str(MEMORY_MIB)),
        *("-display", "none", "-nodefaults", "-no-user-config"),
    ]


def _kernel(lab: Lab, variable: str) -> list[str]:
    # On a busy computer the kernel's test of its timer fails, and it stops. An interrupt from
    # outside is to make it panic.
    line = f"console=ttyS0 reboot=t quiet no_timer_check unknown_nmi_panic {variable}"
    folder = lab.kernel_folder
    return ["-kernel", f"{folder}/vmlinuz", "-initrd", f"{folder}/initrd.gz", "-append", line]


def _folder(tag: str, path: str, options: str = "") -> list[str]:
    # In qemu's lists a comma of a value is written twice. Folders below are on other file systems.
    where = f"local,id={tag},path={path.replace(',', ',,')}"
    share = f"{where},security_model=passthrough,{options}multidevs=remap"
    return ["-fsdev", share, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def _mac(number: int, node: LabNode) -> str:
    address = ipaddress.IPv4Address(node.address).packed
    return f"02:0{number}:" + ":".join(f"{byte:02x}" for byte in address)
