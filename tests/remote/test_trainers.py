"""The trainers that travel to nodes, run as a node runs them: real processes, real collectives, on loopback."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.ranks import ranks
from tests.support.trainers import DONE_KEYS, ROOT, SHARED, closing, flags, free_port, rank_lines, samples

PYTORCH = ROOT / "remote" / "train_pytorch.py"
SIMULATED = ROOT / "remote" / "train_simulated.py"
FAST = ["--compute-ms", "5", "--gradient-mb", "0.01"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank ended, and what it said."""

    code: int
    out: str
    err: str


def module(path: Path) -> ModuleType:
    """A trainer, imported without being run; it finds its neighbours, as the launch script sees to."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path.remove(str(path.parent))
    return loaded


# --- simulated ------------------------------------------------------------------------------------------------------------


@contextmanager
def ring(
    world_size: int,
    arguments: Sequence[str],
    *,
    ranks: Sequence[int] = (),
    port: int | None = None,
    trainers: Sequence[Path] = (),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start all ranks of a simulated run, or only ``ranks``; whatever still lives at the end is killed.

    ``trainers``: another file for each rank.
    """
    port = port or free_port()
    processes = []
    for rank in ranks or range(world_size):
        identity = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        trainer = trainers[rank] if trainers else SIMULATED
        processes.append(
            subprocess.Popen(
                [sys.executable, "-s", "-E", "-S", "-u", str(trainer), *arguments],
                env={name: str(value) for name, value in identity.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.communicate()


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for a rank."""
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


def all_ended(world_size: int, arguments: Sequence[str], **more: Any) -> list[Ended]:
    """Run a simulated run to its end."""
    with ring(world_size, arguments, **more) as processes:
        return [ended(process) for process in processes]


@pytest.fixture(scope="module")
def four_ranks() -> list[Ended]:
    """A run of four ranks, 30 ms of compute and 2 MB of gradients a step."""
    return all_ended(4, ["--steps", "6", "--compute-ms", "30", "--gradient-mb", "2", "--batch-size", "8"])


def test_every_simulated_rank_ends_well_and_says_who_it_is(four_ranks: list[Ended]) -> None:
    assert [(one.code, one.err) for one in four_ranks] == [(0, "")] * 4
    assert [rank_lines("simulated", one.out) for one in four_ranks] == [[(rank, 4)] for rank in range(4)]


def test_only_rank_0_of_a_simulated_run_prints_steps(four_ranks: list[Ended]) -> None:
    assert [len(samples("simulated", one.out)) for one in four_ranks] == [7, 0, 0, 0]


def test_simulated_steps_last_at_least_as_long_as_their_compute(four_ranks: list[Ended]) -> None:
    first, *steps = samples("simulated", four_ranks[0].out)
    assert (first["step"], first["samples"], first["step_time_s"]) == (0, 0, 0.0)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert all(step["step_time_s"] >= 0.030 and step["samples"] == 32 for step in steps)


def test_simulated_step_times_are_the_differences_of_the_clock(four_ranks: list[Ended]) -> None:
    for before, after in pairwise(samples("simulated", four_ranks[0].out)):
        assert after["timestamp"] - before["timestamp"] == pytest.approx(after["step_time_s"], abs=3e-6)


def test_the_ring_sends_every_byte_that_an_all_reduce_needs(four_ranks: list[Ended]) -> None:
    facts = closing("simulated", four_ranks[0].out)
    assert facts["gradient_bytes"] == 2_000_000
    assert facts["bytes_sent"] == [6 * 2 * 3 * 500_000] * 4


def test_the_last_line_of_a_simulated_run_is_complete(four_ranks: list[Ended]) -> None:
    facts = closing("simulated", four_ranks[0].out)
    assert set(facts) >= DONE_KEYS
    assert (facts["world_size"], facts["ranks"], facts["simulated"]) == (4, [0, 1, 2, 3], True)
    assert facts["devices"] == [{"name": "simulated", "count": 4}]
    assert facts["hosts"] == [socket.gethostname()]


def test_one_simulated_rank_needs_no_ring() -> None:
    (alone,) = all_ended(1, ["--steps", "2", *FAST])
    assert (alone.code, closing("simulated", alone.out)["bytes_sent"]) == (0, [0])


def test_more_ranks_than_gradients_still_add_up() -> None:
    """Chunks of no bytes at all: two floats on three ranks."""
    assert [one.code for one in all_ended(3, ["--steps", "2", "--compute-ms", "0", "--gradient-mb", "0.000008"])] == [0, 0, 0]


def test_a_wrong_reduction_is_an_error(tmp_path: Path) -> None:
    for name in ("train_simulated", "simulated_meeting", "simulated_ring", "rank_parts", "rank_progress"):
        shutil.copy(SIMULATED.with_name(f"{name}.py"), tmp_path)
    forgetful = tmp_path / "simulated_ring.py"
    source = forgetful.read_text()
    assert source.count("map(float.__add__, own, received)") == 1
    forgetful.write_text(source.replace("map(float.__add__, own, received)", "received"))
    ranks = all_ended(2, ["--steps", "2", *FAST], trainers=[SIMULATED, tmp_path / "train_simulated.py"])
    assert any("wrong sum: chunk" in one.err for one in ranks)
    assert all(one.code == 1 for one in ranks)


def test_half_types_move_half_the_bytes() -> None:
    trainer = module(SIMULATED)
    sizes = {
        dtype: trainer.gradient_bytes(argparse.Namespace(model="resnet50", dtype=dtype, gradient_mb=0.0))
        for dtype in ("fp32", "tf32", "fp16", "bf16")
    }
    assert sizes == {"fp32": 102_228_128, "tf32": 102_228_128, "fp16": 51_114_064, "bf16": 51_114_064}


@pytest.mark.parametrize(("mode", "code", "text"), [("exit3", 3, ""), ("sigkill", -9, ""), ("oom-print", 1, "out of memory")])
def test_neighbours_name_the_rank_that_left(mode: str, code: int, text: str) -> None:
    fault = ["--fail-at-step", "3", "--fail-rank", "1", "--fail-mode", mode]
    first, failed, last = all_ended(3, ["--steps", "9", *FAST, *fault])
    assert failed.code == code
    assert text in failed.err
    assert last.code == 1
    assert last.err.startswith(f"rank 2: peer rank 1 ({socket.gethostname()}) closed the connection")
    assert first.code == 1
    assert first.err.startswith("rank 0: peer rank ")
    assert [step["step"] for step in samples("simulated", first.out)] == [0, 1, 2]


@pytest.mark.parametrize(("mode", "signals"), [("hang", [signal.SIGTERM]), ("deaf", [signal.SIGTERM, signal.SIGKILL])])
def test_neighbours_give_up_on_a_rank_that_says_nothing(mode: str, signals: list[signal.Signals]) -> None:
    fault = ["--fail-at-step", "2", "--fail-rank", "1", "--fail-mode", mode, "--timeout-s", "2"]
    with ring(2, ["--steps", "9", *FAST, *fault]) as (patient, silent):
        gave_up = ended(patient)
        assert gave_up.code == 1
        assert gave_up.err == f"rank 0: peer rank 1 ({socket.gethostname()}) sent nothing for 2 s\n"
        for number in signals:
            assert silent.poll() is None, f"gone before {number.name}"
            silent.send_signal(number)
            time.sleep(0.3)
        assert ended(silent).code == -signals[-1]


def test_rank_0_names_the_ranks_that_never_came() -> None:
    (alone,) = all_ended(3, ["--timeout-s", "0.5"], ranks=[0])
    assert alone == Ended(1, "", "rank 0: rendezvous: expected 3 ranks, 1 came. missing: 1, 2\n")


def test_a_rank_without_a_master_says_where_it_looked() -> None:
    port = free_port()
    (alone,) = all_ended(2, ["--timeout-s", "0.5"], ranks=[1], port=port)
    assert (alone.code, alone.out) == (1, "")
    assert alone.err == f"rank 1: rank 0 at 127.0.0.1 port {port} cannot be reached (Connection refused)\n"


def test_a_rank_of_another_run_ends_the_rendezvous() -> None:
    port = free_port()
    with ring(2, FAST, ranks=[0], port=port) as (first,), ring(3, FAST, ranks=[2], port=port):
        expected = f"rank 0: rendezvous: expected each of 2 ranks once, got rank 2 of 3 ({socket.gethostname()})\n"
        assert ended(first) == Ended(1, "", expected)


def test_a_stranger_at_the_rendezvous_is_ignored() -> None:
    port, arguments = free_port(), ["--steps", "2", *FAST]
    with ring(2, arguments, ranks=[0], port=port) as (first,), socket.socket() as stranger:
        for _ in range(400):
            if stranger.connect_ex(("127.0.0.1", port)) == 0:
                break
            time.sleep(0.05)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with ring(2, arguments, ranks=[1], port=port) as (second,):
            assert [ended(process).code for process in (first, second)] == [0, 0]


def test_an_impossible_identity_is_said_at_once() -> None:
    assert all_ended(4, [], ranks=[4]) == [Ended(1, "", "RANK: expected 0 to 3, got 4\n")]


# --- what the others have in common ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> ModuleType:
    """What trainers share."""
    return module(SHARED)


def test_a_rank_is_told_again_what_it_said(shared: ModuleType) -> None:
    facts = {"rank": 3, "host": "größe", "device": 'a "GPU"', "memory_bytes": 1 << 40}
    values = shared.packed(facts)
    # Collectives of some frameworks carry numbers with a point.
    assert len(values) == 1024 and shared.unpacked(values) == shared.unpacked(map(float, values)) == facts
    with pytest.raises(ValueError, match="facts of a rank: expected 1024 bytes at most, got 10"):
        shared.packed({"host": "h" * 1020})


def test_memory_is_that_of_a_rank_and_not_of_what_started_it() -> None:
    program = "import trainer; block = bytearray(b'x') * (96 << 20); del block; print(trainer.resident_bytes() >> 20)"
    large = bytearray(b"x") * (300 << 20)
    own = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SHARED.parent)}, capture_output=True, text=True, check=True
    )
    assert len(large) == 300 << 20 and 96 < int(own.stdout) < 200


def test_ranks_are_counted(shared: ModuleType) -> None:
    shared.check_ranks([6, 4], 4)
    shared.check_ranks([6, 4], 4, group=4)
    with pytest.raises(RuntimeError, match=r"ranks: expected sum and count \[6, 4\], got \[5, 4\]$"):
        shared.check_ranks([5, 4], 4)
    with pytest.raises(RuntimeError, match=r"got \[6, 4\] in a group of 8$"):
        shared.check_ranks([6, 4], 4, group=8)


def test_the_last_line_tells_what_was_asked_said_and_found(shared: ModuleType) -> None:
    asked = argparse.Namespace(batch_size=2, data_dir="true", compile="true", xla="false")
    ranks = [{"rank": rank, "host": host, "device": "d", "memory_bytes": rank} for rank, host in ((0, "b"), (1, "b"), (2, "a"))]
    facts = shared.closing(asked, ranks, {"backend": "gloo"}, switches=("compile", "xla"))
    assert facts == {
        **{"batch_size": 2, "data_dir": "true", "compile": True, "xla": False, "backend": "gloo", "simulated": False},
        **{"world_size": 3, "global_batch": 6, "ranks": [0, 1, 2], "hosts": ["b", "a"], "max_memory_bytes": 2},
        "devices": [{"name": "d", "count": 3}],
    }


def test_the_wait_for_images_is_the_time_from_a_step_to_the_begin_of_the_next(shared: ModuleType) -> None:
    clock = shared.HostClock()
    clock.start()
    time.sleep(0.05)
    clock.begin()
    (fed,) = clock.mark(1, 0.5)
    time.sleep(0.02)
    (unasked,) = clock.mark(2, 0.5)
    assert 0.05 <= fed.input_wait_s <= fed.seconds
    assert unasked.seconds >= 0.02 and unasked.input_wait_s == 0.0


def test_of_computing_the_clock_and_the_processor_time_are_told_apart(shared: ModuleType) -> None:
    clock = shared.HostClock()
    clock.start()
    clock.begin()
    time.sleep(0.05)
    ended = time.process_time() + 0.02
    while time.process_time() < ended:
        pass
    clock.stamp("forward")
    (step,) = clock.mark(1, 0.5)
    assert 0.02 <= step.compute_cpu_s <= step.compute_s - 0.04
    (unstamped,) = clock.mark(2, 0.5)
    assert (unstamped.compute_s, unstamped.compute_cpu_s) == (None, None)


def test_a_step_after_which_the_loss_scale_is_lower_was_skipped(shared: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    clock = shared.HostClock(512.0)
    clock.start()
    shared.say_start(1.0, skipped=0)
    for number, scale in enumerate((256.0, 128.0, 128.0, 256.0), start=1):
        shared.say_steps(clock.mark(number, 2.5, scale), 4)
    lines = capsys.readouterr().out.splitlines()
    assert [step["skipped"] for step in samples("pytorch", "\n".join(lines))] == [0, 1, 1, 0, 0]
    shared.say_steps(shared.HostClock.mark(clock, 5, 2.5), 4)
    assert capsys.readouterr().out.endswith(" loss=2.5\n")  # a trainer that does not tell


def test_the_search_for_the_largest_size_doubles_and_then_halves(shared: ModuleType) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= 300

    # 256 fits and 512 does not; in between 384, 320, 288, 304. From 288 to 304 is less than a sixteenth.
    assert shared.largest(fits, 128, 4096) == 288
    assert tried == [128, 256, 512, 384, 320, 288, 304]
    assert shared.largest(fits, 128, 280) == 272
    assert shared.largest(fits, 4096, 64) == 64
    assert shared.largest(lambda _: False, 128, 4096) == 0


@pytest.mark.parametrize("first", [1, 2, 24, 128, 1000])
def test_the_largest_size_fits_and_a_tenth_more_does_not(shared: ModuleType, first: int) -> None:
    for room in range(1, 1200, 7):
        for most in (room - 1, room + 1, 4000):
            if most < 1:
                continue
            found = shared.largest(lambda size, room=room: size <= room, first, most)
            assert found <= min(room, most) <= max(found + 8, found * 1.1), (room, most)


# --- pytorch --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer() -> ModuleType:
    """The PyTorch trainer as a module."""
    pytest.importorskip("torch")
    return module(PYTORCH)


def neighbour(name: str) -> Any:
    """A file of the trainer's own folder, as the trainer has imported it."""
    return sys.modules[name]


@pytest.mark.parametrize(("model", "parameters"), [("resnet50", 25_557_032), ("vgg16", 138_357_544)])
def test_models_have_the_published_number_of_parameters(trainer: ModuleType, model: str, parameters: int) -> None:
    import torch

    with torch.device("meta"):
        network = trainer.MODELS[model](1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    declared = yaml.safe_load((ROOT / "templates/pytorch/framework.yaml").read_text())["models"][model]["parameters"]
    assert declared == parameters


def test_resnet50_is_version_1_5(trainer: ModuleType) -> None:
    """The stride of a down-sampling block is in its 3x3 convolution, not in the 1x1 before it."""
    import torch

    with torch.device("meta"):
        blocks = [
            layer for layer in neighbour("torch_models").resnet50(10) if isinstance(layer, neighbour("torch_models").Bottleneck)
        ]
    strides = [(block.conv1.stride[0], block.conv2.stride[0]) for block in blocks]
    assert len(strides) == 16
    assert [at for at, stride in enumerate(strides) if stride == (1, 2)] == [3, 7, 13]
    assert all(stride == (1, 1) for at, stride in enumerate(strides) if at not in (3, 7, 13))


@pytest.mark.parametrize(("model", "size"), [("resnet50", 32), ("resnet50", 224), ("vgg16", 32), ("vgg16", 50)])
def test_models_take_images_of_any_size_from_32(trainer: ModuleType, model: str, size: int) -> None:
    import torch

    with torch.device("meta"):
        assert trainer.MODELS[model](7)(torch.empty(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 1}, "--batch-size: expected 2 or more at image size 32, got 1"),
        ({"batch_size": 0}, "--batch-size: expected 1 or more, got 0"),
        ({"image_size": 31}, "--image-size: expected 32 or more, got 31"),
        ({"dtype": "tf32"}, "--dtype: expected fp32, fp16 or bf16 on cpu, got tf32"),
        ({"backend": "nccl"}, "--backend: expected gloo on cpu, got nccl"),
        ({"timeout_s": 0.0}, "--timeout-s: expected more than 0, got 0"),
        ({"warmup_steps": 120}, "--warmup-steps: expected 0 to 119, fewer than the steps, got 120"),
        ({"warmup_steps": -1}, "--warmup-steps: expected 0 to 119, fewer than the steps, got -1"),
        ({"solo_steps": -1}, "--solo-steps: expected 0 or more, got -1"),
        ({"cudnn_benchmark_limit": -1}, "--cudnn-benchmark-limit: expected 0 or more, got -1"),
        ({"find_batch_size": 64}, "--find-batch-size: expected 0 on cpu, got 64: without memory the system kills the process"),
        ({"max_pool": "gathered"}, "--max-pool: expected auto or torch, except for resnet50 with --compile, got gathered"),
        (
            {"max_pool": "gathered", "compile": "true", "model": "vgg16"},
            "--max-pool: expected auto or torch, except for resnet50 with --compile, got gathered",
        ),
        ({"cuda_graphs": "true"}, "--cuda-graphs: expected cuda and nccl, got cpu and auto"),
        ({"reduce": "packed", "compress": "fp16"}, "--compress: expected none with --reduce packed, got fp16"),
        (
            {"reduce": "packed", "steps": 11},
            "--steps: expected more than the 11 steps before --reduce packed takes effect",
        ),
        ({}, ""),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    trainer: ModuleType, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_pytorch.py", "--device", "cpu", "--image-size", "32", "--batch-size", "2"])
    asked = trainer.arguments()
    for name, value in change.items():
        setattr(asked, name, value)
    assert trainer.unusable(asked).startswith(message)
    assert bool(trainer.unusable(asked)) is bool(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "gloo"}, "--cuda-graphs: expected cuda and nccl, got cuda and gloo"),
        ({"compress": "fp16"}, "--compress: expected none with --cuda-graphs, got fp16"),
        ({"steps": 12}, "--steps: expected more than the 12 steps before --cuda-graphs takes effect, got 12"),
        ({}, ""),
    ],
)
def test_what_cannot_be_one_cuda_graph_is_refused(trainer: ModuleType, change: dict[str, Any], message: str) -> None:
    asked = argparse.Namespace(
        **{"device": "cuda", "backend": "auto", "compress": "none", "steps": 120, "cuda_graphs": "true"} | change
    )
    assert trainer.unusable_reduction(asked).startswith(message)
    assert bool(trainer.unusable_reduction(asked)) is bool(message)


def small(num_classes: int) -> Any:
    """Return a model of three stages; its source is also that of a program."""
    from torch import nn

    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 13 * 13, num_classes))


@pytest.fixture
def alone(trainer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[argparse.Namespace]:
    """A group of one rank, a small model with the name of ResNet-50 and three stages, and what is asked of it."""
    import torch.distributed as dist

    monkeypatch.setitem(trainer.MODELS, "resnet50", small)
    monkeypatch.setitem(neighbour("torch_models").CUTS, "resnet50", (3, 6))
    monkeypatch.setattr(sys, "argv", ["train_pytorch.py", "--device", "cpu", "--image-size", "32", "--batch-size", "4"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    try:
        yield trainer.arguments()
    finally:
        dist.destroy_process_group()


def test_a_rank_whose_gpu_was_full_is_remarked(trainer: ModuleType, alone: argparse.Namespace) -> None:
    import torch

    cpu = torch.device("cpu")
    assert trainer.allocator_retries(cpu) == 0 and trainer.memory_remarks(cpu, 0) == []
    assert ["gave cached memory back once on a rank" in text for text in trainer.memory_remarks(cpu, 1)] == [True]
    assert ["gave cached memory back 20 times on a rank" in text for text in trainer.memory_remarks(cpu, 20)] == [True]


def losses(trainer: ModuleType, asked: argparse.Namespace, steps: int = 3) -> tuple[list[float], list[int]]:
    """The losses of some steps with and three without communication, and how many buckets each had reduced."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    device = torch.device("cpu")
    model = trainer.learner(asked, device)
    counts: list[int] = []

    def counted(_: Any, bucket: Any) -> Any:
        counts[-1] += 1
        return allreduce_hook(None, bucket)

    counted.__annotations__.clear()  # DDP refuses what is not its own type, and knows no name of one
    model.parallel.register_comm_hook(None, counted)
    batch = neighbour("torch_images").synthetic(asked, device, 0)
    found = []
    for network in [model.parallel] * steps + [model.parallel.module] * 3:
        counts.append(0)
        found.append(float(trainer.taken(model, network, *batch)[0]))
    return found, counts


def test_a_step_of_the_module_alone_trains_and_reduces_nothing(trainer: ModuleType, alone: argparse.Namespace) -> None:
    found, counts = losses(trainer, alone)
    assert all(count > 0 for count in counts[:3]) and counts[3:] == [0, 0, 0]
    assert len(set(found)) == 6


def test_only_the_first_step_works_from_the_root_directory(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    directories: list[str] = []
    take = trainer.taken

    def recorded(*arguments: Any) -> Any:
        directories.append(os.getcwd())
        return take(*arguments)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "taken", recorded)
    asked = argparse.Namespace(**vars(alone) | {"steps": 3, "solo_steps": 0})
    trainer.train(asked, trainer.Identity(0, 0, 1, 0), torch.device("cpu"))
    assert directories == ["/", str(tmp_path), str(tmp_path)]


@pytest.mark.parametrize(("option", "values"), [("static_graph", ["on", "off"]), ("bucket_view", ["true", "false"]),
                                                ("optimizer", ["fused", "foreach", "plain"])])  # fmt: skip
def test_options_of_speed_leave_the_losses_as_they_are(
    trainer: ModuleType, alone: argparse.Namespace, option: str, values: list[str]
) -> None:
    every = [losses(trainer, argparse.Namespace(**vars(alone) | {option: value}))[0] for value in values]
    assert all(one == pytest.approx(every[0], rel=1e-4) for one in every[1:])


def test_training_after_an_overflow_in_the_first_step_is_that_of_unfused_sgd(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    # Fused SGD once took its momentum from memory that nothing had written: here such memory holds NaN.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        overflowing = vars(alone) | {"dtype": "fp16", "loss_scale": 2.0**22}
        fused, plain = (
            losses(trainer, argparse.Namespace(**overflowing | {"optimizer": kind}), steps=20)[0] for kind in ("fused", "plain")
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert plain[0] == plain[1] != plain[-1]  # the first step was skipped, and later ones trained
    assert fused == pytest.approx(plain, rel=1e-3)


@pytest.mark.filterwarnings(
    "ignore"
)  # PyTorch deprecates what its own compiler imports, and reads .grad where it warns of that
@pytest.mark.parametrize("split", ["whole", "stages", "buckets"])
def test_a_compiled_model_has_the_losses_of_an_eager_one(trainer: ModuleType, alone: argparse.Namespace, split: str) -> None:
    import torch
    import torch._dynamo

    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    eager = losses(trainer, alone)[0]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(optimize_ddp=True):
        found, counts = losses(trainer, argparse.Namespace(**vars(alone) | {"compile": "true", "compile_split": split}))
    assert found == pytest.approx(eager, rel=1e-3) and counts[3:] == [0, 0, 0]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (3 if split == "stages" else 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (9, 7), (8, 8), (33, 112)])
@pytest.mark.parametrize("layout", ["channels_last", "contiguous_format"])
def test_pooling_by_gathering_is_that_of_torch_bit_for_bit(
    trainer: ModuleType, dtype: str, size: tuple[int, int], layout: str
) -> None:
    import torch

    torch.manual_seed(1)
    # Few different values, so that the largest is often there twice, and one that is no number.
    images = torch.randint(-3, 4, (2, 3, *size)).relu().to(getattr(torch, dtype))
    images[1, 2, 0, 0] = float("nan")
    found = []
    for pool in (torch.nn.MaxPool2d(3, stride=2, padding=1), neighbour("torch_gathered_pool").GatheredPool()):
        pixels = images.clone(memory_format=getattr(torch, layout)).requires_grad_()
        most = pool(pixels)
        torch.manual_seed(2)
        most.backward(torch.randn(most.shape).to(most.dtype))
        found.append((most.detach(), pixels.grad))
    for of_torch, ours in zip(*found, strict=True):
        assert torch.equal(torch.nan_to_num(ours, nan=9.0), torch.nan_to_num(of_torch, nan=9.0))
    assert found[0][0].isnan().sum() == 1 and found[1][1].is_contiguous(memory_format=getattr(torch, layout))


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_pools_by_gathering_has_the_losses_of_another(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo
    from torch import nn

    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    made = []

    def pooled(num_classes: int) -> Any:
        stem = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]
        made.append(nn.Sequential(*stem, nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, num_classes)))
        return made[-1]

    monkeypatch.setitem(trainer.MODELS, "resnet50", pooled)
    torch._dynamo.reset()
    found = [
        losses(trainer, argparse.Namespace(**vars(alone) | {"compile": on, "max_pool": pool}))[0]
        for on, pool in (("false", "torch"), ("true", "gathered"))
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    gradients = [model[0].weight.grad for model in made]
    assert [type(model[3]) for model in made] == [nn.MaxPool2d, neighbour("torch_gathered_pool").GatheredPool] and all(
        each.any() for each in gradients
    )


@pytest.mark.filterwarnings("ignore")
def test_pooling_that_is_compiled_to_something_else_is_refused(
    trainer: ModuleType, alone: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import torch._dynamo

    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    torch._dynamo.reset()
    cpu = torch.device("cpu")
    alone.compile, alone.max_pool = "true", "gathered"
    trainer.refuse(alone, cpu)
    for change, why in (
        (lambda ctx, gradient: torch.zeros(2, 8, 9, 8), "its gradient differs from torch's"),
        (lambda ctx, gradient: [].pop(), "[A-Z]"),
    ):
        torch._dynamo.reset()
        monkeypatch.setattr(neighbour("torch_gathered_pool").Gather, "backward", staticmethod(change))
        with pytest.raises(SystemExit, match=f"--max-pool: expected torch with PyTorch .*, got gathered: .*{why}"):
            trainer.refuse(alone, cpu)


@pytest.mark.parametrize(
    ("device", "why", "pool"), [("cpu", "", "torch"), ("cuda", "", "gathered"), ("cuda", "no g++", "torch")]
)
def test_a_gpu_pools_by_gathering_unless_that_gives_another_result(
    *,
    trainer: ModuleType,
    alone: argparse.Namespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    why: str,
    pool: str,
) -> None:
    import torch

    agreed = trainer.all_ranks
    monkeypatch.setattr(trainer, "difference", lambda device: why)
    monkeypatch.setattr(trainer, "all_ranks", lambda device, value, how: agreed(torch.device("cpu"), value, how))
    alone.compile = "true"
    assert trainer.chosen_pool(alone, torch.device(device)) == pool
    assert capsys.readouterr().out == (f"orch max_pool=torch, because gathered cannot be used: {why}\n" if why else "")


@pytest.mark.parametrize(("asked_for", "kind"), [("auto", "fused"), ("foreach", "foreach"), ("plain", "plain")])
def test_the_optimizer_is_the_kind_that_was_asked_for(trainer: ModuleType, asked_for: str, kind: str) -> None:
    import torch

    asked = argparse.Namespace(optimizer=asked_for, learning_rate=0.1, momentum=0.9, weight_decay=0.0, device="cpu")
    optimizer, found = trainer.sgd(asked, torch.nn.Linear(2, 2))
    chosen = {name for name in ("fused", "foreach") if optimizer.param_groups[0][name]}
    assert (found, chosen) == (kind, {kind} - {"plain"})


def test_a_batch_that_memory_does_not_hold_is_a_reason_and_the_next_one_trains(
    trainer: ModuleType, alone: argparse.Namespace
) -> None:
    import torch

    device = torch.device("cpu")
    model = trainer.learner(alone, device)
    assert neighbour("torch_batch_search").attempt(alone, model, device, 8) == ""
    assert "memory" in neighbour("torch_batch_search").attempt(alone, model, device, 1 << 40)
    assert neighbour("torch_batch_search").attempt(alone, model, device, 8) == ""
    assert all(parameter.grad is None for parameter in model.parallel.parameters())


def test_ranks_come_from_the_environment_only(trainer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 5, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "MASTER_ADDR": "a", "GROUP_RANK": 1}.items():
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
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", str(nproc)]
    command += ["--node_rank", "0", "--rdzv_backend", "static", "--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    command += ["--max_restarts", "0", "--monitor_interval", "0.1", "--no_python", str(wrapper)]
    command += [sys.executable, "-u", str(PYTORCH), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    errors = "".join(path.read_text() for path in sorted(folder.glob("*.err")))
    assert done.returncode == 0, done.stderr + errors
    return folder


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed in a run of two ranks with gloo."""
    pytest.importorskip("torch")
    arguments = ["--device", "cpu", "--image-size", "32", "--batch-size", "2", "--steps", "4", "--num-classes", "10"]
    folder = torchrun([*arguments, "--warmup-steps", "1"], tmp_path_factory.mktemp("torchrun"), nproc=2)
    assert [path.read_text() for path in sorted(folder.glob("*.err"))] == ["", ""]
    return [path.read_text() for path in sorted(folder.glob("*.out"))]


def test_every_pytorch_rank_says_who_it_is_and_rank_0_the_steps(two_ranks: list[str]) -> None:
    assert [rank_lines("pytorch", text) for text in two_ranks] == [[(0, 2)], [(1, 2)]]
    assert [[step["step"] for step in samples("pytorch", text)] for text in two_ranks] == [[0, 1, 2, 3, 4], []]


def test_every_pytorch_rank_says_how_long_its_steps_were_and_how_long_it_computed(two_ranks: list[str]) -> None:
    for rank, text in enumerate(two_ranks):
        (line,) = (line for line in text.splitlines() if line.startswith("orch parts "))
        facts = json.loads(line.removeprefix("orch parts "))
        assert (facts["rank"], facts["first_step"], facts["last_step"]) == (rank, 2, 4)
        assert all(0 < own < step for own, step in zip(facts["compute_s"], facts["step_s"], strict=True))
        assert len(facts["compute_cpu_s"]) == 3 and min(facts["compute_cpu_s"]) > 0
        assert len(facts["input_s"]) == len(facts["step_s"]) == 3


def test_pytorch_step_times_are_the_differences_of_the_clock(two_ranks: list[str]) -> None:
    steps = samples("pytorch", two_ranks[0])
    assert [step["samples"] for step in steps] == [0, 4, 4, 4, 4]
    for before, after in pairwise(steps):
        assert after["step_time_s"] > 0
        assert after["timestamp"] - before["timestamp"] == pytest.approx(after["step_time_s"], abs=3e-6)


def test_the_last_line_of_a_pytorch_run_is_complete(two_ranks: list[str]) -> None:
    import torch

    facts = closing("pytorch", two_ranks[0])
    assert set(facts) >= DONE_KEYS
    assert (facts["world_size"], facts["ranks"], facts["hosts"]) == (2, [0, 1], [socket.gethostname()])
    assert (facts["global_batch"], facts["backend"], facts["simulated"]) == (4, "gloo", False)
    assert (facts["framework"], facts["framework_version"]) == ("pytorch", torch.__version__)
    assert [device["count"] for device in facts["devices"]] == [2]
    # The published number belongs to 1000 classes; this head has 10.
    assert facts["parameters"] == 25_557_032 - 990 * 2049
    assert facts["gradient_bytes"] == 4 * facts["parameters"]
    assert facts["output_dtype"] == "float32"
    assert (facts["static_graph"], facts["bucket_view"], facts["cuda_graphs"], facts["optimizer"]) == (
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


def program_of(folder: Path, body: str) -> Path:
    """Write a program that knows the PyTorch trainer as ``trainer``, with a small model in the place of ResNet-50."""
    program = folder / "small.py"
    program.write_text(f"""
from __future__ import annotations
import sys
sys.path.insert(0, {str(PYTORCH.parent)!r})
import train_pytorch as trainer
{inspect.getsource(small)}
trainer.MODELS["resnet50"] = small
{body}
""")
    return program


def gradients_compared() -> None:
    """Say of how many parameters two ways of averaging one batch's gradients differ: DDP twice, packed, and not at all."""
    import torch
    from torch_images import synthetic
    from torch_packed import Packed

    asked, me = trainer.arguments(), trainer.identity()
    device = trainer.claim_device(asked, me.local_rank)
    torch.use_deterministic_algorithms(True, warn_only=True)
    trainer.join(asked, me, device)
    model, batch = trainer.learner(asked, device), synthetic(asked, device, me.rank)
    for _ in range(3):
        trainer.taken(model, model.parallel, *batch)

    def averages(network):
        model.parallel.zero_grad()
        network(*batch)[0].backward()
        if isinstance(network, Packed):
            network.done()
        return [parameter.grad.detach().clone() for parameter in model.parallel.parameters()]

    ddp = averages(model.parallel)
    others = [averages(each) for each in (model.parallel, Packed(model.parallel), model.parallel.module)]
    differ = [sum(not torch.equal(one, other) for one, other in zip(ddp, each, strict=True)) for each in others]
    print("differ", *differ, "of", len(ddp), flush=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_packed_gradients_are_those_of_ddp_bit_for_bit(tmp_path: Path, device: str) -> None:
    torch = pytest.importorskip("torch")
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("no two GPUs")
    program = program_of(tmp_path, f"{inspect.getsource(gradients_compared)}\ntrainer.leave_after(gradients_compared)")
    arguments = ["--device", device, "--image-size", "32", "--batch-size", "4", "--steps", "20", "--dtype", "fp32"]
    arguments += ["--channels-last", "on", "--bucket-cap-mb", "1", "--cudnn-benchmark", "false"]
    texts = ranks(program, arguments, tmp_path, 2)
    said = [re.findall("^differ (.*)", text, re.MULTILINE) for text in texts]
    (of,) = {line.split()[-1] for (line,) in said}
    assert int(of) == 8 and said == [[f"0 0 {of} of {of}"]] * 2


def test_a_run_whose_gradients_are_packed_has_the_losses_of_ddp(tmp_path: Path) -> None:
    """A small model in channels-last, on two ranks with images of their own: without an average each would go its own way."""
    pytest.importorskip("torch")
    program = program_of(tmp_path, "trainer.leave_after(trainer.main)")
    found = {}
    for reduce in ("ddp", "packed"):
        folder = tmp_path / reduce
        folder.mkdir()
        arguments = ["--device", "cpu", "--image-size", "32", "--batch-size", "4", "--steps", "20", "--learning-rate", "0.0005"]
        arguments += ["--channels-last", "on", "--bucket-cap-mb", "1", "--reduce", reduce]
        text = ranks(program, arguments, folder, 2)[0]
        assert [path.read_text() for path in sorted(folder.glob("*.err"))] == ["", ""]
        found[reduce] = [float(loss) for loss in re.findall(r"orch step=[1-9].* loss=([0-9.]+)", text)]
        facts = closing("pytorch", text)
        assert facts["reduce"] == reduce and len(facts["gradient_buckets_bytes"]) > 1
    assert len(found["ddp"]) == 20 and len(set(found["ddp"])) == 20
    assert found["packed"] == pytest.approx(found["ddp"], abs=2e-4)


def test_each_rank_measures_a_step_that_waits_for_nobody(two_ranks: list[str]) -> None:
    facts = closing("pytorch", two_ranks[0])
    names = ("input_wait_s", "solo_step_s", "solo_forward_s", "solo_backward_s")
    assert [len(facts[name]) for name in names] == [2] * 4
    assert all(0 < waited < 0.1 for waited in facts["input_wait_s"]), "synthetic images are always there"
    for step_s, forward_s, backward_s in zip(*(facts[name] for name in names[1:]), strict=True):
        assert 0 < forward_s < step_s and 0 < backward_s < step_s
    for reduce_s, beside_s, step_s in zip(facts["solo_reduce_s"], facts["beside_reduce_s"], facts["solo_step_s"], strict=True):
        assert 0 < reduce_s < 100 * step_s and 0 < beside_s < 100 * step_s
    assert all(each > 0 for name in ("beside_forward_s", "beside_backward_s") for each in facts[name])
    ready = facts["gradient_ready_s"]
    assert len(ready) == len(facts["gradient_buckets_bytes"])
    assert ready[0] > 0 and sorted(ready) == ready and ready[-1] <= facts["solo_backward_s"][0] * 1.5


@pytest.mark.parametrize(("dtype", "output"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_pytorch_trains_with_half_types_on_a_cpu_as_the_folder_sets_it(tmp_path: Path, dtype: str, output: str) -> None:
    pytest.importorskip("torch")
    folder = yaml.safe_load((ROOT / "templates" / "pytorch" / "framework.yaml").read_text())
    options = {name: str(folder["options"][name]["device_default"]["cpu"]) for name in ("image_size", "loss_scale")}
    arguments = ["--device", "cpu", "--batch-size", str(folder["device_defaults"]["cpu"]["batch_size"]), "--steps", "2"]
    arguments += ["--image-size", options["image_size"], "--loss-scale", options["loss_scale"]]
    (text,) = ranks(PYTORCH, [*arguments, "--dtype", dtype, "--solo-steps", "0"], tmp_path, nproc=1)
    facts = closing("pytorch", text)
    assert (facts["output_dtype"], facts["loss_scale"] is None) == (output, output == "bfloat16")
    assert (facts["solo_step_s"], facts["beside_reduce_s"], facts["gradient_ready_s"]) == ([None], [None], [])
    steps = samples("pytorch", text)[1:]
    assert [step["skipped"] for step in steps] == [0, 0]
    assert steps[1]["loss"] < steps[0]["loss"]


def test_a_rank_that_counts_itself_wrongly_is_found(trainer: ModuleType) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    try:
        trainer.prove_world(trainer.Identity(0, 0, 1, 0), torch.device("cpu"))
        with pytest.raises(RuntimeError, match=r"ranks: expected sum and count \[0, 1\], got \[1, 1\] in a group of 1"):
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
    command = [sys.executable, str(PYTORCH), "--device", "cpu", "--image-size", "32", "--batch-size", "2", "--timeout-s", "1"]
    alone = subprocess.run(
        command, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "Traceback" in alone.stderr
    assert "DistStoreError" in alone.stderr or "imed out" in alone.stderr


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
def test_pytorch_trains_on_a_gpu(tmp_path: Path, dtype: str) -> None:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU here")
    folder = torchrun(["--device", "cuda", "--dtype", dtype, "--batch-size", "16", "--steps", "6"], tmp_path, nproc=1)
    text = next(folder.glob("*.out")).read_text()
    steps = samples("pytorch", text)
    assert [step["step"] for step in steps] == list(range(7))
    assert all(after["timestamp"] > before["timestamp"] for before, after in pairwise(steps))
    facts = closing("pytorch", text)
    assert facts["channels_last"] is (dtype != "fp32")
    assert facts["output_dtype"] == {"fp16": "float16", "bf16": "bfloat16"}.get(dtype, "float32")


@pytest.mark.parametrize("compile_", [[], ["--compile"]])
def test_a_step_is_one_cuda_graph_and_trains_all_the_same(tmp_path: Path, compile_: list[str]) -> None:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU here")
    found = []
    for graphs in ("false", "true"):
        folder = tmp_path / graphs
        folder.mkdir()
        arguments = ["--device", "cuda", "--dtype", "fp16", "--batch-size", "16", "--steps", "20", "--image-size", "64"]
        text = next(torchrun([*arguments, *compile_, "--cuda-graphs", graphs], folder, nproc=1).glob("*.out")).read_text()
        found.append([float(loss) for loss in re.findall(r"step_time_s=.* loss=([\d.]+)", text)])
        facts = closing("pytorch", text)
        assert facts["cuda_graphs"] is (graphs == "true") and facts["solo_step_s"][0] > 0
    assert len(found[0]) == 20 and found[1] == pytest.approx(found[0], rel=0.2, abs=0.2)


def test_the_largest_batch_is_found_on_a_gpu_before_the_first_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    arguments = ["--device", "cuda", "--batch-size", "16", "--steps", "2", "--image-size", "224", "--find-batch-size", "40000"]
    text = next(torchrun(arguments, tmp_path, nproc=1).glob("*.out")).read_text()
    facts = closing("pytorch", text)
    # ResNet-50 keeps about 90 MB of activations of an image in fp32: fewer fit than 30 MB an image would let.
    assert 16 < facts["largest_batch_size"] < torch.cuda.get_device_properties(0).total_memory / 30e6
    assert facts["max_memory_bytes"] < 0.5 * torch.cuda.get_device_properties(0).total_memory
    assert re.search(rf"^orch batch_size={facts['largest_batch_size']} \{{", text, re.MULTILINE)


# --- both -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["pytorch", "simulated"])
def test_the_sample_log_holds_the_sample_values(framework: str) -> None:
    folder = ROOT / "templates" / framework
    text = (folder / "sample.log").read_text()
    assert samples(framework, text) == json.loads((folder / "sample.json").read_text())
    assert rank_lines(framework, text) == [(0, 2)]
    assert set(closing(framework, text)) >= DONE_KEYS


@pytest.mark.parametrize("path", [PYTORCH, SHARED, *sorted(PYTORCH.parent.glob("torch_*.py"))], ids=lambda path: path.name)
def test_trainers_are_written_in_the_oldest_python_they_promise(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize(("framework", "path"), [("pytorch", PYTORCH), ("simulated", SIMULATED)])
def test_every_flag_of_a_trainer_that_a_user_may_set_is_in_the_launch_script(framework: str, path: Path) -> None:
    declared = flags(path, *([SHARED] if path == PYTORCH else []))
    assert declared
    script = (ROOT / "templates" / framework / "launch.sh.j2").read_text()
    assert declared == {flag for flag in declared if re.search(rf"{flag}[ =]{{{{", script)}
