"""The overviews of a site: its list of benches, trends, comparisons, nodes over time, acceptances.

Everything can be read without a script. A script only searches and sorts the list, and finds the
comparison of two benches or shows their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.past_cells import PastCell, in_title_order, title_of
from orchestrator.features.site.catalogue import AcceptanceEntry, BenchEntry, NodePast
from orchestrator.features.site.choices import choices, fields_of
from orchestrator.features.site.template import fill
from orchestrator.features.site.trend_charts import LINES, SIGNS, over_time
from orchestrator.grouping import group_pairs
from orchestrator.report.html.navigation import links_of
from orchestrator.report.html.svg import drawing

_SHOWN_NODES = 12
"""Benches and failures of a node that are named, the newest ones."""


@dataclass(frozen=True, slots=True)
class Site:
    """The content of overviews. Benches and acceptances are the oldest first; ``earlier`` has for
    the page of each compared bench the pages of the benches that it is compared with; ``damaged``
    says by name what cannot be read, ``as_of`` is the time of it."""

    benches: Sequence[BenchEntry]
    acceptances: Sequence[AcceptanceEntry]
    nodes: Sequence[NodePast]
    earlier: Mapping[str, Sequence[str]]
    damaged: Mapping[str, str]
    as_of: str


@dataclass(frozen=True, slots=True)
class _Line:
    label: str
    cells: tuple[PastCell, ...]


@dataclass(frozen=True, slots=True)
class _Trend:
    title: str
    unit: str
    lines: tuple[_Line, ...]
    charts: tuple[tuple[str, tuple[str, ...]], ...]


def pages(site: Site, home: str = "") -> dict[str, str]:
    """Return the text of each overview by the name of its file; ``home`` as in `links_of`."""
    common = {
        "site": site,
        "links": links_of(home=home, above=""),
        "entries": {entry.name: entry for entry in site.benches},
        "verdicts": {entry.name: entry for entry in site.acceptances},
    }
    trends = _trends([cell for entry in site.benches for cell in entry.cells if cell.primary])
    return {
        "index.html": fill("index.html.j2", here="Benches", **common),
        "trends.html": fill(
            "trends.html.j2", here="Trends", trends=trends, colours=LINES, signs=SIGNS, **common
        ),
        "compare.html": fill(
            "compare.html.j2", here="Compare", choices=choices(site.benches, site.earlier), **common
        ),
        "nodes.html": fill("nodes.html.j2", here="Nodes", most=_SHOWN_NODES, **common),
        "acceptances.html": fill("acceptances.html.j2", here="Acceptances", **common),
    }


def _trends(cells: Sequence[PastCell]) -> list[_Trend]:
    """Return the trend of each series of the history, first of those with a line of two points or
    more, which have charts.
    """
    newest = {cell.spec: cell for cell in cells}
    titles = {spec: title_of(cell) for spec, cell in newest.items()}
    trends = []
    with drawing():
        for place, title in enumerate(in_title_order(tuple(newest.values()))):
            by_spec = group_pairs(
                (cell.spec, cell)
                for cell in sorted(cells, key=lambda cell: (len(cell.shape), cell.shape))
                if titles[cell.spec] == title
            )
            labels = _labels({spec: of_spec[0].shape for spec, of_spec in by_spec.items()})
            lines = tuple(
                _Line(
                    labels[spec],
                    tuple(sorted(of_spec, key=lambda cell: (cell.created, cell.bench_id))),
                )
                for spec, of_spec in by_spec.items()
            )
            trends.append(
                _Trend(title, lines[0].cells[0].unit, lines, _charts(lines, title, f"t{place}"))
            )
    return sorted(trends, key=lambda trend: not trend.charts)


def _charts(
    lines: Sequence[_Line], title: str, prefix: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return charts of the lines with several points, each with the labels of its lines."""
    drawn = []
    for line in lines:
        points = [cell for cell in line.cells if cell.value is not None and cell.days is not None]
        if len(points) > 1:
            drawn.append((line.label, points))
    charts = []
    for place, start in enumerate(range(0, len(drawn), len(LINES))):
        labels, parts = zip(*drawn[start : start + len(LINES)], strict=True)
        charts.append((over_time(parts, title, f"{prefix}p{place}-"), labels))
    return tuple(charts)


def _labels(shapes: Mapping[str, str]) -> dict[str, str]:
    """Return a name for each spec of a series: its shape, and where several have it, the fields in
    which these differ.
    """
    labels = {}
    for spec, shape in shapes.items():
        alike = [fields_of(other) for other, its_shape in shapes.items() if its_shape == shape]
        names = dict.fromkeys(name for fields in alike for name in fields)
        own = fields_of(spec)
        words = [shape]
        for name in names:
            if len({json.dumps(fields.get(name)) for fields in alike}) > 1:
                words.append(f"{name.split('.')[-1]}={own.get(name, '(not set)')}")
        labels[spec] = " ".join(words)
    return labels
