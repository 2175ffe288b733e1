"""Benches that have submitted a job of their own (`--slurm`), and jobs whose nodes another one
takes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from orchestrator import lab as labs
from tests.e2e.rig import ORCH, Controller, outer_environment
from tests.faults.rows.common import LONG
from tests.faults.rows.slurm import (
    CONTACT_S,
    asked,
    clean,
    ended,
    job,
    names,
    no_slurm,
    nothing_of_slurm,
    rank_processes,
    running,
)
from tests.faults.suite import Trial, row
from tests.support import judge

CELL = ("resnet50", "-f", "simulated", "--no-baseline", "--gpus", "1", "--repeats", "2", "--stop-grace", "0.5",
        "--set", "gradient_mb=0.1", "--set", "compute_ms=20", "--steps", "60", "--warmup-steps", "5",
        "--nodes", "4")  # fmt: skip


@contextmanager
def submitted(
    trial: Trial, *words: str, behind: bool = False
) -> Iterator[tuple[Controller, subprocess.Popen[str]]]:
    """Have a lab with Slurm and a bench that has submitted its job; ``behind`` another one that has
    all nodes. At the end the queue has to be empty."""
    with trial.own_lab(slurm=True) as controller:
        if behind:
            asked(controller.lab, "salloc", "--no-shell", "-N4", "--quiet", "--job-name=first")
        process = controller.start("bench", *(words or CELL), "--slurm", "partition=lab,time=10m")
        state = "PENDING" if behind else "RUNNING"
        judge.wait_for(
            lambda: state in jobs(controller),
            40,
            lambda: f"no job of the bench is {state}: {jobs(controller)}",
        )
        yield controller, process
        judge.wait_for(lambda: not jobs(controller), 5, lambda: f"in the queue: {jobs(controller)}")
        assert not list(controller.project.glob(".orch/jobs/*"))
        nothing_of_slurm(controller, 10.0)


def jobs(controller: Controller) -> str:
    """Return number, name and state of the jobs in the queue that orch has submitted."""
    lines = asked(controller.lab, "squeue", "-ho", "%i %j %T").splitlines()
    return "; ".join(line for line in lines if " orch-" in line)


@row("Q9", "Slurm: Ctrl-C, or orch cancel, while the job waits in the queue", skip=no_slurm)
def interrupted_in_the_queue(trial: Trial) -> None:
    with submitted(trial, behind=True) as (controller, process):
        assert "(Resources)" in waited_for(controller, process)
        if trial.random.choice((True, False)):
            os.kill(process.pid, signal.SIGINT)
            code = 130
        else:
            bench_id = controller.submitted[0]
            assert controller.orch("cancel", bench_id).code == 0
            code = 143
        begin = time.monotonic()
        done = controller.end(process, 30)
        trial.stopped_s = time.monotonic() - begin
        assert done.code == code and "is CANCELLED and out of the queue" in done.err, done


def waited_for(controller: Controller, process: subprocess.Popen[str]) -> str:
    """Return the line in which the bench says what its job waits for."""
    assert process.stderr
    for line in process.stderr:
        if "is PENDING (" in line:
            return line
    raise AssertionError("the bench has ended")


@row(
    "Q10",
    "Slurm: the controller is killed while its job waits, then orch cancel",
    short=False,
    skip=no_slurm,
)
def killed_in_the_queue(trial: Trial) -> None:
    with submitted(trial, behind=True) as (controller, process):
        time.sleep(trial.random.uniform(0.0, 1.0))
        process.kill()
        controller.end(process, 10)
        assert jobs(controller)
        bench_id = controller.submitted[0]
        assert f"to end it: orch cancel {bench_id}" in controller.orch("status").err
        done = controller.orch("cancel", bench_id)
        assert done.code == 0 and "out of the queue" in done.err, done


@row(
    "Q11",
    "Slurm: the controller of a submitted job is killed in mid-bench, then resumed",
    limit_s=240,
    skip=no_slurm,
)
def killed_and_resumed_in_its_job(trial: Trial) -> None:
    # Two runs of 4 s and more: at every instant that is chosen the bench is not over.
    with submitted(trial, *CELL, "--steps", judge.steps(200)) as (controller, process):
        judge.wait_for(
            lambda: list(controller.project.glob("runs/*/bench.json")), 40, "no bench began"
        )
        time.sleep(trial.random.uniform(0.0, 8.0))
        process.kill()
        controller.end(process, 10)
        before = jobs(controller)
        if trial.random.choice((True, False)):  # the job too
            asked(controller.lab, "scancel", before.split()[0])
            judge.wait_for(lambda: not jobs(controller), 20, "the job does not end")
        done = controller.orch("resume", timeout_s=120)
        assert done.code == 0, done
        clean(trial, controller, CONTACT_S)
        manifests = [
            json.loads((controller.bench / run / "manifest.json").read_text())
            for run in bench_runs(controller)
        ]
        assert [manifest["outcome"]["state"] for manifest in manifests] == ["finished", "finished"]
        trial.keep(*names(controller), controller=controller)


def bench_runs(controller: Controller) -> list[str]:
    """Return the runs that the newest bench's table is made of."""
    runs: list[str] = json.loads((controller.bench / "bench.json").read_text())["runs"]
    return runs


@row(
    "Q12",
    "Slurm: somebody requeues the submitted job in mid-run",
    short=False,
    limit_s=180,
    skip=no_slurm,
)
def requeued(trial: Trial) -> None:
    with submitted(trial, *LONG, "--nodes", "4", "--gpus", "1") as (controller, process):
        judge.wait_for(
            lambda: list(controller.project.glob("runs/*/*/manifest.json")),
            40,
            "no run was planned",
        )
        controller.wait_for_step(3, within_s=40)
        number = jobs(controller).split()[0]
        command = labs.argv_inside(controller.lab, ["scontrol", "requeue", number])
        variables = outer_environment(Path("/")) | dict(labs.environment(controller.lab))
        refused = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            timeout=judge.LIMIT_S,
            check=False,
        )
        assert refused.returncode and "disabled" in refused.stderr, refused
        before = rank_processes(controller)
        time.sleep(1.0)
        assert rank_processes(controller) == before
        os.kill(process.pid, signal.SIGTERM)
        assert controller.end(process, 60).code == 143
        clean(trial, controller, CONTACT_S)
        trial.keep(*names(controller), controller=controller)


AGAIN = ("-N4", "--nodelist=node[1-4]", "--quiet")


@row(
    "Q13",
    "Slurm: a job of higher priority takes the nodes in mid-run, then the bench is resumed",
    limit_s=300,
    skip=no_slurm,
)
def preempted(trial: Trial) -> None:
    mode, grace_s = trial.random.choice(("REQUEUE", "CANCEL")), trial.random.choice((0, 10))
    own, length = (
        trial.random.choice((True, False)),
        ("--steps", judge.steps(200)),
    )  # 20 s and more: the other job is not given nodes at once
    trial.notes.append(
        f"PreemptMode={mode}, GraceTime={grace_s}, {'a job of --slurm' if own else 'an allocation'}"
    )
    if own:
        with submitted(trial, *LONG, "--nodes", "4", "--gpus", "1", *length) as (
            controller,
            process,
        ):
            judge.wait_for(
                lambda: list(controller.project.glob("runs/*/*/manifest.json")),
                40,
                "no run was planned",
            )
            controller.wait_for_step(3, within_s=40)
            lose_the_nodes(trial, controller, process, mode, grace_s)
            by = trial.random.choice(
                (["salloc", *AGAIN], [])
            )  # in an allocation that has the hosts, or in another job of its own
            gone_on(
                trial, controller, controller.start("resume", program=[*by, *controller.program])
            )
        return
    with job(trial) as (controller, number):
        process = running(controller, number, *length)
        lose_the_nodes(trial, controller, process, mode, grace_s)
        gone_on(
            trial,
            controller,
            controller.start("resume", program=["salloc", *AGAIN, *controller.program]),
        )


def lose_the_nodes(
    trial: Trial, controller: Controller, process: subprocess.Popen[str], mode: str, grace_s: int
) -> None:
    """Have a job of the urgent partition take all nodes from a bench, see it stop by that, and end
    that job.
    """
    asked(
        controller.lab,
        "scontrol",
        "update",
        "PartitionName=lab",
        f"PreemptMode={mode}",
        f"GraceTime={grace_s}",
    )
    asked(
        controller.lab,
        "salloc",
        "-N4",
        "--no-shell",
        "--quiet",
        "--partition=urgent",
        "--job-name=urgent",
    )
    ended(trial, controller, process, ("cancelled by Slurm",))
    trial.detected_s = None  # it was over before
    queue = partial(asked, controller.lab, "squeue", "-ho", "%j %T")
    judge.wait_for(
        lambda: queue().split() == ["urgent", "RUNNING"], 20, lambda: f"in the queue: {queue()}"
    )
    assert controller.manifest()["outcome"]["state"] == "interrupted"
    trial.keep(*names(controller), controller=controller)
    asked(controller.lab, "scancel", "--name=urgent")


def gone_on(trial: Trial, controller: Controller, process: subprocess.Popen[str]) -> None:
    """Wait until a bench has been resumed to its end."""
    done = controller.end(process, 180)
    assert done.code == 0, done
    clean(trial, controller, CONTACT_S)
    assert controller.manifest()["outcome"]["state"] == "finished"
    trial.keep(*names(controller), controller=controller)


USER, UID = "nobody", 65534
"""A user without rights, on every machine."""
# It may read all files here, because the interpreter of the tests may be in root's home; on the
# nodes it may not.
AS_USER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=+dac_read_search",
           "--ambient-caps=+dac_read_search")  # fmt: skip


@contextmanager
def plain_user(trial: Trial) -> Iterator[Controller]:
    """Have a lab with Slurm and the controller of a user without rights, who has the home of each
    node and may log in there.
    """
    # Not below the trial's folder, which is for its own user alone.
    with tempfile.TemporaryDirectory() as folder, trial.own_lab(slurm=True) as controller:
        lab, project = controller.lab, Path(folder)
        controller.project = project
        lab.directory.chmod(0o711)
        for node in lab.nodes:
            names = node.folder / "etc" / "passwd"
            lines = [
                line for line in names.read_text().splitlines() if not line.startswith(f"{USER}:")
            ]
            names.write_text("\n".join([*lines, f"{USER}:x:{UID}:{UID}::/root:/bin/bash", ""]))
            with (node.folder / "etc" / "shadow").open("a") as file:
                file.write(f"{USER}:*:20000:0:99999:7:::\n")
            os.chown(node.home, UID, UID)
        text = lab.inventory.read_text().replace('"root"', json.dumps(USER))
        (project / "hosts.yaml").write_text(
            text.replace(str(lab.directory / "id_ed25519"), str(project / "key"))
        )
        shutil.copyfile(lab.directory / "id_ed25519", project / "key")
        (project / "key").chmod(0o600)
        for path in (project, project / "key"):
            os.chown(path, UID, UID)
        controller.program = [*AS_USER, *ORCH]
        controller.environment = {
            "ORCH_HOSTS": str(project / "hosts.yaml"),
            "USER": USER,
            "LOGNAME": USER,
        }
        yield controller
        nothing_of_slurm(controller, 10.0)


@row(
    "Q14",
    "Slurm: all of it as a plain user, whose controller is killed in mid-run, then resumed",
    limit_s=240,
    skip=no_slurm,
)
def as_a_plain_user(trial: Trial) -> None:
    way = trial.random.choice(("--slurm", "--hosts slurm", "--hosts srun"))
    trial.notes.append(way)
    with plain_user(trial) as controller:
        own = partial(asked, controller.lab, *AS_USER)
        option, _, source = way.partition(" ")
        value = "time=10m"
        if source:
            own("salloc", "--no-shell", "-N4", "--quiet")
            value = f"{source}:{own('squeue', '--me', '-ho', '%i').strip()}"
        process = controller.start(
            "bench",
            *LONG,
            "--steps",
            judge.steps(100),
            "--nodes",
            "4",
            "--gpus",
            "1",
            option,
            value,
        )
        judge.wait_for(
            lambda: list(controller.project.glob("runs/*/*/manifest.json")),
            40,
            "no run was planned",
        )
        controller.wait_for_step(3, within_s=40)
        ranks = [controller.rank_process(node).pid for node in names(controller)]
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in ranks} == {UID}
        os.kill(process.pid, signal.SIGKILL)
        controller.end(process, 10)
        gone_on(trial, controller, controller.start("resume"))
        own("scancel", "--me")
        judge.wait_for(lambda: not asked(controller.lab, "squeue", "-h"), 20, "a job is listed")

        asked(controller.lab, "salloc", "--no-shell", "-N1", "--quiet")
        refused = controller.orch(
            "check", "--hosts", f"srun:{asked(controller.lab, 'squeue', '-ho', '%i').strip()}"
        )
        assert (
            refused.code == 2
            and "expected a job of your own" in refused.err
            and "belongs to root" in refused.err
        ), refused
