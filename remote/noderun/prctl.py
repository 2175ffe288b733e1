"""prctl(2) wrappers."""

import signal

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def process_control(option, value):
    """Call prctl(2)."""
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def name_process(name):
    """Set the name of this process in lists of processes, at most 15 bytes."""
    process_control(PR_SET_NAME, name)


def die_with_parent():
    """Be killed when the parent dies, also inside a driver's call that would never return to look
    at a pipe.
    """
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans():
    """Become the parent of descendants whose own parent has ended."""
    process_control(PR_SET_CHILD_SUBREAPER, 1)
