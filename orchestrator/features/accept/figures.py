"""The numbers that bars are about: each node or device, beside its peers and the reference figure
of its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.features.accept.bars import reference_of
from orchestrator.features.accept.suite import Reference
from orchestrator.features.accept.units import UNNAMED, Group
from orchestrator.results import interval, median
from orchestrator.results.numbers.intervals import plain_interval


@dataclass(frozen=True, slots=True)
class UnitFigure:
    """One number of a node or device, or of the cluster.

    ``value`` is the median over the repeats, ``low`` and ``high`` the ends of its 95 % interval,
    None with one repeat. ``of_median`` is its share of the median of all units, None without
    others; ``reference`` the value of the reference figure and ``of_reference`` its share of that,
    None if none is known for ``device``. ``reference_seen`` is the range of the values behind it,
    of ``reference_devices`` devices, where that was measured.
    """

    stage: str
    what: str
    subject: str
    hosts: tuple[str, ...]
    device: str
    unit: str
    repeats: int
    value: float
    low: float | None
    high: float | None
    of_median: float | None
    reference: float | None
    of_reference: float | None
    reference_seen: tuple[float, float] | None = None
    reference_devices: int = 0


def figures_of(stage: str, group: Group, references: Sequence[Reference]) -> Iterator[UnitFigure]:
    """Yield the number of each unit of a group."""
    values = {unit.name: median(unit.values) for unit in group.units}
    typical = median(list(values.values()))
    for unit in group.units:
        value = values[unit.name]
        of_sign = interval if min(unit.values) > 0 else plain_interval
        reach = of_sign(unit.values) if len(unit.values) > 1 else None
        known = reference_of(unit, group, references)
        yield UnitFigure(
            stage,
            group.title,
            unit.name,
            unit.hosts,
            unit.device,
            group.unit,
            len(unit.values),
            value,
            # The interval is the geometric mean's, and the median may lie outside of it.
            min(value, reach.low) if reach else None,
            max(value, reach.high) if reach else None,
            value / typical if len(values) > 1 and typical > 0 else None,
            known.value if known else None,
            value / known.value if known else None,
            known.seen if known else None,
            known.devices if known else 0,
        )


def without_reference(figures: Sequence[UnitFigure]) -> Mapping[str, tuple[str, ...]]:
    """Return the devices that have no reference figure, and of what."""
    missing: dict[str, dict[str, None]] = {}
    for figure in figures:
        if figure.reference is None:
            missing.setdefault(figure.device or UNNAMED, {})[figure.what] = None
    return {device: tuple(what) for device, what in missing.items()}
