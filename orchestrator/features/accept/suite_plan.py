"""Plan a suite on hosts, before any is contacted: its stages with their benches, and the stages
left out with the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.cli.options import print_json, print_line
from orchestrator.plural import plural
from orchestrator.results.numbers.rounding import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from orchestrator.api.selection import Selection
    from orchestrator.errors import ConfigError
    from orchestrator.features.accept.suite import Suite, SuiteStage
    from orchestrator.plan.bench import Bench
    from orchestrator.plan.folders import FrameworkFolder
    from orchestrator.yamlfile import Document


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """A suite on these hosts: its stages that are made, each with its bench, and why the others are
    left out.
    """

    suite: Suite
    document: Document
    references: tuple[Document, ...]
    stages: tuple[tuple[SuiteStage, Bench | None], ...]
    left_out: Mapping[str, str]
    criteria: Document | None = None


def plan_suite(
    name: str,
    selection: Selection,
    bases: Sequence[Path],
    budget_s: float | None,
    where: str = "suite",
) -> SuitePlan:
    """Return the plan of a suite, by name or file, on these hosts within a budget.

    ``where`` is the option that names the suite. Raises ConfigError, or Faults with several, for an
    invalid suite.
    """
    from functools import cache
    from pathlib import Path

    from orchestrator.errors import ConfigError
    from orchestrator.features.accept.suite import references_of, suite_of
    from orchestrator.features.accept.suite_check import check_criteria, check_suite
    from orchestrator.features.accept.suite_files import (
        open_criteria,
        open_references,
        open_suite,
    )
    from orchestrator.plan.folders import open_framework

    own = [folder for folder in (selection.project.root / "suites",) if folder.is_dir()]
    document = open_suite(name, own, where)
    devices = {host.device for host in selection.hosts}
    if len(devices) > 1:
        hint = "accept hosts with GPUs and hosts without separately: exclude one kind with -x"
        raise ConfigError(
            "expected hosts of one kind, got some with GPUs and some without",
            where="--hosts",
            hint=hint,
        )
    suite = suite_of(document, Path(name).stem, devices.pop())
    references = tuple(open_references(own))
    figures = [figure for file in references for figure in references_of(file)]
    read = cache(lambda framework: open_framework(framework, bases))
    check_suite(document, suite, selection.hosts, selection.inventory, figures, bases, read)
    criteria = None
    if suite.criteria:
        criteria = open_criteria(suite.criteria, own, document.where(("criteria",)))
        check_criteria(criteria, suite)
    stages, left_out = _plan_stages(suite, document, selection, bases, budget_s, read)
    return SuitePlan(suite, document, references, tuple(stages), left_out, criteria)


def in_words(plan: SuitePlan, nodes: int) -> str:
    """Return the stages that would run, and the ones left out, in one line."""
    stages = ", ".join(stage.name for stage, _ in plan.stages) or "no stage"
    left_out = f"; left out: {', '.join(plan.left_out)}" if plan.left_out else ""
    return f"{plan.suite.name} on {plural(nodes, 'node')}, {_about(plan.stages, nodes)}: {stages}{left_out}"


def show(plan: SuitePlan, nodes: int, as_json: bool) -> None:
    """Print the stages that would run, and the ones left out."""
    suite, plans, left_out = plan.suite, plan.stages, plan.left_out
    if as_json:
        total_s = sum(_estimate_s(stage, bench, nodes) for stage, bench in plans)
        stages = [
            {"name": stage.name, "title": stage.title, "estimate_s": _estimate_s(stage, bench, nodes),
             "runs": [run.run_id for run in bench.list_runs()] if bench else []}
            for stage, bench in plans
        ]  # fmt: skip
        print_json(
            {
                "suite": suite.name,
                "nodes": nodes,
                "estimate_s": total_s,
                "stages": stages,
                "left_out": dict(left_out),
            }
        )
        return
    print_line(f"{suite.name}: {suite.title}; {plural(nodes, 'node')}, {_about(plans, nodes)}")
    for stage, bench in plans:
        runs = "checks"
        if bench:
            runs = f"{plural(len(bench.list_runs()), 'run')} of {', '.join(dict.fromkeys(cell.shape for cell in bench.cells))}"
        print_line(f"  {stage.name}: {stage.title}; {runs}, {_about([(stage, bench)], nodes)}")
        for bar in stage.bars:
            limits = [
                f"{percent(share)} slower than {than}"
                for share, than in ((bar.peers, "peers"), (bar.earlier, "before"))
                if share
            ]
            judged_by = "by reference figures alone"
            if limits:
                judged_by = f"at most {' and '.join(limits)}"
            print_line(f"    bar: {bar.words}, {judged_by}")
    for name, reason in left_out.items():
        print_line(f"  left out: {name}: {reason}")


def _plan_stages(
    suite: Suite,
    document: Document,
    selection: Selection,
    bases: Sequence[Path],
    budget_s: float | None,
    read: Callable[[str], FrameworkFolder],
) -> tuple[list[tuple[SuiteStage, Bench | None]], dict[str, str]]:
    """Return the stages that are possible and fit the budget, each with its bench, and why others
    are left out.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.features.accept.stage_bench import bench_of
    from orchestrator.features.accept.suite import fit_stages
    from orchestrator.plan.placement import idle_gpus
    from orchestrator.plan.spec import by_reason

    nodes = len(selection.hosts)
    benches: dict[str, Bench | None] = {}
    impossible = {}
    for stage in suite.stages:
        try:
            benches[stage.name] = (
                None if stage.checks else bench_of(stage, document, selection.hosts, bases, read)
            )
        except ConfigError as error:
            if error.kind != "config_invalid":  # a fault in a framework folder
                raise
            impossible[stage.name] = _reason(error)
    possible = [stage for stage in suite.stages if stage.name in benches]
    kept, left_out = fit_stages(
        [(stage, _estimate_s(stage, benches[stage.name], nodes)) for stage in possible],
        budget_s,
        impossible,
    )
    planned = [(stage, benches[stage.name]) for stage in kept]
    for stage, bench in planned:
        for reason, names in by_reason(bench.skipped if bench else ()).items():
            left_out[f"{stage.name}, {names}"] = reason
    cells = [cell for _, bench in planned if bench for cell in bench.cells]
    for gpus in idle_gpus(cells, selection.hosts) if cells else ():
        left_out[gpus] = "hosts differ in size, and no stage uses these"
    return planned, left_out


def _reason(error: ConfigError) -> str:
    """Return why a stage is impossible. That no option was given is not the reason: what a suite
    chooses has a place in it.
    """
    if error.where and not error.where.startswith("--"):
        return f"{error.where}: {error.message}"
    return error.message


def _about(stages: Sequence[tuple[SuiteStage, Bench | None]], nodes: int) -> str:
    from orchestrator.plan.option_values import shortest

    total_s = sum(_estimate_s(stage, bench, nodes) for stage, bench in stages)
    if stages and not total_s:
        return "no time given (run:)"
    return f"about {shortest(round(total_s))}"


def _estimate_s(stage: SuiteStage, bench: Bench | None, nodes: int) -> float:
    return stage.estimate_s(len(bench.list_runs()) if bench else 1, nodes)
