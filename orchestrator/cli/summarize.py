"""`orch summarize`: numbers from the evidence of a bench alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Bench, Json, Templates, find_bench, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from orchestrator.analysis.explain import Explanation
    from orchestrator.errors import ConfigError, DataError
    from orchestrator.record import BenchDir
    from orchestrator.results import RunResult
    from orchestrator.results.summary import Summary

_RENDERED = (
    "markdown", "csv", "json", "junit", "prometheus", "mllog",
)  # fmt: skip
"""Each has a module of its name in `orchestrator.report.formats`."""
_OF_SPEEDS = ("junit", "prometheus", "mllog", "dlperf")
_FOR_PEOPLE = ("table", "markdown")
_FORMS = ("table", "html", *_RENDERED, "dlperf")


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("summarize")(summarize)


def summarize(
    bench: Bench = "",
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(_FORMS)}; dlperf is its result JSON.")] = "table",
    as_json: Json = False,
    rule: Annotated[str, typer.Option("--rule", help="dlperf: the window that each system's published numbers used.")] = "",
    from_logs: Annotated[
        Path | None, typer.Option("--from-logs", metavar="DIR", help="Read logs of others, as 4n8g/rn50_b128_fp32_1.log.")
    ] = None,
    framework: Annotated[str, typer.Option("--framework", "-f", help="Whose logs --from-logs reads.")] = "",
    images: Annotated[
        int | None, typer.Option("--images", min=0, help="Images of the data set behind --from-logs; 0 for unknown.")
    ] = None,
    against: Annotated[str, typer.Option("--against", help="published: compare with published tables.")] = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Predict each shape from 1n1g and measured all-reduces, and divide what it loses.")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Write report.html into the bench, and show it in a browser.")] = False,
    templates: Templates = None,
) -> None:
    """Print the scaling table of a bench, from its run directory alone, or of a tree of logs."""
    form = "json" if as_json else form
    _check_options(form, rule, from_logs, framework, against, bench, images, open_)
    _check_explain(explain, form, rule, from_logs)
    if form == "html" or open_:
        from orchestrator.cli.page import show

        return show(find_bench(bench), against=bool(against), explain=explain, templates=templates, opened=open_)
    summary, results, damaged = _summary(bench, rule, from_logs, framework, images, templates, form in _FOR_PEOPLE)
    if summary.sheets and form in _OF_SPEEDS:
        raise _no_speed(
            summary.sheets[0].measures, "--format", f"{form} has room for speeds only; take table, html, markdown, csv or json"
        )
    if explain:
        from orchestrator.report import explain as explanations
    if form == "json" and (against or explain):
        more = _published(summary, templates) if against else {}
        more |= {"explained": explanations.documents(_explained(bench, summary, results))} if explain else {}
        typer.echo(_with_more(summary, more), nl=False)
    elif form in _RENDERED:
        typer.echo(import_module(f"orchestrator.report.formats.{form}").render(summary), nl=False)
    elif form == "dlperf":
        _print_result(summary)
    else:
        from rich.console import Console

        from orchestrator.report import terminal

        console = Console()
        terminal.render(summary, console)
        if explain:
            explanations.render(_explained(bench, summary, results), console)
        if against:
            _print_reference(summary, templates, console)
        if from_logs:
            _print_result(summary)
    if damaged:
        from orchestrator.errors import Faults

        raise Faults(damaged)
    return None


def _check_options(
    form: str, rule: str, from_logs: Path | None, framework: str, against: str, bench: str, images: int | None, opened: bool
) -> None:
    from orchestrator.errors import ConfigError

    if form not in _FORMS:
        raise ConfigError(f"expected {', '.join(_FORMS[:-1])} or {_FORMS[-1]}, got {form!r}", where="--format")
    if rule not in ("", "dlperf"):
        raise ConfigError(f"expected dlperf, got {rule!r}", where="--rule", hint="without it the window is that of the run")
    if against not in ("", "published"):
        raise ConfigError(f"expected published, got {against!r}", where="--against")
    if against and form not in ("table", "html", "json"):
        raise ConfigError(f"expected table, html or json with --against, got {form}", where="--format")
    if opened and form not in ("table", "html"):
        raise ConfigError(f"expected html, which is what --open shows, got {form}", where="--format")
    if (opened or form == "html") and (from_logs or rule):
        raise ConfigError("the page shows a bench, by its own window", where="--from-logs" if from_logs else "--rule")
    if bool(from_logs) != bool(framework):
        raise ConfigError("--from-logs and --framework go together", where="--from-logs" if framework else "--framework")
    if from_logs and bench:
        raise ConfigError(f"expected a bench or a tree of logs, got both, {bench!r} and {from_logs}", where="--from-logs")
    if images is not None and not from_logs:
        raise ConfigError("it belongs to --from-logs", where="--images")


def _check_explain(explain: bool, form: str, rule: str, from_logs: Path | None) -> None:
    from orchestrator.errors import ConfigError

    if explain and form not in ("table", "html", "json"):
        raise ConfigError(f"expected table, html or json with --explain, got {form}", where="--format")
    if explain and (from_logs or rule):
        raise ConfigError("it explains a bench, by its own window", where="--explain")


def _summary(
    bench: str, rule: str, from_logs: Path | None, framework: str, images: int | None, templates: Path | None, short: bool
) -> tuple[Summary, list[RunResult], list[DataError]]:
    """Return the summary, the runs of a bench, and what is wrong with the evidence of those that have no number for it.

    ``short``: of a tune the default and the best alone.
    """
    if from_logs:
        from orchestrator.analysis.published.foreign import summary_of_tree
        from orchestrator.plan.folders import open_framework

        return summary_of_tree(from_logs, open_framework(framework, templates).framework, images), [], []
    from orchestrator.errors import DataError
    from orchestrator.results.bench import notes_of, read_bench
    from orchestrator.results.summary import summarize as summary_of

    directory = find_bench(bench)
    results = read_bench(directory)
    damaged = [result.error for result in results if isinstance(result.error, DataError)]
    if rule:
        from orchestrator.analysis.published import by_rule

        for result in results:
            if not result.measure.has_speed:
                raise _no_speed(result.measure.name, "--rule", "leave it out")

        return by_rule(directory, results, templates), results, damaged
    told, notes = _of_tune(directory, results) if short and directory.record().tune else (results, [])
    return summary_of(told, [*notes_of(directory), *notes]), results, damaged


def _of_tune(bench: BenchDir, results: list[RunResult]) -> tuple[list[RunResult], list[str]]:
    """Return those runs of a tune that matter, what came of it, and where the others are."""
    from orchestrator.analysis.tune import tuned
    from orchestrator.analysis.tune.answer import compared
    from orchestrator.report.tune import answer

    told, others = compared(bench, results)
    where = f"orch attach {bench.path.name} lists each candidate of each rung, and --format json, csv and html have all rows"
    left = [f"{others} other candidates and {len(results) - len(told)} earlier runs are not shown: {where}"]
    return told, [answer(tuned(bench, results)), *left * (len(told) < len(results))]


def _no_speed(measures: str, where: str, hint: str) -> ConfigError:
    from orchestrator.errors import ConfigError
    from orchestrator.plan import MEASURES

    return ConfigError(f"this bench has measured {MEASURES[measures].noun}, no speed of training", where=where, hint=hint)


def _print_result(summary: Summary) -> None:
    from orchestrator.report.published import result_document

    print_json(result_document(summary))


def _print_reference(summary: Summary, templates: Path | None, console: Console) -> None:
    from orchestrator.analysis.published import published_files, reference_tables
    from orchestrator.report import published

    published.reference_tables(*reference_tables(summary, published_files(templates).values()), console)


def _published(summary: Summary, templates: Path | None) -> dict[str, Any]:
    """Return the comparison of a summary with published tables, for its JSON."""
    from dataclasses import asdict

    from orchestrator.analysis.published import published_files, reference_tables

    references, notes = reference_tables(summary, published_files(templates).values())
    return {"published": [asdict(reference) for reference in references], "published_notes": list(notes)}


def _explained(bench: str, summary: Summary, results: Sequence[RunResult]) -> tuple[Explanation, ...]:
    from orchestrator.analysis.explain import explain_bench
    from orchestrator.results.account import account_of

    directory = find_bench(bench)
    return explain_bench(directory, summary, results, account_of(directory, results))


def _with_more(summary: Summary, more: dict[str, Any]) -> str:
    """Return the summary's JSON with further keys."""
    import json

    from orchestrator.report.formats.json import render

    return json.dumps(json.loads(render(summary)) | more, indent=2, allow_nan=False) + "\n"
