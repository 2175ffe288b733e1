"""A bench compared with published tables: what ``--against published`` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.features.published.folders import read_published_files
from orchestrator.features.published.nearest import NearestRecord, nearest_records
from orchestrator.features.published.reference import reference_tables
from orchestrator.report.references import ReferenceTable
from orchestrator.results.summary import Summary

if TYPE_CHECKING:
    from rich.console import Console

SOURCE = "published"


def compare(summary: Summary, bases: Sequence[Path]) -> PublishedReference:
    """Return a summary compared with the published tables of the framework folders."""
    files = tuple(read_published_files(bases).values())
    tables, without_table = reference_tables(summary, files)
    return PublishedReference(tables, without_table, tuple(nearest_records(summary, files)))


@dataclass(frozen=True, slots=True)
class PublishedReference:
    """Series beside published tables, and language models beside their nearest published rows.
    ``without_table`` has a note for each series that no table fits."""

    tables: tuple[ReferenceTable, ...]
    without_table: tuple[str, ...]
    nearest: tuple[NearestRecord, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes, and the nearest rows as sentences."""
        from orchestrator.features.published.language_report import nearest_text

        return (*self.without_table, *map(nearest_text, self.nearest))

    def documents(self) -> Mapping[str, object]:
        """Return the keys ``published``, ``published_nearest`` and ``published_notes``."""
        return {
            "published": [asdict(table) for table in self.tables],
            "published_nearest": [asdict(record) for record in self.nearest],
            "published_notes": list(self.without_table),
        }

    def render(self, console: Console) -> None:
        """Print a table for each comparison."""
        from orchestrator.features.published import language_report, report

        report.reference_tables(self.tables, self.without_table, console)
        language_report.nearest_table(self.nearest, console)
