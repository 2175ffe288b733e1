"""The verdict on a run that did not go on, as its controller records it in the manifest: which rank
or link is the cause.

`orchestrator.features.hang` makes it from what the nodes saw.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.documents import Invalid, Reader, document_field

VERDICT_KEY = "hang"
"""The key of the verdict in the outcome of a manifest."""

MOST_NAMED = 16
_REQUIRED = document_field(required=True)
_READER = Reader(most_text=2000)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause of a hang.

    ``kind`` is what the named ranks do, `link`, `disagree`, `pause`, `going` if it went on after all,
    or `unknown`, which names nobody. ``ranks`` are those named, on ``host``; both are empty where no
    rank is. Of ranks on several nodes ``host`` is empty, and ``words`` begin with the nodes.
    ``words`` and ``rest`` make the sentence.

    >>> told = Verdict("stopped", "stopped in step 118 (state T)", "; rank 0 waits in all-reduce 119", "node3", (2,))
    >>> told.sentence
    'rank 2 on node3 stopped in step 118 (state T); rank 0 waits in all-reduce 119'
    """

    kind: str
    words: str
    rest: str = field(default="", metadata=_REQUIRED)
    host: str = field(default="", metadata=_REQUIRED)
    ranks: tuple[int, ...] = field(default=(), metadata=_REQUIRED)

    def __post_init__(self) -> None:
        if any(rank < 0 for rank in self.ranks):
            raise ValueError(f"expected ranks, got {self.ranks}")

    @classmethod
    def of(cls, value: Any) -> Verdict | None:
        """Return the recorded verdict; None if there is none or it makes no sense."""
        try:
            return _READER.read(cls, value)
        except Invalid:
            return None

    @property
    def sentence(self) -> str:
        """The verdict with the node of the named ranks."""
        on = f" on {self.host}" if self.host else ""
        if self.ranks:
            return f"{subject(self.ranks)}{on} {self.words}{self.rest}"
        return self.words + self.rest

    @property
    def message(self) -> str:
        """The verdict for an error that has the node as its host."""
        if self.ranks:
            return f"{subject(self.ranks)} {self.words}{self.rest}"
        return self.words + self.rest

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """The part in which two looks have to agree."""
        return self.kind, self.host or ("" if self.ranks else self.words), self.ranks


def subject(numbers: tuple[int, ...]) -> str:
    """Return ranks as the subject of a sentence.

    >>> subject((2,)), subject((0, 1, 3))
    ('rank 2', 'ranks 0, 1, 3')
    """
    shown = [str(number) for number in numbers[:MOST_NAMED]] + (
        ["others"] if len(numbers) > MOST_NAMED else []
    )
    if len(numbers) == 1:
        return f"rank {shown[0]}"
    return f"ranks {', '.join(shown)}"
