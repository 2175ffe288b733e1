"""From the bytes of a log to text that patterns can read, blocks of whole lines without escapes and control characters, and
from text to numbers.

>>> cleaned(b"\\x1b[32mstep\\x1b[0m=1")
'step=1'
>>> list(blocks(b"a\\r\\nb\\n" + b"c" * 5000 + b"\\n", 5005))
[(0, 5, False), (5, 5005, True)]
>>> by_rank("one\\n[1,7]<stdout>:two[1,3]<stdout>:three\\n[1,7]<stdout>:four\\nfive\\n")
{None: 'one\\nfive\\n', 7: 'two\\nfour', 3: 'three'}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import cache, lru_cache
from mmap import mmap

__all__ = ["LONG_LINE", "TAG_END", "blocks", "by_rank", "cleaned", "clock", "is_clean", "tagged", "whole", "wholes"]

LONG_LINE = 4 * 1024
"""A line of more bytes is a block of its own."""
_BLOCK = 64 * 1024
TAG_END = "]<std"
"""In the tag of each rank, so text without it has none."""

_LINE_END = re.compile(rb"[\r\n]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_CONTROL_BYTES = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
# Begins with a plain character, which lets the search skip to it; no branch goes past the end of a line.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_RARE_ESCAPES = re.compile(rf"\x9b[0-?]*[ -/]*[@-~]|{_ESCAPES.pattern}")
# mpirun --tag-output: Open MPI 4 prints "[1,3]<stdout>:", Open MPI 5 "[prterun-node-7@1,3]<stdout>: ".
_RANK_TAG = re.compile(r"\[(?:[^\[\]\s]{1,200}@)?[0-9]{1,9},([0-9]{1,9})\]<std(?:out|err|diag)>:? ?")
_MOST_COUNTED = 1 << 16
_CLOCK = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T]|\d{4} )?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?", re.ASCII)


def blocks(data: bytes | mmap, end: int) -> Iterator[tuple[int, int, bool]]:
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
    if is_clean(raw):
        return text
    text = (_RARE_ESCAPES if "\x9b" in text else _ESCAPES).sub("", text)
    return text if is_clean(text.encode()) else _CONTROLS.sub("", text)


def tagged(text: str) -> list[tuple[int | None, str]]:
    """Return the pieces of ``text`` and the rank that a launcher put before each; None before what no tag precedes."""
    first, *pieces = _RANK_TAG.split(text)
    return [(None, first), *zip(map(int, pieces[::2]), pieces[1::2], strict=True)]


def by_rank(text: str) -> Mapping[int | None, str]:
    """Return the lines of each rank, joined; several may have written to a line, and a tag holds for no more than its line."""
    if "]" not in text or TAG_END not in text:  # the first alone is found missing thirty times as quickly
        return {None: text}
    found: dict[int | None, list[str]] = {None: []}
    for tag, piece in tagged(text):
        line, _, untagged = piece.partition("\n")
        found.setdefault(tag, []).append(line)
        if untagged:
            found[None].append(untagged)
    return {tag: "\n".join(lines) for tag, lines in found.items()}


def clock(text: str) -> tuple[int | None, float] | None:
    """Return the day, None where the clock has no date, and the seconds of the day.

    >>> clock("2020-08-31 21:10:59,902"), clock("23:59:59.5"), clock("2020-02-30 00:00:00"), clock("noon")
    ((737668, 76259.902), (None, 86399.5), None, None)
    """
    match = _CLOCK.fullmatch(text.strip())
    if not match:
        return None
    dated, hours, minutes, seconds, fraction = match.groups()
    of_day = int(hours) * 3600 + int(minutes) * 60 + int(seconds) + (float("0." + fraction) if fraction else 0.0)
    if not dated:
        return None, of_day
    day = _day(dated)
    return None if day is None else (day, of_day)


@lru_cache(maxsize=64)
def _day(text: str) -> int | None:
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:])).toordinal()
    except ValueError:
        return None


def whole(text: str | None) -> int | None:
    """Return a number of up to 15 digits and of nothing else, or None."""
    return int(text) if text is not None and len(text) <= 15 and text.isascii() and text.isdigit() else None


def wholes(texts: Sequence[str]) -> list[int]:
    """Return the number of each text. Raises ValueError where one is none of up to 15 digits."""
    if len(texts) > 1:
        if texts[0] == texts[-1] and texts.count(texts[0]) == len(texts):  # as most runs' samples in each step
            return wholes(texts[:1]) * len(texts)
        if counted := _counted(texts):
            return counted
    joined = "".join(texts)
    if texts and (not (joined.isascii() and joined.isdigit()) or max(map(len, texts)) > 15):
        raise ValueError("not whole numbers")
    return list(map(int, texts))


def _counted(texts: Sequence[str]) -> list[int]:
    """Return the number of each text where these count up as the steps of most logs do, which is sooner seen than read."""
    first, second = whole(texts[0]), whole(texts[1])
    if first is None or second is None or second <= first:
        return []
    apart = second - first
    stop = first + apart * len(texts)
    if stop > _MOST_COUNTED:
        return []
    numbers, decimals = _counting((stop - 1).bit_length())
    return numbers[first:stop:apart] if decimals[first:stop:apart] == texts else []


@cache
def _counting(bits: int) -> tuple[list[int], list[str]]:
    """Return the numbers of so many bits, and the same as text."""
    numbers = list(range(1 << bits))
    return numbers, list(map(str, numbers))
