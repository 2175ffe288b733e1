"""Explain a bench: from the step parts that its runs report, and the newest collectives measured on
the same hosts with the same NCCL settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.features.explain.communication import Collective, largest_sizes
from orchestrator.features.explain.curve import Curve
from orchestrator.features.explain.measured import newest_curve, settings_of
from orchestrator.features.explain.prediction import Explanation, Startup, explanation
from orchestrator.record import BenchDir
from orchestrator.results import RunResult, median
from orchestrator.results.entries import Row
from orchestrator.results.parts.step_parts import StepParts, parse_step_parts, typical
from orchestrator.results.parts.transfers import Link
from orchestrator.results.run_history import BenchHistory, RunHistory
from orchestrator.results.summary import Summary

_LEAST_BYTES = 1 << 20
"""Least ``max_bytes`` of a bench of collectives: sizes start at 1 KiB, and a lower end leaves too
few for a curve.
"""


def explain_bench(
    bench: BenchDir, summary: Summary, results: Sequence[RunResult], history: BenchHistory
) -> tuple[Explanation, ...]:
    """Return an explanation of each row that has a speed and a baseline.

    Collectives are searched for in the other benches of the same project directory.
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
        largest_by_link = largest_sizes(typical(parts)) if row.world_size > 1 else {}
        measured = _find_collectives(bench, row, runs[-1].run_id, largest_by_link)
        explanations.append(
            explanation(
                row,
                baseline,
                parts,
                [_step_parts(run) for run in baseline_runs],
                measured,
                sockets=any(map(_uses_sockets, runs)),
                startup=_startup(runs, history.runs),
                missing=_missing(row, measured, largest_by_link),
            )
        )
    return tuple(explained for explained in explanations if explained)


def _find_collectives(
    bench: BenchDir, row: Row, run_id: str, largest_by_link: Mapping[Link, int]
) -> dict[Link, Collective]:
    """Return the ones of these collectives that were measured in the shape of a row;
    ``largest_by_link``: their largest sizes.
    """
    benches, settings = bench.path.absolute().parent, settings_of(bench.run(run_id))
    collectives = {}
    for link, largest in largest_by_link.items():
        measured = newest_curve(
            benches, row.shape, settings, link=link, device=row.device, reaching=largest
        )
        # A single size gives no curve: the command in `_missing` then measures more sizes.
        if measured is None or len(measured.times_s) < 2:
            continue
        source = measured.bench_id
        if measured.passed_over:
            source += (
                f", because the sizes in {' and '.join(measured.passed_over)} end too far below"
            )
        collectives[link] = Collective(Curve.of(measured.times_s), source, measured.uncertain)
    return collectives


def _missing(
    row: Row, measured: Mapping[Link, Collective], largest_by_link: Mapping[Link, int]
) -> list[str]:
    """Return the commands that take the missing measurements, each up to the first power of two
    from the largest size on.
    """
    commands = []
    for link, largest in sorted(largest_by_link.items()):
        if link in measured and measured[link].curve.reaches(largest):
            continue
        groups = ""
        if link.ranks:
            groups = f" --set group_ranks={link.ranks} --set group_distance={link.distance}"
        most = 1 << (max(largest, _LEAST_BYTES) - 1).bit_length()
        commands.append(
            f"orch bench {link.collective} --shape {row.shape}{groups} --set max_bytes={most}"
        )
    return commands


def _step_parts(run: RunResult) -> StepParts:
    spec = run.spec
    assert spec is not None and run.throughput is not None  # a good run of a row has both
    window = run.throughput.last_step - run.throughput.first_step + 1
    return parse_step_parts(run.observed, window, spec.options.get("bucket_cap_mb"))


def _uses_sockets(run: RunResult) -> bool:
    networks = run.observed.get("networks", ())
    return (
        run.spec is not None
        and run.spec.nodes > 1
        and any(str(name).startswith("NET/Socket") for name in networks)
    )


def _startup(runs: Sequence[RunResult], histories: Mapping[str, RunHistory]) -> Startup | None:
    """Return how long runs took until their window began, and in total: medians over the runs that
    report both.
    """
    both = []
    for run in runs:
        history = histories.get(run.run_id)
        if history and history.first_step_s is not None and run.tempo and history.nodes:
            both.append(
                (
                    history.first_step_s - run.tempo.first_s,
                    max(node.began_s + node.took_s for node in history.nodes),
                )
            )
    if not both:
        return None
    return Startup(*(median(times) for times in zip(*both, strict=True)))
