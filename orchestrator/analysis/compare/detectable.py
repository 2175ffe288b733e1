"""Plan the power of a comparison: the smallest change that the repeats of a bench can show, and the
repeats that a change takes.

The scatter is measured in the bench, without its drift; `results/numbers/power.py` has the
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.compare.benches import counterparts
from orchestrator.analysis.compare.cells import CellPair, compare_cells
from orchestrator.errors import ConfigError
from orchestrator.record import BenchDir
from orchestrator.results import Cell
from orchestrator.results.numbers.power import least_change, repeats_to_exclude, repeats_to_find


@dataclass(frozen=True, slots=True)
class Detectable:
    """The changes that ``repeats`` of a configuration in each of two benches can show.

    Shares of 1: the ``scatter`` of a run, the ``least`` change found in nine of ten comparisons,
    and ``least_failing``, the least regression that fails `orch gate` in nine of ten. Repeats of
    each bench, None if 200 would not do: ``needed`` to find the planned change in nine of ten,
    ``to_pass`` for an unchanged configuration to pass `orch gate` in nine of ten. ``freedom`` are
    the degrees of freedom of the scatter. All are None with fewer than two repeats. ``benches``
    are those whose runs show it.
    """

    case: str
    metric: str
    benches: tuple[str, ...]
    repeats: int
    scatter: float | None = None
    freedom: float | None = None
    least: float | None = None
    needed: int | None = None
    to_pass: int | None = None
    least_failing: float | None = None


def detectable(
    benches: Sequence[BenchDir], change: float, margin: float, metric: str = ""
) -> tuple[Detectable, ...]:
    """Return the detectable changes of each configuration of one bench or two.

    A configuration whose spec both have shows the scatter of both. ``change`` and ``margin`` are
    shares of 1: the change to be found, and the slowdown that `orch gate` allows. Raise as
    `counterparts` does, and ConfigError if there are no configurations.
    """
    matched = counterparts(benches[0], benches[-1], metric=metric)
    names = [bench.record().bench_id for bench in matched.benches]
    by_key: dict[str, dict[str, Cell]] = {}
    for name, cells in zip(names, matched.cells, strict=True):
        for cell in cells:
            by_key.setdefault(cell.key(), {})[name] = cell
    of_benches = [tuple(of_key) for of_key in by_key.values()]
    cells_of_pairs = [list(of_key.values()) for of_key in by_key.values()]
    pairs = compare_cells([(cells[0], cells[-1]) for cells in cells_of_pairs], margin)
    if not pairs:
        raise ConfigError(
            "expected a configuration, got none",
            where=f"--plan: {' and '.join(dict.fromkeys(names))}",
        )
    return tuple(
        _of_pair(pair, shown_by, change, margin, len(pairs))
        for pair, shown_by in zip(pairs, of_benches, strict=True)
    )


def _of_pair(
    pair: CellPair, benches: tuple[str, ...], change: float, margin: float, comparisons: int
) -> Detectable:
    repeats, scatter = min(pair.before.n, pair.after.n), pair.scatter
    if scatter is None:
        return Detectable(pair.case, pair.metric, benches, repeats)
    return Detectable(
        pair.case,
        pair.metric,
        benches,
        repeats,
        math.expm1(scatter.deviation),
        scatter.freedom,
        least_change(scatter, repeats, comparisons=comparisons),
        repeats_to_find(scatter, change, comparisons=comparisons),
        repeats_to_exclude(scatter, -math.log1p(-margin)),
        least_change(scatter, repeats, margin, comparisons),
    )


def repeats_to_settle(pair: CellPair, margin: float) -> int | None:
    """Return the repeats of each bench with which nine of ten intervals of a change as large as the
    measured one do not reach the ``margin``, a share of 1; None if 200 would not do."""
    if pair.scatter is None or pair.gain_ratio is None:
        return None
    needed = repeats_to_exclude(pair.scatter, abs(math.log(pair.gain_ratio) - math.log1p(-margin)))
    if needed is None:
        return None
    return max(needed, min(pair.before.n, pair.after.n) + 1)
