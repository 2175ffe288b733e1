"""Text from nodes, made safe for a terminal: control characters are shown as escapes, not sent; and
the console that it is printed on.

>>> visible("\\x1b[2Jgone \\u202egnp.exe")
'\\\\x1b[2Jgone \\\\u202egnp.exe'
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast

if TYPE_CHECKING:
    from rich.console import Console

# C0 except tab and newline, DEL, C1, bidirectional controls, line and paragraph separators,
# unpaired surrogates, and the two noncharacters U+FFFE and U+FFFF, which XML 1.0 forbids like most
# of the others.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LONGEST = 1 << 20
_NARROWEST = 20
"""Columns of the narrowest terminal for which lines are broken; some tell 0."""
_Key: TypeAlias = "tuple[str, int]"
"""A line and how many of its kind its log had until then."""


def visible(text: str) -> str:
    """Return ``text`` with every control character replaced by its escape; newline and tab stay."""
    return _STEERING.sub(lambda match: _escape(match[0]), text)


def one_line(text: str) -> str:
    """Return ``text`` as a single line, for example for a table cell: newline and tab are escaped
    as well.
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def fit(text: str, stream: TextIO) -> str:
    """Return lines as wide as the terminal that ``stream`` is, broken between words; what follows
    is indented to the text after the first gap, or by two. Unchanged for anything but a terminal.
    """
    if not stream.isatty():
        return text
    import shutil
    import textwrap

    width = shutil.get_terminal_size((0, 0)).columns
    if width < _NARROWEST:
        return text
    lines = []
    for line in text.split("\n"):
        lead = re.match(r" *(?:\S+ {2,})?", line)
        indent = len(lead[0]) if lead else 0
        if not 0 < indent <= width // 2:
            indent = len(line) - len(line.lstrip()) + 2
        words = textwrap.TextWrapper(
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(words.fill(line) if len(line) > width else line)
    return "\n".join(lines)


class _Trimmed:
    """A stream that gets no blanks before the end of a line: rich fills each line up with them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r" +(?=\n)", "", text))
        return len(text)


def stdout_console() -> Console:
    """Return the console of standard output."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(file=cast(Any, _Trimmed(sys.stdout)))


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


def merge_lines(logs: Sequence[Iterable[str]]) -> Iterator[tuple[str, list[int]]]:
    """Yield each line of several logs once, with the numbers of the logs that have it. A line that
    only later logs have stands before the next line that earlier ones have too, else at the end; a
    line that a log has twice is two lines.

    >>> list(merge_lines([["a", "b", "c"], ["a", "x", "c"], ["a", "c", "c"]]))
    [('a', [0, 1, 2]), ('b', [0]), ('x', [1]), ('c', [0, 1, 2]), ('c', [2])]
    """
    places: dict[_Key, list[int]] = {}
    previous: dict[_Key | None, _Key | None] = {None: None}
    for number, log in enumerate(logs):
        seen = Counter[str]()
        added: _Key | None = None
        for line in log:
            seen[line] += 1
            key = (line, seen[line])
            places.setdefault(key, []).append(number)
            if key not in previous:
                previous[key], added = added, key
                continue
            _join(previous, added, key)
            added = None
        _join(previous, added, None)
    ordered, at = [], previous[None]
    while at:
        ordered.append(at)
        at = previous[at]
    for key in reversed(ordered):
        yield key[0], places[key]


def _join(
    previous: dict[_Key | None, _Key | None], last: _Key | None, following: _Key | None
) -> None:
    """Put new lines, of which only the last is named, before one that is known; None is the end."""
    if last is None:
        return
    first = last
    while (before := previous[first]) is not None:
        first = before
    previous[first], previous[following] = previous[following], last


def _line(data: bytes) -> str:
    return data.rstrip(b"\r\n").decode("utf-8", "backslashreplace")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
