"""The hosts of a bench or a tune: selected by options, or with ``--slurm`` the nodes of a job that
is submitted for it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from orchestrator.api.selection import Selection
from orchestrator.cli.options import select

if TYPE_CHECKING:
    from orchestrator.plan.job import JobWanted
    from orchestrator.plan.request import Request
    from orchestrator.record import Project


@contextmanager
def hosts_for(
    request: Request,
    bench_id: str,
    slurm: str,
    hosts: str,
    exclude: str,
    devices: Sequence[str] = (),
    *,
    check: Callable[[Selection], object],
    spares: int = 0,
    dry_run: bool,
    as_json: bool,
) -> Iterator[Selection]:
    """Yield the hosts of ``--hosts`` and ``--exclude``, or with ``--slurm`` of a job that is
    submitted and begins, with ``spares`` among them.

    No job is submitted for what ``check`` refuses on all hosts that Slurm may choose. An error
    before the bench takes over ends the job. A dry run prints what would be submitted, and has
    hosts that stand for those that Slurm will choose.
    """
    if not slurm:
        yield select(hosts, exclude, bench_id, devices=devices)
        return
    from orchestrator import slurm as slurms
    from orchestrator.errors import ConfigError
    from orchestrator.plan.job import parse_job
    from orchestrator.record import Project

    if hosts or exclude:
        hint = "Slurm chooses the hosts: nodelist=… and exclude=… in --slurm narrow its choice"
        raise ConfigError(
            "expected --slurm without --hosts and --exclude", where="--slurm", hint=hint
        )
    job = parse_job(
        slurm, max([*request.nodes, *(nodes for nodes, _ in request.shapes)], default=0), spares
    )
    project = Project.here(os.environ)
    if current := slurms.here(os.environ):
        text = f"this runs inside job {current}; to use its nodes: --hosts slurm, or --hosts srun"
        typer.echo(f"slurm: --slurm submits another job, and {text}", err=True)
    if dry_run:
        yield _preview(project, job, bench_id, as_json)
        return
    from orchestrator.cli.job import allocate_job, give_up, print_orphan_jobs

    _refuse(check, project, job, devices)
    project.prepare()
    print_orphan_jobs(project)
    number = allocate_job(project, bench_id, job)
    try:
        yield select(f"srun:{number}", "", bench_id, devices=devices)
    except BaseException:
        give_up(project, bench_id)
        raise


def _refuse(
    check: Callable[[Selection], object], project: Project, job: JobWanted, devices: Sequence[str]
) -> None:
    """Raise what ``check`` raises on all hosts that Slurm may choose, in the words for the
    likeliest of them.
    """
    from orchestrator.api.allocation import listing
    from orchestrator.errors import ConfigError, Faults
    from orchestrator.inventory import Inventory
    from orchestrator.inventory.allocation import lists_all
    from orchestrator.inventory.devices import chosen, devices_of

    known = listing(project)
    inventory = known[1] if known else Inventory("--slurm", ())
    lists_all(inventory, job.named)
    for text in devices:
        devices_of(text.rpartition(":")[2])
    of_all = [text for text in devices if ":" not in text]
    refused: ConfigError | Faults | None = None
    for hosts in job.possible_hosts(inventory.hosts, devices_known=len(of_all) == len(devices)):
        stand_ins = Inventory("--slurm", hosts, hidden=inventory.hidden)
        try:
            check(
                Selection(
                    project, stand_ins, tuple(chosen(stand_ins, hosts, of_all, {})), "--slurm", ""
                )
            )
            return
        except (ConfigError, Faults) as error:
            refused = refused or error
    if refused:
        raise refused


def _preview(project: Project, job: JobWanted, bench_id: str, as_json: bool) -> Selection:
    """Print the job to submit, on standard error beside JSON, and return stand-ins for its hosts."""
    from orchestrator.inventory import Inventory, fold

    typer.echo(shlex.join(job.argv(bench_id)) + "\n" + job.script, nl=False, err=as_json)
    stand_ins = job.hosts
    names = fold(host.name for host in stand_ins)
    text = "which are not known yet: each has what --slurm requests for a node, but no settings of an inventory (python, env …)"
    typer.echo(f"slurm: {names} stand for the hosts of the job, {text}", err=True)
    return Selection(project, Inventory("--slurm", stand_ins), stand_ins, "--slurm", "")
