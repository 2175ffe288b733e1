"""The process that samples a node during a run, as its supervisor sees it: its begin, its end, its
output.

It is a child of the supervisor and none of the run's processes. It is forked before the start,
because a fork at the start would delay it, and sleeps until the run has begun. Its reads may hang
in a driver, so nothing waits for it longer than twice `LEAVE_S`: for its last sample, and for its
end.
"""

import contextlib
import os
import select
import signal
import time

from noderun.logs import TELEMETRY
from noderun.processes import read_start

QUIET_S = 0.5
"""After the start nothing is done for so long: all nodes start at one instant, and some of them may
be one machine.
"""
LEAVE_S = 0.5
MOST_TELEMETRY_BYTES = 4 << 20
SAMPLES = ".orch-samples"
"""What it writes, in the directory of the run, where a program may write too: the logs get it at
the end, because a long run's samples are thinned out."""


class Sampler:
    """The sampling process of one run. ``pid`` is 0 without one. It works on the source of
    ``noderun.telemetry``, which comes with the order to arm: every other request would have to
    compile it too."""

    def __init__(self):
        self.pid = 0
        self.ticks = None
        self.bell = None

    def prepare(self, order):
        """Fork it, if this run is to be sampled, and let it wait. A node that cannot fork another
        process is not sampled.
        """
        settings = order.get("telemetry")
        if not settings:
            return
        waiting, bell = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(waiting)
            os.close(bell)
            return
        if self.pid == 0:
            become_sampler(settings, order["run_id"], waiting)
        os.close(waiting)
        os.set_blocking(bell, False)
        self.ticks, self.bell = read_start(self.pid), bell

    def begin(self):
        """Let it sample: the run has started."""
        self.ring(b"go\n")

    def ring(self, word):
        """Write a word to it, if it still reads."""
        if self.bell is not None:
            with contextlib.suppress(OSError):
                os.write(self.bell, word)

    def leave(self):
        """Ask it for a last sample, end it, and move what it wrote to the logs. Return {name:
        bytes} of that, empty without any."""
        self.ring(b"end\n")
        self.end(LEAVE_S)
        target = os.path.join("logs", TELEMETRY)
        with contextlib.suppress(OSError):
            # A program may have a log of this name. That one stays.
            if os.path.getsize(SAMPLES) <= MOST_TELEMETRY_BYTES and not os.path.lexists(target):
                if self.is_gone():
                    os.rename(SAMPLES, target)
                else:
                    copy_lines(
                        SAMPLES, target
                    )  # a process that a driver holds may still have this file open
                return {TELEMETRY: os.path.getsize(target)}
        return {}

    def end(self, wait_s=0.0):
        """Wait so long for its end, then kill it."""
        deadline = time.monotonic() + wait_s
        while not self.is_gone() and time.monotonic() < deadline:
            select.select([], [], [], 0.002)
        if not self.is_gone():
            os.kill(self.pid, signal.SIGKILL)
            deadline = time.monotonic() + LEAVE_S
            while not self.is_gone() and time.monotonic() < deadline:
                select.select([], [], [], 0.002)
        if self.bell is not None:
            os.close(self.bell)
            self.bell = None

    def is_gone(self):
        """Return True if it has ended, and collect it; also without one."""
        if self.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        return not self.pid or read_start(self.pid) != self.ticks


def copy_lines(source, target):
    """Copy the complete lines of a small file."""
    with open(source, "rb") as file:
        data = file.read(MOST_TELEMETRY_BYTES)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data[: data.rfind(b"\n") + 1])


def become_sampler(settings, run_id, waiting):
    """In the forked child: wait for the start, then sample to the end of the run or of the
    supervisor. Never returns.
    """
    try:
        # Of the supervisor it keeps nothing: a socket that it held would keep the node's name
        # taken.
        os.closerange(3, waiting)
        os.closerange(waiting + 1, 4096)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("orch-sampler")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.read(waiting, 3) == b"go\n" and not select.select([waiting], [], [], QUIET_S)[0]:
            import base64
            import zlib

            names = {"__name__": "noderun.telemetry"}
            exec(
                compile(
                    zlib.decompress(base64.b64decode(settings["packed"])),
                    "noderun/telemetry",
                    "exec",
                ),
                names,
            )
            names["sample_run"](
                dict(settings, run_id=run_id, supervisor=os.getppid()), waiting, SAMPLES
            )
    except BaseException as error:
        with contextlib.suppress(Exception), open(SAMPLES, "a") as file:
            file.write('\n{"event": "failed", "why": "%s"}\n' % type(error).__name__)
    finally:
        os._exit(0)
