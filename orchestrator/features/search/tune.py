"""`orch tune`: search settings of network and framework for one shape, and write those that are verified to be faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.cli import complete
from orchestrator.cli.node_states import without_suspects
from orchestrator.cli.options import (
    AcceptNew,
    Budget,
    Container,
    Debug,
    Detach,
    Exclude,
    Hosts,
    Json,
    Lease,
    StallTimeout,
    StopGrace,
    Templates,
    Timeout,
    Wait,
    WaitLimit,
    WarmupSteps,
    limits_of,
    open_frameworks,
    print_json,
    template_bases,
)
from orchestrator.cli.submitting import Slurm, hosts_for
from orchestrator.features.search.output import options_path

if TYPE_CHECKING:
    from orchestrator.api.selection import Selection
    from orchestrator.plan import Knob, RunSpec
    from orchestrator.plan.bench import Bench


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("tune")(tune)


def tune(
    model: Annotated[str, typer.Argument(autocompletion=complete.models, help="Model to train, such as resnet50 or vgg16.")],
    shape: Annotated[str, typer.Option("--shape", metavar="4n2g", help="Nodes and ranks per node. Default: all.")] = "",
    budget: Budget = "20m",
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="T", help="fp32, tf32, fp16, bf16, fp8.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", help="Fix the samples per device and step.")] = None,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", min=1, help="Fix the samples per step over all ranks.")
    ] = None,
    framework: Annotated[
        str,
        typer.Option(
            "--framework",
            "-f",
            metavar="NAME",
            autocompletion=complete.frameworks,
            help="Framework. Default: chosen by the model.",
        ),
    ] = "",
    loader: Annotated[str | None, typer.Option("--loader", metavar="L", help="Source of samples.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of a full run, including warm-up.")] = None,
    warmup_steps: WarmupSteps = None,
    container: Container = "",
    timeout: Timeout = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", autocompletion=complete.settings, help="Fix a parameter at this value."),
    ] = None,
    allow: Annotated[
        str, typer.Option("--allow", metavar="numerics", help="Also try settings that change the computed numbers.")
    ] = "",
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed for the candidates and their order.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Inventory to write. Default: tuned.yaml in the bench directory."),
    ] = None,
    lease: Lease = None,
    grace: StopGrace = None,
    stall: StallTimeout = None,
    wait: Wait = False,
    wait_limit: WaitLimit = "",
    detach: Detach = False,
    slurm: Slurm = "",
    hosts: Hosts = "",
    exclude: Exclude = "",
    accept_new: AcceptNew = False,
    debug: Debug = False,
    templates: Templates = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the parameters and their values; contact no host.")] = False,
    as_json: Json = False,
) -> None:
    """Search for faster network and framework settings of one shape, by successive halving over short real runs.

    At the end, the best candidate and the default run in alternation. Only the result of these runs is reported, and written
    as an inventory if the candidate is faster.
    """
    from orchestrator.features.search.halving.request import allows_numerics, free_knobs, tune_request
    from orchestrator.features.search.halving.state import tune_record
    from orchestrator.plan.folders import framework_for
    from orchestrator.plan.placement import taken
    from orchestrator.plan.request import planned

    numerics = allows_numerics(allow)
    single: dict[str, Any] = {
        "dtype": dtype, "batch_size": batch_size, "global_batch": global_batch, "loader": loader,
        "steps": steps, "warmup_steps": warmup_steps, "timeout_s": timeout, "container": container or None,
    }  # fmt: skip
    request = tune_request(model, shape=shape, sets=sets or [], budget=budget, single=single)
    bases = template_bases(templates)
    (folder,) = open_frameworks([framework or framework_for(model, bases)], bases)
    knobs = free_knobs(folder.framework, request)
    target, bench_id = _new_file(output), new_bench_id()
    limits = limits_of({"wait": wait, "wait_limit": wait_limit, "lease": lease, "stop_grace": grace, "stall_timeout": stall})

    def plan_on(selection: Selection) -> Bench:
        return planned(request, [folder], selection.hosts, bench_id=bench_id, seed=0)

    with hosts_for(request, bench_id, slurm, hosts, exclude, check=plan_on, dry_run=dry_run, as_json=as_json) as chosen:
        selection = without_suspects(chosen)
        plan = plan_on(selection)
        if dry_run:
            _show_space(plan.cells[0], knobs, numerics, as_json)
            return
        from orchestrator.cli.controller import conduct

        tuned_hosts = taken(plan.cells, selection.hosts)
        record = tune_record(knobs, tuned_hosts, new_seed() if seed is None else seed, numerics=numerics, output=target)
        conduct(
            plan, [], selection, limits, bases, accept_new=accept_new, as_json=as_json, detach=detach, added={"tune": record}
        )


def _new_file(path: Path | None) -> str:
    """Return the absolute path of the inventory to write, or an empty text. Raise ConfigError if it or its run file exists."""
    from orchestrator.errors import ConfigError

    target = path.absolute() if path else None
    if target and (target.exists() or options_path(target).exists()):
        raise ConfigError("expected a new file", kind="unsafe_path", where=str(path), hint="existing files are not overwritten")
    return str(target or "")


def _show_space(spec: RunSpec, knobs: list[Knob], numerics: bool, as_json: bool) -> None:
    """Print all parameters. Which of them apply is decided by NCCL's log of the first run."""
    from dataclasses import asdict

    from orchestrator.features.search.halving.candidates import batch_sizes
    from orchestrator.plan.spec import as_written

    usable = [knob for knob in knobs if numerics or not knob.numerics]
    usable = [knob for knob in usable if not knob.multiplies or any(batch_sizes(knob, spec))]
    if as_json:
        print_json({"spec": spec.as_dict(), "knobs": [asdict(knob) for knob in usable]})
        return
    typer.echo(f"{spec.framework} {spec.model} {spec.shape} {spec.dtype} b{spec.batch_size}, {spec.steps} steps")
    for knob in usable:
        default = knob.default if knob.env else str(spec.options[knob.option] if knob.option else spec.batch_size)
        values = ", ".join(" ".join(map(as_written, value)) for value in knob.values)
        if knob.multiplies:
            values = ", ".join(str(size) for (size,) in batch_sizes(knob, spec))
        conditions = [f"NCCL uses {' or '.join(knob.networks)}"] if knob.networks else []
        conditions += [f"{name} is {' or '.join(map(as_written, among))}" for name, among in knob.when.items()]
        where = f"  if {' and '.join(conditions)}" if conditions else ""
        typer.echo(f"  {' '.join(knob.names)}: {values}  (default: {default}){where}")
