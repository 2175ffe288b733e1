"""`orch resume` and `orch attach`: continue a bench whose controller is gone, or follow a running
one.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from orchestrator.cli.options import (
    AcceptNew,
    Bench,
    ChangedSecrets,
    Debug,
    Detach,
    Json,
    KeepGoing,
    check_secrets,
    find_bench,
)


def resume(
    bench: Bench = "",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also repeat runs that failed on their own.")
    ] = False,
    keep_going: KeepGoing = False,
    detach: Detach = False,
    changed_secrets: ChangedSecrets = False,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Continue a bench whose controller died or was stopped.

    Takes over a run still in progress, repeats interrupted runs, and does the rest. Finished runs
    are not repeated. The exit status is that of the whole bench. An acceptance continues with the
    stage that was in progress.
    """
    from orchestrator.cli.controller import go_on
    from orchestrator.inventory import open_inventory
    from orchestrator.record import Project
    from orchestrator.record.bench_groups import find_unfinished_group, provider_of
    from orchestrator.record.bench_record import find_inventory

    group = find_unfinished_group(Project.here(os.environ).runs, bench)
    if group:
        provider_of(group).resume(
            group, accept_new=accept_new, retry_failed=retry_failed, as_json=as_json
        )
        return
    directory = find_bench(bench)
    record = directory.record()
    if record.planned_with and not changed_secrets:
        hosts = [
            host
            for host in open_inventory(find_inventory(record)).hosts
            if host.name in record.planned_with.hosts
        ]
        check_secrets(record, hosts, "add --changed-secrets")
    go_on(
        directory,
        accept_new=accept_new,
        as_json=as_json,
        detach=detach,
        retry_failed=retry_failed,
        keep_going=keep_going,
    )


def attach(bench: Bench = "", as_json: Json = False) -> None:
    """Follow a bench run by another process, and exit with its status; Ctrl-C leaves the bench
    running.
    """
    import shlex

    from orchestrator.cli.controller import follow

    directory = find_bench(bench)
    try:
        follow(directory, as_json=as_json)
    except KeyboardInterrupt:
        typer.echo(
            f"\norch: the bench is still running; to stop it: orch cancel {shlex.quote(directory.path.name)}",
            err=True,
        )
        raise typer.Exit(130) from None
