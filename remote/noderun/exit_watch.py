"""The ends of processes, as the kernel tells them: no process has to be looked at again and again
to see that it has ended.
"""

import os
import time

from noderun.processes import read_start

MOST_FOLLOWED = 512
"""Handles at most: ``select`` takes none above 1023."""
PIDFD_OPEN = 434
"""The number of pidfd_open(2) on all processors of today, for Python before 3.9, which has no name
for it.
"""


class ExitWatch:
    """Handles of processes, by process id. A handle becomes readable when its process ends, and
    nothing else does that.

    ``since``: when a process was last followed for the first time.
    """

    def __init__(self):
        self.handles = {}
        self.ticks = {}
        self.ended = set()
        self.since = 0.0

    def follow(self, processes):
        """Follow only these processes: {pid: start time in clock ticks, or None for a child of this
        process}.

        Return whether the end of each will be reported. It is not before Linux 5.3, nor for a
        process that has already ended or been replaced.
        """
        for pid in [pid for pid in self.handles if pid not in processes]:
            os.close(self.handles.pop(pid))
        for pid, ticks in processes.items():
            if (
                pid in self.handles
                or (pid, ticks) in self.ended
                or len(self.handles) >= MOST_FOLLOWED
            ):
                continue
            handle = handle_of(pid)
            if handle is None:
                continue
            if ticks not in (None, read_start(pid)):
                os.close(handle)
                continue
            self.handles[pid], self.ticks[pid] = handle, ticks
            self.since = time.monotonic()
        return all(pid in self.handles for pid in processes)

    def take(self, ready):
        """Close the handles among ``ready`` ones: their processes have ended.

        A process that its parent has not collected yet is not followed again, because its end would
        then be reported at every look.
        """
        for pid in [pid for pid, handle in self.handles.items() if handle in ready]:
            os.close(self.handles.pop(pid))
            self.ended.add((pid, self.ticks[pid]))


def handle_of(pid):
    """Return a handle of a process that no child inherits over an exec; None where the kernel gives
    none.
    """
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        import ctypes

        handle = ctypes.CDLL(None).syscall(PIDFD_OPEN, pid, 0)
        return handle if handle >= 0 else None
    except (OSError, AttributeError):
        return None
