"""How a bench looks from the terminal: its signals, its progress, its end."""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from orchestrator.cli.answer import table
from orchestrator.cli.options import Selection
from orchestrator.cli.progress import Observer, progress
from orchestrator.controller.campaign import Campaign, ports
from orchestrator.controller.earlier import expected
from orchestrator.controller.pace import Pace
from orchestrator.controller.peer import Interrupt
from orchestrator.controller.resume import remaining
from orchestrator.controller.search import Search
from orchestrator.controller.stopping import schedule_words
from orchestrator.errors import DataError, Faults, OrchError, RunError, recorded_error
from orchestrator.inventory.hosts import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.headroom import disk_room
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.plan.limits import Limits
from orchestrator.plan.placement import taken
from orchestrator.plan.spec import RunSpec
from orchestrator.record.bench_parts import TuneRecord
from orchestrator.record.benchfile import bench_record
from orchestrator.record.borrow import borrow
from orchestrator.record.journal import Event, last_controller
from orchestrator.record.owed import reopen
from orchestrator.record.ownership import Ownership, holder, take
from orchestrator.record.project import Project
from orchestrator.record.rundir import BenchDir
from orchestrator.report.text import visible
from orchestrator.results.bench import read_bench
from orchestrator.transport.ssh import Trust

if TYPE_CHECKING:
    from orchestrator.record.rundir import RunDir
    from orchestrator.results.run import RunResult

__all__ = ["conduct", "earlier_times", "follow", "go_on", "plan_words"]

_PROGRESS = "progress.log"
_LOOK_S = 0.2


def conduct(
    plan: Bench,
    borrowed: Sequence[RunDir],
    selection: Selection,
    limits: Limits,
    templates: Path | None,
    *,
    accept_new: bool,
    as_json: bool,
    detach: bool,
    tune: TuneRecord | None = None,
) -> None:
    """Run a planned bench and print its table, or what came of a tune. Raises what the first failed run failed of."""
    hosts = taken(plan.cells, selection.hosts)
    origins = {run.run_id: run.path.parent.name for run in borrowed}
    secrets = selection.inventory.secrets
    disk_room(selection.project.runs, len(plan.cells) * plan.schedule.most, len(hosts))
    record = bench_record(plan, origins, hosts, selection.source, secrets, limits, templates, sys.argv, tune)
    bench = BenchDir.create(selection.project.runs, record.as_dict())
    conductor = _Conductor(bench, plan, hosts, selection.trust(accept_new), secrets, limits)

    def owes(_: Campaign) -> Sequence[PlannedRun]:
        for run in borrowed:
            borrow(bench, run)
        return plan.planned()

    _begin(conductor, owes, as_json=as_json, detach=detach)


def go_on(bench: BenchDir, *, accept_new: bool, as_json: bool, detach: bool, retry_failed: bool) -> None:
    """Bring a bench to its end whose controller is gone, and print its table; errors as `conduct` would have raised them."""
    project = Project.here(os.environ)

    def owes(campaign: Campaign) -> Sequence[PlannedRun]:
        for run_id, origin in bench.record().borrowed.items():
            borrow(bench, BenchDir(project.runs / origin).run(run_id))
        return remaining(campaign, opened.runs, retry_failed=retry_failed)

    taken = take(bench)  # before anything is read that its controller may be writing
    opened = reopen(bench)
    trust = Trust(store=project.known_hosts, accept_new=accept_new)
    conductor = _Conductor(bench, opened.plan, opened.hosts, trust, opened.inventory.secrets, opened.limits, taken)
    _begin(conductor, owes, as_json=as_json, detach=detach)


def follow(bench: BenchDir, *, as_json: bool, until_begun: bool = False) -> None:
    """Show a bench that another process conducts until it is over, and end as that would; Ctrl-C leaves it running.

    ``until_begun``: only until its first run is planned. Raises RunError where its controller died.
    """
    shown = 0
    while True:
        conducted = holder(bench) is not None  # asked before reading, so that the last words are not missed
        with suppress(FileNotFoundError):
            data = (bench.path / _PROGRESS).read_bytes()[shown:]
            shown += len(data)
            typer.echo(visible(data.decode("utf-8", "replace")), nl=False, err=True)
        events = last_controller(bench.events())
        if events and events[-1].event == Event.OVER and not conducted:
            break
        if not conducted:
            message = "its controller died before its end"
            raise RunError(message, kind="interrupted", where=str(bench.path), hint="orch resume goes on with it")
        if until_begun and any(event.event in (Event.PLANNED, Event.TAKEN_OVER) for event in events):
            typer.echo(f"orch: going on without you; to see it: orch attach {shlex.quote(bench.path.name)}", err=True)
            return
        time.sleep(_LOOK_S)
    table(bench, read_bench(bench), as_json)
    if errors := events[-1].errors:
        raised = Faults([recorded_error(error, str(error.get("run_id", ""))) for error in errors])
        raised.exit_code = events[-1].code
        raise raised


@dataclass(frozen=True, slots=True)
class _Conductor:
    """What a controller needs to conduct a bench. ``taken`` is the bench, where it has been taken already."""

    bench: BenchDir
    plan: Bench
    hosts: Sequence[Host]
    trust: Trust
    secrets: Sequence[str]
    limits: Limits
    taken: Ownership | None = None

    def conduct(self, owes: Callable[[Campaign], Sequence[PlannedRun]], log: TextIO) -> tuple[list[OrchError], list[RunResult]]:
        """Run what the bench owes; write down and return the errors, and the results of all its runs."""
        interrupt = Interrupt()
        with _signals(interrupt, self.bench), progress(log) as observe:
            pace = self._pace(observe)

            def tell(event: str, fields: Mapping[str, Any]) -> None:
                more = {"result": pace.tally.result(fields["run"].run_id)} if event == "run_over" else {}
                observe(event, {**fields, **more})

            errors: list[OrchError]
            try:
                with Cluster(self.hosts, self.trust) as cluster:
                    choose = ports(random.SystemRandom().choice)
                    campaign = Campaign(self.bench, self.hosts, cluster, self.limits, interrupt, tell, choose, self.secrets)
                    owed = owes(campaign)
                    errors = campaign.execute(pace.runs(owed), pace.needs(owed))
            except OrchError as error:
                errors = list(error.errors) if isinstance(error, Faults) else [error]
        results = read_bench(self.bench, known=pace.tally.read)
        errors = pace.counted([*errors, *_unproven(results, {error.run_id for error in errors})])
        errors += _unfit(results)
        code = errors[0].exit_code if errors else 0
        self.bench.event(Event.OVER, code=code, errors=[{"run_id": error.run_id, **error.as_dict()} for error in errors])
        return errors, results

    def _pace(self, observe: Observer) -> Pace | Search:
        """Return what says which run comes next: of a bench, or of a tune."""
        if self.bench.record().tune:
            return Search(self.bench, self.plan, observe)
        known = earlier_times(self.bench.path.parent, self.plan)
        if words := plan_words(self.plan, known):
            observe("plan", {"words": words})
        return Pace(self.bench, self.plan, known, observe)


def _unproven(results: Sequence[RunResult], known: set[str]) -> list[OrchError]:
    """Return what is wrong with the evidence of runs that seemed to go well: a log without its last step, another digest."""
    return [result.error for result in results if isinstance(result.error, DataError) and result.run_id not in known]


def _unfit(results: Sequence[RunResult]) -> list[OrchError]:
    """Return the nodes and links that were found unfit, where that is what was measured."""
    from orchestrator.results.summary import summarize

    if all(result.measure.has_speed for result in results):
        return []
    return [RunError(text, kind="node_unfit") for sheet in summarize(results).sheets for text in sheet.culprits]


def _begin(conductor: _Conductor, owes: Callable[[Campaign], Sequence[PlannedRun]], *, as_json: bool, detach: bool) -> None:
    bench = conductor.bench
    taken = conductor.taken or take(bench)
    bench.event(Event.BEGUN, argv=sys.argv)
    typer.echo(f"bench: {bench.path}", err=True)
    if detach:
        if os.fork() == 0:
            _detached(conductor, owes, taken)
        taken.release()
        follow(bench, as_json=as_json, until_begun=True)
        return
    with open(bench.path / _PROGRESS, "a", encoding="utf-8", opener=_private) as log:
        errors, results = conductor.conduct(owes, log)
    taken.release()
    with suppress(OSError):  # nobody reads any more, which changes nothing about how the bench ended
        table(bench, results, as_json)
    if errors:
        raise Faults(errors) if len(errors) > 1 else errors[0]


def _detached(conductor: _Conductor, owes: Callable[[Campaign], Sequence[PlannedRun]], taken: Ownership) -> NoReturn:
    """In the child: conduct the bench without a terminal. Its end is an event; what nobody foresaw is in the progress log."""
    try:
        os.setsid()
        taken.sign()
        null = os.open(os.devnull, os.O_RDWR)
        log = _private(str(conductor.bench.path / _PROGRESS), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target, source in ((0, null), (1, null), (2, log)):
            os.dup2(source, target)
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            errors, _ = conductor.conduct(owes, nowhere)
        os._exit(errors[0].exit_code if errors else 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def _signals(interrupt: Interrupt, bench: BenchDir) -> Iterator[None]:
    """Once: stop everywhere, collect, mark. Twice: leave at once and print what finishes the job."""

    def act(number: int, _: object) -> None:
        if interrupt.signal:
            path = shlex.quote(str(bench.path))
            finish = f"orch cancel {path} && orch collect {path}"
            show = "\x1b[?25h" if os.isatty(2) else ""  # the live block had hidden the cursor
            _say(f"{show}\norch: left at once; the nodes end the run by themselves. To finish: {finish}\n")
            os._exit(128 + number)
        interrupt.signal = number
        _say("\norch: stopping on every node, then collecting; once more to leave at once\n")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Write to standard error from a signal handler; the terminal may be what has just gone."""
    with suppress(OSError):
        os.write(2, text.encode())


def earlier_times(runs: Path, plan: Bench) -> list[tuple[RunSpec, float]]:
    """Return what runs of the plan's cells took in earlier benches, where somebody asks: cells and seconds."""
    return expected(runs, plan.cells) if plan.schedule.budget_s is not None else []


def plan_words(plan: Bench, known: Sequence[tuple[RunSpec, float]]) -> str:
    """Return how a bench will go on, in words; nothing where all its runs stand in the plan in their usual order."""
    schedule = plan.schedule
    if not schedule.adapts and schedule.order == "interleaved":
        return ""
    return schedule_words(schedule, len(plan.cells), sum(took for _, took in known) if len(known) == len(plan.cells) else None)
