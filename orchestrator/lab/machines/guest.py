"""The script that a lab's machine runs at each boot, in its own kernel, before its first program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from orchestrator.lab.machines.qemu import INTERFACES
from orchestrator.lab.programs import find
from orchestrator.lab.state import Lab, LabNode

DISK = "/disk"
_9P = "trans=virtio,version=9p2000.L,msize=262144,cache=mmap"
_LEASE_S = 10
"""A server that has restarted waits so long for its clients before it serves."""


def boot_script(
    lab: Lab, node: LabNode, folders: Mapping[str, str], prefix: int, *, netem: str, shared: str
) -> str:
    """Return the script of a node's machine. ``shared`` is where it has the folder that the first
    machine serves; empty without.
    """
    busybox = find("busybox")
    lines = [
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *_file_systems(lab, folders),
        f"hostname {node.name}",
        "prlimit --pid 1 --memlock=unlimited --nproc=unlimited",
        *_network(lab, node, prefix, netem),
        *(_nfs(lab, node, prefix, shared) if shared else []),
        # The commands that start the machine anew are to speak to its own init.
        *(f"ln -sf {busybox} /usr/sbin/{name}" for name in ("reboot", "poweroff")),
        f"echo {shlex.quote(_inittab(node))} >/etc/inittab",
        f"exec {busybox} init",
    ]
    return "\n".join(lines) + "\n"


def _file_systems(lab: Lab, folders: Mapping[str, str]) -> list[str]:
    modules = shlex.quote(str(lab.kernel_folder / "lib/modules"))
    return [
        f"mkdir -p /dev/pts /dev/shm /run/sshd /run/lock /run/user /lib/modules {DISK}",
        "mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts",
        "mount -t tmpfs -o mode=1777,size=1g tmpfs /dev/shm",
        "mount -t cgroup2 cgroup /sys/fs/cgroup",
        "ln -s /proc/self/fd /dev/fd",
        *(
            f"ln -s /proc/self/fd/{number} /dev/std{name}"
            for number, name in enumerate(("in", "out", "err"))
        ),
        *(f"mount -t 9p -o {_9P} {tag} {shlex.quote(path)}" for tag, path in folders.items()),
        f"mount --bind {modules} /lib/modules",
        "modprobe -a virtio_blk crc32c_generic ext4",
        f"mount -t ext4 -o errors=remount-ro /dev/vda {DISK}",
    ]


def _network(lab: Lab, node: LabNode, prefix: int, netem: str) -> list[str]:
    addresses = (node.address, roce_address(node))
    lines = [
        "modprobe -a virtio_net crc32_generic rdma_rxe ib_uverbs rdma_ucm ib_umad",
        "ip link set lo up",
        # Each interface answers for its own address alone, though both are on one cable.
        "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore",
        "echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce",
    ]
    for name, address in zip(INTERFACES, addresses, strict=True):
        lines += [
            f"ip link set {name} mtu {lab.mtu} up",
            f"ip addr add {address}/{prefix} dev {name}",
        ]
        lines += [f"tc qdisc add dev {name} root netem {netem}"] if netem else []
    return [*lines, f"rdma link add rxe0 type rxe netdev {INTERFACES[1]}"]


def roce_address(node: LabNode) -> str:
    """Return the address of a machine's RoCE device: 10.12.0.2 for 10.11.0.2."""
    return node.address.replace("10.11.", "10.12.", 1)


def _nfs(lab: Lab, node: LabNode, prefix: int, shared: str) -> list[str]:
    """Return what the first machine does to serve a folder of its disk, and the others to mount it:
    by NFS 4, which needs no portmapper. What the server knows of its clients is on the disk too.
    """
    server = lab.nodes[0]
    if node != server:
        return [f"mkdir -p {shared}", f"mount -t nfs4 -o retry=10 {server.address}:/ {shared}"]
    clients = f"{server.address}/{prefix}:{DISK}/home"
    return [
        "modprobe nfsd",
        f"mkdir -p {shared} {DISK}/home",
        f"chmod 1777 {DISK}/home",
        f"[ -d {DISK}/nfs ] || cp -a /var/lib/nfs {DISK}/nfs",
        f"mount --bind {DISK}/nfs /var/lib/nfs",
        f"mount --bind {DISK}/home {shared}",
        "mount -t nfsd nfsd /proc/fs/nfsd",
        f"exportfs -i -o rw,no_root_squash,no_subtree_check,fsid=0 {clients}",
        "rpc.mountd -N 2 -N 3",
        f"rpc.nfsd -N 3 --lease-time {_LEASE_S} --grace-time {_LEASE_S} 4",
    ]


def _inittab(node: LabNode) -> str:
    config = shlex.quote(str(node.folder / "sshd_config"))
    return f"::respawn:{find('sshd')} -D -e -f {config}"
