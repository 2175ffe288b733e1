"""A file system that takes every question and answers none, as a server that is gone: FUSE, spoken without its library.

Whoever reads there waits; once SIGKILL has come, in state D, until the mount is taken away.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_INIT = 26
_LIBC = ctypes.CDLL(None, use_errno=True)
_FORCE, _DETACH = 1, 2


@contextmanager
def stalled_files(kind: str = "stalled_file") -> Iterator[str]:
    """Have such a file system in a folder, which is returned; an empty name for all other kinds of faults."""
    if kind != "stalled_file":
        yield ""
        return
    device = os.open("/dev/fuse", os.O_RDWR)
    with tempfile.TemporaryDirectory(prefix="stalled-", ignore_cleanup_errors=True) as folder:
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        if _LIBC.mount(b"stalled", folder.encode(), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")
        threading.Thread(target=_take, args=(device,), daemon=True).start()
        try:
            yield folder
        finally:
            _LIBC.umount2(folder.encode(), _FORCE)  # whoever waits there gets an error
            _LIBC.umount2(folder.encode(), _DETACH)
            os.close(device)


def _take(device: int) -> None:
    """Answer how the file system begins, and nothing after that: include/uapi/linux/fuse.h."""
    with suppress(OSError):
        while question := os.read(device, 1 << 18):
            _, opcode, unique = struct.unpack_from("<IIQ", question)
            if opcode == _INIT:
                major, minor, ahead, flags = struct.unpack_from("<IIII", question, 40)
                body = struct.pack("<IIIIHHII", major, min(minor, 31), ahead, 0, 12, 10, 1 << 16, 0).ljust(64, b"\0")
                os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
