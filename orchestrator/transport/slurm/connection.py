"""Connections through steps of a job: `SrunConnector` and its `Transport`.

There is nothing to keep open between two commands: each is a step of its own, which takes a quarter
of a second to start.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from orchestrator import slurm
from orchestrator.errors import ConfigError, TransportError
from orchestrator.inventory import Host, expand
from orchestrator.transport.completion import run_to_end
from orchestrator.transport.program import ProgramChannel
from orchestrator.transport.protocols import Result
from orchestrator.transport.slurm.step import environment, job_of, outcome, relay

_FRESH_S = 2.0


class SrunConnector:
    """Connections through the jobs of the hosts. Slurm is asked for a job once, and again when a
    connection is made anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, tuple[float, slurm.Job | None]] = {}

    def prepare(self, host: Host) -> Callable[[], StepTransport]:
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
        return partial(StepTransport, host, number)

    def connect(self, host: Host) -> StepTransport:
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


class StepTransport:
    """The way to one host of a job."""

    def __init__(self, host: Host, job: str) -> None:
        self.host = host
        self._job = job
        self._lock = threading.Lock()
        self._channels: list[ProgramChannel] = []
        self._closed = False

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float) -> Result:
        """Run a command to its end; what it leaves behind is ended by Slurm."""
        return run_to_end(
            self.host,
            argv,
            input,
            timeout_s,
            lambda _: self._start(argv, take_all=True),
            lambda: self.alive,
        )

    def popen(self, argv: Sequence[str], *, timeout_s: float) -> ProgramChannel:
        """Start a command and return the channel to it; whether it has started shows in its answer."""
        return self._start(argv, take_all=False)

    def _start(self, argv: Sequence[str], *, take_all: bool) -> ProgramChannel:
        command = relay(self._job, self.host.name, argv)
        ended = partial(outcome, self._job)
        channel = ProgramChannel(
            self.host, command, ended, take_all=take_all, environment=environment()
        )
        with self._lock:
            self._channels = [earlier for earlier in self._channels if not earlier.ended] + [
                channel
            ]
        return channel

    def greets(self, is_needed: Callable[[], bool]) -> bool:
        """Return False: another step on a slow host is no quicker than the waiting one."""
        return False

    @property
    def alive(self) -> bool:
        """Return whether steps may be started: until this is closed."""
        return not self._closed

    @property
    def unread(self) -> bool:
        """Return whether output of a command has arrived and waits for its thread."""
        with self._lock:
            return any(channel.unread for channel in self._channels)

    @property
    def host_key(self) -> str:
        """Nothing: Slurm vouches for its hosts (munge), and does not tell two names of one machine
        apart.
        """
        return ""

    @property
    def via(self) -> str:
        """Nothing stands in between that could break by itself."""
        return ""

    def close(self) -> None:
        """End the commands that still run."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()
