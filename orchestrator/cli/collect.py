"""`orch collect`: fetch the evidence of a bench from its nodes."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.connection_log import trust_of
from orchestrator.cli.options import (
    AcceptNew,
    Bench,
    ChangedSecrets,
    Debug,
    Json,
    check_secrets,
    find_bench,
    print_json,
)
from orchestrator.plural import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.errors import OrchError
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.nodes.collect import Collected
    from orchestrator.record import RunDir


_NO_RECORD = (
    "no supervisor of them is alive: it was killed, or the controller died before the start; "
    "orch resume repeats such runs"
)


def collect(
    bench: Bench = "",
    accept_new: AcceptNew = False,
    debug: Debug = False,
    changed_secrets: ChangedSecrets = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Then remove fully collected runs from the nodes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Collect logs and exit records. Safe to repeat: files that already match the node's digests
    are not sent again.
    """
    from orchestrator.cli.transfer import transfer
    from orchestrator.errors import DataError, Faults
    from orchestrator.inventory import fold, open_inventory
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.nodes.collect import is_complete, settle
    from orchestrator.nodes.fanout import each
    from orchestrator.plan import Limits
    from orchestrator.record import Project
    from orchestrator.record.bench_record import find_inventory
    from orchestrator.record.journal import Event

    directory = find_bench(bench)
    record = directory.record()
    own = [run for run in directory.runs(superseded=True) if run.run_id not in record.borrowed]
    runs, errors = _hosts_of_runs(own)
    missing = {}
    for run, hosts in runs.items():
        missing[run] = [host for host in hosts if not is_complete(run, host)]
    to_contact = {host for hosts in (runs if prune else missing).values() for host in hosts}
    report, pruned, limits = [], dict[str, list[str]](), record.limits or Limits()
    if to_contact:
        inventory = open_inventory(find_inventory(record))
        if not changed_secrets:
            check_secrets(record, inventory.of(sorted(to_contact)), "add --changed-secrets")
        trust = trust_of(Project.here(os.environ), inventory.redaction(), accept_new)
        with (
            Cluster(inventory.of(sorted(to_contact)), trust, inventory.redaction()) as cluster,
            transfer("logs") as moved,
        ):
            errors += cluster.open_what_answers().values()
            for run, hosts in missing.items():
                reached = [host for host in hosts if host in cluster.nodes]
                fetched, failed = each(
                    reached, partial(_collect, cluster, run, limits.output_bytes, moved)
                )
                report += [(run.run_id, collected) for collected, _ in fetched.values()]
                errors += [fault for _, remains in fetched.values() for fault in remains]
                errors += list(failed.values())
            for run, hosts in runs.items():
                settle(run, hosts)
                whole = [
                    host
                    for host in hosts
                    if prune and host in cluster.nodes and is_complete(run, host)
                ]
                dropped, kept = each(whole, partial(_drop, cluster, run.run_id))
                errors += kept.values()
                if dropped:
                    pruned[run.run_id] = list(dropped)
                    directory.event(Event.PRUNED, run=run.run_id, hosts=list(dropped))
    if as_json:
        print_json([{"run_id": run_id, **_fields(collected)} for run_id, collected in report])
    else:
        never = sum(not hosts for hosts in runs.values())
        complete = sum(not hosts for hosts in missing.values()) - never
        never_started = f", {never} never started" if never else ""
        typer.echo(
            f"bench {record.bench_id}: {complete} of {len(own)} runs were already complete{never_started}"
        )
        for run_id, collected in report:
            state = "complete" if collected.complete else collected.note or "incomplete"
            came = f"{collected.new_bytes} new bytes, {plural(collected.files, 'file')}"
            typer.echo(f"  {run_id} {collected.host}: {came}, {state}")
        if pruned:
            nodes = fold({host for hosts in pruned.values() for host in hosts})
            typer.echo(f"  pruned: no files of {plural(len(pruned), 'run')} are left on {nodes}")
    started = {entry.run for entry in directory.events() if entry.event == Event.STARTED}
    errors += [
        _lost_error(run_id, collected)
        for run_id, collected in report
        if collected.absent and run_id in started
    ]
    if errors:
        raise Faults(errors)
    incomplete = [collected for _, collected in report if not collected.complete]
    if incomplete:
        lives = any(collected.lives for collected in incomplete)
        hint = _NO_RECORD
        if lives:
            hint = "a run that is still running has no exit record; see orch status"
        raise DataError(
            f"{len(incomplete)} records of runs are not complete yet",
            kind="result_invalid",
            where=str(directory.path),
            hint=hint,
        )


def _collect(
    cluster: Cluster, run: RunDir, max_bytes: int, moved: Callable[[int], None], host: str
) -> tuple[Collected, Sequence[OrchError]]:
    """Collect one host; also return an error if the run has no exit record there and its end could
    not be verified.
    """
    from orchestrator.nodes.collect import collect_host
    from orchestrator.nodes.leftovers import Leftovers

    node = cluster.nodes[host]
    collected = collect_host(node, run, max_bytes=max_bytes, moved=moved)
    if collected.complete:
        return collected, []
    remains = Leftovers.of(node.ask("left", run=run.run_id, timeout_s=60), host)
    return collected, Leftovers(
        unverified=remains.unverified, containers=remains.containers
    ).errors(host)


def _lost_error(run_id: str, collected: Collected) -> OrchError:
    from orchestrator.errors import RunError

    message = f"run {run_id} was started here, and its files are {collected.note}: its logs cannot be collected"
    hint = "was the node reinstalled, or its work directory removed? orch resume repeats a run without an exit record"
    return RunError(message, kind="evidence_lost", host=collected.host, run_id=run_id, hint=hint)


def _drop(cluster: Cluster, run_id: str, host: str) -> None:
    """Remove a run from a node. Raises RunError if the node keeps it."""
    from orchestrator.errors import RunError

    if not cluster.nodes[host].ask("drop", run=run_id, finished=True, timeout_s=20)["dropped"]:
        message = (
            f"run {run_id} is kept: its supervisor or other processes of the run have not ended"
        )
        hint = "orch cancel ends them, or names what is left"
        raise RunError(message, kind="not_verified", host=host, run_id=run_id, hint=hint)


def _hosts_of_runs(runs: Sequence[RunDir]) -> tuple[dict[RunDir, list[str]], list[OrchError]]:
    """Return the hosts of each run in order of node_rank (none for a run that never started), and
    errors of manifests.
    """
    from orchestrator.errors import DataError
    from orchestrator.record.manifest import read_manifest

    placed: dict[RunDir, list[str]] = {}
    errors: list[OrchError] = []
    for run in runs:
        try:
            manifest = read_manifest(run)
        except DataError as error:
            errors.append(error)
            continue
        placed[run] = manifest.hosts if manifest.was_released else []
    return placed, errors


def _fields(collected: Collected) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(collected)
