"""Summarize runs as the rows of a table, each with the notes that qualify its numbers.

A row is one cell: all repeats of one spec, for one metric and key. Runs of different specs are
never pooled, nor are real and simulated ones. The result does not depend on their order. A failed
run is counted and its cause kept, never dropped or zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

from orchestrator.errors import DataError
from orchestrator.notes import Note
from orchestrator.plan.measures import OWN_METRICS, SPEEDS
from orchestrator.plan.spec import Skipped, skipped_words
from orchestrator.results.baselines import baseline_in, families_of, no_baseline
from orchestrator.results.cells import Cell, cells_of, order
from orchestrator.results.entries import Row, Sheet
from orchestrator.results.expectations import Judgement, judge_expectations, notes_on
from orchestrator.results.hardware import hardware
from orchestrator.results.measured import content_of, doubts_at
from orchestrator.results.notes import (
    CARRIED_OVER,
    DRIFT,
    DRIFT_OF_MEDIANS,
    DRIFT_OF_METRIC,
    METRIC_WITHOUT_VALUE,
    RUN_IN_NO_ROW,
    UNCERTAIN_DRIFT,
)
from orchestrator.results.numbers.drift import Drift, Estimate, find_carry_over, typical_ratio
from orchestrator.results.numbers.throughput import (
    WORTH,
    deviation,
    mean,
    scaling_efficiency,
    speedup,
)
from orchestrator.results.planned import Counts, Planned, count_runs
from orchestrator.results.qualifications import (
    coarse,
    doubts_of,
    measured_count,
    qualifications_of,
    typical_of,
)
from orchestrator.results.run import NEVER_RUN, RunResult
from orchestrator.results.series import (
    Group,
    differing_names,
    group_rows,
    options_of,
    program_of,
    series_of,
)
from orchestrator.results.slow_ranks import Ranks, compare_ranks
from orchestrator.results.telemetry.utilization import RunUse
from orchestrator.results.values import Key

_Metric = tuple[str, str, str, bool]
"""`Cell.drifts_with`: name, unit, which values are better, and whether it has keys."""


@dataclass(frozen=True, slots=True)
class Summary:
    """``rows`` in order of series and size; ``baseline`` maps a series to its 1n1g row; ``notes``
    apply to the whole table. ``sheets`` hold measurements other than training, in order of size.
    ``runs`` counts the planned runs of the whole bench. ``drifts`` are by how much larger each
    metric of the last run would be than of the first because of the drift that was taken out of the
    typical values, as a fraction. ``of_medians``: speedups are ratios of medians, from which no
    drift was taken out. ``label`` is the bench's; ``skipped`` are the configurations that it left
    out as impossible, ``expected`` judges what it was expected to measure, and ``uses`` has by run
    how its nodes were used."""

    rows: tuple[Row, ...]
    baseline: Mapping[str, Row]
    notes: tuple[Note, ...]
    sheets: tuple[Sheet, ...] = ()
    runs: Counts | None = None
    drifts: Mapping[str, float] = field(default_factory=dict)
    of_medians: bool = False
    label: str = ""
    skipped: tuple[Skipped, ...] = ()
    expected: tuple[Judgement, ...] = ()
    uses: Mapping[str, RunUse] = field(default_factory=dict)

    def divisor(self, series: str) -> float | None:
        """Return the speed of the baseline of a series that its speedups are divided by, in its
        unit; None without one.
        """
        base = self.baseline.get(series)
        if base is None:
            return None
        return base.median if self.of_medians else base.value

    def speeds(self) -> tuple[Row, ...]:
        """Return the rows that are speeds of training."""
        return tuple(row for row in self.rows if row.is_speed)

    def of_training(self) -> Summary:
        """Return the summary with no other rows than speeds of training."""
        return replace(self, rows=self.speeds())

    def groups(self) -> tuple[Group, ...]:
        """Return the rows by the tables in which they are shown."""
        return group_rows(self.rows)

    def by_series(self) -> dict[str, tuple[Row, ...]]:
        """Return the rows of each series, in order."""
        by_name = {}
        for name in dict.fromkeys(r.series for r in self.rows):
            by_name[name] = tuple(r for r in self.rows if r.series == name)
        return by_name


def of_bench(planned: Planned, notes: Sequence[Note] = ()) -> Summary:
    """Return the scaling table of a bench, with what it lacks; ``notes`` are additional notes on
    how it went.
    """
    return lacking(summarize(planned.results, notes, skipped=planned.skipped), planned)


def lacking(summary: Summary, planned: Planned) -> Summary:
    """Return the table of a bench with its label and the counts of its planned runs.

    Its notes begin with missing runs and expectations.
    """
    missing = [*([planned.note] if planned.note else []), *skipped_words(planned.skipped)]
    judgements = judge_expectations(planned.expect, summary.rows, planned.results)
    notes = (*missing, *notes_on(judgements), *summary.notes)
    whole = replace(summary, notes=notes, runs=planned.counts, label=planned.label)
    return replace(whole, skipped=planned.skipped, expected=judgements)


def summarize(
    results: Sequence[RunResult],
    notes: Sequence[Note] = (),
    *,
    of_medians: bool = False,
    skipped: Sequence[Skipped] = (),
) -> Summary:
    """Return the table of ``results``; ``notes`` are additional notes on how the bench went.

    ``of_medians``: speedups are ratios of medians, as in published tables, without intervals.
    ``skipped`` are configurations that the bench left out, among which a baseline may be. Raises
    DataError (result_invalid) for a run that is passed twice.
    """
    counts = Counter(run.run_id for run in results)
    twice = [run_id for run_id, count in counts.items() if count > 1]
    if twice:
        raise DataError(
            f"expected each run once, got {', '.join(sorted(twice))} again", kind="result_invalid"
        )
    unknown = sorted(run.run_id for run in results if run.spec is None)
    all_cells = cells_of(results)
    differing, typical = differing_names(all_cells), _typical_repeats(all_cells)
    series = {id(cell): series_of(cell, differing) for cell in all_cells}
    sheets = [
        _sheet(cell, series[id(cell)], differing, typical)
        for cell in all_cells
        if cell.measure.is_diagnosis
    ]
    cells = [cell for cell in all_cells if not cell.measure.is_diagnosis]
    families = families_of(cells)
    bases = {id(cell): baseline_in(cell, families[id(cell)]) for cell in cells}
    drifts = {cell.drifts_with: cell.drift for cell in cells}
    doubts = doubts_of([cell for cell in cells if cell.is_speed_of_training], of_medians=of_medians)
    place = _places(cells, differing)
    rows, baseline = [], {}
    for cell in sorted(
        cells, key=lambda cell: (program_of(cell, differing), *place[id(cell)], *order(cell))
    ):
        base = bases[id(cell)]
        faster = _ratio_of_medians(cell, base) if of_medians else _ratio(cell, base)
        value = typical_of(cell)
        ranks = compare_ranks(cell.with_number) if cell.is_speed_of_training else Ranks()
        known = [*doubts.get(id(cell), ()), *doubts_at(cell), *coarse(cell, value), *ranks.words]
        notes_of_row = qualifications_of(cell, base, known, typical)
        entry = _entry(cell, series[id(cell)], differing, notes_of_row)
        rows.append(_row(cell, base, entry, value, faster, ranks))
        if cell is base:
            baseline[series[id(cell)]] = rows[-1]
    # Candidates of a tune are compared with its default, so they need no baseline.
    without_baseline = [
        cell
        for cell in cells
        if cell.metric.speedup
        and bases[id(cell)] is None
        and "tune" not in cell.spec.origins.values()
    ]
    own_notes = [
        no_baseline(series[id(cell)], families[id(cell)], cells, skipped)
        for cell in without_baseline
    ]
    own_notes += [
        RUN_IN_NO_ROW(run=run.run_id, cause=_cause(run)) for run in results if run.run_id in unknown
    ]
    own_notes += _drift_notes(cells, drifts, of_medians)
    own_notes += _carried_notes(cells)
    own_notes += _note_unprinted_metrics(
        results, {(cell.spec.framework, cell.metric.name) for cell in cells if cell.values}
    )
    totals = {name: drift.total for name, drift in _by_name(drifts).items()}
    uses = {run.run_id: run.use for run in results if run.use}
    return Summary(
        tuple(rows),
        baseline,
        (*notes, *sorted(set(own_notes))),
        tuple(sheets),
        None,
        totals,
        of_medians,
        uses=uses,
    )


def _places(cells: Sequence[Cell], differing: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Return the place of each cell's metric and key within its program, by ``id`` of the cell."""
    metrics: dict[str, dict[str, int]] = {}
    keys: dict[tuple[str, str], dict[Key, int]] = {}
    places = {}
    for cell in cells:  # metrics are in the order of their declaration, keys by size
        program = program_of(cell, differing)
        of_program = metrics.setdefault(program, {})
        of_metric = keys.setdefault((program, cell.metric.name), {})
        metric = of_program.setdefault(cell.metric.name, len(of_program))
        places[id(cell)] = metric, of_metric.setdefault(cell.metric_key, len(of_metric))
    return places


def _by_name(drifts: Mapping[_Metric, Drift]) -> dict[str, Drift]:
    """Return the drifts of metrics without keys by their names; with what tells them apart where
    programs share a name.
    """
    without_keys = {metric: drift for metric, drift in drifts.items() if not metric[-1]}
    shared = Counter(name for name, *_ in without_keys)
    return {
        f"{name} ({unit}, {better} is better)" if shared[name] > 1 else name: drift
        for (name, unit, better, _), drift in without_keys.items()
    }


def _drift_notes(
    cells: Sequence[Cell], drifts: Mapping[_Metric, Drift], of_medians: bool
) -> list[Note]:
    """Return the notes on drifts; what follows from a speed alone has the drift of that speed,
    which is said once.
    """
    followers = {metric.name for cell in cells for metric in cell.measure.derived}
    said = {cell.metric.name for cell in cells if cell.metric.says}
    of_speeds = [drift.total for (name, *_), drift in drifts.items() if name in SPEEDS]
    notes: list[Note] = []
    for name, drift in _by_name(drifts).items():
        is_of_speed = any(isclose(drift.total, total, abs_tol=1e-6) for total in of_speeds)
        if name not in said and not (name in followers and is_of_speed):
            notes += _drift_note(drift, of_medians, name)
    return notes


def _carried_notes(cells: Sequence[Cell]) -> list[Note]:
    """Return a note if runs are off by as much as the runs before them, so that repeats are not
    independent.
    """
    of_primary = [
        cell for cell in cells if cell.primary and not cell.metric.key_columns and cell.is_positive
    ]
    notes = []
    for metric in dict.fromkeys(cell.drifts_with for cell in of_primary):
        alike = [cell for cell in of_primary if cell.drifts_with == metric]
        carried = find_carry_over([cell.placed for cell in alike], alike[0].drift)
        if carried:
            notes.append(CARRIED_OVER(correlation=carried))
    return notes


def _typical_repeats(cells: Sequence[Cell]) -> int:
    counts = Counter(n for n in map(measured_count, cells) if n)
    return max(counts, key=lambda n: (counts[n], n), default=0)


def _ratio(cell: Cell, base: Cell | None) -> Estimate | None:
    """Return the speedup from the repeats that a cell and its baseline share; of the typical values
    if they share too few.
    """
    if base is None or not cell.values or not (cell.is_positive and base.is_positive):
        return None
    if cell is base:
        return Estimate(1.0, None)
    faster, slower = (base, cell) if cell.metric.is_lower_better else (cell, base)
    above, below = typical_of(faster), typical_of(slower)
    assert above and below  # both have good runs
    return typical_ratio(faster.by_repeat, slower.by_repeat, cell.drift) or Estimate(
        speedup(above.value, below.value), None
    )


def _ratio_of_medians(cell: Cell, base: Cell | None) -> Estimate | None:
    if cell.median and base and base.median:
        return Estimate(speedup(cell.median, base.median), None)
    return None


def _row(
    cell: Cell,
    base: Cell | None,
    entry: Mapping[str, Any],
    typical: Estimate | None,
    faster: Estimate | None,
    ranks: Ranks,
) -> Row:
    spec, values, faster_by = cell.spec, cell.values, faster.interval if faster else None
    speed = typical.value if typical and cell.is_speed_of_training else None
    ideal = scaling_efficiency(1.0, spec.world_size, base.spec.world_size) if base else 1.0
    return Row(
        **entry,
        metric=cell.metric.name,
        unit=cell.metric.unit,
        better=cell.metric.better,
        primary=cell.primary,
        says=cell.metric.says,
        key=cell.key_values,
        loader=spec.loader,
        batch_size=spec.batch_size,
        global_batch=spec.global_batch,
        scaling="strong" if spec.follows else "weak",
        tokens=spec.step.tokens,
        average=mean(values) if values else None,
        median=cell.median,
        minimum=min(values, default=None),
        maximum=max(values, default=None),
        deviation=deviation(values) if len(values) > 1 else None,
        value=typical.value if typical else None,
        interval=typical.interval if typical else None,
        speedup=faster.value if faster else None,
        speedup_interval=faster_by,
        efficiency=faster.value * ideal if faster else None,
        efficiency_interval=faster_by.scale(ideal) if faster_by else None,
        step_s=spec.global_batch * spec.items / speed if speed else None,
        per_rank=speed / spec.world_size if speed else None,
        repeats=cell.repeats,
        ranks=ranks.times,
        slow=ranks.slow,
    )


def _note_unprinted_metrics(
    results: Sequence[RunResult], measured: Collection[tuple[str, str]]
) -> list[Note]:
    """Return a note for each folder of good runs with declared metrics that no run has a value for."""
    declared: dict[str, dict[str, None]] = {}
    for run in results:
        if run.spec and (run.throughput or run.metric_values):
            names = [metric.name for metric in run.metrics if metric.name not in OWN_METRICS]
            declared.setdefault(run.spec.framework, {}).update(dict.fromkeys(names))
    notes = []
    for folder, metrics in declared.items():
        missing = [name for name in metrics if (folder, name) not in measured]
        if missing:
            notes.append(METRIC_WITHOUT_VALUE(metrics=", ".join(missing), folder=folder))
    return notes


def _drift_note(drift: Drift, of_medians: bool, metric: str) -> list[Note]:
    """Return a note on a drift that was taken out of the values, if it is large enough to be
    noticed.
    """
    if abs(drift.total) < WORTH:
        return []
    if not drift.is_certain:
        what = "speed" if metric in SPEEDS else metric
        return [UNCERTAIN_DRIFT(what=what, drift=drift.total)]
    if metric not in SPEEDS:
        return [DRIFT_OF_METRIC(metric=metric, drift=drift.total)]
    kind = DRIFT_OF_MEDIANS if of_medians else DRIFT
    return [kind(drift=abs(drift.total), direction="faster" if drift.slope > 0 else "slower")]


def _sheet(cell: Cell, series: str, differing: Sequence[str], typical: int) -> Sheet:
    content = content_of(cell)
    entry = _entry(cell, series, differing, qualifications_of(cell, None, (), typical))
    return Sheet(
        **entry,
        measures=cell.measure.name,
        grids=content.grids,
        said=content.said,
        culprits=content.culprits,
    )


def _entry(
    cell: Cell, series: str, differing: Sequence[str], qualifications: tuple[Note, ...]
) -> dict[str, Any]:
    """Return the fields of an `Entry`."""
    spec, counts = cell.spec, count_runs(cell.runs)
    return {
        "series": series,
        "framework": spec.framework,
        "model": spec.model,
        "dtype": spec.dtype,
        "device": spec.device,
        "shape": spec.shape,
        "nodes": spec.nodes,
        "gpus": spec.gpus,
        "world_size": spec.world_size,
        "options": options_of(cell, differing),
        "simulated": cell.simulated,
        "n": measured_count(cell),
        "planned": counts.planned,
        "failed": counts.failed,
        "interrupted": counts.interrupted,
        "running": counts.running,
        "never_run": counts.never_run,
        "qualifications": qualifications,
        "failures": _failures(cell),
        "run_ids": tuple(run.run_id for run in cell.runs if run.state != NEVER_RUN),
        "hardware": hardware(cell.good or cell.runs, cell.spec),
    }


def _failures(cell: Cell) -> tuple[str, ...]:
    return tuple(
        f"{run.run_id} {run.state}: {_cause(run)}"
        for run in cell.runs
        if run.has_failed or run.is_interrupted
    )


def _cause(run: RunResult) -> str:
    """Return the failure and its cause in one line.

    A hint that quotes a log is left to the views of a single run.
    """
    error = run.error
    if error is None:
        return "no number"
    words = [error.host, error.where, error.message.partition("\n")[0], error.cause]
    hint = f". {error.hint}" if error.hint and "\n" not in error.hint else ""
    return ": ".join(word for word in words if word) + hint
