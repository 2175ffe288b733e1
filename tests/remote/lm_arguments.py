"""Arguments of the trainer of language models: those of each model, and the ways to spread one."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.trainers import FLAT, ROOT

PROGRAM = FLAT / "train_lm.py"
FOLDER = ROOT / "templates" / "pytorch_lm"
MODELS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "framework.yaml").read_text())[
    "models"
]
STEPS = 6


def shape(model: str) -> list[str]:
    """The flags of a model, as the launch script writes them."""
    own = MODELS[model]
    values = {
        **own["transformer"],
        **{
            name: own[name]
            for name in ("norm", "positions", "max_positions", "rope_theta", "bias")
            if name in own
        },
    }
    words = {f"--{name.replace('_', '-')}": str(value).lower() for name, value in values.items()}
    return ["--model", model, *(word for pair in words.items() for word in pair)]


def common(model: str, dtype: str = "fp32") -> list[str]:
    """Arguments of every run."""
    return [
        *shape(model),
        *(
            "--device",
            "cpu",
            "--seq-len",
            "32",
            "--steps",
            str(STEPS),
            "--dtype",
            dtype,
            "--learning-rate",
            "0.001",
        ),
    ]


SPREAD = {
    "ddp": (2, ["--batch-size", "2", "--parallel", "ddp"]),
    "ddp with accumulation": (2, ["--batch-size", "1", "--accumulation", "2"]),
    "fsdp": (2, ["--batch-size", "2", "--parallel", "fsdp"]),
    "fsdp without resharding": (
        2,
        ["--batch-size", "1", "--accumulation", "2", "--parallel", "fsdp", "--reshard", "false"],
    ),
    "fsdp with accumulation": (
        2,
        [
            "--batch-size",
            "1",
            "--accumulation",
            "2",
            "--parallel",
            "fsdp",
            "--checkpointing",
            "full",
        ],
    ),
    "fsdp that gathers ahead": (2, ["--batch-size", "2", "--parallel", "fsdp", "--prefetch", "2"]),
    "fsdp with chunks of the loss": (
        2,
        ["--batch-size", "2", "--parallel", "fsdp", "--loss-chunks", "2"],
    ),
    "replicas of shards": (4, ["--batch-size", "1", "--parallel", "fsdp", "--replicas", "2"]),
}
SPREAD_UNTIED = {
    "fsdp with a gathered table": (
        2,
        ["--batch-size", "2", "--parallel", "fsdp", "--embedding", "gathered"],
    ),
    "fsdp with accumulation and a row-wise table": (
        2,
        [
            "--batch-size",
            "1",
            "--accumulation",
            "2",
            "--parallel",
            "fsdp",
            "--embedding",
            "row-wise",
        ],
    ),
}
"""The same where the output layer is a table of its own."""
