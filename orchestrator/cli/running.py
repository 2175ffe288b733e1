"""`orch status`, `orch logs` and `orch cancel`: show current runs, print their logs, stop them."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import complete
from orchestrator.cli.connection_log import trust_of
from orchestrator.cli.options import (
    AcceptNew,
    Debug,
    Exclude,
    Hosts,
    Json,
    bench_path,
    find_bench,
    known_secrets,
    print_json,
    select,
)
from orchestrator.plural import plural

_CONTROLLER_STOPS_S = 60.0

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.errors import OrchError
    from orchestrator.inventory import Redaction
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.record import BenchDir, Project, RunDir


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("status")(status)
    app.command("logs")(logs)
    app.command("cancel")(cancel)


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
    from orchestrator.cli.job import note_unattended
    from orchestrator.inventory import fold
    from orchestrator.nodes.conversation import owner_words
    from orchestrator.nodes.fanout import each
    from orchestrator.nodes.leftovers import Leftovers
    from orchestrator.record import BenchDir as Benches
    from orchestrator.record import Project, holder
    from orchestrator.record.bench_record import is_outside_its_lab
    from orchestrator.record.journal import suspicion
    from orchestrator.record.refusals import refusal
    from orchestrator.record.rundir import bench_folders
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
    benches = [Benches.open(folder) for folder in reversed(bench_folders(project.runs))]
    states = {bench.path.name: _counts(bench) for bench in benches}
    refused = {bench.path.name: reason for bench in benches if (reason := refusal(bench))}
    records = {bench.path.name: bench.record() for bench in benches}
    labels = {name: record.label for name, record in records.items() if record.label}
    silent = {
        bench.path.name: words
        for bench in benches
        if holder(bench) and (words := suspicion(bench.events()))
    }
    controllers = {
        bench.path.name: one_line(str(process)) for bench in benches if (process := holder(bench))
    }
    if as_json:
        print_json(
            {
                "nodes": answers,
                "errors": {k: e.as_dict() for k, e in errors.items()},
                "benches": {name: counts for name, counts in states.items() if name not in refused},
                "refused": refused,
                "conducted": controllers,
                "silent": silent,
                "labels": labels,
            }
        )
        return
    by_run: dict[str, list[str]] = {}
    for host, answer in answers.items():
        for run in answer["runs"]:
            by_run.setdefault(run, []).append(host)
    for run, names in by_run.items():
        typer.echo(f"running  {one_line(run)}  on {fold(names)}")
    idle = [
        host for host, answer in answers.items() if not answer["owner"]
    ]  # who holds a node has a process there
    if not is_asked:
        reason = (
            "a lab: orch lab exec -- orch status"
            if project.is_outside_its_lab(os.environ)
            else "no inventory"
        )
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
        if not rest and {"open", "planned", "interrupted"} & set(counts):
            inside = "orch lab exec -- " if is_outside_its_lab(records[bench_id]) else ""
            rest = f"; to continue: {inside}orch resume {bench_id}"
        name = one_line(f"{bench_id}  ({labels[bench_id]})") if bench_id in labels else bench_id
        typer.echo(
            f"bench    {name}  "
            + ", ".join(f"{count} {state}" for state, count in counts.items())
            + rest
        )
        if bench_id in silent:
            typer.echo(one_line(f"silent   {bench_id}  {silent[bench_id]}"))
    note_unattended(project)
    if refused:
        newest, reason = max(refused.items())
        count = plural(len(refused), "bench", "benches")
        typer.echo(
            f"refused  {count} before the first run, the newest is {newest}: {one_line(reason)}"
        )
    if errors or doubtful:
        from orchestrator.errors import Faults

        raise Faults([*errors.values(), *doubtful])


def _has_inventory(project: Project) -> bool:
    """Return False if nothing names an inventory, and the default file does not exist or is
    not the lab's.
    """
    from pathlib import Path

    from orchestrator.record.project import DEFAULT

    source, why = project.inventory_source("", os.environ)
    return why != DEFAULT or (Path(source).exists() and not project.is_outside_its_lab(os.environ))


def _counts(bench: BenchDir) -> dict[str, int]:
    """Return the number of runs of a bench by state; a run without a recorded end is open."""
    from collections import Counter

    runs = bench.runs()
    counts = Counter(map(_state, runs))
    counts["planned"] = len(bench.record().runs) - len(runs)
    return {state: count for state, count in counts.items() if count}


def _state(run: RunDir) -> str:
    from orchestrator.errors import DataError
    from orchestrator.record.manifest import read_manifest

    try:
        outcome = read_manifest(run).outcome
        return (outcome and outcome.state) or "open"
    except DataError:
        return "damaged"


def logs(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            autocompletion=complete.runs,
            help="Id of a run. Default: the newest run of the latest bench.",
        ),
    ] = "",
    rank: Annotated[int, typer.Option("--rank", "-r", help="Rank whose log to print.")] = 0,
    err: Annotated[
        bool, typer.Option("--err", help="Print standard error instead of standard output.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing as the log grows.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Print the bytes unchanged, with secrets and control characters."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Print one rank's log from its node, or the collected copy if there is one; -f follows it.

    Each line is prefixed with its host and log name, and has no secrets or control characters, also
    in a pipe.
    """
    import sys

    from orchestrator.errors import ConfigError
    from orchestrator.inventory import NO_SECRETS, open_inventory
    from orchestrator.logs import SETUP_LOG
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.nodes.collect import is_complete
    from orchestrator.record import Project
    from orchestrator.record.bench_record import reached_inventory
    from orchestrator.record.evidence import log_bytes, setup_failed
    from orchestrator.record.manifest import read_manifest
    from orchestrator.report.text import lines_of, visible

    def show(pieces: Iterable[bytes], redaction: Redaction, label: str) -> None:
        if raw:
            for data in pieces:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            return
        for line in lines_of(redaction.stream(pieces)):
            print(f"{label}: {visible(line)}", flush=follow)

    directory = find_bench("")
    runs = {run_dir.run_id: run_dir for run_dir in directory.runs()}
    if run and run not in runs:
        raise ConfigError(
            f"no run {run!r} in bench {directory.path.name}",
            where="run",
            hint=f"it has {', '.join(runs)}",
        )
    if not runs:
        raise ConfigError("no run has started yet", where=str(directory.path))
    chosen = runs[run] if run else list(runs.values())[-1]
    placement = read_manifest(chosen).placement
    slot = next((slot for slot in placement.slots if rank in slot.ranks), None)
    if slot is None:
        raise ConfigError(
            f"expected a rank from 0 to {placement.world_size - 1}, got {rank}", where="--rank"
        )
    name = f"rank-{rank}.{'err' if err else 'out'}"
    if is_complete(chosen, slot.host):
        names = [path.name for path in chosen.logs(slot.host)]
        if name not in names:
            # Third-party programs, and launchers that fail early, write to the node's own streams.
            setup = SETUP_LOG if setup_failed(chosen, slot.host) else ""
            missing, name = name, setup or ("node.err" if err else "node.out")
            typer.echo(
                f"{slot.host} has no {missing}; this is {name}. available: {', '.join(names)}",
                err=True,
            )
        try:
            redaction = open_inventory(directory.record().inventory).redaction()
        except (
            ConfigError
        ):  # it is gone; what was secret when the log was collected is recorded next to it
            redaction = NO_SECRETS
        show(
            [
                chosen.log_path(slot.host, name).read_bytes()
                if raw
                else log_bytes(chosen, slot.host, name)
            ],
            redaction,
            f"{slot.host} {name}",
        )
        return
    inventory = open_inventory(reached_inventory(directory.record()))
    if not raw:
        known_secrets(directory.record(), inventory.of([slot.host]), "add --raw")
    trust = trust_of(Project.here(os.environ), inventory.redaction())
    with Cluster(inventory.of([slot.host]), trust, inventory.redaction()).open() as cluster:
        show(
            cluster.nodes[slot.host].tail(chosen.run_id, name, offset=0, follow=follow),
            cluster.redaction,
            f"{slot.host} {name}",
        )


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
    deadline = time.monotonic() + _CONTROLLER_STOPS_S
    while holder(bench) is not None and time.monotonic() < deadline:
        time.sleep(0.05)


def _cancelled_job(bench: str, *, quiet: bool) -> bool:
    """End a bench that has submitted a job, by the end of its job, and return True; also one that
    still waits for it.

    All processes of a bench are in the steps of its job. Raises RunError if the job cannot be
    ended.
    """
    import signal

    from orchestrator.cli.job import give_up
    from orchestrator.errors import RunError
    from orchestrator.record import Project
    from orchestrator.record.submission import submission

    project = Project.here(os.environ)
    known = submission(project, bench) or submission(project, bench_path(bench).name)
    if known is None:
        return False
    if known.is_attended:
        typer.echo(f"stopping its controller: process {known.process}", err=quiet)
        os.kill(known.process, signal.SIGTERM)
        deadline = time.monotonic() + _CONTROLLER_STOPS_S
        while known.is_attended and time.monotonic() < deadline:
            time.sleep(0.05)
    give_up(project, known.bench_id, of_anyone=True)
    if left := submission(project, known.bench_id):
        raise RunError(
            f"job {left.job} of bench {left.bench_id} is not proven to have ended",
            kind="not_verified",
        )
    return True


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
    from orchestrator.errors import Faults
    from orchestrator.inventory import fold
    from orchestrator.nodes.fanout import each
    from orchestrator.nodes.leftovers import Leftovers
    from orchestrator.record.bench_record import reached_inventory
    from orchestrator.report.text import one_line

    if bench and _cancelled_job(bench, quiet=as_json):
        if as_json:
            print_json({"nodes": [], "stopped": {}, "errors": []})
        return
    directory = find_bench(bench) if bench else None
    source = reached_inventory(directory.record()) if directory else ""
    if directory:
        _stop_controller(directory, quiet=as_json)
    runs: list[str | None] = (
        [run.run_id for run in directory.runs(superseded=True)] if directory else [None]
    )
    ended: dict[str, list[str]] = {}
    selection = select(hosts or source, exclude)
    with selection.cluster(accept_new) as cluster:
        errors: list[OrchError] = list(cluster.open_what_answers().values())
        # Status comes first: once one node is stopped, the run's own controller may stop the others
        # before this command does.
        active, _ = each(
            cluster.nodes, lambda name: cluster.nodes[name].ask("status", timeout_s=60)["runs"]
        )
        for run in runs:
            answers, failed = each(cluster.nodes, partial(_stop, cluster, run))
            errors += failed.values()
            stopped = {
                name: {
                    *answer["stopped"],
                    *(run_id for run_id in active.get(name, ()) if run in (None, run_id)),
                }
                for name, answer in answers.items()
            }
            for name in sorted({name for names in stopped.values() for name in names}):
                ended[name] = sorted(host for host, names in stopped.items() if name in names)
                typer.echo(f"stopped {one_line(name)} on {fold(ended[name])}", err=as_json)
            errors += [
                fault
                for name, answer in answers.items()
                for fault in Leftovers.of(answer, name).errors(name)
            ]
        typer.echo(
            f"no orch processes left on {fold(cluster.nodes)}"
            if cluster.nodes and not errors
            else "",
            err=as_json,
        )
        if as_json:
            print_json(
                {
                    "nodes": sorted(cluster.nodes),
                    "stopped": ended,
                    "errors": [error.as_dict() for error in errors],
                }
            )
    if errors:
        raise Faults(errors)
