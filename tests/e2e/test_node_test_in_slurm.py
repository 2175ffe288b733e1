"""The node test as Prolog, Epilog and HealthCheckProgram of a real slurmd, in the script of
docs/sentinel.md: it finds a throttled processor, and its hook, nothing else, drains the node.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from orchestrator import lab as labs
from orchestrator.lab import Lab
from orchestrator.lab.machine import HOME
from tests.e2e.rig import REPOSITORY
from tests.faults.rows.setup import on_node
from tests.faults.rows.slurm import asked, no_slurm
from tests.support import commands, faults, judge, node_groups

pytestmark = pytest.mark.skipif(bool(no_slurm()), reason=no_slurm())

HEALTHY_LOOKS = 8
"""The past of a device has as many looks: none before is compared with anything."""
EAGER = "--interval 0 --recent 0 --false-alarms 1e6"
"""Look in every Prolog, count the last look as past, and name a device after one slow look."""
THROTTLED = 4.0
"""Percent of one core."""


def documented_script(lab: Lab) -> str:
    """The script of docs/sentinel.md, with the paths of a node of the lab, more patience than a
    cluster has, and a file in place of the system's log.
    """
    page = (REPOSITORY / "docs" / "sentinel.md").read_text()
    script = page.split("# /etc/slurm/node-test.sh\n", 1)[1].split("```", 1)[0]
    for there, here in (
        ("/usr/local/sbin/orch-node-test", f"{HOME}/orch-node-test --state {HOME}/evidence"),
        ("/opt/venv/bin/python", sys.executable),
        ("--limit 45", f"--limit {judge.LIMIT_S} --seconds 0.5 $(cat {HOME}/options)"),
        ("SLURM_CONF=/etc/slurm/slurm.conf", f"SLURM_CONF={lab.slurm_conf}"),
        (
            "--on-fail '",
            f"""--on-fail 'echo "$ORCH_VERDICT $ORCH_DEVICE $ORCH_REASON" >>{HOME}/told; """
            f"""cp "$ORCH_EVIDENCE" {HOME}/seen; """,
        ),
        ("logger -t orch-node-test", f'sed "s/^/$SLURM_SCRIPT_CONTEXT /" >>{HOME}/log'),
    ):
        assert there in script, there
        script = script.replace(there, here)
    return f"#!/bin/sh\n{script}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("nodetest")
    made: Lab = labs.up(folder / "lab", nodes=2, gpus_per_node=0, slurm=True, say=lambda _: None)
    script = documented_script(made)
    for node in made.nodes:
        written = str(node.home / "orch-node-test")
        done = commands.orch(folder, "accept", "sentinel", "--output", written)
        assert done.returncode == 0, done
        (node.home / "node-test.sh").write_text(script)
        (node.home / "node-test.sh").chmod(0o755)
        (node.home / "options").touch()
    with made.slurm_conf.open("a") as conf:
        conf.write(f"Prolog={HOME}/node-test.sh\nEpilog={HOME}/node-test.sh\n")
    asked(made, "scontrol", "reconfigure")
    yield made
    labs.down(made.directory)


def run_job(lab: Lab, node: str) -> str:
    """What a job on a node says, which starts after the Prolog."""
    return asked(lab, "srun", "-w", node, "-N1", "--immediate=1800", "hostname").strip()


def lines(lab: Lab, node: str, context: str) -> list[str]:
    """What the node test said in a Prolog, an Epilog or, without a context, a health check."""
    path = lab.node(node).home / "log"
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines() if line.startswith(f"{context} orch-node-test")]


def ended_well(lab: Lab, node: str) -> bool:
    """Whether a hook on a node has ended with 0; it may have failed before, if Slurm was slow."""
    path = lab.node(node).home / "log"
    return path.exists() and ": ended with 0" in path.read_text()


def wait_for_epilogs(lab: Lab, node: str, count: int) -> None:
    """Wait until so many Epilogs have said something."""
    judge.wait_for(
        lambda: len(lines(lab, node, "epilog_slurmd")) >= count, judge.LIMIT_S, "no Epilog"
    )


def slurm_state(lab: Lab, node: str) -> str:
    """State of a node and reason for it, as Slurm has them."""
    return asked(lab, "sinfo", "-hN", "-n", node, "-p", "lab", "-o", "%T %E").strip()


def test_a_job_runs_between_looks_and_a_busy_node_is_left_alone(lab: Lab) -> None:
    options = lab.node("node1").home / "options"
    options.write_text("--busy 1000")
    assert run_job(lab, "node1") == "node1"
    assert lines(lab, "node1", "prolog_slurmd") == ["prolog_slurmd orch-node-test node1: good"]
    wait_for_epilogs(lab, "node1", 1)
    assert "not measured: last look " in lines(lab, "node1", "epilog_slurmd")[0]

    options.write_text("--interval 0")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        assert run_job(lab, "node1") == "node1"
        other.kill()
    assert "not measured: others use " in lines(lab, "node1", "prolog_slurmd")[-1]
    assert not (lab.node("node1").home / "told").exists()
    assert slurm_state(lab, "node1").startswith(("idle", "alloc", "comp"))


def test_a_throttled_node_is_found_and_drained_by_the_hook_alone(lab: Lab) -> None:
    if reason := node_groups.obstacle("cpu"):
        pytest.skip(reason)
    home = lab.node("node2").home
    (home / "options").write_text(f"--busy 1000 {EAGER}")
    for number in range(HEALTHY_LOOKS // 2):
        assert run_job(lab, "node2") == "node2"
        wait_for_epilogs(lab, "node2", number + 1)
    said = lines(lab, "node2", "prolog_slurmd") + lines(lab, "node2", "epilog_slurmd")
    assert all(line.endswith(" node2: good") for line in said), said

    def is_found() -> bool:
        with suppress(subprocess.CalledProcessError):  # Slurm may give up a job of such a node
            run_job(lab, "node2")
        return ended_well(lab, "node2")

    faults.cpu(lab, "node2", THROTTLED)
    judge.wait_for(is_found, judge.LIMIT_S, lambda: lines_of_all(lab))
    faults.heal(lab)
    told = (home / "told").read_text()
    assert told.startswith("failed cpu-") and "% slower than its past in 1 of 1 looks" in told
    assert told.split()[1] in json.loads((home / "seen").read_text())["devices"]
    assert "slower than its past" in slurm_state(lab, "node2")
    assert run_job(lab, "node1") == "node1" and "drain" not in slurm_state(lab, "node1")


def test_a_health_check_acts_once_and_drains_nothing_by_itself(lab: Lab) -> None:
    home = lab.node("node1").home
    (home / "options").write_text("--gpus 8")
    with lab.slurm_conf.open("a") as conf:
        conf.write(f"HealthCheckProgram={HOME}/node-test.sh\nHealthCheckInterval=1\n")
    asked(lab, "scontrol", "reconfigure")
    judge.wait_for(lambda: ended_well(lab, "node1"), judge.LIMIT_S, lambda: lines_of_all(lab))
    assert slurm_state(lab, "node1").endswith("node expected 8 GPUs, found 0")
    asked(lab, "scontrol", "update", "NodeName=node1", "State=RESUME")
    seen, told = len(lines(lab, "node1", "")), (home / "told").read_text()

    def is_said_again() -> bool:
        # Slurm may make no further check for minutes. Two at once are one look.
        on_node(lab, "node1", f"SLURMD_NODENAME=node1 {HOME}/node-test.sh")
        said = lines(lab, "node1", "")
        return len(said) > seen and "failed: node: expected 8 GPUs" in said[-1]

    judge.wait_for(is_said_again, judge.LIMIT_S, lambda: lines_of_all(lab))
    assert set(told.splitlines()) == {"failed node expected 8 GPUs, found 0"}
    assert (home / "told").read_text() == told
    assert "drain" not in slurm_state(lab, "node1")  # its failure is no news, and status 5 no order


def lines_of_all(lab: Lab) -> str:
    """All that the node test said on all nodes."""
    return "\n".join(path.read_text() for node in lab.nodes for path in [node.home / "log"])
