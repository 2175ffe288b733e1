"""The job of ``orch bench --slurm`` as data: which options of sbatch, and a script that lets go of
nodes that nobody uses.
"""

from __future__ import annotations

import doctest
import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.engines.slurm import options as sbatch_options
from orchestrator.engines.slurm import request as job
from orchestrator.engines.slurm.request import IDLE_S, parse_job
from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from tests.support.commands import orch
from tests.support.features import needs
from tests.support.judge import LIMIT_S
from tests.support.refusing_slurm import submitted, with_refusing_slurm


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("partition=gpu", ["--partition=gpu"]),
        ("--partition=gpu, qos=high", ["--partition=gpu", "--qos=high"]),
        ("time=90s", ["--time=2"]),
        ("time=1h", ["--time=60"]),
        ("time=1h30m", ["--time=90"]),
        ("time=1d,time-min=90m", ["--time=1440", "--time-min=90"]),
        ("time=UNLIMITED", ["--time=UNLIMITED"]),
        ("--container-image=a/b:1 -p gpu", ["--container-image=a/b:1", "--partition=gpu"]),
        ("-p gpu -O", ["--partition=gpu", "--overcommit"]),
        ("time=1-12:00:00", ["--time=1-12:00:00"]),
        ("nodelist=n[1,3-4],n7,time=5m", ["--nodelist=n[1,3-4],n7", "--time=5"]),
        ("exclusive,gres=gpu:2", ["--exclusive", "--gres=gpu:2"]),
        ("--partition=gpu --gres=gpu:8 -t 10", ["--partition=gpu", "--gres=gpu:8", "--time=10"]),
        (
            "-p gpu,debug -t10 --qos high --exclusive",
            ["--partition=gpu,debug", "--time=10", "--qos=high", "--exclusive"],
        ),
        ("#!/bin/sh\n#SBATCH -A me\n# a comment\n#SBATCH --mem 3G\n", ["--account=me", "--mem=3G"]),
        ("--constraint='a100&nvlink'", ["--constraint=a100&nvlink"]),
        ("comment=two words,qos=x", ["--comment=two words", "--qos=x"]),
    ],
)
def test_options_are_those_of_sbatch_and_nodes_those_of_the_bench(
    text: str, options: list[str]
) -> None:
    assert doctest.testmod(job).failed == doctest.testmod(sbatch_options).failed == 0
    assert list(parse_job(text, 4).options) == [*options, "--nodes=4", "--ntasks-per-node=1"]


def test_given_nodes_and_tasks_win_and_a_later_job_has_the_same_hosts() -> None:
    wanted = parse_job("nodes=8,ntasks-per-node=2,exclude=n9", 4)
    assert wanted.options == ("--nodes=8", "--ntasks-per-node=2", "--exclude=n9")
    assert wanted.on(["n1", "n2"]).options == (
        "--ntasks-per-node=2",
        "--nodes=2",
        "--nodelist=n[1-2]",
    )
    assert parse_job("partition=gpu", 4, spares=2).options[1] == "--nodes=6"
    assert parse_job("ntasks=16", 4).options == ("--ntasks=16", "--nodes=4")
    assert {"--no-requeue", "--no-kill", "--job-name=orch-b1"} <= set(wanted.argv("b1"))


@pytest.mark.parametrize(
    ("text", "nodes", "words"),
    [
        ("partition", 4, "expected OPTION=VALUE,…, got 'partition'"),
        ("partition=", 4, "got 'partition='"),
        ("partition=gpu gres=gpu:8", 4, "separate options by commas: partition=gpu,gres=gpu:8"),
        ("--partition gpu debug", 4, "expected options of sbatch, got 'debug'"),
        ("-p gpu -Z 3", 4, "expected options of sbatch, got '-Z'"),
        ("-N1 -p cpu : -N1 -p gpu", 4, "expected a job of one part, got a heterogeneous job"),
        ("#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N1", 4, "got a heterogeneous job"),
        ("--gres --exclusive", 4, "expected a value after --gres"),
        ("-J mine", 4, "orch finds the job by its name"),
        ("--comment='x", 4, "expected paired quotes"),
        ("Partition=gpu", 4, "did you mean 'partition'?"),
        ("requeue=1", 4, "expected no requeue"),
        ("job-name=x", 4, "orch finds the job by its name"),
        ("time=1h,time=2h", 4, "time is set twice"),
        ("partition=gpu", 0, "expected the number of nodes. add --nodes or --shape"),
        ("nodes=2", 4, "expected nodes for the largest run, 4, got nodes=2"),
        ("nodes=1-3", 4, "got nodes=3"),
        (
            "--partion=gpu",
            4,
            "expected an option of sbatch, got 'partion'. did you mean 'partition'?",
        ),
        ("qso=high", 4, "did you mean 'qos'?"),
        ("--gpu-per-node=8", 4, "did you mean 'gpus-per-node'?"),
        ("gpu=8", 4, "did you mean 'gpus'?"),
        ("--gre=gpu:8", 4, "did you mean 'gres'? write its whole name"),
        ("gres=gpus:8", 4, "expected gpu:N or gpu:TYPE:N, got 'gpus:8'. did you mean gres=gpu:8?"),
        ("tres-per-node=gres/GPU:h100:8", 4, "did you mean tres-per-node=gres/gpu:h100:8?"),
        ("gres=gpu:8,gpus-per-node=4", 4, "the GPUs of a node once, got gpus-per-node and gres"),
        ("partition=gpu;gres=gpu:8", 4, "separate options by commas: partition=gpu,gres=gpu:8"),
        (
            "-p gpu,time=1h --gres=gpu:8",
            4,
            "expected one option, got time in the value of partition",
        ),
        ("time=soon", 4, "--slurm time: expected a time, got 'soon'. as in time=90m"),
        ("time-min=1:2:3:4", 4, "--slurm time-min: expected a time"),
    ],
)
def test_what_cannot_be_asked_is_refused(text: str, nodes: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(text, nodes)
    assert words in str(caught.value)


def test_nodes_that_are_given_must_hold_the_spares_too() -> None:
    assert (
        parse_job("nodes=3", 0, spares=2).options[0]
        == parse_job("nodes=3", 2, spares=1).options[0]
        == "--nodes=3"
    )
    with pytest.raises(
        ConfigError, match="expected nodes for the largest run and its 2 spares, 6, got nodes=4"
    ) as caught:
        parse_job("nodes=4", 4, spares=2)
    assert caught.value.hint == "raise it to 6, leave it out, or lower --spares"
    with pytest.raises(ConfigError, match="and its spare, 2, got nodes=1"):
        parse_job("nodes=1", 0, spares=1)


def test_the_script_ends_only_when_no_step_has_run_for_its_time(tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text('#!/bin/sh\n[ -e "$0.broken" ] && exit 1\ncat "$0.steps"\n')
    (tmp_path / "squeue").chmod(0o755)
    steps = tmp_path / "squeue.steps"
    steps.write_text("7.batch\n7.extern\n7.12\n")
    script = (
        parse_job("partition=x", 1)
        .script.replace("sleep 5", "sleep 0.05")
        .replace(f"-lt {IDLE_S}", "-lt 20")
    )
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    process = subprocess.Popen(["sh", "-c", script], env=variables)
    try:
        time.sleep(0.6)
        assert process.poll() is None, "a step runs"
        (tmp_path / "squeue.broken").touch()
        steps.write_text("7.batch\n7.extern\n")
        time.sleep(0.6)
        assert process.poll() is None, "whether a step runs is not known"
        (tmp_path / "squeue.broken").unlink()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait(LIMIT_S)


@pytest.mark.parametrize(
    ("text", "names", "gpus", "slots"),
    [
        ("nodes=2", ["slurm-0", "slurm-1"], 0, 1),
        ("nodes=1-2,ntasks-per-node=3", ["slurm-0", "slurm-1"], 0, 3),
        ("nodes=2,nodelist=n[3,7]", ["n3", "n7"], 0, 1),
        ("nodes=1,nodelist=n[3,7]", ["slurm-0"], 0, 1),
        ("nodes=1,gpus-per-node=8", ["slurm-0"], 8, 1),
        ("nodes=1,gpus-per-node=a100:8", ["slurm-0"], 8, 1),
        ("nodes=1,gres=gpu:a100:2,tmpdisk:3", ["slurm-0"], 2, 1),
        ("nodes=1,gres=gpu", ["slurm-0"], 1, 1),
        ("nodes=1,gres=gpu:tesla:2(S:0-1)", ["slurm-0"], 2, 1),
        ("nodes=1,gres=gres/gpu:h100:8", ["slurm-0"], 8, 1),
        ("nodes=1,tres-per-node=gres/gpu=4", ["slurm-0"], 4, 1),
        ("nodes=1,gres=gpu:a100:2(IDX:0,3),gpu:t4:1,shard:8", ["slurm-0"], 3, 1),
        ("nodes=1,gres=gpu:1g.5gb:2", ["slurm-0"], 2, 1),
        ("nodes=1,gpus=16", ["slurm-0"], None, 1),
        ("nodes=1,gpus-per-task=2", ["slurm-0"], 2, 1),
        ("nodes=1,gpus-per-task=h100:1,ntasks-per-node=8", ["slurm-0"], 8, 8),
        ("nodes=1,tres-per-task=gres/gpu:1,ntasks-per-node=4", ["slurm-0"], 4, 4),
        ("nodes=1,gpus-per-task=1,ntasks=8", ["slurm-0"], None, 1),
    ],
)
def test_stand_ins_for_the_jobs_hosts_have_what_is_asked_for(
    text: str, names: list[str], gpus: int | None, slots: int
) -> None:
    hosts = parse_job(text, 0).hosts
    assert [host.name for host in hosts] == names
    assert {(host.gpus, host.slots, host.transport) for host in hosts} == {(gpus, slots, "srun")}
    with pytest.raises(ConfigError, match="expected a number of nodes, got '4k'"):
        parse_job("nodes=4k", 0).hosts  # noqa: B018 - asked for its refusal


def test_the_printed_submission_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    options = "constraint=a100&nvlink,gres=gpu:tesla:2(S:0-1),comment=it is $HOME"
    done = orch(
        tmp_path,
        "bench",
        "resnet50",
        "-f",
        "simulated",
        "--nodes",
        "1",
        "--slurm",
        options,
        "--dry-run",
    )
    words = shlex.split(done.stdout.splitlines()[0])
    assert words[-5:-2] == [
        "--constraint=a100&nvlink",
        "--gres=gpu:tesla:2(S:0-1)",
        "--comment=it is $HOME",
    ]
    assert "'--constraint=a100&nvlink'" in done.stdout


def test_a_dry_run_shows_the_submission_and_what_would_run_in_it(tmp_path: Path) -> None:
    words = (
        "bench",
        "resnet50",
        "-f",
        "simulated",
        "--nodes",
        "1,4",
        "--slurm",
        "partition=gpu,gpus-per-node=2",
        "--dry-run",
    )
    done = orch(tmp_path, *words, environment={"SLURM_JOB_ID": "4711"})
    assert done.returncode == 0, done
    assert (
        done.stdout.startswith("sbatch --parsable --job-name=orch-20")
        and "--nodes=4" in done.stdout.splitlines()[0]
    )
    assert "simulated resnet50 4n2g, world size 8" in done.stdout
    assert "   node_rank 3: slurm-3 (slurm-3), ranks 6-7, devices 0,1\n" in done.stdout
    assert "MASTER_ADDR=slurm-0" in done.stdout
    assert "slurm-[0-3] stand for the hosts of the job, which are not known yet" in done.stderr
    assert (
        "submits another job, and this runs inside job 4711; to use its nodes: --hosts slurm"
        in done.stderr
    )
    done = orch(tmp_path, *words, "--json")
    assert {node["slot"]["host"] for run in json.loads(done.stdout) for node in run["nodes"]} == {
        f"slurm-{rank}" for rank in range(4)
    }
    assert done.stderr.startswith("sbatch ") and "inside job" not in done.stderr
    assert not (tmp_path / ".orch").exists()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return with_refusing_slurm(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("--gate", "quikc"),
        ("--gate", "wrong.yaml"),
        ("--budget", "soon"),
        ("--dtype", "fp61"),
        ("--set", "no_such_option=1"),
        ("--batch-size", "0"),
        ("--order", "backwards"),
        ("--until-ci", "narrow"),
        ("--max-repeats", "9"),
        ("--expect", "sampels_per_s >= 1"),
        ("--expect", "samples_per_s >= 1 dtype=bf16"),
        ("--baseline-shape", "2n9g"),
        ("--profile", "torch:ranks=99"),
        ("--devices", "0-x"),
        ("--gpus", "9"),
        ("--global-batch", "7"),
    ],
)
def test_what_no_hosts_make_possible_is_refused_before_a_job_is_submitted(
    project: Path, words: tuple[str, ...]
) -> None:
    bench = ("bench", "resnet50", "-f", "pytorch", "--nodes", "2", *words)
    code, errors, was_asked = submitted(
        project, *bench, "--slurm", "gpus-per-node=8", hosts="gpus.yaml"
    )
    plain = orch(project, *bench, "--hosts", "gpus.yaml", "--dry-run")
    assert (code, was_asked) == (2, False), errors
    assert errors == [line for line in plain.stderr.splitlines() if line.startswith("orch: ")]
    assert plain.returncode == code and errors


@pytest.mark.parametrize(
    ("words", "slurm", "hosts"),
    [
        (("--gpus", "9"), "time=1h", ""),  # a partition may add GPUs
        (("--gpus", "9"), "gpus-per-node=8,exclusive", ""),
        (("--gpus", "8"), "gpus=16", ""),
        (("--dtype", "fp8", "-f", "pytorch_lm", "--no-baseline"), "time=1h", ""),
        (("--devices", "node7:0-3", "--gpus", "4"), "gpus-per-node=2", ""),
        (("--gpus", "8"), "time=1h", "gpus.yaml"),
        pytest.param(("--gate", "quick"), "time=1h", "gpus.yaml", marks=needs("accept")),
        (("--gpus", "2"), "nodes=1k", ""),
    ],
)
def test_what_only_the_hosts_of_the_job_can_refuse_is_submitted(
    project: Path, words: tuple[str, ...], slurm: str, hosts: str
) -> None:
    model = "gpt2-124m" if "pytorch_lm" in words else "resnet50"
    code, errors, was_asked = submitted(
        project, "bench", model, "--nodes", "2", *words, "--slurm", slurm, hosts=hosts
    )
    assert code == 2 and was_asked, errors
    assert errors[0].startswith(
        "orch: --slurm: expected a job that Slurm accepts: Invalid partition name specified"
    ), errors


def test_gpus_of_a_whole_job_are_asked_for_by_node(tmp_path: Path) -> None:
    bench = ("bench", "resnet50", "-f", "simulated", "--nodes", "2", "--dry-run")
    done = orch(tmp_path, *bench, "--slurm", "gpus=16")
    assert done.returncode == 2
    assert "Slurm decides how many GPUs of the job each of slurm-[0-1] has" in done.stderr
    assert "gpus-per-node=N" in done.stderr


def test_hosts_of_a_job_may_be_like_any_of_the_inventory() -> None:
    listed = [
        Host("n1", "10.0.0.1", gpus=4, vars={"python": "/opt/python"}),
        Host("n2", "10.0.0.2", gpus=4, vars={"python": "/opt/python"}),
        Host("n3", "10.0.0.3", gpus=0, slots=6),
    ]

    def seen(text: str) -> list[tuple[str, int | None, int, int]]:
        possible = parse_job(text, 0).possible_hosts(listed)
        return [(first.name, first.gpus, first.slots, len(first.vars)) for first, *_ in possible]

    assert seen("nodes=2,gpus-per-node=2") == [
        ("slurm-0", 2, 1, 1),
        ("slurm-0", 2, 6, 0),
        ("slurm-0", 2, 1, 0),
    ]
    assert seen("nodes=1,gpus-per-node=2,nodelist=n3") == [("n3", 2, 6, 0), ("n3", 2, 1, 0)]
    assert [gpus for _, gpus, _, _ in seen("nodes=1,nodelist=n3")][:3] == [0, 8, 4]
    assert seen("nodes=1k") == []


def test_hosts_are_left_to_slurm(tmp_path: Path) -> None:
    done = orch(
        tmp_path, "bench", "resnet50", "--nodes", "4", "--slurm", "time=1h", "--hosts", "n[1-4]"
    )
    assert done.returncode == 2 and "expected --slurm without --hosts and --exclude" in done.stderr
    done = orch(
        tmp_path,
        "bench",
        "resnet50",
        "--nodes",
        "4",
        "--slurm",
        "time=1h",
        environment={"PATH": str(tmp_path)},
    )
    assert done.returncode == 2 and "expected Slurm's program sbatch" in done.stderr
    assert not list(tmp_path.glob(".orch/jobs/*"))


@pytest.mark.parametrize(
    ("words", "said", "is_kept"),
    [
        (
            "Unable to contact slurm controller (connect failure)",
            "no job was submitted; scontrol ping says",
            False,
        ),
        (
            "Invalid partition name specified",
            "expected a job that Slurm accepts: Batch job submission failed: Inv",
            False,
        ),
        ("Socket timed out on send/recv operation", "may still hold nodes: orch cancel 20", True),
    ],
)
def test_a_failed_submission_is_remembered_only_where_it_may_have_been_accepted(
    tmp_path: Path, words: str, said: str, is_kept: bool
) -> None:
    """Stand-ins for Slurm's programs, with the words of the real ones while slurmctld is down or
    does not answer.
    """
    for name in ("sbatch", "squeue", "scontrol", "scancel", "srun"):
        (tmp_path / name).write_text(
            f"#!/bin/sh\necho '{name}: error: Batch job submission failed: {words}' >&2\nexit 1\n"
        )
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = orch(
        tmp_path, "bench", "resnet50", "--nodes", "4", "--slurm", "time=1h", environment=variables
    )
    assert done.returncode and said in done.stderr, done
    assert bool(list(tmp_path.glob(".orch/jobs/*"))) == is_kept
