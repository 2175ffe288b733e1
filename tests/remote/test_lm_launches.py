"""What launch scripts pass to orch's own trainers of language models, read by these trainers themselves."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path

import pytest

from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import plan_run
from orchestrator.plan.spec import resolve
from tests.support.rendering import opened

pytestmark = pytest.mark.usefixtures("torch_of_trainers")
TRAINERS = {"pytorch_lm": "train_lm", "hf_trainer": "train_hf_lm", "deepspeed": "train_deepspeed_lm", "jax_lm": "train_jax_lm"}
CASES = [(name, model) for name in TRAINERS for model in opened(name).framework.models]


@pytest.mark.parametrize(("name", "model"), CASES)
def test_a_trainer_takes_what_its_launch_script_passes_for_each_model(
    name: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "jax_lm":
        pytest.importorskip("jax")
    folder = opened(name)
    hosts = [Host("node1", "10.11.0.2", gpus=0, slots=2)]
    spec = resolve(folder.framework, model, device="cpu", choices={"nodes": 1, "gpus": 2}, sets={})
    plan = plan_run(folder, spec, hosts, run_id="b1.001", repeat=1, port=20000)
    script = next(file.content for file in plan.nodes[0].files if file.path == "launch.sh")
    line = next(line for line in script.replace("\\\n", " ").splitlines() if f"{TRAINERS[name]}.py" in line)
    words = shlex.split(line.removesuffix("&"))
    program = next(index for index, word in enumerate(words) if Path(word).name == f"{TRAINERS[name]}.py")
    monkeypatch.setattr(sys, "argv", words[program:])

    args = importlib.import_module(TRAINERS[name]).arguments()

    assert (args.steps, args.batch_size, args.layers) == (
        spec.steps,
        spec.batch_size,
        folder.framework.models[model]["transformer"]["layers"],
    )
