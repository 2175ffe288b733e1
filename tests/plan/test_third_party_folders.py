"""Other people's trainers: what is rendered for them, what is refused, and the ports that they
take.

Golden files under ``data/golden`` hold every file of every node; ``ORCH_UPDATE_GOLDEN=1 pytest``
writes them anew, and the difference is read before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks.cross_node import unlike
from orchestrator.checks.judge import judge, unfit
from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.plan.render import fold_files
from tests.plan.third_party_runs import FOREIGN, PORT, Case, cases, hosts, launch, planned
from tests.support.node_facts import known
from tests.support.rendering import complaint, opened, without_vendors

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.mark.parametrize("framework", FOREIGN)
def test_rendered_files_are_the_golden_ones(framework: str) -> None:
    parts = []
    for case in cases(framework):
        parts.append(f"======== {case.label}\n")
        plan = planned(framework, case)
        for names, file in fold_files(plan.nodes):
            content = without_vendors(file.content, plan).rstrip("\n")
            parts.append(f"---- {','.join(names)}: {file.path} {file.mode:04o}\n{content}\n")
    path = GOLDEN / f"{framework}.txt"
    if os.environ.get("ORCH_UPDATE_GOLDEN"):
        path.write_text("".join(parts))
    assert "".join(parts) == path.read_text()


@pytest.mark.parametrize("framework", FOREIGN)
def test_every_launch_script_is_sound_shell(framework: str) -> None:
    for case in cases(framework):
        plan = planned(framework, case)
        for node in range(case.shape[0]):
            script = launch(plan, node)
            assert complaint(script) == "", case.label


@pytest.mark.parametrize(
    ("framework", "case", "node", "words"),
    [
        (
            "pytorch_examples",
            Case((4, 8)),
            3,
            "--batch-size 1024 --lr 1.024 --momentum 0.125 --workers 8 --print-freq 1 --multiprocessing-distributed "
            "--dist-backend nccl --dist-url tcp://10.11.0.2:20000 --world-size 4 --rank 3 --dummy",
        ),
        ("paddle_models", Case((1, 1)), 0, "/train.py --model=ResNet50 --batch_size=128"),
        (
            "paddle_models",
            Case((1, 8)),
            0,
            "-m paddle.distributed.launch --started_port=20000 /opt/",
        ),
        (
            "paddle_models",
            Case((2, 8)),
            1,
            "--cluster_node_ips=10.11.0.2,10.11.0.3 --node_ip=10.11.0.3",
        ),
        (
            "paddle_models",
            Case((2, 8)),
            1,
            "--batch_size=1024 --image_shape 3 224 224 --class_dim=1000 --total_images=651468",
        ),
        (
            "paddle_models",
            Case((2, 8)),
            1,
            "--print_step=1 --max_iter=120 --save_step=10000 --validate=False",
        ),
        (
            "fleetx",
            Case((2, 8), model="vgg16"),
            1,
            "--ips=10.11.0.2,10.11.0.3 --gpus=0,1,2,3,4,5,6,7 --log_dir=logs",
        ),
        (
            "oneflow",
            Case((2, 8)),
            1,
            "--num_nodes=2 --gpu_num_per_node=8 --node_ips=10.11.0.2,10.11.0.3 --ctrl_port=20000",
        ),
        (
            "oneflow",
            Case((2, 8)),
            1,
            "--num_examples=245760 --num_epochs=1 --loss_print_every_n_iter=20",
        ),
        ("tensorpack", Case((1, 8)), 0, "--batch 64 --variable-update=replicated --model tfbench"),
        (
            "tensorpack",
            Case((2, 8), {}, {"variable_update": "horovod"}),
            0,
            "mpirun -np 16 -H 10.11.0.2:8,10.11.0.3:8 -bind-to none -map-by slot -mca pml ob1",
        ),
        (
            "tf_cnn_benchmarks",
            Case((2, 8), {}, {"variable_update": "parameter_server"}),
            1,
            "--worker_hosts=10.11.0.2:20000,10.11.0.3:20000 --ps_hosts=10.11.0.2:20001,10.11.0.3:20001",
        ),
        (
            "tf_cnn_benchmarks",
            Case((2, 8), {}, {"variable_update": "horovod"}),
            0,
            "--num_gpus=1 --batch_size=64 --model=resnet50 --data_format=NCHW --variable_update=horovod",
        ),
        (
            "horovod_examples",
            Case((2, 8)),
            0,
            "mpirun -np 16 -H 10.11.0.2:8,10.11.0.3:8 -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib --tag-output",
        ),
        (
            "horovod_examples",
            Case((1, 8)),
            0,
            "--model resnet50 --batch-size 32 --num-warmup-batches 10 --num-batches-per-iter 10 --num-iters 10",
        ),
    ],
)
def test_a_command_agrees_with_the_published_recipe(
    framework: str, case: Case, node: int, words: str
) -> None:
    assert words in " ".join(launch(planned(framework, case), node).replace("\\\n", " ").split())


def test_tensorflow_gets_a_config_of_its_own_on_every_node() -> None:
    import yaml

    plan = planned("tensorflow_official", Case((4, 8)))
    configs = [
        yaml.safe_load(next(f.content for f in node.files if f.path == "config.yaml"))
        for node in plan.nodes
    ]
    assert [config["runtime"].pop("task_index") for config in configs] == [0, 1, 2, 3]
    assert all(config == configs[0] for config in configs)
    assert configs[0]["runtime"]["worker_hosts"] == ",".join(
        f"10.11.0.{i}:{PORT}" for i in (2, 3, 4, 5)
    )
    assert configs[0]["train_dataset"]["batch_size"] == 128 and configs[0]["train"]["steps"] == 600
    assert configs[0]["model"]["learning_rate"]["initial_lr"] == 1.024
    alone = planned("tensorflow_official", Case((1, 8), {"dtype": "fp16"}))
    config = yaml.safe_load(
        next(f.content for f in alone.nodes[0].files if f.path == "config.yaml")
    )
    assert (
        config["runtime"]["distribution_strategy"] == "mirrored"
        and "worker_hosts" not in config["runtime"]
    )
    assert (
        config["train_dataset"]["dtype"] == "float16"
        and config["model"]["learning_rate"]["initial_lr"] == 0.256
    )


def test_nodes_differ_in_nothing_but_who_they_are() -> None:
    identity = {
        "pytorch_examples": r"--rank [0-3]",
        "tensorflow_official": r"\btask_index: [0-3]",
        "paddle_models": r"--node_ip=10\.11\.0\.[2-5]",
        "tf_cnn_benchmarks": r"--task_index=[0-3]",
        "tensorpack": r"--job (ps|worker):[0-3]",
    }
    for framework in FOREIGN:
        plan = planned(framework, cases(framework)[3])
        started = plan.nodes if plan.launch == "every_node" else plan.nodes[1:]
        texts = ["".join(file.content for file in node.files) for node in started]
        masked = {re.sub(identity.get(framework, r"\Z"), "", text) for text in texts}
        assert len(masked) == 1, framework
        assert len(set(texts)) == (4 if framework in identity else 1), framework


@pytest.mark.parametrize(
    ("framework", "case", "on", "where", "why"),
    [
        ("pytorch_examples", Case((1, 2)), "cpu", "--gpus", "expected 1"),
        (
            "pytorch_examples",
            Case((1, 8), {"loader": "dali-gpu"}),
            "cuda",
            "--loader",
            "edited copy",
        ),
        (
            "tensorflow_official",
            Case((1, 8), {"steps": 550}),
            "cuda",
            "--steps",
            "multiples of log_steps",
        ),
        ("tensorflow_official", Case((1, 2)), "cpu", "--gpus", "expected 1"),
        (
            "fleetx",
            Case((1, 8), {"warmup_steps": 10}, model="vgg16"),
            "cuda",
            "--warmup-steps",
            "expected 11",
        ),
        (
            "fleetx",
            Case((1, 8), {}, {"strategy": "auto"}, "vgg16"),
            "cuda",
            "--dtype",
            "expected fp16",
        ),
        ("tensorpack", Case((1, 8), {"steps": 120}), "cuda", "--steps", "multiples of 50"),
        ("tensorpack", Case((1, 8), {"warmup_steps": 0}), "cuda", "--steps", "50 or more warm-up"),
        ("tensorpack", Case((2, 8), {"steps": 250}), "cuda", "--steps", "expected 500"),
        (
            "tensorpack",
            Case((1, 8), {"dtype": "fp16"}, {"network": "tensorpack"}),
            "cuda",
            "--dtype",
            "fp32 only",
        ),
        (
            "tensorpack",
            Case((2, 8), {}, {"variable_update": "horovod", "fake_location": "zmq-consume"}),
            "cuda",
            "--set fake_location",
            "one pipe",
        ),
        (
            "tf_cnn_benchmarks",
            Case((2, 8)),
            "cuda",
            "--set variable_update",
            "replicated is for one node",
        ),
        ("tf_cnn_benchmarks", Case((1, 8), {"steps": 115}), "cuda", "--steps", "multiple of 10"),
        ("oneflow", Case((1, 8), {"steps": 130}), "cuda", "--steps", "print_every"),
        (
            "horovod_examples",
            Case((1, 8), {"steps": 105}),
            "cuda",
            "--steps",
            "multiple of batches_per_iteration",
        ),
        (
            "horovod_examples",
            Case((1, 8), {}, {"adasum": "true", "program": "tensorflow2"}),
            "cuda",
            "--set adasum",
            "no Adasum",
        ),
    ],
)
def test_what_a_program_cannot_do_is_refused_before_anything_starts(
    framework: str, case: Case, on: str, where: str, why: str
) -> None:
    machines = hosts(case.shape[0], 0 if on == "cpu" else case.shape[1])
    machines = [
        Host(one.name, one.address, gpus=one.gpus, slots=8, vars=one.vars) for one in machines
    ]
    with pytest.raises(ConfigError, match=re.escape(why)) as caught:
        planned(framework, case, machines)
    assert caught.value.where == where and framework in caught.value.message


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_host_that_does_not_say_where_the_program_is_is_named(framework: str) -> None:
    name, holds = next(iter(opened(framework).framework.requires.items()))
    with pytest.raises(ConfigError, match=re.escape(f"vars.{name} of host node2")) as caught:
        misspelt = hosts(2, 8, **{name: None, f"{name}s": "/opt"})
        planned(framework, cases(framework)[2], [hosts(2, 8)[0], *misspelt[1:]])
    assert holds in caught.value.hint and f"; did you mean '{name}s'?" in caught.value.hint


@pytest.mark.parametrize("framework", ["tensorpack", "tf_cnn_benchmarks", "horovod_examples"])
def test_under_mpirun_only_the_first_node_starts_something(framework: str) -> None:
    by_option = "variable_update" in opened(framework).framework.options
    plan = planned(framework, Case((3, 8), {}, {"variable_update": "horovod"} if by_option else {}))
    assert plan.launch == "first_node"
    assert "mpirun" in launch(plan, 0)
    assert "-x ORCH_RUN_ID" in launch(plan, 0)
    for node in (1, 2):
        assert {file.path for file in plan.nodes[node].files} == {"env.sh", "launch.sh"}
        assert "mpirun" not in launch(plan, node) and "python" not in launch(plan, node)
    assert planned(framework, cases(framework)[2]).launch == (
        "every_node" if by_option else "first_node"
    )


@pytest.mark.parametrize(
    ("framework", "first", "others"),
    [
        ("pytorch_examples", 1, 0),
        ("tensorflow_official", 1, 1),
        ("paddle_models", 8, 8),
        ("fleetx", 8, 8),
        ("oneflow", 1, 1),
        ("tf_cnn_benchmarks", 2, 2),
        ("tensorpack", 2, 2),
        ("horovod_examples", 0, 0),
        ("pytorch", 1, 0),
    ],
)
def test_every_port_of_every_node_is_known_before_the_start(
    framework: str, first: int, others: int
) -> None:
    case = cases(framework)[2]
    ports = [node.ports for node in planned(framework, case).nodes]
    assert ports == [tuple(range(PORT, PORT + first)), tuple(range(PORT, PORT + others))]


def test_preflight_wants_the_program_and_the_same_one_everywhere() -> None:
    framework = opened("pytorch_examples").framework
    host = hosts(1, 0)[0]
    facts: dict[str, Any] = {
        "runner_python": "3.11", "kernel": "6", "framework": {"torch": "2"}, "cores": 2, "cpu": "x", "disk_free_bytes": 1 << 40,
        "workdir": "/w", "interface": {"state": "up", "mtu": 1500}, "login_s": 0.1, "ports_busy": [], "data_dir": True,
    }  # fmt: skip
    path = "/opt/examples/imagenet/main.py"
    verdicts = {
        digest: [
            one.verdict
            for one in judge(host, facts | {"programs": {path: digest}}, framework, 1)
            if one.name == "program"
        ]
        for digest in (None, "ab" * 32)
    }
    assert verdicts == {None: ["failed"], "ab" * 32: ["ok"]}
    copies = {
        "node1": {"programs": {path: "aa"}},
        "node2": {"programs": {path: "bb"}},
        "node3": {"programs": {path: "aa"}},
    }
    assert [error.host for error in unfit(unlike(known(copies)))] == ["node2"]
    assert not unlike(known({"node1": {}, "node2": {}}))
