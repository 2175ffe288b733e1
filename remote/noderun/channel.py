"""The channel to the controller: answers to standard output, files from standard input."""

import json
import signal
import sys

from noderun.files import CHUNK, Refused

IDLE_S = 60


def reply(**fields):
    """Print one JSON line to the controller."""
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def received(count, digest):
    """Yield ``count`` bytes of standard input in blocks, feeding the digest. This process ends where none come for a while."""
    while count:
        signal.alarm(IDLE_S)
        block = sys.stdin.buffer.read1(min(count, CHUNK))
        signal.alarm(0)
        if not block:
            raise Refused("transfer_corrupt", "the line ended %d bytes early" % count)
        digest.update(block)
        count -= len(block)
        yield block
