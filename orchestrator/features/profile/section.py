"""The traces of a bench as a section of its summary and its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.features.profile.bench import Profiled, read_profiles
from orchestrator.report.sections import Asked, Page, PredictedStep, Section

if TYPE_CHECKING:
    from rich.console import Console

ORDER = 30


def section_of(asked: Asked) -> ProfileSection | None:
    """Return the traces of a bench, None for one without any."""
    profiles = read_profiles(asked.bench, asked.summary, asked.results)
    if not profiles:
        return None
    return ProfileSection(profiles, dict(asked.predicted))


@dataclass(frozen=True, slots=True)
class ProfileSection(Section):
    """The traces of a bench, beside the communication that is predicted."""

    profiles: tuple[Profiled, ...]
    beside: Mapping[tuple[str, str], PredictedStep]

    def documents(self) -> Mapping[str, Any]:
        """Return the key ``profiled``."""
        from orchestrator.features.profile.report import documents

        return {"profiled": documents(self.profiles, self.beside)}

    def render(self, console: Console) -> None:
        """Print a line for each configuration."""
        from orchestrator.features.profile.report import render

        render(self.profiles, self.beside, console)

    def page(self) -> Page:
        """Return a table of all traces."""
        from orchestrator.features.profile.report import table
        from orchestrator.report.html.template import fill_section

        return Page(last=fill_section(__package__, table=table(self.profiles, self.beside)))
