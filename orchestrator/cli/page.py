"""`orch summarize --format html` and `--open`: print a bench as an HTML page, or write the page into the bench and open it."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.record import BenchDir

__all__ = ["show"]

_NAME = "report.html"


def show(bench: BenchDir, *, against: bool, explain: bool, bases: Sequence[Path], opened: bool) -> None:
    """Print the page, or write it into the bench directory and open it; without a browser only the path is printed.

    Raise Faults for runs with damaged evidence, as the table does, after the page is complete.
    """
    from orchestrator.analysis.published import nearest_records, published_files, reference_tables
    from orchestrator.cli.beside import Beside
    from orchestrator.errors import DataError, Faults
    from orchestrator.extras import need
    from orchestrator.files import write_atomic
    from orchestrator.report.published_language import nearest_text
    from orchestrator.results import NEVER_RUN
    from orchestrator.results.account import account_of
    from orchestrator.results.bench import notes_of, read_bench
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.summary import of_bench

    need("matplotlib", "charts of the page")
    from orchestrator.report.html.page import render

    planned = planned_runs(bench, read_bench(bench, each_rank=True))
    results = [result for result in planned.results if result.state != NEVER_RUN]
    summary = of_bench(planned, notes_of(bench))
    files = tuple(published_files(bases).values()) if against else ()
    references, notes = reference_tables(summary, files) if against else ((), ())
    notes = (*notes, *map(nearest_text, nearest_records(summary, files)))
    account = account_of(bench, results)
    beside = Beside.of(bench, summary, results, explain=explain)
    text = render(summary, results, account, references, notes, beside.explained or (), beside.profiles, beside.hangs)
    if opened:
        path = (bench.path / _NAME).absolute()
        write_atomic(path, text.encode())
        typer.echo(path)
        if not webbrowser.open(path.as_uri()):
            typer.echo("orch: no browser on this machine; open the file above in one", err=True)
    else:
        typer.echo(text, nl=False)
    if damaged := [result.error for result in results if isinstance(result.error, DataError)]:
        raise Faults(damaged)
