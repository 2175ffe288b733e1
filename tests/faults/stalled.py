"""File systems whose server answers slowly or not at all: FUSE, spoken without its library.

Whoever reads there waits; once SIGKILL has come, in state D, until the mount is taken away. Whoever
touches a page of a mapped file waits in state D from the start, as for a page that was swapped out.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT, _BATCH_FORGET = (
    1,
    2,
    3,
    14,
    15,
    26,
    36,
    42,
)
_OPENDIR = 27
_LIBC = ctypes.CDLL(None, use_errno=True)
_FORCE, _DETACH = 1, 2
_SIZE = 1 << 30
NEVER = float("inf")
ANSWERS = {"stalled_file": (), "swapped_out": (NEVER,), "slow_disk": (5.0,)}
"""For kinds of faults: nothing, if no question is answered; else after how many seconds a part of a
file comes.
"""


@contextmanager
def stalled_files(kind: str = "stalled_file") -> Iterator[str]:
    """Have such a file system in a folder, which is returned; an empty name for all other kinds of
    faults.
    """
    if kind not in ANSWERS:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="stalled-", ignore_cleanup_errors=True) as folder:
        device = _mount(folder)
        threading.Thread(target=_take, args=(device, *ANSWERS[kind]), daemon=True).start()
        try:
            yield folder
        finally:
            _LIBC.umount2(folder.encode(), _FORCE)  # whoever waits there gets an error
            _LIBC.umount2(folder.encode(), _DETACH)
            os.close(device)


@contextmanager
def frozen_folder(folder: Path) -> Iterator[None]:
    """Have a server of a folder that answers nothing. At the end it does: whoever waits sees an empty
    folder, and everybody else what was there before.
    """
    thawed = threading.Event()
    device = _mount(str(folder))
    server = threading.Thread(target=_take, args=(device, 0.0, thawed), daemon=True)
    server.start()
    try:
        yield
    finally:
        thawed.set()
        _LIBC.umount2(str(folder).encode(), _DETACH)
        server.join()  # the device ends with the last one who waits
        os.close(device)


def _mount(folder: str) -> int:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if _LIBC.mount(b"stalled", folder.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    return device


def _take(device: int, part_s: float | None = None, thawed: threading.Event | None = None) -> None:
    """Answer how the file system begins; with ``part_s`` also that each name is a large file, of
    which a part comes after so many seconds, and with ``thawed`` not before that is set:
    include/uapi/linux/fuse.h."""
    with suppress(OSError):
        while question := os.read(device, 1 << 18):
            _, opcode, unique, node = struct.unpack_from("<IIQQ", question)
            if opcode == _INIT:
                major, minor, ahead, flags = struct.unpack_from("<IIII", question, 40)
                body = struct.pack(
                    "<IIIIHHII", major, min(minor, 31), ahead, 0, 12, 10, 1 << 16, 0
                ).ljust(64, b"\0")
                _answer(device, unique, body)
                continue
            if thawed:
                thawed.wait()
            if part_s is None or opcode in (_FORGET, _INTERRUPT, _BATCH_FORGET):
                continue
            if opcode == _LOOKUP:
                _answer(
                    device, unique, struct.pack("<QQQQII", 2, 1, 3600, 3600, 0, 0) + _attributes(2)
                )
            elif opcode == _GETATTR:
                _answer(device, unique, struct.pack("<QII", 3600, 0, 0) + _attributes(node))
            elif opcode == _READ and part_s < NEVER:
                size = struct.unpack_from("<I", question, 56)[0]
                time.sleep(part_s)
                _answer(device, unique, bytes(size))
            elif opcode != _READ:
                _answer(device, unique, bytes(16 if opcode in (_OPEN, _OPENDIR) else 0))


def _answer(device: int, unique: int, body: bytes) -> None:
    os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


def _attributes(node: int) -> bytes:
    """Return the attributes of the folder, which is node 1, or of a file."""
    mode, size = (0o040755, 0) if node == 1 else (0o100644, _SIZE)
    return struct.pack(
        "<QQQQQQIIIIIIIIII", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0
    )
