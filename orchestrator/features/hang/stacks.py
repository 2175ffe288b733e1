"""`orch stacks`: what every rank of a current run does, without stopping it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.connection_log import trust_of
from orchestrator.cli.options import Bench, Debug, Json, find_bench, print_json

if TYPE_CHECKING:
    from orchestrator.features.hang.node_report import RankSeen

_SHOWN_LINES = 12
_ANSWER_S = 30
_BETWEEN_S = 1.0


def stacks(
    bench: Bench = "",
    whole: Annotated[
        bool, typer.Option("--all", "-a", help="Show all threads and every line of their stacks.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the step, state and stack of every rank of the current run, and which rank the others
    wait for, if that can be told.

    Stops nothing.
    """
    from orchestrator.errors import ConfigError, Faults
    from orchestrator.features.hang.node_report import HangReport
    from orchestrator.features.hang.verdict import find_progress, verdict
    from orchestrator.features.hang.waits import main_stack
    from orchestrator.inventory import open_inventory
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.nodes.fanout import each
    from orchestrator.record import Project
    from orchestrator.record.bench_record import find_inventory
    from orchestrator.record.manifest import read_manifest
    from orchestrator.report.text import one_line

    directory = find_bench(bench)
    current = [run for run in directory.runs() if read_manifest(run).outcome is None]
    if not current:
        raise ConfigError(
            "no run is in progress",
            where=str(directory.path),
            hint="orch status shows the benches of this project",
        )
    run = current[-1]
    slots = read_manifest(run).placement.slots
    inventory = open_inventory(find_inventory(directory.record()))
    hosts = inventory.of([slot.host for slot in slots])
    trust = trust_of(Project.here(os.environ), inventory.redaction())
    with Cluster(hosts, trust, inventory.redaction()).open() as cluster:

        def look(name: str) -> Any:
            return cluster.nodes[name].ask("examine", run=run.run_id, timeout_s=_ANSWER_S)["report"]

        names = [slot.host for slot in slots]
        before, _ = each(names, look)
        time.sleep(_BETWEEN_S)
        answers, errors = each(names, look)
    if as_json:
        print_json(
            {
                "run": run.run_id,
                "nodes": answers,
                "errors": {name: error.as_dict() for name, error in errors.items()},
            }
        )
        return
    reports = {name: HangReport.of(answer) for name, answer in answers.items()}
    # Of a run that goes on, a moment in which one rank waits for another proves nothing.
    going = find_progress({name: HangReport.of(answer) for name, answer in before.items()}, reports)
    told = going or verdict(reports, {rank: slot.host for slot in slots for rank in slot.ranks})
    typer.echo(one_line(f"{run.run_id}: {told.sentence}"))
    for name, report in reports.items():
        for seen in report.ranks:
            typer.echo(one_line(f"rank {seen.rank}  {name}  {_words(seen)}"))
            for line in seen.python if whole else main_stack(seen)[:_SHOWN_LINES]:
                typer.echo(one_line(f"    {line.strip()}"))
    if errors:
        raise Faults(list(errors.values()))


def _words(seen: RankSeen) -> str:
    """Return the step, phase and state of a rank, and where its main thread is."""
    progress = f"step {seen.progress.step}, {seen.progress.phase}; " if seen.progress else ""
    place = f"{seen.call or 'no system call'}{f' ({seen.channel})' if seen.channel else ''}"
    pending = seen.pending
    waits = f"; waits in {pending.name} {pending.number}" if pending else ""
    share = seen.cpu_s / (seen.window_s or 1.0)
    return (
        f"pid {seen.pid}, {progress}state {seen.state}, {share:.0%} of a processor, {place}{waits}"
    )
