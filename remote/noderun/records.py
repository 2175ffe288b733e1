"""Small JSON files, written completely or not at all."""

import json
import os


def write_whole(path, blocks, mode=0o600):
    """Write a file under a temporary name, flush it to disk and rename it, so that it is complete whenever it exists."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_json(path, value):
    """Write one JSON value, completely or not at all."""
    write_whole(path, [json.dumps(value, sort_keys=True).encode() + b"\n"])


def read_record(path):
    """Return the record of a rank. Its wrapper replaces the file by renaming, so it is complete whenever it is read."""
    with open(path) as file:
        return json.load(file)
