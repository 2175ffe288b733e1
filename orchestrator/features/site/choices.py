"""Data for the script of a site's page Compare: for two benches the page that compares them, or
else the numbers of both.

Pages are made for pairs that measured the same, at most 40 a bench. The numbers of each bench are
here once, so that any two can be shown side by side, without a verdict: this grows with the number
of benches and not of their pairs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.past_cells import PastCell
from orchestrator.features.site.catalogue import BenchEntry
from orchestrator.report.cells import number, reach, repeats
from orchestrator.report.html.navigation import address
from orchestrator.report.text import one_line

MOST_CELLS = 60
"""Configurations of a bench whose numbers are there."""


def choices(benches: Sequence[BenchEntry], earlier: Mapping[str, Sequence[str]]) -> str:
    """Return JSON that may stand in a page. ``benches`` are the oldest first, ``earlier`` has for
    the page of each compared bench the pages of the benches that it is compared with.

    ``earlier`` has places of benches in the list, ``cells`` a place in ``specs``, the fields that
    measure the same, and texts.
    """
    place_of = {entry.page: place for place, entry in enumerate(benches)}
    specs: dict[str, int] = {}
    cells = [[_cell(cell, specs) for cell in _primary(entry)[:MOST_CELLS]] for entry in benches]
    content = {
        "pages": [address(entry.page) for entry in benches],
        "earlier": {
            place_of[page]: [place_of[other] for other in others]
            for page, others in earlier.items()
        },
        "names": [one_line(shlex.quote(entry.name)) for entry in benches],
        "titles": [
            one_line(f"{entry.name} {'(simulated)' if entry.simulated else ''}".strip())
            for entry in benches
        ],
        "left_out": [max(0, len(_primary(entry)) - MOST_CELLS) for entry in benches],
        "cells": cells,
        "specs": [
            {
                one_line(name): one_line(_format_value(value))
                for name, value in fields_of(spec).items()
            }
            for spec in specs
        ],
    }
    # In a script element no text is markup, except what ends it.
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def fields_of(spec: str) -> dict[str, Any]:
    """Return the fields of the spec of a past cell, options and variables as ``options.NAME`` and
    ``env.NAME``.
    """
    fields: dict[str, Any] = json.loads(spec)
    nested = (
        (f"{name}.{key}", part)
        for name, value in fields.items()
        if isinstance(value, dict)
        for key, part in value.items()
    )
    return {
        **{name: value for name, value in fields.items() if not isinstance(value, dict)},
        **dict(nested),
    }


def _primary(entry: BenchEntry) -> list[PastCell]:
    return [cell for cell in entry.cells if cell.primary]


def _cell(cell: PastCell, specs: dict[str, int]) -> list[Any]:
    place = specs.setdefault(cell.spec, len(specs))
    texts = (number(cell.value), reach(cell.interval), repeats(cell.n, cell.failed))
    return [place, *map(one_line, (cell.shape, cell.metric, cell.unit)), cell.value, *texts]


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
