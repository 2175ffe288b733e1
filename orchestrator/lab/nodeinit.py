"""The inside of a namespace lab: the process that holds it together, and the first process of every node.

Run as ``python -I -S nodeinit.py PLAN HOLDER_PID_FILE CONTROL_FIFO``; standard library only, nothing of ours is imported,
because node processes go on when the files of this package are hidden from them.

The holder is PID 1 of a process namespace that contains those of all nodes, and owns the controller's network namespace:
when it dies, for whatever reason, the kernel ends every process of every node and takes all interfaces and mounts away.
Nothing is mounted or named in the machine's own namespaces. It starts the nodes by forking, which is far cheaper than an
interpreter each, and starts one again when its name is written into the control FIFO.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
CLONE_NEWTIME = 0x80
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSARP = 0x8913, 0x8914, 0x8916, 0x891C, 0x8955
ATF_COM, ATF_PERM, ARPHRD_ETHER = 2, 4, 1
IFF_UP, PR_SET_NAME = 1, 15

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise the OSError that a C function reported."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Call mount(2)."""
    data = options.encode() if options else None
    code = libc.mount(os.fsencode(source), os.fsencode(target), kind and kind.encode(), ctypes.c_ulong(flags), data)
    check(code, f"mount {source} on {target}")


def write_pid(path: str) -> None:
    """Record this process by the number it has in the machine's own process namespace, with its start time."""
    pid = Path("/proc/self").readlink()
    ticks = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    temporary = Path(path + ".part")
    temporary.write_text(f"{pid} {ticks}\n", encoding="ascii")
    temporary.rename(path)


def interface_up(name: str) -> None:
    """Raise a network interface; OSError when there is none of this name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
        flags = struct.unpack_from("H", answer, 16)[0]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", name.encode(), flags | IFF_UP))


def set_address(name: str, address: str, netmask: str) -> None:
    """Give a network interface its IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, netmask)):
            fcntl.ioctl(sock, request, struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, socket.inet_aton(value)))


def know_neighbours(name: str, first: str, count: int) -> None:
    """Write down the hardware addresses of so many nodes from ``first`` on: 02:00 and the address, as the lab gives them."""
    start = int.from_bytes(socket.inet_aton(first), "big")
    flags, device = ATF_COM | ATF_PERM, name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(start, start + count):
            address = number.to_bytes(4, "big")
            hardware = b"\x02\x00" + address
            entry = struct.pack("H2x4s8xH6s8xi16x16s", socket.AF_INET, address, ARPHRD_ETHER, hardware, flags, device)
            fcntl.ioctl(sock, SIOCSARP, entry)


def wait_for_interface(name: str, timeout_s: float) -> None:
    """Wait until somebody has moved the interface into this network namespace."""
    pause_s, deadline = 0.002, time.monotonic() + timeout_s
    while name not in (entry[1] for entry in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no interface {name} came within {timeout_s:g} s")
        # Longer and longer, since hundreds of nodes waiting impatiently delay the one who wires them.
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.1)


def do_mounts(steps: list[dict[str, Any]]) -> None:
    """Carry out a mount plan. Sources are opened first, since a later step may hide the way to them."""
    opened = {step["source"]: os.open(step["source"], os.O_PATH) for step in steps if step["type"] == "bind"}
    for step in steps:
        target, kind = step["target"], step["type"]
        if kind == "bind":
            if step["make"]:
                Path(target).mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{opened[step['source']]}", target, None, MS_BIND | MS_REC)
        else:
            mount(kind, target, kind, MS_NOSUID | (0 if kind == "devpts" else MS_NODEV), step["options"])
    for fd in opened.values():
        os.close(fd)


def start(argv: list[str], env: dict[str, str]) -> None:
    """Start a child with ordinary signal handling."""
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    os.execve(argv[0], argv, env)


def boot_anew() -> None:
    """Give this boot of the node an identity of its own, in the place of the machine's."""
    one = Path("/proc/sys/kernel/random/boot_id")
    own = Path("/run/boot_id")
    own.write_text(Path("/proc/sys/kernel/random/uuid").read_text(encoding="ascii"), encoding="ascii")
    own.chmod(0o444)
    mount(str(own), str(one), None, MS_BIND)


def set_clock(path: Path) -> None:
    """Let this process's children have a monotonic clock of their own where a file says how far from the machine's."""
    if path.exists():
        check(libc.unshare(CLONE_NEWTIME), "unshare the clock")
        Path("/proc/self/timens_offsets").write_text(path.read_text(encoding="ascii"), encoding="ascii")


def node_main(node: dict[str, Any]) -> NoReturn:
    """PID 1 of a node: make its view of the machine, start sshd, then only reap until asked to end."""
    # Ignoring SIGCHLD makes the kernel reap every child, orphans of others included.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    libc.prctl(PR_SET_NAME, b"lab-" + node["name"].encode()[:11])
    write_pid(node["pid_file"])
    socket.sethostname(node["name"])
    check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "make / private")
    do_mounts(node["mounts"])
    for folder in node["folders"]:
        Path(folder).mkdir(parents=True, exist_ok=True)
    boot_anew()
    os.chdir("/")
    interface_up("lo")
    wait_for_interface("eth0", 30.0)
    set_address("eth0", node["address"], node["netmask"])
    interface_up("eth0")
    if node["neighbours"]:
        know_neighbours("eth0", *node["neighbours"])
    start(node["argv"], node["env"])
    while True:
        signal.pause()


def spawn_node(node: dict[str, Any]) -> None:
    """Fork a node into namespaces of its own; a child of a child, because a process cannot move itself into a pid namespace."""
    if os.fork():
        return
    try:
        console = os.open(node["console"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(console, 1)
        os.dup2(console, 2)
        os.closerange(3, 64)
        set_clock(Path(node["clock"]))
        if node["group"]:
            Path(node["group"], "cgroup.procs").write_text("0", encoding="ascii")
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET), "unshare")
        if os.fork():
            os._exit(0)
        node_main(node)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def holder_main(nodes: dict[str, dict[str, Any]], pid_file: str, control: str) -> NoReturn:
    """Start all nodes, then each one again that is named in the control FIFO."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    libc.prctl(PR_SET_NAME, b"orch-lab")
    os.chdir("/")
    interface_up("lo")
    requests = os.open(control, os.O_RDWR)
    write_pid(pid_file)
    for node in nodes.values():
        spawn_node(node)
    while True:
        for name in os.read(requests, 4096).decode().split():
            spawn_node(nodes[name])


def main() -> None:
    """Leave the machine's own namespaces and become the holder."""
    plan, pid_file, control = sys.argv[1:]
    nodes = json.loads(Path(plan).read_text(encoding="utf-8"))
    check(libc.unshare(CLONE_NEWNET | CLONE_NEWPID), "unshare")
    if os.fork():
        os._exit(0)
    holder_main(nodes, pid_file, control)


if __name__ == "__main__":
    main()
