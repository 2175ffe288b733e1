"""Connections through steps of a job: `SrunConnector`.

Each command is a step of its own, which takes a quarter of a second to start.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.engines.slurm import client as slurm
from orchestrator.errors import ConfigError, TransportError
from orchestrator.inventory import Host, expand
from orchestrator.transport.program import ProgramChannel, ProgramTransport
from orchestrator.transport.slurm.step import environment, job_of, outcome, relay

_FRESH_S = 2.0


class SrunConnector:
    """Connections through the jobs of the hosts. Slurm is asked for a job once, and again when a
    connection is made anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, tuple[float, slurm.Job | None]] = {}

    def prepare(self, host: Host) -> Callable[[], ProgramTransport]:
        """Find the job that has the host. Raises ConfigError if there is none, or it has not begun
        or is over.
        """
        number = job_of(host, os.environ)
        where = f"host {host.name}"
        if not number:
            hint = "run orch inside a job (salloc, sbatch), name a job of yours with --hosts srun:4711, or set vars.slurm_job"
            raise ConfigError(
                "transport: srun needs a Slurm job, but SLURM_JOB_ID is not set",
                where=where,
                hint=hint,
            )
        slurm.program("srun")
        job = self._job(slurm.job_id(number, f"vars.slurm_job of {where}"))
        if job is None or job.state not in ("RUNNING", "CONFIGURING", "SUSPENDED"):
            state = f"is {job.state}" if job else "is no longer known to Slurm"
            reason = f" ({job.reason})" if job and job.reason else ""
            hint = "its hosts can be reached only while it runs; squeue --me lists your jobs"
            raise ConfigError(
                f"expected a job that runs, job {number} {state}{reason}", where=where, hint=hint
            )
        slurm.check_owner(job, where)
        if host.name not in expand(job.nodes):
            message = f"expected a host of Slurm's job {number}, which has {job.nodes}"
            raise ConfigError(message, where=where, hint="name hosts as Slurm names its nodes")
        # Slurm vouches for its hosts (munge), and does not tell two names of one machine apart.
        return partial(ProgramTransport, host, partial(_start, host, number))

    def connect(self, host: Host) -> ProgramTransport:
        """Return the way to a host. Raises TransportError if its job is over, ConfigError as
        `prepare` does.
        """
        try:
            return self.prepare(host)()
        except ConfigError as error:
            if error.message.startswith("expected a job that runs"):
                raise TransportError(
                    error.message, kind="host_unreachable", host=host.name, hint=error.hint
                ) from error
            raise

    def close(self) -> None:
        """Forget what Slurm said."""
        self._jobs.clear()

    def _job(self, number: str) -> slurm.Job | None:
        with self._lock:
            asked, job = self._jobs.get(number, (0.0, None))
            if time.monotonic() - asked > _FRESH_S or not asked:
                job = slurm.job(number)
                self._jobs[number] = time.monotonic(), job
            return job


def _start(host: Host, job: str, argv: Sequence[str], take_all: bool) -> ProgramChannel:
    """Start a step on a host; what it leaves behind is ended by Slurm at its end."""
    command = relay(job, host.name, argv)
    ended = partial(outcome, job)
    return ProgramChannel(host, command, ended, take_all=take_all, environment=environment())
