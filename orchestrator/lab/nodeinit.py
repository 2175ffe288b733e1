"""The inside of a namespace lab: the holder of all its namespaces, and the first process of every
node.

Run as ``python -I -S nodeinit.py PLAN HOLDER_PID_FILE CONTROL_FIFO``. Uses only the standard
library and imports nothing from this package, because node processes continue when the package's
files are hidden from them.

The holder is PID 1 of a process namespace that contains the namespaces of all nodes, and owns the
controller's network namespace: when it dies, for whatever reason, the kernel ends every process of
every node and removes all interfaces and mounts. Nothing is mounted or named in the machine's own
namespaces. The holder forks the nodes, which is far cheaper than starting an interpreter for each,
and restarts a node when its name is written to the control FIFO.
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

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
CLONE_NEWTIME = 0x80
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSARP = (
    0x8913,
    0x8914,
    0x8916,
    0x891C,
    0x8955,
)
ATF_COM, ATF_PERM, ARPHRD_ETHER = 2, 4, 1
IFF_UP, PR_SET_NAME = 1, 15

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, operation: str) -> None:
    """Raise the OSError that a C function reported."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), operation)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Call mount(2)."""
    data = options.encode() if options else None
    code = libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind and kind.encode(),
        ctypes.c_ulong(flags),
        data,
    )
    check(code, f"mount {source} on {target}")


def write_pid(path: str) -> None:
    """Record this process's id in the machine's own process namespace, with its start time."""
    pid = Path("/proc/self").readlink()
    ticks = (
        Path("/proc/self/stat")
        .read_text(encoding="utf-8", errors="replace")
        .rpartition(")")[2]
        .split()[19]
    )
    temporary = Path(path + ".part")
    temporary.write_text(f"{pid} {ticks}\n", encoding="ascii")
    temporary.rename(path)


def interface_up(name: str) -> None:
    """Bring a network interface up. Raises OSError if it does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
        flags = struct.unpack_from("H", answer, 16)[0]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", name.encode(), flags | IFF_UP))


def set_address(name: str, address: str, netmask: str) -> None:
    """Set the IPv4 address of a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, netmask)):
            fcntl.ioctl(
                sock,
                request,
                struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, socket.inet_aton(value)),
            )


def know_neighbours(name: str, first: str, count: int) -> None:
    """Add permanent ARP entries for ``count`` nodes from ``first`` on: 02:00 and the IPv4 address,
    as the lab assigns them.
    """
    start = int.from_bytes(socket.inet_aton(first), "big")
    flags, device = ATF_COM | ATF_PERM, name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(start, start + count):
            address = number.to_bytes(4, "big")
            hardware = b"\x02\x00" + address
            entry = struct.pack(
                "H2x4s8xH6s8xi16x16s",
                socket.AF_INET,
                address,
                ARPHRD_ETHER,
                hardware,
                flags,
                device,
            )
            fcntl.ioctl(sock, SIOCSARP, entry)


def wait_for_interface(name: str, timeout_s: float) -> None:
    """Wait until the controller's side has moved the interface into this network namespace."""
    pause_s, deadline = 0.002, time.monotonic() + timeout_s
    while name not in (entry[1] for entry in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no interface {name} appeared within {timeout_s:g} s")
        # Increasing pauses, because frequent polls by hundreds of nodes delay the process that
        # connects them.
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.1)


def do_mounts(steps: list[dict[str, Any]]) -> None:
    """Execute a mount plan. Sources are opened first, because a later step may hide their paths."""
    opened = {
        step["source"]: os.open(step["source"], os.O_PATH)
        for step in steps
        if step["type"] == "bind"
    }
    for step in steps:
        target, kind = step["target"], step["type"]
        if kind == "bind":
            if step["make"]:
                Path(target).mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{opened[step['source']]}", target, None, MS_BIND | MS_REC)
        else:
            mount(
                kind,
                target,
                kind,
                MS_NOSUID | (0 if kind == "devpts" else MS_NODEV),
                step["options"],
            )
    for fd in opened.values():
        os.close(fd)


def start(argv: list[str], env: dict[str, str]) -> None:
    """Start a child process with default signal handling."""
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    os.execve(argv[0], argv, env)


def boot_anew() -> None:
    """Give this boot of the node its own boot id, in place of the machine's."""
    boot_id = Path("/run/boot_id")
    boot_id.write_text(
        Path("/proc/sys/kernel/random/uuid").read_text(encoding="ascii"), encoding="ascii"
    )
    boot_id.chmod(0o444)
    mount(str(boot_id), "/proc/sys/kernel/random/boot_id", None, MS_BIND)


def set_clock(path: Path) -> None:
    """Give this process's children their own monotonic clock if the file with its offset from the
    machine's exists.
    """
    if path.exists():
        check(libc.unshare(CLONE_NEWTIME), "unshare the clock")
        Path("/proc/self/timens_offsets").write_text(
            path.read_text(encoding="ascii"), encoding="ascii"
        )


def node_main(node: dict[str, Any]) -> NoReturn:
    """Run as PID 1 of a node: mount its files, start sshd and other daemons, then only reap
    children until SIGTERM.
    """
    # Ignoring SIGCHLD makes the kernel reap every child, including adopted orphans.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    libc.prctl(PR_SET_NAME, b"lab-" + node["name"].encode()[:11])
    write_pid(node["pid_file"])
    socket.sethostname(node["name"])
    check(
        libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "make / private"
    )
    do_mounts(node["mounts"])
    for folder in node["folders"]:
        Path(folder).mkdir(parents=True, exist_ok=True)
    boot_anew()
    os.chdir("/")
    interface_up("lo")
    wait_for_interface("eth0", 30.0 + 0.2 * (node["neighbours"] or [None, 0])[1])
    if node["address"]:
        set_address("eth0", node["address"], node["netmask"])
    interface_up("eth0")
    if node["neighbours"]:
        know_neighbours("eth0", *node["neighbours"])
    for argv in node["programs"]:
        start(argv, node["env"])
    while True:
        signal.pause()


def spawn_node(node: dict[str, Any]) -> None:
    """Fork a node into its own namespaces; it is a grandchild, because a process cannot move itself
    into a pid namespace.
    """
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
        check(
            libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET),
            "unshare",
        )
        if os.fork():
            os._exit(0)
        node_main(node)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def holder_main(nodes: dict[str, dict[str, Any]], pid_file: str, control: str) -> NoReturn:
    """Start all nodes, then restart each node that is named in the control FIFO."""
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
