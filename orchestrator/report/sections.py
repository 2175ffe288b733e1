"""Sections that features show beside a bench's tables: on a terminal, in the JSON of a summary, and
on its page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console

from orchestrator.feature import providers
from orchestrator.record import BenchDir
from orchestrator.results import RunResult
from orchestrator.results.summary import Summary


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A step as a feature predicts it: its seconds, and the share of them that communication adds,
    None if it is not known.
    """

    step_s: float
    communication: float | None


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of a section.

    ``options`` names the sections that are shown only on request. ``predicted`` has the predictions
    of earlier sections, by series and shape.
    """

    bench: BenchDir
    summary: Summary
    results: Sequence[RunResult]
    options: frozenset[str] = frozenset()
    predicted: Mapping[tuple[str, str], PredictedStep] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """The markup of a section, ``first`` above the tables of a bench and ``last`` below them, and
    of the terms it explains.
    """

    first: str = ""
    last: str = ""
    terms: str = ""


class Section(Protocol):
    """A section of a bench."""

    @property
    def predicted(self) -> Mapping[tuple[str, str], PredictedStep]:
        """Its predictions, by series and shape; most sections predict nothing."""
        return {}

    def documents(self) -> Mapping[str, object]:
        """Return the keys that it adds to the JSON of a summary."""

    def render(self, console: Console) -> None:
        """Print it below the tables."""

    def page(self) -> Page:
        """Return its markup."""


def sections_of(
    bench: BenchDir,
    summary: Summary,
    results: Sequence[RunResult],
    options: frozenset[str] = frozenset(),
) -> tuple[Section, ...]:
    """Return the sections of a bench that have something to show. A module that provides one has
    ``section_of(asked)``, which returns None for nothing, and ``ORDER``, its place among the
    others."""
    made: list[Section] = []
    predicted: dict[tuple[str, str], PredictedStep] = {}
    for module in sorted(providers("section"), key=lambda module: int(module.ORDER)):
        section = module.section_of(Asked(bench, summary, results, options, predicted))
        if section:
            made.append(section)
            predicted |= section.predicted
    return tuple(made)
