"""`orch bench`: plan a bench, show it, run it, collect it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import (
    AcceptNew,
    Budget,
    Detach,
    Exclude,
    FirstLineTimeout,
    Hosts,
    Json,
    Lease,
    Selection,
    StallTimeout,
    StopGrace,
    Templates,
    Timeout,
    WarmupSteps,
    assignments,
    numbers,
    print_json,
    seconds,
    select,
    shapes,
    share,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.plan.bench import Bench
    from orchestrator.plan.schedule import Schedule
    from orchestrator.plan.spec import RunSpec
    from orchestrator.record.rundir import RunDir


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("bench")(bench)


def bench(
    model: Annotated[str, typer.Argument(help="What to train, such as resnet50, or to measure, such as allreduce.")],
    nodes: Annotated[str, typer.Option("--nodes", "-n", metavar="N,…", help="Numbers of nodes; all if not given.")] = "",
    gpus: Annotated[str, typer.Option("--gpus", "-g", metavar="N,…", help="Ranks per node; all GPUs if not given.")] = "",
    shape: Annotated[str, typer.Option("--shape", metavar="1n1g,…", help="Shapes instead of --nodes and --gpus.")] = "",
    ladder: Annotated[bool, typer.Option("--ladder", help="1n1g, 1n2g … one whole node, 2, 4 … nodes.")] = False,
    dtype: Annotated[str, typer.Option("--dtype", metavar="T,…", help="fp32, tf32, fp16, bf16.")] = "",
    batch_size: Annotated[str, typer.Option("--batch-size", "-b", metavar="N,…", help="Samples per device and step.")] = "",
    framework: Annotated[
        str, typer.Option("--framework", "-f", metavar="NAME,…", help="Framework folders; by the model if not given.")
    ] = "",
    loader: Annotated[str, typer.Option("--loader", metavar="L,…", help="Where samples come from.")] = "",
    repeats: Annotated[int | None, typer.Option("--repeats", "-r", min=1, help="Runs of each cell.")] = None,
    until_ci: Annotated[
        str, typer.Option("--until-ci", metavar="1%", help="Add repeats until every 95 % interval is within ± so much.")
    ] = "",
    max_repeats: Annotated[int | None, typer.Option("--max-repeats", min=2, help="Most repeats with --until-ci; 30.")] = None,
    budget: Budget = "",
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of a run, warm-up included.")] = None,
    warmup_steps: WarmupSteps = None,
    timeout: Timeout = None,
    order: Annotated[str, typer.Option("--order", help="interleaved or random.")] = "interleaved",
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A knob of the framework.")] = None,
    run_file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="YAML with choices; options win.")] = None,
    baseline: Annotated[bool, typer.Option("--baseline/--no-baseline", help="Measure 1n1g where no usable one exists.")] = True,
    lease: Lease = 60.0,
    grace: StopGrace = 5.0,
    first_line: FirstLineTimeout = 600.0,
    stall: StallTimeout = 600.0,
    output_limit: Annotated[int, typer.Option("--output-limit", min=1, help="MiB of logs of a run on one node.")] = 1024,
    detach: Detach = False,
    hosts: Hosts = "",
    exclude: Exclude = "",
    accept_new: AcceptNew = False,
    templates: Templates = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print plan and files of every node, contact nobody.")] = False,
    as_json: Json = False,
) -> None:
    """Plan a bench (cells x repeats), show it, run it, collect it.

    Lists make cells: --nodes 1,2,4 --dtype fp32,fp16 is six of them, run interleaved, each --repeats times.
    """
    import secrets
    import time

    from orchestrator.errors import ConfigError
    from orchestrator.plan.bench import Bench, Request, missing_baselines, specs
    from orchestrator.plan.folders import framework_for, open_framework
    from orchestrator.plan.schedule import LEAST

    if shape and (nodes or gpus or ladder) or ladder and (gpus and "," in gpus):
        raise ConfigError(
            "expected --shape alone, or --ladder, or --nodes and --gpus", where="--shape" if shape else "--ladder"
        )
    if framework and not words(framework):
        raise ConfigError("expected at least one framework, got none", where="--framework")
    folders = {name: open_framework(name, templates) for name in words(framework) or (framework_for(model, templates),)}
    speedless = [folder.framework for folder in folders.values() if not folder.framework.measure.has_speed]
    if until_ci and speedless:
        message = f"{speedless[0].name} measures {speedless[0].measure.noun}: no speed whose interval could become narrow"
        raise ConfigError(message, where="--until-ci", hint="--repeats is how often each cell runs")
    choices = _run_file(run_file)
    lists: dict[str, tuple[Any, ...]] = {
        "batch_size": numbers(batch_size, "--batch-size"),
        "dtype": words(dtype),
        "loader": words(loader),
    }
    request = Request(
        model=model,
        nodes=numbers(nodes, "--nodes"),
        gpus=numbers(gpus, "--gpus"),
        shapes=shapes(shape),
        ladder=ladder,
        axes={key: values for key, values in lists.items() if values},
        single={"steps": steps, "warmup_steps": warmup_steps, "timeout_s": timeout},
        sets=assignments(sets or []),
        run_file=choices,
    )
    selection = select(hosts, exclude)
    wanted = specs(request, list(folders.values()), selection.hosts)
    device = wanted[0].device
    count = (
        repeats
        or choices.get("repeats")
        or (LEAST if until_ci else max(f.framework.default("repeats", device)[0] for f in folders.values()))
    )
    schedule = _course(order, count, until_ci, max_repeats, budget)
    borrowed: list[RunDir] = []
    extra: tuple[RunSpec, ...] = ()
    if baseline:
        from orchestrator.controller.earlier import usable_baseline

        for spec in missing_baselines([spec for spec in wanted if folders[spec.framework].framework.measure.has_speed]):
            # Where repeats are added, a baseline must gain them too.
            found = (
                []
                if until_ci
                else usable_baseline(selection.project.runs, spec, folders[spec.framework], selection.hosts, count)
            )
            borrowed += found
            extra += () if found else (spec,)
    bench_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    plan = Bench(bench_id, (*extra, *wanted), folders, schedule)
    if dry_run:
        _show_everything(plan, selection, as_json)
        return
    from orchestrator.cli.controller import conduct
    from orchestrator.plan.limits import Limits

    limits = Limits(lease_s=lease, grace_s=grace, first_line_s=first_line, stall_s=stall, output_bytes=output_limit << 20)
    conduct(plan, borrowed, selection, limits, templates, accept_new=accept_new, as_json=as_json, detach=detach)


_LISTS = ("batch_size", "dtype", "loader")
_CHOICES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "batch_size": ((int,), "a whole number ≥ 1"),
    "dtype": ((str,), "one type as text"),
    "loader": ((str,), "one loader as text"),
    "steps": ((int,), "a whole number ≥ 1"),
    "warmup_steps": ((int,), "a whole number ≥ 0"),
    "timeout_s": ((int, float), "seconds above 0"),
    "repeats": ((int,), "a whole number ≥ 1"),
    "options": ((dict,), "a mapping"),
}
"""What a run file may hold; how large a number may be, the spec judges, of whichever origin it is."""


def _run_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    from orchestrator import yamlfile
    from orchestrator.errors import ConfigError

    document = yamlfile.load(path)
    known = list(_CHOICES)
    if not isinstance(document.value, dict):
        raise ConfigError("expected a mapping of choices", where=str(path), hint=f"it takes {', '.join(known)}")
    for key in document.value:
        if key not in known:
            raise ConfigError(
                f"unknown key {key}", where=f"{path}:{document.line((key,))}", hint=f"it takes {', '.join(known)}"
            )
    values = dict(document.value)
    for key, value in values.items():
        kinds, word = _CHOICES[key]
        if type(value) not in kinds or (key == "repeats" and value < 1):
            hint = f"--{key.replace('_', '-')} of the command line takes several" if key in _LISTS else ""
            raise ConfigError(f"expected {word}, got {value!r}", where=f"{path}:{document.line((key,))}: {key}", hint=hint)
    for name, value in values.get("options", {}).items():
        if type(value) not in (str, int, float, bool):
            where = f"{path}:{document.line(('options', name))}: options.{name}"
            raise ConfigError(f"expected one value, got {value!r}", where=where)
    return values


def _course(order: str, repeats: int, until_ci: str, max_repeats: int | None, budget: str) -> Schedule:
    """Return how the bench goes on. Raises ConfigError."""
    import secrets

    from orchestrator.errors import ConfigError
    from orchestrator.plan.schedule import MOST, Schedule

    if order not in ("interleaved", "random"):
        raise ConfigError(f"expected interleaved or random, got {order!r}", where="--order")
    if max_repeats is not None and not until_ci:
        raise ConfigError("it belongs to --until-ci", where="--max-repeats", hint="--repeats is the number without that")
    most = max_repeats or max(MOST, repeats)
    if until_ci and not 2 <= repeats <= most:
        raise ConfigError(f"expected 2 to {most} repeats to begin with, got {repeats}", where="--repeats")
    seed = int.from_bytes(secrets.token_bytes(4), "big")
    aim = share(until_ci, "--until-ci") if until_ci else None
    return Schedule(order, seed, repeats, aim, most, seconds(budget, "--budget") if budget else None)


def _show_everything(plan: Bench, selection: Selection, as_json: bool) -> None:
    """Print the plan, the origin of every value, and every file of every node. Contacts nobody."""
    from dataclasses import asdict

    from orchestrator.controller.earlier import earlier_times
    from orchestrator.controller.stopping import plan_words
    from orchestrator.inventory.hostset import fold
    from orchestrator.plan.bench import PORTS, plan_run
    from orchestrator.plan.render import folded, without_secrets
    from orchestrator.record.manifest import manifest_of

    hosts, secrets = selection.hosts, selection.inventory.secrets
    plans = [
        (run, plan_run(run.folder, run.spec, hosts, run_id=run.run_id, repeat=run.repeat, port=PORTS.start))
        for run in plan.planned()
    ]
    plans = [(run, without_secrets(decided, hosts, secrets)) for run, decided in plans]
    if as_json:
        print_json(
            [
                {**manifest_of(decided, run.folder, run.bench_id, {}), "nodes": [asdict(node) for node in decided.nodes]}
                for run, decided in plans
            ]
        )
        return
    if words := plan_words(plan, earlier_times(selection.project.runs, plan)):
        typer.echo(f"plan: {words}")
    typer.echo(f"{len(plans)} runs; port {PORTS.start} stands for the one that is chosen when a run starts")
    for run, _ in plans:
        typer.echo(f"  {run.run_id}")
    shown = set()
    for run, decided in plans:
        if repr(run.spec.as_dict()) in shown:
            continue
        shown.add(repr(run.spec.as_dict()))
        typer.echo(f"\n== {run.spec.framework} {run.spec.model} {run.spec.shape}, world size {run.spec.world_size}")
        for key, value in run.spec.as_dict().items():
            for name, each in value.items() if key == "options" else ((None, value),):
                label = f"options.{name}" if name else key
                typer.echo(f"   {label} = {each}  ({run.spec.origins.get(label, 'computed')})")
        for slot in decided.placement.slots:
            ranks = f"ranks {slot.ranks.start}-{slot.ranks.stop - 1}"
            typer.echo(f"   node_rank {slot.node_rank}: {slot.host} ({slot.address}), {ranks}, devices {slot.devices}")
        for names, file in folded(decided.nodes):
            typer.echo(f"-- {fold(names)}: {file.path} ({file.mode:04o})")
            typer.echo(file.content, nl=not file.content.endswith("\n"))
