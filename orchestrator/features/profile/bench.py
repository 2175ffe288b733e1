"""The traces of a bench: one extra run of each configuration, read from its verified logs, never
counted in a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.errors import DataError
from orchestrator.features.profile.trace import Recorded, Trace, parse_trace
from orchestrator.features.profile.waits import with_waits
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.evidence import verify_log
from orchestrator.record.manifest import read_manifest
from orchestrator.record.node_record import exit_record
from orchestrator.results import RunResult
from orchestrator.results.entries import Row
from orchestrator.results.summary import Summary

_MOST_BYTES = 32 << 20
_TRACE = re.compile(r"trace-rank-([0-9]{1,7})\.json\.gz", re.ASCII)


@dataclass(frozen=True, slots=True)
class Profiled:
    """The traces of a configuration in order of rank, and why there are none or fewer, empty if
    there are all.
    """

    series: str
    case: str
    run_id: str
    simulated: bool
    traces: tuple[Trace, ...]
    missing: str


def read_profiles(
    bench: BenchDir, summary: Summary, results: Sequence[RunResult]
) -> tuple[Profiled, ...]:
    """Return the traces of each configuration that has a speed and an extra run; empty for a bench
    without ``--profile``.
    """
    profiles = []
    for run_id, cell in bench.record().extra_run_cells.items():
        own = {result.run_id for result in results if result.spec and result.spec.is_run_of(cell)}
        row = next((row for row in summary.speeds() if own & set(row.run_ids)), None)
        if row:
            profiles.append(_read_profile(bench.run(run_id), row))
    return tuple(profiles)


def _read_profile(run: RunDir, row: Row) -> Profiled:
    traces: list[Trace] = []
    missing = ""
    try:
        if not (run.path / "manifest.json").exists():
            missing = "its extra run was not started"
        else:
            manifest = read_manifest(run)
            outcome = manifest.outcome
            traces = with_waits(
                sorted(_read_traces(run), key=lambda own: own.trace.rank), manifest.spec.options
            )
            if not traces:
                missing = f"its extra run left no trace: {outcome.error if outcome and outcome.error else 'see its logs'}"
    except DataError as error:
        missing = ": ".join(filter(None, (error.host, error.where, error.message)))
    return Profiled(row.series, row.shape, run.run_id, row.simulated, tuple(traces), missing)


def _read_traces(run: RunDir) -> Iterator[Recorded]:
    """Yield the traces of a run. Raises DataError for an invalid trace, or one that differs from
    its node's record.
    """
    for slot in read_manifest(run).slots:
        record = exit_record(run, slot.host)
        for name, entry in record.files.items() if record else ():
            match = _TRACE.fullmatch(name)
            if not match or int(match[1]) not in slot.ranks:
                continue
            if entry.bytes > _MOST_BYTES:
                message = (
                    f"expected a trace of at most {_MOST_BYTES >> 20} MiB, got {entry.bytes} bytes"
                )
                raise DataError(message, kind="result_invalid", host=slot.host, where=name)
            try:
                yield parse_trace(
                    bytes(verify_log(run, slot.host, name, entry)), int(match[1]), slot.host
                )
            except DataError as error:
                error.host, error.where = slot.host, name
                raise
