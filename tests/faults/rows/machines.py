"""Machines with kernels of their own break: reset, panicked, unplugged, with a failed disk, a wrong
clock, or an NFS server that restarts or does not answer.

They run where `tests.support.machines` finds a kernel. A machine takes a minute to boot, so a worker
keeps its lab for all trials that leave it as it was.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.lab import Lab
from orchestrator.plan.framework import run_path
from tests.e2e.rig import Controller, Done
from tests.faults.rows.common import SMALL
from tests.faults.suite import Trial, row
from tests.support import judge, machines

LAST_S, LIMIT_S = 900.0, 3600.0
LEASE_S = 10.0
LASTING = (*SMALL, "--set", "compute_ms=100", "--warmup-steps", "1", "--set", "peer_timeout_s=120",
           "--lease", str(LEASE_S), "--gpus", "1")  # fmt: skip
"""A bench that has to be ended, or with fewer ``--steps`` ends by itself."""
NFS_STEPS = ("--hosts", "node2", "--nodes", "1", "--steps", "400")
"""A run that the NFS server has no part in."""
NFSD = "rpc.nfsd -N 3 --lease-time 10 --grace-time 10"
DISK = "/disk/orch"

needs_machines = partial(row, trials=10, limit_s=LIMIT_S, short=False)
needs_local = partial(needs_machines, skip=machines.no_machines)
needs_nfs = partial(needs_machines, skip=partial(machines.no_machines, nfs=True))


@cache
def _lab(base: Path, nfs: bool) -> Lab:
    """Boot two machines of this process, which whoever made ``base`` takes down."""
    directory = base / f"lab-{os.getpid()}-{'nfs' if nfs else 'local'}"
    return labs.up(
        directory, nodes=2, gpus_per_node=0, machines=machines.wanted(nfs=nfs), say=lambda _: None
    )


@contextmanager
def two_machines(trial: Trial, *, nfs: bool = False, workdir: str = "") -> Iterator[Controller]:
    """Have a controller of two machines that answer; at the end nothing of ours may be left on them,
    and each log that one has is here as it is there.
    """
    lab = _lab(trial.scratch.parent, nfs)
    project = trial.scratch / "machines"
    project.mkdir()
    controller = Controller(lab, project)
    if workdir:
        hosts = project / "hosts.yaml"
        line = f'    workdir: "{workdir}"\n    runner_python:'
        hosts.write_text(lab.inventory.read_text().replace("    runner_python:", line, 1))
        controller.environment["ORCH_HOSTS"] = str(hosts)
    try:
        yield controller
        for node in lab.nodes:
            left = left_within(lab, node.name, 60.0)
            trial.left += len(left)
            assert not left, f"left on {node.name}: {left}"
            keep(trial, controller, node.name, "/shared/orch" if nfs else workdir)
    except BaseException:
        for node in lab.nodes:
            with suppress(Exception):  # what is known of a failure that nobody has seen before
                top = "/shared/orch" if nfs else workdir or ".orch-node"
                words = f"tail -n 3 {top}/nodes/*/runs/*/supervisor.err; dmesg | tail -n 5"
                trial.notes.append(f"{node.name}: {machines.inside(lab, node.name, words)}")
        _lab.cache_clear()
        labs.down(lab.directory)
        raise
    finally:
        controller.let_go()


def left_within(lab: Lab, node: str, seconds: float) -> list[str]:
    """Return what is left on a machine after so long at most, by its own list of processes."""
    until = time.monotonic() + seconds
    while (left := machines.left(lab, node)) and time.monotonic() < until:
        time.sleep(1.0)
    return left


def keep(trial: Trial, controller: Controller, host: str, workdir: str) -> None:
    """Count the bytes of the newest run's logs that are on a machine and not, alike, here."""
    run = controller.runs[-1]
    folder = f"{workdir or '.orch-node'}/{run_path(host, run.name)}/logs"
    listed = machines.inside(controller.lab, host, f"cd {folder} 2>&- && sha256sum -- * || true")
    for line in listed.splitlines():
        digest, _, name = line.partition("  ")
        here = run / "logs" / host / name
        if not here.is_file() or judge.sha256(here) != digest:
            trial.lost_bytes += max(1, here.stat().st_size if here.is_file() else 1)
            trial.notes.append(f"{host}: {name} is not here as it is there")


def started(controller: Controller, *words: str) -> subprocess.Popen[str]:
    """Start a bench, and return when its run has done some steps."""
    process = controller.start("bench", *LASTING, *words)
    event = partial(_has_event, controller, "started")
    judge.wait_for(lambda: event() or process.poll() is not None, LAST_S, "it does not start")
    assert process.poll() is None, controller.end(process, 1)
    time.sleep(8.0)
    return process


def _has_event(controller: Controller, name: str) -> bool:
    if not list(controller.project.glob("runs/*/events.jsonl")):
        return False
    return any(event["event"] == name for event in controller.events())


def said(trial: Trial, done: Done) -> None:
    """Note how a bench ended, in its last words."""
    lines = [line for line in done.err.splitlines() if line.strip() and "login" not in line]
    trial.notes.append(f"exit {done.code}: " + " | ".join(lines[-4:]))


def lose(trial: Trial, controller: Controller, process: subprocess.Popen[str]) -> None:
    """Wait until the loss of node2 is noticed and its bench has ended."""
    noticed = partial(_has_event, controller, "stopping")
    trial.detected_s = judge.wait_for(noticed, LAST_S, "the loss was not noticed")
    done = controller.end(process, LAST_S)
    said(trial, done)
    assert done.code == 3 and "node2: no sign of life for" in done.err, done
    assert machines.left(controller.lab, "node1") == []


def collect(trial: Trial, controller: Controller, expected: str) -> None:
    """Collect what node2 has when it is back, and expect what is said of it."""
    collected = controller.orch("collect", timeout_s=LAST_S)
    assert expected in collected.out, collected
    trial.notes.append(collected.out.splitlines()[-1].partition(" node2: ")[2])


def restart(trial: Trial, break_it: Callable[[Lab, str], None]) -> None:
    """Break node2 in mid-run so that it has to boot again."""
    with two_machines(trial) as controller:
        lab = controller.lab
        before = machines.boot_id(lab, "node2")
        process = started(controller, "--nodes", "2", "--steps", "5000")
        break_it(lab, "node2")
        lose(trial, controller, process)
        if break_it is machines.panic:
            machines.reboot(lab, "node2")
        judge.wait_for(machines.rebooted(lab, "node2", before), LAST_S, "node2 does not come back")
        collect(trial, controller, "the node has restarted since (another boot id)")


@needs_local("V1", "a machine is reset in mid-run")
def reset(trial: Trial) -> None:
    restart(trial, machines.reboot)


@needs_local("V2", "the kernel of a machine panics in mid-run")
def panic(trial: Trial) -> None:
    restart(trial, machines.panic)


@needs_local("V3", "the cable of a machine is pulled in mid-run, and plugged in later")
def pulled(trial: Trial) -> None:
    with two_machines(trial) as controller:
        process = started(controller, "--nodes", "2", "--steps", "5000")
        machines.link(controller.lab, "node2", up=False)
        try:
            lose(trial, controller, process)
            time.sleep(LEASE_S)
        finally:
            machines.link(controller.lab, "node2", up=True)
        there = partial(machines.boot_id, controller.lab, "node2")
        judge.wait_for(there, LAST_S, "node2 does not answer")
        assert left_within(controller.lab, "node2", 60.0) == []
        collect(trial, controller, "complete")
        record = controller.exit_record("node2")
        assert record["reason"].startswith("lease_expired: "), record


@needs_local("V4", "the disk of a machine's work directory goes read-only in mid-run")
def read_only(trial: Trial) -> None:
    with two_machines(trial, workdir=DISK) as controller:
        lab = controller.lab
        process = started(controller, "--nodes", "2", "--steps", "5000")
        machines.read_only(lab, "node2")
        done = controller.end(process, LAST_S)
        said(trial, done)
        assert done.code and "orch: node2: " in done.err and "Read-only file system" in done.err, (
            done
        )
        assert left_within(lab, "node2", 60.0) == []
        collected = controller.orch("collect", timeout_s=LAST_S)
        trial.notes.append(collected.out.splitlines()[-1].partition(" node2: ")[2])
    machines.inside(lab, "node2", "umount /disk; e2fsck -fy /dev/vda >&2; mount /dev/vda /disk")


@needs_local("V5", "the clock of a machine is stepped by an hour in mid-run")
def clock(trial: Trial) -> None:
    with two_machines(trial) as controller:
        process = started(controller, "--nodes", "2", "--steps", "150")
        hour = trial.random.choice((3600.0, -3600.0))
        machines.step_clock(controller.lab, "node2", hour)
        try:
            done = controller.end(process, LAST_S)
        finally:
            machines.step_clock(controller.lab, "node2", -hour)
        said(trial, done)
        assert done.code == 0 and not _has_event(controller, "stopping"), done
        record = controller.exit_record("node2")
        assert 0 < record["ended_mono_s"] - record["started_mono_s"] < LAST_S, record


def survive(trial: Trial, disturb: Callable[[Lab], None], *words: str) -> Done:
    """Have a run on node2, whose work directory node1 serves, and expect its good end."""
    with two_machines(trial, nfs=True) as controller:
        process = started(controller, *NFS_STEPS)
        disturb(controller.lab)
        done = controller.end(process, LAST_S)
        said(trial, done)
        assert done.code == 0 and not _has_event(controller, "stopping"), done
    return done


@needs_nfs("V6", "the NFS server of the work directory is stopped and started in mid-run")
def restarted_server(trial: Trial) -> None:
    def disturb(lab: Lab) -> None:
        machines.inside(lab, "node1", f"rpc.nfsd 0 && sleep 5 && {NFSD} 4")

    survive(trial, disturb)


@needs_nfs("V7", "the machine that serves the work directory over NFS is reset in mid-run")
def reset_server(trial: Trial) -> None:
    def disturb(lab: Lab) -> None:
        before = machines.boot_id(lab, "node1")
        machines.reboot(lab, "node1")
        judge.wait_for(machines.rebooted(lab, "node1", before), LAST_S, "node1 does not come back")

    survive(trial, disturb)


@needs_nfs("V8", "the NFS server of the work directory does not answer for 20 s")
def frozen_server(trial: Trial) -> None:
    def disturb(lab: Lab) -> None:
        machines.freeze(lab, "node1")
        time.sleep(20.0)
        machines.thaw(lab, "node1")

    done = survive(trial, disturb)
    assert "node2: /shared (nfs4 from 10.11.0.2:/) has not answered for" in done.err, done
    assert "node2: /shared (nfs4 from 10.11.0.2:/) answers again, after" in done.err, done


@needs_nfs("V9", "the NFS server of the work directory never answers again")
def dead_server(trial: Trial) -> None:
    with two_machines(trial, nfs=True) as controller:
        lab = controller.lab
        process = started(controller, *NFS_STEPS[:-1], "5000", "--stall-timeout", "15")
        machines.freeze(lab, "node1")
        try:
            done = controller.end(process, LAST_S)
            said(trial, done)
            listed = machines.inside(lab, "node2", "ps -eo stat=,args=").splitlines()
        finally:
            machines.thaw(lab, "node1")
        assert done.code and "/shared (nfs4 from 10.11.0.2:/) has not answered for" in done.err, (
            done
        )
        # What the kernel writes for a killed process it goes on to write: state D, till the server is back.
        alive = [line for line in listed if "train_" in line and not line.startswith(("D", "Z"))]
        assert not alive, alive
        assert "not verified: whether the run has ended on node2: /shared (nfs4 from" in done.err, (
            done
        )
        assert left_within(lab, "node2", 90.0) == []
        collect(trial, controller, "complete")
