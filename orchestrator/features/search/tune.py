"""`orch tune`: search settings of network and framework for one shape, and write those that are
verified to be faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.cli import complete
from orchestrator.cli.node_states import without_suspects
from orchestrator.cli.option_rows import Given, takes
from orchestrator.cli.options import open_frameworks, print_json, say, template_bases
from orchestrator.cli.submitting import hosts_for
from orchestrator.options import OFTEN, OUTPUT, WHAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.api.selection import Selection
    from orchestrator.plan import Framework, Knob, RunSpec
    from orchestrator.plan.bench import Bench
    from orchestrator.plan.request import Request


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
    from orchestrator.features.search.record import TuneRecord
    from orchestrator.options import single_choices
    from orchestrator.plan import Limits
    from orchestrator.plan.folders import framework_for
    from orchestrator.plan.placement import used_hosts
    from orchestrator.plan.planning import plan_bench

    numerics = allows_numerics(allow)
    as_json, framework = given["json"], given["framework"]
    single = single_choices(given)
    for name in ("dtype", "batch_size", "loader"):
        single[name] = given[name]
    request = tune_request(model, shape, sets or [], given["budget"], single)
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
        given,
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

        env = [set(host.env.items()) for host in used_hosts(plan.cells, selection.hosts)]
        names = {name for knob in knobs for name in knob.env}
        shared = sorted(set.intersection(*env))
        held = {name: value for name, value in shared if name in names}
        if seed is None:
            seed = new_seed()
        say(
            f"plan: {_case(plan.cells[0])}: rounds of short runs for {given['budget']} at most"
            " (--budget), and at the end the best candidate against the default;"
            " --dry-run lists the parameters"
        )
        record = TuneRecord(tuple(knobs), seed, numerics, target, held)
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
    from orchestrator.features.search.halving.files import options_path

    target = path.absolute() if path else None
    if target and (target.exists() or options_path(target).exists()):
        raise ConfigError(
            "expected a new file",
            kind="unsafe_path",
            where=str(path),
            hint="existing files are not overwritten",
        )
    return str(target or "")


def _case(spec: RunSpec) -> str:
    return f"{spec.framework} {spec.model} {spec.shape} {spec.dtype} b{spec.batch_size}"


def _show_space(spec: RunSpec, knobs: list[Knob], numerics: bool, as_json: bool) -> None:
    """Print all parameters. Which of them apply is decided by NCCL's log of the first run."""
    from dataclasses import asdict

    from orchestrator.features.search.halving.candidates import possible_values
    from orchestrator.plan.option_values import as_written

    usable = [knob for knob in knobs if numerics or not knob.numerics]
    usable = [knob for knob in usable if possible_values(knob, spec)]
    if as_json:
        print_json({"spec": spec.as_dict(), "knobs": [asdict(knob) for knob in usable]})
        return
    typer.echo(f"{_case(spec)}, {spec.steps} steps")
    for knob in usable:
        default = str(spec.options.get(knob.option, spec.batch_size))
        if knob.env:
            default = knob.default
        values = [" ".join(map(as_written, value)) for value in possible_values(knob, spec)]
        conditions = [f"NCCL uses {' or '.join(knob.networks)}"] if knob.networks else []
        for name, among in knob.when.items():
            conditions.append(f"{name} is {' or '.join(map(as_written, among))}")
        where = f"  if {' and '.join(conditions)}" if conditions else ""
        words = f"{' '.join(knob.names)}: {', '.join(values)}"
        typer.echo(f"  {words}  (default: {default}){where}")


def tune_request(
    model: str, shape: str, sets: Sequence[str], budget: str, single: Mapping[str, Any]
) -> Request:
    """Return the request made by the options of ``orch tune``: one cell, run once, without a
    baseline. Raises ConfigError.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.plan.option_values import assignments, shapes
    from orchestrator.plan.option_values import single as single_values
    from orchestrator.plan.request import Request

    sizes = shapes(shape)
    if len(sizes) > 1:
        hint = "tune each shape by itself: good settings of one may not suit another"
        raise ConfigError(f"expected one shape, got {shape}", where="--shape", hint=hint)
    chosen = {name: value for name, value in single.items() if value is not None}
    fixed = single_values(assignments(sets, "--set"), "--set")
    axes = {f"options.{name}": (value,) for name, value in fixed.items()}
    return Request(
        model, shapes=sizes, single=chosen, axes=axes, repeats=1, budget=budget, baseline=False
    )


def allows_numerics(allow: str) -> bool:
    """Return True if ``--allow`` lets a tune change the computed numbers. Raises ConfigError unless
    it is empty or numerics.
    """
    from orchestrator.errors import ConfigError

    if allow not in ("", "numerics"):
        raise ConfigError(f"expected numerics, got {allow!r}", where="--allow")
    return bool(allow)


def free_knobs(framework: Framework, request: Request) -> list[Knob]:
    """Return the framework's parameters that the request does not fix. Raises ConfigError if the
    framework has none.
    """
    from orchestrator.errors import ConfigError

    if not framework.tunes:
        hint = "list them under tunes: in its framework.yaml"
        message = f"{framework.name} has no parameters to tune"
        raise ConfigError(message, where="--framework", hint=hint)
    fixed = {*request.axes, *request.single}
    return [
        knob for knob in framework.tunes if not {f"options.{knob.option}", knob.multiplies} & fixed
    ]
