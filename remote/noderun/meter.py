"""Measurements of a run by the node's kernel: growth of its logs, use of processors, bytes sent,
and interfaces that lost their link.
"""

import os
import resource

from noderun.sysfs import VIRTUAL, first_line, names_in

MOST_MARKS = 96


class Meter:
    """Measures a run from its start to its end; costs a small file of the kernel at either end, and
    nothing in between.
    """

    def __init__(self):
        self.marks = []
        self.passed = 0
        self.stride = 1
        self.sent = 0
        self.lost = {}
        self.before = None

    def start(self):
        """Begin to measure."""
        self.sent, self.lost = sent_bytes(), link_losses()
        self.before = (
            processors(),
            resource.getrusage(resource.RUSAGE_CHILDREN),
            resource.getrusage(resource.RUSAGE_SELF),
        )

    def grew(self, sizes, now):
        """Note the sizes of logs that have just grown. Of a long run every second mark is kept,
        again and again.
        """
        self.passed += 1
        if self.passed % self.stride:
            return
        self.marks.append([round(now, 3), sizes])
        if len(self.marks) > MOST_MARKS:
            self.marks = self.marks[1::2]
            self.stride *= 2

    def record(self, inside_s=0.0):
        """Return the measurements.

        ``growth``: [seconds of the monotonic clock, {name: bytes}]. ``processors``: their count,
        their busy seconds, the busy seconds of this run, and the range of the machine's count of
        context switches; nodes that are one machine overlap in it. ``sent_bytes``: over all
        networks. ``links_lost``: {interface: how often its link was lost}, without zeros.
        ``inside_s``: processor seconds of a container, whose processes may be no descendants of
        this one.
        """
        if self.before is None:
            return {"growth": self.marks}
        (count, busy, switches), children, own = self.before
        _, busy_after, switches_after = processors()
        # With some engines they are, and are counted among the children too.
        used = max(inside_s, spent(resource.RUSAGE_CHILDREN, children)) + spent(
            resource.RUSAGE_SELF, own
        )
        load = {"count": count, "busy_s": round(busy_after - busy, 2), "own_s": round(used, 2)}
        load["switches"] = [switches, switches_after]
        lost = {
            name: count - self.lost[name]
            for name, count in link_losses().items()
            if count > self.lost.get(name, count)
        }
        return {
            "growth": self.marks,
            "processors": load,
            "sent_bytes": sent_bytes() - self.sent,
            "links_lost": lost,
        }


def spent(whose, before):
    """Return the processor seconds since ``before``, of this process or of its descendants that
    have ended.
    """
    after = resource.getrusage(whose)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def sent_bytes():
    """Return the bytes that this node has sent over its network cards, InfiniBand's verbs included,
    loopback left out.
    """
    import glob

    sent = 0
    with open("/proc/self/net/dev") as file:
        for line in file:
            name, colon, counts = line.partition(":")
            if colon and name.strip() != "lo":
                sent += int(counts.split()[8])
    for path in glob.glob("/sys/class/infiniband/*/ports/*/counters/port_xmit_data"):
        words = first_line(path)
        sent += 4 * int(words) if words.isdigit() else 0  # the standard counts words of four bytes
    return sent


def link_losses(base="/sys/class/net"):
    """Return {interface: how often it has lost its link}, without virtual ones. Before Linux 4.16
    only changes are counted, two for a loss and its end; before 3.15 nothing."""
    losses = {}
    for name in names_in(base):
        if name.startswith(VIRTUAL):
            continue
        down, changes = (
            first_line(base, name, "carrier_down_count"),
            first_line(base, name, "carrier_changes"),
        )
        if down.isdigit():
            losses[name] = int(down)
        elif changes.isdigit():
            losses[name] = int(changes) // 2
    return losses


def processors():
    """Return (number of processors, seconds for which they were busy since the boot, context
    switches since the boot).

    Time in interrupts is not counted: much of it is the network traffic of the run itself.
    """
    busy, switches, count = 0.0, 0, 0
    with open("/proc/stat") as file:
        for line in file:
            words = line.split()
            if words[0] == "cpu":
                user, nice, system = map(int, words[1:4])
                stolen = int(words[8]) if len(words) > 8 else 0
                busy = (user + nice + system + stolen) / os.sysconf("SC_CLK_TCK")
            elif words[0].startswith("cpu"):
                count += 1
            elif words[0] == "ctxt":
                switches = int(words[1])
    return count, busy, switches
