"""Text without what quoting, encoding and wrapping add to it, so that a value is recognised in any
of these forms.

White space, quotes, backslashes and plus signs are dropped, because every form adds or removes
some; escapes are decoded; line ends are removed, with what a program or a launcher puts before the
next line. `Reading` knows where each byte came from.

>>> [reading.text for reading in map(Reading.of, [b"x\\\\u0041y", b"x\\\\u0041y"], [None, character])]
[b'xu0041y', b'xAy']
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

_DROPPED = bytes([*range(0x21), 0x7F, *b"\"'\\+"])
_KEPT = re.compile(rb"[^\x00-\x20\x7f\"'\\+]+")
# What comes between two parts of a wrapped value: a line end with what precedes the rest in the
# next line, such as the tag of a launcher, an indent or a quote; and frames of tables (U+2500 to
# U+257F).
_TAG = rb"\[[^\[\]\s]{1,200}\](?:<std[a-z]{3,4}>)?:?"
_FRAME = rb"\xe2[\x94\x95][\x80-\xbf]"
_WRAPPED = rb"[\r\n]+(?:%s)?(?:[ \t]|%s)*" % (_TAG, _FRAME)
_FRAMED = rb"(?:%s[ \t]*)+" % _FRAME
_WRAP = re.compile(rb"(?=[\r\n\xe2])(?:%s[\"']?|%s)" % (_WRAPPED, _FRAMED))
# The same in data that hold a literal such as b'…' in several lines: what comes between two of its
# parts is more.
_GAP = rb"(?:\s|%s|%s)*" % (_TAG, _FRAME)
_BETWEEN = rb"[\"']%s[bu][\"']" % _GAP
_WRAP_OF_LITERALS = re.compile(rb"%s|%s(?!%s)[\"']?|%s" % (_BETWEEN, _WRAPPED, _BETWEEN, _FRAMED))
_BEGINS_OF_LITERALS = (b" b'", b' b"', b" u'", b' u"')
_LITERAL = re.compile(rb"[\"']%s[\r\n]%s[bu][\"']" % (_GAP, _GAP))
# What encodes a character: escapes of shells, C, Python and JSON, whose backslash may be written as
# %5C; URL encoding, once or more; HTML entities. It begins with a set of bytes, so that the search
# can skip to the next of them.
_ESCAPE = re.compile(
    rb"(?=[\\%&])(?:(?:\\|%(?:25)*5[Cc])+(?:"
    rb"x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})(?:(?:\\|%(?:25)*5[Cc])+u(?P<low>[dD][c-fC-F][0-9A-Fa-f]{2}))?|"
    rb"U(?P<long>[0-9A-Fa-f]{8})|(?P<octal>[0-3][0-7]{2})|(?P<control>[abefnrtvE]))"
    rb"|%(?:25)*(?P<percent>[0-9A-Fa-f]{2})"
    rb"|&(?:amp;)*(?:\#x(?P<hex>[0-9A-Fa-f]{1,6})|\#(?P<decimal>[0-9]{1,7})|(?P<entity>quot|apos|amp|lt|gt));)"
)
# Incomplete endings: a tag, the gap between two parts of a literal, an escape, or a character.
_CUT_WRAP = re.compile(
    rb"(?:[\"']%s(?:[bu](?:[\"']%s)?)?)?(?:[\r\n]+\[[^\[\]\s]{0,200}(?:\](?:<[a-z]{0,6}>?)?)?)?\Z"
    % (_GAP, _GAP)
)
_CUT_ESCAPE = re.compile(
    rb"(?:(?:\\|%(?:25)*5[Cc])+(?:x[0-9A-Fa-f]?|u[0-9A-Fa-f]{0,3}|U[0-9A-Fa-f]{0,7}|[0-3][0-7]?|"
    rb"u[dD][89abAB][0-9A-Fa-f]{2}(?:(?:\\|%(?:25)*5[Cc])+(?:u[0-9A-Fa-f]{0,3})?|%(?:25)*[25]?)?)?|%(?:25)*(?:2|[0-9A-Fa-f])?|"
    rb"&(?:amp;)*(?:[a-z]{0,4}|\#x?[0-9A-Fa-f]{0,7})|[\xc0-\xff][\x80-\xbf]{0,2})\Z"
)
_HIGH = re.compile(rb"(?:\\|%(?:25)*5[Cc])x[89A-Fa-f]")
Decoder = Callable[[re.Match[bytes]], bytes]
_MARKS = (b"\\", b"%", b"&", b"\n[", b"\r[", b"\xe2\x94", b"\xe2\x95")
_PERCENT = re.compile(rb"%[0-9A-Fa-f]{2}")
_ENTITIES = {b"quot": b'"', b"apos": b"'", b"amp": b"&", b"lt": b"<", b"gt": b">"}


def _wrap(data: bytes) -> re.Pattern[bytes]:
    """Return a pattern that matches any wrapping of these data."""
    may_hold = any(begin in data for begin in _BEGINS_OF_LITERALS)  # much faster
    return _WRAP_OF_LITERALS if may_hold and _LITERAL.search(data) else _WRAP


def plain(data: bytes) -> bytes:
    """Return the data without the bytes that are dropped."""
    return data.translate(None, _DROPPED)


def forms(data: bytes) -> list[bytes]:
    """Return the different texts that `readings` yields of data that hold these."""
    whole = _wrap(data).sub(b"", data)
    return list(dict.fromkeys((plain(data), _decode(whole, character), _decode(whole, _point))))


def readings(data: bytes) -> Iterator[tuple[bytes, Decoder | None]]:
    """Yield the data as they are, and decoded in each way that may make a difference, with what
    decodes them: for `Reading.of`. In all of them the dropped bytes are missing."""
    yield plain(data), None
    wrap = _wrap(data)
    if wrap is not _WRAP or any(mark in data for mark in _MARKS):
        whole = wrap.sub(b"", data)
        if b"\\" not in whole and b"&" not in whole and not _PERCENT.search(whole):  # much faster
            yield plain(whole), character
            return
        yield _decode(whole, character), character
        if _HIGH.search(whole):
            yield _decode(whole, _point), _point


def read_partial(data: bytes) -> Iterator[Reading]:
    """Yield the readings of data that continue later.

    A tag, an escape or a character at their end may be incomplete.
    """
    if wrap := _CUT_WRAP.search(data):
        data = data[: wrap.start()]
    whole = Reading.unwrap(data)
    cut = _CUT_ESCAPE.search(whole.text)
    before = data[: whole.raw(cut.start())[0]] if cut else data
    for text, decoder in ((data, None), (before, None), (before, character), (before, _point)):
        yield Reading.of(text, decoder)


def _decode(whole: bytes, decoder: Decoder) -> bytes:
    """Return unwrapped data with their escapes decoded, without the bytes that are dropped."""
    return plain(_ESCAPE.sub(decoder, whole))


def character(match: re.Match[bytes]) -> bytes:
    """Return the character of an escape; nothing for a control character."""
    kind, text = match.lastgroup or "", match[match.lastgroup or 0]
    if kind == "control":
        return b""
    if kind == "entity":
        return _ENTITIES[text]
    if kind in ("x", "percent", "octal"):
        return bytes([int(text, 8 if kind == "octal" else 16)])
    if kind == "low":
        number = 0x10000 + ((int(match["u"], 16) - 0xD800) << 10) + int(text, 16) - 0xDC00
    else:
        number = int(text, 10 if kind == "decimal" else 16)
    if 0 <= number < 0x110000:
        return chr(number).encode("utf-8", "surrogatepass")
    return b""


def _point(match: re.Match[bytes]) -> bytes:
    """Return the character of an escape in Python's ``repr`` of a text, where \\xe9 is U+00E9 and
    not a byte.
    """
    if match["x"]:
        return chr(int(match["x"], 16)).encode()
    return character(match)


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that was made from data, and where each of its pieces came from: offsets in the text,
    and in the data.

    ``end`` is where the data end. ``within``: the data were made from others themselves, to which
    offsets refer in the end.
    """

    text: bytes
    starts: Sequence[int]
    places: Sequence[tuple[int, int]]
    within: Reading | None = None
    end: int = 0

    @classmethod
    def of(cls, data: bytes, decoder: Decoder | None) -> Reading:
        """Return a decoded text as in `readings`; without a decoder, the data without the bytes
        that are dropped.
        """
        if not decoder:
            return replace(
                cls._join((run[0], run.span()) for run in _KEPT.finditer(data)), end=len(data)
            )
        whole = cls.unwrap(data)
        return replace(cls._join(_characters(whole.text, decoder)), within=whole, end=len(data))

    @classmethod
    def unwrap(cls, data: bytes) -> Reading:
        """Return the data without what wraps them."""
        return cls._join(_split_wraps(data))

    @classmethod
    def _join(cls, pieces: Iterable[tuple[bytes, tuple[int, int]]]) -> Reading:
        texts, places = [], []
        for text, place in pieces:
            texts.append(text)
            places.append(place)
        starts = [0, *accumulate(map(len, texts))]
        return cls(b"".join(texts), starts, places)

    def raw(self, offset: int) -> tuple[int, int]:
        """Return the place in the data of the byte at an offset of the text: its first byte, and
        the one after it.
        """
        index = bisect_right(self.starts, offset) - 1
        start, stop = self.places[index]
        if self.starts[index + 1] - self.starts[index] == stop - start:  # not an escape
            start += offset - self.starts[index]
            stop = start + 1
        if self.within:
            return (self.within.raw(start)[0], self.within.raw(stop - 1)[1])
        return (start, stop)


def _split_wraps(data: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    position = 0
    for match in _wrap(data).finditer(data):
        yield data[position : match.start()], (position, match.start())
        position = match.end()
    yield data[position:], (position, len(data))


def _characters(data: bytes, decoder: Decoder) -> Iterator[tuple[bytes, tuple[int, int]]]:
    position = 0
    for match in (*_ESCAPE.finditer(data), None):
        for run in _KEPT.finditer(data, position, match.start() if match else len(data)):
            yield run[0], run.span()
        if match:
            yield plain(decoder(match)), match.span()
            position = match.end()
