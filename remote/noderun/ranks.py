"""The ranks of a run on this node, from the records of their wrappers."""

import os
import time

from noderun.files import lacking, why_read_only
from noderun.groups import oom_kills
from noderun.processes import lives
from noderun.records import read_record


class Ranks:
    """The records of all ranks so far, by file name."""

    def __init__(self):
        self.records = {}
        self.inodes = {}

    def read(self, kills_before):
        """Read the records anew, and yield the records of ranks that have ended since.

        ``kills_before`` counts the kernel's kills for memory before the run, to tell why a rank was
        killed; None if that does not matter any more.
        """
        for entry in os.scandir("ranks"):
            last_record = self.records.get(entry.name, {})
            if not entry.name.endswith(".json") or "ended_mono_s" in last_record:
                continue
            # A wrapper writes twice and renames: another inode number means another record.
            record = (
                last_record
                if self.inodes.get(entry.name) == entry.inode()
                else read_record(entry.path)
            )
            if "ended_mono_s" not in record and not lives(record):
                # It may have written its final record and exited since the last read; only without
                # one it was killed.
                record = read_record(entry.path)
                if "ended_mono_s" not in record:
                    record.update(
                        code=None,
                        signal="SIGKILL",
                        ended_mono_s=time.monotonic(),
                        note=why_read_only(os.getcwd()) or "its wrapper was killed",
                    )
            if (
                record.get("signal") == "SIGKILL"
                and kills_before is not None
                and oom_kills() > kills_before
            ):
                record.update(note="the kernel's OOM killer killed it")
            # What it printed last may have met the same full disk.
            full_disk = lacking(os.getcwd()) if record.get("code") else ""
            if full_disk:
                record.update(note=full_disk)
            self.records[entry.name], self.inodes[entry.name] = record, entry.inode()
            if "ended_mono_s" in record:
                yield record

    def wrappers(self):
        """Return {pid: start time in clock ticks} of the wrappers of all ranks that have not ended,
        as they know themselves.
        """
        living = [record for record in self.records.values() if "ended_mono_s" not in record]
        return {record["wrapper"]: record["ticks"] for record in living}

    def in_order(self):
        """Return all records in order of rank."""
        return sorted(self.records.values(), key=lambda record: record["rank"])


def describe_end(record):
    """Return how a rank ended: by a signal or with an exit code, and its note."""
    how = record["signal"] or "exit code %s" % record["code"]
    return how + ", " + record["note"] if "note" in record else how
