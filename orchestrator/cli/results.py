"""`orch collect` and `orch summarize`: evidence comes home, and numbers come out of it alone."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AcceptNew, Json, Templates, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from orchestrator.cluster import Cluster
    from orchestrator.collect import Collected
    from orchestrator.errors import ConfigError, DataError, OrchError
    from orchestrator.explain import Explanation
    from orchestrator.rundir import BenchDir, RunDir
    from orchestrator.runresult import RunResult
    from orchestrator.summary import Summary

_RENDERED = {
    "markdown": "markdown", "csv": "delimited", "json": "jsonout", "junit": "junit", "prometheus": "prometheus",
    "mllog": "mllog",
}  # fmt: skip
"""By form: the module of `orchestrator.report` that writes it."""
_OF_SPEEDS = ("junit", "prometheus", "mllog", "dlperf")
_FOR_PEOPLE = ("table", "markdown")
_FORMS = ("table", "html", *_RENDERED, "dlperf")
Bench = Annotated[str, typer.Argument(metavar="[BENCH]", help="A bench's name or directory; the latest one if not given.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("collect")(collect)
    app.command("summarize")(summarize)


def find_bench(name: str) -> BenchDir:
    """Return the bench of that name or directory, or the latest of the project. Raises ConfigError."""
    from orchestrator.errors import ConfigError
    from orchestrator.project import Project
    from orchestrator.rundir import BenchDir, latest

    runs = Project.here(os.environ).runs
    if name:
        path = Path(name) if _is_folder(Path(name)) else runs / name
        if not _is_folder(path):
            listed = "orch status lists them; a directory will do as well"
            hint = "unpack an archive with tar -xf, and give its directory" if name.endswith(".tar") else listed
            raise ConfigError(f"no bench {name!r}", where=str(runs), hint=hint)
        return BenchDir.open(path)
    newest = latest(runs)
    if newest is None:
        raise ConfigError("no bench yet", where=str(runs), hint="orch bench resnet50 makes one")
    return BenchDir.open(newest)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False


def collect(
    bench: Bench = "",
    accept_new: AcceptNew = False,
    prune: Annotated[bool, typer.Option("--prune", help="Then remove what is here and whole from the nodes.")] = False,
    as_json: Json = False,
) -> None:
    """Bring logs and exit records home. Safe to repeat: what is here and agrees with the node's digests is not sent again."""
    from orchestrator.cli.transfer import transfer
    from orchestrator.cluster import Cluster
    from orchestrator.collect import is_complete, settle
    from orchestrator.errors import DataError, Faults
    from orchestrator.fanout import each
    from orchestrator.inventoryread import open_inventory
    from orchestrator.project import Project
    from orchestrator.transport import Trust

    directory = find_bench(bench)
    record = directory.bench()
    runs, errors = _placed([run for run in directory.runs(superseded=True) if run.run_id not in record["borrowed"]])
    missing = {run: [host for host in hosts if not is_complete(run, host)] for run, hosts in runs.items()}
    wanted = {host for hosts in (runs if prune else missing).values() for host in hosts}
    report = []
    if wanted:
        inventory = open_inventory(record["inventory"])
        trust = Trust(store=Project.here(os.environ).known_hosts, accept_new=accept_new)
        with Cluster(inventory.of(sorted(wanted)), trust) as cluster, transfer("logs") as moved:
            errors += cluster.open_what_answers().values()
            for run, hosts in missing.items():
                reached = [host for host in hosts if host in cluster.nodes]
                found, failed = each(reached, partial(_collect, cluster, run, moved))
                report += [(run.run_id, collected) for collected in found.values()]
                errors += list(failed.values())
            for run, hosts in runs.items():
                settle(run, hosts)
                whole = [host for host in hosts if prune and host in cluster.nodes and is_complete(run, host)]
                errors += each(whole, partial(_drop, cluster, run.run_id))[1].values()
    if as_json:
        print_json([{"run_id": run_id, **_fields(collected)} for run_id, collected in report])
    else:
        never = sum(not hosts for hosts in runs.values())
        here = sum(not hosts for hosts in missing.values()) - never
        unborn = f", {never} never started" if never else ""
        typer.echo(f"bench {record['bench_id']}: {here} of {len(runs)} runs were here and whole{unborn}")
        for run_id, collected in report:
            state = "whole" if collected.complete else collected.note or "incomplete"
            typer.echo(f"  {run_id} {collected.host}: {collected.new_bytes} new bytes, {collected.files} files, {state}")
    if errors:
        raise Faults(errors)
    running = [collected for _, collected in report if not collected.complete]
    if running:
        raise DataError(
            f"{len(running)} records are not whole yet",
            kind="result_invalid",
            where=str(directory.path),
            hint="a run that still lives, or whose controller died before its start, has no exit record; orch status tells",
        )


def _collect(cluster: Cluster, run: RunDir, moved: Callable[[int], None], host: str) -> Collected:
    from orchestrator.collect import collect_host

    return collect_host(cluster.nodes[host], run, moved=moved)


def _drop(cluster: Cluster, run_id: str, host: str) -> None:
    cluster.nodes[host].ask("drop", run=run_id, finished=True, timeout_s=20)


def _placed(runs: Sequence[RunDir]) -> tuple[dict[RunDir, list[str]], list[OrchError]]:
    """Return the hosts of each run in order of node_rank, none of one that never started, and errors of manifests."""
    from orchestrator.errors import DataError

    placed: dict[RunDir, list[str]] = {}
    errors: list[OrchError] = []
    for run in runs:
        try:
            manifest = run.manifest()
        except DataError as error:
            errors.append(error)
            continue
        never = (manifest.get("outcome") or {}).get("released") is False
        placed[run] = [] if never else [slot["host"] for slot in manifest["placement"]["slots"]]
    return placed, errors


def _fields(collected: Collected) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(collected)


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
    against: Annotated[str, typer.Option("--against", help="published: set published tables beside these.")] = "",
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
        from orchestrator.report import explained
    if form == "json" and (against or explain):
        more = _published(summary, templates) if against else {}
        more |= {"explained": explained.documents(_explained(bench, summary, results))} if explain else {}
        typer.echo(_with_more(summary, more), nl=False)
    elif form in _RENDERED:
        typer.echo(import_module(f"orchestrator.report.{_RENDERED[form]}").render(summary), nl=False)
    elif form == "dlperf":
        _print_result(summary)
    else:
        from rich.console import Console

        from orchestrator.report import terminal

        console = Console()
        terminal.render(summary, console)
        if explain:
            explained.render(_explained(bench, summary, results), console)
        if against:
            _print_beside(summary, templates, console)
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
        raise ConfigError(f"expected table, html or json beside --against, got {form}", where="--format")
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
        raise ConfigError(f"expected table, html or json beside --explain, got {form}", where="--format")
    if explain and (from_logs or rule):
        raise ConfigError("it explains a bench, by its own window", where="--explain")


def _summary(
    bench: str, rule: str, from_logs: Path | None, framework: str, images: int | None, templates: Path | None, short: bool
) -> tuple[Summary, list[RunResult], list[DataError]]:
    """Return the summary, the runs of a bench, and what is wrong with the evidence of those that have no number for it.

    ``short``: of a tune the default and the best alone.
    """
    if from_logs:
        from orchestrator.foreign import summary_of_tree
        from orchestrator.library import open_framework

        return summary_of_tree(from_logs, open_framework(framework, templates).framework, images), [], []
    from orchestrator.benchresults import notes_of, read_bench
    from orchestrator.errors import DataError
    from orchestrator.summary import summarize as summary_of

    directory = find_bench(bench)
    results = read_bench(directory)
    damaged = [result.error for result in results if isinstance(result.error, DataError)]
    if rule:
        from orchestrator.foreign import by_rule

        for result in results:
            if not result.measure.has_speed:
                raise _no_speed(result.measure.name, "--rule", "leave it out")

        return by_rule(directory, results, templates), results, damaged
    told, notes = _of_tune(directory, results) if short and "tune" in directory.bench() else (results, [])
    return summary_of(told, [*notes_of(directory), *notes]), results, damaged


def _of_tune(bench: BenchDir, results: list[RunResult]) -> tuple[list[RunResult], list[str]]:
    """Return those runs of a tune that matter, what came of it, and where the others are."""
    from orchestrator.report.tuned import answer
    from orchestrator.tuned import compared, tuned

    told, others = compared(bench, results)
    where = f"orch attach {bench.path.name} lists each candidate of each rung, and --format json, csv and html have all rows"
    left = [f"{others} other candidates and {len(results) - len(told)} earlier runs are not shown: {where}"]
    return told, [answer(tuned(bench, results)), *left * (len(told) < len(results))]


def _no_speed(measures: str, where: str, hint: str) -> ConfigError:
    from orchestrator.errors import ConfigError
    from orchestrator.measures import MEASURES

    return ConfigError(f"this bench has measured {MEASURES[measures].noun}, no speed of training", where=where, hint=hint)


def _print_result(summary: Summary) -> None:
    from orchestrator.report.published import result_document

    print_json(result_document(summary))


def _print_beside(summary: Summary, templates: Path | None, console: Console) -> None:
    from orchestrator.beside import beside
    from orchestrator.foreign import published_files
    from orchestrator.report import published

    published.beside(*beside(summary, published_files(templates).values()), console)


def _published(summary: Summary, templates: Path | None) -> dict[str, Any]:
    """Return the published rows beside a summary, for its JSON."""
    from dataclasses import asdict

    from orchestrator.beside import beside
    from orchestrator.foreign import published_files

    found, notes = beside(summary, published_files(templates).values())
    return {"published": [asdict(each) for each in found], "published_notes": list(notes)}


def _explained(bench: str, summary: Summary, results: Sequence[RunResult]) -> tuple[Explanation, ...]:
    from orchestrator.account import account_of
    from orchestrator.explaining import explain_bench

    directory = find_bench(bench)
    return explain_bench(directory, summary, results, account_of(directory, results))


def _with_more(summary: Summary, more: dict[str, Any]) -> str:
    """Return the summary's JSON with further keys."""
    import json

    from orchestrator.report import jsonout

    return json.dumps(json.loads(jsonout.render(summary)) | more, indent=2, allow_nan=False) + "\n"
