"""Contents of an archive besides files, for all code that seals or verifies one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.record import BenchDir
    from orchestrator.record.bench_groups import BenchGroup

HISTORY_SCHEMA = 1
"""Of ``history`` in an archive. 1: first version."""


def contents(folder: BenchDir | BenchGroup) -> dict[str, Any]:
    """Return the contents of an archive besides files.

    ``tables`` is the output of ``orch summarize --json`` for a bench, or the certificate of an
    acceptance. ``history`` is its part of ``orch history`` and of a list of archives. Nothing is
    cached, because the evidence may be in a read-only directory.
    """
    import json

    from orchestrator.record import BenchDir
    from orchestrator.record.bench_groups import provider_of

    computed = (
        _of_bench(folder) if isinstance(folder, BenchDir) else provider_of(folder).contents(folder)
    )
    values: dict[str, Any] = json.loads(json.dumps(computed, allow_nan=False))
    return values


def _of_bench(bench: BenchDir) -> dict[str, Any]:
    import json

    from orchestrator.analysis.past_cells import dump_past_bench
    from orchestrator.report.formats.json import render
    from orchestrator.results.bench import notes_of
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.read import read_run
    from orchestrator.results.summary import of_bench

    record, runs = bench.record(), [read_run(run) for run in bench.runs()]
    planned = planned_runs(bench, runs)
    counts = planned.counts
    benches = {record.bench_id: dump_past_bench(bench, record.bench_id, runs)}
    history = history_of_archive(
        record.bench_id,
        record.created,
        record.label,
        runs=counts.planned,
        measured=counts.measured,
        benches=benches,
    )
    return {"tables": json.loads(render(of_bench(planned, notes_of(bench)))), "history": history}


def history_of_archive(
    name: str, created: str, label: str, *, runs: int, measured: int, benches: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an archive's part of ``orch history`` and of a list of archives.

    ``benches`` are by name, as `dump_past_bench` gives them.
    """
    return {
        "schema": HISTORY_SCHEMA,
        "id": name,
        "created": created,
        "label": label,
        "runs": runs,
        "measured": measured,
        "benches": benches,
    }
