"""What launch scripts pass to orch's own trainers of language models, read by these trainers
themselves.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.rendering import file_of, opened, planned

pytestmark = pytest.mark.usefixtures("torch_of_trainers")
TRAINERS = {
    "pytorch_lm": "train_lm",
    "hf_trainer": "train_hf_lm",
    "deepspeed": "train_deepspeed_lm",
    "jax_lm": "train_jax_lm",
}
CASES = [(name, model) for name in TRAINERS for model in opened(name).framework.models]


@pytest.mark.parametrize(("name", "model"), CASES)
def test_a_trainer_takes_what_its_launch_script_passes_for_each_model(
    name: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "jax_lm":
        pytest.importorskip("jax")
    plan = planned(name, (1, 2), "cpu", model)
    line = next(line for line in file_of(plan, 0).splitlines() if f"{TRAINERS[name]}.py" in line)
    words = shlex.split(line.removesuffix("&"))
    program = next(
        index for index, word in enumerate(words) if Path(word).name == f"{TRAINERS[name]}.py"
    )
    monkeypatch.setattr(sys, "argv", words[program:])

    args = importlib.import_module(TRAINERS[name]).arguments()

    assert (args.steps, args.batch_size, args.layers) == (
        plan.spec.steps,
        plan.spec.batch_size,
        opened(name).framework.models[model]["transformer"]["layers"],
    )
