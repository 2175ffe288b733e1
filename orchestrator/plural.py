"""Counts and lists in words.

>>> plural(1, "run"), plural(3, "run"), plural(2, "process", "processes")
('1 run', '3 runs', '2 processes')
>>> times(1), times(4)
('once', '4 times')
>>> with_article("bench"), with_article("acceptance")
('a bench', 'an acceptance')
>>> join_words(["run"]), join_words(["run", "bench"]), join_words(["a", "b", "c"], "or")
('run', 'run and bench', 'a, b or c')
"""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, one: str, several: str = "") -> str:
    """Return a count with its noun. ``several``: the noun's plural, where it does not end in s."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def times(count: int) -> str:
    """Return a count of events."""
    return "once" if count == 1 else f"{count} times"


def with_article(noun: str) -> str:
    """Return a noun after its article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return words as a list in a sentence, ``last`` standing before the last of them."""
    *before, end = words or [""]
    return f"{', '.join(before)} {last} {end}" if before else end
