"""`orch undeploy`: remove from the nodes what orch has put there, after saying what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AcceptNew, Exclude, Hosts, Json, print_json, select
from orchestrator.grouping import group_pairs
from orchestrator.plural import plural

if TYPE_CHECKING:
    from orchestrator.errors import OrchError
    from orchestrator.record import BenchDir, Project
    from orchestrator.record.rundir import RunDir

_LIMIT_S = 300.0


def undeploy(
    hosts: Hosts = "",
    exclude: Exclude = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also remove runs whose logs are not collected in this project."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
    accept_new: AcceptNew = False,
    as_json: Json = False,
) -> None:
    """Remove payloads, collected runs and orch's work directory from the nodes, after listing them;
    then list what remains.

    Runs not collected in this project stay unless --force is given; runs in progress always stay.
    """
    from orchestrator.errors import Faults
    from orchestrator.nodes.fanout import each

    selection = select(hosts, exclude)
    with selection.cluster(accept_new) as cluster:
        errors: list[OrchError] = list(cluster.open_what_answers().values())
        collected: dict[str, list[str]] = {}

        def ask(name: str, *, dry: bool, force: bool) -> dict[str, Any]:
            runs = collected.get(name, [])
            return cluster.nodes[name].ask(
                "undeploy", collected=runs, force=force, dry=dry, timeout_s=_LIMIT_S
            )

        # Without force, as the answer names only the runs that would stay.
        there, failed = each(cluster.nodes, lambda name: ask(name, dry=True, force=False))
        errors += failed.values()
        runs = {name: list(answer.get("kept", ())) for name, answer in there.items()}
        known = _find_runs(selection.project, {run for names in runs.values() for run in names})
        collected |= _find_collected(known, runs)
        before, failed = each(there, lambda name: ask(name, dry=True, force=force))
        errors += failed.values()
        _print(_plans(before), as_json)
        after: Mapping[str, dict[str, Any]] = {}
        if not dry_run:
            after, failed = each(before, lambda name: ask(name, dry=False, force=force))
            errors += failed.values()
            _record_removal(known, runs, after)
            _print(_rests(after), as_json)
    if as_json:
        print_json(
            {
                "nodes": {**before, **after},
                "removed": not dry_run,
                "errors": [error.as_dict() for error in errors],
            }
        )
    errors += _in_progress(after or before)
    if errors:
        raise Faults(errors)


def _find_runs(project: Project, run_ids: Collection[str]) -> dict[str, tuple[BenchDir, RunDir]]:
    """Return those of these runs that are in this project, with their benches."""
    from orchestrator.record import BenchDir
    from orchestrator.record.bench_groups import every_bench_folder

    folders = every_bench_folder(project.runs) if run_ids else ()
    benches = [BenchDir.open(folder) for folder in folders]
    return {
        run.run_id: (bench, run)
        for bench in benches
        for run in bench.runs(superseded=True)
        if run.run_id in run_ids
    }


def _find_collected(
    known: Mapping[str, tuple[BenchDir, RunDir]], runs: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return by host the runs whose logs are in this project and verified."""
    from orchestrator.nodes.collect import is_complete

    collected = {}
    for host, names in runs.items():
        collected[host] = [
            name for name in names if name in known and is_complete(known[name][1], host)
        ]
    return collected


def _record_removal(
    known: Mapping[str, tuple[BenchDir, RunDir]],
    runs: Mapping[str, Sequence[str]],
    after: Mapping[str, Mapping[str, Any]],
) -> None:
    """Record in the journals of their benches which of these runs are no longer on which hosts."""
    from orchestrator.record.journal import Event

    gone = group_pairs(
        (name, host)
        for host, answer in after.items()
        for name in runs[host]
        if name in known and name not in answer.get("kept", ())
    )
    for name, hosts in gone.items():
        known[name][0].event(Event.PRUNED, run=name, hosts=hosts)


def _plans(answers: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the removals as lines, one for all hosts with the same."""
    lines: dict[str, list[str]] = {}
    for host, answer in answers.items():
        if answer.get("absent"):
            words = "nothing of orch"
        else:
            parts = [f"payload ({answer['payload_bytes']} bytes)"] if answer["payload"] else []
            parts += (
                [f"{plural(answer['runs'], 'run')} ({answer['run_bytes']} bytes)"]
                if answer["runs"]
                else []
            )
            words = f"{answer['root']}: to remove: {', '.join(parts) or 'nothing'}{_describe_kept(answer['kept'])}"
        lines.setdefault(words, []).append(host)
    return _fold_lines(lines)


def _describe_kept(kept: Mapping[str, str]) -> str:
    counts = Counter(kept.values())
    return "".join(f"; stays: {plural(count, 'run')} {reason}" for reason, count in counts.items())


def _rests(answers: Mapping[str, dict[str, Any]]) -> list[str]:
    lines: dict[str, list[str]] = {}
    for host, answer in answers.items():
        if not answer.get("absent"):
            rest = _name_leftovers(answer.get("remains", ()))
            done = "nothing to remove"
            if answer["payload"] or answer["runs"] or not rest:
                done = "removed"
            words = f"{answer['root']}: {done}; remains: {rest or 'nothing'}"
            lines.setdefault(words, []).append(host)
    return _fold_lines(lines)


def _name_leftovers(names: Sequence[str]) -> str:
    """Return the names of what remains; the lock files of checks are counted, as they go by
    themselves.
    """
    locks = [name for name in names if name.startswith(".capture-")]
    words = [name for name in names if name not in locks]
    words += [f"{len(locks)} lock files of checks, which a later check removes"] if locks else []
    return ", ".join(words)


def _fold_lines(lines: Mapping[str, Sequence[str]]) -> list[str]:
    from orchestrator.inventory import fold

    return [f"{fold(names)}: {words}" for words, names in lines.items()]


def _print(lines: Sequence[str], as_json: bool) -> None:
    from orchestrator.report.text import one_line

    for line in () if as_json else lines:
        typer.echo(one_line(line))


def _in_progress(answers: Mapping[str, dict[str, Any]]) -> list[OrchError]:
    """Return an error for each host that keeps a run in progress."""
    from orchestrator.errors import RunError

    errors: list[OrchError] = []
    for host, answer in answers.items():
        for run, reason in answer.get("kept", {}).items():
            if reason == "in progress":
                hint = "orch status shows it; orch cancel ends runs of this user"
                errors.append(
                    RunError(
                        "a run is in progress and stays",
                        kind="node_busy",
                        host=host,
                        run_id=run,
                        hint=hint,
                    )
                )
    return errors
