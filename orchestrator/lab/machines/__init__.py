"""Nodes of a lab with a kernel of their own: machines of qemu, each inside a namespace node.

The namespaces, cables and files are those of a lab of namespaces; in place of sshd, a node's only
program is qemu, which shows the machine the node's own view of the files. So nodes reboot, panic,
lose their link, and have clocks, disks, RoCE devices and NFS of their own, which processes that
share a kernel can only pretend. They show function, not speed: where KVM does not work, every
instruction is emulated.
"""

from orchestrator.lab.machines.setup import SHARED, Machines, prepare, programs, require

__all__ = ["SHARED", "Machines", "prepare", "programs", "require"]
