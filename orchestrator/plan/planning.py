"""Plan a `Bench` from a request and hosts: its configurations, baselines and schedule.

Nothing here reads files, the clock, random numbers or earlier benches: id and seed of the bench are
passed as values. A bench is planned with every baseline it needs; `baselines.without` removes those
that an earlier bench lends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.plan.baselines import (
    check_shape,
    mark_baselines,
    missing_baselines,
    split_possible,
)
from orchestrator.plan.bench import Bench
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import Framework
from orchestrator.plan.option_values import seconds, share
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import LEAST, MOST, ORDERS, Schedule
from orchestrator.plan.spec import RunSpec
from orchestrator.plural import join_words


def check_measures(request: Request, frameworks: Iterable[Framework]) -> None:
    """Raise ConfigError if the request stops by an interval and the result of a framework is a
    diagnosis without one.
    """
    diagnoses = [framework for framework in frameworks if framework.measure.is_diagnosis]
    if request.until_ci and diagnoses:
        message = f"{diagnoses[0].name} measures {diagnoses[0].measure.noun}, which has no metric and so no interval"
        raise ConfigError(message, where="--until-ci", hint="set the number of runs with --repeats")


def plan_bench(
    request: Request,
    folders: Sequence[FrameworkFolder],
    hosts: Sequence[Host],
    *,
    bench_id: str,
    seed: int,
) -> Bench:
    """Return the requested bench. Missing baselines come before its cells. ``seed`` decides a
    random order.

    Raises ConfigError if a run is not possible on these hosts.
    """
    by_name = {folder.framework.name: folder for folder in folders}
    asked = configure(request, folders, hosts)
    schedule = _schedule(
        request, [folder.framework for folder in folders], asked.specs[0].device, seed
    )
    baselines: tuple[RunSpec, ...] = ()
    skipped = [left_out for left_out, _ in asked.skipped]
    if request.baseline:
        with_speedup = [
            spec for spec in asked.specs if by_name[spec.framework].framework.has_speedup
        ]
        baselines, impossible = split_possible(
            missing_baselines(with_speedup, request.baseline_shape), by_name, hosts
        )
        skipped += impossible
        check_shape(request.baseline_shape, (*asked.specs, *baselines), impossible)
    specs = mark_baselines(asked.specs, request.baseline_shape)
    return Bench(
        bench_id,
        (*baselines, *specs),
        by_name,
        schedule,
        tuple(skipped),
        request.label,
        request.expect,
    )


def _schedule(
    request: Request, frameworks: Sequence[Framework], device: str, seed: int
) -> Schedule:
    """Return the schedule of the bench. With ``--until-ci`` a framework's own repeats would be too
    few to start with.
    """
    until_ci, max_repeats = request.until_ci, request.max_repeats
    repeats = request.repeats or request.run_file.repeats
    if repeats is None:
        least = min(LEAST, max_repeats or LEAST)
        repeats = least
        if not until_ci:
            repeats = max(framework.default("repeats", device)[0] for framework in frameworks)
    if request.order not in ORDERS:
        raise ConfigError(
            f"expected {join_words(ORDERS, 'or')}, got {request.order!r}",
            where="--order",
        )
    if max_repeats is not None and not until_ci:
        raise ConfigError(
            "expected --until-ci as well, got none",
            where="--max-repeats",
            hint="use --repeats instead",
        )
    most = max_repeats or max(MOST, repeats)
    if until_ci and not 2 <= repeats <= most:
        raise ConfigError(f"expected 2 to {most} initial repeats, got {repeats}", where="--repeats")
    aim = share(until_ci, "--until-ci") if until_ci else None
    budget_s = seconds(request.budget, "--budget") if request.budget else None
    return Schedule(request.order, seed, repeats, aim, most, budget_s)
