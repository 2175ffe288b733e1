"""New framework folders: what is generated has no fault, renders, and reaches the program as it was
typed.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.logs.matches import matches
from orchestrator.plan.command_line import training_command
from orchestrator.plan.folders import FrameworkFolder, read_folder
from orchestrator.plan.payload import find_imports, payload_bytes
from orchestrator.plan.scaffold import example, for_command, hook, new_metric
from orchestrator.plan.spec import resolve
from orchestrator.plan.trial import Trial, trials, unread_options
from tests.support.judge import LIMIT_S
from tests.support.rendering import complaint


def written(path: Path, files: dict[str, str]) -> FrameworkFolder:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return read_folder(path)


def sound(folder: FrameworkFolder) -> list[Trial]:
    """Return the trials of a folder without an error and a refusal, whose scripts are scripts, and
    whose log is read.
    """
    tried = list(trials(folder))
    assert [trial for trial in tried if trial.error or trial.refused] == []
    assert {complaint(file.content) for trial in tried for _, file in trial.files} == {""}
    assert unread_options(folder) == ()
    assert matches(
        Path(folder.framework.folder, "sample.log").read_bytes(), folder.framework.log
    ).has_number
    return tried


def launch_of(trial: Trial) -> str:
    return next(
        file.content for hosts, file in trial.files if file.path == "launch.sh" and "node1" in hosts
    )


def test_the_example_is_sound_and_its_program_prints_what_its_patterns_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "mine", example("mine"))
    sound(folder)
    words = ["python3", "train.py", "--batch", "1", "--steps", "3", "--size", "4"]
    environment = {"RANK": "0", "WORLD_SIZE": "2", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        words,
        cwd=tmp_path / "mine",
        env=environment,
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    log = matches(done.stdout, folder.framework.log)
    assert [sample.step for sample in log.parsed.samples] == [1, 2, 3]
    assert log.parsed.ranks == ((0, 2),) and log.unmatched == ()


COMMANDS = [
    ("torchrun --nproc_per_node 8 train.py --epochs 1", "train.py --epochs 1"),
    (
        "python train.py --lr '0.1 0.2' '$HOME' '{{ x }}' '{% y %}'",
        "train.py --lr '0.1 0.2' '$HOME' '{{ x }}' '{% y %}'",
    ),
    (
        "python -O train.py --batch-size 64 --max_steps=200",
        "train.py --batch-size 64 --max_steps=200",
    ),
    ("torchrun -m train", "-m train"),
    ("./train.py -x", "./program -x"),
    ("/opt/bench --runtime 60", "/opt/bench --runtime 60"),
]


@pytest.mark.parametrize(("typed", "ends"), COMMANDS)
def test_a_command_keeps_its_own_arguments_and_gets_its_ranks_from_orch(
    tmp_path: Path, typed: str, ends: str
) -> None:
    command = training_command(typed, lambda word: word.endswith("train.py"))
    files = for_command("mine", typed, command, {"train.py": b"pass\n"} if command.is_here else {})
    folder = written(tmp_path / "mine", files | ({"train.py": "pass\n"} if command.is_here else {}))
    tried = sound(folder)
    last = launch_of(next(trial for trial in tried if trial.name == "2n2g cpu fp32"))
    assert ends in last
    if command.launcher == "torchrun":
        assert (
            "--nnodes 2 --nproc_per_node 2 --node_rank 0" in last
            and "--master_addr 10.0.0.1 --master_port 20000" in last
        )
    else:
        assert "export WORLD_SIZE=4" in last and "RANK=1 LOCAL_RANK=1 " in last


def test_batch_size_and_steps_of_the_command_are_those_of_the_bench(tmp_path: Path) -> None:
    typed = "python /opt/train.py --batch_size=64 --steps 200"
    folder = written(
        tmp_path / "mine",
        for_command("mine", typed, training_command(typed, lambda word: False), {}),
    )
    assert (folder.framework.defaults["batch_size"], folder.framework.defaults["steps"]) == (
        64,
        200,
    )
    assert (
        "--batch_size={{ spec.batch_size }} --steps {{ spec.steps }}"
        in folder.sources["launch.sh.j2"]
    )


@pytest.mark.parametrize(
    "typed",
    ["A='x: \"y\"' python /opt/train.py", "ORCHID=1 LD_LIBRARY_PATH=/a:/b python /opt/train.py"],
)
def test_variables_in_front_of_a_command_are_those_of_the_folder(
    tmp_path: Path, typed: str
) -> None:
    command = training_command(typed, lambda word: False)
    folder = written(tmp_path / "mine", for_command("mine", typed, command, {}))
    assert folder.framework.env == dict(command.env)


def test_a_command_of_torchrun_arms_the_flight_recorder_and_carries_what_reports_steps(
    tmp_path: Path,
) -> None:
    command = training_command(
        "torchrun train.py --config conf/a.yaml --data=/d", {"train.py", "conf/a.yaml"}.__contains__
    )
    files = for_command("mine", "", command, {"train.py": b"import torch\n", "a.yaml": b"x: 1\n"})
    folder = written(tmp_path / "mine", files | {"train.py": "import torch\n", "a.yaml": "x: 1\n"})
    assert folder.framework.env == {"TORCH_FR_BUFFER_SIZE": "512"}
    assert list(folder.framework.payload) == ["train.py", "a.yaml", "rank_progress.py"]
    assert folder.payload["rank_progress.py"] == payload_bytes("rank_progress.py")
    assert "torch.__version__" in folder.framework.probe
    last = launch_of(next(trial for trial in sound(folder) if trial.name == "2n2g cpu fp32"))
    assert "--log_dir launcher" in last
    assert (
        "/train.py --config " in last and "/a.yaml --data=/d" in last and "conf/a.yaml" not in last
    )
    assert hook(command, "templates/mine/train.py").endswith(
        "write two lines into templates/mine/train.py: "
        'import rank_progress; rank_progress.mark(step, "step") where each step begins'
    )


def test_a_probe_asks_for_what_the_program_imports_and_a_program_of_no_python_reports_nothing(
    tmp_path: Path,
) -> None:
    python = training_command("python train.py", {"train.py"}.__contains__)
    folder = written(
        tmp_path / "jax",
        for_command("jax", "", python, {"train.py": b"import os\nimport jax.numpy as jnp\n"})
        | {"train.py": "import jax\n"},
    )
    assert (
        '"jax": jax.__version__' in folder.framework.probe and "torch" not in folder.framework.probe
    )
    assert folder.framework.env == {} and "rank_progress.py" in folder.framework.payload
    program = training_command("./bench", {"./bench"}.__contains__)
    folder = written(
        tmp_path / "bench", for_command("bench", "", program, {"bench": b""}) | {"bench": ""}
    )
    assert list(folder.framework.payload) == ["bench"] and hook(program, "bench") == ""


def test_what_tells_a_program_where_its_ranks_are_becomes_a_value_of_the_run(
    tmp_path: Path,
) -> None:
    typed = "python /opt/t.py --coordinator_address=10.9.9.9:1234 --num-processes 2 --process_id 0 --rank 8 --local_batch 4"
    folder = written(
        tmp_path / "mine",
        for_command("mine", typed, training_command(typed, lambda word: False), {}),
    )
    last = launch_of(next(trial for trial in sound(folder) if trial.name == "2n2g cpu fp32"))
    assert (
        "--coordinator_address=10.0.0.1:20000 --num-processes 4 --process_id 1 --rank 1 --local_batch 4"
        in last
    )
    typed = "python /opt/t.py --rank 8 --world_size 3 --dist_file tcp://10.9.9.9:1"
    folder = written(
        tmp_path / "other",
        for_command("other", typed, training_command(typed, lambda word: False), {}),
    )
    assert "--rank 8 --world_size 3 --dist_file tcp://10.9.9.9:1" in folder.sources["launch.sh.j2"]


def test_a_shell_script_is_sent_and_started_by_its_shell(tmp_path: Path) -> None:
    command = training_command("bash run.sh -x", {"run.sh"}.__contains__)
    folder = written(
        tmp_path / "mine",
        for_command("mine", "", command, {"run.sh": b"echo\n"}) | {"run.sh": "echo\n"},
    )
    last = launch_of(next(trial for trial in sound(folder) if trial.name == "1n1g cpu fp32"))
    assert re.search(r"-- \\\n  bash \S+/run.sh -x &", last)


def test_a_script_takes_along_what_it_imports_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch, model\nfrom data.images import load\nimport numpy\n"
    )
    (tmp_path / "model.py").write_text("import layers, train\n")
    (tmp_path / "layers.py").write_text("def broken(:\n")
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images.py").write_text("")
    assert find_imports(tmp_path / "train.py") == ["train.py", "model.py", "data/", "layers.py"]


def test_a_program_that_does_not_train_gets_a_folder_with_its_metrics(tmp_path: Path) -> None:
    typed = "python /opt/probe.py --batch-size 64 --steps 20"
    metrics = [new_metric("bandwidth:GB/s"), new_metric("latency:us:lower")]
    folder = written(
        tmp_path / "mine",
        for_command("mine", typed, training_command(typed, lambda word: False), {}, metrics),
    )
    tried = sound(folder)
    framework = folder.framework
    of_ranks = tuple(replace(metric, scope="rank", across="mean") for metric in metrics)
    assert framework.measures == "readings" and framework.log.metrics == of_ranks
    assert (framework.log.files, framework.log.nodes) == (("rank-*.out",), "every")
    assert "/opt/probe.py --batch-size 64 --steps 20" in launch_of(
        next(trial for trial in tried if trial.name.startswith("1n1g"))
    )
    log = matches(
        b'Bandwidth: 12.5 GB/s\n{"step": 1, "latency": 3e-2, "n": 4}\nbandwidths: 1\n',
        framework.log,
    )
    assert [(metric.name, metric.first, metric.count) for metric in log.metrics] == [
        ("bandwidth", "12.5", 1),
        ("latency", "0.03", 1),
    ]


@pytest.mark.parametrize(
    ("line", "step", "rate"),
    [
        ("step 10 | loss 4.2 | 41,523 tokens/s", 10, 41523.0),
        ("Iter 7: loss 3.1, tok/sec: 98.5", 7, 98.5),
        ('{"step": 3, "loss": 2.5, "tokens_per_second": 5123.25}', 3, 5123.25),
        ("step 10 | 41,523 tokens/s per GPU", None, None),
    ],
)
def test_a_program_that_prints_tokens_per_second_gets_the_folder_of_a_language_model(
    tmp_path: Path, line: str, step: int | None, rate: float | None
) -> None:
    typed = "python /opt/train.py --batch-size 4 --seq-len 256 --grad-accum 2 --steps 60"
    command = training_command(typed, lambda word: False)
    folder = written(
        tmp_path / "mine",
        for_command("mine", typed, command, {}, [new_metric("tokens_per_s:tokens/s")]),
    )
    tried = sound(folder)
    spec = resolve(folder.framework, "mine", device="cpu", choices={"nodes": 1, "gpus": 2})
    assert (spec.items, spec.global_batch, spec.steps) == (256, 4 * 2 * 2, 60)
    assert "--batch-size 4 --seq-len 256 --grad-accum 2 --steps 60" in launch_of(tried[0])
    read = matches(f"{line}\n".encode(), folder.framework.log).parsed.samples
    assert [(sample.step, sample.tokens_per_s) for sample in read] == (
        [(step, rate)] if step else []
    )


def test_a_rate_in_tokens_stands_alone_and_in_its_unit() -> None:
    command = training_command("python /opt/train.py", lambda word: False)
    with pytest.raises(ConfigError, match="expected tokens_per_s alone"):
        for_command(
            "mine", "", command, {}, [new_metric("tokens_per_s:tokens/s"), new_metric("mfu:%")]
        )
    with pytest.raises(ConfigError, match="expected tokens_per_s:tokens/s"):
        new_metric("tokens_per_s:tok/s")


def test_a_log_of_the_program_becomes_the_sample(tmp_path: Path) -> None:
    command = training_command("python /opt/train.py", lambda word: False)
    assert for_command("mine", "", command, {}, sample="own line\n")["sample.log"] == "own line\n"
    assert for_command("mine", "", command, {})["sample.log"].startswith("(no real log")


@pytest.mark.parametrize(
    "text",
    ["rate", ":GB/s", "a b:s", "rate:", "rate:s:best", "items:s", "samples_per_s:1/s", "1x:s"],
)
def test_a_metric_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        new_metric(text)
    assert caught.value.where == "--metric"
