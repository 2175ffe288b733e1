"""A cell as every output tells it, and with tables where it trained nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.results.grids import Grid

if TYPE_CHECKING:
    pass

__all__ = ["Entry", "Sheet"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell as every output tells it, whatever it measures. ``n`` counts its good repeats, ``failed`` the others;
    ``options`` holds what else of the spec differs between the cells of the bench."""

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
    failed: int
    qualifications: tuple[str, ...]
    failures: tuple[str, ...]
    run_ids: tuple[str, ...]
    hardware: str


@dataclass(frozen=True, slots=True)
class Sheet(Entry):
    """One cell of a bench that trains nothing."""

    measures: str
    grids: tuple[Grid, ...]
    said: tuple[str, ...]
    culprits: tuple[str, ...]
