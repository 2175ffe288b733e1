"""What the end of an srun means, by the words of Slurm 22.05 as a lab recorded them."""

from __future__ import annotations

import pytest

from orchestrator.errors import TransportError
from orchestrator.inventory import Host
from orchestrator.transport.slurm import step
from orchestrator.transport.slurm.step import job_of, outcome, read_messages, relay, spawners

BINDING = "srun: cluster configuration lacks support for cpu binding\n"


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands be made where Slurm is not installed, and nobody be asked about a job."""
    monkeypatch.setattr(step.slurm, "program", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(step, "_of_job", lambda job: "")


@pytest.mark.parametrize(
    ("code", "stderr", "ended"),
    [
        (0, BINDING, (0, None)),
        (0, "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n", (0, None)),
        (42, f"{BINDING}srun: error: node2: task 0: Exited with exit code 42\n", (42, None)),
        (2, "slurmstepd-node2: error: execve(): nope: No such file or directory\n", (2, None)),
        (137, "srun: error: node2: task 0: Killed\nsrun: Force Terminated StepId=57448001.11\n", (None, "SIGKILL")),
        (143, "srun: error: node2: task 0: Terminated\nsrun: Force Terminated StepId=57448001.12\n", (None, "SIGTERM")),
        (1, "the program's own words: CANCELLED\n", (1, None)),
    ],
)  # fmt: skip
def test_a_command_that_ended_is_told_from_its_step(
    code: int, stderr: str, ended: tuple[int | None, str | None]
) -> None:
    assert outcome("7", code, stderr.encode()) == ended


@pytest.mark.parametrize(
    ("code", "stderr", "words"),
    [
        (-9, BINDING, "the step ended: srun was ended by SIGKILL"),
        (1, "srun: error: Unable to confirm allocation for job 7: Invalid job id specified\n", "confirm"),
        (137, "slurmstepd-node1: error: *** STEP 7.4 ON node1 CANCELLED AT 2026-11-24T06:06:12 ***\n", "STEP 7.4"),
        (1, "srun: error: Unable to create step for job 7: Job/step already completing or completed\n", "already completing"),
        (143, "srun: error: Node failure on node3\nsrun: error: node3: task 0: Killed\n", "Node failure on node3"),
    ],
)  # fmt: skip
def test_a_step_that_ended_is_a_lost_connection_in_slurms_words(
    code: int, stderr: str, words: str
) -> None:
    error = outcome("7", code, stderr.encode())
    assert (
        isinstance(error, TransportError) and error.kind == "node_lost" and words in error.message
    )


def test_only_lines_of_slurm_are_slurms() -> None:
    assert read_messages(
        b"srun: error: a\nslurmstepd-gpu01.x: error: b\nsrun: c\nmine: d\n srun: e\n"
    ) == [
        "a",
        "b",
        "c",
    ]


def test_a_step_has_one_task_a_node_and_no_variables_but_the_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("HF_TOKEN", "secret")
    one = relay("7", "gpu01", ["python3", "-"])
    assert one[:2] == ["/usr/bin/srun", "--jobid=7"] and one[-2:] == ["python3", "-"]
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu01", "--export=PATH"} <= set(one)
    assert step.environment() == {"PATH": "/bin"}
    all_nodes = spawners("7", "gpu[01-03]", 3, ["python3"])
    assert {
        "--nodes=3",
        "--ntasks=3",
        "--ntasks-per-node=1",
        "--no-kill",
        "--nodelist=gpu[01-03]",
    } <= set(all_nodes)


def test_a_host_names_its_job_or_is_in_the_one_of_this_process() -> None:
    here = {"SLURM_JOB_ID": "9"}
    assert job_of(Host("n1", "n1", vars={"slurm_job": "7"}), here) == "7"
    assert job_of(Host("n1", "n1", transport="srun"), here) == "9"
    assert job_of(Host("n1", "n1"), here) == ""
