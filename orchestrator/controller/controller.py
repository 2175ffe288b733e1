"""The process that runs a bench: it takes ownership of the bench, executes its outstanding runs,
and records how it ended.

The caller determines how the bench is shown, with a `Show`; this module prints nothing and handles
no signals. A bench runs in this process (`Controller.conduct`) or in a child without a terminal
(`Controller.detach`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO

from orchestrator.controller.active_hosts import ActiveHosts
from orchestrator.controller.campaign import Campaign, ports
from orchestrator.controller.earlier_benches import earlier_times
from orchestrator.controller.events import Decided, Observer, PlanMade, ProgressEvent, RunOver
from orchestrator.controller.peer import Interrupt
from orchestrator.controller.resume import remaining
from orchestrator.controller.scheduler import BlockScheduler
from orchestrator.controller.stage import Stage
from orchestrator.controller.stop_rule import plan_words
from orchestrator.errors import (
    DataError,
    Interrupted,
    OrchError,
    RunError,
    TransportError,
    format_exception,
)
from orchestrator.files import remove_parts
from orchestrator.inventory import Host, Redaction
from orchestrator.nodes.cluster import Cluster
from orchestrator.plan import Limits, RunSpec
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.plan.expectations import Expectation
from orchestrator.record import BenchDir, Ownership, RunDir, take
from orchestrator.record.bench_record import kind_of
from orchestrator.record.borrow import borrow
from orchestrator.record.grammar_override import reread
from orchestrator.record.journal import Event, last_controller, list_runs
from orchestrator.record.pending_work import reopen
from orchestrator.record.rundir import PROGRESS_LOG
from orchestrator.results import RunResult
from orchestrator.results.bench import read_bench
from orchestrator.results.progress_so_far import Tally

_NOTHING_LEFT = (
    "all runs of this bench are over; to repeat those that failed: orch resume --retry-failed; "
    "for new numbers: a new orch bench"
)
Show = Callable[[Interrupt, TextIO], AbstractContextManager[Observer]]
"""Returns the context in which a bench is shown while its runs are executed. Its observer also
writes its lines to the given log, and the context sets the interrupt if the bench is to stop."""


class Scheduler(Protocol):
    """Decides which run comes next: `BlockScheduler` if all cells are planned, a feature if it adds
    further ones.
    """

    tally: Tally

    def needs(self, owed: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return a run of every kind that may follow."""

    def runs(self, owed: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield run after run; each is over when the next one is requested."""

    def again(self, run: PlannedRun, concerned: Callable[[RunSpec], bool]) -> int | None:
        """Plan new attempts of the finished runs of the specs concerned, and of ``run`` if it is
        over and of these.

        Returns their number, None if that cannot be.
        """

    def select_errors(self, errors: Sequence[OrchError]) -> list[OrchError]:
        """Select the errors of the bench as a whole from the errors of its runs."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The controller of one bench, which owns it from `begin` or `go_on` to the end of `conduct`.

    ``owes`` brings runs that are under way to their end, and returns the runs still to be started.
    ``keep_going``: also those that would fail as an earlier one did. ``notes`` say what has changed
    since the bench was planned. ``spares``, which the cluster has too, may take the places of
    hosts; ``seen`` are facts by framework and host that preflight need not ask for again.
    """

    bench: BenchDir
    plan: Bench
    cluster: Cluster
    limits: Limits
    ownership: Ownership
    owes: Callable[[Campaign], Sequence[PlannedRun]]
    keep_going: bool = False
    notes: tuple[str, ...] = ()
    spares: Sequence[Host] = ()
    seen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        bench: BenchDir,
        plan: Bench,
        cluster: Cluster,
        limits: Limits,
        *,
        borrowed: Sequence[RunDir],
        argv: Sequence[str],
        keep_going: bool = False,
        spares: Sequence[Host] = (),
        seen: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Controller:
        """Take ownership of a new bench. Raises RunError run_in_use if another process owns it."""

        def owes(_: Campaign) -> Sequence[PlannedRun]:
            for run in borrowed:
                borrow(bench, run)
            return plan.list_runs()

        ownership = take(bench)
        bench.event(Event.BEGUN, argv=cluster.redaction.value(list(argv)))
        return cls(
            bench,
            plan,
            cluster,
            limits,
            ownership,
            owes,
            keep_going,
            spares=spares,
            seen=seen or {},
        )

    @classmethod
    def go_on(
        cls,
        bench: BenchDir,
        runs: Path,
        connect: Callable[[Sequence[Host], Redaction], Cluster],
        *,
        retry_failed: bool,
        argv: Sequence[str],
        keep_going: bool = False,
    ) -> Controller:
        """Take ownership of a bench whose controller is gone. Raises RunError run_in_use if it is
        not, else like `reopen`.

        ``runs`` is the folder of the benches from which it may borrow; ``connect`` creates the
        cluster of its hosts.
        """

        def owes(campaign: Campaign) -> Sequence[PlannedRun]:
            for run_id, origin in bench.record().borrowed.items():
                borrow(bench, BenchDir(runs / origin).run(run_id))
            return remaining(campaign, opened.runs, retry_failed=retry_failed)

        ownership = take(bench)  # before reading anything that its controller may still write
        try:
            remove_parts(bench.path)
            opened = reopen(bench)
            notes = reread(bench, opened.plan.folders)
        except BaseException:
            ownership.release()
            raise
        cluster = connect([*opened.hosts, *opened.spares], opened.inventory.redaction())
        bench.event(Event.BEGUN, argv=cluster.redaction.value(list(argv)))
        return cls(
            bench,
            opened.plan,
            cluster,
            opened.limits,
            ownership,
            owes,
            keep_going,
            tuple(notes),
            spares=opened.spares,
        )

    def conduct(self, show: Show) -> tuple[list[OrchError], list[RunResult]]:
        """Execute the outstanding runs of the bench, record how it ended, and release it.

        Return its errors, the one that decides the exit status first, and the results of all its
        runs.
        """
        with open(self.bench.path / PROGRESS_LOG, "a", encoding="utf-8", opener=_private) as log:
            ended = self._conduct(show, log)
        self.ownership.release()
        return ended

    def detach(self, show: Show) -> None:
        """Hand the bench to a child process without a terminal. This process has released it on
        return.
        """
        if os.fork() == 0:
            self._run_detached(show)
        self.ownership.release()

    def _conduct(self, show: Show, log: TextIO) -> tuple[list[OrchError], list[RunResult]]:
        interrupt = Interrupt()
        with show(interrupt, log) as observe:
            if self.notes:
                observe(Decided(self.notes))
            scheduler = self._scheduler(observe)

            def show_event(event: ProgressEvent) -> None:
                if isinstance(event, RunOver):
                    event = replace(event, result=scheduler.tally.result(event.run.run_id))
                observe(event)

            errors: list[OrchError]
            try:
                with self.cluster as cluster:
                    stage = Stage(cluster, self.limits, interrupt, self.bench.event, show_event)
                    next_port = ports(random.SystemRandom().choice)
                    facts = {}
                    for name, of in self.seen.items():
                        facts[name] = {host: dict(of_host) for host, of_host in of.items()}
                    active = ActiveHosts(
                        self.bench, self._cell_hosts, stage, facts, self.spares, scheduler.again
                    )
                    campaign = Campaign(self.bench, active, stage, next_port)
                    owed = self.owes(campaign)
                    extra = self._extra_runs(scheduler)
                    needed = [*scheduler.needs(owed), *(run for run, _ in self.plan.extra_runs())]
                    errors = campaign.execute(chain(scheduler.runs(owed), extra), needed)
                    if not (owed or interrupt.signal or _has_begun_runs(self.bench)):
                        observe(Decided((_NOTHING_LEFT,)))
            except OrchError as error:
                errors = list(error.errors)
                if interrupt.signal:  # log-ins that nobody answers any more fail because of it
                    message = "interrupted by a signal to the controller"
                    others = (other for other in errors if not isinstance(other, TransportError))
                    errors = [Interrupted(interrupt.signal, message), *others]
        results = read_bench(self.bench, known=scheduler.tally.read)
        errors = scheduler.select_errors(
            [*errors, *_evidence_errors(results, {error.run_id for error in errors})]
        )
        errors += [*_unfit(results), *_not_met(results, self.bench.record().expect)]
        code = errors[0].exit_code if errors else 0
        self.bench.event(
            Event.OVER,
            code=code,
            errors=[{"run_id": error.run_id, **error.as_dict()} for error in errors],
        )
        return errors, results

    @property
    def _cell_hosts(self) -> list[Host]:
        spares = {host.name for host in self.spares}
        return [host for host in self.cluster.hosts if host.name not in spares]

    def _extra_runs(self, scheduler: Scheduler) -> Iterator[PlannedRun]:
        """Yield the extra runs of cells with a number; a run that began before is not repeated."""
        begun = list_runs(self.bench.events())
        for run, cell in self.plan.extra_runs():
            measured = (
                result
                for result in scheduler.tally.results()
                if result.spec and result.spec.is_run_of(cell)
            )
            if run.run_id not in begun and any(result.is_good for result in measured):
                yield run

    def _scheduler(self, observe: Observer) -> Scheduler:
        if kind := kind_of(self.bench.record().added):
            scheduler: Scheduler = kind.scheduler(self.bench, self.plan, observe, self._cell_hosts)
            return scheduler
        expected = earlier_times(self.bench.path.parent, self.plan)
        if words := plan_words(self.plan, expected):
            observe(PlanMade(words))
        return BlockScheduler(self.bench, self.plan, expected, observe, keep_going=self.keep_going)

    def _run_detached(self, show: Show) -> NoReturn:
        """In the child: run the bench without a terminal. Its end is an event; a bug in orch shows
        in the progress log.
        """
        try:
            os.setsid()
            self.ownership.sign()
            null = os.open(os.devnull, os.O_RDWR)
            log = _private(
                str(self.bench.path / PROGRESS_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND
            )
            for target, source in ((0, null), (1, null), (2, log)):
                os.dup2(source, target)
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
                errors, _ = self._conduct(show, nowhere)
            os._exit(errors[0].exit_code if errors else 0)
        except BaseException as error:
            os.write(2, format_exception(error).encode("utf-8", "replace"))
        finally:
            os._exit(1)


def _evidence_errors(results: Sequence[RunResult], reported: set[str]) -> list[OrchError]:
    """Return the evidence errors of runs that seemed successful: a log without its last step, a
    wrong digest.
    """
    return [
        result.error
        for result in results
        if isinstance(result.error, DataError) and result.run_id not in reported
    ]


def _unfit(results: Sequence[RunResult]) -> list[OrchError]:
    """Return an error for each node and link that a bench of nodes or links has found unfit."""
    from orchestrator.results.summary import summarize

    if not any(result.measure.is_diagnosis for result in results):
        return []
    return [
        RunError(text, kind="node_unfit")
        for sheet in summarize(results).sheets
        for text in sheet.culprits
    ]


def _not_met(results: Sequence[RunResult], expect: Sequence[Expectation]) -> list[OrchError]:
    """Return an error for each expectation that the bench has not met, or not certainly."""
    from orchestrator.results.expectations import errors_of, judge_expectations
    from orchestrator.results.summary import summarize

    if not expect:
        return []
    return errors_of(judge_expectations(expect, summarize(results).rows, results))


def _has_begun_runs(bench: BenchDir) -> bool:
    """Return True if the last controller of a bench has planned or taken over a run."""
    begun = (Event.PLANNED, Event.TAKEN_OVER)
    return any(entry.event in begun for entry in last_controller(bench.events()))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
