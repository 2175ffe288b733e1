"""A cell as every output shows it, with tables if it measured something other than training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.results.grids import Grid

__all__ = ["Entry", "Sheet"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell as every output shows it, whatever it measures.

    ``n`` counts its good repeats, ``planned`` all; ``failed``, ``interrupted``, ``running`` and ``never_run`` count those that
    have no number, as in `planned.Counts`. ``options`` holds the other settings of the spec that differ between the cells of
    the bench.
    """

    series: str
    framework: str
    model: str
    dtype: str
    device: str
    shape: str
    nodes: int
    gpus: int
    world_size: int
    options: Mapping[str, Any]
    simulated: bool
    n: int
    planned: int
    failed: int
    interrupted: int
    running: int
    never_run: int
    qualifications: tuple[str, ...]
    failures: tuple[str, ...]
    run_ids: tuple[str, ...]
    hardware: str


@dataclass(frozen=True, slots=True)
class Sheet(Entry):
    """One cell of a bench that measures something other than training."""

    measures: str
    grids: tuple[Grid, ...]
    said: tuple[str, ...]
    culprits: tuple[str, ...]
