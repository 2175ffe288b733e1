"""The job that a bench asks an engine for: submitted, waited for, and ended, whatever ends the bench."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from orchestrator.cli.options import say
from orchestrator.cli.signals import handle_signals
from orchestrator.engines.listing import NAMES, open_engine, renew, write_hosts
from orchestrator.errors import ConfigError, Interrupted, OrchError, RunError
from orchestrator.inventory import fold
from orchestrator.plan.option_values import shortest
from orchestrator.record import Project
from orchestrator.record.submission import forget, submission, submissions, submit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.engines.protocol import Engine, JobState, Request
    from orchestrator.record.bench_record import BenchRecord
    from orchestrator.record.submission import Submission

_LOOK_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_END_S, _SILENT_S, _PATIENCE_S = 120.0, 30.0, 10.0
_RIVALRY_S = 20.0
"""Jobs that get their hosts one after the other, but soon, are no rivals."""
Answer = TypeVar("Answer")


def allocate_job(project: Project, engine: Engine, bench_id: str, request: Request) -> str:
    """Submit the job of a bench and wait until it has its hosts; return what ``--hosts`` calls them.

    What the job waits for is printed when it changes. Of two jobs that have a part of their hosts
    each, the younger one is ended, and submitted again when the older one has all. Raises
    Interrupted for a signal, RunError if the engine ends the job; it is over then.
    """
    engine.check(request)
    submit(project, bench_id, "", engine.name, request.options)
    until = time.monotonic() + request.wait_s
    try:
        with handle_signals(_interrupt):
            job = _submit(project, engine, bench_id, request)
            while rival := _wait(engine, request, job, until):
                where = f"{engine.name}: job {job}"
                typer.echo(f"{where} gives way to {rival}, which waits for hosts, too", err=True)
                _cancel(engine, request, job)
                while rival and time.monotonic() < until:
                    time.sleep(_LOOK_S[-1])
                    rival = _answer(engine.rival, request, job)
                job = _submit(project, engine, bench_id, request)
    except BaseException:
        give_up(project, bench_id)
        raise
    return engine.source(request, job)


def _submit(project: Project, engine: Engine, bench_id: str, request: Request) -> str:
    try:
        job = engine.submit(request, bench_id)
    except OrchError as error:
        if error.kind not in ("not_verified", "interrupted"):
            forget(project, bench_id)
        raise
    submit(project, bench_id, job, engine.name, request.options)
    typer.echo(f"{engine.name}: job {job} submitted: {request.words}", err=True)
    return job


def _wait(engine: Engine, request: Request, job: str, until: float) -> str:
    """Wait until a job has its hosts; return an older one that it has to give way to, else nothing."""
    shown, looks, where = "", 0, f"{engine.name}: job {job}"
    begin = time.monotonic()
    while True:
        state = _look_at(engine, request, job)
        if state.is_ready:
            return ""
        if time.monotonic() > until:
            waited = shortest(request.wait_s)
            message = f"expected all of its hosts within {waited}, it is {state.words}"
            hint = "wait=1h waits longer; it is ended, and holds no host"
            typer.echo(
                f"{where} has not all of its hosts within {waited}; it is being ended", err=True
            )
            raise RunError(message, kind="interrupted", where=where, hint=hint)
        line = f"{where} is {state.words}"
        if line != shown:
            typer.echo(line, err=True)
            shown = line
        if time.monotonic() - begin > _RIVALRY_S and (rival := _answer(engine.rival, request, job)):
            return rival
        time.sleep(_LOOK_S[min(looks, len(_LOOK_S) - 1)])
        looks += 1


def _look_at(engine: Engine, request: Request, job: str) -> JobState:
    """Return the state of a job. Raises RunError if it is over."""
    state = _answer(engine.look, request, job)
    where = f"{engine.name}: job {job}"
    if state is None:
        raise RunError("it is no longer known", kind="interrupted", where=where)
    if state.is_over:
        raise RunError(f"expected it to run, got {state.words}", kind="interrupted", where=where)
    return state


@contextmanager
def listing_hosts(
    project: Project, engine: Engine, bench_id: str, request: Request
) -> Iterator[None]:
    """Raise how the job of a bench has ended where its hosts cannot be listed because of that: it
    may end as soon as all of it has begun.
    """
    try:
        yield
    except ConfigError:
        if known := submission(project, bench_id):
            _look_at(engine, request, known.job)
        raise


def _answer(ask: Callable[[Request, str], Answer], request: Request, job: str) -> Answer:
    """Ask an engine about a job until it answers. Raises RunError if it does not for two minutes."""
    begin = time.monotonic()
    while True:
        try:
            return ask(request, job)
        except Interrupted:
            raise
        except RunError:  # its controller is busy, or starts anew
            if time.monotonic() - begin > _END_S:
                raise
            time.sleep(_LOOK_S[-1])


def _interrupt(number: int, _: object) -> NoReturn:
    raise Interrupted(
        number, "stopped before the job had its nodes; it is cancelled and nothing was started"
    )


@contextmanager
def end_job_after(project: Project, bench_id: str) -> Iterator[None]:
    """End the job that a bench has submitted, if any, when the bench is over."""
    known = submission(project, bench_id)
    if known:  # by this process, which may not be the one that submitted it
        submit(project, bench_id, known.job, known.engine, known.options)
    try:
        yield
    finally:
        if known:
            give_up(project, bench_id)


def give_up(project: Project, bench_id: str, *, of_anyone: bool = False) -> None:
    """Cancel the job of a bench, and prove its end; a failure is printed, and the record of the job
    kept.

    Only a job that this process attends, or with ``of_anyone`` any.
    """
    known = submission(project, bench_id)
    if known is None or not (of_anyone or known.process == os.getpid()):
        return
    try:
        _end(project, known)
    except OrchError as error:
        typer.echo(
            f"orch: {error}. the job of bench {bench_id} may still hold nodes: orch cancel {bench_id}",
            err=True,
        )


def _asked(known: Submission) -> tuple[Engine, Request]:
    engine = open_engine(known.engine)
    return engine, engine.recall(known.options)


def _end(project: Project, known: Submission) -> None:
    """Cancel a job of a bench, prove its end, and forget it. Raises OrchError if its engine does not
    answer.
    """
    engine, request = _asked(known)
    for job in [known.job] if known.job else engine.find(request, known.bench_id):
        _cancel(engine, request, job)
    forget(project, known.bench_id)


def _cancel(engine: Engine, request: Request, job: str) -> None:
    """Cancel a job and wait until nothing is left of it. Raises RunError after two minutes, or half
    a minute in which its engine does not answer.
    """
    where = f"{engine.name}: job {job}"
    begin = answered = time.monotonic()
    is_told = False
    while True:
        try:
            if answered == begin:  # not yet
                engine.cancel(request, job)
            left, answered = engine.find_rest(request, job), time.monotonic()
            if not left:
                break
        except Interrupted:
            raise
        except RunError:  # what ended the bench may have ended the engine's own service, for now
            if time.monotonic() - answered > _SILENT_S:
                raise
            time.sleep(1.0)
            continue
        if time.monotonic() - begin > _END_S:
            message = f"it is still {left} {_END_S:g} s after it was cancelled"
            raise RunError(message, kind="not_verified", where=where)
        if not is_told and time.monotonic() - begin > _PATIENCE_S:
            typer.echo(f"{where} is still {left}", err=True)
            is_told = True
        time.sleep(0.1)
    typer.echo(f"{where} is {engine.ending(request, job)}", err=True)


def regain(project: Project, record: BenchRecord, hosts: Sequence[str]) -> None:
    """Let a bench whose job is over go on in another one, which has its hosts.

    That is the job that this process runs in. A bench that has submitted its first job itself
    submits another one, unless this process runs in a job that has all the hosts. Does nothing for
    benches without a job.
    """
    if not record.job:
        renew(project, record.inventory, say=say)
        return
    bench_id = record.bench_id
    known = submission(project, bench_id)
    engine = open_engine(record.engine)
    request = engine.recall(record.job)
    last = engine.look(request, known.job) if known and known.job else None
    if last and last.is_ready and known:
        source = engine.source(request, known.job)
        write_hosts(project, source, bench_id, say=say)
        return
    if known:  # it may wait in the queue, if its controller was killed
        _end(project, known)
    source = engine.source_here(hosts)
    if not source:
        typer.echo(
            f"{engine.name}: the job of bench {bench_id} is over; another one is submitted for {fold(hosts)}",
            err=True,
        )
        source = allocate_job(project, engine, bench_id, request.on(hosts))
    with listing_hosts(project, engine, bench_id, request):
        write_hosts(project, source, bench_id, say=say)


def print_orphan_jobs(project: Project) -> None:
    """Print the jobs of benches whose controller is gone, and how to end them; forget those of
    which nothing is left, not even a bench.
    """
    for submitted in submissions(project):
        if submitted.is_attended or submitted.engine not in NAMES:
            continue
        try:
            engine, request = _asked(submitted)
            jobs = [submitted.job] if submitted.job else engine.find(request, submitted.bench_id)
            states = [(job, engine.look(request, job)) for job in jobs]
            living = [
                (job, state)
                for job, state in states
                if state and not (state.is_over and not engine.find_rest(request, job))
            ]
        except OrchError as error:
            typer.echo(
                f"{submitted.engine}: the job of bench {submitted.bench_id}: {error}", err=True
            )
            continue
        for job, state in living:
            bench_id = submitted.bench_id
            text = f"{engine.name}: job {job} of bench {bench_id} has no controller"
            typer.echo(f"{text}; to end it: orch cancel {bench_id}; it is {state.words}", err=True)
        if not living and not (project.runs / submitted.bench_id).exists():
            forget(project, submitted.bench_id)
