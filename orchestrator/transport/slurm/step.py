"""The command lines of steps, and what the end of ``srun`` means."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from orchestrator.engines.slurm import client as slurm
from orchestrator.errors import OrchError, TransportError
from orchestrator.inventory import Host
from orchestrator.transport.program.channel import Outcome, shell_ending, signal_name

SPAWNERS = "orch-spawners"
"""The name of the step of spawners in ``squeue --steps``."""

_EXPORTED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "SLURM_CONF")
# A step is one task on a node, beside all other steps; what it starts may use all processors that
# the job has there.
_BESIDE = ("--overlap", "--cpu-bind=none", "--mpi=none", "--chdir=/")
_OF_SLURM = re.compile(r"^(srun|slurmstepd[\w.-]*): (?:error: )?(.*)$")
_BROKEN = re.compile(
    r"CANCELLED|[Nn]ode failure|NODE FAIL|Unable to (?:create|confirm|contact)|[Ll]aunch .*failed|Terminated job step|revoked|"
    r"Communication|Socket timed out|Invalid job id|already complet|Job step aborted|Requested nodes? |no longer valid"
)


def job_of(host: Host, variables: Mapping[str, str] = os.environ) -> str:
    """Return the number of the job through which a host is reached: ``vars.slurm_job``, else the
    job that this process runs in.

    Empty for a host that belongs to none.
    """
    named = str(host.vars.get("slurm_job") or "")
    if named or host.transport != "srun":
        return named
    return slurm.here(variables)


def environment() -> dict[str, str]:
    """Return the variables of the program srun, with the variables of a step among them."""
    return {name: os.environ[name] for name in _EXPORTED if name in os.environ}


def _export() -> str:
    return f"--export={','.join(environment())}"


def relay(job: str, host: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs ``argv`` on one host, with the streams of this side."""
    return [
        slurm.program("srun"),
        f"--jobid={job}",
        *_BESIDE,
        _export(),
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={host}",
        *argv,
    ]


def spawners(job: str, hosts: str, count: int, argv: Sequence[str]) -> list[str]:
    """Return the command that runs ``argv`` on all these hosts, and goes on when some of them have
    ended or are lost.
    """
    lasting = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0", f"--job-name={SPAWNERS}")
    where = (f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={hosts}")
    return [slurm.program("srun"), f"--jobid={job}", *_BESIDE, _export(), *lasting, *where, *argv]


def read_messages(stderr: bytes) -> list[str]:
    """Return Slurm's own messages on the standard error of a step, without the names of its
    programs.
    """
    lines = stderr.decode("utf-8", "replace").splitlines()
    return [match[2] for match in map(_OF_SLURM.match, lines) if match]


def outcome(job: str, code: int, stderr: bytes) -> Outcome:
    """Return how a command on a host ended, or the error if its step did: by srun's exit code and
    by what Slurm said.

    srun exits with 128 + the number of the signal that ended the command, and with 2 if there is no
    such program.
    """
    if code == 0:
        return 0, None
    words = [
        line for line in read_messages(stderr) if _BROKEN.search(line) and "retrying" not in line
    ]
    if code < 0:
        words = [f"srun was ended by {signal_name(-code)}"]
    if words:
        return TransportError(f"the step ended: {words[-1]}{_of_job(job)}", kind="node_lost")
    return shell_ending(code)


def _of_job(job: str) -> str:
    """Return the state of a job that does not run any more, as a part of a message."""
    try:
        record = slurm.job(job)
    except OrchError:
        return ""
    if record is None:
        return f"; Slurm no longer knows job {job}"
    reason = f" ({record.reason})" if record.reason else ""
    if record.state == "RUNNING":
        return ""
    return f"; Slurm's job {job} is {record.state}{reason}"
