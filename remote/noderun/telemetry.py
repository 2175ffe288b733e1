"""The sampling process of a run: it reads power, clocks, temperatures, errors, load and traffic of
its node about once a second, and writes them as lines of JSON.

The first line defines the columns; each further line is a row of numbers, null if not read this
time, or an event. Counters grow from an arbitrary start, so a missing row loses nothing. Times are
from the monotonic clock. Each source has its own period, which grows with the cost of reading it,
so that all of them together stay below 0.12 % of a core, and 0.25 % for each NVIDIA GPU, whatever
the machine has. In a long run every second row is dropped, again and again.
"""

import contextlib
import json
import os
import select
import time

from noderun.amdgpu import amd_sources
from noderun.counters import Interfaces, Packages, PortErrors, Ports, Quota, Usage
from noderun.foreign import Foreign
from noderun.nvml import nvidia_sources
from noderun.prctl import die_with_parent

TELEMETRY_SCHEMA = 1
MOST_ROWS = 1800
MOST_EVENTS = 64
SAMPLED = (nvidia_sources, amd_sources)
"""By vendor of GPUs: sources of the run's devices, each with its period and its share of a core;
none without such a device.
"""


class Source:
    """One of the things that are sampled: ``read`` returns a value for each of its columns. Read
    when ``due``, not more often than every ``period_s``, nor so often that it uses more than
    ``share`` of a core."""

    def __init__(self, readable, period_s, share):
        self.readable = readable
        self.columns = list(readable.columns)
        self.period_s = period_s
        self.share = share
        self.cost_s = None
        self.due = 0.0

    def read(self, now):
        """Return its values, or None for each if it is not due or cannot be read."""
        if now < self.due:
            return [None] * len(self.columns)
        before = time.process_time()
        try:
            values = self.readable.read(now)
        except (OSError, ValueError, IndexError, KeyError):
            values = [None] * len(self.columns)
        cost_s = time.process_time() - before
        # The first reading loads what later ones have, which no period could earn back within a
        # short run.
        self.cost_s = 0.0 if self.cost_s is None else max(cost_s, 0.7 * self.cost_s)
        # A little early: periods are multiples of the sampler's own.
        self.due = now + max(self.period_s, self.cost_s / self.share) - 0.05
        return values


class Samples:
    """The file of rows and events, and its bounds."""

    def __init__(self, path, header):
        self.path = path
        self.header = header
        self.rows = []
        self.events = []
        self.file = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW, 0o600
        )
        self.write(header)

    def write(self, value):
        """Append one line. Raises OSError, as on a full disk, and then a part of it may be there."""
        data = as_line(value)
        if os.write(self.file, data) != len(data):
            raise OSError("no room")

    def row(self, values):
        """Append a row. Return True if there are now too many, and every second one was dropped."""
        self.rows.append(values)
        if len(self.rows) <= MOST_ROWS:
            self.write(values)
            return False
        self.rows = self.rows[::2]
        temporary = self.path + ".new"
        data = b"".join(map(as_line, [self.header] + self.events + self.rows))
        handle = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600
        )
        if os.write(handle, data) != len(data):
            raise OSError("no room")
        os.rename(temporary, self.path)
        os.close(self.file)
        self.file = handle
        return True

    def event(self, **fields):
        """Append an event, up to `MOST_EVENTS`."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(fields)
            self.write(fields)


def as_line(value):
    """Return a value as a line of JSON, as short as possible."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def sources_of(settings, describe, tell):
    """Return the sources of this node. ``describe`` takes what the header says of them, ``tell``
    events.

    All but the counters of energy have 0.115 % of a core together: a look at all the rest of a GPU
    takes 0.2 ms. The counters have a share for each GPU, because a node has more processors where
    it has more GPUs, and a window of ten seconds needs readings of each that are close together.
    """
    shares = [
        (Usage(), 1.0, 0.0001),
        (Packages(describe), 1.0, 0.0001),
        (Interfaces(describe), 1.0, 0.0001),
        (Quota(), 2.0, 0.00005),
        (Ports(describe), 1.0, 0.0001),
        (PortErrors(), 10.0, 0.0001),
        (Foreign(settings, tell), 10.0, 0.0001),
    ]
    if settings.get("device") == "cuda":
        found = (sources(settings, describe, tell) for sources in SAMPLED)
        shares += next(filter(None, found), [])
    period_s = settings.get("period_s", 1.0)
    return [Source(readable, least_s * period_s, share) for readable, least_s, share in shares]


def sample_run(settings, waiting, path):
    """Sample this node until something is written to, or closes, the pipe ``waiting``. ``settings``
    are the devices of the run, and what tells its processes."""
    die_with_parent()
    with contextlib.suppress(OSError):
        os.nice(10)
    about, told = {}, []
    period_s = settings.get("period_s", 1.0)
    sources = sources_of(settings, about.update, lambda **fields: told.append(fields))
    columns = ["t"] + [name for source in sources for name in source.columns]
    header = dict(
        about,
        schema=TELEMETRY_SCHEMA,
        period_s=period_s,
        processors=os.cpu_count(),
        columns=columns,
    )
    samples = Samples(path, header)
    number, sampled_at, is_over = 0, 0.0, False
    began, planned = time.monotonic(), time.monotonic()
    while True:
        now = time.monotonic()
        row = [round(now, 3)]
        for source in sources:
            row += source.read(now)
        is_later = row[0] > sampled_at  # the last row of a short run may be of the same millisecond
        if is_later and samples.row(row):
            period_s *= 2
        for fields in told:
            samples.event(t=round(now, 3), **fields)
        del told[:]
        number, sampled_at = number + is_later, row[0]
        if is_over:
            break
        planned = max(planned + period_s, time.monotonic() + 0.1 * period_s)
        is_over = hears(waiting, planned - time.monotonic())
        for source in sources if is_over else ():
            source.due = 0.0  # the last row has everything
    spent_s = time.process_time()
    samples.events = []
    samples.event(
        t=round(time.monotonic(), 3),
        event="end",
        samples=number,
        used_s=round(spent_s, 4),
        seconds=round(now - began, 3),
    )


def hears(waiting, seconds):
    """Return True once the pipe has something to read or is closed, False after so many seconds."""
    return bool(select.select([waiting], [], [], max(0.0, seconds))[0])
