"""Reference figures beside a bench's own: on a terminal, in the JSON of a summary, and on its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from orchestrator.errors import ConfigError
from orchestrator.feature import providers
from orchestrator.results.summary import Summary


@dataclass(frozen=True, slots=True)
class Match:
    """One case. Speeds in samples/s, None if that side did not measure it; ``ratio`` is ``ours``
    over ``published``.
    """

    case: str
    ours: float | None
    published: float | None
    ratio: float | None
    our_speedup: float | None
    published_speedup: float | None


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """One series compared with one published table. ``ours`` and ``our_…`` are of the series."""

    series: str
    source: str
    title: str
    our_hardware: str
    published_hardware: str
    pairs: tuple[Match, ...]
    notes: tuple[str, ...]


class Reference(Protocol):
    """A summary compared with the figures of a source."""

    @property
    def tables(self) -> Sequence[ReferenceTable]:
        """The series compared with tables, which the page draws."""

    @property
    def notes(self) -> Sequence[str]:
        """Further notes on the page."""

    def documents(self) -> Mapping[str, object]:
        """Return the keys that it adds to the JSON of a summary."""

    def render(self, console: Console) -> None:
        """Print it below the tables."""


def compare_with(source: str, summary: Summary, bases: Sequence[Path]) -> Reference:
    """Return a summary compared with a source. A module that provides one has ``SOURCE``, its name,
    and
    ``compare(summary, bases)``. Raise ConfigError for a source that no feature has.
    """
    compared: Reference = _source(source).compare(summary, bases)
    return compared


def check_source(source: str) -> None:
    """Raise ConfigError for a source that no feature has."""
    _source(source)


def _source(name: str) -> Any:
    modules = {str(module.SOURCE): module for module in providers("reference")}
    if name not in modules:
        expected = (
            " or ".join(modules)
            or "no --against: this installation of orch has nothing to compare with"
        )
        raise ConfigError(f"expected {expected}, got {name!r}", where="--against")
    return modules[name]
