"""The job of ``orch bench --slurm``: submit it, wait for it, and end it, whatever ends the bench."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from orchestrator import slurm
from orchestrator.api.allocation import write_allocation
from orchestrator.cli.options import say
from orchestrator.cli.signals import handle_signals
from orchestrator.errors import ConfigError, Interrupted, OrchError, RunError
from orchestrator.inventory import fold
from orchestrator.inventory.allocation import SOURCES, names_of
from orchestrator.plan.job import JobWanted, job_name
from orchestrator.record import Project
from orchestrator.record.submission import forget, submission, submissions, submit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.record.bench_record import BenchRecord
    from orchestrator.record.submission import Submission

_LOOK_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_END_S = 120.0
_LATE_S = 2.0
# The request was sent, and no answer came.
_UNSURE = re.compile(
    r"timed out|(?:receive|shutdown) failure|Zero Bytes|no answer within|Unexpected message"
)
# Reasons of squeue that no wait for other jobs ends. Slurm lets such a job wait, because the
# partition may be changed.
_CANNOT_START = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")
_WAITS = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
    "SUSPENDED",
)


def allocate_job(project: Project, bench_id: str, job: JobWanted) -> str:
    """Submit the job of a bench and wait until it has its nodes; return its number.

    What the job waits for is printed when it changes. Raises Interrupted for a signal, RunError if
    Slurm ends the job; it is over then.
    """
    for name in ("sbatch", "squeue", "scontrol", "scancel", "srun"):
        slurm.program(name)
    submit(project, bench_id, "", job.options)
    try:
        with handle_signals(_interrupt):
            variables = {
                name: value for name, value in os.environ.items() if not name.startswith("SLURM_")
            }
            variables |= slurm.submitter(os.environ)
            answer = _submit(project, job, bench_id, variables)
            number = answer.strip().partition(";")[0]
            submit(project, bench_id, number, job.options)
            typer.echo(f"slurm: job {number} submitted: {shlex.join(job.options)}", err=True)
            _wait(number)
    except BaseException:
        give_up(project, bench_id)
        raise
    return number


def _submit(project: Project, job: JobWanted, bench_id: str, variables: Mapping[str, str]) -> str:
    """Submit a job and return what sbatch prints.

    Raises ConfigError if Slurm refuses it and RunError if Slurm cannot be reached. The record of
    the job stays only where it may have been accepted although sbatch failed.
    """
    try:
        return slurm.call(job.argv(bench_id), environment=variables, text=job.script)
    except RunError as error:
        if _UNSURE.search(error.message):
            raise
        forget(project, bench_id)
        if "Unable to contact" in error.message:
            hint = "no job was submitted; scontrol ping says whether slurmctld answers"
            raise RunError(error.message, kind=error.kind, where=error.where, hint=hint) from error
        message = f"expected a job that Slurm accepts: {error.message}"
        raise ConfigError(
            message, where="--slurm", hint=f"the options of sbatch were {shlex.join(job.options)}"
        ) from error


def _wait(number: str) -> None:
    shown, looks, answered = "", 0, time.monotonic()
    while True:
        try:
            job, answered = slurm.job(number), time.monotonic()
        except RunError:  # slurmctld is busy, or starts anew
            if time.monotonic() - answered > _END_S:
                raise
            time.sleep(_LOOK_S[-1])
            continue
        if job is None:
            raise RunError(
                "Slurm no longer knows it", kind="interrupted", where=f"Slurm's job {number}"
            )
        if job.state == "RUNNING":
            return
        if job.state not in _WAITS:
            reason = f" ({job.reason})" if job.reason else ""
            message = f"expected state RUNNING, got {job.state}{reason}"
            raise RunError(message, kind="interrupted", where=f"Slurm's job {number}")
        expected = f", expected start {job.start}" if job.start else ""
        if job.reason in _CANNOT_START:
            expected += (
                "; with these options it cannot start on the partition as it is: Ctrl-C "
                "cancels it, sinfo shows the partition"
            )
        line = f"slurm: job {number} is {job.state}{f' ({job.reason})' if job.reason else ''}{expected}"
        if line != shown:
            typer.echo(line, err=True)
            shown = line
        time.sleep(_LOOK_S[min(looks, len(_LOOK_S) - 1)])
        looks += 1


def _interrupt(number: int, _: object) -> NoReturn:
    raise Interrupted(
        number, "stopped before the job had its nodes; it is cancelled and nothing was started"
    )


@contextmanager
def end_job_after(project: Project, bench_id: str) -> Iterator[None]:
    """End the job that a bench has submitted, if any, when the bench is over."""
    known = submission(project, bench_id)
    if known:
        submit(
            project, bench_id, known.job, known.options
        )  # by this process, which may not be the one that submitted it
    try:
        yield
    finally:
        if known:
            give_up(project, bench_id)


def give_up(project: Project, bench_id: str, *, of_anyone: bool = False) -> None:
    """Cancel the job of a bench, and prove that it is out of the queue; a failure is printed, and
    the record of the job kept.

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


def _end(project: Project, known: Submission) -> None:
    """Cancel a job of a bench, prove that it is out of the queue, and forget it. Raises OrchError
    if Slurm does not answer.
    """
    for number in [known.job] if known.job else _by_name(known.bench_id):
        _cancel(number)
    forget(project, known.bench_id)


def _by_name(bench_id: str) -> list[str]:
    """Return the numbers of the jobs with the name of a bench; one whose submission was interrupted
    may be listed later.
    """
    argv = ["squeue", "--me", "--noheader", f"--name={job_name(bench_id)}", "--format=%i"]
    deadline = time.monotonic() + _LATE_S
    while not (numbers := slurm.call(argv).split()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return numbers


def _cancel(number: str) -> None:
    """Cancel a job and wait until Slurm lists it no more. Raises RunError if it is listed for two
    minutes.
    """
    begin = time.monotonic()
    job = slurm.job(number)
    if job and not job.has_ended and job.state != "COMPLETING":
        slurm.call(["scancel", number])
    while listed := _find_state(number):
        if time.monotonic() - begin > _END_S:
            raise RunError(
                f"it is still {listed} {_END_S:g} s after scancel",
                kind="not_verified",
                where=f"Slurm's job {number}",
            )
        time.sleep(0.1)
    job = slurm.job(number)
    typer.echo(
        f"slurm: job {number} is {job.state if job else 'no longer known'} and out of the queue",
        err=True,
    )


def _find_state(number: str) -> str:
    """Return the state of a job in the queue; empty if it is not there."""
    try:
        return slurm.call(["squeue", "--noheader", f"--jobs={number}", "--format=%T"]).strip()
    except RunError as error:
        if "Invalid job id" in error.message:
            return ""
        raise


def regain(project: Project, record: BenchRecord, hosts: Sequence[str]) -> None:
    """Let a bench whose job is over go on in another one, which has its hosts.

    That is the job that this process runs in. A bench that has submitted its first job itself
    submits another one, unless this process runs in a job that has all the hosts. Does nothing for
    benches without a job.
    """
    if not record.job:
        _move(project, record.inventory)
        return
    bench_id = record.bench_id
    known = submission(project, bench_id)
    last = slurm.job(known.job) if known and known.job else None
    if last and last.state == "RUNNING":
        return
    if known:  # it may wait in the queue, if its controller was killed
        _end(project, known)
    current = slurm.here(os.environ)
    around = slurm.job(current) if current else None
    if (
        around
        and around.state == "RUNNING"
        and not around.components
        and set(hosts) <= set(names_of(around))
    ):
        write_allocation(project, f"srun:{current}", bench_id, say=say)
        return
    typer.echo(
        f"slurm: the job of bench {bench_id} is over; another one is submitted for {fold(hosts)}",
        err=True,
    )
    number = allocate_job(project, bench_id, JobWanted(record.job).on(fold(hosts), len(hosts)))
    write_allocation(project, f"srun:{number}", bench_id, say=say)


def _move(project: Project, inventory: str) -> None:
    """Point the inventory of a job that is over to the job that this process runs in. Its hosts are
    compared with the plan.
    """
    path = Path(inventory)
    word, _, number = path.stem.partition("-")
    current = slurm.here(os.environ)
    if path.parent != project.root / ".orch" or word not in SOURCES or current in ("", number):
        return
    job = slurm.job(slurm.job_id(number, str(path)))
    if job is None or job.state != "RUNNING":
        write_allocation(project, f"{word}:{current}", number, say=say)


def print_orphan_jobs(project: Project) -> None:
    """Print the jobs of benches whose controller is gone, and how to end them; forget those that
    are over and left no bench.
    """
    for submitted in submissions(project):
        if submitted.is_attended:
            continue
        try:
            numbers = [submitted.job] if submitted.job else _by_name(submitted.bench_id)
            jobs = [slurm.job(number) for number in numbers]
        except OrchError as error:
            typer.echo(f"slurm: the job of bench {submitted.bench_id}: {error}", err=True)
            continue
        living = [job for job in jobs if job and not job.has_ended]
        for job in living:
            text = f"slurm: job {job.id} of bench {submitted.bench_id} is {job.state} and has no controller"
            typer.echo(f"{text}; to end it: orch cancel {submitted.bench_id}", err=True)
        if not living and not (project.runs / submitted.bench_id).exists():
            forget(project, submitted.bench_id)
