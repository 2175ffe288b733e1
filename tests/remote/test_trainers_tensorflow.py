"""The TensorFlow trainer, run as a node runs it: one process a node, TF_CONFIG, ring all-reduce on
loopback.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

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

TRAINER = FLAT / "train_tensorflow.py"
FOLDER = ROOT / "templates" / "tensorflow"
SMALL = [
    "--device",
    "cpu",
    "--image-size",
    "32",
    "--batch-size",
    "2",
    "--num-classes",
    "10",
    "--grappler",
    "false",
]
QUIET = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "1"}


def start(arguments: list[str], index: int, ports: list[int], **more: str) -> subprocess.Popen[str]:
    """Start one node of a run."""
    config = {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
        "task": {"type": "worker", "index": index},
    }
    identity = {
        "RANK": str(index),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(ports)),
        "TF_CONFIG": json.dumps(config),
    }
    command = [PYTHON, "-u", str(TRAINER), *arguments]
    return subprocess.Popen(
        command,
        env=QUIET | identity | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(arguments: list[str], nodes: int) -> list[str]:
    """Run all nodes to their end; return what each printed."""
    ports = [free_port() for _ in range(nodes)]
    processes = [start(arguments, index, ports) for index in range(nodes)]
    try:
        ended = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * nodes, "".join(
        err for _, err in ended
    )
    return [out for out, _ in ended]


def inside(code: str, *arguments: str) -> Any:
    """What ``code`` prints in an interpreter that has the framework, with the trainer as ``t`` and
    its arguments as ``a``.

    The process sees two CPUs as devices, so that one process can drive two replicas, as it does two
    GPUs.
    """
    head = f"""
import json, sys
sys.path.insert(0, {str(TRAINER.parent)!r}); sys.argv[1:] = {[*SMALL, *arguments]!r}
import tensorflow as tf, tf_images, tf_models, tf_ranks, train_tensorflow as t
cpu, half = tf.config.list_physical_devices("CPU")[0], tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [half, half])
a = t.arguments()
class Small(tf.Module):
    def __init__(self, seeds, classes):
        super().__init__()
        self.stem, self.bn = tf_models.Conv(seeds, 3, 8, 3, 2), tf_models.BatchNorm(8)
        self.block = tf_models.Bottleneck(seeds, 8, 4, 2)
        self.head = tf_models.Dense(seeds, 16, classes)
    def __call__(self, images):
        return self.head(tf.reduce_mean(self.block(tf.nn.relu(self.bn(self.stem(images)))), [1, 2]))
def two_replicas(model):
    tf_models.MODELS[a.model] = model
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    return strategy, t.Trainer(a, strategy), tf_images.batches(a, tf_ranks.Identity(0, 2, 2, 0), strategy, ["/cpu:0", "/cpu:1"])
"""
    done = subprocess.run(
        [PYTHON, "-c", head + code],
        env=QUIET,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def two_nodes() -> list[str]:
    """What each node printed in a run of two."""
    needs("tensorflow")
    return run([*SMALL, "--steps", "3", "--warmup-steps", "1"], nodes=2)


def test_every_tensorflow_node_says_its_ranks_and_the_first_one_the_steps(
    two_nodes: list[str],
) -> None:
    assert [rank_lines("tensorflow", text) for text in two_nodes] == [[(0, 2)], [(1, 2)]]
    assert [[step["step"] for step in samples("tensorflow", text)] for text in two_nodes] == [
        [0, 1, 2, 3],
        [],
    ]


def test_tensorflow_step_times_are_the_differences_of_the_clock(two_nodes: list[str]) -> None:
    steps = samples("tensorflow", two_nodes[0])
    assert [step["samples"] for step in steps] == [0, 4, 4, 4]
    for before, after in pairwise(steps):
        assert after["step_time_s"] > 0
        assert after["timestamp"] - before["timestamp"] == pytest.approx(
            after["step_time_s"], abs=3e-6
        )


def test_every_tensorflow_rank_on_a_cpu_says_how_long_its_forward_pass_was(
    two_nodes: list[str],
) -> None:
    for rank, text in enumerate(two_nodes):
        parts = rank_parts("tensorflow", text)
        assert (parts["rank"], parts["first_step"], parts["last_step"]) == (rank, 2, 3)
        assert all(
            0 < own < step for own, step in zip(parts["compute_s"], parts["step_s"], strict=True)
        )


def test_what_xla_compiles_tells_no_end_of_a_forward_pass() -> None:
    needs("tensorflow")
    (text,) = run([*SMALL, "--steps", "2", "--xla", "true"], nodes=1)
    assert rank_parts("tensorflow", text)["compute_s"] == []


def test_the_last_line_of_a_tensorflow_run_is_complete(two_nodes: list[str]) -> None:
    facts = closing("tensorflow", two_nodes[0])
    assert set(facts) >= LOADER_KEYS
    assert (facts["world_size"], facts["ranks"], facts["framework"], facts["backend"]) == (
        2,
        [0, 1],
        "tensorflow",
        "ring",
    )
    assert (facts["global_batch"], facts["simulated"], facts["loader"]) == (4, False, "synthetic")
    assert [device["count"] for device in facts["devices"]] == [2]
    # The published number belongs to 1000 classes; this head has 10.
    assert facts["parameters"] == 25_557_032 - 990 * 2049
    assert facts["gradient_bytes"] == 4 * facts["parameters"]
    assert facts["output_dtype"] == "float32"


@pytest.mark.parametrize(("dtype", "output"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_tensorflow_computes_half_types_on_a_cpu(dtype: str, output: str) -> None:
    needs("tensorflow")
    (text,) = run([*SMALL, "--steps", "2", "--dtype", dtype, "--loss-scale", "8"], nodes=1)
    facts = closing("tensorflow", text)
    assert (facts["output_dtype"], facts["loss_scale"] is None) == (output, dtype == "bf16")


@pytest.mark.parametrize("loader", ["native", "tfrecord"])
def test_tensorflow_trains_from_disk(tmp_path: Path, loader: str) -> None:
    needs("tensorflow")
    maker = [
        sys.executable,
        "-I",
        "-S",
        str(FLAT / "make_dataset.py"),
        "--dir",
        str(tmp_path / "data"),
    ]
    subprocess.run(
        [*maker, "--images", "6", "--size", "40"], check=True, capture_output=True, timeout=LIMIT_S
    )
    arguments = [
        *SMALL,
        "--steps",
        "5",
        "--loader",
        loader,
        "--data-dir",
        str(tmp_path / "data"),
        "--workers",
        "1",
    ]
    (text,) = run(arguments, nodes=1)
    assert [step["step"] for step in samples("tensorflow", text)] == list(range(6))
    assert closing("tensorflow", text)["loader"] == loader


@pytest.mark.parametrize(
    ("nodes", "loader"),
    [(2, "native"), (4, "native"), (2, "tfrecord"), (4, "tfrecord"), (5, "tfrecord")],
)
def test_nodes_share_each_epoch_without_overlap(tmp_path: Path, nodes: int, loader: str) -> None:
    """The set has four TFRecord files: with five nodes, records are shared out, not files."""
    needs("tensorflow")
    maker = [
        sys.executable,
        "-I",
        "-S",
        str(FLAT / "make_dataset.py"),
        "--dir",
        str(tmp_path / "data"),
    ]
    subprocess.run(
        [*maker, "--images", "30", "--classes", "30", "--size", "16"],
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    code = f"""
shares = [tf_images.epoch(a, {nodes}, node) for node in range({nodes})]
print(json.dumps([[[int(label) for _, label in share] for share in shares] for epoch in range(2)]))
"""
    arguments = [
        "--num-classes",
        "30",
        "--loader",
        loader,
        "--data-dir",
        str(tmp_path / "data"),
        "--workers",
        "1",
    ]
    epochs = inside(code, *arguments)
    # Each class has one image, so a label names an image.
    for shares in epochs:
        assert sorted(label for share in shares for label in share) == list(range(30))
        assert all(shares)
    assert epochs[0] != epochs[1]


def test_one_process_drives_two_replicas_that_stay_alike() -> None:
    needs("tensorflow")
    code = """
strategy, trainer, data = two_replicas(tf_models.ResNet50)
me = tf_ranks.Identity(0, 2, 2, 0)
tf_ranks.prove_world(me, strategy)
losses = [float(trainer.step(*next(data))[0]) for _ in range(2)]
copies = [strategy.experimental_local_results(variable) for variable in trainer.variables]
spread = max(float(tf.reduce_max(abs(one - two))) for one, two in copies)
ranks = tf_ranks.gather([{"rank": 0}, {"rank": 1}], me, strategy)
print(json.dumps([losses[0] != losses[1], spread, ranks, len(copies)]))
"""
    assert inside(code) == [True, 0.0, [{"rank": 0}, {"rank": 1}], 161]


def test_a_wrong_count_of_ranks_is_found() -> None:
    needs("tensorflow")
    code = """
try:
    tf_ranks.prove_world(tf_ranks.Identity(0, 2, 3, 0), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]))
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    assert inside(code) == "ranks: expected sum and count [3, 3], got [1, 2]"


def test_a_step_is_that_of_sgd_with_momentum_over_the_mean_gradient() -> None:
    needs("tensorflow", "numpy")
    code = """
import numpy as np
class Line(tf.Module):
    def __init__(self, seeds, classes):
        super().__init__()
        self.w = tf.Variable(tf.reshape(tf.range(30, dtype=tf.float32) / 100, [3, 10]))
    def __call__(self, images):
        return tf.matmul(tf.reduce_mean(images, [1, 2]), self.w)
strategy, trainer, data = two_replicas(Line)
images, labels = next(data)
local = strategy.experimental_local_results
w, v = np.reshape(np.arange(30, dtype=np.float64) / 100, [3, 10]), np.zeros([3, 10])
for _ in range(3):
    trainer.step(images, labels)
    mean = 0
    for x, y in zip(local(images), local(labels)):
        x, y = x.numpy().mean((1, 2)).astype(float), y.numpy()
        p = np.exp(x @ w); p /= p.sum(1, keepdims=True); p[np.arange(len(y)), y] -= 1
        mean = mean + x.T @ p / len(y) / 2
    v = 0.9 * v + mean + 0.01 * w
    w = w - 0.01 * v
print(json.dumps(float(abs(local(trainer.variables[0])[0].numpy() - w).max())))
"""
    assert inside(code, "--weight-decay", "0.01") < 1e-6


def test_after_an_overflow_nothing_changes_but_the_loss_scale() -> None:
    needs("tensorflow")
    code = """
strategy, trainer, data = two_replicas(Small)
def weights(): return [strategy.experimental_local_results(v)[0].numpy() for v in trainer.variables]
before = weights()
trainer.step(*next(data))
same = all((one == two).all() for one, two in zip(before, weights()))
print(json.dumps([same, float(tf.convert_to_tensor(trainer.loss_scale))]))
"""
    assert inside(code, "--dtype", "fp16", "--loss-scale", str(2.0**60)) == [True, 2.0**59]
    assert inside(code, "--dtype", "fp16", "--loss-scale", "8") == [False, 8.0]


@pytest.mark.parametrize(
    "extra", [["--dtype", "bf16"], ["--dtype", "fp16", "--loss-scale", "8"], ["--xla", "true"]]
)
def test_other_ways_to_compute_lower_the_loss(extra: list[str]) -> None:
    needs("tensorflow")
    code = """
strategy, trainer, data = two_replicas(Small)
print(json.dumps([float(trainer.step(*next(data))[0]) for _ in range(8)]))
"""
    losses = inside(code, "--batch-size", "8", "--learning-rate", "0.02", *extra)
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize(
    ("model", "parameters"), [("resnet50", 25_557_032), ("vgg16", 138_357_544)]
)
def test_tensorflow_models_have_the_published_number_of_parameters(
    model: str, parameters: int
) -> None:
    needs("tensorflow")
    code = f"""
model = tf_models.MODELS[{model!r}](tf_models.Seeds(0), 1000)
print(sum(variable.shape.num_elements() for variable in model.trainable_variables))
"""
    assert inside(code) == parameters


def test_resnet50_of_tensorflow_is_version_1_5() -> None:
    """The stride of a down-sampling block is in its 3x3 convolution, not in the 1x1 before it."""
    needs("tensorflow")
    strides = inside(
        "print(json.dumps([(b.conv1.stride, b.conv2.stride) for b in tf_models.ResNet50(tf_models.Seeds(0), 10).blocks]))"
    )
    assert [at for at, stride in enumerate(strides) if stride == [1, 2]] == [3, 7, 13]
    assert all(stride == [1, 1] for at, stride in enumerate(strides) if at not in (3, 7, 13))


def test_pooling_to_seven_by_seven_is_that_of_pytorch() -> None:
    needs("tensorflow", "torch", "numpy")
    code = """
import numpy as np
x = {size: np.random.default_rng(0).random((2, size, size, 3), np.float32) for size in (1, 2, 5, 7, 10, 14)}
ours = {size: tf_models.seven_by_seven(tf.constant(one)).numpy() for size, one in x.items()}
import torch
pool = torch.nn.AdaptiveAvgPool2d(7)
theirs = {size: pool(torch.tensor(one).permute(0, 3, 1, 2)).permute(0, 2, 3, 1) for size, one in x.items()}
print(json.dumps(max(float(abs(ours[size] - theirs[size].numpy()).max()) for size in x)))
"""
    assert inside(code) < 1e-6


def test_the_sample_log_holds_the_sample_values() -> None:
    text = (FOLDER / "sample.log").read_text()
    assert samples("tensorflow", text) == json.loads((FOLDER / "sample.json").read_text())
    assert rank_lines("tensorflow", text) == [(0, 2)]
    assert set(closing("tensorflow", text)) >= LOADER_KEYS


@pytest.mark.parametrize(
    "path", [TRAINER, *sorted(TRAINER.parent.glob("tf_*.py"))], ids=lambda path: path.name
)
def test_the_trainer_is_written_in_the_oldest_python_it_promises(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
