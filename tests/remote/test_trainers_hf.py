"""The program around Hugging Face's Trainer, run as a node runs it: torchrun and gloo on loopback."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.support.judge import LIMIT_S
from tests.support.ports import free_port
from tests.support.trainers import FLAT, PYTHON, ROOT, closing, needs, rank_lines, samples, torchrun

TRAINER = FLAT / "train_hf_lm.py"
FOLDER = ROOT / "templates" / "hf_trainer"
LAYERS = ["--layers", "2", "--width", "64", "--heads", "4", "--mlp", "96"]
SMALL = [*LAYERS, "--device", "cpu", "--dtype", "fp32", "--seq-len", "32", "--vocab", "100"]
SIZES = [
    "--device",
    "cpu",
    "--dtype",
    "fp32",
    "--layers",
    "1",
    "--width",
    "32",
    "--heads",
    "2",
    "--mlp",
    "32",
    "--vocab",
    "100",
]
LLAMA = ["--architecture", "llama", "--kv-heads", "2", "--mlp", "96", "--tied", "false"]


def launch(folder: Path, arguments: list[str], ranks: int) -> list[str]:
    """Run the program in a folder of its own; return what each rank printed."""
    return torchrun(arguments, folder, ranks, program="train_hf_lm.py")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one rank printed."""
    needs("transformers", "accelerate")
    return launch(
        tmp_path_factory.mktemp("alone"), [*SMALL, *LLAMA, "--batch-size", "4", "--steps", "9"], 1
    )


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each of two ranks printed that share the global batch of the one."""
    needs("transformers", "accelerate")
    return launch(
        tmp_path_factory.mktemp("two"), [*SMALL, *LLAMA, "--batch-size", "2", "--steps", "9"], 2
    )


def test_every_rank_says_who_it_is_and_rank_0_the_steps(two_ranks: list[str]) -> None:
    assert [rank_lines("hf_trainer", text) for text in two_ranks] == [[(0, 2)], [(1, 2)]]
    assert [[step["step"] for step in samples("hf_trainer", text)] for text in two_ranks] == [
        list(range(10)),
        [],
    ]


def test_losses_of_two_ranks_are_those_of_one_with_the_same_global_batch(
    alone: list[str], two_ranks: list[str]
) -> None:
    """Trainer gives both the same sequences in the same order; sums in another order differ by less
    than a printed digit.
    """
    first, second = (
        [step["loss"] for step in samples("hf_trainer", texts[0])[1:]]
        for texts in (alone, two_ranks)
    )
    assert first == pytest.approx(second, rel=1e-5)
    assert sum(first[6:]) < sum(first[:3])


def test_step_times_are_the_differences_of_the_clock(two_ranks: list[str]) -> None:
    steps = samples("hf_trainer", two_ranks[0])
    assert [step["samples"] for step in steps] == [0, *[4] * 9]
    for before, after in pairwise(steps):
        assert after["step_time_s"] > 0
        assert after["timestamp"] - before["timestamp"] == pytest.approx(
            after["step_time_s"], abs=3e-6
        )


def test_the_last_line_is_complete(two_ranks: list[str]) -> None:
    facts = closing("hf_trainer", two_ranks[0])
    assert (facts["world_size"], facts["ranks"], facts["global_batch"], facts["backend"]) == (
        2,
        [0, 1],
        4,
        "gloo",
    )
    # Two tables; query and output, keys and values, three matrices of the MLP, two norms; the last
    # norm.
    assert (
        facts["parameters"]
        == 2 * 100 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 64
    )
    assert {"transformers", "accelerate", "framework_version"} <= set(facts)


def test_micro_batches_and_recomputation_are_part_of_one_step(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    words = [
        *SMALL,
        "--batch-size",
        "2",
        "--accumulation",
        "2",
        "--checkpointing",
        "full",
        "--dtype",
        "bf16",
        "--steps",
        "3",
    ]
    (text,) = launch(tmp_path, words, 1)
    steps = samples("hf_trainer", text)
    assert [step["step"] for step in steps] == [0, 1, 2, 3] and steps[1]["samples"] == 4
    # The loss of a model that knows nothing is that of guessing one of 100 tokens.
    assert steps[1]["loss"] == pytest.approx(4.605, abs=0.15)


MARKED = """
import runpy, sys, rank_progress

rank_progress.mark = lambda step, phase: print("mark", step, phase, flush=True)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program whose marks are lines among those that it prints."""

STAND_IN = """
import types

__version__ = "none"
logging = types.SimpleNamespace(set_verbosity_error=lambda: None)


class GPT2Config:
    def __init__(self, **sizes):
        self.sizes = sizes


class LlamaConfig(GPT2Config):
    pass


class TrainingArguments:
    __dataclass_fields__ = {"gradient_checkpointing": None}

    def __init__(self, **settings):
        vars(self).update(settings)
        self.world_size = 1


class AutoModelForCausalLM:
    @staticmethod
    def from_config(config, attn_implementation):
        import torch

        return torch.nn.Linear(2, 2)


class TrainerCallback:
    pass


class PrinterCallback(TrainerCallback):
    pass


class Trainer:
    def __init__(self, model, args, train_dataset, callbacks):
        self.args, self.callbacks = args, callbacks
        self.accelerator = types.SimpleNamespace(distributed_type=types.SimpleNamespace(value="NO"))

    def remove_callback(self, callback):
        pass

    def train(self):
        state = types.SimpleNamespace(global_step=0)
        self.tell("on_train_begin", state)
        for state.global_step in range(1, self.args.max_steps + 1):
            self.tell("on_log", state, logs={"loss": 1.0, "epoch": 0.1})
        self.tell("on_log", state, logs={"train_runtime": 1.0, "train_loss": 1.0})

    def tell(self, name, state, **words):
        for callback in self.callbacks:
            getattr(callback, name)(self.args, state, None, **words)
"""
"""What the program uses of transformers, where that is not installed: Trainer calls it in this
order.
"""


def told(
    program: str, arguments: Sequence[str], folder: Path, path: Sequence[Path] = ()
) -> list[str]:
    """Run a program as the only rank; return its marks and how its lines begin, in order, without
    those of the rank's parts.
    """
    variables = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    where = os.pathsep.join(map(str, [*path, FLAT]))
    environment = {
        "PATH": os.environ["PATH"],
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": where,
        **variables,
    }
    command = [PYTHON, "-c", MARKED, str(FLAT / program), *arguments]
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("mark ", "orch step=", "orch done "))
    ]
    return [line if line.startswith("mark ") else line.split()[1] for line in lines]


@pytest.mark.parametrize("is_real", [False, True], ids=["stand-in", "transformers"])
def test_it_marks_its_steps_and_its_end_where_the_other_trainers_do(
    tmp_path: Path, is_real: bool
) -> None:
    """A rank that is at its end is in the last step, as ranks are that still wait in it: one in a
    later step is ahead.
    """
    needs(*(("transformers", "accelerate") if is_real else ("torch",)))
    path = []
    if not is_real:
        path = [tmp_path / "stand-in"]
        path[0].mkdir()
        (path[0] / "transformers.py").write_text(STAND_IN)
        (path[0] / "accelerate.py").write_text('__version__ = "none"\n')
    own = told("train_hf_lm.py", [*SMALL, "--steps", "3"], tmp_path, path)
    steps = [words for step in (1, 2, 3) for words in (f"mark {step} step", f"step={step}")]
    assert own == ["step=0", *steps, "mark 3 end", "done"]
    others = told("train_lm.py", [*SIZES, "--steps", "3", "--warmup-steps", "1"], tmp_path)
    assert own == others


COUNT = """
import argparse, json, sys, torch
import train_hf_lm as program

def count(model):
    sizes = model["transformer"] | model
    names = ("architecture", "layers", "width", "heads", "mlp", "vocab", "max_positions", "rope_theta")
    given = {name: sizes[name] for name in names}
    args = argparse.Namespace(**given, kv_heads=sizes.get("kv_heads", 0), tied=sizes["tied"], attention="sdpa")
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in program.model_of(args).parameters())

print(json.dumps({name: count(model) for name, model in json.loads(sys.argv[1]).items()}))
"""


def test_models_have_the_parameters_that_the_folder_declares() -> None:
    needs("transformers", "accelerate")
    models = yaml.safe_load((FOLDER / "framework.yaml").read_text())["models"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FLAT)}
    command = [PYTHON, "-c", COUNT, json.dumps(models)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: model["parameters"] for name, model in models.items()}
