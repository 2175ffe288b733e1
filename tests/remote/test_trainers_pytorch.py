"""The PyTorch trainer, run as a node runs it: real processes, real collectives, on loopback."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.support.judge import LIMIT_S
from tests.support.ports import free_port
from tests.support.ranks import OPTIMIZERS, ranks
from tests.support.trainers import DONE_KEYS, PYTORCH, ROOT, closing, rank_lines, samples


def test_a_rank_whose_gpu_was_full_is_remarked(
    trainer: ModuleType, alone: argparse.Namespace
) -> None:
    import torch

    cpu = torch.device("cpu")
    assert trainer.allocator_retries(cpu) == 0 and trainer.memory_remarks(cpu, 0) == []
    assert [
        "gave cached memory back once on a rank" in text for text in trainer.memory_remarks(cpu, 1)
    ] == [True]
    assert [
        "gave cached memory back 20 times on a rank" in text
        for text in trainer.memory_remarks(cpu, 20)
    ] == [True]


def test_ranks_come_from_the_environment_only(
    trainer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "RANK": 5,
        "LOCAL_RANK": 1,
        "WORLD_SIZE": 8,
        "MASTER_ADDR": "a",
        "GROUP_RANK": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(SystemExit, match=r"environment: expected MASTER_PORT to be set"):
        trainer.identity()
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert tuple(trainer.identity()) == (5, 1, 8, 1)


def torchrun(arguments: Sequence[str], folder: Path, nproc: int) -> Path:
    """Run the PyTorch trainer under torchrun, each rank with its own files; return their folder."""
    wrapper = folder / "rank.sh"
    wrapper.write_text('#!/bin/sh\nexec "$@" >"$0-$RANK.out" 2>"$0-$RANK.err"\n')
    wrapper.chmod(0o700)
    environment = {"PATH": os.environ["PATH"], "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "1",
        "--nproc_per_node",
        str(nproc),
    ]
    command += [
        "--node_rank",
        "0",
        "--rdzv_backend",
        "static",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        str(free_port()),
    ]
    command += ["--max_restarts", "0", "--monitor_interval", "0.1", "--no_python", str(wrapper)]
    command += [sys.executable, "-u", str(PYTORCH), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    errors = "".join(path.read_text() for path in sorted(folder.glob("*.err")))
    assert done.returncode == 0, done.stderr + errors
    return folder


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed in a run of two ranks with gloo."""
    pytest.importorskip("torch")
    arguments = [
        "--device",
        "cpu",
        "--image-size",
        "32",
        "--batch-size",
        "2",
        "--steps",
        "4",
        "--num-classes",
        "10",
    ]
    folder = torchrun(
        [*arguments, "--warmup-steps", "1"], tmp_path_factory.mktemp("torchrun"), nproc=2
    )
    assert [path.read_text() for path in sorted(folder.glob("*.err"))] == ["", ""]
    return [path.read_text() for path in sorted(folder.glob("*.out"))]


def test_every_pytorch_rank_says_who_it_is_and_rank_0_the_steps(two_ranks: list[str]) -> None:
    assert [rank_lines("pytorch", text) for text in two_ranks] == [[(0, 2)], [(1, 2)]]
    assert [[step["step"] for step in samples("pytorch", text)] for text in two_ranks] == [
        [0, 1, 2, 3, 4],
        [],
    ]


def test_every_pytorch_rank_says_how_long_its_steps_were_and_how_long_it_computed(
    two_ranks: list[str],
) -> None:
    for rank, text in enumerate(two_ranks):
        (line,) = (line for line in text.splitlines() if line.startswith("orch parts "))
        facts = json.loads(line.removeprefix("orch parts "))
        assert (facts["rank"], facts["first_step"], facts["last_step"]) == (rank, 2, 4)
        assert all(
            0 < own < step for own, step in zip(facts["compute_s"], facts["step_s"], strict=True)
        )
        assert len(facts["compute_cpu_s"]) == 3 and min(facts["compute_cpu_s"]) > 0
        assert len(facts["input_s"]) == len(facts["step_s"]) == 3


def test_pytorch_step_times_are_the_differences_of_the_clock(two_ranks: list[str]) -> None:
    steps = samples("pytorch", two_ranks[0])
    assert [step["samples"] for step in steps] == [0, 4, 4, 4, 4]
    for before, after in pairwise(steps):
        assert after["step_time_s"] > 0
        assert after["timestamp"] - before["timestamp"] == pytest.approx(
            after["step_time_s"], abs=3e-6
        )


def test_the_last_line_of_a_pytorch_run_is_complete(two_ranks: list[str]) -> None:
    import torch

    facts = closing("pytorch", two_ranks[0])
    assert set(facts) >= DONE_KEYS
    assert (facts["world_size"], facts["ranks"], facts["hosts"]) == (
        2,
        [0, 1],
        [socket.gethostname()],
    )
    assert (facts["global_batch"], facts["backend"], facts["simulated"]) == (4, "gloo", False)
    assert (facts["framework"], facts["framework_version"]) == ("pytorch", torch.__version__)
    assert [device["count"] for device in facts["devices"]] == [2]
    # The published number belongs to 1000 classes; this head has 10.
    assert facts["parameters"] == 25_557_032 - 990 * 2049
    assert facts["gradient_bytes"] == 4 * facts["parameters"]
    assert facts["output_dtype"] == "float32"
    assert (
        facts["static_graph"],
        facts["bucket_view"],
        facts["cuda_graphs"],
        facts["optimizer"],
    ) == (
        *(True, True, False),
        "sgd fused",
    )


def test_the_buckets_are_those_that_ddp_reduces(two_ranks: list[str]) -> None:
    """A bucket is closed by the gradient with which it has 25 MiB, and only the last may have less."""
    facts = closing("pytorch", two_ranks[0])
    *full, rest = facts["gradient_buckets_bytes"]
    assert sum(full) + rest == facts["gradient_bytes"]
    assert len(full) == 3 and all(25 << 20 <= size < 36 << 20 for size in full)
    assert facts["gradient_dtype"] == "float32"


def test_each_rank_measures_a_step_that_waits_for_nobody(two_ranks: list[str]) -> None:
    facts = closing("pytorch", two_ranks[0])
    names = ("input_wait_s", "solo_step_s", "solo_forward_s", "solo_backward_s")
    assert [len(facts[name]) for name in names] == [2] * 4
    assert 0 < min(facts["input_wait_s"]) < max(facts["solo_step_s"]), (
        "synthetic images are always there"
    )
    for step_s, forward_s, backward_s in zip(*(facts[name] for name in names[1:]), strict=True):
        assert 0 < forward_s < step_s and 0 < backward_s < step_s
    for reduce_s, beside_s, step_s in zip(
        facts["solo_reduce_s"], facts["beside_reduce_s"], facts["solo_step_s"], strict=True
    ):
        assert 0 < reduce_s < 100 * step_s and 0 < beside_s < 100 * step_s
    assert all(
        each > 0 for name in ("beside_forward_s", "beside_backward_s") for each in facts[name]
    )
    ready = facts["gradient_ready_s"]
    assert len(ready) == len(facts["gradient_buckets_bytes"])
    assert (
        ready[0] > 0 and sorted(ready) == ready and ready[-1] <= facts["solo_backward_s"][0] * 1.5
    )


@pytest.mark.parametrize(("dtype", "output"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_pytorch_trains_with_half_types_on_a_cpu_as_the_folder_sets_it(
    tmp_path: Path, dtype: str, output: str
) -> None:
    pytest.importorskip("torch")
    folder = yaml.safe_load((ROOT / "templates" / "pytorch" / "framework.yaml").read_text())
    options = {
        name: str(folder["options"][name]["device_default"]["cpu"])
        for name in ("image_size", "loss_scale")
    }
    arguments = [
        "--device",
        "cpu",
        "--batch-size",
        str(folder["device_defaults"]["cpu"]["batch_size"]),
        "--steps",
        "2",
    ]
    arguments += ["--image-size", options["image_size"], "--loss-scale", options["loss_scale"]]
    arguments += ["--dtype", dtype, "--solo-steps", "0"]
    (text,) = ranks(PYTORCH, arguments, tmp_path, nproc=1, imports=OPTIMIZERS)
    facts = closing("pytorch", text)
    assert (facts["output_dtype"], facts["loss_scale"] is None) == (output, output == "bfloat16")
    assert (facts["solo_step_s"], facts["beside_reduce_s"], facts["gradient_ready_s"]) == (
        [None],
        [None],
        [],
    )
    steps = samples("pytorch", text)[1:]
    assert [step["skipped"] for step in steps] == [0, 0]
    assert steps[1]["loss"] < steps[0]["loss"]


def test_a_rank_that_counts_itself_wrongly_is_found(trainer: ModuleType) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    try:
        trainer.prove_world(trainer.Identity(0, 0, 1, 0), torch.device("cpu"))
        with pytest.raises(
            RuntimeError,
            match=r"ranks: expected sum and count \[0, 1\], got \[1, 1\] in a group of 1",
        ):
            trainer.prove_world(trainer.Identity(1, 0, 1, 0), torch.device("cpu"))
        with pytest.raises(RuntimeError, match=r"expected sum and count \[1, 2\], got \[0, 1\]"):
            trainer.prove_world(trainer.Identity(0, 0, 2, 0), torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def test_a_failing_pytorch_rank_prints_why_and_exits_1() -> None:
    pytest.importorskip("torch")
    environment = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [
        sys.executable,
        str(PYTORCH),
        "--device",
        "cpu",
        "--image-size",
        "32",
        "--batch-size",
        "2",
        "--timeout-s",
        "1",
    ]
    alone = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "Traceback" in alone.stderr
    assert "DistStoreError" in alone.stderr or "imed out" in alone.stderr


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
def test_pytorch_trains_on_a_gpu(tmp_path: Path, dtype: str) -> None:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU here")
    folder = torchrun(
        ["--device", "cuda", "--dtype", dtype, "--batch-size", "16", "--steps", "6"],
        tmp_path,
        nproc=1,
    )
    text = next(folder.glob("*.out")).read_text()
    steps = samples("pytorch", text)
    assert [step["step"] for step in steps] == list(range(7))
    assert all(after["timestamp"] > before["timestamp"] for before, after in pairwise(steps))
    facts = closing("pytorch", text)
    assert facts["channels_last"] is (dtype != "fp32")
    assert facts["output_dtype"] == {"fp16": "float16", "bf16": "bfloat16"}.get(dtype, "float32")


@pytest.mark.parametrize("compile_", [[], ["--compile"]])
def test_a_step_is_one_cuda_graph_and_trains_all_the_same(
    tmp_path: Path, compile_: list[str]
) -> None:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU here")
    found = []
    for graphs in ("false", "true"):
        folder = tmp_path / graphs
        folder.mkdir()
        arguments = [
            "--device",
            "cuda",
            "--dtype",
            "fp16",
            "--batch-size",
            "16",
            "--steps",
            "20",
            "--image-size",
            "64",
        ]
        text = next(
            torchrun([*arguments, *compile_, "--cuda-graphs", graphs], folder, nproc=1).glob(
                "*.out"
            )
        ).read_text()
        found.append([float(loss) for loss in re.findall(r"step_time_s=.* loss=([\d.]+)", text)])
        facts = closing("pytorch", text)
        assert facts["cuda_graphs"] is (graphs == "true") and facts["solo_step_s"][0] > 0
    assert len(found[0]) == 20 and found[1] == pytest.approx(found[0], rel=0.2, abs=0.2)


def test_the_largest_batch_is_found_on_a_gpu_before_the_first_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    arguments = [
        "--device",
        "cuda",
        "--batch-size",
        "16",
        "--steps",
        "2",
        "--image-size",
        "224",
        "--find-batch-size",
        "40000",
    ]
    text = next(torchrun(arguments, tmp_path, nproc=1).glob("*.out")).read_text()
    facts = closing("pytorch", text)
    # ResNet-50 keeps about 90 MB of activations of an image in fp32: fewer fit than 30 MB an image
    # would let.
    assert (
        16 < facts["largest_batch_size"] < torch.cuda.get_device_properties(0).total_memory / 30e6
    )
    assert facts["max_memory_bytes"] < 0.5 * torch.cuda.get_device_properties(0).total_memory
    assert re.search(rf"^orch batch_size={facts['largest_batch_size']} \{{", text, re.MULTILINE)
