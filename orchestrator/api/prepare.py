"""Prepare a planned bench and its controller from a request and hosts, for the command line and for
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.api.selection import Selection, note_variables
from orchestrator.errors import ConfigError
from orchestrator.plan.baselines import borrowable, without_cells
from orchestrator.plan.bench import Bench, ExtraRuns, PlannedRun, plan_run
from orchestrator.plan.placement import idle_gpus, used_hosts
from orchestrator.plan.planning import plan_bench
from orchestrator.plan.render import Plan, without_secrets
from orchestrator.plan.request import Request

if TYPE_CHECKING:
    from orchestrator.controller.controller import Controller
    from orchestrator.inventory import Host, Inventory
    from orchestrator.plan import Limits
    from orchestrator.plan.folders import FrameworkFolder
    from orchestrator.record import RunDir


@dataclass(frozen=True, slots=True)
class Prepared:
    """A bench that is planned: ``borrowed`` are runs of earlier benches that serve as its
    baselines, and are not planned.
    """

    plan: Bench
    borrowed: tuple[RunDir, ...]


def prepare_bench(
    request: Request,
    folders: Sequence[FrameworkFolder],
    selection: Selection,
    *,
    bench_id: str,
    seed: int,
    extra: ExtraRuns | None = None,
    say: Callable[[str], None],
) -> Prepared:
    """Plan a bench on the hosts of a selection, with the baselines that earlier benches of the
    project do not lend.

    Raises ConfigError like `plan_bench`, and for a variable whose value the inventory keeps secret,
    because specs are recorded.
    """
    from orchestrator.controller.earlier_benches import usable_baseline
    from orchestrator.results.expectations import check_planned

    check_variables(request, selection.inventory)
    plan = plan_bench(request, folders, selection.hosts, bench_id=bench_id, seed=seed)
    check_planned(plan)
    if extra:
        extra.check(plan.cells)
    note_variables("--env", {item for spec in plan.cells for item in spec.env.items()}, say)
    if unused := idle_gpus(plan.cells, selection.hosts):
        say(f"idle: {'; '.join(unused)}: hosts differ in size, and no run uses these")
    lent = []
    for spec in borrowable(plan):
        folder = plan.folders[spec.framework]
        runs = usable_baseline(
            selection.project.runs, spec, folder, selection.hosts, plan.schedule.repeats
        )
        if runs:
            lent.append((spec, runs))
            say(
                f"baseline {spec.shape}: borrowed from {runs[0].path.parent.name}, good runs: {len(runs)}"
            )
    plan = without_cells(plan, [spec for spec, _ in lent])
    return Prepared(replace(plan, extra=extra), tuple(run for _, runs in lent for run in runs))


def check_variables(request: Request, inventory: Inventory) -> None:
    """Raise ConfigError for a variable of a request whose value the inventory keeps secret."""
    for name, place in request.variables.items():
        if inventory.is_secret(name):
            hint = "its values would appear in the table and in the files of the bench: set it in the inventory"
            raise ConfigError("expected a variable that is not secret", where=place, hint=hint)


def render_plans(plan: Bench, selection: Selection) -> list[tuple[PlannedRun, Plan]]:
    """Return each planned run with the files of every node, without secret values."""
    from orchestrator.checks.interfaces import with_interface

    hosts = used_hosts(plan.cells, selection.hosts)
    facts = recall_interfaces(plan, selection)
    with_interfaces = [with_interface(host, facts.get(host.name, {})) for host in hosts]
    redaction = selection.inventory.redaction()
    rendered = []
    for run in plan.list_runs():
        on = with_interfaces if run.spec.nodes > 1 else hosts
        of_run = plan_run(run.folder, run.spec, on, run_id=run.run_id, repeat=run.repeat)
        rendered.append((run, without_secrets(of_run, redaction)))
    return rendered


def recall_interfaces(plan: Bench, selection: Selection) -> dict[str, dict[str, Any]]:
    """Return what the last deploy saw of the hosts of a plan, with the interfaces that follow where
    the inventory names none, as preflight will find them among these hosts."""
    from orchestrator.checks.interfaces import with_interfaces
    from orchestrator.record.deploys import recall_facts

    hosts = used_hosts(plan.cells, selection.hosts)
    known = recall_facts(selection.project.deployed, selection.hosts)
    return with_interfaces(
        hosts, {host.name: known[host.name] for host in hosts if host.name in known}
    )


def plan_documents(plan: Bench, selection: Selection) -> list[dict[str, Any]]:
    """Return for each planned run its manifest and the files of every node, without secret values."""
    from orchestrator.record.manifest import manifest_of

    return [
        {
            **manifest_of(decided, run.folder, run.bench_id, {}),
            "nodes": list(map(asdict, decided.nodes)),
        }
        for run, decided in render_plans(plan, selection)
    ]


def begin_bench(
    plan: Bench,
    borrowed: Sequence[RunDir],
    selection: Selection,
    hosts: Sequence[Host],
    limits: Limits,
    bases: Sequence[Path],
    root: Path,
    *,
    argv: Sequence[str],
    accept_new: bool,
    keep_going: bool = False,
    added: Mapping[str, Any] | None = None,
    opened: ConnectionCache | None = None,
) -> Controller:
    """Return the controller of a planned bench on these hosts of a selection, whose folder it has
    made in ``root``.

    ``argv``: the command that makes such a bench. ``added``: what a feature adds to its record, by
    key. It goes on with the connections, facts and spares of ``opened``.
    """
    from orchestrator.checks.interfaces import with_interfaces
    from orchestrator.controller.controller import Controller
    from orchestrator.nodes.headroom import disk_room
    from orchestrator.record import BenchDir
    from orchestrator.record.bench_record import new_bench_record
    from orchestrator.record.submission import submission

    origins = {run.run_id: run.path.parent.name for run in borrowed}
    disk_room(root, len(plan.cells) * plan.schedule.most, len(hosts))
    opened = opened or ConnectionCache()
    chosen = replace(selection, hosts=(*selection.hosts, *opened.spares)).devices
    notes, job = selection.notes, submission(selection.project, plan.bench_id)
    options, engine = (job.options, job.engine) if job else ((), "slurm")
    record = new_bench_record(
        plan,
        origins,
        hosts,
        selection.source,
        selection.inventory.secrets,
        limits,
        bases,
        argv,
        added,
        chosen,
        notes,
        options,
        engine,
        opened.spares,
    )
    bench = BenchDir.create(root, record.as_dict())
    facts = {}
    for name, of_host in opened.facts.items():
        if all(host.name in of_host for host in hosts):
            facts[name] = {host.name: of_host[host.name] for host in hosts}
    return Controller.begin(
        bench,
        plan,
        opened.hand_on(selection, accept_new, [*hosts, *opened.spares]),
        limits,
        borrowed=borrowed,
        argv=argv,
        keep_going=keep_going,
        spares=opened.spares,
        seen={name: with_interfaces(hosts, of_hosts) for name, of_hosts in facts.items()},
    )
