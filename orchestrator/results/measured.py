"""Kinds of measurement: the metrics, parsed lines and values of a run, and the tables and doubts
that its readings give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar
from orchestrator.logs.metrics import Metric, primary_of
from orchestrator.notes import Note
from orchestrator.plan import Measure, RunSpec
from orchestrator.record.manifest import Manifest
from orchestrator.results.diagnosis_tables import Content, Repeats
from orchestrator.results.links import collectives, pair_tables
from orchestrator.results.links.pair_times import pair_times
from orchestrator.results.values import Expected, Value, values_of

if TYPE_CHECKING:
    from orchestrator.results.cells import Cell

_READERS: Mapping[
    str, Callable[[RunSpec, Sequence[Mapping[str, str]], Mapping[str, Any]], tuple[Any, ...]]
] = {
    "collectives": collectives.points,
    "pairs": pair_times,
}
"""The parser of a run's lines, by kind of measurement. Arguments: the spec, the lines, and the
values of the program's closing line, plus ``nodes``: the hosts in order of node_rank."""


def readings_of(
    planned: Manifest, lines: Sequence[Mapping[str, str]], observed: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the parsed readings of collectives and pairs. Raises DataError if they are incomplete."""
    reader = _READERS.get(planned.measure.name)
    if not reader:
        return ()
    return reader(planned.spec, lines, {**observed, "nodes": planned.hosts})


def read_values(
    planned: Manifest,
    readings: tuple[Any, ...],
    by_log: Mapping[tuple[str, str], Sequence[Mapping[str, str]]],
) -> tuple[Value, ...]:
    """Return the values of the metrics that a run's folder declares, or its kind of measurement
    reads.
    """
    spec, grammar = planned.spec, planned.grammar
    if planned.measure.name == "collectives":
        return collectives.values(spec, readings)
    values = values_of(grammar.metrics, by_log, expectation_of(spec, grammar))
    primary = primary_of(grammar.metrics)
    if planned.measure.name == "readings" and (
        primary is None or primary.name not in {value.metric for value in values}
    ):
        name = primary.name if primary else "log.metrics"
        hint = f"correct log: in the framework.yaml of {planned.framework}, then: orch summarize --reread"
        raise DataError(
            f"expected lines with {name}, found 0",
            kind="log_unmatched",
            hint=hint,
            phase="summarize",
        )
    return values


def expectation_of(spec: RunSpec, grammar: LogGrammar) -> Expected:
    """Return how many nodes and ranks of a run have values, and which steps of its log are in the
    measured window.
    """
    shift = 1 - grammar.counts_from + (spec.warmup_steps if grammar.after_warmup else 0)
    return Expected(
        spec.nodes, spec.world_size, (spec.warmup_steps + 1, spec.steps), shift, grammar.numbers
    )


def metrics_of(measure: Measure, grammar: LogGrammar) -> tuple[Metric, ...]:
    """Return the metrics of a run, as its kind of measurement and its folder's log grammar declare
    them.
    """
    if measure.name == "collectives":
        return collectives.METRICS
    own = [
        *([measure.speed] if measure.speed else []),
        *measure.derived,
        *measure.reported,
        *measure.sampled,
    ]
    # What a program says of itself is beside the metric of which it says it.
    ordered: list[Metric] = []
    for first in own:
        ordered += [first, *(said for said in grammar.metrics if said.says == first.name)]
    return (*ordered, *(metric for metric in grammar.metrics if metric not in ordered))


def content_of(cell: Cell) -> Content:
    """Return the tables of a diagnosis, computed from the readings of the good runs of a cell."""
    if cell.good:
        return pair_tables.content(_repeats(cell))
    return Content()


def doubts_at(cell: Cell) -> list[Note]:
    """Return the doubts about the values of a cell that follow from the readings of its good runs."""
    if cell.measure.name != "collectives":
        return []
    return collectives.doubts(_repeats(cell), cell.metric_key)


def _repeats(cell: Cell) -> Repeats:
    return [(run.repeat, run.readings) for run in cell.good]
