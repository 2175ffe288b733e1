"""Slurm's jobs, as its own programs report them: `Job`, `job`, `here`, and `call` for every other
request.

Nothing needs Slurm's accounting (sacct, slurmdbd), which many small clusters do not have. Without
it a job can be asked about until MinJobAge after its end, 300 s by default.

>>> record = parse("JobId=7 JobName=a b JobState=PENDING Reason=Resources NodeList=(null) StartTime=Unknown Requeue=0")
>>> record.id, record.name, record.state, record.reason, record.nodes
('7', 'a b', 'PENDING', 'Resources', '')
>>> parse("JobId=8 JobState=RUNNING NodeList=n[1-2] Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:1,3)").devices
(('n[1-2]', '1,3', 2),)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import ConfigError, RunError
from orchestrator.procs import TooMuchOutput, run_program

ENDED = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip
"""The states that a job does not leave. A job that is COMPLETING still has processes."""

_ANSWER_S = 30.0
_JOB = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?")
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9:/*_]*)=")
_DEVICES = re.compile(r"\bgpu(?::[^:(),\s]+)?:(\d+)(?:\((IDX|CNT):([^)]*)\))?")
_MOST_DEVICES = 1024
_LINGERING = ("SLURM_CONF", "PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "TZ")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as ``scontrol show job --details`` reports it.

    ``nodes`` is a folded list as Slurm writes it, empty before the start. ``devices`` are (nodes,
    numbers of the GPUs as ``0,1`` or an empty text if Slurm does not number them, their count);
    empty if the job has no GPUs. ``start`` and ``end`` are as printed: an expected start while it
    waits. ``uid`` is -1 if Slurm does not say whose it is. ``components`` are the numbers of the
    parts of a heterogeneous job, or of the tasks of an array, of which Slurm tells together; else
    empty.
    """

    id: str
    name: str
    state: str
    reason: str
    user: str
    uid: int
    nodes: str
    tasks_per_node: int
    devices: tuple[tuple[str, str, int], ...]
    start: str
    end: str
    components: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Return whether the job will never run again and, as far as Slurm knows, has no processes
        left.
        """
        return self.state in ENDED


def job(job_id: str, environment: Mapping[str, str] = os.environ) -> Job | None:
    """Ask Slurm for a job; None if Slurm does not know it, or no longer. Raises RunError if Slurm
    does not answer.
    """
    try:
        text = call(
            ["scontrol", "--oneliner", "--details", "show", "job", job_id], environment=environment
        )
    except RunError as error:
        if "Invalid job id" in error.message:
            return None
        raise
    records = [record for record in re.split(r"\n(?=JobId=)", text.strip()) if record]
    first = parse(records[0] if records else text)
    if len(records) > 1:
        return replace(first, components=tuple(parse(record).id for record in records))
    return first


def job_id(text: str, where: str) -> str:
    """Return the number of a job. Raises ConfigError for anything else."""
    if not _JOB.fullmatch(text):
        raise ConfigError(
            f"expected the number of a job, got {text[:40]!r}",
            where=where,
            hint="squeue --me lists your jobs",
        )
    return text


def check_owner(job: Job, where: str) -> None:
    """Raise ConfigError for a job of another user: Slurm refuses its steps, after it has tried for
    half a minute.
    """
    if os.geteuid() not in (0, job.uid) and job.uid >= 0:
        message = f"expected a job of your own, but job {job.id} belongs to {job.user}"
        raise ConfigError(message, where=where, hint="squeue --me lists your jobs")


def here(environment: Mapping[str, str]) -> str:
    """Return the number of the job that this process runs in; empty outside of a job."""
    number = environment.get("SLURM_JOB_ID", "")
    return number if _JOB.fullmatch(number) else ""


def parse(text: str) -> Job:
    """Return the job that one line of ``scontrol`` describes. Raises RunError for a line without a
    job.
    """
    fields: dict[str, str] = {}
    devices = []
    matches = list(_FIELD.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(
        matches, ends, strict=False
    ):  # without any match there is an end too many
        name = match[1]
        value = text[match.end() : end].strip()
        fields.setdefault(name, "" if value in ("(null)", "N/A") else value)
        if name == "Nodes":  # one for each set of nodes that have the same devices
            fields["Nodes"] = value
        if name == "GRES" and (of_node := _devices(value)):
            devices.append((fields["Nodes"], *of_node))
    if "JobId" not in fields or "JobState" not in fields:
        raise RunError(
            f"expected the record of a job, got {text[:200]!r}",
            kind="result_invalid",
            where="scontrol show job",
        )
    per_node = fields.get("NtasksPerN:B:S:C", "0").split(":")[0]
    user, _, number = fields.get("UserId", "").partition("(")
    count = int(per_node) if per_node.isdigit() and int(per_node) else _tasks_per_node(fields)
    return Job(
        id=fields["JobId"],
        name=fields.get("JobName", ""),
        state=fields["JobState"],
        reason=fields.get("Reason", "").removeprefix("None"),
        user=user,
        uid=int(digits) if (digits := number.rstrip(")")).isdecimal() else -1,
        nodes=fields.get("NodeList", ""),
        tasks_per_node=count,
        devices=tuple(devices),
        start=fields.get("StartTime", "").removeprefix("Unknown"),
        end=fields.get("EndTime", "").removeprefix("Unknown"),
        components=_parts_of(fields),
    )


def _tasks_per_node(fields: Mapping[str, str]) -> int:
    tasks, nodes = fields.get("NumTasks", "1"), fields.get("NumNodes", "1").partition("-")[0]
    if tasks.isdigit() and nodes.isdigit() and int(nodes):
        return max(1, int(tasks) // int(nodes))
    return 1


def _devices(gres: str) -> tuple[str, int] | None:
    """Return the numbers of the GPUs of a node and their count, from ``gpu:2(IDX:0-1)``; None
    without any.
    """
    count, numbers = 0, []
    for match in _DEVICES.finditer(gres):
        count += int(match[1])
        if match[2] == "IDX":
            numbers += _numbers(match[3])
    if not count:
        return None
    if max(count, len(numbers)) > _MOST_DEVICES:
        raise RunError(
            f"expected at most {_MOST_DEVICES} GPUs on a node, got {gres[:80]!r}",
            kind="result_invalid",
            where="scontrol show job",
        )
    return (",".join(map(str, sorted(numbers))) if len(numbers) == count else ""), count


def _numbers(text: str) -> list[int]:
    """Return the numbers in ``0-1,3``, of each range at most one more than a node has devices."""
    numbers: list[int] = []
    for span in text.split(","):
        first, _, last = span.partition("-")
        end = min(int(last or first), int(first) + _MOST_DEVICES)
        numbers += range(int(first), end + 1)
    return numbers


def _parts_of(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return the parts of a heterogeneous job from the record of its first one, also while Slurm
    shows no other; empty for any other record.
    """
    whole = fields.get("HetJobIdSet", "")
    if fields.get("HetJobOffset") != "0" or not re.fullmatch(r"[0-9]+([-,][0-9]+)*", whole):
        return ()
    return tuple(map(str, _numbers(whole)))


def program(name: str) -> str:
    """Return the path of one of Slurm's programs. Raises ConfigError if it is not installed here."""
    if path := shutil.which(name):
        return path
    hint = "run orch where sbatch and squeue work: on a login node, or inside a job"
    raise ConfigError(
        f"expected Slurm's program {name}, which is not on the PATH", where="Slurm", hint=hint
    )


def call(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] = os.environ,
    timeout_s: float = _ANSWER_S,
    text: str = "",
) -> str:
    """Run one of Slurm's programs, with ``text`` as its standard input, and return what it prints.

    Raises ConfigError if it is not installed, RunError with its words if it fails or does not
    answer.
    """
    command = [program(argv[0]), *argv[1:]]
    where = f"Slurm: {argv[0]}"
    try:
        done = run_program(
            command, timeout_s=timeout_s, environment=dict(environment), data=text.encode()
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"no answer within {timeout_s:g} s", kind="node_unfit", where=where
        ) from None
    except TooMuchOutput:
        raise RunError("more than 16 MiB of output", kind="node_unfit", where=where) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        words = " / ".join(
            line.removeprefix(f"{argv[0]}: ").removeprefix("error: ") for line in lines[-3:]
        )
        raise RunError(words or f"exit status {done.returncode}", kind="node_unfit", where=where)
    return done.stdout.decode("utf-8", "replace")


def visible_devices(job: Job) -> dict[str, str]:
    """Return the GPUs that a step of a job may use, by host, as numbers that CUDA takes on that
    host: ``0,1``.

    Only a step knows them: where Slurm confines devices, the first GPU of a job is number 0,
    whichever it is.
    """
    argv = [
        "srun",
        f"--jobid={job.id}",
        "--overlap",
        f"--nodelist={job.nodes}",
        "--ntasks-per-node=1",
        "--chdir=/",
        "--export=PATH",
    ]
    text = call(
        [
            *argv,
            "sh",
            "-c",
            'echo "$SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-}}"',
        ],
        environment=submitter(os.environ),
    )
    return {words[0]: words[1] for line in text.splitlines() if len(words := line.split()) == 2}


def submitter(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm's programs need.

    Variables of an enclosing job are left out, because Slurm would take them for options.
    """
    return {name: value for name, value in environment.items() if name in _LINGERING}
