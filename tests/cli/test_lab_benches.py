"""A bench that ran in a lab is reached only through the lab, and benches are listed where there is
no inventory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.record.bench_record import BenchRecord, find_inventory
from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir
from tests.support.cli_project import Project
from tests.support.features import needs
from tests.support.run_folders import manifest

NAME = "20261128-000000-aaaa"
SAYS = f"{NAME}: this bench ran in a lab, and its nodes are only reached in there. repeat the command inside: orch lab exec"


def running_bench(project: Path, **record: object) -> BenchDir:
    """Return a bench with a run in progress, of hosts at addresses that the network has elsewhere,
    too.
    """
    inventory = project / "site.yaml"
    inventory.write_text(
        "schema: 1\nhosts: {node1: {address: 192.0.2.2}, node2: {address: 192.0.2.3}}\n"
    )
    content = {"bench_id": NAME, "inventory": str(inventory), "runs": [f"{NAME}-1"], **record}
    bench = BenchDir.create(project / "runs", content)
    bench.run(f"{NAME}-1").write_manifest(manifest(f"{NAME}-1") | {"outcome": None})
    return bench


@pytest.mark.parametrize(
    "words",
    [
        ["logs"],
        pytest.param(["stacks"], marks=needs("hang")),
        ["collect"],
        ["resume"],
        ["cancel", NAME],
        ["cancel", NAME, "-H", "a"],
    ],
)
@pytest.mark.parametrize("known_by", ["its record", "a variable of its hosts"])
def test_outside_no_address_of_a_lab_is_contacted(
    project: Project, words: list[str], known_by: str
) -> None:
    planned = {
        "hosts": {"node1": {"vars": {"lab_private": "/tmp"} if known_by != "its record" else {}}},
        "frameworks": {},
    }
    running_bench(
        project.path, planned_with=planned, **({"lab": "a1"} if known_by == "its record" else {})
    )
    done = project.orch(*words)
    assert (done.returncode, done.stdout) == (2, "") and SAYS in done.stderr, done


def test_inside_a_lab_and_for_benches_of_no_lab_the_inventory_is_that_of_the_bench() -> None:
    of_lab, other = (
        BenchRecord(NAME, inventory="lab.yaml", lab="a1"),
        BenchRecord(NAME, inventory="site.yaml"),
    )
    assert (
        find_inventory(of_lab, {"ORCH_LAB": "another, as after orch lab down and up"}) == "lab.yaml"
    )
    assert find_inventory(other, {}) == "site.yaml"


def test_a_project_without_an_inventory_lists_its_benches(project: Project) -> None:
    running_bench(project.path)
    (project.path / "inventory" / "cluster.yaml").unlink()
    done = project.orch("status")
    assert (done.returncode, done.stdout) == (
        0,
        f"bench    {NAME}  1 open; to continue: orch resume {NAME}\n",
    ), done
    assert "no node is asked: this project has no inventory; --hosts names one" in done.stderr
    assert f'"{NAME}"' in project.orch("status", "--json").stdout
    assert project.orch("status", "--hosts", "missing.yaml").returncode == 2


def test_a_run_without_a_beginning_is_called_as_in_a_summary(project: Project) -> None:
    running_bench(project.path, runs=[f"{NAME}-1", f"{NAME}-2"])
    (project.path / "inventory" / "cluster.yaml").unlink()
    assert f"bench    {NAME}  1 open, 1 never run; to " in project.orch("status").stdout
    counts = json.loads(project.orch("status", "--json").stdout)["benches"]
    assert counts == {NAME: {"open": 1, "never_run": 1}}


def test_a_run_whose_logs_have_no_number_has_failed(project: Project) -> None:
    bench = running_bench(project.path)
    (project.path / "inventory" / "cluster.yaml").unlink()
    bench.run(f"{NAME}-1").write_manifest(manifest(f"{NAME}-1"))
    error = {"kind": "log_unmatched", "run_id": f"{NAME}-1", "message": "no line of a step"}
    bench.event(Event.BEGUN, argv=["orch", "bench"])
    bench.event(Event.OVER, code=4, errors=[])
    assert project.orch("status").stdout == f"bench    {NAME}  1 finished\n"
    bench.event(Event.OVER, code=4, errors=[error])
    assert project.orch("status").stdout == f"bench    {NAME}  1 failed\n"


def test_a_damaged_bench_is_told_beside_the_others(project: Project) -> None:
    running_bench(project.path)
    (project.path / "inventory" / "cluster.yaml").unlink()
    record = project.path / "runs" / "bench-2" / "bench.json"
    record.parent.mkdir()
    record.write_text('{"schema')
    done = project.orch("status")
    assert done.returncode == 4 and done.stdout.startswith(f"bench    {NAME}  1 open"), done
    assert f"{record}: expected JSON, got " in done.stderr and "orch rm bench-2" in done.stderr
    (fault,) = json.loads(project.orch("status", "--json").stdout)["damaged"].items()
    assert (fault[0], fault[1]["kind"]) == ("bench-2", "state_damaged")


@pytest.mark.parametrize("command", ["check", "deploy", "status"])
def test_outside_its_lab_a_project_takes_no_inventory_that_nothing_names(
    project: Project, command: str
) -> None:
    (project.path / ".orch" / "lab").mkdir(parents=True)
    (project.path / ".orch" / "lab" / "lab.json").write_text("{}")
    done = project.orch(command)
    if command == "status":
        assert (
            done.returncode == 0
            and "no node is asked: this project has a lab: orch lab exec -- orch status"
            in done.stderr
        ), done
    else:
        assert done.returncode == 2 and "this project has a lab" in done.stderr, done
        assert "orch lab exec -- orch" in done.stderr
