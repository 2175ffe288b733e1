"""Slurm in a namespace lab: munged and slurmctld on the controller's side, munged and slurmd on
every node.

They are Debian's own programs, with one configuration in the lab's folder, which nodes see under
the same path. The controller's daemons live in the holder's process namespace, so that they too end
with the holder. Job numbers begin at another number in each lab, because Slurm names the control
groups of a job after it, and labs share the hierarchy of the machine.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, RunError
from orchestrator.lab.programs import find, need, run
from orchestrator.lab.state import Lab, LabNode, last_words

PARTITION, URGENT = "lab", "urgent"
"""The partition of all jobs by default, and the one whose jobs take its nodes from them."""
_PROGRAMS = (
    "munged",
    "slurmctld",
    "slurmd",
    "srun",
    "sbatch",
    "scontrol",
    "squeue",
    "scancel",
    "sinfo",
)
_CONTROLLER = "10.11.0.1"
_GROUPS = Path("/sys/fs/cgroup")
_JOBS = 1000
"""Job numbers of one lab."""
_LABS = 60_000
_READY_S = 60.0
_LONGEST_SOCKET = 107


def require(kind: str, directory: Path) -> list[str]:
    """Return remarks on Slurm in a lab on this machine. Raises ConfigError if it cannot be started."""
    if kind != "namespaces":
        hint = "run it as root, with --kind namespaces"
        raise ConfigError(
            f"expected a lab of namespaces for Slurm, got one of {kind}",
            where="orch lab up --slurm",
            hint=hint,
        )
    need(_PROGRAMS, "orch lab up --slurm")
    if len(os.fsencode(_socket(directory))) > _LONGEST_SOCKET:
        hint = "choose a shorter one with --dir or ORCH_PROJECT"
        raise ConfigError(
            "expected a shorter path, because the path of a socket in it would be too long",
            where=str(directory),
            hint=hint,
        )
    if _tracks_by_group():
        return []
    return [
        "no freezer of control groups v1 on this machine: Slurm tracks processes by parent (proctrack/linuxproc), so one that "
        "detaches from its parent outlives its step; clusters with proctrack/cgroup do not have this limitation"
    ]


def prepare(lab: Lab, slots: int) -> None:
    """Write the configuration and the key that all of the lab's daemons share."""
    folder = lab.slurm_folder
    for path in (folder, folder / "state", private_folder(lab)):
        path.mkdir(mode=0o755)
    key = folder / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(128))
    for name, text in configuration(lab, slots, socket.gethostname().partition(".")[0]).items():
        (folder / name).write_text(text, encoding="utf-8")


def private_folder(lab: Lab) -> Path:
    """Return the folder of munge's socket: one path, and behind it another folder on each node."""
    return lab.slurm_folder / "munge"


def folders() -> list[str]:
    """Return the folders that a node makes for its daemons at each boot."""
    return ["/run/slurm"]


def programs(lab: Lab, node: LabNode) -> list[list[str]]:
    """Return the commands that a node starts at each boot, besides its SSH server."""
    waiting = f"until [ -S {_socket(lab.directory)} ]; do sleep 0.02; done"
    slurmd = f"{find('slurmd')} -D -f {lab.slurm_conf} -N {node.name}"
    return [
        [*_munged_command(lab, node.folder), "--foreground"],
        [find("sh"), "-c", f"{waiting}; exec {slurmd} >>{node.folder / 'slurmd.out'} 2>&1"],
    ]


def start(lab: Lab) -> None:
    """Start the controller's daemons and wait until every node is idle. Raises RunError with the
    last lines of their logs.
    """
    inside = [find("nsenter"), "-t", str(lab.holder), "--net", "--pid", "--"]
    marked = ["env", f"ORCH_LAB={lab.marker}", f"SLURM_CONF={lab.slurm_conf}"]
    run([*inside, *marked, *_munged_command(lab, lab.slurm_folder)])
    run([*inside, *marked, find("slurmctld"), "-f", str(lab.slurm_conf)])
    deadline = time.monotonic() + _READY_S
    while not _all_idle(lab):
        if time.monotonic() > deadline:
            logs = [
                lab.slurm_folder / "slurmctld.log",
                *(
                    node.folder / name
                    for node in lab.nodes
                    for name in ("slurmd.log", "slurmd.out")
                ),
            ]
            raise RunError(
                f"not all nodes of Slurm are idle after {_READY_S:g} s{last_words(logs)}",
                kind="node_unfit",
            )
        time.sleep(0.1)


def clear_groups(lab: Lab) -> None:
    """Remove the empty control groups that this lab's jobs have left.

    Other labs have other job numbers, so their groups stay.
    """
    if not lab.slurm:
        return
    first = _first_job(lab)
    for node in lab.nodes:
        top = _GROUPS / "freezer" / f"slurm_{node.name}"
        for job in top.glob("uid_*/job_*"):
            number = job.name.removeprefix("job_")
            if number.isdigit() and first <= int(number) < first + _JOBS:
                _remove(job)
        for path in (*top.glob("uid_*"), top / "system", top):
            with suppress(OSError):  # in use by a job of another lab
                path.rmdir()


def _remove(group: Path) -> None:
    for path, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()


def configuration(lab: Lab, slots: int, machine: str) -> dict[str, str]:
    """Return the text of each file of Slurm's configuration, by name; ``machine`` is this machine's
    host name.

    slurmctld refuses to start under another name than its machine's, and the controller's side of a
    lab shares that one.
    """
    folder = lab.slurm_folder
    nodes = "".join(
        f"NodeName={n.name} NodeAddr={n.address} CPUs={slots} RealMemory=1 State=UNKNOWN\n"
        for n in lab.nodes
    )
    conf: dict[str, Any] = {
        "ClusterName": f"lab{lab.marker[:8]}",
        "SlurmctldHost": f"{machine}({_CONTROLLER})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={_socket(lab.directory)}",
        "StateSaveLocation": folder / "state",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdPidFile": "/run/slurm/slurmd.pid",
        "SlurmdLogFile": f"{lab.directory}/nodes/%n/slurmd.log",
        "SlurmdSpoolDir": "/run/slurm/%n",
        # One machine is all of these nodes, so what slurmd finds of processors and memory is not
        # what a node has.
        "SlurmdParameters": "config_overrides",
        "ProctrackType": "proctrack/cgroup" if _tracks_by_group() else "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "PrologFlags": "Contain",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "ReturnToService": 2,
        "FirstJobId": _first_job(lab),
        # Short where the defaults would make every rehearsal of a fault take minutes.
        "SlurmdTimeout": 20,
        "KillWait": 5,
        "TCPTimeout": 2,
        "SchedulerParameters": "bf_interval=2,sched_interval=2",
    }
    lines = "".join(f"{name}={value}\n" for name, value in conf.items())
    both = "Nodes=ALL MaxTime=INFINITE State=UP"
    partitions = f"PartitionName={PARTITION} {both} Default=YES\nPartitionName={URGENT} {both} PriorityTier=2\n"
    constrain = "".join(
        f"Constrain{resource}=no\n" for resource in ("Cores", "Devices", "RAMSpace", "SwapSpace")
    )
    return {
        "slurm.conf": f"# Written by `orch lab up --slurm`, removed by `orch lab down`.\n{lines}{nodes}{partitions}",
        "cgroup.conf": f"CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint={_GROUPS}\n{constrain}",
    }


def _tracks_by_group() -> bool:
    return (_GROUPS / "freezer" / "release_agent").exists()


def _first_job(lab: Lab) -> int:
    return 1 + _JOBS * (int(lab.marker, 16) % _LABS)


def _socket(directory: Path) -> Path:
    return directory / "slurm" / "munge" / "munge.socket"


def _munged_command(lab: Lab, folder: Path) -> list[str]:
    """Return the command of a munged whose log and seed are in ``folder``. --force: a lab may be in
    a folder open to all.
    """
    files = {
        "key-file": lab.slurm_folder / "munge.key",
        "socket": _socket(lab.directory),
        "pid-file": private_folder(lab) / "munged.pid",
        "log-file": folder / "munged.log",
        "seed-file": folder / "munged.seed",
    }
    return [find("munged"), "--force", *(f"--{name}={path}" for name, path in files.items())]


def _all_idle(lab: Lab) -> bool:
    argv = [
        "env",
        f"SLURM_CONF={lab.slurm_conf}",
        find("sinfo"),
        "--noheader",
        "--Node",
        f"--partition={PARTITION}",
        "--format=%T",
    ]
    try:
        states = run(
            [find("nsenter"), f"--net=/proc/{lab.holder}/ns/net", "--", *argv], timeout_s=20
        ).split()
    except RunError:  # slurmctld does not answer yet
        return False
    return states == ["idle"] * len(lab.nodes)
