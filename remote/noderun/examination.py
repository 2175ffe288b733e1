"""The examination of a run by a child of its supervisor, which goes on answering its controller in
the meantime.
"""

import contextlib
import json
import os
import signal
import time

from noderun.examine import examine
from noderun.files import read_slice
from noderun.prctl import die_with_parent, name_process
from noderun.processes import descendants
from noderun.records import write_json
from noderun.stacks import ask_collectives

REPORT = "hang.json"
MOST_REPORT_BYTES = 8 << 20
EXAMINE_S = 10.0
SHUT_DOWN_S = 12.0
NOBODY = -1
FAILED = ("rank_failed", "a node of the run has failed")
"""How the reasons of a stop begin that may be the consequence of a collective that ranks did not
call alike.
"""


class Examination:
    """The looks at the ranks of one run; at most one at a time. The last report is kept among the
    logs of a run that is ended for its silence."""

    def __init__(self, directory):
        self.path = os.path.join(directory, REPORT)
        self.directory = directory
        self.pid = 0
        self.done = None
        self.report = None
        self.overdue = ""
        self.overdue_since = 0.0

    def begin(self, owned):
        """Begin to look, unless a look is under way."""
        if self.pid:
            return
        self.report = None
        self.done, writing = os.pipe()
        os.set_blocking(self.done, False)
        supervisor = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:  # no process more: a run is not ended because nobody can look at it
            self.pid = NOBODY
        if self.pid:
            os.close(writing)
            return
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(EXAMINE_S))
            die_with_parent()
            name_process(b"orch-examine")
            if os.getppid() == supervisor:
                # All but the pipe: the supervisor's sockets stand for its life.
                os.dup2(writing, 3)
                os.closerange(4, 1024)
                write_json(self.path, examine(self.directory, owned))
        finally:
            os._exit(0)

    def is_over(self):
        """Return True once when a look is over; ``report`` is then what was seen, None if nothing
        was written.
        """
        if not self.pid:
            return False
        try:
            if os.read(self.done, 1):
                return False
        except BlockingIOError:
            return False
        os.close(self.done)
        self.pid, self.done = 0, None
        with contextlib.suppress(OSError, ValueError):
            self.report = json.loads(
                read_slice(self.path, 0, MOST_REPORT_BYTES).decode("utf-8", "replace")
            )
        return True

    def helpers(self):
        """Return the process ids of the child and of what it has started: these are no processes of
        the run.
        """
        return [self.pid] + list(descendants(self.pid)) if self.pid > 0 else []

    def give_up(self, keep):
        """End a look that is under way, and ``keep`` the last report among the logs, or remove it."""
        if self.pid:
            with contextlib.suppress(OSError):
                if self.pid > 0:
                    os.kill(self.pid, signal.SIGKILL)
            os.close(self.done)
            self.pid, self.done = 0, None
        with contextlib.suppress(OSError):
            if keep:
                os.rename(self.path, os.path.join(self.directory, "logs", REPORT))
            else:
                os.unlink(self.path)

    def last_collectives(self, records):
        """Return a report of the last collectives of all ranks, before a stop ends them.

        The rank that failed first may not be the one whose collective differed from the others'.
        """
        living = [record["rank"] for record in records if "ended_mono_s" not in record]
        ended = [record["rank"] for record in records if "ended_mono_s" in record]
        calls = ask_collectives(self.directory, living, ended)
        return {"ranks": [dict(words, rank=rank) for rank, words in sorted(calls.items())]}

    # -- the end of a run that is overdue

    def mark_overdue(self, reason):
        """Note why the run is to be ended after a look; False if that is known already."""
        if self.overdue:
            return False
        self.overdue, self.overdue_since = reason, time.monotonic()
        return True

    def may_stop(self, is_attended):
        """Return True if a run that is overdue may be stopped here: its ranks were looked at, and
        no controller that compares all nodes is going to stop it."""
        if not self.overdue or self.pid:
            return False
        return not is_attended or time.monotonic() - self.overdue_since > SHUT_DOWN_S
