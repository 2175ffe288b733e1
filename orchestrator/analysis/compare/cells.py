"""Two benches, cell by cell: how much faster the one is, how sure that is, and in what they differ.

A ratio is of typical speeds, geometric means, ``after`` over ``before``. Its interval takes each bench's own scatter into
account (`intervals.change_interval`); whether it may be an accident, two tests have to agree on: of labels dealt out
anew, and Welch's, corrected for the number of cells. What two benches made at different times have not in common, no test can
tell from a difference; so what may be less than a margin is never called one. The rule, and how often it errs, stand in
``docs/metrics.md``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import nearest
from orchestrator.plan.spec import as_written
from orchestrator.results import Cell, Interval, mean
from orchestrator.results.numbers.intervals import chance, change_chance, change_interval, holm, least_chance
from orchestrator.results.numbers.throughput import WORTH

__all__ = [
    "MARGIN",
    "SLOWER",
    "TOO_FEW",
    "CellPair",
    "Side",
    "chosen",
    "compared",
    "doubt",
    "enough",
    "matched",
    "spec_fields",
    "unmatched",
]

MARGIN = WORTH
"""What two benches of the same thing may differ by, machines being warm, filled and placed otherwise."""
LIMIT = 0.05
FASTER, SLOWER, SLIGHT, NONE = "faster", "slower", "slight", "no difference"
TOO_FEW, SAME, UNLIKE, NOTHING = "too few repeats", "same runs", "simulated against real", "no speed"
UNDECIDED = (TOO_FEW, SAME, UNLIKE, NOTHING)
"""The verdicts that are none."""


@dataclass(frozen=True, slots=True)
class Side:
    """One cell as one bench measured it; speeds in samples/s."""

    n: int
    failed: int
    median_speed: float | None
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellPair:
    """A cell in both benches. ``differing`` names the fields of its spec that are not the same in both.

    ``permutation_p`` is the pair's alone, ``corrected_p`` Welch's among all pairs, and ``p`` the larger: both must be small.
    All are None where there can be no verdict, whatever the speeds are.
    """

    case: str
    before: Side
    after: Side
    differing: tuple[str, ...]
    ratio: float | None
    interval: Interval | None
    permutation_p: float | None
    corrected_p: float | None
    p: float | None
    verdict: str


def matched(before: Sequence[Cell], after: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the cells of both benches that belong together, in the order of the first.

    Equal specs do. Of the rest those do that have one shape and are equal but for the fields in which the two rests have no
    value in common, if there is only one of each: what somebody changed for all cells from one bench to the other is compared.
    """
    equal = {cell.key(): cell for cell in after}
    pairs = {cell.key(): (cell, equal[cell.key()]) for cell in before if cell.key() in equal}
    left, right = ([cell for cell in cells if cell.key() not in pairs] for cells in (before, after))
    changed = _disjoint([spec_fields(cell) for cell in left], [spec_fields(cell) for cell in right])
    groups: dict[str, tuple[list[Cell], list[Cell]]] = {}
    for side, cells in enumerate((left, right)):
        for cell in cells:
            rest = {name: value for name, value in spec_fields(cell).items() if name not in changed}
            groups.setdefault(_text(rest), ([], []))[side].append(cell)
    pairs |= {one[0].key(): (one[0], other[0]) for one, other in groups.values() if len(one) == len(other) == 1}
    return [pairs[cell.key()] for cell in before if cell.key() in pairs]


def chosen(cells: Sequence[Cell], name: str, value: str) -> list[Cell]:
    """Return the cells with that value of a field of their spec or of an option, as the command line writes both.

    Raises ConfigError where there are cells, but none with this field or value.
    """
    fields = [spec_fields(cell) for cell in cells]
    written = [[as_written(each[key]) for key in (name, f"options.{name}") if key in each] for each in fields]
    if cells and not any(written):
        known = dict.fromkeys(key.removeprefix("options.") for each in fields for key in each)
        hint = f"they have {', '.join(known)}{nearest(name, known)}"
        raise ConfigError(f"expected a field of its cells, got {name!r}", hint=hint)
    if cells and not any(value in values for values in written):
        hint = f"they have {', '.join(dict.fromkeys(each for values in written for each in values))}"
        raise ConfigError(f"expected a value of {name} that its cells have, got {value!r}", hint=hint)
    return [cell for cell, values in zip(cells, written, strict=True) if value in values]


def unmatched(cells: Sequence[Cell], pairs: Sequence[tuple[Cell, Cell]]) -> tuple[str, ...]:
    """Return the names of those cells that are in no pair."""
    paired = {cell.key() for pair in pairs for cell in pair}
    varying = _varying(cells)
    return tuple(_case(cell, varying) for cell in cells if cell.key() not in paired)


def compared(pairs: Sequence[tuple[Cell, Cell]], margin: float = MARGIN) -> tuple[CellPair, ...]:
    """Return what can be said of each pair. A difference that may be less than ``margin``, a fraction, is called slight."""
    varying = _varying([before for before, _ in pairs])
    found = [_pair(before, after, varying) for before, after in pairs]
    asked = [place for place, pair in enumerate(found) if pair.permutation_p is not None]
    chances = holm([change_chance(*(cell.speeds for cell in pairs[place])) for place in asked])
    for place, corrected in zip(asked, chances, strict=True):
        p = max(corrected, found[place].permutation_p or 0.0)
        found[place] = replace(found[place], corrected_p=corrected, p=p)
    return tuple(replace(pair, verdict=pair.verdict or _verdict(pair, margin)) for pair in found)


def doubt(pair: CellPair) -> str:
    """Return why a gate may not judge by a pair, or nothing: only like work is judged, and only if all of it is there."""
    if pair.differing:
        return f"its spec differs in {', '.join(pair.differing)}"
    if failed := pair.before.failed + pair.after.failed:
        return f"{failed} of its runs failed"
    if pair.verdict == TOO_FEW:
        return f"too few repeats, {pair.before.n} and {pair.after.n}; {enough()} of each can end in one"
    return pair.verdict if pair.verdict in UNDECIDED else ""


def enough() -> int:
    """Return the fewest repeats of each of two cells that chance alone may not set apart as far as they can be.

    >>> enough()
    4
    """
    return next(n for n in count(2) if least_chance(n, n) < LIMIT)


def spec_fields(cell: Cell) -> dict[str, Any]:
    """Return the fields of a cell's spec by name, options as ``options.<name>``, and whether it was simulated."""
    fields = cell.spec.as_dict()
    within = {f"{kind}.{name}": value for kind in ("options", "env") for name, value in fields.pop(kind, {}).items()}
    return {"simulated": cell.simulated, **fields, **within}


def _pair(before: Cell, after: Cell, varying: Sequence[str]) -> CellPair:
    one, other = spec_fields(before), spec_fields(after)
    why_not = _undecidable(before, after)
    apart = [mean([math.log(speed) for speed in cell.speeds]) for cell in (before, after) if cell.speeds]
    return CellPair(
        case=_case(before, varying),
        before=_side(before),
        after=_side(after),
        differing=tuple(name for name in {**one, **other} if one.get(name) != other.get(name)),
        ratio=math.exp(apart[1] - apart[0]) if len(apart) == 2 else None,
        interval=change_interval(before.speeds, after.speeds),
        permutation_p=None if why_not else chance(before.speeds, after.speeds),
        corrected_p=None,
        p=None,
        verdict=why_not,
    )


def _undecidable(before: Cell, after: Cell) -> str:
    """Return why there can be no verdict, whatever the speeds are; nothing where there can be one."""
    if {run.run_id for run in before.runs} & {run.run_id for run in after.runs}:
        return SAME
    if before.simulated != after.simulated:
        return UNLIKE
    if not (before.speeds and after.speeds):
        return NOTHING
    repeats = len(before.speeds), len(after.speeds)
    return TOO_FEW if min(repeats) < 2 or least_chance(*repeats) >= LIMIT else ""


def _verdict(pair: CellPair, margin: float) -> str:
    found = pair.interval
    if found is None or pair.p is None or pair.p >= LIMIT or found.low <= 1 <= found.high:
        return NONE
    if found.high < 1 - margin:
        return SLOWER
    return FASTER if found.low > 1 / (1 - margin) else SLIGHT


def _side(cell: Cell) -> Side:
    return Side(len(cell.speeds), len(cell.runs) - len(cell.speeds), cell.median, tuple(run.run_id for run in cell.runs))


def _case(cell: Cell, varying: Sequence[str]) -> str:
    """Return a cell's name beside others: its shape, and what else is not the same in all of them."""
    fields = spec_fields(cell)
    return " ".join([cell.spec.shape, *(f"{name.removeprefix('options.')}={as_written(fields.get(name))}" for name in varying)])


def _varying(cells: Sequence[Cell]) -> list[str]:
    fields = [spec_fields(cell) for cell in cells]
    names = dict.fromkeys(name for each in fields for name in each if name not in ("nodes", "gpus"))
    return [name for name in names if len({_text(each.get(name)) for each in fields}) > 1]


def _disjoint(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> set[str]:
    names = {name for each in (*left, *right) for name in each if name not in ("nodes", "gpus")}
    return {
        name for name in names if {_text(each.get(name)) for each in left}.isdisjoint(_text(each.get(name)) for each in right)
    }


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
