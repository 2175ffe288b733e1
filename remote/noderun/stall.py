"""Detect a stalled run from the steps that its ranks report, the lines of its logs, and their
silence.

A rank reports its step and phase in ``ranks/<rank>.progress`` (``remote/rank_progress.py`` has the
format). These teach the usual time of a step and the longest pause so far. If no rank reports, the
steps that the logs name do, or the growth of logs that name none. A longer silence than these
explain is a suspicion, which is reported and ends nothing; only the limits of the order end a run.
"""

import contextlib
import fnmatch
import os
import re
import struct
import time

from noderun.files import read_slice
from noderun.logs import SETUP_LOG

PROGRESS_RECORD = struct.Struct("<8sQqdd16sQ")
MARKED_RECORD = struct.Struct("<Q")
PROGRESS_MAGIC = b"orchprg1"
UNLIMITED = ("start", "compile", "checkpoint", "evaluate", "end")
"""Phases that may take any time."""
TELLS_PAUSES = 1 << 1 | 1 << 7
"""Bits of ``marked``: phases of a step, or the promise to mark whatever may take long."""
LEAST_SILENCE_S = 3.0
USUAL_STEPS = 10
FIRST_STEPS = 2
"""So many begin before anything is learned: in the first one programs compile, connect and choose
kernels.
"""
KNOWN_STEPS = 3
KEPT = 31
CONTROLLER_S = 3.0
MOST_LINE = 4096
MOST_NEW_BYTES = 1 << 17
"""Bytes of a log read at one look; of a log that grows faster, its end."""


def read_progress(path):
    """Return the progress that a rank has reported; None if it reported none.

    It has ``marks``, ``step``, ``t`` and ``begun`` in seconds, ``phase``, and, if the program says
    so, ``marked``, a bit for each phase so far.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        for _ in range(8):
            data = os.pread(handle, PROGRESS_RECORD.size + MARKED_RECORD.size, 0)
            if len(data) < PROGRESS_RECORD.size:
                return None
            magic, marks, step, t, begun, phase, again = PROGRESS_RECORD.unpack_from(data)
            rest = data[PROGRESS_RECORD.size :]
            if magic != PROGRESS_MAGIC:
                return None
            if marks == again:
                phase = phase.rstrip(b"\0").decode("ascii", "replace")
                report = {"marks": marks, "step": step, "t": t, "begun": begun, "phase": phase}
                return (
                    dict(report, marked=MARKED_RECORD.unpack(rest)[0])
                    if len(rest) == MARKED_RECORD.size
                    else report
                )
    except OSError:
        pass
    finally:
        os.close(handle)
    return None


class Rhythm:
    """The steps of one rank, or the growth of the logs, as seen about once a second: when it last
    went on, the seconds that a step usually takes, and the longest pause."""

    def __init__(self):
        self.count = None
        self.marks = None
        self.since = 0.0
        self.began = 0.0
        self.stepped = 0.0
        self.steps = 0
        self.step_times = []
        self.pause_s = 0.0
        self.phase = ""
        self.tells_pauses = False

    def saw(self, count, marks, phase, now):
        """Take what was seen: ``count`` steps, or bytes of logs (each growth then counts as one
        step), and ``marks``, which change whenever anything goes on."""
        if marks != self.marks:
            if self.marks is not None and self.steps >= FIRST_STEPS and self.phase not in UNLIMITED:
                self.pause_s = max(self.pause_s, now - self.since)
            self.marks, self.since, self.phase = marks, now, phase
        if self.count is None or not (
            count or self.steps
        ):  # no step has begun: this time is not of any
            self.count, self.began, self.stepped = count, now, now
        elif count != self.count:
            number = max(1, count - self.count)
            if self.steps >= FIRST_STEPS:
                self.step_times = self.step_times[1 - KEPT :] + [(now - self.stepped) / number]
            self.steps += number
            self.count, self.stepped = count, now

    @property
    def usual_s(self):
        """The median seconds of a step, the mean of all where only the first ones were seen; None
        before the first few.
        """
        if self.steps <= KNOWN_STEPS:
            return None
        if (
            not self.step_times
        ):  # more steps than `FIRST_STEPS` began between two looks, and none after that
            return (self.stepped - self.began) / self.steps
        return sorted(self.step_times)[len(self.step_times) // 2]

    def silent(self, now):
        """Return the seconds of a silence that its own past does not explain, else 0."""
        usual_s = self.usual_s
        if usual_s is None or self.phase in UNLIMITED:
            return 0.0
        silence = now - self.since
        return (
            silence
            if silence > max(LEAST_SILENCE_S, USUAL_STEPS * usual_s, 2 * self.pause_s)
            else 0.0
        )


class Stall:
    """Judges the progress of one run on this node, once a second."""

    def __init__(self):
        self.size = 0
        self.since = 0.0
        self.looked = 0.0
        self.rhythms = {}
        self.suspects = None
        self.read = {}
        self.first = self.step = None
        self.interval = 1
        self.is_finishing = False

    def start(self, now):
        """Begin to count the silence of the logs."""
        self.since = self.looked = now

    def overdue(self, order, sizes, now, grew):
        """Return why the run is to end: its logs stay empty or stop growing. Only logs that contain
        its steps count, on nodes that have any. ``grew(sizes, now)`` is called when they have
        grown."""
        patterns = order.get("progress") or ()
        watched = matching(sizes, patterns)
        size = sum(watched.values())
        if size != self.size:
            self.size, self.since = size, now
            grew(watched, now)
        elif patterns:
            limit_s = order.get("stall_s" if size else "first_line_s") or 0
            if limit_s and now - self.since > limit_s:
                words = "no new line for %g s" if size else "no line within %g s of the start"
                return "run_timeout: " + words % limit_s
        return ""

    def look(self, order, ranks, sizes, now):
        """Return an event and its fields if a suspicion begins or is over, else None. ``ranks``:
        records of ranks.
        """
        if not order.get("examines"):
            return None
        before, self.looked = self.looked, now
        living = [record["rank"] for record in ranks if "ended_mono_s" not in record]
        for rank in living:
            report = read_progress(os.path.join("ranks", "%d.progress" % rank))
            if report and report["marks"] > 1:  # one comes about when the module is imported
                self.see_report(rank, report, now, before)
        reporting = {rank: self.rhythms[rank] for rank in living if rank in self.rhythms}
        if not reporting:
            watched = matching(
                sizes, (order.get("progress") or []) + (order.get("rank_logs") or [])
            )
            if watched:
                self.see_logs(order, watched, now, before)
            if watched and (living or not ranks):
                # What a launch script does after its ranks has no steps.
                reporting = {None: self.rhythms[None]}
        if not self.is_finishing and self.has_last_step(order.get("planned_steps"), reporting):
            self.is_finishing = True
            return "finishing", {"of_run": not any(rank is not None for rank in reporting)}
        silent = {rank: rhythm.silent(now) for rank, rhythm in reporting.items()}
        if ranks and not living:
            ended_s = now - max(record["ended_mono_s"] for record in ranks)
            silent = {None: ended_s if ended_s > LEAST_SILENCE_S else 0.0}
        suspects = sorted(rank for rank, seconds in silent.items() if seconds and rank is not None)
        is_silent = any(silent.values())
        if is_silent == (self.suspects is not None):
            return None
        self.suspects = suspects if is_silent else None
        if not is_silent:
            return "resumed", {}
        longest = max(silent, key=silent.get)
        rhythm = reporting.get(longest) or Rhythm()
        fields = {
            "silent_s": silent[longest],
            "usual_s": rhythm.usual_s or 0.0,
            "pause_s": rhythm.pause_s,
            "ranks": suspects,
        }
        return "stalled", dict(fields, step=rhythm.count if longest is not None else None)

    def has_last_step(self, planned, reporting):
        """Return True once the log names the last step that it is going to name, or all ranks that
        report are in the last step or after it, without telling which. Steps may count from 0."""
        if not planned:
            return False
        rhythms = [rhythm for rank, rhythm in reporting.items() if rank is not None]
        if rhythms:
            return all(
                rhythm.count >= planned - 1 and not rhythm.tells_pauses for rhythm in rhythms
            )
        if self.step is None:
            return False
        begun = self.first - 1 if self.first > planned else 0  # such as the step of a checkpoint
        return self.step - begun + self.interval > planned - (self.first == 0)

    def see_report(self, rank, report, now, before):
        """Take what a rank reports. The steps of its first report began after the look before."""
        step, marks = report["step"], report["marks"]
        if rank not in self.rhythms:
            self.rhythms[rank] = Rhythm()
            # A checkpoint's steps have no marks.
            self.rhythms[rank].saw(max(0, step - marks), 1, "start", before)
        self.rhythms[rank].saw(step, marks, report["phase"], now)
        self.rhythms[rank].tells_pauses = bool(report.get("marked", 0) & TELLS_PAUSES)

    def see_logs(self, order, watched, now, before):
        """Take the last step that the logs name; their growth as long as they name none."""
        first, last = self.new_steps(order.get("steps") or (), watched)
        if self.step is None and first is not None:
            self.first = first
            self.rhythms[None] = Rhythm()  # the lines before the first step are no steps
            self.rhythms[None].saw(first, first, "", before)
        self.step = self.step if last is None else last
        rhythm = self.rhythms.setdefault(None, Rhythm())
        size = sum(watched.values())
        if self.step is None:
            rhythm.saw(size and self.grown(size), size, "", now)
        else:
            rhythm.saw(self.step, self.step, "", now)

    def new_steps(self, patterns, watched):
        """Return the first and the last step in what the logs have grown by; None if they name
        none.
        """
        first = last = None
        for name, size in watched.items() if patterns else ():
            begin = max(self.read.get(name, 0), size - MOST_NEW_BYTES)
            if size > begin:
                data = read_slice(os.path.join("logs", name), begin, size - begin)
                whole = data.rfind(b"\n") + 1  # the rest of a line comes later
                self.read[name] = begin + whole if whole else size
                lines = data[:whole].decode("utf-8", "replace").splitlines()
                found = find_steps(reversed(lines), patterns)
                latest = next(found, None)
                if latest is not None:
                    last = latest
                    before = next((step for step in found if step != last), self.step)
                    self.interval = max(1, last - before) if before is not None else 1
                    first = next(find_steps(lines, patterns)) if first is None else first
        return first, last

    def grown(self, size):
        """Return how often the logs were seen to have grown, to this size now."""
        rhythm = self.rhythms[None]
        return (rhythm.count or 0) + (size != rhythm.marks)


def find_steps(lines, patterns):
    """Yield the steps that lines name, by patterns with a group ``step``."""
    compiled = []
    for pattern in patterns:
        with contextlib.suppress(re.error):  # written for a newer Python than this one
            compiled.append(re.compile(pattern))
    for line in lines:
        for pattern in compiled:
            found = pattern.search(line[:MOST_LINE])
            digits = re.sub("[^0-9]", "", found.group("step") or "") if found else ""
            if digits:
                yield int(digits)
                break


def matching(sizes, patterns):
    """Return {name: bytes} of the logs whose names match, without what setup lines printed."""
    return {
        name: size
        for name, size in sizes.items()
        if name != SETUP_LOG and any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }


def is_attended(renewed):
    """Return True if a controller renewed the run a moment ago."""
    return time.monotonic() - renewed < CONTROLLER_S
