"""Waits for the file system of a run, whose server may not answer for a while.

A supervisor that waits in the kernel for a file can do nothing else, and its node would seem dead.
So it says where it may have to wait; while such a wait lasts, a second thread of it answers the
controller (`Supervisor.stand_in`).
"""

import _thread
import os
import time

UNANSWERED_S = 0.5
"""Between two looks at its connections the first thread may take so long."""


class FileWait:
    """The right to act for a run, which belongs to the supervisor's first thread except in ``with
    files:``, around what may wait for the file system of the run.

    Inside, that thread only reads and writes files. What another one calls in its place looks at
    ``is_on``, and touches no file. ``looked``: when the first thread last looked at its connections;
    ``answered``: when the last long wait was over.
    """

    def __init__(self):
        self.right = _thread.allocate_lock()
        self.right.acquire()
        self.is_on = False
        self.looked = time.monotonic()
        self.answered = 0.0

    def __enter__(self):
        self.is_on = True
        self.right.release()

    def __exit__(self, *_):
        self.right.acquire()
        if self.waited_s():
            self.answered = time.monotonic()
        self.is_on = False

    def waited_s(self):
        """Return for how many seconds a file system has kept the first thread from its connections;
        0.0 if it does not. Many waits in a row may be as long as one.
        """
        waited_s = time.monotonic() - self.looked if self.is_on else 0.0
        return waited_s if waited_s > UNANSWERED_S else 0.0


def name_mount():
    """Return the mount of this process's directory, such as ``/home (nfs4 from 10.0.0.2:/home)``,
    as the kernel knows it without asking a server.
    """
    here = os.path.join(os.readlink("/proc/self/cwd"), "")
    mounts = {}
    with open("/proc/self/mountinfo", errors="replace") as file:
        for line in file:
            mount, _, kind = line.partition(" - ")
            # A later mount on the same place hides the earlier one.
            mounts[mount.split()[4].replace("\\040", " ")] = kind.split()[:2]
    place = max((place for place in mounts if here.startswith(os.path.join(place, ""))), key=len)
    return "%s (%s from %s)" % (place, *mounts[place])
