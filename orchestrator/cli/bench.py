"""`orch bench`: plan, show, run and collect a bench."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.cli import complete
from orchestrator.cli.defaults import choices, say_choices
from orchestrator.cli.node_states import without_suspects
from orchestrator.cli.option_rows import Given, takes
from orchestrator.cli.options import (
    forget_path,
    open_frameworks,
    say,
    template_bases,
)
from orchestrator.cli.spares import set_aside, with_spares
from orchestrator.cli.submitting import hosts_for
from orchestrator.cli.suite_gate import describe_gate, run_gate
from orchestrator.cli.unreachable import select_reachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.api.selection import Selection
    from orchestrator.plan import Framework
    from orchestrator.plan.bench import ExtraRuns


@takes("bench")
def bench(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.models,
            help="Model to train, such as resnet50, or collective to measure, such as allreduce.",
        ),
    ],
    given: Given,
) -> None:
    """Plan a bench (configurations x repeats), show it, run it, collect it.

    Lists are combined: --nodes 1,2,4 --dtype fp32,fp16 gives six configurations, each run --repeats
    times in balanced order. An impossible configuration is skipped, and listed with the reason.
    """
    from orchestrator import yamlfile
    from orchestrator.api.prepare import prepare_bench
    from orchestrator.options import select_plan_options
    from orchestrator.plan import Limits
    from orchestrator.plan.folders import framework_for
    from orchestrator.plan.planning import check_measures, plan_bench
    from orchestrator.plan.request import request_of
    from orchestrator.plan.spec import skipped_words
    from orchestrator.report.text import one_line

    dry_run, as_json = given["dry_run"], given["json"]
    if not dry_run:
        forget_path(given["output"])
    request = request_of(
        model,
        run_file=yamlfile.load(given["file"]) if given["file"] else None,
        defaults=choices(),
        **select_plan_options(given),
    )
    say_choices(request.origins)
    bases = template_bases(given["templates"])
    folders = open_frameworks(request.framework_names(lambda: framework_for(model, bases)), bases)
    frameworks = [folder.framework for folder in folders]
    check_measures(request, frameworks)
    extra = _extra_runs(given["profile"], frameworks)
    bench_id = new_bench_id()
    limits = Limits.of_options(given)
    gate, spares, accept_new = given["gate"], given["spares"], given["accept_new"]

    def check(selection: Selection) -> str:
        """Raise the faults of a bench on these hosts before any is contacted; return what the gate
        would run.
        """
        first = describe_gate(gate, selection, bases) if gate else ""
        members, _ = set_aside(selection, spares)
        prepare_bench(
            request,
            folders,
            members,
            bench_id=bench_id,
            seed=0,
            extra=extra,
            say=lambda _: None,
        )
        return first

    with (
        hosts_for(
            request,
            bench_id,
            given,
            given["devices"] or (),
            check=check,
            spares=spares,
            dry_run=dry_run,
            as_json=as_json,
        ) as chosen,
        ConnectionCache() as opened,
    ):
        good = without_suspects(chosen, given["with_suspects"])
        first = check(good) if gate else ""  # and not after the gate
        if first and dry_run:
            say(f"gate: first {first}")
        passed = good
        if given["skip_unreachable"] and not dry_run:
            passed = select_reachable(good, accept_new, opened)
            # One spare takes the place of each that is left out.
            spares = max(0, spares - (len(good.hosts) - len(passed.hosts)))
        if gate and not dry_run:
            opened.close()
            passed = run_gate(
                passed,
                gate,
                bases,
                limits,
                accept_new=accept_new,
                with_suspects=given["with_suspects"],
            )
        selection, aside = set_aside(passed, spares)
        seed = new_seed()
        if aside and not dry_run:
            plan = plan_bench(request, folders, selection.hosts, bench_id=bench_id, seed=seed)
            selection = with_spares(
                selection, aside, plan, opened, accept_new=accept_new, waits=bool(limits.wait_s)
            )
        decided = prepare_bench(
            request, folders, selection, bench_id=bench_id, seed=seed, extra=extra, say=say
        )
        if as_json or not dry_run:
            for text in skipped_words(decided.plan.skipped):
                typer.echo(one_line(text), err=True)
        if dry_run:
            from orchestrator.cli.dry_run import show_plan

            show_plan(decided.plan, selection, as_json)
            return
        from orchestrator.cli.controller import conduct

        conduct(
            decided.plan,
            decided.borrowed,
            selection,
            limits,
            bases,
            accept_new=accept_new,
            as_json=as_json,
            detach=given["detach"],
            keep_going=given["keep_going"],
            opened=opened,
            output=given["output"],
        )


def _extra_runs(text: str, frameworks: Sequence[Framework]) -> ExtraRuns | None:
    """Return the runs of ``--profile`` that no table counts. Raises ConfigError if these frameworks
    have none.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record.bench_parts import extra_runs

    if not text:
        return None
    extra = extra_runs(text)
    if not extra:
        message = "expected no profile: this installation of orch traces no runs"
        raise ConfigError(message, where="--profile")
    extra.check_frameworks(frameworks)
    return extra
