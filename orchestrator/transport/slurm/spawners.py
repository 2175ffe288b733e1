"""A controller's step of spawners (`remote/noderun/spawner.py`): one on each host of a job, as long
as this process.

Its srun has a session of its own and gets the end of standard input when this process ends, however
that happens. The spawners then stay until their last run has ended. If the end cannot reach a node,
the heartbeat does not reach it either.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.errors import RunError
from orchestrator.inventory import Host, fold
from orchestrator.procs import start_program
from orchestrator.transport.slurm import step

_READY_S = 60.0
_LEAVE_S = 5.0
_LEASE_S = 60.0
_BEAT_S = 5.0
_READY = b'"event": "spawner"'


@dataclass(slots=True)
class _Step:
    job: str
    python: tuple[str, ...]
    names: frozenset[str]
    process: subprocess.Popen[bytes]
    errors: int  # a file in memory with what srun has said, however much, also when this process has ended


class Spawners:
    """The steps of spawners that this process has started: one for each job and interpreter, and
    one more for hosts that join later. ``arguments`` after the interpreter and ``source``, sent
    before a request, become a runner."""

    def __init__(self, arguments: Sequence[str], source: bytes) -> None:
        self._arguments = tuple(arguments)
        self._source = source
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._steps: list[_Step] = []

    def ensure(self, hosts: Sequence[Host]) -> None:
        """Start missing spawners on the hosts that belong to a job, and wait until all of them
        answer.

        Raises RunError with Slurm's words if that fails.
        """
        groups: dict[tuple[str, tuple[str, ...]], list[Host]] = {}
        for host in hosts:
            if job := step.job_of(host):
                groups.setdefault((job, host.runner_python), []).append(host)
        with self._lock:
            if groups and not self._steps:
                threading.Thread(target=self._beat, daemon=True, name="spawners").start()
            for (job, python), members in groups.items():
                running = [
                    step
                    for step in self._steps
                    if (step.job, step.python) == (job, python) and step.process.poll() is None
                ]
                missing = []
                for host in members:
                    if not any(host.name in step.names for step in running):
                        missing.append(host.name)
                if missing:
                    self._steps.append(self._start_step(job, python, missing))

    def _beat(self) -> None:
        """Show the spawners that this process lives."""
        while not self._closed.wait(_BEAT_S):
            for started in list(self._steps):
                with suppress(OSError, ValueError):  # it has ended, or does not read
                    assert started.process.stdin
                    os.write(started.process.stdin.fileno(), b"\n")

    def _start_step(self, job: str, python: tuple[str, ...], names: Sequence[str]) -> _Step:
        argv = step.spawners(job, fold(names), len(names), [*python, *self._arguments])
        errors = os.memfd_create("srun")
        pipe = subprocess.PIPE
        process = start_program(
            argv, stdin=pipe, stdout=pipe, stderr=errors, env=step.environment()
        )
        started = _Step(job, python, frozenset(names), process, errors)
        request = (
            json.dumps(
                {"op": "spawn", "nonce": "spawners", "job": job, "lease_s": _LEASE_S}
            ).encode()
            + b"\n"
        )
        try:
            assert process.stdin
            process.stdin.write(self._source + request)
            os.set_blocking(process.stdin.fileno(), False)
            self._wait(started, job, names)
        except BrokenPipeError:
            process.wait(_LEAVE_S)
            raise self._start_error(started, job, names, "its srun ended") from None
        except BaseException:
            process.kill()
            raise
        return started

    def _wait(self, started: _Step, job: str, names: Sequence[str]) -> None:
        """Read the answer of each spawner, and no more: none of them prints anything else."""
        assert started.process.stdout
        deadline, output = time.monotonic() + _READY_S, b""
        while output.count(_READY) < len(names):
            ready = select.select(
                [started.process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )[0]
            data = os.read(started.process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                count = output.count(_READY)
                why = (
                    f"{count} of {len(names)} answered"
                    if ready
                    else f"{count} of {len(names)} answered in {_READY_S:g} s"
                )
                raise self._start_error(started, job, names, why)
            output += data

    def _start_error(self, started: _Step, job: str, names: Sequence[str], why: str) -> RunError:
        words = (
            os.pread(started.errors, 1 << 16, 0)
            .decode("utf-8", "replace")
            .strip()
            .splitlines()[-3:]
        )
        message = f"the step that keeps runs in Slurm's job {job} did not start on {fold(names)}: {' / '.join([why, *words])}"
        return RunError(
            message, kind="node_unfit", hint="squeue --steps shows the steps of your jobs"
        )

    def close(self) -> None:
        """Let the spawners go: they end when their last run has. Waits for those without a run."""
        self._closed.set()
        with self._lock:
            steps, self._steps = self._steps, []
        for started in steps:
            for stream in (started.process.stdin, started.process.stdout):
                with suppress(OSError):
                    assert stream
                    stream.close()
        for started in steps:
            with suppress(subprocess.TimeoutExpired):
                started.process.wait(_LEAVE_S)
            os.close(started.errors)
