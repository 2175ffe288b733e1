"""Other people's trainers: what is rendered for them, what their logs say, and that each launch script ends as it should.

Golden files under ``data/golden`` hold every file of every node; ``ORCH_UPDATE_GOLDEN=1 pytest`` writes them anew, and the
difference is read before it is committed. The programs themselves are stand-ins here, which record what they were given.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.published.rules import rule_of
from orchestrator.checks.among import unlike
from orchestrator.checks.judge import judge, unfit
from orchestrator.errors import ConfigError
from orchestrator.inventory import open_inventory
from orchestrator.inventory.hosts import Host
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import parse
from orchestrator.logs.steps import RankAggregate, StepSample
from orchestrator.plan import folders as library
from orchestrator.plan.bench import plan_run
from orchestrator.plan.measures import TRAINING
from orchestrator.plan.render import Plan, folded
from orchestrator.plan.spec import resolve
from orchestrator.record.rundir import BenchDir
from orchestrator.results.numbers.throughput import Terms, throughput
from orchestrator.results.read import read_run
from tests.support.rendering import complaint, opened
from tests.support.run_folders import build

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FRAMEWORKS = [opened(name).framework for name in library.frameworks()]
FOREIGN = tuple(framework.name for framework in FRAMEWORKS if framework.requires and framework.measures == TRAINING)
PORT = 20000
VARS = {
    "interface": "ib0",
    "python": "/opt/python/bin/python3",
    "data_dir": "/data/imagenet",
    "pytorch_examples_dir": "/opt/examples",
    "tf_models_dir": "/opt/tf models",
    "paddle_models_dir": "/opt/paddle-models",
    "fleetx_dir": "/opt/fleetx",
    "tensorpack_dir": "/opt/tensorpack",
    "tf_cnn_benchmarks_dir": "/opt/tf_cnn_benchmarks",
    "oneflow_cnns_dir": "/opt/oneflow/cnns",
    "horovod_dir": "/opt/horovod",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One rendering: a shape as (nodes, gpus) and what differs from the framework's defaults."""

    shape: tuple[int, int]
    choices: Mapping[str, Any] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)
    model: str = "resnet50"

    @property
    def label(self) -> str:
        values = [*map(str, self.choices.values()), *(f"{name}={value}" for name, value in self.sets.items())]
        return " ".join([self.model, f"{self.shape[0]}n{self.shape[1]}g", *values])


SHAPES = [(1, 1), (1, 8), (2, 8), (4, 8)]
VARIANTS: dict[str, list[Case]] = {
    "pytorch_examples": [
        Case((2, 8), {"loader": "native", "dtype": "tf32"}, {"workers": "48"}),
        Case((2, 8), {"loader": "dali-cpu"}, {"program": "imagenet/main_dali.py"}),
    ],
    "tensorflow_official": [
        Case((1, 8), {"dtype": "fp16"}, {"xla": "true"}),
        Case((2, 8), {"dtype": "fp16", "loader": "synthetic"}, {"layout": "legacy"}),
    ],
    "paddle_models": [
        Case((1, 8), {"dtype": "fp16"}),
        Case((2, 8), {"loader": "dali-gpu"}),
        Case((2, 8), model="vgg16"),
    ],
    "fleetx": [
        Case((2, 8), {"dtype": "fp16", "batch_size": 64}, model="vgg16"),
        Case((2, 8), {"dtype": "fp16"}, {"strategy": "auto"}, model="vgg16"),
    ],
    "tensorpack": [
        Case((1, 8), {}, {"variable_update": "parameter_server", "fake_location": "cpu"}),
        Case((1, 8), {}, {"fake_location": "zmq-consume"}),
        Case((2, 8), {"dtype": "fp16"}, {"variable_update": "horovod", "xla": "true"}),
    ],
    "tf_cnn_benchmarks": [
        Case((2, 8), {}, {"variable_update": "parameter_server"}),
        Case((2, 8), {"dtype": "fp16"}, {"variable_update": "horovod", "xla": "true"}),
    ],
    "oneflow": [Case((2, 8), {"dtype": "fp16", "loader": "synthetic"}, {"fuse": "true", "channel_last": "true"})],
    "horovod_examples": [
        Case((2, 8), {"dtype": "tf32"}, {"program": "tensorflow2", "fp16_allreduce": "true"}),
        Case((1, 8), {"steps": 64, "warmup_steps": 4}, {"adasum": "true", "batches_per_iteration": "6"}, "vgg16"),
    ],
}


def cases(framework: str) -> list[Case]:
    """The four published shapes, and the variants."""
    sets = {"variable_update": "distributed_replicated"} if framework == "tf_cnn_benchmarks" else {}
    model = "vgg16" if framework == "fleetx" else "resnet50"
    return [Case(shape, {}, sets, model) for shape in SHAPES] + VARIANTS.get(framework, [])


def hosts(count: int, gpus: int, **changes: Any) -> list[Host]:
    """Hosts named and addressed as in the published cluster."""
    return [Host(f"node{i + 1}", f"10.11.0.{i + 2}", gpus=gpus, vars=VARS | changes) for i in range(count)]


def planned(framework: str, case: Case, on: Sequence[Host] = ()) -> Plan:
    """One run of a framework, decided."""
    folder = opened(framework)
    on = on or hosts(case.shape[0], case.shape[1])
    choices = {"nodes": case.shape[0], "gpus": case.shape[1], **case.choices}
    spec = resolve(folder.framework, case.model, device=on[0].device, choices=choices, sets=case.sets)
    return plan_run(folder, spec, on, run_id="b1.001", repeat=1, port=PORT)


def launch(plan: Plan, node: int) -> str:
    """A node's launch script."""
    return next(file.content for file in plan.nodes[node].files if file.path == "launch.sh")


def grammar(framework: str) -> LogGrammar:
    """A folder's log grammar."""
    return opened(framework).framework.log


# ------------------------------------------------------------------ rendering


@pytest.mark.parametrize("framework", FOREIGN)
def test_rendered_files_are_the_golden_ones(framework: str) -> None:
    parts = []
    for case in cases(framework):
        parts.append(f"======== {case.label}\n")
        for names, file in folded(planned(framework, case).nodes):
            parts.append(f"---- {','.join(names)}: {file.path} {file.mode:04o}\n{file.content.rstrip(chr(10))}\n")
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
        ("paddle_models", Case((1, 8)), 0, "-m paddle.distributed.launch --started_port=20000 /opt/"),
        ("paddle_models", Case((2, 8)), 1, "--cluster_node_ips=10.11.0.2,10.11.0.3 --node_ip=10.11.0.3"),
        ("paddle_models", Case((2, 8)), 1, "--batch_size=1024 --image_shape 3 224 224 --class_dim=1000 --total_images=651468"),
        ("paddle_models", Case((2, 8)), 1, "--print_step=1 --max_iter=120 --save_step=10000 --validate=False"),
        ("fleetx", Case((2, 8), model="vgg16"), 1, "--ips=10.11.0.2,10.11.0.3 --gpus=0,1,2,3,4,5,6,7 --log_dir=logs"),
        ("oneflow", Case((2, 8)), 1, "--num_nodes=2 --gpu_num_per_node=8 --node_ips=10.11.0.2,10.11.0.3 --ctrl_port=20000"),
        ("oneflow", Case((2, 8)), 1, "--num_examples=245760 --num_epochs=1 --loss_print_every_n_iter=20"),
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
def test_a_command_agrees_with_the_published_recipe(framework: str, case: Case, node: int, words: str) -> None:
    assert words in " ".join(launch(planned(framework, case), node).replace("\\\n", " ").split())


def test_tensorflow_gets_a_config_of_its_own_on_every_node() -> None:
    import yaml

    plan = planned("tensorflow_official", Case((4, 8)))
    configs = [yaml.safe_load(next(f.content for f in node.files if f.path == "config.yaml")) for node in plan.nodes]
    assert [config["runtime"].pop("task_index") for config in configs] == [0, 1, 2, 3]
    assert all(config == configs[0] for config in configs)
    assert configs[0]["runtime"]["worker_hosts"] == ",".join(f"10.11.0.{i}:{PORT}" for i in (2, 3, 4, 5))
    assert configs[0]["train_dataset"]["batch_size"] == 128 and configs[0]["train"]["steps"] == 600
    assert configs[0]["model"]["learning_rate"]["initial_lr"] == 1.024
    alone = planned("tensorflow_official", Case((1, 8), {"dtype": "fp16"}))
    config = yaml.safe_load(next(f.content for f in alone.nodes[0].files if f.path == "config.yaml"))
    assert config["runtime"]["distribution_strategy"] == "mirrored" and "worker_hosts" not in config["runtime"]
    assert config["train_dataset"]["dtype"] == "float16" and config["model"]["learning_rate"]["initial_lr"] == 0.256


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
        ("pytorch_examples", Case((1, 8), {"loader": "dali-gpu"}), "cuda", "--loader", "edited copy"),
        ("tensorflow_official", Case((1, 8), {"steps": 550}), "cuda", "--steps", "multiples of log_steps"),
        ("tensorflow_official", Case((1, 2)), "cpu", "--gpus", "expected 1"),
        ("fleetx", Case((1, 8), {"warmup_steps": 10}, model="vgg16"), "cuda", "--warmup-steps", "expected 11"),
        ("fleetx", Case((1, 8), {}, {"strategy": "auto"}, "vgg16"), "cuda", "--dtype", "expected fp16"),
        ("tensorpack", Case((1, 8), {"steps": 120}), "cuda", "--steps", "multiples of 50"),
        ("tensorpack", Case((1, 8), {"warmup_steps": 0}), "cuda", "--steps", "50 or more warm-up"),
        ("tensorpack", Case((2, 8), {"steps": 250}), "cuda", "--steps", "expected 500"),
        ("tensorpack", Case((1, 8), {"dtype": "fp16"}, {"network": "tensorpack"}), "cuda", "--dtype", "fp32 only"),
        (
            "tensorpack",
            Case((2, 8), {}, {"variable_update": "horovod", "fake_location": "zmq-consume"}),
            "cuda",
            "--set fake_location",
            "one pipe",
        ),
        ("tf_cnn_benchmarks", Case((2, 8)), "cuda", "--set variable_update", "replicated is for one node"),
        ("tf_cnn_benchmarks", Case((1, 8), {"steps": 115}), "cuda", "--steps", "multiple of 10"),
        ("oneflow", Case((1, 8), {"steps": 130}), "cuda", "--steps", "print_every"),
        ("horovod_examples", Case((1, 8), {"steps": 105}), "cuda", "--steps", "multiple of batches_per_iteration"),
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
    machines = [Host(one.name, one.address, gpus=one.gpus, slots=8, vars=one.vars) for one in machines]
    with pytest.raises(ConfigError, match=re.escape(why)) as caught:
        planned(framework, case, machines)
    assert caught.value.where == where and framework in caught.value.message


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_host_that_does_not_say_where_the_program_is_is_named(framework: str) -> None:
    name, holds = next(iter(opened(framework).framework.requires.items()))
    with pytest.raises(ConfigError, match=re.escape(f"vars.{name} of host node2")) as caught:
        planned(framework, cases(framework)[2], [hosts(2, 8)[0], *hosts(2, 8, **{name: None})[1:]])
    assert holds in caught.value.hint


# ------------------------------------------------------------------ launch style and ports


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
    assert planned(framework, cases(framework)[2]).launch == ("every_node" if by_option else "first_node")


def test_a_waiting_node_ends_well_when_it_is_told_to() -> None:
    plan = planned("tensorpack", Case((2, 8), {}, {"variable_update": "horovod"}))
    process = subprocess.Popen(["bash", "-c", launch(plan, 1)], start_new_session=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(5) == 0


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
def test_every_port_of_every_node_is_known_before_the_start(framework: str, first: int, others: int) -> None:
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
            one.verdict for one in judge(host, facts | {"programs": {path: digest}}, framework, 1) if one.name == "program"
        ]
        for digest in (None, "ab" * 32)
    }
    assert verdicts == {None: ["failed"], "ab" * 32: ["ok"]}
    copies = {"node1": {"programs": {path: "aa"}}, "node2": {"programs": {path: "bb"}}, "node3": {"programs": {path: "aa"}}}
    assert [error.host for error in unfit(unlike(copies))] == ["node2"]
    assert not unlike({"node1": {}, "node2": {}})


# ------------------------------------------------------------------ logs


def as_rows(samples: Sequence[StepSample]) -> list[dict[str, Any]]:
    """Samples as ``sample.json`` has them."""
    return [{name: value for name, value in asdict(sample).items() if value is not None} for sample in samples]


@pytest.mark.parametrize("framework", FOREIGN)
def test_the_sample_log_holds_the_sample_values(framework: str) -> None:
    folder = ROOT / "templates" / framework
    parsed = parse((folder / "sample.log").read_bytes(), grammar(framework))
    assert as_rows(parsed.samples) == json.loads((folder / "sample.json").read_text())
    assert parsed.warnings == ()


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_cut_log_says_nothing_that_its_whole_lines_do_not_say(framework: str) -> None:
    log, rules = (ROOT / "templates" / framework / "sample.log").read_bytes(), grammar(framework)
    for cut in random.Random(1).sample(range(len(log)), 300):
        end = max(log.rfind(b"\n", 0, cut), log.rfind(b"\r", 0, cut)) + 1
        assert parse(log[:cut], rules).samples == parse(log[:end], rules).samples


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_line_cut_anywhere_and_glued_to_the_next_never_gives_another_value(framework: str) -> None:
    log, rules = (ROOT / "templates" / framework / "sample.log").read_bytes(), grammar(framework)
    true = {(row["step"], name, value) for row in as_rows(parse(log, rules).samples) for name, value in row.items()}
    last = max(step for step, _, _ in true)
    for cut in random.Random(2).sample(range(len(log) - 40), 300):
        glued = log[:cut] + log[log.find(b"\n", cut) + 1 :]
        # Where a line begins with its step, 20 and 30 make a step 2030: no window reaches that far.
        rows = [row for row in as_rows(parse(glued, rules).samples) if row["step"] <= last]
        found = {(row["step"], name, value) for row in rows for name, value in row.items()}
        assert found <= true, f"cut at {cut}: {log[max(0, cut - 60) : cut]!r}"


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_second_run_in_one_file_replaces_the_first(framework: str) -> None:
    log, rules = (ROOT / "templates" / framework / "sample.log").read_bytes(), grammar(framework)
    whole = parse(log, rules)
    restarted = parse(log[: len(log) * 2 // 3] + b"\nTerminated\n" + log, rules)
    assert restarted.samples == whole.samples
    assert restarted.warnings


def epoch_line(step: int, seconds: float) -> str:
    return (
        f"Epoch: [0][{step:3d}/312]\tTime {seconds:6.3f} ({seconds:6.3f})\tData  0.001 ( 0.001)\t"
        "Loss 6.9828e+00 (6.9828e+00)\tAcc@1   0.78 (  0.78)\tAcc@5   1.56 (  1.56)\n"
    )


def test_eight_ranks_interleaved_appended_or_in_files_of_their_own_are_one_series() -> None:
    rules, shuffle = grammar("pytorch_examples"), random.Random(3)
    times = {(rank, step): 0.4 + 0.001 * rank + 0.01 * step for rank in range(8) for step in range(1, 15)}
    files = [f"Use GPU: {rank}\n" + "".join(epoch_line(s, times[rank, s]) for s in range(1, 15)) for rank in range(8)]
    interleaved = []
    for step in range(1, 15):
        interleaved += shuffle.sample([epoch_line(step, times[rank, step]) for rank in range(8)], 8)
    one, other = parse("".join(interleaved).encode(), rules).samples, parse("".join(files).encode(), rules).samples
    aggregate = RankAggregate()
    for text in files:
        said = parse(text.encode(), rules).said
        assert isinstance(said, RankAggregate)
        aggregate.merge(said)
    wanted = [pytest.approx(sum(times[rank, step] for rank in range(8)) / 8) for step in range(1, 15)]
    for series in (one, other, aggregate.samples()):
        assert [sample.step for sample in series] == list(range(1, 15))
        assert [sample.step_time_s for sample in series] == wanted


def horovod_log(rank: str) -> str:
    """Lines of 4 ranks as mpirun tags them; two of them were glued together."""
    tags = [f"[1,{number}]<stdout>:" for number in (3, 0, 2, 1)]
    text = "".join(f"{tag}{step}\t{rank}\n" for step in (10, 20) for tag in tags)
    return text.replace(f"{rank}\n{tags[1]}20", f"{rank}{tags[1]}20", 1).replace(f"{tags[2]}20", f"{tags[2]}\n{tags[2]}20", 1)


@pytest.mark.parametrize(
    ("framework", "update", "log", "steps", "warmup_steps", "speed"),
    [
        # A worker's lines are its own rate, and under horovod those of a process are; only the total speaks of all.
        ("tf_cnn_benchmarks", "parameter_server", "10\timages/sec: 250.0 +/- 0.1 (jitter = 0.2)\t7.9\n", 12, 2, 500.0),
        ("tf_cnn_benchmarks", "distributed_replicated", "10\timages/sec: 250.0 +/- 0.1 (jitter = 0.2)\t7.9\n", 12, 2, 500.0),
        ("tf_cnn_benchmarks", "horovod", horovod_log("images/sec: 250.0 +/- 0.1 (jitter = 0.2)\t7.9"), 22, 2, 1000.0),
        # tensorpack multiplies by the GPUs that it knows of: those of its node, and with horovod all.
        ("tensorpack", "parameter_server", "Epoch 1 (global_step 50) finished\nThroughput (samples/sec): 250\n", 50, 0, 500.0),
        ("tensorpack", "horovod", "Epoch 1 (global_step 50) finished\nThroughput (samples/sec): 250\n", 50, 0, 250.0),
    ],
)
def test_whose_rate_a_line_tells_depends_on_how_gradients_travel(
    tmp_path: Path, framework: str, update: str, log: str, steps: int, warmup_steps: int, speed: float
) -> None:
    assert speed_of(tmp_path, framework, log, steps, warmup_steps, {"variable_update": update}) == pytest.approx(speed)


def test_shell_noise_around_the_lines_is_no_step() -> None:
    noise = b"+ python3 train.py\n>>>Finished Test Case 1!<<<\nWritting log to ../logs/rn50_b128_fp32_1.log\n0 0/8 100 120\n"
    for framework in FOREIGN:
        log = (ROOT / "templates" / framework / "sample.log").read_bytes()
        assert parse(noise + log + noise, grammar(framework)).samples == parse(log, grammar(framework)).samples


def test_paddle_lines_count_with_any_prefix() -> None:
    line = "[Pass 0, train batch 7] \tloss 6.9, acc1 0.1, acc5 0.2, lr 0.01, elapse 0.3912 sec\n"
    older = line.replace("0.3912", "0.39")
    found = [parse(text.encode(), grammar("paddle_models")).samples for text in (line, "INFO:train:" + line, older)]
    assert [as_rows(samples)[0]["step_time_s"] for samples in found] == [0.3912, 0.3912, 0.39]
    assert all(samples[0].step == 8 and samples[0].timestamp is None for samples in found)


def test_oneflow_lines_without_a_time_fall_back_to_their_rate() -> None:
    line = "train: epoch 0, iter %d, loss: 7.1, top_1: 0.0, top_k: 0.0, samples/s: %s\n"
    found = parse((line % (20, "1000.000") + line % (40, "2000.000")).encode(), grammar("oneflow")).samples
    assert throughput(found, Terms(warmup_steps=0, steps=40, global_batch=100)).samples_per_s == pytest.approx(4000 / 3)


# ------------------------------------------------------------------ from a log to a speed


def tensorpack_log() -> str:
    epochs = "".join(
        f"\x1b[32m[0823 15:04:05 @base.py:282]\x1b[0m Epoch {epoch} (global_step {epoch * 50}) finished, time:9 seconds.\n"
        f"\x1b[32m[0823 15:04:05 @monitor.py:476]\x1b[0m Throughput (samples/sec): {speed}\n"
        for epoch, speed in enumerate((300.5, 1000, 1.0e3), start=1)
    )
    return "100%|##########|50/50[00:09<00:00, 5.56it/s]\r" + epochs


@pytest.mark.parametrize(
    ("framework", "log", "steps", "warmup_steps", "speed"),
    [
        ("tensorpack", tensorpack_log(), 150, 50, 2000.0),
        (
            "tf_cnn_benchmarks",
            "1\timages/sec: 9.9 +/- 0.0 (jitter = 0.0)\t8.3\n"
            + "".join(f"{step}\timages/sec: 500.0 +/- 0.1 (jitter = 0.2)\t7.9\n" for step in range(10, 110, 10))
            + "total images/sec: 499.87\n",
            110,
            10,
            1000.0,
        ),
        (
            "paddle_models",
            "".join(
                f"[Pass 0, train batch {b}] \tloss 6.9, acc1 0.1, elapse {0.5 if b > 1 else 9.8:2.4f} sec\n" for b in range(12)
            ),
            12,
            2,
            128.0,
        ),
        (
            "horovod_examples",
            "".join(f"Iter #{i}: {rate} img/sec per GPU (step {10 * (i + 1)})\n" for i, rate in enumerate((100.0, 300.0))),
            22,
            2,
            600.0,
        ),
        ("pytorch_examples", "".join(epoch_line(s, t) for s in range(1, 13) for t in (0.4, 0.6)), 12, 2, 128.0),
        (
            "fleetx",
            "".join(
                f"epoch id: 0, step{s}, train_loss: 6.9, total time cost = {(s - 10) / 4:f}, step per second: 4.0, "
                "speed: 4.000000\n"
                for s in range(11, 33)
            ),
            32,
            12,
            256.0,
        ),
        (
            "tensorflow_official",
            "".join(
                f"I0823 23:59:5{i}.5 1 k.py:145] TimeHistory: 1.60 seconds, {speed} examples/second "
                f"between steps {i} and {i + 1}00\n"
                for i, speed in enumerate(("11.10", "400.00", "1200.00"))
            ),
            300,
            100,
            600.0,
        ),
    ],
)
def test_a_log_becomes_the_speed_of_the_whole_run(
    tmp_path: Path, framework: str, log: str, steps: int, warmup_steps: int, speed: float
) -> None:
    assert speed_of(tmp_path, framework, log, steps, warmup_steps) == pytest.approx(speed)


def speed_of(
    tmp_path: Path, framework: str, log: str, steps: int, warmup_steps: int, options: Mapping[str, str] | None = None
) -> float:
    """Samples per second that a collected run of 2 nodes with 2 ranks each and this log has."""
    bench = BenchDir.create(tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"]})
    rules = grammar(framework)

    def before(manifest: dict[str, Any], logs: list[dict[str, str]]) -> None:
        manifest["spec"] |= {"framework": framework, "steps": steps, "warmup_steps": warmup_steps, "options": options or {}}
        manifest["framework"]["log"] = json.loads(json.dumps(asdict(rules)))
        logs[:] = [{"node.err": "", rules.files[0]: log}, {"node.err": "", rules.files[0]: ""}]

    result = read_run(build(bench, "r1", before, lambda records: [record.update(ranks=[]) for record in records]))
    assert result.error is None, result.error
    assert result.throughput is not None
    return result.throughput.samples_per_s


@pytest.mark.parametrize("framework", FOREIGN)
def test_the_published_rule_of_a_folder_exists(framework: str) -> None:
    folder = opened(framework).framework
    assert not folder.published or rule_of(folder).name == folder.published["rule"]


# ------------------------------------------------------------------ launch scripts with a stand-in for the program

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
    """Nodes as directories on this machine, each with an address of loopback that no other worker of the tests uses."""

    folder: Path

    def address(self, node: int) -> str:
        """A node's address."""
        number = os.getpid()
        return f"127.{number % 200 + 1}.{number // 200 % 250}.{node + 2}"

    def run(self, framework: str, case: Case, linger: float = 0.0, log: bytes | None = None) -> list[dict[str, Any]]:
        """Run every node's launch script to its end. Returns what the stand-ins recorded, in order of node and start."""
        (self.folder / "records").mkdir()
        sample = self.folder / "sample.log"
        sample.write_bytes(log if log is not None else (ROOT / "templates" / framework / "sample.log").read_bytes())
        python = self.folder / "python"
        python.write_text(
            STAND_IN.format(python=sys.executable, records=str(self.folder / "records"), log=str(sample), linger=linger)
        )
        python.chmod(stat.S_IRWXU)
        program = self.folder / "fleetx" / "benchmark" / "paddle" / "vgg_benchmark.py"
        program.parent.mkdir(parents=True)
        program.write_text(
            "strategy_of_ours = 1\nload(batch_size=32)\ndist_strategy = make()\ndist_strategy.nccl_comm_num = 1\n"
        )
        changes = {"python": str(python), "fleetx_dir": str(self.folder / "fleetx"), "interface": "lo"}
        machines = [Host(f"n{i}", self.address(i), gpus=case.shape[1], vars=VARS | changes) for i in range(case.shape[0])]
        processes = []
        for node in planned(framework, case, machines).nodes:
            home = self.folder / node.slot.host
            (home / "logs").mkdir(parents=True)
            for file in node.files:
                (home / file.path).write_text(file.content)
            with (home / "logs" / "node.out").open("ab") as out, (home / "logs" / "node.err").open("ab") as err:
                processes.append(
                    subprocess.Popen(["bash", "launch.sh"], cwd=home, stdout=out, stderr=err, start_new_session=True)
                )
        try:
            codes = [process.wait(30) for process in processes]
        finally:
            for process in processes:
                with_group(process.pid)
        assert codes == [0] * len(codes), [(self.folder / f"n{i}/logs/node.err").read_text() for i in range(case.shape[0])]
        return [json.loads(path.read_text()) for path in sorted((self.folder / "records").iterdir())]


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
    assert f"--cluster_node_ips={own},{other}" in first["argv"] and "--use_fp16=True" in first["argv"]
    assert first["env"]["FLAGS_fraction_of_gpu_memory_to_use"] == "0.98"
    assert first["env"]["FLAGS_cudnn_exhaustive_search"] == "1"
    assert first["env"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert parse((stand_in.folder / "n0/logs/node.out").read_bytes(), grammar("paddle_models")).samples


def test_fleetx_runs_a_copy_with_batch_size_and_strategy_and_is_ended_after_the_last_step(stand_in: StandIn) -> None:
    case = Case((2, 2), {"dtype": "fp16", "batch_size": 64, "steps": 32, "warmup_steps": 12}, model="vgg16")
    first, _ = stand_in.run("fleetx", case, linger=60)
    ips = f"{stand_in.address(0)},{stand_in.address(1)}"
    assert first["argv"][:5] == ["-u", "-m", "paddle.distributed.fleet.launch", f"--ips={ips}", "--gpus=0,1"]
    assert "vgg_benchmark.py" in first["files"]
    copy = (stand_in.folder / "n0" / "vgg_benchmark.py").read_text().splitlines()
    assert copy == [
        "strategy_of_ours = 1", "load(batch_size=64)", "dist_strategy = make()", "dist_strategy.amp = True",
        "dist_strategy.nccl_comm_num = 1",
    ]  # fmt: skip
    assert first["env"]["FLAGS_START_PORT"] == str(PORT)


def test_fleetx_auto_leaves_every_other_setting_out(stand_in: StandIn) -> None:
    case = Case((1, 2), {"dtype": "fp16", "steps": 32, "warmup_steps": 12}, {"strategy": "auto"}, "vgg16")
    stand_in.run("fleetx", case, linger=60)
    copy = (stand_in.folder / "n0" / "vgg_benchmark.py").read_text().splitlines()
    assert copy[2:] == ["dist_strategy = make()", "dist_strategy.auto = True"]


def test_oneflow_gets_its_arguments_and_variables(stand_in: StandIn) -> None:
    first, second = stand_in.run("oneflow", Case((2, 8)))
    assert first["argv"] == second["argv"]
    ips = f"{stand_in.address(0)},{stand_in.address(1)}"
    assert {"--num_nodes=2", f"--node_ips={ips}", "--batch_size_per_device=128"} <= set(first["argv"])
    assert first["env"]["NCCL_LAUNCH_MODE"] == "PARALLEL"


def test_tensorflow_finds_its_config_beside_it(stand_in: StandIn) -> None:
    first, _ = stand_in.run("tensorflow_official", Case((2, 8)))
    assert first["files"] == ["config.yaml", "env.sh", "launch.sh", "logs"]
    assert first["argv"][1] == "/opt/tf models/official/vision/image_classification/classifier_trainer.py"
    assert first["env"]["PYTHONPATH"] == "/opt/tf models"


@pytest.mark.parametrize("gone", [False, True], ids=["still there", "gone a moment before"])
def test_pytorch_examples_is_ended_after_the_last_step(stand_in: StandIn, gone: bool) -> None:
    log = "".join(epoch_line(step, 0.4) for step in range(1, 130) for _ in range(2)).encode()
    stand_in.run("pytorch_examples", Case((2, 2)), linger=0.0 if gone else 60.0, log=log)
    assert parse((stand_in.folder / "n0/logs/node.out").read_bytes(), grammar("pytorch_examples")).samples[-1].step >= 120


@pytest.mark.parametrize("framework", ["tf_cnn_benchmarks", "tensorpack"])
def test_parameter_servers_are_left_when_the_last_worker_is_done(stand_in: StandIn, framework: str) -> None:
    update = {"tf_cnn_benchmarks": "distributed_replicated", "tensorpack": "parameter_server"}[framework]
    records = stand_in.run(framework, Case((2, 2), {}, {"variable_update": update}), linger=1.0)
    jobs = sorted(" ".join(word for word in one["argv"] if word.startswith(("ps", "worker", "--job_name"))) for one in records)
    assert len(jobs) == 4 and [job.count("ps") for job in jobs].count(1) == 2
    servers = [one for one in records if any(word.startswith(("ps:", "--job_name=ps")) for word in one["argv"])]
    assert [one["env"]["CUDA_VISIBLE_DEVICES"] for one in servers] == ["", ""]


@pytest.mark.parametrize("ranks", [16, 1], ids=["one world", "built without MPI"])
def test_horovod_lines_get_their_step_only_where_all_ranks_are_one_world(tmp_path: Path, ranks: int) -> None:
    said = f"[1,0]<stdout>:Number of GPUs: {ranks}[1,0]<stdout>:\n"
    said += "".join(
        f"[1,0]<stdout>:Iter #{i}: {350 + i}.5 img/sec per GPU{glued}\n"
        for i, glued in enumerate(["", "[1,0]<stdout>:", "[1,3]<stderr>:a \\ 'warning'"] + [""] * 7)
    )
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!{sys.executable}\nprint({said!r}, end='')\nprint('[1,0]<stdout>:Total img/s', end='')\n")
    mpirun.chmod(stat.S_IRWXU)
    plan = planned("horovod_examples", Case((2, 8)), hosts(2, 8, mpirun=str(mpirun)))
    for file in plan.nodes[0].files:
        (tmp_path / file.path).write_text(file.content)
    done = subprocess.run(["bash", "launch.sh"], cwd=tmp_path, capture_output=True, timeout=30)
    samples = parse(done.stdout + b"\n", grammar("horovod_examples")).samples
    if ranks == 16:
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout.endswith(b"Total img/s")
        assert as_rows(samples) == [{"step": 10 * (i + 1), "samples_per_s": 350.5 + i} for i in range(10)]
    else:
        assert (done.returncode, done.stderr) == (1, b"expected Number of GPUs: 16, Horovod says 1\n")
        assert samples == ()


def test_zmq_gets_a_second_process_that_serves(stand_in: StandIn) -> None:
    records = stand_in.run("tensorpack", Case((1, 8), {}, {"fake_location": "zmq-consume"}), linger=1.0)
    locations = sorted(one["argv"][one["argv"].index("--fake-location") + 1] for one in records)
    assert locations == ["zmq-consume", "zmq-serve"]


# ------------------------------------------------------------------ the page


def test_the_page_shows_every_folder_every_name_and_an_example_that_is_sound(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    assert [name for name in library.frameworks() if f"`{name}`" not in page] == []
    inventory, example = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "cluster.yaml").write_text(inventory)
    assert {host.vars["nanogpt_dir"] for host in open_inventory(str(tmp_path / "cluster.yaml")).hosts} == {"/opt/nanoGPT"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "framework.yaml").write_text(example)
    table = page.partition("| a template sees | |")[2].partition("\n\n")[0]
    names = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z_]+)", row.split("|")[1])}
    (tmp_path / "mine" / "launch.sh.j2").write_text(
        "".join(f"# {{{{ {name} is defined }}}} {name}\n" for name in sorted(names))
    )
    folder = library.open_framework("mine", (tmp_path,))
    spec = resolve(folder.framework, "resnet50", device="cuda", choices={"nodes": 1, "gpus": 1})
    host = Host("node1", "10.11.0.2", gpus=1, vars={"my_dir": "/opt/mine"})
    script = launch(plan_run(folder, spec, [host], run_id="b1.001", repeat=1, port=PORT), 0)
    assert len(names) > 12 and re.findall(r"# false (.*)", script) == []
    assert parse(b"step 7 took 0.25 s\n", folder.framework.log).samples == (StepSample(7, step_time_s=0.25),)
