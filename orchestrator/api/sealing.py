"""What an archive holds besides files, for everything that seals or verifies one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.features.accept.record import AcceptanceDir
    from orchestrator.record import BenchDir

__all__ = ["contents"]

HISTORY_SCHEMA = 1
"""Of ``history`` in an archive. 1: first version."""


def contents(folder: BenchDir | AcceptanceDir) -> dict[str, Any]:
    """Return what an archive holds besides files: ``tables``, what ``orch summarize --json`` prints of a bench or the
    certificate of an acceptance, and ``history``, what ``orch history`` and a list of archives show of it.

    Nothing is cached, because the evidence may be in a read-only directory."""
    import json

    from orchestrator.record import BenchDir

    computed = _of_bench(folder) if isinstance(folder, BenchDir) else _of_acceptance(folder)
    values: dict[str, Any] = json.loads(json.dumps(computed, allow_nan=False))
    return values


def _of_bench(bench: BenchDir) -> dict[str, Any]:
    import json

    from orchestrator.analysis.past_cells import listed
    from orchestrator.report.formats.json import render
    from orchestrator.results.bench import notes_of
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.read import read_run
    from orchestrator.results.summary import of_bench

    record, runs = bench.record(), [read_run(run) for run in bench.runs()]
    planned = planned_runs(bench, runs)
    history = {
        "schema": HISTORY_SCHEMA,
        "id": record.bench_id,
        "created": record.created,
        "label": record.label,
        "runs": planned.counts.planned,
        "measured": planned.counts.measured,
        "benches": {record.bench_id: listed(bench, record.bench_id, runs)},
    }
    return {"tables": json.loads(render(of_bench(planned, notes_of(bench)))), "history": history}


def _of_acceptance(acceptance: AcceptanceDir) -> dict[str, Any]:
    from orchestrator.analysis.past_cells import listed
    from orchestrator.features.accept.certificate import certificate_of
    from orchestrator.results.read import read_run

    record, certificate = acceptance.record(), certificate_of(acceptance).as_dict()
    benches = [acceptance.bench(attempt.bench_id) for attempt in record.attempts]
    history = {
        "schema": HISTORY_SCHEMA,
        "id": record.acceptance_id,
        "created": record.created,
        "label": record.suite,
        "runs": sum(len(bench.record().runs) for bench in benches),
        "measured": sum(stage["measured"] for stage in certificate["stages"] if stage["bench_id"]),
        "benches": {bench.path.name: listed(bench, bench.path.name, list(map(read_run, bench.runs()))) for bench in benches},
    }
    return {"tables": certificate, "history": history}
