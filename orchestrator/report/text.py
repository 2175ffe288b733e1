"""Text from nodes, made harmless for a terminal: what would steer it is shown, not sent.

>>> visible("\\x1b[2Jgone \\u202egnp.exe")
'\\\\x1b[2Jgone \\\\u202egnp.exe'
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

__all__ = ["one_line", "visible", "visible_pieces"]

# C0 but tab and newline, DEL, C1, bidirectional controls, line and paragraph separators, halves of surrogate pairs.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return ``text`` with every steering character written as its escape; newline and tab stay."""
    return _STEERING.sub(lambda match: _escape(match[0]), text)


def one_line(text: str) -> str:
    """Return ``text`` for a place of one line, such as a table cell: newline and tab are escaped as well."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_pieces(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield a log that arrives in pieces as harmless text; a character split between two pieces is put together first."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for piece in pieces:
        if text := decoder.decode(piece):
            yield visible(text)
    if rest := decoder.decode(b"", final=True):
        yield visible(rest)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
