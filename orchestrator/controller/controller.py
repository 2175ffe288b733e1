"""One process that conducts a bench: it takes the bench, runs what that owes, and writes down how it ended.

Whoever starts it says how the bench is shown, as a `Show`; this module prints nothing and handles no signal. A bench is
conducted in this process (`Controller.conduct`) or in a child without a terminal (`Controller.detach`).
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Protocol, TextIO

from orchestrator.controller.campaign import Campaign, ports
from orchestrator.controller.earlier import earlier_times
from orchestrator.controller.events import Observer, PlanMade, ProgressEvent, RunOver
from orchestrator.controller.pace import Pace
from orchestrator.controller.peer import Interrupt
from orchestrator.controller.resume import remaining
from orchestrator.controller.search import Search
from orchestrator.controller.stage import Stage
from orchestrator.controller.stopping import plan_words
from orchestrator.errors import DataError, Faults, OrchError, RunError
from orchestrator.inventory import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.plan import Limits
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.record import BenchDir, Ownership, RunDir, take
from orchestrator.record.borrow import borrow
from orchestrator.record.journal import Event
from orchestrator.record.owed import reopen
from orchestrator.results import RunResult
from orchestrator.results.bench import read_bench
from orchestrator.results.tally import Tally

__all__ = ["PROGRESS_LOG", "Controller", "Scheduler", "Show"]

PROGRESS_LOG = "progress.log"
"""What was shown of a bench while it ran, in its folder."""
Show = Callable[[Interrupt, TextIO], AbstractContextManager[Observer]]
"""Returns what shows a bench for as long as its runs are carried out; it writes its lines into the given log as well, and
sets the interrupt where somebody wants the bench to stop."""


class Scheduler(Protocol):
    """Says which run comes next: `Pace` for a bench, `Search` for a tune."""

    tally: Tally

    def needs(self, owed: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return runs of all kinds that may come."""

    def runs(self, owed: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield run after run; each is over when the next one is asked for."""

    def counted(self, errors: Sequence[OrchError]) -> list[OrchError]:
        """Return the errors that are those of the whole, of those of its runs."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The controller of one bench, which holds it from `begin` or `go_on` to the end of `conduct`.

    ``owes`` returns the runs that are to be started, once it has brought those to their end that were under way.
    """

    bench: BenchDir
    plan: Bench
    cluster: Cluster
    limits: Limits
    secrets: Sequence[str]
    ownership: Ownership
    owes: Callable[[Campaign], Sequence[PlannedRun]]

    @classmethod
    def begin(
        cls,
        bench: BenchDir,
        plan: Bench,
        cluster: Cluster,
        limits: Limits,
        *,
        secrets: Sequence[str],
        borrowed: Sequence[RunDir],
        argv: Sequence[str],
    ) -> Controller:
        """Take a new bench for this process. Raises RunError run_in_use where another one has it."""

        def owes(_: Campaign) -> Sequence[PlannedRun]:
            for run in borrowed:
                borrow(bench, run)
            return plan.planned()

        ownership = take(bench)
        bench.event(Event.BEGUN, argv=argv)
        return cls(bench, plan, cluster, limits, secrets, ownership, owes)

    @classmethod
    def go_on(
        cls,
        bench: BenchDir,
        runs: Path,
        connect: Callable[[Sequence[Host]], Cluster],
        *,
        retry_failed: bool,
        argv: Sequence[str],
    ) -> Controller:
        """Take a bench whose controller is gone. Raises RunError run_in_use where it is not, else as `reopen` does.

        ``runs`` is the folder of the benches that it may borrow from; ``connect`` makes the cluster of its hosts.
        """

        def owes(campaign: Campaign) -> Sequence[PlannedRun]:
            for run_id, origin in bench.record().borrowed.items():
                borrow(bench, BenchDir(runs / origin).run(run_id))
            return remaining(campaign, opened.runs, retry_failed=retry_failed)

        ownership = take(bench)  # before anything is read that its controller may be writing
        try:
            opened = reopen(bench)
        except BaseException:
            ownership.release()
            raise
        bench.event(Event.BEGUN, argv=argv)
        return cls(bench, opened.plan, connect(opened.hosts), opened.limits, opened.inventory.secrets, ownership, owes)

    def conduct(self, show: Show) -> tuple[list[OrchError], list[RunResult]]:
        """Run what the bench owes, write down how it ended, and let go of it.

        Returns its errors, the one that decides the exit status first, and the results of all its runs.
        """
        with open(self.bench.path / PROGRESS_LOG, "a", encoding="utf-8", opener=_private) as log:
            ended = self._conducted(show, log)
        self.ownership.release()
        return ended

    def detach(self, show: Show) -> None:
        """Leave the bench to a child without a terminal. This process has let go of it when this returns."""
        if os.fork() == 0:
            self._detached(show)
        self.ownership.release()

    def _conducted(self, show: Show, log: TextIO) -> tuple[list[OrchError], list[RunResult]]:
        interrupt = Interrupt()
        with show(interrupt, log) as observe:
            scheduler = self._scheduler(observe)

            def tell(event: ProgressEvent) -> None:
                if isinstance(event, RunOver):
                    event = replace(event, result=scheduler.tally.result(event.run.run_id))
                observe(event)

            errors: list[OrchError]
            try:
                with self.cluster as cluster:
                    stage = Stage(cluster, self.limits, interrupt, self.bench.event, tell)
                    next_port = ports(random.SystemRandom().choice)
                    campaign = Campaign(self.bench, cluster.hosts, stage, next_port, self.secrets)
                    owed = self.owes(campaign)
                    errors = campaign.execute(scheduler.runs(owed), scheduler.needs(owed))
            except OrchError as error:
                errors = list(error.errors) if isinstance(error, Faults) else [error]
        results = read_bench(self.bench, known=scheduler.tally.read)
        errors = scheduler.counted([*errors, *_unproven(results, {error.run_id for error in errors})])
        errors += _unfit(results)
        code = errors[0].exit_code if errors else 0
        self.bench.event(Event.OVER, code=code, errors=[{"run_id": error.run_id, **error.as_dict()} for error in errors])
        return errors, results

    def _scheduler(self, observe: Observer) -> Scheduler:
        if self.bench.record().tune:
            return Search(self.bench, self.plan, observe)
        expected = earlier_times(self.bench.path.parent, self.plan)
        if words := plan_words(self.plan, expected):
            observe(PlanMade(words))
        return Pace(self.bench, self.plan, expected, observe)

    def _detached(self, show: Show) -> NoReturn:
        """In the child: conduct the bench without a terminal. Its end is an event; a bug of ours shows in the progress log."""
        try:
            os.setsid()
            self.ownership.sign()
            null = os.open(os.devnull, os.O_RDWR)
            log = _private(str(self.bench.path / PROGRESS_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for target, source in ((0, null), (1, null), (2, log)):
                os.dup2(source, target)
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
                errors, _ = self._conducted(show, nowhere)
            os._exit(errors[0].exit_code if errors else 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _unproven(results: Sequence[RunResult], known: set[str]) -> list[OrchError]:
    """Return what is wrong with the evidence of runs that seemed to go well: a log without its last step, another digest."""
    return [result.error for result in results if isinstance(result.error, DataError) and result.run_id not in known]


def _unfit(results: Sequence[RunResult]) -> list[OrchError]:
    """Return the nodes and links that were found unfit, where that is what was measured."""
    from orchestrator.results.summary import summarize

    if all(result.measure.has_speed for result in results):
        return []
    return [RunError(text, kind="node_unfit") for sheet in summarize(results).sheets for text in sheet.culprits]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
