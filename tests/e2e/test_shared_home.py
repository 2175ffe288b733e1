"""Nodes with one home for all of them, as on most HPC sites, and everything else of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import lab as labs
from tests.e2e.rig import QUICK, Controller
from tests.support import judge
from tests.support.faultlab import shared_folder

NODES = ("node1", "node2", "node3")


@pytest.fixture
def work(controller: Controller) -> Iterator[Path]:
    """The default work directory, below the home that three nodes share; the fourth has its own.

    All else below the home stays: an interpreter may be there.
    """
    with shared_folder(controller.lab, "work-of-three") as folder:
        for name in NODES:
            mount = f"mkdir -p -m 700 ~/.orch-node && mount --bind {folder} ~/.orch-node"
            subprocess.run(labs.argv_on(controller.lab, name, ["sh", "-c", mount]), check=True)
        try:
            yield folder
        finally:
            for name in NODES:
                subprocess.run(
                    labs.argv_on(controller.lab, name, ["umount", "-l", "/root/.orch-node"]),
                    check=True,
                )


def test_the_whole_job_runs_on_nodes_that_share_their_home(
    controller: Controller, work: Path
) -> None:
    deploy = controller.orch("deploy", "-f", "simulated")
    assert deploy.code == 0, deploy
    (line,) = [line for line in deploy.out.splitlines() if line.startswith("shared ")]
    assert (
        line.split()[1:3] == ["node[1-3]", "ok"]
        and "/root/.orch-node is one directory on node[1-3]" in line
    ), line
    assert (
        controller.orch("check", "-f", "simulated", "--only", "shared").out.count("node[1-3]") == 2
    )
    bench = controller.orch("bench", *QUICK, "--nodes", "1,4", "--gpus", "2")
    assert bench.code == 0, bench
    assert controller.orch("collect").code == controller.orch("summarize").code == 0
    assert judge.ours(controller.lab) == []
    payloads = [path.name for path in (work / "payload").iterdir()]
    assert len(payloads) == 1 and not list(work.rglob("*.tmp")) and not list(work.rglob("env.sh"))
    run = controller.runs[-1]
    for rank, host in enumerate(("node1", "node2", "node3", "node4")):
        here = {path.name: judge.sha256(path) for path in (run / "logs" / host).iterdir()}
        assert {name for name in here if name.endswith(".out")} == {
            "node.out",
            f"rank-{2 * rank}.out",
            f"rank-{2 * rank + 1}.out",
        }
        top = (
            (work if host in NODES else controller.lab.node(host).home / ".orch-node")
            / "nodes"
            / host
            / "runs"
            / run.name
        )
        assert here.pop("exit.json") == judge.sha256(top / "exit.json")
        assert here == {path.name: judge.sha256(path) for path in (top / "logs").iterdir()}
    prune = controller.orch("collect", "--prune")
    assert prune.code == 0 and not list(work.glob("nodes/*/runs/*")), prune
