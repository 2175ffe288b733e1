"""`orch bench`: plan, show, run and collect a bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.api.opened import Opened
from orchestrator.cli import complete
from orchestrator.cli.connecting import Debug
from orchestrator.cli.defaults import choices, say_choices
from orchestrator.cli.node_states import WithSuspects, without_suspects
from orchestrator.cli.options import (
    AcceptNew,
    Budget,
    Container,
    Detach,
    Exclude,
    FirstLineTimeout,
    Hosts,
    Json,
    KeepGoing,
    Label,
    Lease,
    Output,
    StallTimeout,
    StopGrace,
    Telemetry,
    Templates,
    Timeout,
    Wait,
    WaitLimit,
    WarmupSteps,
    forget_path,
    limits_of,
    open_frameworks,
    say,
    template_bases,
)
from orchestrator.cli.reached import Devices, SkipUnreachable, reached
from orchestrator.cli.spares import Spares, set_aside, with_spares
from orchestrator.cli.submitting import Slurm, hosts_for
from orchestrator.cli.suite_gate import Gate, gated, planned_gate

if TYPE_CHECKING:
    from orchestrator.api.selection import Selection


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("bench")(bench)


def bench(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.models,
            help="Model to train, such as resnet50, or collective to measure, such as allreduce.",
        ),
    ],
    nodes: Annotated[str, typer.Option("--nodes", "-n", metavar="N,…", help="Node counts. Default: all nodes.")] = "",
    gpus: Annotated[str, typer.Option("--gpus", "-g", metavar="N,…", help="Ranks per node. Default: all GPUs.")] = "",
    shape: Annotated[str, typer.Option("--shape", metavar="1n1g,…", help="Shapes instead of --nodes and --gpus.")] = "",
    ladder: Annotated[bool, typer.Option("--ladder", help="1n1g, 1n2g … one full node, then 2, 4 … nodes.")] = False,
    dtype: Annotated[str, typer.Option("--dtype", metavar="T,…", help="fp32, tf32, fp16, bf16, fp8.")] = "",
    batch_size: Annotated[
        str,
        typer.Option(
            "--batch-size", "-b", metavar="N,…", help="Samples per device and step; language models: sequences per micro-batch."
        ),
    ] = "",
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", min=1, help="Samples per step over all ranks: strong scaling. Default: weak scaling."),
    ] = None,
    framework: Annotated[
        str,
        typer.Option(
            "--framework",
            "-f",
            metavar="NAME,…",
            autocompletion=complete.frameworks,
            help="Frameworks. Default: chosen by the model.",
        ),
    ] = "",
    loader: Annotated[str, typer.Option("--loader", metavar="L,…", help="Sources of samples.")] = "",
    repeats: Annotated[int | None, typer.Option("--repeats", "-r", min=1, help="Runs per configuration.")] = None,
    until_ci: Annotated[
        str,
        typer.Option(
            "--until-ci", metavar="1%", help="Add repeats until every 95 % interval is within ± this fraction of its median."
        ),
    ] = "",
    max_repeats: Annotated[
        int | None, typer.Option("--max-repeats", min=2, help="Maximum repeats with --until-ci. Default: 30.")
    ] = None,
    budget: Budget = "",
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps per run, including warm-up.")] = None,
    warmup_steps: WarmupSteps = None,
    timeout: Timeout = None,
    order: Annotated[str, typer.Option("--order", help="balanced, random or interleaved.")] = "balanced",
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=V,…",
            autocompletion=complete.settings,
            help="Values of a framework option; quotes keep a comma: 'k=\"a,b\"'.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=V,…", help="Values of an environment variable, such as NCCL_ALGO=Ring,Tree."),
    ] = None,
    run_file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="YAML file with the same choices, lists, include and exclude; options override it."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict/--no-strict", help="Refuse the bench if a configuration is impossible, instead of skipping it."),
    ] = False,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar='"METRIC >= N"',
            help="Exit with 5 if this bound is not met, 6 if undecided.",
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile", metavar="torch[:steps=5][:ranks=0,3]", help="Trace steps of an extra run that no table includes."
        ),
    ] = "",
    label: Label = "",
    output: Output = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Measure 1n1g unless an earlier run of it is usable.")
    ] = True,
    baseline_shape: Annotated[
        str, typer.Option("--baseline-shape", metavar="1n8g", help="Baseline shape of speedups, instead of 1n1g.")
    ] = "",
    container: Container = "",
    cpu_binding: Annotated[
        str,
        typer.Option(
            "--cpu-binding", metavar="none|numa|cores,…", help="CPUs of a rank: all, its GPU's NUMA node, its own cores."
        ),
    ] = "",
    lease: Lease = None,
    grace: StopGrace = None,
    first_line: FirstLineTimeout = None,
    stall: StallTimeout = None,
    output_limit: Annotated[int, typer.Option("--output-limit", min=1, help="Maximum MiB of logs per run and node.")] = 1024,
    telemetry: Telemetry = True,
    wait: Wait = False,
    wait_limit: WaitLimit = "",
    keep_going: KeepGoing = False,
    detach: Detach = False,
    slurm: Slurm = "",
    hosts: Hosts = "",
    exclude: Exclude = "",
    devices: Devices = None,
    skip_unreachable: SkipUnreachable = False,
    with_suspects: WithSuspects = False,
    gate: Gate = None,
    spares: Spares = 0,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    templates: Templates = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the files of every node; contact no host.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plan a bench (configurations x repeats), show it, run it, collect it.

    Lists are combined: --nodes 1,2,4 --dtype fp32,fp16 gives six configurations, each run --repeats times in balanced order.
    An impossible configuration is skipped, and listed with the reason.
    """
    from orchestrator import yamlfile
    from orchestrator.api.prepare import prepared
    from orchestrator.plan.folders import framework_for
    from orchestrator.plan.profile import check_profiled, profile_of
    from orchestrator.plan.request import check_measures, planned, request_of
    from orchestrator.plan.spec import skipped_words
    from orchestrator.report.text import one_line

    if not dry_run:
        forget_path(output)
    request = request_of(
        model,
        framework=framework,
        nodes=nodes,
        gpus=gpus,
        shape=shape,
        ladder=ladder,
        dtype=dtype,
        batch_size=batch_size,
        loader=loader,
        cpu_binding=cpu_binding,
        single={
            "steps": steps,
            "warmup_steps": warmup_steps,
            "timeout_s": timeout,
            "global_batch": global_batch,
            "container": container or None,
        },
        sets=sets or [],
        env=env or [],
        run_file=yamlfile.load(run_file) if run_file else None,
        repeats=repeats,
        order=order,
        until_ci=until_ci,
        max_repeats=max_repeats,
        budget=budget,
        baseline=baseline,
        baseline_shape=baseline_shape,
        strict=strict,
        label=label,
        expect=expect or [],
        defaults=choices(),
    )
    say_choices(request.origins)
    bases = template_bases(templates)
    folders = open_frameworks(request.framework_names(lambda: framework_for(model, bases)), bases)
    check_measures(request, [folder.framework for folder in folders])
    tracing = profile_of(profile) if profile else None
    for folder in folders if tracing else ():
        check_profiled(folder.framework)
    bench_id = new_bench_id()
    limits = limits_of(
        wait,
        wait_limit,
        lease_s=lease,
        grace_s=grace,
        first_line_s=first_line,
        stall_s=stall,
        output_bytes=output_limit << 20,
        telemetry=telemetry,
    )

    def checked(selection: Selection) -> str:
        """Raise what is refused on these hosts before any is contacted; return what the gate would run."""
        first = "" if gate is None else planned_gate(gate, selection, bases)
        members, _ = set_aside(selection, spares)
        prepared(request, folders, members, bench_id=bench_id, seed=0, profile=tracing, say=lambda _: None)
        return first

    with (
        hosts_for(
            request,
            bench_id,
            slurm,
            hosts,
            exclude,
            devices or (),
            check=checked,
            spares=spares,
            dry_run=dry_run,
            as_json=as_json,
        ) as chosen,
        Opened() as opened,
    ):
        chosen = selection = without_suspects(chosen, with_suspects)
        first = checked(selection) if gate is not None else ""  # and not after the gate
        if first and dry_run:
            say(f"gate: first {first}")
        if skip_unreachable and not dry_run:
            selection = reached(selection, accept_new, opened)
            spares = max(0, spares - (len(chosen.hosts) - len(selection.hosts)))  # one takes the place of each that is left out
        if gate is not None and not dry_run:
            opened.close()
            selection = gated(selection, gate, bases, limits, accept_new=accept_new, with_suspects=with_suspects)
        selection, aside = set_aside(selection, spares)
        seed = new_seed()
        if aside and not dry_run:
            plan = planned(request, folders, selection.hosts, bench_id=bench_id, seed=seed)
            selection = with_spares(selection, aside, plan, opened, accept_new=accept_new, waits=bool(limits.wait_s))
        decided = prepared(request, folders, selection, bench_id=bench_id, seed=seed, profile=tracing, say=say)
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
            detach=detach,
            keep_going=keep_going,
            opened=opened,
            output=output,
        )
