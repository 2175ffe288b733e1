"""Runs in a real job of Slurm: over steps byte for byte, and over ssh, where the run still ends
with its job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.e2e.rig import LONG, QUICK, Controller
from tests.e2e.test_tune import WORDS as TUNE
from tests.e2e.test_tune import folder as templates
from tests.faults.rows.slurm import asked, no_slurm
from tests.support import judge
from tests.support.features import needs

pytestmark = pytest.mark.skipif(bool(no_slurm()), reason=no_slurm())

ECHO = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); sys.stderr.write('heard'); sys.exit(7)"
CHANNEL = f"""
import sys
from orchestrator.inventory import Host
from orchestrator.transport.slurm.connection import SrunConnector
transport = SrunConnector().connect(Host("node2", "node2", transport="srun", vars={{"slurm_job": sys.argv[1]}}))
data = bytes(range(256)) * 8192
done = transport.run([sys.executable, "-I", "-S", "-c", {ECHO!r}], input=data, timeout_s=60)
assert (done.code, done.stdout == data, b"heard" in done.stderr) == (7, True, True), (done.code, len(done.stdout), done.stderr)
killed = transport.run(["sh", "-c", "kill -9 $$"], timeout_s=60)
assert (killed.code, killed.signal) == (None, "SIGKILL"), killed
channel = transport.popen(["cat"], timeout_s=60)
channel.send(b"a line\\n")
assert channel.recv(30) == b"a line\\n"
channel.shutdown_write()
assert channel.ending(30) == (0, None)
transport.close()
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    folder = tmp_path_factory.mktemp("slurm")
    lab: Lab = labs.up(folder / "lab", nodes=2, gpus_per_node=0, slurm=True, say=lambda _: None)
    (folder / "project").mkdir()
    made = Controller(lab, folder / "project")
    yield made
    made.let_go()
    labs.down(lab.directory)


def test_a_job_by_steps_and_by_ssh(controller: Controller) -> None:
    asked(controller.lab, "salloc", "--no-shell", "-N2", "--quiet")
    number = asked(controller.lab, "squeue", "-ho", "%i").strip()
    done = controller.end(controller.start("-c", CHANNEL, number, program=[sys.executable]), 120)
    assert done.code == 0, done

    other = controller.lab.inventory.read_text().replace(
        'runner_python: "', 'runner_python: "/etc/passwd '
    )
    (controller.project / "other.yaml").write_text(other)
    controller.environment["ORCH_HOSTS"] = str(controller.project / "other.yaml")
    refused = controller.orch("check", "--only", "disk", "--hosts", f"srun:{number}")
    assert (
        refused.code == 1
        and "no interpreter '/etc/passwd" in refused.err
        and "Permission denied" in refused.err
    ), refused
    del controller.environment["ORCH_HOSTS"]

    by_steps = controller.orch(
        "bench", *QUICK, "--nodes", "2", "--hosts", f"srun:{number}", timeout_s=120
    )
    assert by_steps.code == 0 and f"srun-{number}.yaml (--hosts), 2 of 2 hosts" in by_steps.err, (
        by_steps
    )
    controller.assert_all_bytes_are_home("node1", "node2")

    process = controller.start(
        "bench", *LONG, "--nodes", "2", "--gpus", "1", "--hosts", f"slurm:{number}"
    )
    judge.wait_for(
        lambda: len(list(controller.project.glob("runs/*/*/manifest.json"))) > 1,
        60,
        "no run was planned",
    )
    controller.wait_for_step(3, within_s=60)
    asked(controller.lab, "scancel", number)
    by_ssh = controller.end(process, 60)
    assert by_ssh.code == 1 and "cancelled by Slurm, which ends the job" in by_ssh.err, by_ssh
    controller.assert_all_bytes_are_home("node1", "node2")
    judge.wait_until_clean(controller.lab, 10)

    # Slurm goes on to list the job, as COMPLETING, until each node has told it that the processes
    # are gone.
    judge.wait_for(lambda: not asked(controller.lab, "squeue", "-h"), 30, "the job is listed")
    refused = controller.orch("check", "--only", "reach", "--hosts", f"srun:{number}")
    assert (
        refused.code == 2
        and f"Slurm's job {number}: expected a running job, got one in state CANCELLED"
        in refused.err
    )


def test_a_tune_has_one_job_for_its_whole_search(controller: Controller, tmp_path: Path) -> None:
    space = "\ntunes:\n  - {env: [COMPUTE_MS], default: '60', values: [[10]]}\n"
    budget = f"{40 * judge.patience:g}s"  # enough for all of it; where runs take two seconds it is over before
    options = (
        "--templates",
        str(templates(tmp_path, space)),
        "--stop-grace",
        "0.5",
        "--budget",
        budget,
    )
    done = controller.orch("tune", *TUNE, *options, "--slurm", "time=10m", timeout_s=60)
    assert (
        done.code == 0
        and "to use it: env ORCH_HOSTS=runs/" in done.out
        and "nodelist=node[1-2]'" in done.out
    ), done
    assert (
        done.err.count("submitted: --time=10 --nodes=2") == 1
        and done.err.count("is CANCELLED and out of the queue") == 1
    )
    assert len(controller.runs) > 2


@needs("audit")
def test_an_audit_in_a_job_tells_what_slurm_lets_tenants_see_of_each_other(
    controller: Controller,
) -> None:
    asked(controller.lab, "salloc", "--no-shell", "-N2", "--quiet")
    number = asked(controller.lab, "squeue", "-ho", "%i").strip()
    words = ("check", "-f", "simulated", "--json", "--hosts", f"srun:{number}")

    def found() -> dict[str, set[tuple[str, str]]]:
        done = controller.orch(*words, "--only", "slurm_private,slurm_confined,slurm_between")
        assert done.code == 0, done
        checks: dict[str, set[tuple[str, str]]] = {}
        for check in done.json["checks"]:
            checks.setdefault(check["name"], set()).add((check["verdict"], check["found"]))
        return checks

    open_to_all = found()
    assert open_to_all["slurm_private"] == {("warning", "PrivateData=none")}
    (verdict, said), *_ = open_to_all["slurm_confined"]
    assert verdict == "warning" and "ConstrainDevices=no" in said
    assert {verdict for verdict, _ in open_to_all["slurm_between"]} == {"warning"}
    with controller.lab.slurm_conf.open("a") as conf:
        conf.write("PrivateData=jobs,usage,users\nHealthCheckProgram=/bin/true\n")
    asked(controller.lab, "scontrol", "reconfigure")
    mended = found()
    (private,) = mended["slurm_private"]
    assert private[0] == "ok" and mended["slurm_confined"] == open_to_all["slurm_confined"]
    assert mended["slurm_between"] == {("ok", "HealthCheckProgram=/bin/true")}
    asked(controller.lab, "scancel", number)
    judge.wait_for(lambda: not asked(controller.lab, "squeue", "-h"), 30, "the job is listed")
