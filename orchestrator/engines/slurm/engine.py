"""Slurm as an engine: jobs of sbatch, and the nodes of a job as hosts."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.engines.protocol import Base, JobState, Say
from orchestrator.engines.slurm import client as slurm
from orchestrator.engines.slurm.hosts import SOURCES, inventory_text, names_of
from orchestrator.engines.slurm.request import JobWanted, job_name, parse_job
from orchestrator.errors import ConfigError, Interrupted, RunError
from orchestrator.files import PROJECT_HINT, write_atomic
from orchestrator.inventory import fold
from orchestrator.record import Project

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


class SlurmEngine:
    """Jobs of Slurm by its own programs."""

    name = "slurm"
    logs_go_with_job = False

    def request(self, text: str, nodes: int, spares: int) -> JobWanted:
        """Return the job that options of sbatch ask for."""
        return parse_job(text, nodes, spares)

    def recall(self, options: Sequence[str]) -> JobWanted:
        """Return the job with these options."""
        return JobWanted(tuple(options))

    def describe(self, request: JobWanted, bench_id: str) -> str:
        """Return the command that submits the job, and its script."""
        return f"{shlex.join(request.argv(bench_id))}\n{request.script}"

    def caution(self, _: JobWanted) -> str:
        """Say that this process runs inside a job already."""
        current = slurm.here(os.environ)
        text = f"slurm: --slurm submits another job, and this runs inside job {current}; to use its nodes"
        return f"{text}: --hosts slurm, or --hosts srun" if current else ""

    def check(self, _: JobWanted) -> None:
        """Find Slurm's programs."""
        for name in ("sbatch", "squeue", "scontrol", "scancel", "srun"):
            slurm.program(name)

    def submit(self, request: JobWanted, bench_id: str) -> str:
        """Submit a job by sbatch and return its number."""
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith("SLURM_")
        }
        variables |= slurm.submitter(os.environ)
        try:
            answer = slurm.call(request.argv(bench_id), environment=variables, text=request.script)
        except Interrupted:
            raise
        except RunError as error:
            if _UNSURE.search(error.message):
                raise RunError(error.message, kind="not_verified", where=error.where) from error
            if "Unable to contact" in error.message:
                hint = "no job was submitted; scontrol ping says whether slurmctld answers"
                raise RunError(
                    error.message, kind=error.kind, where=error.where, hint=hint
                ) from error
            message = f"expected a job that Slurm accepts: {error.message}"
            hint = f"the options of sbatch were {request.words}"
            raise ConfigError(message, where="--slurm", hint=hint) from error
        return answer.strip().partition(";")[0]

    def look(self, _: JobWanted, job: str) -> JobState | None:
        """Return what scontrol says of a job."""
        known = slurm.job(job)
        if known is None:
            return None
        words = f"{known.state}{f' ({known.reason})' if known.reason else ''}"
        if known.state == "RUNNING":
            return JobState(words, is_ready=True)
        if known.state not in _WAITS:
            return JobState(words, is_over=True)
        words += f", expected start {known.start}" if known.start else ""
        if known.reason in _CANNOT_START:
            words += (
                "; with these options it cannot start on the partition as it is: Ctrl-C "
                "cancels it, sinfo shows the partition"
            )
        return JobState(words)

    def rival(self, _: JobWanted, job: str) -> str:
        """Return nothing: Slurm gives a job all of its hosts at once."""
        return ""

    def find(self, _: JobWanted, bench_id: str) -> list[str]:
        """Return the numbers of the jobs with the name of a bench; one whose submission was
        interrupted may be listed later.
        """
        argv = ["squeue", "--me", "--noheader", f"--name={job_name(bench_id)}", "--format=%i"]
        deadline = time.monotonic() + _LATE_S
        while not (numbers := slurm.call(argv).split()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return numbers

    def cancel(self, _: JobWanted, job: str) -> None:
        """Cancel a job by scancel."""
        known = slurm.job(job)
        if known and not known.has_ended and known.state != "COMPLETING":
            slurm.call(["scancel", job])

    def find_rest(self, _: JobWanted, job: str) -> str:
        """Return the state of a job in the queue; empty if it is not there."""
        try:
            return slurm.call(["squeue", "--noheader", f"--jobs={job}", "--format=%T"]).strip()
        except RunError as error:
            if "Invalid job id" in error.message:
                return ""
            raise

    def ending(self, _: JobWanted, job: str) -> str:
        """Return the last state of a job."""
        known = slurm.job(job)
        return f"{known.state if known else 'no longer known'} and out of the queue"

    def source(self, _: JobWanted, job: str) -> str:
        """Return the job as steps reach it: ssh to its nodes may be forbidden."""
        return f"srun:{job}"

    def source_here(self, hosts: Sequence[str]) -> str:
        """Return the job that this process runs in, if it has these hosts."""
        current = slurm.here(os.environ)
        job = slurm.job(current) if current else None
        is_whole = job is not None and job.state == "RUNNING" and not job.components
        return f"srun:{current}" if job and is_whole and set(hosts) <= set(names_of(job)) else ""

    def write_hosts(
        self, project: Project, source: str, bench_id: str, base: Base, say: Say
    ) -> tuple[str, str]:
        """Write the hosts of a job. Raises ConfigError outside of a job, unless the source names one
        as in ``slurm:4711``.
        """
        word, _, number = source.partition(":")
        number = slurm.job_id(number, f"--hosts {source}") if number else slurm.here(os.environ)
        if not number:
            hint = f"start it with salloc or sbatch, name a job of yours (--hosts {word}:4711), or name an inventory"
            raise ConfigError(
                "expected to run inside a job of Slurm: SLURM_JOB_ID is not set",
                where=f"--hosts {word}",
                hint=hint,
            )
        job = slurm.job(number)
        if job is None:
            message = f"expected a job that Slurm knows, got {number}"
            hint = "squeue --me lists your jobs"
            raise ConfigError(message, where=f"--hosts {source}", hint=hint)
        slurm.check_owner(job, f"--hosts {source}")
        names = names_of(job)
        file = base(names)
        transport = SOURCES[word]
        devices = slurm.visible_devices(job) if job.devices and transport == "srun" else {}
        project.prepare()
        path = project.root / ".orch" / f"{word}-{bench_id or job.id}.yaml"
        text = inventory_text(job, transport, file, devices)
        write_atomic(path, text.encode(), hint=PROJECT_HINT)
        until = f", until {job.end}" if job.end else ""
        counts = sorted({count for _, _, count in job.devices})
        plural = "" if counts == [1] else "s"
        gpus = f"{' or '.join(map(str, counts))} GPU{plural} a node" if counts else "no GPUs"
        say(f"slurm: job {job.id}, {fold(names)}, {gpus}{until}")
        return str(path), fold(names)

    def renew(self, project: Project, inventory: str, base: Base, say: Say) -> None:
        """Point the inventory of a job that is over to the job that this process runs in. Its hosts
        are compared with the plan.
        """
        path = Path(inventory)
        word, _, number = path.stem.partition("-")
        current = slurm.here(os.environ)
        if word not in SOURCES or current in ("", number):
            return
        job = slurm.job(slurm.job_id(number, str(path)))
        if job is None or job.state != "RUNNING":
            self.write_hosts(project, f"{word}:{current}", number, base, say)
