"""From runs to the rows of a scaling table, each with the notes that qualify its numbers.

A row is one cell: all repeats of one spec. Runs of different specs are never pooled, nor are real and simulated runs. The
result does not depend on the order of the runs. A failed run is counted and its cause kept; it is never treated as zero or
dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.errors import DataError
from orchestrator.plan import Skipped
from orchestrator.plan.spec import skipped_words
from orchestrator.results.cells import _LENGTH, _SHAPE, Cell, _order, cells_of
from orchestrator.results.entries import Row, Sheet
from orchestrator.results.hardware import (
    conditions_of,
    differing_facts,
    hardware,
    infiniband_bytes_per_s,
    loaded_in,
    slowed_in,
    unsteady_in,
)
from orchestrator.results.numbers.drift import Drift, Estimate, drift_of, typical_ratio, typical_speed
from orchestrator.results.numbers.physics import Measured, findings
from orchestrator.results.numbers.throughput import WORTH, deviation, mean, scaling_efficiency, speedup, spread
from orchestrator.results.planned import Counts, Planned, counted
from orchestrator.results.repeats import equal_repeats, repeats_apart, slower_than_wider
from orchestrator.results.run import NEVER_RUN, REREAD, RUNNING, RunResult
from orchestrator.results.series import Group, choice, differing_names, grouped, series_of
from orchestrator.results.sheets import content_of

__all__ = ["Row", "Summary", "lacking", "of_bench", "summarize"]

ENOUGH_REPEATS = 3
WIDE_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class Summary:
    """``rows`` in order of series and size; ``baseline`` maps a series to its 1n1g row; ``notes`` apply to the whole table.
    ``sheets`` hold measurements other than training, in order of size. ``runs`` counts the planned runs of the whole bench.
    ``drift`` is by how much faster the last run would be than the first because of the drift that was taken out of the typical
    speeds, as a fraction. ``of_medians``: speedups are ratios of medians, from which no drift was taken out. ``label`` is the
    bench's; ``skipped`` are the configurations that it left out as impossible."""

    rows: tuple[Row, ...]
    baseline: Mapping[str, Row]
    notes: tuple[str, ...]
    sheets: tuple[Sheet, ...] = ()
    runs: Counts | None = None
    drift: float = 0.0
    of_medians: bool = False
    label: str = ""
    skipped: tuple[Skipped, ...] = ()

    def divisor(self, series: str) -> float | None:
        """Return the speed of the baseline of a series that its speedups are divided by, in samples/s; None without one."""
        if (base := self.baseline.get(series)) is None:
            return None
        return base.median_speed if self.of_medians else base.speed

    def groups(self) -> tuple[Group, ...]:
        """Return the rows by the tables in which they are shown."""
        return grouped(self.rows)

    def by_series(self) -> dict[str, tuple[Row, ...]]:
        """Return the rows of each series, in order."""
        return {name: tuple(r for r in self.rows if r.series == name) for name in dict.fromkeys(r.series for r in self.rows)}


def of_bench(planned: Planned, notes: Sequence[str] = ()) -> Summary:
    """Return the scaling table of a bench, with what it lacks; ``notes`` are additional notes on how it went."""
    return lacking(summarize(planned.results, notes), planned)


def lacking(summary: Summary, planned: Planned) -> Summary:
    """Return the table of a bench with its label, the counts of its planned runs, and first among its notes what is missing."""
    missing = ([planned.note] if planned.note else []) + skipped_words(planned.skipped)
    notes = (*missing, *summary.notes)
    return replace(summary, notes=notes, runs=planned.counts, label=planned.label, skipped=planned.skipped)


def summarize(results: Sequence[RunResult], notes: Sequence[str] = (), *, of_medians: bool = False) -> Summary:
    """Return the scaling table of ``results``; ``notes`` are additional notes on how the bench went.

    ``of_medians``: speedups are ratios of medians, as in published tables, without intervals.
    Raises DataError (result_invalid) for a run that is passed twice.
    """
    twice = [run_id for run_id, count in Counter(run.run_id for run in results).items() if count > 1]
    if twice:
        raise DataError(f"expected each run once, got {', '.join(sorted(twice))} again", kind="result_invalid")
    unknown = sorted(run.run_id for run in results if run.spec is None)
    every = cells_of(results)
    differing, typical = differing_names(every), _typical_repeats(every)
    series = {id(cell): series_of(cell, differing) for cell in every}
    sheets = [_sheet(cell, series[id(cell)], differing, typical) for cell in every if not cell.measure.has_speed]
    cells = [cell for cell in every if cell.measure.has_speed]
    families = _families(cells)
    bases = {id(cell): _baseline(cell, families[id(cell)]) for cell in cells}
    programs: dict[str, list[Cell]] = {}
    for cell in cells:
        programs.setdefault(cell.key(*_SHAPE, *_LENGTH, "batch_size"), []).append(cell)
    drift = drift_of([cell.placed for cell in cells])
    shown = None if of_medians else drift
    doubts = {
        id(cell): [*texts, *slower_than_wider(cell, cells)]
        for alike in programs.values()
        for cell, texts in _doubts(alike, shown)
    }
    rows, baseline = [], {}
    for cell in sorted(cells, key=lambda cell: (series[id(cell)], *_order(cell))):
        base = bases[id(cell)]
        faster = _ratio_of_medians(cell, base) if of_medians else _ratio(cell, base, drift)
        qualifications = _qualifications(cell, base, doubts[id(cell)], typical)
        row = _row(cell, series[id(cell)], differing, qualifications, _speed(cell, drift), faster)
        rows.append(row)
        if cell is base:
            baseline[row.series] = row
    # Candidates of a tune are compared with its default, so they need no baseline.
    without_baseline = [cell for cell in cells if bases[id(cell)] is None and "tune" not in cell.spec.origins.values()]
    own_notes = [_no_baseline(series[id(cell)], families[id(cell)]) for cell in without_baseline]
    own_notes += [f"run {run.run_id} is in no row: {_cause(run)}" for run in results if run.run_id in unknown]
    own_notes += _drift_note(drift, of_medians)
    return Summary(tuple(rows), baseline, (*notes, *sorted(set(own_notes))), tuple(sheets), None, drift.total, of_medians)


def _families(cells: Sequence[Cell]) -> dict[int, list[Cell]]:
    """Return, by ``id`` of each cell, all cells that differ from it only in shape and length, including the cell itself."""
    keys = {id(cell): cell.key(*_SHAPE, *_LENGTH) for cell in cells}
    families: dict[str, list[Cell]] = {}
    for cell in cells:
        families.setdefault(keys[id(cell)], []).append(cell)
    return {id(cell): families[keys[id(cell)]] for cell in cells}


def _baseline(cell: Cell, family: Sequence[Cell]) -> Cell | None:
    """Return the family's 1n1g cell with good runs; if there are several, one of equal length, else the longest."""
    candidates = [other for other in family if (other.spec.nodes, other.spec.gpus) == (1, 1) and other.speeds]
    return max(candidates, key=lambda other: (other.key(*_SHAPE) == cell.key(*_SHAPE), _order(other)), default=None)


def _no_baseline(series: str, family: Sequence[Cell]) -> str:
    """Return a note that there is no speedup and how to get one; another bench's runs count only if this bench borrows them."""
    tried = [run for cell in family if (cell.spec.nodes, cell.spec.gpus) == (1, 1) for run in cell.runs]
    rerun = "orch bench without --no-baseline measures one or borrows a good one of the same spec"
    again = sorted({run.repeated_by for run in tried} - {"", REREAD})
    retry = f"{' or '.join(again)} repeats it" if again else "a new orch bench measures a new one"
    if any(run.state == RUNNING for run in tried):
        return f"{series}: no speedup yet, because no 1n1g run is over"
    return f"{series}: no speedup, because there is no good 1n1g run; {retry if tried else rerun}"


def _typical_repeats(cells: Sequence[Cell]) -> int:
    counts = Counter(len(cell.good) for cell in cells if cell.good)
    return max(counts, key=lambda n: (counts[n], n), default=0)


def _ratio(cell: Cell, base: Cell | None, drift: Drift) -> Estimate | None:
    """Return the speedup from the repeats that a cell and its baseline share; of the typical speeds if they share too few."""
    if base is None or not cell.speeds:
        return None
    if cell is base:
        return Estimate(1.0, None)
    ours, theirs = _speed(cell, drift), _speed(base, drift)
    assert ours and theirs  # both have good runs
    return typical_ratio(cell.by_repeat, base.by_repeat, drift) or Estimate(speedup(ours.value, theirs.value), None)


def _speed(cell: Cell, drift: Drift) -> Estimate | None:
    return typical_speed(cell.placed, drift) if cell.speeds else None


def _ratio_of_medians(cell: Cell, base: Cell | None) -> Estimate | None:
    return Estimate(speedup(cell.median, base.median), None) if cell.median and base and base.median else None


def _row(
    cell: Cell,
    series: str,
    differing: Sequence[str],
    qualifications: tuple[str, ...],
    speed: Estimate | None,
    faster: Estimate | None,
) -> Row:
    spec, speeds, faster_by = cell.spec, cell.speeds, faster.interval if faster else None
    return Row(
        **_entry(cell, series, differing, qualifications),
        loader=spec.loader,
        batch_size=spec.batch_size,
        average_speed=mean(speeds) if speeds else None,
        median_speed=cell.median,
        min_speed=min(speeds, default=None),
        max_speed=max(speeds, default=None),
        speed_deviation=deviation(speeds) if len(speeds) > 1 else None,
        speed=speed.value if speed else None,
        speed_interval=speed.interval if speed else None,
        speedup=faster.value if faster else None,
        speedup_interval=faster_by,
        efficiency=scaling_efficiency(faster.value, spec.world_size) if faster else None,
        efficiency_interval=faster_by.scaled(scaling_efficiency(1.0, spec.world_size)) if faster_by else None,
        repeats=cell.repeats,
    )


def _drift_note(drift: Drift, of_medians: bool) -> list[str]:
    """Return a note on a drift that was taken out of the speeds, if it is large enough to be noticed."""
    if not drift.is_certain or abs(drift.total) < WORTH:
        return []
    words = f"all configurations became {abs(drift.total):.1%} {'faster' if drift.slope > 0 else 'slower'} during the bench"
    if of_medians:
        return [f"{words}; speed and its interval are those of its middle, without this drift; medians and speedups contain it"]
    return [f"{words}; speed, speedup and their intervals are those of its middle, without this drift"]


def _sheet(cell: Cell, series: str, differing: Sequence[str], typical: int) -> Sheet:
    content = content_of(cell)
    entry = _entry(cell, series, differing, _qualifications(cell, None, content.doubts, typical))
    return Sheet(**entry, measures=cell.measure.name, grids=content.grids, said=content.said, culprits=content.culprits)


def _entry(cell: Cell, series: str, differing: Sequence[str], qualifications: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of an `Entry`."""
    names = ("framework", "model", "dtype", "device", "shape", "nodes", "gpus", "world_size")
    counts = counted(cell.runs)
    return {name: getattr(cell.spec, name) for name in names} | {
        "series": series,
        "options": {name: choice(cell.spec, name) for name in differing},
        "simulated": cell.simulated,
        "n": counts.measured,
        **{name: getattr(counts, name) for name in ("planned", "failed", "interrupted", "running", "never_run")},
        "qualifications": qualifications,
        "failures": _failures(cell),
        "run_ids": tuple(run.run_id for run in cell.runs if run.state != NEVER_RUN),
        "hardware": hardware(cell.good or cell.runs, cell.spec),
    }


def _failures(cell: Cell) -> tuple[str, ...]:
    return tuple(f"{run.run_id} {run.state}: {_cause(run)}" for run in cell.runs if run.has_failed or run.is_interrupted)


def _cause(run: RunResult) -> str:
    """Return what failed and why in one line; a hint that quotes a log is left to the views of a single run."""
    error = run.error
    if error is None:
        return "no number"
    words = [error.host, error.where, error.message.partition("\n")[0], error.cause]
    hint = f". {error.hint}" if error.hint and "\n" not in error.hint else ""
    return ": ".join(word for word in words if word) + hint


def _qualifications(cell: Cell, base: Cell | None, doubts: Sequence[str], typical: int) -> tuple[str, ...]:
    notes = []
    if cell.simulated:
        notes.append("simulated: the program waits instead of computing; not a speed of this hardware")
    if cell.spec.device == "cpu":
        notes.append("cpu: measured on CPUs")
    speeds, n = cell.speeds, len(cell.good)
    if n:
        too_few = n < ENOUGH_REPEATS and not cell.measure.repeats_within
        if too_few:
            notes.append(f"{n} good repeat{'s' if n > 1 else ''}: interval unreliable below n={ENOUGH_REPEATS}")
        if n != typical:
            notes.append(f"{n} repeats where other cells have {typical}")
    if speeds:
        if spread(speeds) > WIDE_SPREAD:
            notes.append(f"repeats spread over {spread(speeds):.1%} of the median")
        notes += [*repeats_apart(cell), *equal_repeats(cell.good)]
    notes += doubts
    if base and base.key(*_SHAPE) != cell.key(*_SHAPE):
        notes.append(f"its baseline ran {base.spec.steps} steps ({base.spec.warmup_steps} warm-up)")
    if cell.spec.device == "cuda":
        notes += conditions_of(cell.good)
    notes += [*slowed_in(cell.good), *loaded_in(cell.good), *unsteady_in(cell.good)]
    notes += differing_facts(cell.good or cell.runs, (base.good or base.runs) if base and base is not cell else ())
    return tuple(dict.fromkeys([*notes, *(text for run in cell.good for text in run.qualifications)]))


def _doubts(cells: Sequence[Cell], drift: Drift | None) -> list[tuple[Cell, list[str]]]:
    """Return the doubts about each cell; the cells differ only in size, length and batch size.

    They are about the speeds that the table shows, without the drift; about medians if it is None.
    """
    speeds = [_speed(cell, drift) if drift else None for cell in cells]
    measured = [_measured(cell, speed.value if speed else None) for cell, speed in zip(cells, speeds, strict=True)]
    return [(cell, [finding.text for finding in findings(this, measured)]) for cell, this in zip(cells, measured, strict=True)]


def _measured(cell: Cell, typical: float | None) -> Measured:
    spec = cell.spec
    size = (spec.nodes, spec.gpus, spec.batch_size)
    measured = Measured(*size, spec.model, spec.dtype, tuple(cell.speeds), typical=typical)
    # The bounds on speed hold for images of 224 x 224 and 1000 classes, on real devices.
    usual = (spec.options.get("image_size", 224), spec.options.get("num_classes", 1000)) == (224, 1000)
    hardware_texts = {hardware([run], spec) for run in cell.good}
    if not usual or spec.device == "cpu" or cell.simulated or len(hardware_texts) != 1:
        return measured
    return replace(measured, devices=hardware_texts.pop(), link_bytes_per_s=infiniband_bytes_per_s(cell.good))
