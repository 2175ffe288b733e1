"""`orch summarize --format html` and `--open`: print a bench as an HTML page, or write the page
into the bench and open it.
"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.record import BenchDir

_NAME = "report.html"


def show(
    bench: BenchDir, *, against: str, explain: bool, bases: Sequence[Path], opened: bool
) -> None:
    """Print the page, or write it into the bench directory and open it; without a browser only the
    path is printed.

    Raise Faults for runs with damaged evidence, as the table does, after the page is complete.
    """
    from orchestrator.errors import DataError, Faults
    from orchestrator.extras import need
    from orchestrator.files import write_atomic

    need("matplotlib", "charts of the page")
    from orchestrator.report.html.bench_page import bench_page, read

    whole = read(bench)
    text = bench_page(whole, against=against, explain=explain, bases=bases)
    if opened:
        path = (bench.path / _NAME).absolute()
        write_atomic(path, text.encode())
        typer.echo(path)
        if not webbrowser.open(path.as_uri()):
            typer.echo("orch: no browser on this machine; open the file above in one", err=True)
    else:
        typer.echo(text, nl=False)
    damaged = [result.error for result in whole.results if isinstance(result.error, DataError)]
    if damaged:
        raise Faults(damaged)
