"""Other people's trainers: each launch script is run, gives the program what it needs, and ends as
it should.

The programs themselves are stand-ins here, which record what they were given.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.inventory.hosts import Host
from orchestrator.logs.parse import parse
from tests.plan.third_party_runs import (
    PORT,
    VARS,
    Case,
    as_rows,
    epoch_line,
    grammar,
    hosts,
    launch,
    planned,
)
from tests.support.judge import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = '''#!{python}
"""Record what it was given, then do as the program does: print, listen, and not end where the program does not."""
import glob, json, os, socket, sys, time
me = "%s-%d" % (os.path.basename(os.getcwd()), os.getpid())
ours = ("CUDA", "FLAGS", "NCCL", "TF", "PYTHONPATH")
environment = {{name: value for name, value in os.environ.items() if name.split("_")[0] in ours}}
record = {{"argv": sys.argv[1:], "env": environment, "files": sorted(glob.glob("*"))}}
with open(os.path.join({records!r}, me), "w") as file:
    json.dump(record, file)
words = " ".join(sys.argv)
job = next((name for name in ("ps", "worker") if "--job_name=" + name in words or "--job %s:" % name in words), "")
if job:
    flag = {{"ps": ("--ps_hosts=", "--ps-hosts"), "worker": ("--worker_hosts=", "--worker-hosts")}}[job]
    own = [word[len(flag[0]):] for word in sys.argv if word.startswith(flag[0])] or [sys.argv[sys.argv.index(flag[1]) + 1]]
    index = next(int(word[13:]) for word in sys.argv if word.startswith("--task_index=")) if flag[0] in words else (
        int(sys.argv[sys.argv.index("--job") + 1].split(":")[1]))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    host, port = own[0].split(",")[index].split(":")
    listener.bind((host, int(port)))
    listener.listen(64)
    time.sleep(1000 if job == "ps" else 0.3 + 1.2 * index)
log = open({log!r}, "rb").read()
if "--log_dir=logs" in words and "fleet" in words:
    for worker in range(2):
        with open("logs/workerlog.%d" % worker, "wb") as file:
            file.write(log)
else:
    os.write(1, log)
time.sleep({linger})
'''


@dataclass(frozen=True, slots=True)
class StandIn:
    """Nodes as directories on this machine, each with an address of loopback that no other worker
    of the tests uses.
    """

    folder: Path

    def address(self, node: int) -> str:
        """A node's address."""
        number = os.getpid()
        return f"127.{number % 200 + 1}.{number // 200 % 250}.{node + 2}"

    def run(
        self, framework: str, case: Case, linger: float = 0.0, log: bytes | None = None
    ) -> list[dict[str, Any]]:
        """Run every node's launch script to its end. Returns what the stand-ins recorded, in order
        of node and start.
        """
        (self.folder / "records").mkdir()
        sample = self.folder / "sample.log"
        sample.write_bytes(
            log if log is not None else (ROOT / "templates" / framework / "sample.log").read_bytes()
        )
        python = self.folder / "python"
        python.write_text(
            STAND_IN.format(
                python=sys.executable,
                records=str(self.folder / "records"),
                log=str(sample),
                linger=linger,
            )
        )
        python.chmod(stat.S_IRWXU)
        program = self.folder / "fleetx" / "benchmark" / "paddle" / "vgg_benchmark.py"
        program.parent.mkdir(parents=True)
        program.write_text(
            "strategy_of_ours = 1\nload(batch_size=32)\ndist_strategy = make()\ndist_strategy.nccl_comm_num = 1\n"
        )
        changes = {
            "python": str(python),
            "fleetx_dir": str(self.folder / "fleetx"),
            "interface": "lo",
        }
        machines = [
            Host(f"n{i}", self.address(i), gpus=case.shape[1], vars=VARS | changes)
            for i in range(case.shape[0])
        ]
        processes = []
        for node in planned(framework, case, machines).nodes:
            home = self.folder / node.slot.host
            (home / "logs").mkdir(parents=True)
            for file in node.files:
                (home / file.path).write_text(file.content)
            with (
                (home / "logs" / "node.out").open("ab") as out,
                (home / "logs" / "node.err").open("ab") as err,
            ):
                processes.append(
                    subprocess.Popen(
                        ["bash", "launch.sh"],
                        cwd=home,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                )
        try:
            codes = [process.wait(LIMIT_S) for process in processes]
        finally:
            for process in processes:
                with_group(process.pid)
        assert codes == [0] * len(codes), [
            (self.folder / f"n{i}/logs/node.err").read_text() for i in range(case.shape[0])
        ]
        return [
            json.loads(path.read_text()) for path in sorted((self.folder / "records").iterdir())
        ]


def with_group(group: int) -> None:
    """End what a launch script left, as the node runner does."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


def test_paddle_models_gets_its_arguments_and_variables(stand_in: StandIn) -> None:
    first, second = stand_in.run("paddle_models", Case((2, 8), {"dtype": "fp16"}))
    own, other = stand_in.address(0), stand_in.address(1)
    assert f"--node_ip={own}" in first["argv"] and f"--node_ip={other}" in second["argv"]
    assert (
        f"--cluster_node_ips={own},{other}" in first["argv"] and "--use_fp16=True" in first["argv"]
    )
    assert first["env"]["FLAGS_fraction_of_gpu_memory_to_use"] == "0.98"
    assert first["env"]["FLAGS_cudnn_exhaustive_search"] == "1"
    assert first["env"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert parse(
        (stand_in.folder / "n0/logs/node.out").read_bytes(), grammar("paddle_models")
    ).samples


def test_fleetx_runs_a_copy_with_batch_size_and_strategy_and_is_ended_after_the_last_step(
    stand_in: StandIn,
) -> None:
    case = Case(
        (2, 2), {"dtype": "fp16", "batch_size": 64, "steps": 32, "warmup_steps": 12}, model="vgg16"
    )
    first, _ = stand_in.run("fleetx", case, linger=60)
    ips = f"{stand_in.address(0)},{stand_in.address(1)}"
    assert first["argv"][:5] == [
        "-u",
        "-m",
        "paddle.distributed.fleet.launch",
        f"--ips={ips}",
        "--gpus=0,1",
    ]
    assert "vgg_benchmark.py" in first["files"]
    copy = (stand_in.folder / "n0" / "vgg_benchmark.py").read_text().splitlines()
    assert copy == [
        "strategy_of_ours = 1", "load(batch_size=64)", "dist_strategy = make()", "dist_strategy.amp = True",
        "dist_strategy.nccl_comm_num = 1",
    ]  # fmt: skip
    assert first["env"]["FLAGS_START_PORT"] == str(PORT)


def test_fleetx_auto_leaves_every_other_setting_out(stand_in: StandIn) -> None:
    case = Case(
        (1, 2), {"dtype": "fp16", "steps": 32, "warmup_steps": 12}, {"strategy": "auto"}, "vgg16"
    )
    stand_in.run("fleetx", case, linger=60)
    copy = (stand_in.folder / "n0" / "vgg_benchmark.py").read_text().splitlines()
    assert copy[2:] == ["dist_strategy = make()", "dist_strategy.auto = True"]


def test_oneflow_gets_its_arguments_and_variables(stand_in: StandIn) -> None:
    first, second = stand_in.run("oneflow", Case((2, 8)))
    assert first["argv"] == second["argv"]
    ips = f"{stand_in.address(0)},{stand_in.address(1)}"
    assert {"--num_nodes=2", f"--node_ips={ips}", "--batch_size_per_device=128"} <= set(
        first["argv"]
    )
    assert first["env"]["NCCL_LAUNCH_MODE"] == "PARALLEL"


def test_tensorflow_finds_its_config_beside_it(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    first, _ = stand_in.run("tensorflow_official", Case((2, 8)))
    assert first["files"] == ["config.yaml", "env.sh", "launch.sh", "logs"]
    assert (
        first["argv"][1]
        == "/opt/tf models/official/vision/image_classification/classifier_trainer.py"
    )
    assert first["env"]["PYTHONPATH"] == "/opt/tf models"


@pytest.mark.parametrize("gone", [False, True], ids=["still there", "gone a moment before"])
def test_pytorch_examples_is_ended_after_the_last_step(stand_in: StandIn, gone: bool) -> None:
    log = "".join(epoch_line(step, 0.4) for step in range(1, 130) for _ in range(2)).encode()
    stand_in.run("pytorch_examples", Case((2, 2)), linger=0.0 if gone else 60.0, log=log)
    assert (
        parse((stand_in.folder / "n0/logs/node.out").read_bytes(), grammar("pytorch_examples"))
        .samples[-1]
        .step
        >= 120
    )


@pytest.mark.parametrize("framework", ["tf_cnn_benchmarks", "tensorpack"])
def test_parameter_servers_are_left_when_the_last_worker_is_done(
    stand_in: StandIn, framework: str
) -> None:
    update = {"tf_cnn_benchmarks": "distributed_replicated", "tensorpack": "parameter_server"}[
        framework
    ]
    records = stand_in.run(framework, Case((2, 2), {}, {"variable_update": update}), linger=1.0)
    jobs = sorted(
        " ".join(word for word in one["argv"] if word.startswith(("ps", "worker", "--job_name")))
        for one in records
    )
    assert len(jobs) == 4 and [job.count("ps") for job in jobs].count(1) == 2
    servers = [
        one
        for one in records
        if any(word.startswith(("ps:", "--job_name=ps")) for word in one["argv"])
    ]
    assert [one["env"]["CUDA_VISIBLE_DEVICES"] for one in servers] == ["", ""]


@pytest.mark.parametrize("ranks", [16, 1], ids=["one world", "built without MPI"])
def test_horovod_lines_get_their_step_only_where_all_ranks_are_one_world(
    tmp_path: Path, ranks: int
) -> None:
    said = f"[1,0]<stdout>:Number of GPUs: {ranks}[1,0]<stdout>:\n"
    said += "".join(
        f"[1,0]<stdout>:Iter #{i}: {350 + i}.5 img/sec per GPU{glued}\n"
        for i, glued in enumerate(["", "[1,0]<stdout>:", "[1,3]<stderr>:a \\ 'warning'"] + [""] * 7)
    )
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        f"#!{sys.executable}\nprint({said!r}, end='')\nprint('[1,0]<stdout>:Total img/s', end='')\n"
    )
    mpirun.chmod(stat.S_IRWXU)
    plan = planned("horovod_examples", Case((2, 8)), hosts(2, 8, mpirun=str(mpirun)))
    for file in plan.nodes[0].files:
        (tmp_path / file.path).write_text(file.content)
    done = subprocess.run(["bash", "launch.sh"], cwd=tmp_path, capture_output=True, timeout=LIMIT_S)
    samples = parse(done.stdout + b"\n", grammar("horovod_examples")).samples
    if ranks == 16:
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout.endswith(b"Total img/s")
        assert as_rows(samples) == [
            {"step": 10 * (i + 1), "samples_per_s": 350.5 + i} for i in range(10)
        ]
    else:
        assert (done.returncode, done.stderr) == (
            1,
            b"expected Number of GPUs: 16, Horovod says 1\n",
        )
        assert samples == ()


def test_zmq_gets_a_second_process_that_serves(stand_in: StandIn) -> None:
    records = stand_in.run(
        "tensorpack", Case((1, 8), {}, {"fake_location": "zmq-consume"}), linger=1.0
    )
    locations = sorted(one["argv"][one["argv"].index("--fake-location") + 1] for one in records)
    assert locations == ["zmq-consume", "zmq-serve"]


def test_a_waiting_node_ends_well_when_it_is_told_to() -> None:
    plan = planned("tensorpack", Case((2, 8), {}, {"variable_update": "horovod"}))
    process = subprocess.Popen(["bash", "-c", launch(plan, 1)], start_new_session=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
