"""The JAX trainer, run as a node runs it: a process per rank on loopback, which meet through
jax.distributed and gloo.
"""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from typing import Any

import pytest
import yaml

from tests.support.judge import LIMIT_S
from tests.support.ports import free_port
from tests.support.trainers import FLAT, PYTHON, ROOT, closing, needs, rank_lines, samples

TRAINER = FLAT / "train_jax_lm.py"
FOLDER = ROOT / "templates" / "jax_lm"
LAYERS = ["--layers", "2", "--width", "64", "--heads", "4", "--mlp", "96"]
SIZES = ["--vocab", "100", "--max-positions", "64"]
SMALL = [*LAYERS, *SIZES, "--device", "cpu", "--dtype", "fp32", "--seq-len", "32"]


def launch(arguments: list[str], ranks: int, code: int = 0) -> list[str]:
    """Run the trainer once per rank; return what each printed, with its errors if it is to fail."""
    environment = {"PATH": os.environ["PATH"], "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    environment["MASTER_PORT"] = str(free_port())
    command = [PYTHON, "-u", str(TRAINER), *arguments]
    processes = [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if code else subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [code] * ranks, outputs
    return [output for output, _ in outputs]


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """What one rank printed."""
    needs("jax")
    return launch([*SMALL, "--batch-size", "4", "--steps", "9"], ranks=1)


@pytest.fixture(scope="module")
def two_ranks() -> list[str]:
    """What each of two ranks printed that share the global batch of the one."""
    needs("jax")
    return launch([*SMALL, "--batch-size", "2", "--steps", "9"], ranks=2)


def test_every_jax_rank_says_who_it_is_and_rank_0_the_steps(two_ranks: list[str]) -> None:
    assert [rank_lines("jax_lm", text) for text in two_ranks] == [[(0, 2)], [(1, 2)]]
    assert [[step["step"] for step in samples("jax_lm", text)] for text in two_ranks] == [
        list(range(10)),
        [],
    ]


def test_losses_do_not_depend_on_how_ranks_share_a_global_batch(
    alone: list[str], two_ranks: list[str]
) -> None:
    first, second = (
        [step["loss"] for step in samples("jax_lm", texts[0])[1:]] for texts in (alone, two_ranks)
    )
    # Lines have six digits; sums in another order differ by less.
    assert first == pytest.approx(second, rel=1e-5)
    # The fifth and the ninth step see the tokens of the first.
    assert first[0] > first[4] > first[8]


def test_jax_step_times_are_the_differences_of_the_clock(two_ranks: list[str]) -> None:
    steps = samples("jax_lm", two_ranks[0])
    assert [step["samples"] for step in steps] == [0, *[4] * 9]
    for before, after in pairwise(steps):
        assert after["step_time_s"] > 0
        assert after["timestamp"] - before["timestamp"] == pytest.approx(
            after["step_time_s"], abs=3e-6
        )


def test_the_last_line_of_a_jax_run_is_complete(two_ranks: list[str]) -> None:
    facts = closing("jax_lm", two_ranks[0])
    assert (facts["world_size"], facts["ranks"], facts["framework"], facts["global_batch"]) == (
        2,
        [0, 1],
        "jax",
        4,
    )
    assert [device["count"] for device in facts["devices"]] == [2]
    # The table and positions; four matrices of attention and two of the MLP with their biases, two
    # norms; the last norm.
    layer = 4 * (64 * 64 + 64) + 2 * 64 * 96 + 64 + 96 + 4 * 64
    assert facts["parameters"] == (100 + 64) * 64 + 2 * layer + 2 * 64
    assert (
        facts["gradient_bytes"] == 4 * facts["parameters"] and facts["max_memory_bytes"] > 1 << 20
    )


def test_bf16_losses_are_those_of_fp32_within_its_precision(alone: list[str]) -> None:
    lines = launch([*SMALL, "--dtype", "bf16", "--batch-size", "4", "--steps", "5"], ranks=1)
    half, full = (
        [step["loss"] for step in samples("jax_lm", texts[0])[1:6]] for texts in (lines, alone)
    )
    assert half == pytest.approx(full, rel=2**-8) and half != full


def python(code: str, *arguments: str) -> Any:
    """Run code next to the trainer; return the JSON that it prints."""
    needs("jax")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FLAT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [PYTHON, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COUNT = """
import json, sys
from jax_transformer import Shape, parameters

def shape(model):
    sizes = {**model.pop("transformer"), **model}
    return Shape(**{name: sizes[name] for name in Shape._fields})

print(json.dumps({name: parameters(shape(model)) for name, model in json.loads(sys.argv[1]).items()}))
"""


def test_models_have_the_parameters_that_the_folder_declares() -> None:
    models = yaml.safe_load((FOLDER / "framework.yaml").read_text())["models"]
    assert python(COUNT, json.dumps(models)) == {
        name: model["parameters"] for name, model in models.items()
    }


CHANGED = """
import json, jax, jax.numpy as jnp
from jax_transformer import Shape, initial, logits_of

shape = Shape(2, 32, 4, 64, 50, 16)
params = initial(shape, jax.random.key(1))
of = lambda tokens: logits_of(shape, jnp.float32, params, jnp.array([tokens]))[0]
late = abs(of([7] * 8) - of([7] * 5 + [8] + [7] * 2)).max(-1)
swapped = abs(of([3, 4, 5]) - of([4, 3, 5])).max(-1)
print(json.dumps([bool(difference > 1e-6) for difference in (*late, swapped[2])]))
"""


def test_a_token_sees_those_before_it_and_their_order() -> None:
    assert python(CHANGED) == [False] * 5 + [True] * 4


def test_a_rank_without_numbers_is_refused() -> None:
    needs("jax")
    done = subprocess.run(
        [PYTHON, str(TRAINER), *SMALL],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        done.returncode == 1
        and "expected RANK, LOCAL_RANK, WORLD_SIZE" in done.stderr
        and "Traceback" not in done.stderr
    )
