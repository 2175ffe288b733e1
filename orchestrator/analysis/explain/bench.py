"""A bench explained: what its runs tell of their steps, and the newest all-reduces that were measured on the same hosts with
the same settings of NCCL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.explain.curves import newest_curve, settings_of
from orchestrator.analysis.explain.overlap import Curve
from orchestrator.analysis.explain.prediction import Collective, Explanation, Startup, explanation
from orchestrator.analysis.explain.step_parts import StepParts, told, typical
from orchestrator.record.rundir import BenchDir
from orchestrator.results.account import BenchAccount, RunAccount
from orchestrator.results.numbers.throughput import median
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Row, Summary

__all__ = ["explain_bench"]

_LEAST_BYTES = 1 << 20
"""Below, the sizes of a bench of all-reduces, 1 KiB and up, are too few for a curve."""


def explain_bench(
    bench: BenchDir, summary: Summary, results: Sequence[RunResult], account: BenchAccount
) -> tuple[Explanation, ...]:
    """Return why each row that has a speed and a baseline is as fast as it is.

    All-reduces are looked for in the benches beside this one.
    """
    good = {result.run_id: result for result in results if result.is_good}
    found = []
    for row in summary.rows:
        baseline = summary.baseline.get(row.series)
        runs, one = ([good[run_id] for run_id in each.run_ids if run_id in good] if each else [] for each in (row, baseline))
        if baseline is None or not runs:
            continue
        here = [_told(run) for run in runs]
        largest = max(typical(here).buckets_bytes, default=0)
        collective = _collective(bench, row, runs[-1].run_id, largest)
        found.append(
            explanation(
                row,
                baseline,
                here,
                [_told(run) for run in one],
                collective,
                sockets=any(_speaks_sockets(run) for run in runs),
                startup=_startup(runs, account.runs),
                missing=_missing(row, collective, largest),
            )
        )
    return tuple(each for each in found if each)


def _collective(bench: BenchDir, row: Row, run_id: str, largest: int) -> Collective | None:
    if row.world_size == 1:
        return None
    beside, settings = bench.path.absolute().parent, settings_of(bench.run(run_id))
    found = newest_curve(beside, row.shape, settings, device=row.device, reaching=largest)
    # One size is no curve: the command that is named then measures more.
    if found is None or len(found.times_s) < 2:
        return None
    over = f", as the sizes of {' and '.join(found.passed_over)} end too far below" if found.passed_over else ""
    return Collective(Curve.of(found.times_s), found.bench_id + over, found.uncertain)


def _missing(row: Row, collective: Collective | None, largest: int) -> list[str]:
    """Return the command that measures what lacks: up to a power of two, at which its sizes end, that is no less than asked."""
    if row.world_size == 1 or (collective and collective.curve.reaches(largest)):
        return []
    sizes = f" --set max_bytes={1 << (max(largest, _LEAST_BYTES) - 1).bit_length()}" if largest else ""
    return [f"orch bench allreduce --shape {row.shape}{sizes}"]


def _told(run: RunResult) -> StepParts:
    spec = run.spec
    assert spec is not None and run.throughput is not None  # it is of a row, and good
    window = run.throughput.last_step - run.throughput.first_step + 1
    return told(run.observed, window, spec.options.get("bucket_cap_mb"))


def _speaks_sockets(run: RunResult) -> bool:
    networks = run.observed.get("networks", ())
    return run.spec is not None and run.spec.nodes > 1 and any(str(name).startswith("NET/Socket") for name in networks)


def _startup(runs: Sequence[RunResult], accounts: Mapping[str, RunAccount]) -> Startup | None:
    """Return how long runs took until their window began, and in all: medians of those that tell both."""
    both = []
    for run in runs:
        account = accounts.get(run.run_id)
        if account and account.first_step_s is not None and run.tempo and account.nodes:
            both.append((account.first_step_s - run.tempo.first_s, max(node.began_s + node.took_s for node in account.nodes)))
    return Startup(*(median(times) for times in zip(*both, strict=True))) if both else None
