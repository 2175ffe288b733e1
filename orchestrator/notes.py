"""Notes: remarks beside numbers, as values. Code asks for a note's code and never searches its
words.

A kind of note has a code, which programs filter by, a severity, and words with places for the
fields of a note. `logs/notes.py`, `results/notes.py` and the `notes.py` of features define the
kinds; a page of `docs` says when each is given.

>>> SLOW = Kind("slow_node", DOUBT, "{host} takes {longer:.1%} longer", "; take {host} out")
>>> note = SLOW(host="node2", longer=0.031)
>>> note, note.code, note.severity, note.plain
('node2 takes 3.1% longer; take node2 out', 'slow_node', 'doubt', 'node2 takes 3.1% longer')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

DOUBT = "doubt"
"""The number may be wrong, or is less certain than it looks."""
REMARK = "remark"
"""To know what was measured; the number is as good as without it."""
REFUSAL = "refusal"
"""Something that was asked for has no number."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of note. ``words`` are a format string; ``hint`` is its end, what to do about it, for
    who can do that.
    """

    code: str
    severity: str
    words: str
    hint: str = ""

    def __call__(self, **fields: Any) -> Note:
        """Return a note of this kind with its words filled in."""
        return Note(self, fields)


class Extent(tuple[float, ...]):
    """The values of one field in several runs, written as their extent: ``45 to 57``."""

    def __format__(self, spec: str) -> str:
        return " to ".join(dict.fromkeys(format(value, spec) for value in (min(self), max(self))))


class Note(str):
    """A sentence with its kind and the values in it.

    As a text it sorts, compares and is written like its words, beside notes of earlier records,
    which have no code.
    """

    __slots__ = ("fields", "kind")
    kind: Kind
    fields: Mapping[str, Any]

    def __new__(cls, kind: Kind, fields: Mapping[str, Any]) -> Note:  # noqa: D102 as __init__ of other classes
        note = super().__new__(cls, (kind.words + kind.hint).format(**fields))
        note.kind, note.fields = kind, fields
        return note

    def __getnewargs__(self) -> tuple[Kind, Mapping[str, Any]]:  # type: ignore[override]
        return self.kind, self.fields

    def __deepcopy__(self, memo: object) -> Note:
        return self

    @property
    def code(self) -> str:
        """The code that programs filter by."""
        return self.kind.code

    @property
    def severity(self) -> str:
        """`DOUBT`, `REMARK` or `REFUSAL`."""
        return self.kind.severity

    @property
    def plain(self) -> Note:
        """The note without its hint."""
        return Note(replace(self.kind, hint=""), self.fields)

    def but(self, **fields: Any) -> Note:
        """Return the note with other values in these fields."""
        return Note(self.kind, {**self.fields, **fields})

    def about(self, name: str) -> Note:
        """Return the note with the name of what it is about before it."""
        return Note(
            replace(self.kind, words=f"{{about}}: {self.kind.words}"),
            {**self.fields, "about": name},
        )


OTHER = Kind("other", REMARK, "{text}")


def as_note(text: str) -> Note:
    """Return a text of a record, which has no code, as a note."""
    return text if isinstance(text, Note) else OTHER(text=text)


def merge_notes(notes: Iterable[Note]) -> list[Note]:
    """Return notes of several runs, those that differ only in measured values as one with the
    extent of these.

    >>> SENT = Kind("sent", DOUBT, "{host} sent {most:.0f} bytes")
    >>> merge_notes(SENT(host=host, most=most) for host, most in [("a", 45.0), ("b", 1.0), ("a", 57.0)])
    ['a sent 45 to 57 bytes', 'b sent 1 bytes']
    """
    alike: dict[tuple[Kind, str], list[Note]] = {}
    for note in notes:
        rest = {name: value for name, value in note.fields.items() if type(value) is not float}
        alike.setdefault((note.kind, repr(rest)), []).append(note)
    merged = []
    for first, *others in alike.values():
        extents = {
            name: Extent([value, *(note.fields[name] for note in others)])
            for name, value in first.fields.items()
            if type(value) is float
        }
        merged.append(first.but(**extents) if others else first)
    return merged
