"""A bench in the terminal: signals, progress and final output."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.api.prepare import begin_bench
from orchestrator.api.selection import Selection
from orchestrator.cli.connection_log import trust_of
from orchestrator.cli.job import end_job_after, regain
from orchestrator.cli.options import tell_path
from orchestrator.cli.progress import progress
from orchestrator.cli.signals import handle_signals
from orchestrator.controller.controller import Controller, Show
from orchestrator.controller.events import Observer
from orchestrator.controller.peer import Interrupt
from orchestrator.errors import Faults, OrchError, RunError, raise_all, restore_error
from orchestrator.nodes.cluster import Cluster
from orchestrator.plan import Limits
from orchestrator.plan.bench import Bench
from orchestrator.plan.placement import used_hosts
from orchestrator.record import BenchDir, Project, holder
from orchestrator.record.bench_record import kind_of
from orchestrator.record.journal import Event, last_controller
from orchestrator.record.pending_work import check_frameworks
from orchestrator.record.rundir import PROGRESS_LOG
from orchestrator.report.text import visible
from orchestrator.results.bench import read_bench

if TYPE_CHECKING:
    from orchestrator.record import RunDir
    from orchestrator.results import RunResult

_LOOK_S = 0.2


def conduct(
    plan: Bench,
    borrowed: Sequence[RunDir],
    selection: Selection,
    limits: Limits,
    bases: Sequence[Path],
    *,
    accept_new: bool,
    as_json: bool,
    detach: bool,
    keep_going: bool = False,
    added: Mapping[str, Any] | None = None,
    opened: ConnectionCache | None = None,
    output: Path | None = None,
) -> None:
    """Run a planned bench and print its table, or the result of the feature that has ``added`` to
    its record. Raise the error of the first failed run.

    The path of its directory is written to ``output`` before its first run.

    It goes on with the connections, facts and spares of ``opened``, but for connections of a bench
    in the background.
    """
    if opened and detach:
        opened.close()
    hosts = used_hosts(plan.cells, selection.hosts)
    root = selection.project.runs
    controller = begin_bench(
        plan,
        borrowed,
        selection,
        hosts,
        limits,
        bases,
        root,
        argv=sys.argv,
        accept_new=accept_new,
        keep_going=keep_going,
        added=added,
        opened=opened,
    )
    tell_path(output, controller.bench.path)
    _begin(controller, as_json=as_json, detach=detach)


def go_on(
    bench: BenchDir,
    *,
    accept_new: bool,
    as_json: bool,
    detach: bool,
    retry_failed: bool,
    keep_going: bool,
) -> None:
    """Finish a bench whose controller is gone, and print its table; errors are those that `conduct`
    would have raised.
    """
    controller = reopen_bench(
        bench, accept_new=accept_new, retry_failed=retry_failed, keep_going=keep_going
    )
    _begin(controller, as_json=as_json, detach=detach)


def reopen_bench(
    bench: BenchDir, *, accept_new: bool, retry_failed: bool = False, keep_going: bool = False
) -> Controller:
    """Return a controller that finishes a bench whose own one is gone."""
    project = Project.here(os.environ)
    record = bench.record()
    if record.planned_with and holder(bench) is None:
        check_frameworks(bench)  # before a job waits in a queue for a bench that cannot go on
        regain(project, record, record.hosts)
    return Controller.go_on(
        bench,
        project.runs,
        lambda hosts, redaction: Cluster(
            hosts, trust_of(project, redaction, accept_new), redaction
        ),
        retry_failed=retry_failed,
        argv=sys.argv,
        keep_going=keep_going,
    )


def follow(bench: BenchDir, *, as_json: bool, until_begun: bool = False) -> None:
    """Show a bench that another process runs until it is over, and end as that process would;
    Ctrl-C leaves it running.

    ``until_begun``: only until its first run is planned. Raise RunError if its controller died.
    """
    shown = 0
    while True:
        is_held = (
            holder(bench) is not None
        )  # checked before reading, so that the last lines are not missed
        with suppress(FileNotFoundError):
            data = (bench.path / PROGRESS_LOG).read_bytes()[shown:]
            shown += len(data)
            typer.echo(visible(data.decode("utf-8", "replace")), nl=False, err=True)
        events = last_controller(bench.events())
        if events and events[-1].event == Event.OVER and not is_held:
            break
        if not is_held:
            message = "the controller died before the end of the bench"
            raise RunError(
                message,
                kind="interrupted",
                where=str(bench.path),
                hint=f"to continue: orch resume {shlex.quote(bench.path.name)}",
            )
        if until_begun and any(
            event.event in (Event.PLANNED, Event.TAKEN_OVER) for event in events
        ):
            typer.echo(
                f"orch: running in the background; to follow it: orch attach {shlex.quote(bench.path.name)}",
                err=True,
            )
            return
        time.sleep(_LOOK_S)
    _table(bench, read_bench(bench), as_json)
    if errors := events[-1].errors:
        raised = Faults([restore_error(error, str(error.get("run_id", ""))) for error in errors])
        raised.exit_code = events[-1].code
        raise raised


def _begin(controller: Controller, *, as_json: bool, detach: bool) -> None:
    bench = controller.bench
    typer.echo(f"bench: {bench.path}", err=True)
    if detach:
        controller.detach(_show(bench))
        follow(bench, as_json=as_json, until_begun=True)
        return
    errors, results = run(controller)
    with suppress(OSError):  # a reader that has gone does not change how the bench ended
        _table(bench, results, as_json)
    raise_all(errors)


def _table(bench: BenchDir, results: Sequence[RunResult], as_json: bool) -> None:
    """Print the table of a finished bench, or what the feature shows that has carried it out."""
    if kind := kind_of(bench.record().added):
        kind.show(bench, as_json)
        return
    from orchestrator.report import terminal
    from orchestrator.report.formats.json import render as json_document
    from orchestrator.report.text import stdout_console
    from orchestrator.results.bench import notes_of
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.summary import of_bench

    summary = of_bench(planned_runs(bench, results), notes_of(bench))
    if as_json:
        typer.echo(json_document(summary), nl=False)
    else:
        terminal.render(summary, stdout_console())


def run(controller: Controller) -> tuple[list[OrchError], list[RunResult]]:
    """Run a bench to its end with progress and signals, without its table; return its errors and
    results.
    """
    return controller.conduct(_show(controller.bench))


def _show(bench: BenchDir) -> Show:
    project = Project.here(os.environ)

    @contextmanager
    def show(interrupt: Interrupt, log: TextIO) -> Iterator[Observer]:
        with (
            end_job_after(project, bench.path.name),
            _signals(interrupt, bench),
            progress(log) as observe,
        ):
            yield observe

    return show


@contextmanager
def _signals(interrupt: Interrupt, bench: BenchDir) -> Iterator[None]:
    """First signal: stop everywhere, collect, mark. Second signal: leave immediately, after
    printing how to finish the job.
    """

    def act(number: int, _: object) -> None:
        if interrupt.signal:
            path = shlex.quote(str(bench.path))
            finish = f"orch cancel {path} && orch collect {path}"
            show = "\x1b[?25h" if os.isatty(2) else ""  # the live block hides the cursor
            _say(
                f"{show}\norch: left immediately; the nodes end the run by themselves. to finish: {finish}\n"
            )
            os._exit(128 + number)
        interrupt.signal = number
        _say(
            "\norch: interrupted: stopping on every node, then collecting; interrupt again to leave immediately\n"
        )

    with handle_signals(act):
        yield


def _say(text: str) -> None:
    """Write to standard error from a signal handler; the terminal may have just gone."""
    with suppress(OSError):
        os.write(2, text.encode())
