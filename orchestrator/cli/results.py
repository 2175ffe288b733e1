"""`orch collect` and `orch summarize`: evidence comes home, and numbers come out of it alone."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AcceptNew, Json, print_json

if TYPE_CHECKING:
    from orchestrator.cluster import Cluster
    from orchestrator.collect import Collected
    from orchestrator.rundir import BenchDir, RunDir

Bench = Annotated[str, typer.Argument(metavar="[BENCH]", help="A bench's name or directory; the latest one if not given.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("collect")(collect)
    app.command("summarize")(summarize)


def find_bench(name: str) -> BenchDir:
    """Return the bench of that name or directory, or the latest of the project. Raises ConfigError."""
    from orchestrator.errors import ConfigError
    from orchestrator.project import Project
    from orchestrator.rundir import BenchDir, latest

    runs = Project.here(os.environ).runs
    if name:
        path = Path(name) if Path(name).is_dir() else runs / name
        if not path.is_dir():
            raise ConfigError(f"no bench {name!r}", where=str(runs), hint="orch status lists them; a directory will do as well")
        return BenchDir.open(path)
    newest = latest(runs)
    if newest is None:
        raise ConfigError("no bench yet", where=str(runs), hint="orch bench resnet50 makes one")
    return BenchDir.open(newest)


def collect(
    bench: Bench = "",
    accept_new: AcceptNew = False,
    as_json: Json = False,
) -> None:
    """Bring logs and exit records home. Safe to repeat: what is here and agrees with the node's digests is not sent again."""
    from orchestrator.cluster import Cluster
    from orchestrator.collect import is_complete
    from orchestrator.errors import DataError, Faults
    from orchestrator.fanout import each
    from orchestrator.library import open_inventory
    from orchestrator.project import Project
    from orchestrator.transport import Trust

    directory = find_bench(bench)
    record = directory.bench()
    runs = {run: hosts_of(run) for run in directory.runs() if run.run_id not in record["borrowed"]}
    missing = {run: [host for host in hosts if not is_complete(run, host)] for run, hosts in runs.items()}
    wanted = {host for hosts in missing.values() for host in hosts}
    report = []
    errors = []
    if wanted:
        inventory = open_inventory(record["inventory"])
        trust = Trust(store=Project.here(os.environ).known_hosts, accept_new=accept_new)
        with Cluster(inventory.of(sorted(wanted)), trust) as cluster:
            errors = list(cluster.open_what_answers().values())
            for run, hosts in missing.items():
                reached = [host for host in hosts if host in cluster.nodes]
                found, failed = each(reached, partial(_collect, cluster, run))
                report += [(run.run_id, collected) for collected in found.values()]
                errors += list(failed.values())
    if as_json:
        print_json([{"run_id": run_id, **_fields(collected)} for run_id, collected in report])
    else:
        here = sum(not hosts for hosts in missing.values())
        typer.echo(f"bench {record['bench_id']}: {here} of {len(runs)} runs were here and whole")
        for run_id, collected in report:
            state = "whole" if collected.complete else collected.note or "incomplete"
            typer.echo(f"  {run_id} {collected.host}: {collected.new_bytes} new bytes, {collected.files} files, {state}")
    if errors:
        raise Faults(errors)
    running = [collected for _, collected in report if not collected.complete]
    if running:
        raise DataError(
            f"{len(running)} records are not whole yet",
            kind="result_invalid",
            where=str(directory.path),
            hint="a run that was never started, or that still lives, has no exit record; orch status tells",
        )


def _collect(cluster: Cluster, run: RunDir, host: str) -> Collected:
    from orchestrator.collect import collect_host

    return collect_host(cluster.nodes[host], run)


def hosts_of(run: RunDir) -> list[str]:
    """Return the hosts that a run was placed on, in order of node_rank."""
    return [slot["host"] for slot in run.manifest()["placement"]["slots"]]


def _fields(collected: Collected) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(collected)


def summarize(
    bench: Bench = "",
    form: Annotated[str, typer.Option("--format", help="table, markdown, csv or json.")] = "table",
    as_json: Json = False,
) -> None:
    """Print the scaling table of a bench, from its run directory alone."""
    from orchestrator.errors import ConfigError
    from orchestrator.report import delimited, jsonout, markdown, terminal
    from orchestrator.results import read_bench
    from orchestrator.summary import summarize as summary_of

    if form not in ("table", "markdown", "csv", "json"):
        raise ConfigError(f"expected table, markdown, csv or json, got {form!r}", where="--format")
    directory = find_bench(bench)
    summary = summary_of(read_bench(directory))
    if as_json or form == "json":
        typer.echo(jsonout.render(summary), nl=False)
    elif form == "markdown":
        typer.echo(markdown.render(summary), nl=False)
    elif form == "csv":
        typer.echo(delimited.render(summary), nl=False)
    else:
        from rich.console import Console

        terminal.render(summary, Console())
