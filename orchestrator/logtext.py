"""From the bytes of a log to text that patterns can read: blocks of whole lines, without escapes and control characters.

>>> cleaned(b"\\x1b[32mstep\\x1b[0m=1")
'step=1'
>>> list(blocks(b"a\\r\\nb\\n" + b"c" * 5000 + b"\\n", 5005))
[(0, 5, False), (5, 5005, True)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["LONG_LINE", "blocks", "cleaned", "is_clean"]

LONG_LINE = 4 * 1024
"""A line of more bytes is a block of its own."""
_BLOCK = 64 * 1024

_LINE_END = re.compile(rb"[\r\n]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_CONTROL_BYTES = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
# Every branch begins with a plain character, which lets the search skip to it; none goes past the end of a line.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]",
)


def blocks(data: bytes, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, stop, False) of blocks of whole lines, and (start, stop, True) of each line over `LONG_LINE`.

    ``data[end]`` is the last line end. A line is short if a line end follows within a window, so few bytes are looked at.
    """
    start = here = 0
    while here < end:
        window = min(here + LONG_LINE + 1, end + 1)
        last = max(data.rfind(b"\n", here, window), data.rfind(b"\r", here, window))
        if last >= 0:
            here = last + 1
            if here - start >= _BLOCK:
                yield start, here, False
                start = here
            continue
        if start < here:
            yield start, here, False
        found = _LINE_END.search(data, here)
        stop = found.start() if found else end
        yield here, stop, True
        start = here = stop
    if start < here:
        yield start, here, False


def is_clean(raw: bytes) -> bool:
    """Tell whether no control character can be in ``raw``; those above U+007F begin with C2 in UTF-8."""
    return len(raw.translate(None, _CONTROL_BYTES)) == len(raw) and b"\xc2" not in raw


def cleaned(raw: bytes) -> str:
    """Return the text of lines without escapes and control characters."""
    text = raw.decode("utf-8", "replace")
    return text if is_clean(raw) else _CONTROLS.sub("", _ESCAPES.sub("", text))
