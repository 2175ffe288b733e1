"""A lab of network namespaces: real isolation, real sshd, addresses 10.11.0.2 upwards; needs root.

The controller's side owns the bridge. No namespace has a default route, so programs in a lab cannot
reach anything outside it, and several labs, or a real cluster, can use the same addresses at the
same time.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, RunError
from orchestrator.lab import cgroups, machine, machines, slurm
from orchestrator.lab.identity import write_sshd_config
from orchestrator.lab.programs import find, run
from orchestrator.lab.state import Lab, LabNode
from orchestrator.procs import live_pid

FIRST = ipaddress.IPv4Address("10.11.0.2")
NODES_PER_BRIDGE = 1000
"""A bridge of Linux has 1023 ports. The nodes of a larger lab are on several bridges, each
connected to the first, ``br0``.
"""
MOST_NODES = 4000
"""A /20 network has 4094 addresses, and 4000 nodes of 5 processes are within the usual 32,768
process ids of a machine.
"""
_START_TIMEOUT_S = 60.0
_IP_TIMEOUT_S = 30.0
_WIDE = 30
"""Labs with more nodes than this get permanent ARP entries: dynamic ones, of each node for every
other, are limited to 1024 for all namespaces of a kernel together (``gc_thresh3``), which does not
count permanent ones."""


def addresses(count: int) -> list[str]:
    """Return the nodes' addresses: 10.11.0.2 and following."""
    if not 1 <= count <= MOST_NODES:
        raise ConfigError(f"lab nodes: expected 1 to {MOST_NODES}, got {count}")
    return [str(FIRST + index) for index in range(count)]


def network_of(lab: Lab) -> ipaddress.IPv4Network:
    """Return the network of the nodes and the controller's side."""
    return ipaddress.IPv4Network("10.11.0.0/24" if len(lab.nodes) <= 253 else "10.11.0.0/20")


def port_of(node: LabNode) -> str:
    """Return the name of the bridge's port for a node, on the controller's side."""
    return "v" + node.address.rpartition("10.11.")[2].replace(".", "-")


def is_unplugged(node: LabNode) -> bool:
    """Whether a node's cable is out."""
    try:
        carrier = Path(f"/proc/{node.pid}/root/sys/class/net/eth0/carrier").read_bytes()
    except OSError:  # it is down, or not there yet
        return False
    return carrier == b"0\n"


def clock_of(node: LabNode) -> Path:
    """Return the file with the offset of a node's monotonic clock from the machine's, in the
    kernel's format.
    """
    return node.folder / "clock"


def start(lab: Lab, shares: Sequence[Path]) -> None:
    """Start the holder and all nodes, and connect them. Returns when every node has its interface."""
    sshd = find("sshd")
    shares = [*shares, *machine.interpreter_folders(lab.python), *_program_folders(sshd)]
    by_name = {node.name: node.address for node in lab.nodes}
    for node in lab.nodes:
        machine.write_etc(lab, node, by_name)
        write_sshd_config(lab, node, sshd)
    plan = lab.directory / "machine.json"
    plan.write_text(
        machine.plan_text({node.name: _node_plan(lab, node, shares, sshd) for node in lab.nodes}),
        encoding="utf-8",
    )
    os.mkfifo(_control(lab), 0o600)
    _start_holder(lab, plan)
    _wire(lab, lab.nodes, _bridges(lab))
    if len(lab.nodes) > _WIDE:
        entries = (
            f"neigh add {node.address} lladdr {_mac(node.address)} dev br0 nud permanent\n"
            for node in lab.nodes
        )
        switch(lab, "".join(entries))


def start_node(lab: Lab, node: LabNode) -> None:
    """Restart a node that has ended."""
    cgroups.house(lab, node.name)
    with _control(lab).open("w", encoding="utf-8") as control:
        control.write(f"{node.name}\n")
    _wire(lab, [node], "")


def _control(lab: Lab) -> Path:
    return lab.directory / "control"


def _program_folders(sshd: str) -> list[Path]:
    """Return the folders of sshd and its libraries, which are not in the system's folders if sshd
    was only unpacked.
    """
    libraries = [
        Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry
    ]
    return [
        path
        for path in (Path(sshd).parent, Path(sshd).parent.parent / "lib", *libraries)
        if path.is_dir()
    ]


def _node_plan(lab: Lab, node: LabNode, shares: Sequence[Path], sshd: str) -> dict[str, Any]:
    libraries = {}
    if os.environ.get("LD_LIBRARY_PATH"):
        libraries = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]}
    return {
        "name": node.name,
        "address": node.address if lab.kind == "namespaces" else "",
        "netmask": str(network_of(lab).netmask),
        "neighbours": [str(FIRST - 1), len(lab.nodes) + 1] if len(lab.nodes) > _WIDE else [],
        "pid_file": str(node.folder / "pid"),
        "clock": str(clock_of(node)),
        "group": str(cgroups.house(lab, node.name) or ""),
        "console": str(node.folder / "console.log"),
        "mounts": machine.mounts(lab, node, shares),
        "folders": ["/run/sshd", "/run/lock", "/run/user", *(slurm.folders() if lab.slurm else [])],
        "programs": _programs(lab, node, sshd),
        "env": {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **libraries,
        },
    }


def _programs(lab: Lab, node: LabNode, sshd: str) -> list[list[str]]:
    if lab.kind == "machines":
        return machines.programs(node)
    config, log = node.folder / "sshd_config", node.folder / "sshd.log"
    listener = [sshd, "-D", "-f", str(config), "-E", str(log)]
    return [listener, *(slurm.programs(lab, node) if lab.slurm else [])]


def _start_holder(lab: Lab, plan: Path) -> None:
    pid_file = lab.directory / "holder.pid"
    log = lab.directory / "holder.log"
    script = Path(__file__).with_name("nodeinit.py")
    argv = [sys.executable, "-I", "-S", str(script), str(plan), str(pid_file), str(_control(lab))]
    with log.open("wb") as output:
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ | {"ORCH_LAB": lab.marker},
                       start_new_session=True, timeout=_START_TIMEOUT_S, check=False)  # fmt: skip
    _wait_for_pid(pid_file, log, "the lab's holder")


def _wait_for_pid(pid_file: Path, log: Path, program: str) -> int:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not (pid := live_pid(pid_file)):
        output = ""
        if log.exists():
            output = log.read_text(encoding="utf-8", errors="replace")[-800:].strip()
        if "Traceback" in output or time.monotonic() > deadline:
            raise RunError(f"{program} did not start: {output or 'no output'}", kind="node_unfit")
        time.sleep(0.002)
    return pid


def _wire(lab: Lab, nodes: Sequence[LabNode], before: str) -> None:
    """Connect each node: one end of a veth pair on the bridge, the other as eth0 in the node, all
    in one call of ip.
    """
    lines = [before]
    for node in nodes:
        pid, port = (
            _wait_for_pid(node.folder / "pid", node.folder / "console.log", node.name),
            port_of(node),
        )
        # A machine has the address at its own end of the cable, inside.
        address = f"address {_mac(node.address)} " if lab.kind == "namespaces" else ""
        far_end = f"peer name eth0 mtu {lab.mtu} {address}netns {pid}"
        lines += [
            f"link add {port} mtu {lab.mtu} type veth {far_end}\n",
            f"link set {port} master {_bridge_of(node)} up\n",
        ]
    switch(lab, "".join(lines))


def _bridges(lab: Lab) -> str:
    """Return the lines of ip that make the bridges, the first with the controller's address."""
    lines = [
        f"link add br0 address {_mac(str(FIRST - 1))} mtu {lab.mtu} type bridge forward_delay 0\n"
    ]
    lines += [f"addr add {FIRST - 1}/{network_of(lab).prefixlen} dev br0\nlink set br0 up\n"]
    for bridge in dict.fromkeys(map(_bridge_of, lab.nodes)):
        if bridge != "br0":
            lines += [
                f"link add {bridge} mtu {lab.mtu} type bridge forward_delay 0\nlink set {bridge} up\n"
            ]
            lines += [
                f"link add {bridge}-br0 mtu {lab.mtu} type veth peer name br0-{bridge} mtu {lab.mtu}\n"
            ]
            lines += [
                f"link set {bridge}-br0 master {bridge} up\nlink set br0-{bridge} master br0 up\n"
            ]
    return "".join(lines)


def _bridge_of(node: LabNode) -> str:
    return f"br{(int(ipaddress.IPv4Address(node.address)) - int(FIRST)) // NODES_PER_BRIDGE}"


def _mac(address: str) -> str:
    """Return a hardware address that a node keeps over a reboot, so that its peers' ARP tables stay
    valid.
    """
    return "02:00:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)


def switch(lab: Lab, commands: str) -> None:
    """Execute lines of ``ip`` commands in the namespace of the bridge."""
    run(
        [*inside(lab), find("ip"), "-batch", "-"],
        text=commands,
        timeout_s=lab.limit_s(_IP_TIMEOUT_S),
    )


def inside(lab: Lab) -> list[str]:
    """Return the argv prefix that runs a program on the controller's side."""
    return [find("nsenter"), f"--net=/proc/{_holder(lab)}/ns/net", "--"]


def _holder(lab: Lab) -> int:
    if pid := lab.holder:
        return pid
    raise ConfigError(f"the lab in {lab.directory} has ended", hint="clear it with `orch lab down`")


def on_node(node: LabNode) -> list[str]:
    """Return the argv prefix that runs a program on a node, as root, in its home."""
    pid = node.pid
    if not pid:
        raise ConfigError(f"{node.name} is down")
    home = ["env", "-C", machine.HOME, f"HOME={machine.HOME}", "USER=root"]
    return [*entering(node, pid), *home]


def entering(node: LabNode, pid: int) -> list[str]:
    """Return the argv prefix that runs a program in the namespaces of a process on a node."""
    enter = [find("nsenter"), "-t", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
    return [*enter, *(["--time"] if clock_of(node).exists() else []), "--"]
