"""The Paddle trainer, run as a node runs it: paddle.distributed.launch, the node runner around each
rank, gloo on loopback.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.plan.payload import rank_source
from tests.support.judge import LIMIT_S
from tests.support.ports import free_port
from tests.support.trainers import (
    FLAT,
    LOADER_KEYS,
    PYTHON,
    ROOT,
    closing,
    needs,
    rank_lines,
    rank_parts,
    samples,
)

TRAINER = FLAT / "train_paddle.py"
FOLDER = ROOT / "templates" / "paddle"
SMALL = ["--device", "cpu", "--image-size", "32", "--batch-size", "2", "--num-classes", "10"]


def launch(
    folder: Path, arguments: list[str], nproc: int, code: int = 0, program: Path = TRAINER
) -> list[str]:
    """Run a node's ranks in ``folder`` as launch.sh does; return what each rank printed, errors
    where it is to fail.
    """
    for name in ("logs", "ranks"):
        (folder / name).mkdir()
    (folder / "rank_wrapper.py").write_bytes(rank_source())
    words = [
        sys.executable,
        "-I",
        "-S",
        str(folder / "rank_wrapper.py"),
        "--",
        PYTHON,
        "-u",
        str(program),
    ]
    wrapper = folder / "rank.sh"
    wrapper.write_text(
        "#!/bin/sh\nexport LOCAL_RANK=$PADDLE_RANK_IN_NODE NODE_RANK=0 RANK=$PADDLE_RANK_IN_NODE WORLD_SIZE="
        + f"{nproc}\nexec {' '.join([*words, *arguments])}\n"
    )
    wrapper.chmod(0o700)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    environment |= {"PYTHONPATH": str(FLAT), "PADDLE_DISTRI_BACKEND": "gloo"}
    command = [
        PYTHON,
        "-m",
        "paddle.distributed.launch",
        "--nnodes",
        "1",
        "--nproc_per_node",
        str(nproc),
    ]
    command += ["--ips", "127.0.0.1", "--host", "127.0.0.1", "--start_port", str(free_port())]
    command += [
        "--run_mode",
        "collective",
        "--max_restart",
        "0",
        "--log_dir",
        "launcher",
        "./rank.sh",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    errors = "".join(path.read_text() for path in sorted((folder / "logs").glob("*.err")))
    assert (done.returncode == 0) is (code == 0), done.stderr + errors
    ended = [json.loads((folder / "ranks" / f"{rank}.json").read_text()) for rank in range(nproc)]
    assert code in [one["code"] for one in ended], (ended, errors)
    return [
        (folder / "logs" / f"rank-{rank}.{'err' if code else 'out'}").read_text()
        for rank in range(nproc)
    ]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed in a run of two."""
    needs("paddle")
    return launch(
        tmp_path_factory.mktemp("paddle"), [*SMALL, "--steps", "3", "--warmup-steps", "1"], nproc=2
    )


def test_every_paddle_rank_says_who_it_is_and_rank_0_the_steps(two_ranks: list[str]) -> None:
    assert [rank_lines("paddle", text) for text in two_ranks] == [[(0, 2)], [(1, 2)]]
    assert [[step["step"] for step in samples("paddle", text)] for text in two_ranks] == [
        [0, 1, 2, 3],
        [],
    ]


def test_paddle_step_times_are_the_differences_of_the_clock(two_ranks: list[str]) -> None:
    steps = samples("paddle", two_ranks[0])
    assert [step["samples"] for step in steps] == [0, 4, 4, 4]
    for before, after in pairwise(steps):
        assert after["step_time_s"] > 0
        assert after["timestamp"] - before["timestamp"] == pytest.approx(
            after["step_time_s"], abs=3e-6
        )


def test_every_paddle_rank_says_how_long_its_steps_were_and_how_long_it_computed(
    two_ranks: list[str],
) -> None:
    for rank, text in enumerate(two_ranks):
        parts = rank_parts("paddle", text)
        assert (parts["rank"], parts["first_step"], parts["last_step"]) == (rank, 2, 3)
        assert all(
            0 < own < step for own, step in zip(parts["compute_s"], parts["step_s"], strict=True)
        )
        assert (
            len(parts["compute_cpu_s"]) == len(parts["step_s"]) and min(parts["compute_cpu_s"]) > 0
        )


def test_the_last_line_of_a_paddle_run_is_complete(two_ranks: list[str]) -> None:
    facts = closing("paddle", two_ranks[0])
    assert set(facts) >= LOADER_KEYS
    assert (facts["world_size"], facts["ranks"], facts["framework"], facts["backend"]) == (
        2,
        [0, 1],
        "paddle",
        "gloo",
    )
    assert (facts["global_batch"], facts["simulated"], facts["loader"]) == (4, False, "synthetic")
    assert [device["count"] for device in facts["devices"]] == [2]
    # The published number belongs to 1000 classes; this head has 10.
    assert facts["parameters"] == 25_557_032 - 990 * 2049
    assert facts["gradient_bytes"] == 4 * facts["parameters"]
    assert facts["output_dtype"] == "float32"


def test_groups_of_gloo_do_not_meet_under_the_same_keys(tmp_path: Path) -> None:
    """A rank that looks for its peer in a later group would find where that one listened for an
    earlier one.
    """
    needs("paddle")
    program = tmp_path / "program.py"
    program.write_text(
        "import json, paddle_ranks, train_paddle as t\n"
        "from paddle.distributed import collective\n"
        "t.join(t.arguments(), t.identity())\n"
        "stores = paddle_ranks.core.create_or_get_global_tcp_store(), collective._default_store\n"
        "t.prove_world(t.identity())\n"
        "print(json.dumps([bytes(store.get('0')).hex() for store in stores]))\n"
        "t.prove_world(t.identity())\n"
    )
    for text in launch(tmp_path, SMALL, nproc=2, program=program):
        of_default_group, of_fleets_group = json.loads(text.splitlines()[-1])
        assert of_default_group != of_fleets_group


def test_a_paddle_rank_that_is_told_to_end_ends_at_once_and_silently(tmp_path: Path) -> None:
    """Paddle's own handler prints pages into the log, and waits for ever where the signal came amid
    an allocation.
    """
    needs("paddle")
    identity = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "NODE_RANK": "0"}
    environment = {
        "PATH": os.environ["PATH"],
        **identity,
        "PADDLE_TRAINER_ID": "0",
        "PADDLE_TRAINERS_NUM": "1",
    }
    command = [PYTHON, "-u", str(TRAINER), *SMALL, "--steps", "100000"]
    with (
        (tmp_path / "err").open("w") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        lines += process.stdout.readlines()
        assert process.wait(LIMIT_S) == -signal.SIGTERM
    assert all(line.startswith("orch ") for line in lines), lines


def test_numbers_too_small_for_full_precision_are_0_on_a_cpu() -> None:
    """An image learnt by heart leaves such gradients, and with them a CPU is several times slower."""
    if platform.machine() != "x86_64":
        pytest.skip("nothing is changed on other processors")
    needs("paddle")
    code = (
        "import paddle, paddle_ranks; a = paddle.full([4], 1e-20)\n"
        "before = float((a * a)[0]); paddle_ranks.flush_subnormals(); print(before > 0, float((a * a)[0]))"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FLAT)}
    done = subprocess.run(
        [PYTHON, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.split() == ["True", "0.0"], done.stderr


def test_a_single_paddle_rank_needs_no_fleet(tmp_path: Path) -> None:
    needs("paddle")
    (text,) = launch(tmp_path, [*SMALL, "--steps", "2", "--label-smoothing", "0.1"], nproc=1)
    assert len(samples("paddle", text)) == 3
    assert (rank_lines("paddle", text), closing("paddle", text)["ranks"]) == ([(0, 1)], [0])


@pytest.mark.parametrize(
    "extra", [["--dtype", "fp16"], ["--dtype", "bf16"], ["--dtype", "fp16", "--amp-level", "O2"]]
)
def test_paddle_computes_half_types_in_fp32_on_a_cpu_and_says_so(
    tmp_path: Path, extra: list[str]
) -> None:
    """Should a newer Paddle compute them there, this test says so by failing."""
    needs("paddle")
    (text,) = launch(tmp_path, [*SMALL, "--steps", "2", *extra], nproc=1)
    facts = closing("paddle", text)
    assert (facts["dtype"], facts["output_dtype"], facts["loss_scale"]) == (
        extra[1],
        "float32",
        None,
    )
    assert facts["gradient_bytes"] == 4 * facts["parameters"]


def test_vgg16_has_the_published_number_of_parameters(tmp_path: Path) -> None:
    needs("paddle")
    arguments = [
        "--device",
        "cpu",
        "--model",
        "vgg16",
        "--image-size",
        "32",
        "--batch-size",
        "1",
        "--steps",
        "1",
    ]
    (text,) = launch(tmp_path, arguments, nproc=1)
    assert closing("paddle", text)["parameters"] == 138_357_544


def test_resnet50_of_paddle_is_version_1_5() -> None:
    """The stride of a down-sampling block is in its 3x3 convolution, not in the 1x1 before it."""
    needs("paddle")
    code = (
        "import json, paddle; m = paddle.vision.models.resnet50();"
        "print(json.dumps([(b.conv1._stride, b.conv2._stride) for s in (m.layer1, m.layer2, m.layer3, m.layer4) for b in s]))"
    )
    done = subprocess.run(
        [PYTHON, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    strides = json.loads(done.stdout.splitlines()[-1])
    assert [at for at, stride in enumerate(strides) if stride == [[1, 1], [2, 2]]] == [3, 7, 13]
    assert all(
        stride == [[1, 1], [1, 1]] for at, stride in enumerate(strides) if at not in (3, 7, 13)
    )


@pytest.mark.parametrize("loader", ["native", "dali-cpu"])
def test_paddle_trains_from_disk(tmp_path: Path, loader: str) -> None:
    needs("paddle", *{"native": ["PIL"], "dali-cpu": ["nvidia.dali"]}[loader])
    data = tmp_path / "data"
    maker = [
        sys.executable,
        "-I",
        "-S",
        str(FLAT / "make_dataset.py"),
        "--dir",
        str(data),
        "--images",
        "6",
    ]
    subprocess.run([*maker, "--size", "40"], check=True, capture_output=True, timeout=LIMIT_S)
    (tmp_path / "run").mkdir()
    arguments = [
        *SMALL,
        "--steps",
        "5",
        "--loader",
        loader,
        "--data-dir",
        str(data),
        "--workers",
        "1",
    ]
    texts = launch(tmp_path / "run", arguments, nproc=2)
    assert [step["step"] for step in samples("paddle", texts[0])] == list(range(6))
    assert closing("paddle", texts[0])["loader"] == loader


def test_a_rank_that_the_launcher_counts_otherwise_is_found() -> None:
    """Where --host is not in --ips, Paddle's launcher takes every node for the first one."""
    needs("paddle")
    identity = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "NODE_RANK": "1"}
    environment = {
        "PATH": os.environ["PATH"],
        **identity,
        "PADDLE_TRAINER_ID": "0",
        "PADDLE_TRAINERS_NUM": "2",
    }
    command = [PYTHON, str(TRAINER), *SMALL]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert (
        "PADDLE_TRAINER_ID: expected 1 as in RANK, got 0. the launcher identifies a node by its --host in --ips"
        in done.stderr
    )


def test_the_launchers_copies_of_the_environment_do_not_stay(tmp_path: Path) -> None:
    """They hold whatever secrets a run was given; rank.sh and the trainer remove them."""
    script = (FOLDER / "rank.sh.j2").read_text()
    assert "rm -f launcher/envlog.* launcher/default.*.log" in script
    needs("paddle")
    launch(tmp_path, [*SMALL, "--steps", "1"], nproc=1)
    assert (tmp_path / "launcher" / "backup_env.0.json").read_text() == "{}"
    rest = {path.name for path in (tmp_path / "launcher").iterdir() if path.stat().st_size > 2}
    assert {name.split(".")[0] for name in rest} <= {"envlog", "default"}, (
        "nothing but what rank.sh removes"
    )


def test_the_sample_log_holds_the_sample_values() -> None:
    text = (FOLDER / "sample.log").read_text()
    assert samples("paddle", text) == json.loads((FOLDER / "sample.json").read_text())
    assert rank_lines("paddle", text) == [(0, 2)]
    assert set(closing("paddle", text)) >= LOADER_KEYS


@pytest.mark.parametrize(
    "path", [TRAINER, *sorted(TRAINER.parent.glob("paddle_*.py"))], ids=lambda path: path.name
)
def test_the_trainer_is_written_in_the_oldest_python_it_promises(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
