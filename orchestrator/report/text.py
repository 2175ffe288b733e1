"""Text from nodes, made safe for a terminal: control characters are shown as escapes, not sent.

>>> visible("\\x1b[2Jgone \\u202egnp.exe")
'\\\\x1b[2Jgone \\\\u202egnp.exe'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["lines_of", "one_line", "visible"]

# C0 except tab and newline, DEL, C1, bidirectional controls, line and paragraph separators,
# unpaired surrogates, and the two noncharacters U+FFFE and U+FFFF, which XML 1.0 forbids like most
# of the others.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LONGEST = 1 << 20


def visible(text: str) -> str:
    """Return ``text`` with every control character replaced by its escape; newline and tab stay."""
    return _STEERING.sub(lambda match: _escape(match[0]), text)


def one_line(text: str) -> str:
    """Return ``text`` as a single line, for example for a table cell: newline and tab are escaped
    as well.
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a log that arrives in pieces, each when it is complete: a character or a
    secret that is split between two pieces is joined again. A line without an end is yielded in
    parts of about 1 MiB.
    """
    held = b""
    for piece in pieces:
        *whole, held = (held + piece).splitlines(keepends=True) or [b""]
        if held.endswith(b"\n") or len(held) > _LONGEST:
            whole, held = [*whole, held], b""
        yield from map(_line, whole)
    if held:
        yield _line(held)


def _line(data: bytes) -> str:
    return data.rstrip(b"\r\n").decode("utf-8", "backslashreplace")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
