"""`orch undeploy`: the nodes are as before the first deploy, except for what nobody has collected
and what runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.rig import LONG, QUICK, Controller
from tests.support import judge

WORKDIR = "undeployed"


@pytest.fixture(autouse=True)
def own_workdir(controller: Controller, tmp_path: Path) -> None:
    """A work directory that no other test of this lab uses, in the home of each node."""
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text(
        controller.lab.inventory.read_text().replace(
            "  vars:\n", f"  vars:\n    workdir: /root/{WORKDIR}\n", 1
        )
    )
    controller.environment["ORCH_HOSTS"] = str(inventory)


def files(controller: Controller, node: str) -> list[str]:
    """What is in the work directory of a node, seen from outside."""
    root = controller.lab.node(node).home / WORKDIR
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_payload_and_collected_runs_go_and_other_runs_stay_unless_forced(
    controller: Controller, tmp_path: Path
) -> None:
    assert controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1").code == 0
    other = Controller(controller.lab, tmp_path / "other", controller.environment)
    other.project.mkdir()
    assert other.orch("bench", *QUICK, "--nodes", "1", "--gpus", "1").code == 0

    before = files(controller, "node1")
    said = controller.orch("undeploy", "--dry-run")
    assert said.code == 0 and "removed" not in said.out and files(controller, "node1") == before
    done = controller.orch("undeploy")
    assert done.code == 0, done
    assert f"node1: /root/{WORKDIR}: to remove: payload (" in done.out and "1 run (" in done.out
    assert "; stays: 1 run not collected" in done.out and "node[3-4]: nothing of orch" in done.out
    assert f"node2: /root/{WORKDIR}: removed; remains: nothing" in done.out
    left = {name.split("/")[3] for name in files(controller, "node1")}
    assert left == {path.name for path in other.project.glob("runs/*/*.001-*")}
    assert not (controller.lab.node("node2").home / WORKDIR).exists()

    assert "node1 still has files of 1 of its runs" in other.orch("rm", other.bench.name).out
    assert other.orch("undeploy").code == 0
    for project in (controller, other):
        removed = project.orch("rm", "--yes", project.bench.name)
        assert removed.code == 0 and "files of" not in removed.out, removed
    assert not (controller.lab.node("node1").home / WORKDIR).exists()
    assert other.orch("undeploy").out == "node[1-4]: nothing of orch\n"


def test_a_run_in_progress_stays_with_its_payload_even_if_forced(controller: Controller) -> None:
    process = controller.start("bench", *LONG, "--nodes", "1", "--gpus", "1")
    judge.wait_for(
        lambda: any(name.endswith("rank-0.out") for name in files(controller, "node1")),
        30,
        "no rank has started",
    )
    before = [name for name in files(controller, "node1") if not name.endswith(".tmp")]
    refused = controller.orch("undeploy", "--force")
    assert refused.code == 1 and "node1: a run is in progress and stays" in refused.err, refused
    assert set(before) <= set(files(controller, "node1"))
    process.terminate()
    assert controller.end(process, 60).code == 143
    assert controller.orch("undeploy").code == 0
    assert not (controller.lab.node("node1").home / WORKDIR).exists()
