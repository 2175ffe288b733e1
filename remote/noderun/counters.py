"""Counters of a node that cost little to read: processors, energy of their packages, network
interfaces, InfiniBand ports.
"""

import glob
import os

from noderun.groups import own_groups
from noderun.sysfs import VIRTUAL, first_line

MOST_LINKS = 16
PORT_ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "port_xmit_discards",
)  # fmt: skip
"""Of /sys/class/infiniband/*/ports/*/counters: what only grows if something is wrong."""
LOST_PACKETS = (
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans",
    "out_of_seq_request", "rcvd_seq_err", "completer_retry_err",
)  # fmt: skip
"""Of hw_counters beside them: packets that did not come, came out of order, or were sent again. The
first four are of mlx5, the others of soft RoCE.
"""


class Usage:
    """Processor use of this node.

    ``busy_s``: seconds for which its processors were busy since the boot, all together, without
    interrupts and waits for disks. ``stolen_s``: the part that a hypervisor gave to other machines.
    """

    columns = ["busy_s", "stolen_s"]

    def __init__(self):
        self.file = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self.ticks = os.sysconf("SC_CLK_TCK")

    def read(self, now):
        """Return the seconds."""
        words = os.pread(self.file, 256, 0).split(b"\n", 1)[0].split()
        user, nice, system = map(int, words[1:4])
        stolen = int(words[8]) if len(words) > 8 else 0
        return [(user + nice + system + stolen) / self.ticks, stolen / self.ticks]


class Quota:
    """``quota.periods``: periods of the processor time that the closest control group with a limit
    around this process may use (``cpu.max``), ``quota.held``: those in which it had used it up and
    was held until the next one. None without a limit."""

    columns = ["quota.periods", "quota.held"]

    def read(self, now):
        """Return the counts."""
        for path, _ in own_groups("cpu"):
            while len(path) > 1:
                try:
                    with open(os.path.join(path, "cpu.stat")) as file:
                        counts = dict(line.split() for line in file)
                except (OSError, ValueError):
                    break
                if int(counts.get("nr_periods", 0)):
                    return [int(counts["nr_periods"]), int(counts["nr_throttled"])]
                path = os.path.dirname(path)
        return [None, None]


class Packages:
    """``package_j``: joules of the processors' packages, and of memory where it is counted apart,
    by RAPL. Since 2020 kernels let root alone read it."""

    def __init__(self, describe, base="/sys/class/powercap"):
        self.zones = []
        for path in sorted(glob.glob(os.path.join(base, "intel-rapl:*"))):
            name = first_line(path, "name")
            if name.startswith("package") or name == "dram":
                energy, most = (
                    first_line(path, "energy_uj"),
                    first_line(path, "max_energy_range_uj"),
                )
                if energy.isdigit():
                    # [path, last count, where it wraps, microjoules before the last wrap]
                    self.zones.append([path, int(energy), int(most) if most.isdigit() else 0, 0])
        self.columns = ["package_j"] if self.zones else []
        if self.zones:
            describe({"packages": [first_line(zone[0], "name") for zone in self.zones]})

    def read(self, now):
        """Return the joules."""
        total = 0
        for zone in self.zones:
            count = int(first_line(zone[0], "energy_uj"))
            if count < zone[1]:
                zone[3] += zone[2]
            zone[1] = count
            total += count + zone[3]
        return [round(total * 1e-6, 3)] if self.zones else []


class Interfaces:
    """Bytes and errors of each network interface that is not virtual: ``net0.received``,
    ``net0.sent``, ``net0.errors``.
    """

    def __init__(self, describe):
        self.names = sorted(name for name in interface_counts() if not name.startswith(VIRTUAL))[
            :MOST_LINKS
        ]
        words = ("received", "sent", "errors")
        self.columns = [
            "net%d.%s" % (place, word) for place in range(len(self.names)) for word in words
        ]
        if self.names:
            describe({"interfaces": self.names})

    def read(self, now):
        """Return the counts, in order of the columns."""
        counts = interface_counts()
        return [value for name in self.names for value in counts.get(name, (None, None, None))]


def interface_counts():
    """Return {interface: (bytes received, bytes sent, errors in either direction)}."""
    counts = {}
    with open("/proc/self/net/dev") as file:
        for line in file:
            name, colon, words = line.partition(":")
            if colon:
                numbers = [int(word) for word in words.split()]
                counts[name.strip()] = (
                    numbers[0],
                    numbers[8],
                    numbers[2] + numbers[5] + numbers[10] + numbers[14],
                )
    return counts


def port_paths(base="/sys/class/infiniband"):
    """Return the folders of the ports of InfiniBand and RoCE devices."""
    return sorted(glob.glob(os.path.join(base, "*", "ports", "*")))[:MOST_LINKS]


def counter(*path):
    """Return a counter of sysfs; None if there is none."""
    words = first_line(*path)
    return int(words) if words.isdigit() else None


class Ports:
    """Bytes of each port, which its interface does not count: ``port0.received``, ``port0.sent``."""

    def __init__(self, describe):
        self.paths = port_paths()
        self.columns = [
            "port%d.%s" % (place, word)
            for place in range(len(self.paths))
            for word in ("received", "sent")
        ]
        if self.paths:
            describe(
                {
                    "ports": [
                        "%s:%s" % (path.split(os.sep)[-3], os.path.basename(path))
                        for path in self.paths
                    ]
                }
            )

    def read(self, now):
        """Return the counts. The standard counts words of four bytes."""
        names = ("port_rcv_data", "port_xmit_data")
        counts = [counter(path, "counters", name) for path in self.paths for name in names]
        return [None if count is None else 4 * count for count in counts]


class PortErrors:
    """``port0.errors``: the sum of what only grows if something is wrong with a link;
    ``port0.lost``: that of packets that were lost or sent again.
    """

    def __init__(self):
        self.paths = port_paths()
        self.columns = [
            "port%d.%s" % (place, word)
            for place in range(len(self.paths))
            for word in ("errors", "lost")
        ]

    def read(self, now):
        """Return the counts."""
        kinds = (("counters", PORT_ERRORS), ("hw_counters", LOST_PACKETS))
        return [
            sum(counter(path, kind, name) or 0 for name in names)
            for path in self.paths
            for kind, names in kinds
        ]
