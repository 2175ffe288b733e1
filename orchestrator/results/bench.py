"""The results of all runs of a bench, and the file that stores each of them next to its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, fields, replace
from types import MappingProxyType

from orchestrator.errors import DataError
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold
from orchestrator.notes import Note, as_note
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.journal import Event
from orchestrator.record.refusals import errors_before_runs
from orchestrator.results.hardware import load_notes, slowdown_notes, unsteady_in
from orchestrator.results.notes import BORROWED, NOTHING_RUN, RANDOM_ORDER
from orchestrator.results.read import read_run
from orchestrator.results.run import RunResult
from orchestrator.results.telemetry.doubts import doubts_from


def read_bench(
    bench: BenchDir,
    *,
    known: Mapping[str, RunResult] = MappingProxyType({}),
) -> list[RunResult]:
    """Return the result of every run of a bench in execution order, good or bad, and store it where
    possible.

    ``known`` holds results of finished
    runs already read.
    """
    results = []
    for run in bench.runs():
        result = known.get(run.run_id) or read_run(run)
        results.append(result)
        try:
            store(run, result)
        except DataError as error:
            if error.kind != "storage_failed":  # a copy on a read-only disk must still be readable
                raise
    return place_results(bench, results)


def damage_in(bench: BenchDir, results: Sequence[RunResult]) -> list[DataError]:
    """Return the errors of runs whose evidence is damaged, each with the folder of its run."""
    damaged = []
    for result in results:
        if isinstance(result.error, DataError):
            error, folder = copy(result.error), str(bench.run(result.run_id).path)
            if folder not in error.where:
                error.where = ": ".join(filter(None, (folder, error.where)))
            damaged.append(error)
    return damaged


def place_results(bench: BenchDir, results: Sequence[RunResult]) -> list[RunResult]:
    """Return the results of a bench, each with its place in the order of execution.

    Runs of other benches have no place. The order comes from the journal, or from ``bench.json`` if
    the journal is damaged or lacks some of these runs.
    """
    began: dict[str, int] = {}
    with suppress(DataError, OSError):
        began = {
            event.run: number
            for number, event in enumerate(bench.events())
            if event.event == Event.PLANNED
        }
    borrowed = bench.record().borrowed
    order = [result.run_id for result in results if result.run_id not in borrowed]
    if set(order) <= set(began):
        order.sort(key=began.__getitem__)
    places = {run_id: place for place, run_id in enumerate(order)}
    return [replace(result, place=places.get(result.run_id)) for result in results]


def notes_of(bench: BenchDir) -> list[Note]:
    """Return the controller's notes on how a bench went: the order of its runs, which ones it
    borrowed, why it ended, what it left out, and why nothing was run."""
    record = bench.record()
    order = [RANDOM_ORDER(seed=record.schedule.seed)] if record.schedule.order == "random" else []
    lenders = Counter(record.borrowed.values())
    borrowed = [BORROWED(bench=bench_id, count=count) for bench_id, count in lenders.items()]
    return [*order, *borrowed, *map(as_note, record.notes), *_refusals(bench)]


def _refusals(bench: BenchDir) -> list[Note]:
    """Return why a bench that is over has no run: one text for all hosts with the same reason."""
    hosts = group_pairs((str(error), error.host) for error in errors_before_runs(bench))
    known = {text: fold(filter(None, names)) for text, names in hosts.items()}
    return [NOTHING_RUN(where=names and f"{names}: ", reason=text) for text, names in known.items()]


def store(run: RunDir, result: RunResult) -> None:
    """Write the derived values to ``results/throughput.json``. Raises DataError storage_full or
    storage_failed.
    """
    measured = result.throughput
    values = None
    if measured:
        values = {field.name: getattr(measured, field.name) for field in fields(measured)}
    run.write_result(
        "throughput.json",
        {
            "schema": 1,
            "run_id": result.run_id,
            "state": result.state,
            "throughput": values,
            "step_variation": result.step_times.variation if result.step_times else None,
            "step_times": asdict(result.step_times) if result.step_times else None,
            "transport": result.observed.get("transport"),
            "qualifications": [
                *result.qualifications,
                *unsteady_in([result]),
                *slowdown_notes([result]),
                *load_notes([result]),
                *doubts_from([result.use]),
            ],
            "error": result.error.as_dict() if result.error else None,
        },
    )
