"""Compare two benches cell by cell: how much faster one is, how certain that is, and in which
fields they differ.

Cells of equal metric and key are compared. A ratio is of typical values, ``after`` over
``before``, each without the drift of its bench, as a summary shows them. Its interval includes the
scatter of each bench (`drift.typical_change`). A difference counts as significant only if two tests
agree: a permutation test, and Welch's test corrected for the number of cells. No test can
distinguish a difference from changed conditions, because the benches ran at different times; a
difference that may be smaller than a margin is therefore never reported as one. ``docs/compare.md``
describes the rule and its error rate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.logs.metrics import Metric
from orchestrator.plan.option_values import as_written
from orchestrator.results import Cell, Interval
from orchestrator.results.numbers.drift import chance_without_drift, typical_centre, typical_change
from orchestrator.results.numbers.intervals import Change, holm, least_chance
from orchestrator.results.numbers.power import Scatter, scatter_of
from orchestrator.results.numbers.throughput import WORTH
from orchestrator.results.qualifications import typical_of

ALL = "all"
"""In place of the name of a metric: every metric."""
MARGIN = WORTH
"""Share by which benches of equal specs may differ, because temperature, memory and placement are
never the same.
"""
LIMIT = 0.05
FASTER, SLOWER, SLIGHT, NONE = "faster", "slower", "slight", "no difference"
TOO_FEW, SAME, UNLIKE, NOTHING = (
    "too few repeats",
    "same runs",
    "simulated against real",
    "no number",
)
NOT_POSITIVE, OTHER_METRIC, OTHER_MODEL = "values not above 0", "other metric", "other model"
UNDECIDED = (TOO_FEW, SAME, UNLIKE, NOTHING, NOT_POSITIVE, OTHER_METRIC, OTHER_MODEL)
"""Reasons, in place of a verdict, why there is none."""


@dataclass(frozen=True, slots=True)
class Side:
    """One cell in one bench.

    ``typical`` is its typical value without the drift of the bench, which the change compares, or
    the mean if some values are not above 0. Both it and the median are in the unit of the metric,
    None without values. ``drift`` is the growth of values from the first run of the bench to the
    last because of that drift, as a fraction.
    """

    n: int
    failed: int
    median: float | None
    typical: float | None
    run_ids: tuple[str, ...]
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class CellPair:
    """A cell in both benches. ``differing`` names the fields of its spec that differ.

    ``permutation_p`` is the uncorrected value of this pair, ``corrected_p`` Welch's, corrected for
    the number of pairs, and ``p`` the larger one: both must be small. All are None if no values
    could lead to a verdict. ``better`` is ``higher`` or ``lower``; if ``lower``, a larger value is
    slower. If the second bench declares a metric of this name as another quantity, there is no
    ratio and no interval; ``unit`` is the first bench's. ``scatter`` is the scatter of a single
    run, from both benches.
    """

    case: str
    metric: str
    unit: str
    better: str
    before: Side
    after: Side
    differing: tuple[str, ...]
    ratio: float | None
    interval: Interval | None
    permutation_p: float | None
    corrected_p: float | None
    p: float | None
    verdict: str
    scatter: Scatter | None = None

    @property
    def gain_ratio(self) -> float | None:
        """The ratio, turned round for a metric whose smaller values are better."""
        if not self.ratio or self.better == "higher":
            return self.ratio
        return 1 / self.ratio

    @property
    def gain(self) -> Interval | None:
        """The interval of the ratio, inverted for a metric where less is better: above 1 is always
        faster.
        """
        if self.interval is None or self.better == "higher":
            return self.interval
        return Interval(1 / self.interval.high, 1 / self.interval.low, self.interval.level)


def match_cells(before: Sequence[Cell], after: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the pairs of cells that are compared, in the order of the first bench.

    Cells with equal specs are paired. The remaining cells are paired if they have the same shape
    and differ only in fields in which the remaining cells of the two benches have no value in
    common, and if that pair is unique. So benches are comparable after a field was changed for all
    cells.
    """
    equal = {cell.key(): cell for cell in after}
    pairs = {cell.key(): (cell, equal[cell.key()]) for cell in before if cell.key() in equal}
    left = [cell for cell in before if cell.key() not in pairs]
    right = [cell for cell in after if cell.key() not in pairs]
    changed = _disjoint([spec_fields(cell) for cell in left], [spec_fields(cell) for cell in right])
    groups: dict[str, tuple[list[Cell], list[Cell]]] = {}
    for side, cells in enumerate((left, right)):
        for cell in cells:
            rest = {name: value for name, value in _fields(cell).items() if name not in changed}
            groups.setdefault(_text(rest), ([], []))[side].append(cell)
    pairs |= {
        first[0].key(): (first[0], second[0])
        for first, second in groups.values()
        if len(first) == len(second) == 1
    }
    return [pairs[cell.key()] for cell in before if cell.key() in pairs]


def cells_with(cells: Sequence[Cell], name: str, value: str) -> list[Cell]:
    """Return the cells with this value of a spec field, option or variable, both as written on the
    command line.

    Raise ConfigError if there are cells, but none with this field or value.
    """
    fields = [spec_fields(cell) for cell in cells]
    keys = (name, f"options.{name}", f"env.{name}")
    written = []
    for spec in fields:
        written.append([as_written(spec[key]) for key in keys if key in spec])
    if cells and not any(written):
        names = dict.fromkeys(_short(key) for spec in fields for key in spec)
        hint = f"they have {', '.join(names)}{nearest(name, names)}"
        raise ConfigError(f"expected a field of its cells, got {name!r}", hint=hint)
    if cells and not any(value in values for values in written):
        known = dict.fromkeys(text for values in written for text in values)
        hint = f"they have {', '.join(known)}"
        raise ConfigError(
            f"expected a value of {name} that its cells have, got {value!r}", hint=hint
        )
    return [cell for cell, values in zip(cells, written, strict=True) if value in values]


def find_unmatched_cells(
    cells: Sequence[Cell], pairs: Sequence[tuple[Cell, Cell]]
) -> tuple[str, ...]:
    """Return the names of the cells that are in no pair."""
    paired = {cell.key() for pair in pairs for cell in pair}
    varying = _varying(cells)
    return tuple(_case(cell, varying) for cell in cells if cell.key() not in paired)


def compare_cells(
    pairs: Sequence[tuple[Cell, Cell]], margin: float = MARGIN
) -> tuple[CellPair, ...]:
    """Return the pairs with their verdicts. A difference that may be smaller than ``margin``, a
    share, is called slight.
    """
    varying = _varying([before for before, _ in pairs])
    changes = [_change(before, after) for before, after in pairs]
    results = [_pair(*pair, change, varying) for pair, change in zip(pairs, changes, strict=True)]
    testable = {
        place: change.chance
        for place, (change, pair) in enumerate(zip(changes, results, strict=True))
        if change and pair.permutation_p is not None
    }
    for place, corrected in zip(testable, holm(list(testable.values())), strict=True):
        p = max(corrected, results[place].permutation_p or 0.0)
        results[place] = replace(results[place], corrected_p=corrected, p=p)
    return tuple(replace(pair, verdict=pair.verdict or _verdict(pair, margin)) for pair in results)


def doubt(pair: CellPair) -> str:
    """Return every reason why `orch gate` may not use a pair, or an empty text: specs must be equal,
    all runs good, and a verdict possible.
    """
    reasons = []
    if pair.differing:
        reasons.append(f"its spec differs in {', '.join(pair.differing)}")
    if failed := pair.before.failed + pair.after.failed:
        reasons.append(f"{failed} of its runs failed")
    if pair.verdict == TOO_FEW:
        reasons.append(
            f"too few repeats, {pair.before.n} and {pair.after.n}; a verdict needs {enough()} or more of each"
        )
    elif pair.verdict == OTHER_METRIC:
        reasons.append(
            f"{pair.metric} is declared differently in the two benches; orch summarize --reread reads both with one folder"
        )
    elif pair.verdict in (SAME, NOTHING, NOT_POSITIVE):
        reasons.append(pair.verdict)  # the others are differences of specs
    return "; ".join(reasons)


def enough() -> int:
    """Return the fewest repeats of two cells with which the permutation test can reach
    significance.

    >>> enough()
    4
    """
    return next(n for n in count(2) if least_chance(n, n) < LIMIT)


def spec_fields(cell: Cell) -> dict[str, Any]:
    """Return the fields of a cell's spec by name, options as ``options.<name>``, and whether it was
    simulated.
    """
    fields = cell.spec.as_dict()
    nested = {
        f"{kind}.{name}": value
        for kind in ("options", "env")
        for name, value in fields.pop(kind, {}).items()
    }
    return {"simulated": cell.simulated, **fields, **nested}


def of_metric(cells: Sequence[Cell], metric: str) -> list[Cell]:
    """Return the cells of a metric: of the primary one if it is not named, of all with ``all``.

    Raise ConfigError if no cell has it.
    """
    if metric == ALL:
        return list(cells)
    of_name = [cell for cell in cells if (cell.metric.name == metric if metric else cell.primary)]
    if cells and not of_name:
        names = dict.fromkeys(cell.metric.name for cell in cells)
        raise ConfigError(
            f"expected a metric of its configurations, got {metric!r}",
            hint=f"they have {', '.join(names)}{nearest(metric, names)}",
        )
    return of_name


def _fields(cell: Cell) -> dict[str, Any]:
    """Return the fields of a cell's spec with its metric and its key, as ``key.<name>``."""
    return {
        **spec_fields(cell),
        "metric": cell.metric.name,
        **{f"key.{name}": value for name, value in cell.key_values.items()},
    }


def _change(before: Cell, after: Cell) -> Change | None:
    """Return the change of the typical value, None where there is nothing to compare or too little."""
    if _undecidable(before, after) == OTHER_METRIC or not (
        before.is_positive and after.is_positive
    ):
        return None
    return typical_change(before.placed, after.placed, (before.drift, after.drift))


def _pair(before: Cell, after: Cell, change: Change | None, varying: Sequence[str]) -> CellPair:
    earlier, later = spec_fields(before), spec_fields(after)
    why_not, sides = _undecidable(before, after), (_side(before), _side(after))
    drifts = before.drift, after.drift
    return CellPair(
        case=_case(before, varying),
        metric=before.metric.name,
        unit=before.metric.unit,
        better=before.metric.better,
        before=sides[0],
        after=sides[1],
        differing=tuple(
            name for name in {**earlier, **later} if earlier.get(name) != later.get(name)
        ),
        ratio=change.ratio if change else _ratio_of(before, after, sides, why_not),
        interval=change.interval if change else None,
        permutation_p=None
        if why_not
        else chance_without_drift(before.placed, after.placed, drifts),
        corrected_p=None,
        p=None,
        verdict=why_not,
        scatter=_scatter(before, after) if change else None,
    )


def _scatter(before: Cell, after: Cell) -> Scatter | None:
    """Return how far runs of both cells scatter without drift; of one if they are the same runs."""
    cells = [before] if before.numbers == after.numbers else [before, after]
    centres = [(typical_centre(cell.placed, cell.drift), len(cell.values)) for cell in cells]
    return scatter_of([(centre, count) for centre, count in centres if centre])


def _ratio_of(before: Cell, after: Cell, sides: tuple[Side, Side], why_not: str) -> float | None:
    """Return the ratio of typical values where a side has too few runs for an interval."""
    typical = [side.typical for side in sides]
    if (
        why_not == OTHER_METRIC
        or not (before.is_positive and after.is_positive)
        or not all(typical)
    ):
        return None
    return (typical[1] or 0.0) / (typical[0] or 1.0)


def _undecidable(before: Cell, after: Cell) -> str:
    """Return why no speeds could lead to a verdict; an empty text if a verdict is possible."""
    if {run.run_id for run in before.runs} & {run.run_id for run in after.runs}:
        return SAME
    if before.simulated != after.simulated:
        return UNLIKE
    if is_other_quantity(before.metric, after.metric):
        return OTHER_METRIC
    if before.spec.model != after.spec.model:
        return OTHER_MODEL
    if not (before.values and after.values):
        return NOTHING
    if not (before.is_positive and after.is_positive):
        return NOT_POSITIVE
    repeats = len(before.values), len(after.values)
    if min(repeats) < 2 or least_chance(*repeats) >= LIMIT:
        return TOO_FEW
    return ""


def is_other_quantity(before: Metric, after: Metric) -> bool:
    """Return True if two metrics of one name differ in what their numbers mean: the unit, which are
    better, or what several lines, nodes or ranks become."""
    combined = ((before.over, after.over), (before.across, after.across))
    differ = any(
        earlier != later
        for earlier, later in combined
        if "only" not in (earlier, later) and earlier and later
    )
    return differ or (before.unit, before.better) != (after.unit, after.better)


def _verdict(pair: CellPair, margin: float) -> str:
    change = pair.gain
    if change is None or pair.p is None or pair.p >= LIMIT or change.low <= 1 <= change.high:
        return NONE
    if change.high < 1 - margin:
        return SLOWER
    return FASTER if change.low > 1 / (1 - margin) else SLIGHT


def _side(cell: Cell) -> Side:
    failed = len(cell.runs) - len(cell.values)
    run_ids = tuple(run.run_id for run in cell.runs)
    typical = typical_of(cell)
    return Side(
        len(cell.values),
        failed,
        cell.median,
        typical.value if typical else None,
        run_ids,
        cell.drift.total,
    )


def _case(cell: Cell, varying: Sequence[str]) -> str:
    """Return the name of a cell among others: its shape, and the fields that vary among them."""
    fields = _fields(cell)
    words = [cell.spec.shape]
    for name in varying:
        text = as_written(fields[name]) if name in fields else "(not set)"
        words.append(f"{_short(name)}={text}")
    return " ".join(words)


def _short(name: str) -> str:
    return name.removeprefix("options.").removeprefix("env.").removeprefix("key.")


def _varying(cells: Sequence[Cell]) -> list[str]:
    fields = [_fields(cell) for cell in cells]
    # The shape has nodes and GPUs, and options have what a step computes.
    texts: dict[str, set[str]] = {}
    for name in dict.fromkeys(name for spec in fields for name in spec):
        if name not in ("nodes", "gpus", "step"):
            texts[name] = _texts(fields, name)
    return [name for name, of_name in texts.items() if len(of_name) > 1]


def _disjoint(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> set[str]:
    names = {name for spec in (*left, *right) for name in spec} - {"nodes", "gpus"}
    return {name for name in names if _texts(left, name).isdisjoint(_texts(right, name))}


def _texts(specs: Sequence[Mapping[str, Any]], name: str) -> set[str]:
    """Return the values of a field in these specs."""
    return {_text(spec.get(name)) for spec in specs}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
