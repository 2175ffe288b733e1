"""The page of each bench beside earlier ones that measured the same: the one before in full, others
by their numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.analysis.compare import Comparison, compare
from orchestrator.analysis.compare.cells import compare_cells, match_cells
from orchestrator.errors import OrchError
from orchestrator.features.site.catalogue import BenchEntry
from orchestrator.features.site.comparison import Beside, comparison_page
from orchestrator.record import BenchDir
from orchestrator.report.html.navigation import links_of
from orchestrator.results import Cell

MOST_EARLIER = 30
"""Earlier benches with equal configurations that the page of a bench has; `orch compare` compares
any two.
"""
_LOOKED_AT = 10
"""Benches before it that are also compared if their configurations differ in a field that was
changed for all.
"""


@dataclass(frozen=True, slots=True)
class ComparisonJob:
    """A page to make: a bench and the ``earlier`` ones that it is compared with.

    Benches with equal configurations come first, each the newest first. ``mark`` changes with the
    input.
    """

    runs: Path
    bench: BenchEntry
    earlier: tuple[BenchEntry, ...]
    mark: str
    folder: Path
    home: str

    @property
    def page(self) -> str:
        """The name of its file, without extension: the bench's page."""
        return self.bench.page

    @property
    def earlier_pages(self) -> tuple[str, ...]:
        """The pages of the benches that it is compared with."""
        return tuple(entry.page for entry in self.earlier)


def comparison_jobs(
    runs: Path, benches: Sequence[BenchEntry], folder: Path, home: str
) -> Iterator[ComparisonJob]:
    """Yield the comparison of each bench with earlier ones that measured the same, or differ in
    what was changed for all.

    ``benches`` are the oldest first.
    """
    cells = [entry.compared_cells() for entry in benches]
    keys = []
    for of_bench in cells:
        keys.append({cell.key() for cell in of_bench})
    for place, entry in enumerate(benches):
        before = range(place - 1, -1, -1)
        alike = [benches[other] for other in before if keys[other] & keys[place]][:MOST_EARLIER]
        changed = [other for other in before[:_LOOKED_AT] if not keys[other] & keys[place]]
        alike += [benches[other] for other in changed if _correspond(cells[other], cells[place])]
        if alike:
            made_of = [entry.mark, *(f"{other.name} {other.mark} {other.label}" for other in alike)]
            mark = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
            yield ComparisonJob(runs, entry, tuple(alike), mark, folder, home)


def _correspond(before: Sequence[Cell], after: Sequence[Cell]) -> bool:
    """Return whether configurations of two benches correspond that measure the same model."""
    return any(
        first.spec.model == second.spec.model for first, second in match_cells(before, after)
    )


def write_comparisons(jobs: Sequence[ComparisonJob]) -> list[int]:
    """Write the pages of comparisons; return 1 for each."""
    for job in jobs:
        path = job.folder / "compare" / f"{job.page}.html"
        path.write_text(_page(job), encoding="utf-8")
    return [1] * len(jobs)


def _page(job: ComparisonJob) -> str:
    after = job.bench.compared_cells()
    beside = [
        Beside(entry, compare_cells(match_cells(entry.compared_cells(), after)))
        for entry in job.earlier
    ]
    detail, why = _detail(job)
    return comparison_page(job.bench, detail, why, beside, links_of(job.page, job.home))


def _detail(job: ComparisonJob) -> tuple[Comparison | None, str]:
    """Return the whole comparison with the bench before, or why there is none."""
    try:
        before, after = (
            BenchDir.open(job.runs / entry.name) for entry in (job.earlier[0], job.bench)
        )
        return compare(before, after)[0], ""
    except (OrchError, OSError) as error:
        return None, str(error)
