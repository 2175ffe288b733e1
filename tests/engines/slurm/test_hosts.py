"""The hosts of a Slurm job as an inventory, alone and on top of the project's own."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from orchestrator.engines.listing import lists_all
from orchestrator.engines.slurm import client as slurm
from orchestrator.engines.slurm import hosts as allocation
from orchestrator.engines.slurm.hosts import inventory_text, names_of
from orchestrator.errors import ConfigError
from orchestrator.inventory import open_inventory
from tests.support.commands import orch

JOB = (
    "JobId=7 JobState=RUNNING NodeList=gpu[01-02],big1 NumNodes=3 NumTasks=12 "
    "Nodes=gpu[01-02] CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:1,3)"
)
BASE = """\
schema: 1
defaults: {gpus: 8, vars: {python: /opt/py}}
hosts: {"gpu[01-04]": {}, big1: {address: 10.0.0.9, gpus: 0, slots: 64}}
"""


def test_without_an_inventory_hosts_have_the_gpus_of_the_job_or_a_rank_for_each_task(
    tmp_path: Path,
) -> None:
    assert doctest.testmod(allocation).failed == 0
    path = tmp_path / "slurm-7.yaml"
    path.write_text(inventory_text(slurm.parse(JOB), "ssh", "", {}))
    seen = [
        (host.name, host.gpus, host.slots, dict(host.vars))
        for host in open_inventory(str(path)).hosts
    ]
    facts = {"slurm_job": "7", "cuda_visible_devices": "1,3"}
    assert seen == [
        ("gpu01", 2, 1, facts),
        ("gpu02", 2, 1, facts),
        ("big1", 0, 4, {"slurm_job": "7"}),
    ]


def test_on_an_inventory_only_what_belongs_to_the_job_changes(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(BASE)
    base = open_inventory(str(tmp_path / "cluster.yaml"))
    job = slurm.parse(JOB)
    assert lists_all(base, names_of(job))
    path = tmp_path / "slurm-7.yaml"
    path.write_text(inventory_text(job, "ssh", str(tmp_path / "cluster.yaml"), {"gpu01": "0,1"}))
    hosts = open_inventory(str(path)).of(names_of(job))
    assert [
        (host.gpus, host.slots, host.vars.get("cuda_visible_devices"), host.vars["python"])
        for host in hosts
    ] == [
        (2, 1, "0,1", "/opt/py"),
        (2, 1, "1,3", "/opt/py"),
        (0, 64, None, "/opt/py"),
    ]
    assert hosts[2].address == "10.0.0.9"


def test_an_inventory_that_lists_some_hosts_of_the_job_is_refused_and_one_of_other_machines_is_not_used(
    tmp_path: Path,
) -> None:
    (tmp_path / "cluster.yaml").write_text(BASE)
    base = open_inventory(str(tmp_path / "cluster.yaml"))
    with pytest.raises(
        ConfigError, match=r"expected all hosts of the job, gpu\[05-06\] are missing"
    ):
        lists_all(base, ["gpu04", "gpu05", "gpu06"])
    assert not lists_all(base, ["node1"])


def test_a_job_that_waits_has_no_hosts() -> None:
    with pytest.raises(
        ConfigError, match=r"expected a running job, got one in state PENDING \(Resources\)"
    ):
        names_of(slurm.parse("JobId=7 JobState=PENDING Reason=Resources NodeList=(null)"))


@pytest.mark.parametrize("fields", ["HetJobId=7 HetJobOffset={}", "ArrayJobId=7 ArrayTaskId={}"])
def test_a_job_of_several_parts_is_refused_with_their_numbers(
    fields: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"JobId={7 + at} {fields.format(at)} JobState=RUNNING NodeList=n{at}\n" for at in range(2)
    ]
    (tmp_path / "scontrol").write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "END\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = slurm.job("7")
    assert job and job.components == ("7", "8")
    with pytest.raises(ConfigError, match="got a heterogeneous job or an array: 7, 8") as caught:
        names_of(job)
    assert "--hosts slurm:8" in caught.value.hint


def test_outside_of_a_job_the_way_into_one_is_named(tmp_path: Path) -> None:
    done = orch(tmp_path, "check", "--hosts", "slurm")
    assert done.returncode == 2
    assert (
        "--hosts slurm: expected to run inside a job of Slurm: SLURM_JOB_ID is not set. start it with salloc"
        in done.stderr
    )
    done = orch(tmp_path, "check", "--hosts", "srun:a1")
    assert (done.returncode, "expected the number of a job, got 'a1'" in done.stderr) == (2, True)
    assert not (tmp_path / ".orch").exists()
