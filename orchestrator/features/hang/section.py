"""The hangs of a bench as a section of its summary and its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.features.hang.bench import Hang, hangs_of_bench
from orchestrator.report.sections import Asked, Page, Section

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.record import BenchDir
    from orchestrator.results import RunResult

ORDER = 10


def section_of(asked: Asked) -> HangSection | None:
    """Return the hangs of a bench, None without any."""
    hangs = hangs_of_bench(asked.bench, asked.results)
    return HangSection(hangs) if hangs else None


def remarks(bench: BenchDir, results: Sequence[RunResult]) -> Iterator[tuple[str, str]]:
    """Yield the verdict on each hang with the node of the ranks that it names, empty if they are
    not of one node.
    """
    for hang in hangs_of_bench(bench, results):
        if hang.host:
            yield hang.host, f"{hang.run_id} was ended: {hang.sentence}"
        elif hang.sentence:
            yield "", f"{hang.run_id}: {hang.sentence}"


@dataclass(frozen=True, slots=True)
class HangSection(Section):
    """The hangs of a bench in the order of its runs."""

    hangs: tuple[Hang, ...]

    def documents(self) -> Mapping[str, Any]:
        """Return the key ``hangs``."""
        from orchestrator.features.hang.report import documents

        return {"hangs": documents(self.hangs)}

    def render(self, console: Console) -> None:
        """Print the verdict on each hang, and a line for each rank."""
        from orchestrator.features.hang.report import render

        render(self.hangs, console)

    def page(self) -> Page:
        """Return the verdicts, with a table and the stacks of the ranks."""
        from orchestrator.features.hang.report import COLUMNS, table
        from orchestrator.report.html.template import fill_section

        return Page(
            first=fill_section(
                __package__, hangs=list(map(table, self.hangs)), hang_columns=COLUMNS
            )
        )
