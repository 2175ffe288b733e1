"""The hosts of a bench or a tune: selected by options, or handed out by an engine, as with
``--slurm``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.api.selection import Selection
from orchestrator.cli.options import select
from orchestrator.engines.listing import NAMES, lists_all, open_engine, own_inventory

if TYPE_CHECKING:
    from orchestrator.engines.protocol import Engine
    from orchestrator.engines.protocol import Request as Wanted
    from orchestrator.plan.request import Request
    from orchestrator.record import Project


@contextmanager
def hosts_for(
    request: Request,
    bench_id: str,
    given: Mapping[str, Any],
    devices: Sequence[str] = (),
    *,
    check: Callable[[Selection], object],
    spares: int = 0,
    dry_run: bool,
    as_json: bool,
) -> Iterator[Selection]:
    """Yield the hosts of ``--hosts`` and ``--exclude``, or of a job that an engine is asked for,
    once it has begun, with ``spares`` among them.

    No job is submitted for what ``check`` refuses on all hosts that the engine may choose. An error
    before the bench takes over ends the job. A dry run prints what would be submitted, and has
    hosts that stand for those that the engine will choose.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record import Project

    asked = [name for name in NAMES if given[name]]
    if not asked:
        yield select(given["hosts"], given["exclude"], bench_id, devices=devices)
        return
    option = f"--{asked[0]}"
    if len(asked) > 1:
        raise ConfigError(f"expected one engine, got also --{asked[1]}", where=option)
    if given["hosts"] or given["exclude"]:
        hint = f"{asked[0]} chooses the hosts: options in {option} narrow its choice"
        message = f"expected {option} without --hosts and --exclude"
        raise ConfigError(message, where=option, hint=hint)
    engine = open_engine(asked[0])
    most = max([*request.nodes, *(nodes for nodes, _ in request.shapes)], default=0)
    job = engine.request(given[asked[0]], most, spares)
    project = Project.here(os.environ)
    if caution := engine.caution(job):
        typer.echo(caution, err=True)
    if dry_run:
        yield _expected(project, engine, job, bench_id, as_json)
        return
    from orchestrator.cli.job import allocate_job, give_up, listing_hosts, print_orphan_jobs

    _refuse(check, project, option, job, devices)
    project.prepare()
    print_orphan_jobs(project)
    source = allocate_job(project, engine, bench_id, job)
    try:
        with listing_hosts(project, engine, bench_id, job):
            selection = select(source, "", bench_id, devices=devices)
        yield selection
    except BaseException:
        give_up(project, bench_id)
        raise


def _refuse(
    check: Callable[[Selection], object],
    project: Project,
    option: str,
    job: Wanted,
    devices: Sequence[str],
) -> None:
    """Raise what ``check`` raises on all hosts that the engine may choose, in the words for the
    likeliest of them.
    """
    from orchestrator.errors import ConfigError, Faults
    from orchestrator.inventory import Inventory
    from orchestrator.inventory.devices import chosen, devices_of

    known = own_inventory(project)
    inventory = known[1] if known else Inventory(option, ())
    lists_all(inventory, job.host_names)
    for text in devices:
        devices_of(text.rpartition(":")[2])
    of_all = [text for text in devices if ":" not in text]
    refused: ConfigError | Faults | None = None
    for hosts in job.possible_hosts(inventory.hosts, devices_known=len(of_all) == len(devices)):
        stand_ins = Inventory(option, hosts, hidden=inventory.hidden)
        selected = tuple(chosen(stand_ins, hosts, of_all, {}))
        try:
            check(Selection(project, stand_ins, selected, option, ""))
            return
        except (ConfigError, Faults) as error:
            refused = refused or error
    if refused:
        raise refused


def _expected(
    project: Project, engine: Engine, job: Wanted, bench_id: str, as_json: bool
) -> Selection:
    """Print what would be submitted, on standard error beside JSON, and return hosts in place of
    the job's.
    """
    from orchestrator.inventory import Inventory, fold

    typer.echo(engine.describe(job, bench_id), nl=False, err=as_json)
    stand_ins, option = job.hosts, f"--{engine.name}"
    names = fold(host.name for host in stand_ins)
    text = f"which are not known yet: each has what {option} requests for a node, but no settings of an inventory"
    typer.echo(f"{engine.name}: {names} stand for the hosts of the job, {text}", err=True)
    return Selection(project, Inventory(option, stand_ins), stand_ins, option, "")
