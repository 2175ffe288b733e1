"""Clean the bytes of a log into text for patterns: blocks of whole lines without escapes and
control characters; and read numbers from text.

>>> clean_text(b"\\x1b[32mstep\\x1b[0m=1")
'step=1'
>>> list(blocks(b"a\\r\\nb\\n" + b"c" * 5000 + b"\\n", 5005))
[(0, 5, False), (5, 5005, True)]
>>> by_rank("one\\n[1,7]<stdout>:two[1,3]<stdout>:three\\n[1,7]<stdout>:four\\nfive\\n")
{None: 'one\\nfive\\n', 7: 'two\\nfour', 3: 'three'}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache
from mmap import mmap

LONG_LINE = 4 * 1024
"""A line with more bytes is a block of its own."""
_BLOCK = 64 * 1024

_LINE_END = re.compile(rb"[\r\n]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_CONTROL_BYTES = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
# Begins with a plain character, so that the search can skip to it; no branch matches past the end
# of a line.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_RARE_ESCAPES = re.compile(rf"\x9b[0-?]*[ -/]*[@-~]|{_ESCAPES.pattern}")
# mpirun --tag-output: Open MPI 4 prints "[1,3]<stdout>:", Open MPI 5 "[prterun-node-7@1,3]<stdout>:
# ".
_RANK_TAG = re.compile(
    r"\[(?:[^\[\]\s]{1,200}@)?[0-9]{1,9},(?P<rank>[0-9]{1,9})\]<std(?:out|err|diag)>:? ?"
)
_MOST_COUNTED = 1 << 16
_CLOCK = re.compile(
    r"(?:(\d{4}[-/]\d\d[-/]\d\d)[ T]|\d{4} )?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?", re.ASCII
)


def blocks(data: bytes | mmap, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, stop, False) of blocks of whole lines, and (start, stop, True) of each line
    over `LONG_LINE`.

    ``data[end]`` is the last line end. A line is short if a line end follows within a window, so
    few bytes are read.
    """
    start = position = 0
    while position < end:
        window = min(position + LONG_LINE + 1, end + 1)
        last = max(data.rfind(b"\n", position, window), data.rfind(b"\r", position, window))
        if last >= 0:
            position = last + 1
            if position - start >= _BLOCK:
                yield start, position, False
                start = position
            continue
        if start < position:
            yield start, position, False
        line_end = _LINE_END.search(data, position)
        stop = line_end.start() if line_end else end
        yield position, stop, True
        start = position = stop
    if start < position:
        yield start, position, False


def is_clean(raw: bytes) -> bool:
    """Return True if ``raw`` cannot contain a control character; those above U+007F begin with C2
    in UTF-8.
    """
    return len(raw.translate(None, _CONTROL_BYTES)) == len(raw) and b"\xc2" not in raw


def clean_text(raw: bytes) -> str:
    """Return the text of lines without escapes and control characters."""
    text = raw.decode("utf-8", "replace")
    if is_clean(raw):
        return text
    text = (_RARE_ESCAPES if "\x9b" in text else _ESCAPES).sub("", text)
    if is_clean(text.encode()):
        return text
    return _CONTROLS.sub("", text)


@dataclass(frozen=True, slots=True)
class Tags:
    """The prefix that a launcher puts before each line of a rank.

    ``pattern`` has the rank in ``group``, and text without ``literal`` has no tag. The default
    reads ``mpirun --tag-output``.
    """

    pattern: re.Pattern[str] = _RANK_TAG
    literal: str = "]<std"
    group: str = "rank"

    def pieces(self, text: str) -> list[tuple[int | None, str]]:
        """Return the pieces of a text with the rank from the tag before each; None for text before
        the first tag.
        """
        if self.literal not in text:
            return [(None, text)]
        if self.pattern is _RANK_TAG:
            first, *rest = self.pattern.split(text)
            return [(None, first), *zip(map(int, rest[::2]), rest[1::2], strict=True)]
        tag, start = None, 0
        pieces: list[tuple[int | None, str]] = []
        for match in self.pattern.finditer(text):
            pieces.append((tag, text[start : match.start()]))
            tag, start = whole(match[self.group]), match.end()
        return [*pieces, (tag, text[start:])]

    def without(self, line: str) -> str:
        """Return the text after the last tag of a line."""
        return self.pieces(line)[-1][1]


MPIRUN = Tags()


def cut_middle(text: str, most: int) -> str:
    """Return a long text without its middle: what it is about stands at its beginning or at its end.

    >>> cut_middle("abcdefgh", 4), cut_middle("abcd", 4)
    ('ab […] gh', 'abcd')
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} […] {text[-half:]}"


def by_rank(text: str, tags: Tags = MPIRUN) -> Mapping[int | None, str]:
    """Return the lines of each rank, joined. A line may contain text of several ranks; a tag ends
    with its line.
    """
    # The search for a single character is thirty times as fast.
    if tags.literal[:1] not in text or tags.literal not in text:
        return {None: text}
    by_tag: dict[int | None, list[str]] = {None: []}
    for tag, piece in tags.pieces(text):
        line, _, untagged = piece.partition("\n")
        by_tag.setdefault(tag, []).append(line)
        if untagged:
            by_tag[None].append(untagged)
    return {tag: "\n".join(lines) for tag, lines in by_tag.items()}


def clock(text: str) -> tuple[int | None, float] | None:
    """Return the ordinal of the day, None if the text has no date, and the seconds since midnight;
    None if it is no clock.

    >>> clock("2020/08/31 21:10:59,902"), clock("23:59:59.5"), clock("2020-02-30 00:00:00"), clock("noon")
    ((737668, 76259.902), (None, 86399.5), None, None)
    """
    match = _CLOCK.fullmatch(text.strip())
    if not match:
        return None
    dated, hours, minutes, seconds, fraction = match.groups()
    of_day = (
        int(hours) * 3600
        + int(minutes) * 60
        + int(seconds)
        + (float("0." + fraction) if fraction else 0.0)
    )
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
    """Return the number if the text consists of 1 to 15 digits, else None."""
    if text is not None and len(text) <= 15 and text.isascii() and text.isdigit():
        return int(text)
    return None


def wholes(texts: Sequence[str]) -> list[int]:
    """Return the number of each text. Raises ValueError unless each consists of 1 to 15 digits."""
    if len(texts) > 1:
        if texts[0] == texts[-1] and texts.count(texts[0]) == len(
            texts
        ):  # as the samples per step of most runs
            return wholes(texts[:1]) * len(texts)
        if counted := _even_numbers(texts):
            return counted
    joined = "".join(texts)
    if texts and (not (joined.isascii() and joined.isdigit()) or max(map(len, texts)) > 15):
        raise ValueError("not whole numbers")
    return list(map(int, texts))


def _even_numbers(texts: Sequence[str]) -> list[int]:
    """Return the numbers if they count up evenly, as the steps of most logs do, else an empty list.

    A comparison with a table is faster than conversion.
    """
    first, second = whole(texts[0]), whole(texts[1])
    if first is None or second is None or second <= first:
        return []
    apart = second - first
    stop = first + apart * len(texts)
    if stop > _MOST_COUNTED:
        return []
    numbers, decimals = _counting((stop - 1).bit_length())
    if decimals[first:stop:apart] != texts:
        return []
    return numbers[first:stop:apart]


@cache
def _counting(bits: int) -> tuple[list[int], list[str]]:
    """Return the numbers below 2 ** ``bits``, and the same numbers as text."""
    numbers = list(range(1 << bits))
    return numbers, list(map(str, numbers))
