"""The channel to the controller: answers on standard output, files on standard input."""

import json
import signal
import sys

from noderun.files import CHUNK, Refused

IDLE_S = 60


def reply(**fields):
    """Print one JSON line to the controller."""
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def write_bytes(data):
    """Write bytes that a line has announced, and end them with a newline, which the controller
    skips.

    The carrier, such as srun, may hold back bytes after the last newline. Where another line
    follows at once, as between the pieces of a log, its newline is enough.
    """
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def receive_blocks(count, digest):
    """Yield ``count`` bytes of standard input in blocks and feed the digest. Ends this process
    after IDLE_S without data.
    """
    while count:
        signal.alarm(IDLE_S)
        block = sys.stdin.buffer.read1(min(count, CHUNK))
        signal.alarm(0)
        if not block:
            raise Refused("transfer_corrupt", "the connection ended %d bytes early" % count)
        digest.update(block)
        count -= len(block)
        yield block
