"""The number of examples for a property: as many as it asks for or, in `make unit`, a fifth of
them.
"""

from __future__ import annotations

share = 1.0


def examples(count: int) -> int:
    """Return how many of ``count`` examples are tried; to be called where a test is declared."""
    return max(10, round(count * share))
