"""`orch site`: all benches of a project as a static site."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, print_json


def site(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of the site: new, empty, or an existing site."),
    ],
    as_json: Json = False,
    home: Annotated[str, typer.Option("--home", hidden=True)] = "",
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Write all benches and acceptances of this project as pages that need no server: a list,
    trends, comparisons, nodes.

    Only pages whose evidence has changed are rebuilt. A reader sees the old site or the new one.
    Damaged evidence is listed.
    """
    from orchestrator.cli.signals import interrupt_on_signal
    from orchestrator.extras import need
    from orchestrator.features.site.folder import check_target
    from orchestrator.record import Project
    from orchestrator.report.text import one_line

    if stop_with_stdin:
        threading.Thread(target=_end_with_stdin, name="parent", daemon=True).start()
    check_target(folder)
    need("matplotlib", "charts of the pages")
    from orchestrator.features.site.build import build

    shown_s = 0.0

    def tell(text: str) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s > 2.0:
            shown_s = time.monotonic()
            typer.echo(f"site: {text}", err=True)

    began_s = time.monotonic()
    with interrupt_on_signal("the site is as it was"):
        built = build(Project.here(os.environ), folder, tell, home=home)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "pages": built.pages,
                "made": built.made,
                "damaged": dict(built.damaged),
            }
        )
    else:
        typer.echo(folder / "index.html")
        took = f"{built.pages} pages, {built.made} of them made now, in {time.monotonic() - began_s:.1f} s"
        typer.echo(f"site: {took}", err=True)
        for name, why in built.damaged.items():
            typer.echo(one_line(f"site: damaged, and listed as such: {name}: {why}"), err=True)


def _end_with_stdin() -> None:
    """Kill this process and those that it started when the other end of the standard input closes.

    That end is held by `orch serve`, which may be killed itself. The site stays as it was.
    """
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)
