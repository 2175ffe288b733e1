"""`orch history`: list all benches and acceptances of a project, from run directories alone, or of
a store, from its index.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AcceptNew, Debug, Json, Signers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.analysis.past_cells import History, PastCell
    from orchestrator.errors import OrchError
    from orchestrator.record.past_acceptance import PastAcceptance


def history(
    model: Annotated[str, typer.Option("--model", help="Only this model.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="Only this dtype.")] = "",
    shape: Annotated[str, typer.Option("--shape", metavar="4n8g", help="Only this shape.")] = "",
    since: Annotated[
        str,
        typer.Option("--since", metavar="DATE|7d", help="Only benches created since then, in UTC."),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            "--metric", metavar="NAME", help="Show this metric, or all; default: the primary ones."
        ),
    ] = "",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg", help="Write a chart of values over time."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="STORE",
            help="List the benches of a store: directory, host:/path, s3://bucket/path.",
        ),
    ] = "",
    signers: Signers = None,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """List every configuration of every bench of this project or a store, with date, value,
    confidence interval and hardware.

    Below them come the acceptances of the same hosts over time, unless options select
    configurations. Exits with 4 if the evidence of a bench is damaged; all others are still listed.
    """
    from orchestrator.errors import ConfigError, DataError, Faults
    from orchestrator.extras import need
    from orchestrator.features.history.history import chosen, project_history
    from orchestrator.files import write_atomic
    from orchestrator.record import Project

    if plot and plot.suffix != ".svg":
        raise ConfigError(f"expected a name that ends in .svg, got {plot}", where="--plot")
    if plot:
        need("matplotlib", "--plot")
    if signers and not store:
        raise ConfigError("expected --from STORE, which has signatures", where="--signers")
    begin, shape_name = _date(since), _shape(shape)
    project = Project.here(os.environ)
    if store:
        whole, faults = _of_store(store, signers, accept_new)
    else:
        whole, faults = project_history(project), []
    _check_metric(metric, whole.cells)
    cells = chosen(whole.cells, model, dtype, shape_name, begin, metric)
    if plot:
        from orchestrator.features.history.trend_chart import svg

        write_atomic(plot, svg(cells), 0o644, is_input=True)
        typer.echo(f"wrote {plot}", err=True)
    accepted = [
        past
        for past in whole.acceptances
        if past.created >= begin and not (model or dtype or shape or metric)
    ]
    _show(cells, accepted, whole, store, as_json)
    faults += [
        DataError(why, kind="state_damaged", run_id=name) for name, why in whole.damaged.items()
    ]
    if faults:
        raise Faults(faults)


def _of_store(
    where: str, signers: Path | None, accept_new: bool
) -> tuple[History, list[OrchError]]:
    """Return the history in a store, and the errors of its archives."""
    from orchestrator.errors import ConfigError
    from orchestrator.feature import providers

    for module in providers("store"):
        read: tuple[History, list[OrchError]] = module.history_from(where, signers, accept_new)
        return read
    raise ConfigError("expected no store: this installation of orch has no stores", where="--from")


def _show(
    cells: Sequence[PastCell],
    accepted: Sequence[PastAcceptance],
    whole: History,
    store: str,
    as_json: bool,
) -> None:
    from orchestrator.features.history import report
    from orchestrator.report.text import one_line, stdout_console

    if as_json:
        typer.echo(report.document(cells, accepted, whole), nl=False)
        return
    if cells:
        report.render(cells, stdout_console())
    if accepted:
        report.render_acceptances(accepted, stdout_console())
    if not (cells or accepted or whole.speedless):
        typer.echo(
            "no benches"
            if not (whole.cells or whole.acceptances)
            else "no bench matches these options",
            err=True,
        )
    for name, noun in whole.speedless.items():
        pulled = f"orch pull {store} {name}, and then " if store else ""
        typer.echo(
            one_line(f"not listed, because it measured {noun}: {pulled}orch summarize {name}"),
            err=True,
        )


def _check_metric(name: str, cells: Sequence[PastCell]) -> None:
    """Raise ConfigError for a metric that no cell has, if there are any."""
    from orchestrator.errors import ConfigError, nearest

    known = sorted({cell.metric for cell in cells})
    if name and name != "all" and known and name not in known:
        hint = f"the metrics of these benches are {', '.join(known)}{nearest(name, known)}"
        raise ConfigError(
            f"expected all or the name of a metric, got {name!r}", where="--metric", hint=hint
        )


def _shape(text: str) -> str:
    """Return a shape in the form that benches use; empty for any."""
    from orchestrator.errors import ConfigError
    from orchestrator.plan.option_values import shapes

    pairs = shapes(text)
    if text and len(pairs) != 1:
        raise ConfigError(f"expected one shape such as 4n8g, got {text!r}", where="--shape")
    return "".join(f"{nodes}n{gpus}g" for nodes, gpus in pairs)


def _date(text: str) -> str:
    """Return the earliest time, in the form that benches use, of a date or a number of days before
    now; empty for any.
    """
    import re
    from datetime import datetime, timedelta, timezone

    from orchestrator.errors import ConfigError

    if not text:
        return ""
    try:
        if days := re.fullmatch(r"(\d{1,5})d", text, re.ASCII):
            return (datetime.now(timezone.utc) - timedelta(days=int(days[1]))).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            )
        return datetime.strptime(text, "%Y-%m-%d").strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise ConfigError(
            f"expected a date such as 2026-11-01, or 7d, got {text!r}", where="--since"
        ) from None
