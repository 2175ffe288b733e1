"""Explain a bench: from the step parts that its runs report, and the newest all-reduces measured on the same hosts with the
same NCCL settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.explain.curves import newest_curve, settings_of
from orchestrator.analysis.explain.overlap import Curve
from orchestrator.analysis.explain.prediction import Collective, Explanation, Startup, explanation
from orchestrator.analysis.explain.step_parts import StepParts, told, typical
from orchestrator.record import BenchDir
from orchestrator.results import RunResult, median
from orchestrator.results.account import BenchAccount, RunAccount
from orchestrator.results.summary import Row, Summary

__all__ = ["explain_bench"]

_LEAST_BYTES = 1 << 20
"""Least ``max_bytes`` of a bench of all-reduces: sizes start at 1 KiB, and a lower end leaves too few for a curve."""


def explain_bench(
    bench: BenchDir, summary: Summary, results: Sequence[RunResult], account: BenchAccount
) -> tuple[Explanation, ...]:
    """Return an explanation of each row that has a speed and a baseline.

    All-reduces are searched for in the other benches of the same project directory.
    """
    good = {result.run_id: result for result in results if result.is_good}
    explanations = []
    for row in summary.speeds():
        baseline = summary.baseline.get(row.series)
        runs = [good[run_id] for run_id in row.run_ids if run_id in good]
        if baseline is None or not runs:
            continue
        baseline_runs = [good[run_id] for run_id in baseline.run_ids if run_id in good]
        parts = [_step_parts(run) for run in runs]
        largest = max(typical(parts).buckets_bytes, default=0)
        collective = _collective(bench, row, runs[-1].run_id, largest)
        explanations.append(
            explanation(
                row,
                baseline,
                parts,
                [_step_parts(run) for run in baseline_runs],
                collective,
                sockets=any(_uses_sockets(run) for run in runs),
                startup=_startup(runs, account.runs),
                missing=_missing(row, collective, largest),
            )
        )
    return tuple(explained for explained in explanations if explained)


def _collective(bench: BenchDir, row: Row, run_id: str, largest: int) -> Collective | None:
    if row.world_size == 1:
        return None
    benches, settings = bench.path.absolute().parent, settings_of(bench.run(run_id))
    measured = newest_curve(benches, row.shape, settings, device=row.device, reaching=largest)
    # A single size gives no curve: the command in `_missing` then measures more sizes.
    if measured is None or len(measured.times_s) < 2:
        return None
    source = measured.bench_id
    if measured.passed_over:
        source += f", because the sizes in {' and '.join(measured.passed_over)} end too far below"
    return Collective(Curve.of(measured.times_s), source, measured.uncertain)


def _missing(row: Row, collective: Collective | None, largest: int) -> list[str]:
    """Return the command that measures what is missing, up to the first power of two (its last size) from ``largest``."""
    if row.world_size == 1 or (collective and collective.curve.reaches(largest)):
        return []
    sizes = f" --set max_bytes={1 << (max(largest, _LEAST_BYTES) - 1).bit_length()}" if largest else ""
    return [f"orch bench allreduce --shape {row.shape}{sizes}"]


def _step_parts(run: RunResult) -> StepParts:
    spec = run.spec
    assert spec is not None and run.throughput is not None  # a good run of a row has both
    window = run.throughput.last_step - run.throughput.first_step + 1
    return told(run.observed, window, spec.options.get("bucket_cap_mb"))


def _uses_sockets(run: RunResult) -> bool:
    networks = run.observed.get("networks", ())
    return run.spec is not None and run.spec.nodes > 1 and any(str(name).startswith("NET/Socket") for name in networks)


def _startup(runs: Sequence[RunResult], accounts: Mapping[str, RunAccount]) -> Startup | None:
    """Return how long runs took until their window began, and in total: medians over the runs that report both."""
    both = []
    for run in runs:
        account = accounts.get(run.run_id)
        if account and account.first_step_s is not None and run.tempo and account.nodes:
            both.append((account.first_step_s - run.tempo.first_s, max(node.began_s + node.took_s for node in account.nodes)))
    return Startup(*(median(times) for times in zip(*both, strict=True))) if both else None
