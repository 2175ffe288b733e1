"""Small JSON files, written completely or not at all."""

import json
import os


def write_whole(path, blocks, mode=0o600):
    """Write a file under a temporary name, flush it to disk and rename it, so that it is complete
    whenever it exists.
    """
    # Not the process number: nodes that share the directory may write the same file at the same
    # time.
    temporary = "%s.%s.tmp" % (path, os.urandom(8).hex())
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


class Reserved:
    """A JSON file whose last version is written later, into an inode and a block that are reserved
    now: a disk that becomes full in the meantime does not prevent it."""

    SIZE = 4096

    def __init__(self, path):
        self.path = path
        self.spare = path + ".spare"
        self.handle = os.open(
            self.spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        os.posix_fallocate(self.handle, 0, self.SIZE)

    def write(self, value):
        """Replace the file by this value, completely or not at all."""
        data = json.dumps(value, sort_keys=True).encode() + b"\n"
        os.pwrite(self.handle, data, 0)
        os.ftruncate(self.handle, len(data))
        os.fsync(self.handle)
        os.rename(self.spare, self.path)


def read_record(path):
    """Return the record of a rank. Its wrapper replaces the file by renaming, so it is complete
    whenever it is read.
    """
    with open(path) as file:
        return json.load(file)
