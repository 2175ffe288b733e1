"""CPU binding of ranks: to the NUMA node of the rank's GPU, or to the rank's own share of its
cores.

Memory is not bound: Linux allocates on the node of the CPU that first writes to a page. Files of
the kernel: Documentation/ABI/stable/sysfs-devices-node, Documentation/admin-guide/cputopology.rst,
testing/sysfs-bus-pci (numa_node).
"""

import json
import os

from noderun.sysfs import first_line, names_in
from noderun.vendors import VENDORS

BINDING_FILE = "cpu_binding.json"


def bind_rank(local_rank, root="/"):
    """Bind this process, and what it starts, as the file of the run says; return what was set, read
    back from the kernel, or None without such a file. Raises OSError or ValueError.

    The file has ``binding`` (numa or cores), ``ranks``, their number on this node, and ``devices``,
    one for each rank, or none.
    """
    try:
        with open(BINDING_FILE) as file:
            order = json.load(file)
    except FileNotFoundError:
        return None
    if not 0 <= local_rank < order["ranks"]:
        raise ValueError("expected a local rank below %d, got %d" % (order["ranks"], local_rank))
    shares = shares_of(
        order["binding"], order["ranks"], order["devices"], os.sched_getaffinity(0), root
    )
    os.sched_setaffinity(0, shares[local_rank]["cpus"])
    return dict(
        shares[local_rank], binding=order["binding"], cpus=listed_cpus(os.sched_getaffinity(0))
    )


def shares_of(binding, ranks, devices, allowed, root="/"):
    """Return for each local rank its ``cpus`` (a set), the ``numa_node`` that they are of, and the
    PCI address of its ``gpu``.

    A rank whose GPU is not known, or on no NUMA node with allowed CPUs, gets a node by its number:
    the first ranks the first node. With ``cores``, ranks of one node divide its cores evenly,
    threads of a core together; ranks share a core only where there are more ranks than cores.
    """
    nodes = numa_cpus(allowed, root)
    numbers = sorted(nodes)
    gpus = gpus_of_node(root)
    shares = []
    for rank in range(ranks):
        address = gpu_address(devices[rank], gpus) if rank < len(devices) else None
        home = numa_node_of(address, root)
        if home not in nodes:
            home = numbers[rank * len(numbers) // ranks]
        shares.append({"cpus": nodes[home], "numa_node": home, "gpu": address})
    if binding == "cores":
        for home in numbers:
            there = [share for share in shares if share["numa_node"] == home]
            cores = cores_of(nodes[home], root)
            for place, share in enumerate(there):
                first, last = (
                    place * len(cores) // len(there),
                    (place + 1) * len(cores) // len(there),
                )
                own = cores[first:last] if len(cores) >= len(there) else [cores[place % len(cores)]]
                share["cpus"] = set().union(*own)
    return shares


def numa_cpus(allowed, root):
    """Return {NUMA node: allowed CPUs}, without nodes that have none; one node 0 where the kernel
    tells of no nodes.
    """
    base = os.path.join(root, "sys/devices/system/node")
    nodes = {}
    for name in names_in(base):
        if name.startswith("node") and name[4:].isdigit():
            cpus = cpus_in(first_line(base, name, "cpulist")) & allowed
            if cpus:
                nodes[int(name[4:])] = cpus
    return nodes or {0: set(allowed)}


def cores_of(cpus, root):
    """Return the cores that these CPUs are threads of, as sets of CPUs, in order of their first
    CPU.
    """
    base = os.path.join(root, "sys/devices/system/cpu")
    cores = {}
    for cpu in sorted(cpus):
        siblings = cpus_in(
            first_line(base, "cpu%d" % cpu, "topology", "thread_siblings_list")
        ) & cpus or {cpu}
        cores[min(siblings)] = siblings
    return [cores[first] for first in sorted(cores)]


def gpus_of_node(root):
    """Return [PCI address, UUID] of every GPU, of the first vendor that has any."""
    return next(filter(None, (vendor.numbered_gpus(root) for vendor in VENDORS)), [])


def gpu_address(device, gpus):
    """Return the PCI address of a device, given by number or by the beginning of its UUID; None if
    it is not known.
    """
    if device.isdigit():
        return gpus[int(device)][0] if int(device) < len(gpus) else None
    return next((address for address, uuid in gpus if uuid.startswith(device)), None)


def numa_node_of(address, root):
    """Return the NUMA node of a PCI device; None if it is not known. The kernel says -1 where the
    firmware does not.
    """
    text = first_line(root, "sys/bus/pci/devices", address, "numa_node") if address else ""
    return int(text) if text.isdigit() else None


def cpus_in(text):
    """Return the CPUs of a list such as ``0-3,8``."""
    cpus = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def listed_cpus(cpus):
    """Return CPUs as the kernel writes them in Cpus_allowed_list, ``0-3,8``."""
    parts = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(
        "%d" % first if first == last else "%d-%d" % (first, last) for first, last in parts
    )
