"""A tar with exactly one possible encoding, so that every byte is verified when it is read.

It has only regular files, no times, no owners, one mode, zeros between files and up to a whole
record at the end. A reader that knows the next name knows every byte outside of the content except
the size, which is bounded by the file's length. So no header is trusted. Format: POSIX.1-2001, pax
interchange format, whose extended header holds names of more than 100 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from tarfile import BLOCKSIZE, PAX_FORMAT, RECORDSIZE, TarInfo
from typing import BinaryIO

from orchestrator.errors import DataError

MAX_FILE_BYTES = 8**11 - 1
"""The largest value of the size field in a header."""
PIECE_BYTES = 1 << 20
_NAME, _SIZE = slice(0, 100), slice(124, 135)


def append(out: BinaryIO, name: str, size: int, pieces: Iterable[bytes]) -> None:
    """Write a file of ``size`` bytes, given in pieces."""
    out.write(_header(name, size))
    out.writelines(pieces)
    out.write(_padding(size))


def size_of(files: Mapping[str, int]) -> int:
    """Return the size in bytes of a tar with files of these names and sizes."""
    within = sum(
        len(_header(name, size)) + size + len(_padding(size)) for name, size in files.items()
    )
    return within + len(end(within))


def end(size: int) -> bytes:
    """Return the bytes that end a tar after its first ``size`` bytes."""
    return bytes(2 * BLOCKSIZE + -(size + 2 * BLOCKSIZE) % RECORDSIZE)


class TarReader:
    """Reads such a tar in order. Raises DataError at the first byte that differs from the only
    possible one.
    """

    def __init__(self, stream: BinaryIO | BufferedReader, where: str, size: int) -> None:
        self._stream = stream
        self._where = where
        self._left = size

    def first_name(self) -> str:
        """Return the unchecked name in the first header, without advancing."""
        name = self._stream.read(_NAME.stop).partition(b"\0")[0].decode("ascii", "backslashreplace")
        self._stream.seek(0)
        return name

    def content(self, name: str) -> Iterator[bytes]:
        """Yield the content of the next file, which must have this name."""
        size = self._size(name)
        for start in range(0, size, PIECE_BYTES):
            yield self._take(min(PIECE_BYTES, size - start))
        self._check(self._take(len(_padding(size))), _padding(size), f"after {name}")

    def small(self, name: str, limit: int) -> bytes:
        """Return the content of the next file, which must have this name and at most ``limit``
        bytes.
        """
        data = b""
        for piece in self.content(name):
            data += piece
            if len(data) > limit:
                raise self._damage_error(f"expected at most {limit} bytes of {name}, found more")
        return data

    def end(self) -> None:
        """Raise DataError unless the tar ends here."""
        expected = end(self._stream.tell())
        self._check(self._take(len(expected)), expected, "after the last file")
        if self._left:
            raise self._damage_error(
                f"expected the end at byte {self._stream.tell()}, found {self._left} more bytes"
            )

    def _size(self, name: str) -> int:
        header = self._take(len(_header(name, 0)))
        digits = header[-BLOCKSIZE:][_SIZE]
        size = 0 if digits.strip(b"01234567") else int(digits, 8)
        self._check(header, _header(name, size), f"in the header of {name}")
        return size

    def _take(self, size: int) -> bytes:
        data = self._stream.read(size) if size <= self._left else b""
        if len(data) != size:
            raise self._damage_error(
                f"expected {size} bytes from byte {self._stream.tell()} on, found {self._left}"
            )
        self._left -= size
        return data

    def _check(self, data: bytes, expected: bytes, where: str) -> None:
        if data != expected:
            at = next(
                place
                for place, pair in enumerate(zip(data, expected, strict=True))
                if pair[0] != pair[1]
            )
            message = f"expected {expected[at]:#04x} at byte {self._stream.tell() - len(data) + at}"
            raise self._damage_error(f"{message}, {where}, found {data[at]:#04x}")

    def _damage_error(self, message: str) -> DataError:
        return DataError(message, kind="state_damaged", where=self._where)


def _header(name: str, size: int) -> bytes:
    info = TarInfo(name)
    info.size = size
    return info.tobuf(PAX_FORMAT, "ascii", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCKSIZE)
