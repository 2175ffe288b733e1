"""`orch summarize`: compute and print numbers from the evidence of a bench alone."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import (
    Bench,
    Json,
    Templates,
    find_bench,
    name_bench,
    open_frameworks,
    print_json,
    template_bases,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.errors import ConfigError, DataError
    from orchestrator.report.references import Reference
    from orchestrator.report.sections import Section
    from orchestrator.results import RunResult
    from orchestrator.results.summary import Summary

_RENDERED = (
    "markdown", "csv", "json", "junit", "prometheus", "mllog",
)  # fmt: skip
"""Each format has a module with its name in `orchestrator.report.formats`."""
_OF_SPEEDS = ("junit", "prometheus", "mllog", "dlperf")
_FOR_PEOPLE = ("table", "markdown")
OWN_RULES = "dlperf"
"""Stands for the rule that each framework folder names."""
_FORMS = ("table", "html", *_RENDERED, "dlperf")


def summarize(
    bench: Bench = "",
    form: Annotated[
        str, typer.Option("--format", help=f"{', '.join(_FORMS)}; dlperf: DLPerf's result JSON.")
    ] = "table",
    as_json: Json = False,
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            metavar="NAME",
            help="Use a published rule's window, by the name of a framework folder or a rule; dlperf: that of each framework.",
        ),
    ] = "",
    from_logs: Annotated[
        Path | None,
        typer.Option(
            "--from-logs",
            metavar="DIR",
            help="Read logs that orch did not collect, such as 4n8g/rn50_b128_fp32_1.log.",
        ),
    ] = None,
    framework: Annotated[
        str, typer.Option("--framework", "-f", help="Framework that wrote the logs of --from-logs.")
    ] = "",
    images: Annotated[
        int | None,
        typer.Option("--images", min=0, help="Images in the data set of --from-logs; 0: unknown."),
    ] = None,
    against: Annotated[
        str, typer.Option("--against", help="published: compare with published tables.")
    ] = "",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Predict each shape from 1n1g and measured collectives; divide the lost time into parts.",
        ),
    ] = False,
    open_: Annotated[
        bool,
        typer.Option(
            "--open", help="Write report.html into the bench directory and open it in a browser."
        ),
    ] = False,
    reread_: Annotated[
        bool,
        typer.Option(
            "--reread",
            help="Read the logs with the framework folder's current patterns, from now on.",
        ),
    ] = False,
    templates: Templates = None,
) -> None:
    """Print the scaling table of a bench, computed from its run directory alone, or of a tree of
    logs.
    """
    form = "json" if as_json else form
    _check_options(form, rule, from_logs, framework, against, bench, images, open_)
    _check_explain(explain, form, rule, from_logs)
    bases = template_bases(templates)
    _check_rule(rule, bases)
    if not (bench or from_logs):
        bench = str(find_bench("").path)  # found once, so that all below is about one bench
    if reread_:
        _reread(bench, from_logs, bases if templates else ())
    if form == "html" or open_:
        from orchestrator.cli.page import show

        return show(find_bench(bench), against=against, explain=explain, bases=bases, opened=open_)
    summary, results, damaged = _summary(
        bench, rule, from_logs, framework, images, bases, form in _FOR_PEOPLE
    )
    if summary.sheets and form in _OF_SPEEDS:
        raise _no_speed(
            summary.sheets[0].measures,
            "--format",
            f"{form} contains speeds only; use table, html, markdown, csv or json",
        )
    sections: tuple[Section, ...] = ()
    if not from_logs and not rule and form in ("table", "json"):
        from orchestrator.report.sections import sections_of

        sections = sections_of(
            find_bench(bench), summary, results, frozenset({"explain"} if explain else ())
        )
    if form == "json":
        extra = dict(_compare(against, summary, bases).documents()) if against else {}
        for section in sections:
            extra |= section.documents()
        typer.echo(_with_keys(summary, extra), nl=False)
    elif form in _RENDERED:
        typer.echo(import_module(f"orchestrator.report.formats.{form}").render(summary), nl=False)
    elif form == "dlperf":
        _print_result(summary)
    else:
        from orchestrator.report import terminal
        from orchestrator.report.text import stdout_console

        console = stdout_console()
        if not from_logs:
            console.print(
                f"bench {name_bench(find_bench(bench))}", style="dim", markup=False, highlight=False
            )
        terminal.render(summary if from_logs else replace(summary, label=""), console)
        for section in sections:
            section.render(console)
        if against:
            _compare(against, summary, bases).render(console)
        if from_logs and summary.speeds():
            _print_result(summary)
    from orchestrator.results.expectations import errors_of

    is_export = form not in (*_FOR_PEOPLE, "json")
    not_met = [] if is_export else errors_of(summary.expected)
    if from_logs:
        damaged = _without_number(summary, from_logs)
    if damaged or not_met:
        from orchestrator.errors import Faults

        raise Faults([*damaged, *not_met])
    return None


def _check_options(
    form: str,
    rule: str,
    from_logs: Path | None,
    framework: str,
    against: str,
    bench: str,
    images: int | None,
    opened: bool,
) -> None:
    from orchestrator.errors import ConfigError
    from orchestrator.plural import join_words

    if form not in _FORMS:
        raise ConfigError(f"expected {join_words(_FORMS, 'or')}, got {form!r}", where="--format")
    if against:
        from orchestrator.report.references import check_source

        check_source(against)
    if against and form not in ("table", "html", "json"):
        raise ConfigError(
            f"expected table, html or json with --against, got {form}", where="--format"
        )
    if opened and form not in ("table", "html"):
        raise ConfigError(f"expected table or html with --open, got {form}", where="--format")
    if (opened or form == "html") and (from_logs or rule):
        asked = "--open" if opened else "--format html"
        raise ConfigError(
            f"expected no {asked}, since the page always shows a bench with its own window",
            where="--from-logs" if from_logs else "--rule",
            hint="leave one of the two options out",
        )
    if bool(from_logs) != bool(framework):
        raise ConfigError(
            "--from-logs and --framework go together",
            where="--from-logs" if framework else "--framework",
        )
    if from_logs and bench:
        raise ConfigError(
            f"expected a bench or a tree of logs, got both, {bench!r} and {from_logs}",
            where="--from-logs",
        )
    if images is not None and not from_logs:
        raise ConfigError("it can only be used with --from-logs", where="--images")


def _check_rule(rule: str, bases: Sequence[Path]) -> None:
    """Raise ConfigError for a name that neither a framework folder with a published rule nor such a
    rule has.
    """
    if rule in ("", OWN_RULES):
        return
    from orchestrator.errors import ConfigError, nearest
    from orchestrator.results.log_rules import log_rules

    by_folder = log_rules("--rule").rule_names(bases)
    names = list(
        dict.fromkeys(name for folder, rules in by_folder.items() for name in (folder, *rules))
    )
    if rule not in names:
        known = ", ".join((OWN_RULES, *names))
        hint = f"without --rule the window of the run is used{nearest(rule, names)}"
        raise ConfigError(f"expected {known}, got {rule!r}", where="--rule", hint=hint)


def _check_explain(explain: bool, form: str, rule: str, from_logs: Path | None) -> None:
    from orchestrator.errors import ConfigError

    if explain and form not in ("table", "html", "json"):
        raise ConfigError(
            f"expected table, html or json with --explain, got {form}", where="--format"
        )
    if explain and (from_logs or rule):
        raise ConfigError(
            "it explains a bench with its own window only: leave out --rule and --from-logs",
            where="--explain",
        )


def _reread(bench: str, from_logs: Path | None, bases: Sequence[Path]) -> None:
    """Record that the logs of a bench are read with its framework folders as they are now, and say
    so.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record import take
    from orchestrator.record.grammar_override import folders_of, reread
    from orchestrator.report.text import one_line

    if from_logs:
        raise ConfigError(
            "a tree of logs is always read with the folder as it is now", where="--reread"
        )
    directory = find_bench(bench)
    folders = folders_of(directory, bases)
    ownership = take(directory)
    try:
        words = reread(directory, folders)
    finally:
        ownership.release()
    for text in words or ["the logs have already been read with these patterns"]:
        typer.echo(f"orch: {one_line(text)}", err=True)


def _summary(
    bench: str,
    rule: str,
    from_logs: Path | None,
    framework: str,
    images: int | None,
    bases: Sequence[Path],
    short: bool,
) -> tuple[Summary, list[RunResult], list[DataError]]:
    """Return the summary, the runs of a bench, and the errors of runs without a number because of
    damaged evidence.

    ``short``: of a bench that a feature has carried out, the runs that people are to see.
    """
    if from_logs:
        from orchestrator.results.log_rules import log_rules

        (folder,) = open_frameworks([framework], bases)
        rules = log_rules("--from-logs")
        if rule:
            rules.rule_of(folder.framework, _rule_name(rule))  # refuses a folder without it
        return rules.summary_of_tree(from_logs, folder.framework, images, _rule_name(rule)), [], []
    from dataclasses import replace

    from orchestrator.notes import as_note
    from orchestrator.record.bench_record import kind_of
    from orchestrator.results import NEVER_RUN
    from orchestrator.results.bench import damage_in, notes_of, read_bench
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.summary import lacking, of_bench

    directory = find_bench(bench)
    planned = planned_runs(directory, read_bench(directory))
    results = [result for result in planned.results if result.state != NEVER_RUN]
    damaged = damage_in(directory, results)
    if rule:
        from orchestrator.results.log_rules import log_rules

        for result in results:
            if not result.measure.has_samples:
                raise _no_speed(result.measure.name, "--rule", "omit --rule")

        by_rule = log_rules("--rule").by_rule(directory, planned.results, bases, _rule_name(rule))
        return lacking(by_rule, planned), results, damaged
    shown, notes = planned.results, []
    if short and (kind := kind_of(directory.record().added)):
        shown, notes = kind.in_short(directory, planned.results, results)
    return (
        of_bench(
            replace(planned, results=tuple(shown)), [*notes_of(directory), *map(as_note, notes)]
        ),
        results,
        damaged,
    )


def _rule_name(rule: str) -> str:
    """Return the name of a folder or rule, empty for the rule that each folder names."""
    return "" if rule == OWN_RULES else rule


def _without_number(summary: Summary, tree: Path) -> list[DataError]:
    """Return the error of a tree without any number in its logs; none otherwise."""
    from orchestrator.errors import DataError
    from orchestrator.plural import plural

    if any(row.n for row in summary.rows):
        return []
    failed = sum(row.failed for row in summary.rows)
    message = f"expected a log with a number, got {plural(failed, 'log')} without"
    return [
        DataError(
            message,
            kind="result_invalid",
            where=str(tree),
            hint="the notes above say why, log by log",
        )
    ]


def _no_speed(measures: str, where: str, hint: str) -> ConfigError:
    from orchestrator.errors import ConfigError
    from orchestrator.plan import MEASURES

    return ConfigError(
        f"this bench measured {MEASURES[measures].noun}, not the speed of training",
        where=where,
        hint=hint,
    )


def _print_result(summary: Summary) -> None:
    from orchestrator.report.formats.dlperf import result_document

    print_json(result_document(summary))


def _compare(source: str, summary: Summary, bases: Sequence[Path]) -> Reference:
    from orchestrator.report.references import compare_with

    return compare_with(source, summary, bases)


def _with_keys(summary: Summary, extra: dict[str, Any]) -> str:
    """Return the summary's JSON with additional keys."""
    import json

    from orchestrator.report.formats.json import render

    return json.dumps(json.loads(render(summary)) | extra, indent=2, allow_nan=False) + "\n"
