"""Doubts about the repeats of a configuration that follow from comparing them with each other, or
with another dtype's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold
from orchestrator.notes import Note
from orchestrator.results.cells import Cell
from orchestrator.results.notes import (
    EQUAL_LOGS,
    EQUAL_TIMES,
    OTHER_HOSTS,
    OTHER_INTERFACES,
    REPEAT_APART,
    SLOWER_THAN_WIDER,
)
from orchestrator.results.numbers.intervals import outliers
from orchestrator.results.numbers.physics import SLACK
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.numbers.throughput import median
from orchestrator.results.run import RunResult

_BITS = {"fp32": 32, "tf32": 19, "fp16": 16, "bf16": 16, "fp8": 8}
_DIGESTS = (EQUAL_LOGS, EQUAL_TIMES)


def equal_repeats(runs: Sequence[RunResult]) -> list[Note]:
    """Return a text for each group of repeats with the same log, or with the same step times: they
    are one measurement.
    """
    texts = []
    seen: set[tuple[int, ...]] = set()
    for place, kind in enumerate(_DIGESTS):
        known = [run for run in runs if len(run.digests) > place and not run.simulated]
        groups = group_pairs((run.digests[place], run.repeat) for run in known)
        for repeats in groups.values():
            if len(repeats) > 1 and tuple(repeats) not in seen:
                seen.add(tuple(repeats))
                texts.append(kind(repeats=", ".join(map(str, repeats)), count=len(repeats)))
    return texts


def slower_than_wider(cell: Cell, cells: Sequence[Cell]) -> list[Note]:
    """Return a text if a configuration is slower than the same one in a wider dtype, as if the
    narrow type had not been used.

    The fastest repeat counts against the slowest of the wider type. Wait times of a simulated
    program are no reason for doubt.
    """
    bits = _BITS.get(cell.spec.dtype, 0)
    rivals = [
        other
        for other in cells
        if _BITS.get(other.spec.dtype, 0) > bits > 0
        and other.values
        and other.key("dtype") == cell.key("dtype")
    ]
    fastest = max(rivals, key=lambda other: min(other.values), default=None)
    if (
        cell.simulated
        or not cell.values
        or not fastest
        or min(fastest.values) <= (1 + SLACK) * max(cell.values)
    ):
        return []
    speed = {"speed": format_number(fastest.median or 0.0), "unit": fastest.metric.unit}
    return [SLOWER_THAN_WIDER(dtype=cell.spec.dtype, wider=fastest.spec.dtype, **speed)]


def repeats_apart(cell: Cell) -> list[Note]:
    """Return a note for each repeat that is an outlier among the others. An outlier still counts."""
    notes = []
    values = cell.values
    above, below = ("slower", "faster") if cell.metric.is_lower_better else ("faster", "slower")
    for place in outliers(values):
        apart = values[place] / median([*values[:place], *values[place + 1 :]]) - 1
        repeat, direction = cell.with_number[place].repeat, above if apart > 0 else below
        notes.append(REPEAT_APART(repeat=repeat, apart=abs(apart), direction=direction))
    return notes


def on_other_hosts(runs: Sequence[RunResult]) -> list[Note]:
    """Return a note if repeats ran on different hosts: machines then add to their spread."""
    repeats = group_pairs((tuple(sorted(run.facts)), run.repeat) for run in runs if run.facts)
    places = [
        f"{', '.join(map(str, sorted(of_hosts)))} on {fold(hosts)}"
        for hosts, of_hosts in repeats.items()
    ]
    if len(places) > 1:
        return [OTHER_HOSTS(places="; ".join(places))]
    return []


def over_other_interfaces(runs: Sequence[RunResult]) -> list[Note]:
    """Return a text for the hosts on which repeats of several nodes were given different
    interfaces, where the inventory names none and preflight finds one: after a spare has come, or
    before and after a bench was resumed."""
    repeats: dict[str, dict[str, list[int]]] = {}
    for run in runs:
        for host, facts in run.facts.items() if run.spec and run.spec.nodes > 1 else ():
            interface = facts.get("interface") if isinstance(facts, Mapping) else None
            name = str(interface.get("name", "")) if isinstance(interface, Mapping) else ""
            repeats.setdefault(host, {}).setdefault(
                f"over {name}" if name else "without a known one", []
            ).append(run.repeat)
    hosts: dict[str, list[str]] = {}
    for host, by_way in repeats.items():
        if len(by_way) > 1:
            words = "; ".join(
                f"{', '.join(map(str, sorted(numbers)))} {how}" for how, numbers in by_way.items()
            )
            hosts.setdefault(words, []).append(host)
    return [
        OTHER_INTERFACES(hosts=fold(sorted(names)), ways=words) for words, names in hosts.items()
    ]
