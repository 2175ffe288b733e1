"""`orch status` and `orch cancel`: show current runs, stop them."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import (
    AcceptNew,
    Debug,
    Exclude,
    Hosts,
    Json,
    bench_path,
    find_bench,
    print_json,
    select,
)
from orchestrator.grouping import group_pairs
from orchestrator.plural import plural

_CONTROLLER_STOPS_S = 60.0

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.errors import DataError, OrchError
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.record import BenchDir, Project, RunDir
    from orchestrator.record.submission import Submission


def status(
    hosts: Hosts = "",
    exclude: Exclude = "",
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Show which runs are active on which nodes, and the benches of this project; without an
    inventory only the benches.
    """
    from orchestrator.cli.job import print_orphan_jobs
    from orchestrator.inventory import fold
    from orchestrator.nodes.conversation import owner_words
    from orchestrator.nodes.fanout import each
    from orchestrator.nodes.leftovers import Leftovers
    from orchestrator.record import Project, holder
    from orchestrator.record.bench_record import is_outside_its_lab
    from orchestrator.record.journal import suspicion
    from orchestrator.record.refusals import refusal
    from orchestrator.record.rundir import benches
    from orchestrator.report.text import one_line

    project = Project.here(os.environ)
    answers: dict[str, Any] = {}
    errors: dict[str, OrchError] = {}
    is_asked = bool(hosts or exclude) or _has_inventory(project)
    if is_asked:
        with select(hosts, exclude).cluster(accept_new) as cluster:
            errors |= cluster.open_what_answers()
            answers, failed = each(
                cluster.nodes, lambda name: cluster.nodes[name].ask("status", timeout_s=20)
            )
        errors |= failed
    doubtful = [
        fault
        for name, answer in answers.items()
        for fault in Leftovers.of(answer, name).errors(name)
    ]
    damaged: dict[str, DataError] = {}
    readable = list(benches(project.runs, damaged))[::-1]
    states = {bench.path.name: _counts(bench) for bench in readable}
    records = {bench.path.name: bench.record() for bench in readable}
    labels = {name: record.label for name, record in records.items() if record.label}
    refused, controllers, silent = {}, {}, {}
    for bench in readable:
        name, reason, process = bench.path.name, refusal(bench), holder(bench)
        if reason:
            refused[name] = reason
        if process:
            controllers[name] = one_line(str(process))
            words = suspicion(bench.events())
            if words:
                silent[name] = words
    if as_json:
        print_json(
            {
                "nodes": answers,
                "errors": {k: e.as_dict() for k, e in errors.items()},
                "benches": {name: counts for name, counts in states.items() if name not in refused},
                "refused": refused,
                "damaged": {name: error.as_dict() for name, error in damaged.items()},
                "conducted": controllers,
                "silent": silent,
                "labels": labels,
            }
        )
        return
    by_run = group_pairs((run, host) for host, answer in answers.items() for run in answer["runs"])
    for run, names in by_run.items():
        typer.echo(f"running  {one_line(run)}  on {fold(names)}")
    idle = [
        host for host, answer in answers.items() if not answer["owner"]
    ]  # who holds a node has a process there
    if not is_asked:
        reason = "no inventory"
        if project.is_outside_its_lab(os.environ):
            reason = "a lab: orch lab exec -- orch status"
        typer.echo(f"no node is asked: this project has {reason}; --hosts names one", err=True)
    elif not answers:
        typer.echo("no node answers")
    elif idle and not by_run and not doubtful:
        typer.echo(f"no orch processes on {fold(idle)}")
    for host, answer in answers.items():
        if answer["owner"]:
            typer.echo(f"held     {host}  by {one_line(owner_words(answer['owner']))}")
    for bench_id, counts in states.items():
        if bench_id in refused:
            continue
        rest = f"; run by {controllers[bench_id]}" if bench_id in controllers else ""
        if not rest and {"open", "never_run", "interrupted"} & set(counts):
            inside = "orch lab exec -- " if is_outside_its_lab(records[bench_id]) else ""
            rest = f"; to continue: {inside}orch resume {bench_id}"
        name = one_line(f"{bench_id}  ({labels[bench_id]})") if bench_id in labels else bench_id
        typer.echo(
            f"bench    {name}  "
            + ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in counts.items())
            + rest
        )
        if bench_id in silent:
            typer.echo(one_line(f"silent   {bench_id}  {silent[bench_id]}"))
    print_orphan_jobs(project)
    if refused:
        newest, reason = max(refused.items())
        count = plural(len(refused), "bench", "benches")
        typer.echo(
            f"refused  {count} before the first run, the newest is {newest}: {one_line(reason)}"
        )
    if errors or doubtful or damaged:
        from orchestrator.errors import Faults

        raise Faults([*errors.values(), *doubtful, *damaged.values()])


def _has_inventory(project: Project) -> bool:
    """Return False if nothing names an inventory, and the default file does not exist or is
    not the lab's.
    """
    from pathlib import Path

    from orchestrator.record.project import DEFAULT

    source, why = project.inventory_source("", os.environ)
    return why != DEFAULT or (Path(source).exists() and not project.is_outside_its_lab(os.environ))


def _counts(bench: BenchDir) -> dict[str, int]:
    """Return the number of runs of a bench by state; a run without a recorded end is open, and one
    whose logs have no number has failed, as in its summary.
    """
    from collections import Counter

    from orchestrator.errors import DataError
    from orchestrator.record.refusals import last_errors

    runs = bench.runs()
    errors = last_errors(bench)
    numberless = {error.get("run_id") for error in errors if error.get("kind") in DataError.kinds}
    counts = Counter(_state(run, run.run_id not in numberless) for run in runs)
    counts["never_run"] = len(bench.record().runs) - len(runs)
    return {state: count for state, count in counts.items() if count}


def _state(run: RunDir, has_number: bool) -> str:
    from orchestrator.errors import DataError
    from orchestrator.record.manifest import read_manifest

    try:
        manifest = read_manifest(run)
        state = (manifest.outcome and manifest.outcome.state) or "open"
        return state if has_number or manifest.reread or state != "finished" else "failed"
    except DataError:
        return "damaged"


def _stop(cluster: Cluster, run: str | None, host: str) -> dict[str, Any]:
    from orchestrator.controller.peer import CANCELLED
    from orchestrator.record.project import owner

    caller = owner()
    reason = f"{CANCELLED} with orch cancel by {caller['user']}@{caller['controller']}"
    return cluster.nodes[host].ask("stop", run=run, reason=reason, grace_s=5.0, timeout_s=60)


def _stop_controller(bench: BenchDir, *, quiet: bool) -> None:
    """Send SIGTERM to the controller of a bench if it runs on this machine, and wait for its end."""
    import signal

    from orchestrator.record import holder
    from orchestrator.report.text import one_line

    process = holder(bench)
    if process is None or not process.signal(signal.SIGTERM):
        return
    typer.echo(one_line(f"stopping its controller: {process}"), err=quiet)
    _wait_for_end(lambda: holder(bench) is not None)


def _wait_for_end(lives: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _CONTROLLER_STOPS_S
    while lives() and time.monotonic() < deadline:
        time.sleep(0.05)


def _find_job(bench: str) -> Submission | None:
    """Return the job that a bench has submitted, if it has not ended it yet."""
    from orchestrator.record import Project
    from orchestrator.record.submission import submission

    project = Project.here(os.environ)
    return submission(project, bench) or submission(project, bench_path(bench).name)


def _stop_waiting(job: Submission, *, quiet: bool) -> None:
    """Send SIGTERM to the controller that waits for a job or uses it, and wait for its end."""
    import signal

    if not job.is_attended:
        return
    typer.echo(f"stopping its controller: process {job.process}", err=quiet)
    os.kill(job.process, signal.SIGTERM)
    _wait_for_end(lambda: job.is_attended)


def _end_job(job: Submission) -> None:
    """End the job of a bench, and with it all its processes. Raises RunError if it cannot be ended."""
    from orchestrator.cli.job import give_up
    from orchestrator.errors import RunError
    from orchestrator.record import Project
    from orchestrator.record.submission import submission

    project = Project.here(os.environ)
    give_up(project, job.bench_id, of_anyone=True)
    if left := submission(project, job.bench_id):
        raise RunError(
            f"job {left.job} of bench {left.bench_id} is not proven to have ended",
            kind="not_verified",
        )


def _holds_logs(job: Submission) -> bool:
    """Whether a bench has runs whose logs are deleted with its job."""
    from orchestrator.engines.listing import logs_go_with_job
    from orchestrator.record import BenchDir, Project
    from orchestrator.record.submission import submission

    project = Project.here(os.environ)
    path = project.runs / job.bench_id
    return (
        submission(project, job.bench_id) is not None
        and (path / "bench.json").exists()
        and logs_go_with_job(BenchDir.open(path).record())
    )


def _collect(bench: str) -> None:
    import sys
    from contextlib import redirect_stdout

    from orchestrator.cli.collect import collect

    with redirect_stdout(sys.stderr):
        collect(bench)


def cancel(
    hosts: Hosts = "",
    exclude: Exclude = "",
    accept_new: AcceptNew = False,
    debug: Debug = False,
    bench: Annotated[
        str,
        typer.Argument(
            metavar="BENCH",
            autocompletion=complete.benches,
            help="Name, label or directory of a bench. Default: all runs of the login user.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Stop all runs on every node, or one bench and its controller, and verify that no process is
    left.
    """
    job = _find_job(bench) if bench else None
    if job is None:
        _stop_runs(hosts, exclude, accept_new, bench, as_json)
        return
    _stop_waiting(job, quiet=as_json)
    with ExitStack() as after:
        after.callback(_end_job, job)
        if _holds_logs(job):
            after.callback(_collect, bench)  # first
            _stop_runs(hosts, exclude, accept_new, bench, as_json)
        elif as_json:
            print_json({"nodes": [], "stopped": {}, "errors": []})


def _stop_runs(hosts: str, exclude: str, accept_new: bool, bench: str, as_json: bool) -> None:
    """Stop runs on nodes: those of a bench, or all. Raises Faults if one may not have ended."""
    from orchestrator.errors import ConfigError, Faults
    from orchestrator.inventory import fold
    from orchestrator.nodes.fanout import each
    from orchestrator.nodes.leftovers import Leftovers
    from orchestrator.record import Project
    from orchestrator.record.bench_record import find_inventory
    from orchestrator.record.submission import submissions
    from orchestrator.report.text import one_line

    runs: list[str | None] = [None]
    source_of, has_job = "", False
    if bench:
        directory = find_bench(bench)
        record = directory.record()
        inventory, has_job = find_inventory(record), bool(record.job)
        if not hosts:
            hosts, source_of = inventory, f"bench {record.bench_id}"
        _stop_controller(directory, quiet=as_json)
        runs = [run.run_id for run in directory.runs(superseded=True)]
    ended: dict[str, list[str]] = {}
    try:
        selection = select(hosts, exclude, source_of=source_of)
    except ConfigError as error:
        jobs = submissions(Project.here(os.environ))
        if bench or hosts or not jobs:
            raise
        named = " and ".join(f"orch cancel {job.bench_id}" for job in jobs)
        hint = f"{named} ends what this project has submitted"
        raise ConfigError(error.message, where=error.where, hint=hint) from error
    with selection.cluster(accept_new) as cluster:
        unreached = cluster.open_what_answers()
        # Nothing is left of a pod that ended with its job, whose end is proven on its own.
        gone = [name for name, error in unreached.items() if has_job and error.kind == "host_gone"]
        errors: list[OrchError] = [unreached[name] for name in unreached if name not in gone]
        # Status comes first: once one node is stopped, the run's own controller may stop the others
        # before this command does.
        active, _ = each(
            cluster.nodes, lambda name: cluster.nodes[name].ask("status", timeout_s=60)["runs"]
        )
        for run in runs:
            answers, failed = each(cluster.nodes, partial(_stop, cluster, run))
            errors += failed.values()
            stopped = {}
            for name, answer in answers.items():
                asked = [run_id for run_id in active.get(name, ()) if run in (None, run_id)]
                stopped[name] = {*answer["stopped"], *asked}
            for name in sorted({name for names in stopped.values() for name in names}):
                ended[name] = [host for host, names in stopped.items() if name in names]
                typer.echo(f"stopped {one_line(name)} on {fold(ended[name])}", err=as_json)
            errors += [
                fault
                for name, answer in answers.items()
                for fault in Leftovers.of(answer, name).errors(name)
            ]
        typer.echo(
            f"no orch processes left on {fold([*cluster.nodes, *gone])}"
            if (cluster.nodes or gone) and not errors
            else "",
            err=as_json,
        )
        if as_json:
            print_json(
                {
                    "nodes": list(cluster.nodes),
                    "stopped": ended,
                    "errors": [error.as_dict() for error in errors],
                }
            )
    if errors:
        raise Faults(errors)
