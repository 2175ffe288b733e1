"""`orch resume` and `orch attach`: go on with a bench whose controller is gone, look at one that another process conducts."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AcceptNew, Bench, Detach, Json, find_bench


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("resume")(resume)
    app.command("attach")(attach)


def resume(
    bench: Bench = "",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat runs that failed of themselves, too.")] = False,
    detach: Detach = False,
    accept_new: AcceptNew = False,
    as_json: Json = False,
) -> None:
    """Go on with a bench whose controller died or was stopped: watch what still runs, repeat what was cut short, do the rest.

    Ends as the bench would have ended. What has finished is not run again.
    """
    from orchestrator.cli.controller import go_on

    go_on(find_bench(bench), accept_new=accept_new, as_json=as_json, detach=detach, retry_failed=retry_failed)


def attach(bench: Bench = "", as_json: Json = False) -> None:
    """Show a bench that another process conducts until it is over, and end with its exit status; Ctrl-C leaves it running."""
    from orchestrator.cli.controller import follow

    try:
        follow(find_bench(bench), as_json=as_json)
    except KeyboardInterrupt:
        typer.echo("\norch: left it running; orch cancel BENCH ends it", err=True)
        raise typer.Exit(130) from None
