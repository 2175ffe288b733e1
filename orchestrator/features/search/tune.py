"""`orch tune`: search settings of network and framework for one shape, and write those that are
verified to be faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.cli import complete
from orchestrator.cli.node_states import without_suspects
from orchestrator.cli.option_rows import Given, takes
from orchestrator.cli.options import open_frameworks, print_json, template_bases
from orchestrator.cli.submitting import hosts_for
from orchestrator.features.search.output import options_path
from orchestrator.plan.options import OFTEN, OUTPUT, WHAT

if TYPE_CHECKING:
    from orchestrator.api.selection import Selection
    from orchestrator.plan import Knob, RunSpec
    from orchestrator.plan.bench import Bench


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("tune")(tune)


@takes("tune", budget="20m")
def tune(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.models, help="Model to train, such as resnet50 or vgg16."
        ),
    ],
    given: Given,
    shape: Annotated[
        str,
        typer.Option(
            "--shape",
            metavar="4n2g",
            help="Nodes and ranks per node. Default: all.",
        ),
    ] = "",
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=complete.settings,
            help="Fix a parameter at this value.",
        ),
    ] = None,
    allow: Annotated[
        str,
        typer.Option(
            "--allow",
            metavar="numerics",
            help="Also try settings that change the computed numbers.",
            rich_help_panel=WHAT,
        ),
    ] = "",
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            help="Seed for the candidates and their order.",
            rich_help_panel=OFTEN,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Inventory to write. Default: tuned.yaml in the bench directory.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the parameters and their values; contact no host.",
        ),
    ] = False,
) -> None:
    """Search for faster network and framework settings of one shape, by successive halving over
    short real runs.

    At the end, the best candidate and the default run in alternation. Only the result of these runs
    is reported, and written as an inventory if the candidate is faster. What an option sets, such
    as --batch-size, is fixed and not searched.
    """
    from orchestrator.features.search.halving.request import (
        allows_numerics,
        free_knobs,
        tune_request,
    )
    from orchestrator.features.search.halving.state import tune_record
    from orchestrator.plan import Limits
    from orchestrator.plan.folders import framework_for
    from orchestrator.plan.options import single_choices
    from orchestrator.plan.placement import used_hosts
    from orchestrator.plan.planning import plan_bench

    numerics = allows_numerics(allow)
    as_json, framework = given["json"], given["framework"]
    single = single_choices(given)
    for name in ("dtype", "batch_size", "loader"):
        single[name] = given[name]
    request = tune_request(
        model, shape=shape, sets=sets or [], budget=given["budget"], single=single
    )
    bases = template_bases(given["templates"])
    (folder,) = open_frameworks([framework or framework_for(model, bases)], bases)
    knobs = free_knobs(folder.framework, request)
    target, bench_id = _new_file(output), new_bench_id()
    limits = Limits.of_options(given)

    def plan_on(selection: Selection) -> Bench:
        return plan_bench(request, [folder], selection.hosts, bench_id=bench_id, seed=0)

    with hosts_for(
        request,
        bench_id,
        given["slurm"],
        given["hosts"],
        given["exclude"],
        check=plan_on,
        dry_run=dry_run,
        as_json=as_json,
    ) as chosen:
        selection = without_suspects(chosen)
        plan = plan_on(selection)
        if dry_run:
            _show_space(plan.cells[0], knobs, numerics, as_json)
            return
        from orchestrator.cli.controller import conduct

        tuned_hosts = used_hosts(plan.cells, selection.hosts)
        record = tune_record(
            knobs,
            tuned_hosts,
            new_seed() if seed is None else seed,
            numerics=numerics,
            output=target,
        )
        conduct(
            plan,
            [],
            selection,
            limits,
            bases,
            accept_new=given["accept_new"],
            as_json=as_json,
            detach=given["detach"],
            added={"tune": record},
        )


def _new_file(path: Path | None) -> str:
    """Return the absolute path of the inventory to write, or an empty text. Raise ConfigError if it
    or its run file exists.
    """
    from orchestrator.errors import ConfigError

    target = path.absolute() if path else None
    if target and (target.exists() or options_path(target).exists()):
        raise ConfigError(
            "expected a new file",
            kind="unsafe_path",
            where=str(path),
            hint="existing files are not overwritten",
        )
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
    typer.echo(
        f"{spec.framework} {spec.model} {spec.shape} {spec.dtype} b{spec.batch_size}, {spec.steps} steps"
    )
    for knob in usable:
        default = (
            knob.default
            if knob.env
            else str(spec.options[knob.option] if knob.option else spec.batch_size)
        )
        values = ", ".join(" ".join(map(as_written, value)) for value in knob.values)
        if knob.multiplies:
            values = ", ".join(str(size) for (size,) in batch_sizes(knob, spec))
        conditions = [f"NCCL uses {' or '.join(knob.networks)}"] if knob.networks else []
        conditions += [
            f"{name} is {' or '.join(map(as_written, among))}" for name, among in knob.when.items()
        ]
        where = f"  if {' and '.join(conditions)}" if conditions else ""
        typer.echo(f"  {' '.join(knob.names)}: {values}  (default: {default}){where}")
