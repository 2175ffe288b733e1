"""What Slurm says of a job, read from the lines that scontrol 22.05 printed in a lab, and requests
that cannot be made.
"""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from orchestrator.engines.slurm import client as slurm
from orchestrator.engines.slurm.hosts import names_of
from orchestrator.errors import ConfigError, RunError

RUNS = (Path(__file__).parents[2] / "data" / "slurm" / "job_with_gpus.txt").read_text()


def test_a_record_says_state_hosts_and_devices() -> None:
    assert doctest.testmod(slurm).failed == 0
    job = slurm.parse(RUNS)
    assert (job.id, job.state, job.reason, job.user, job.uid) == (
        "21355001",
        "RUNNING",
        "",
        "root",
        0,
    )
    assert (job.nodes, job.tasks_per_node, job.devices, job.end) == (
        "node[1-3]",
        1,
        (("node[1-3]", "0", 1),),
        "",
    )
    assert not job.has_ended
    assert slurm.parse(RUNS.replace("RUNNING", "NODE_FAIL")).has_ended


def test_a_job_of_another_user_is_refused_unless_root_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    job = slurm.parse("JobId=7 JobState=RUNNING UserId=bob(1001) GroupId=bob(1001)")
    for uid in (0, 1001):
        monkeypatch.setattr(slurm.os, "geteuid", lambda uid=uid: uid)
        slurm.check_owner(job, "--hosts")
        slurm.check_owner(slurm.parse("JobId=7 JobState=RUNNING"), "--hosts")
    monkeypatch.setattr(slurm.os, "geteuid", lambda: 1002)
    with pytest.raises(ConfigError, match="expected a job of your own, but job 7 belongs to bob"):
        slurm.check_owner(job, "--hosts")


@pytest.mark.parametrize(
    ("gres", "devices"),
    [
        ("gpu:2(IDX:0-1)", (("n1", "0,1", 2),)),
        ("gpu:a100:1(IDX:2),gpu:v100:2(IDX:0,3)", (("n1", "0,2,3", 3),)),
        ("gpu:4(CNT:4)", (("n1", "", 4),)),
        ("gpu:4", (("n1", "", 4),)),
        ("shard:3(IDX:0)", ()),
        ("", ()),
    ],
)
def test_devices_are_numbered_only_where_slurm_numbers_all_of_them(
    gres: str, devices: tuple[tuple[str, str, int], ...]
) -> None:
    assert (
        slurm.parse(
            f"JobId=1 JobState=RUNNING Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres} MinCPUsNode=1"
        ).devices
        == devices
    )


@pytest.mark.parametrize("gres", ["gpu:99999999999999999999", "gpu:2(IDX:0-99999999999)"])
def test_no_node_has_as_many_devices(gres: str) -> None:
    record = f"JobId=1 JobState=RUNNING Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}"
    with pytest.raises(RunError, match="expected at most 1024 GPUs on a node"):
        slurm.parse(record)


def test_the_first_part_of_a_heterogeneous_job_is_no_whole_job() -> None:
    """Slurm shows it alone while, or after, the others are not there; any other part may be named."""
    record = "JobId=%d HetJobId=7 HetJobOffset=%d HetJobIdSet=7-8 JobState=RUNNING NodeList=n1"
    with pytest.raises(ConfigError, match="got a heterogeneous job or an array: 7, 8. name a part"):
        names_of(slurm.parse(record % (7, 0)))
    assert names_of(slurm.parse(record % (8, 1))) == ["n1"]


def test_hosts_with_different_devices_have_a_line_each_and_tasks_are_those_of_one_node() -> None:
    nodes = "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3) Nodes=n[4-5] CPU_IDs=0 GRES=gpu:2(IDX:0-1)"
    text = f"JobId=1 JobState=RUNNING NumNodes=2 NumTasks=6 {nodes}"
    job = slurm.parse(text)
    assert job.devices == (("n1", "3", 1), ("n[4-5]", "0,1", 2))
    assert job.tasks_per_node == 3
    assert slurm.parse(text + " NtasksPerN:B:S:C=4:0:*:*").tasks_per_node == 4


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(RunError, match="expected the record of a job, got 'slurm_load_jobs error"):
        slurm.parse("slurm_load_jobs error: Unable to contact slurm controller")
    for text in ("", "x", "-1", "1;2", "12345678901"):
        with pytest.raises(ConfigError, match="expected the number of a job"):
            slurm.job_id(text, "--hosts")
    assert slurm.here({"SLURM_JOB_ID": "12; rm"}) == slurm.here({}) == ""


def test_a_missing_program_and_one_that_fails_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match="expected Slurm's program squeue, which is not on the PATH"
    ):
        slurm.call(["squeue"])
    (tmp_path / "squeue").write_text(
        "#!/bin/sh\necho 'squeue: error: Invalid user: x' >&2\nexit 3\n"
    )
    (tmp_path / "squeue").chmod(0o755)
    with pytest.raises(RunError, match="Invalid user: x") as caught:
        slurm.call(["squeue"])
    assert caught.value.where == "Slurm: squeue"
