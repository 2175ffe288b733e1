"""Processors that other processes use, by the kernel's counters."""

import os
import time

from noderun.sysfs import first_line

LEAST_BUSY, BUSY_SHARE = 0.2, 0.02
"""Processors, and a share of all of them, that daemons of an idle node may use."""


def busy_limit(processors):
    """Return how many processors others may use while the processor of a node is timed."""
    return max(LEAST_BUSY, BUSY_SHARE * processors)


class OtherUse:
    """Use of the processors by others than this process and its children, from now on. A child
    counts as another until it has ended and is reaped.
    """

    def __init__(self):
        self.began, self.others_s = time.monotonic(), others_seconds()

    def processors(self):
        """Return how many processors they have used on average; 0 if the kernel does not tell."""
        took_s = max(1e-3, time.monotonic() - self.began)
        return max(0.0, others_seconds() - self.others_s) / took_s


def others_seconds():
    """Return the processor time that others have used since the boot; a hypervisor that took a
    processor away is one of them.
    """
    words = first_line("/proc/stat").split()[1:]
    ticks = [int(word) for word in words] + [0] * 8
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = ticks[:8]
    used_s = (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return used_s - (own.user + own.system + own.children_user + own.children_system)
