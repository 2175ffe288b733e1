"""Published tables as values, and the arithmetic that recomputes their averages, medians and
speedups from the printed runs.

A table keeps what was printed, how its speedups were computed, and its known errors. `recompute`
does not repair anything: it compares what was printed with what follows from the runs.

>>> runs = {"1n1g": (2.0, 4.0), "1n2g": (5.0, 7.0)}
>>> speedups(runs, "median/median"), speedups(runs, "mean/latch", order=("1n2g", "1n1g"))
({'1n1g': 1.0, '1n2g': 2.0}, {'1n2g': 1.5, '1n1g': 1.0})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.features.published.figures import split_known
from orchestrator.features.published.language import LanguageTable
from orchestrator.plural import plural
from orchestrator.results import mean, median

BASELINE = "1n1g"
"""The case that speedups are relative to, unless a table says otherwise."""
LATCH = "mean/latch"
PLACES: Mapping[str, int] = {"speed": 2, "average": 2, "median": 2, "speedup": 2}
"""The decimal places of printed numbers, unless a table says otherwise."""
STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": median,
    "mean": mean,
    "min": min,
    "max": max,
}
"""What a printed speed may be of the runs."""
CENTRES: Mapping[str, Callable[[Sequence[float]], float]] = {
    **{f"{name}/{name}": statistic for name, statistic in STATISTICS.items()},
    "value/value": median,
    "none": median,
}
"""What a case and the baseline are represented by in a speedup, by divisor. A printed value stands
for itself.
"""
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """One row of a published table as printed, in samples/s. ``runs`` are (id, speed) in the order
    in which they were read.
    """

    case: str
    speed: float
    speedup: float | None = None
    average: float | None = None
    median: float | None = None
    runs: tuple[tuple[int, float], ...] = ()

    @property
    def speeds(self) -> tuple[float, ...]:
        """Speeds of the runs, or the printed speed if no runs were printed."""
        return tuple(speed for _, speed in self.runs) or (self.speed,)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One published table. ``divisor`` is how its speedups over ``baseline`` were computed:
    median/median, mean/mean, min/min, max/max, mean/latch, value/value, or none if none are
    printed. ``order`` is the order in which the cases were read, ``runs`` the stated number of runs
    per case, ``known`` its known errors as texts, ``places`` the decimal places of its numbers."""

    name: str
    title: str
    model: str
    dtype: str
    batch_size: int
    loader: str
    version: str
    hardware: str
    statistic: str
    divisor: str
    runs: int | None
    order: tuple[str, ...]
    variant: Mapping[str, Any]
    known: tuple[str, ...]
    notes: tuple[str, ...]
    cells: tuple[PublishedCell, ...]
    baseline: str = BASELINE
    places: Mapping[str, int] = field(default_factory=lambda: dict(PLACES))


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """The tables of one document. ``like`` names further frameworks whose runs may be compared with
    them, ``models`` maps orch's model names to names in log files; ``images`` is the size of
    the data set, 0 if not known. ``where`` is the path of the file, ``language`` are its tables of
    language models."""

    framework: str
    source: str
    like: tuple[str, ...]
    models: Mapping[str, str]
    images: int
    inconsistencies: tuple[str, ...]
    tables: tuple[PublishedTable, ...]
    where: str = ""
    language: tuple[LanguageTable, ...] = ()


@dataclass(frozen=True, slots=True)
class NumberCheck:
    """One printed number, and the number that follows from the other printed ones."""

    case: str
    what: str
    printed: float
    recomputed: float
    agrees: bool

    def __str__(self) -> str:
        return f"{self.case} {self.what} {self.printed:g}, recomputed {self.recomputed:.4f}"


@dataclass(frozen=True, slots=True)
class TableCheck:
    """A recomputed table. ``ours`` are the speedups by median/median. ``odd`` are disagreements
    that are known, ``undeclared`` those that are not; ``unseen`` are known errors that were not
    found."""

    table: PublishedTable
    checks: tuple[NumberCheck, ...]
    ours: Mapping[str, float] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    def of(self, case: str, kind: str) -> NumberCheck | None:
        """Return the check of one printed number, None if it was not printed or cannot be
        recomputed.
        """
        return next(
            (check for check in self.checks if (check.case, check.what) == (case, kind)), None
        )


def agrees(printed: float, exact: float, places: int = 2, slack: float = 0.0) -> bool:
    """Return True if ``exact`` rounds to ``printed``, to either side at a tie: the sources do not
    all round in the same way.
    """
    return abs(printed - exact) <= 0.5 * 10.0**-places + slack + _EPSILON * max(1.0, abs(exact))


def speedups(
    runs: Mapping[str, Sequence[float]],
    divisor: str,
    order: Sequence[str] = (),
    baseline: str = BASELINE,
) -> dict[str, float]:
    """Return the unrounded speedup of each case over the baseline; empty without it.

    ``mean/latch`` is what one published script did: it went through the cases in reading ``order``
    and divided each mean by the entry of the baseline, which held its last run until the baseline
    itself was processed. Only this one needs ``order``.
    """
    if baseline not in runs or divisor == "none":
        return {}
    if divisor == LATCH:
        return _latch(runs, order, baseline)
    centre = CENTRES[divisor]
    base = centre(runs[baseline])
    return {case: centre(speeds) / base for case, speeds in runs.items()}


def recompute(table: PublishedTable) -> TableCheck:
    """Return every printed number of a table with the one that follows from its runs, or from its
    speeds if it has no runs.
    """
    checks = [check for cell in table.cells for check in _cell_checks(cell, table)]
    exact = speedups(
        {cell.case: cell.speeds for cell in table.cells}, table.divisor, table.order, table.baseline
    )
    base = next((cell for cell in table.cells if cell.case == table.baseline), None)
    for cell in table.cells:
        if cell.speedup is not None and cell.case in exact:
            ratio = exact[cell.case]
            slack = _slack(cell, base, 0.5 * 10.0 ** -table.places["speed"])
            agree = agrees(cell.speedup, ratio, table.places["speedup"], slack)
            checks.append(NumberCheck(cell.case, "speedup", cell.speedup, ratio, agree))
    wrong = [str(check) for check in checks if not check.agrees]
    wrong += [
        f"{cell.case} has {plural(len(cell.runs), 'run')}, {table.runs} claimed"
        for cell in table.cells
        if cell.runs and table.runs and len(cell.runs) != table.runs
    ]
    return TableCheck(
        table,
        tuple(checks),
        ours=speedups(
            {cell.case: cell.speeds for cell in table.cells},
            "median/median",
            baseline=table.baseline,
        ),
        **split_known(wrong, table.known),
    )


def _cell_checks(cell: PublishedCell, table: PublishedTable) -> list[NumberCheck]:
    if not cell.runs:
        return []
    statistic = STATISTICS.get(table.statistic, median)
    numbers = (
        ("speed", cell.speed, statistic),
        ("average", cell.average, mean),
        ("median", cell.median, median),
    )
    checks = []
    for kind, printed, of_runs in numbers:
        if printed is not None:
            exact = of_runs(cell.speeds)
            checks.append(
                NumberCheck(
                    cell.case, kind, printed, exact, agrees(printed, exact, table.places[kind])
                )
            )
    return checks


def _slack(cell: PublishedCell, base: PublishedCell | None, half: float) -> float:
    """Return how far a quotient of two printed speeds may be off, since both were rounded by up to
    ``half``.
    """
    if base is None or cell.runs or cell is base:
        return 0.0
    return cell.speed / base.speed * (half / cell.speed + half / base.speed)


def _latch(
    runs: Mapping[str, Sequence[float]], order: Sequence[str], baseline: str
) -> dict[str, float]:
    cell = runs[baseline][-1]
    ratios = {}
    for case in order:
        average = mean(runs[case])
        if case == baseline:
            cell = average
        ratios[case] = average / cell
    return ratios
