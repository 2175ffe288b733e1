"""The program around DeepSpeed's engine, run as a node runs it: torchrun and gloo on loopback; and
its launch script.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import plan_run
from orchestrator.plan.spec import resolve
from tests.support.judge import LIMIT_S
from tests.support.rendering import opened
from tests.support.trainers import (
    FLAT,
    ROOT,
    closing,
    needs,
    rank_lines,
    rank_parts,
    samples,
    torchrun,
)

TRAINER = FLAT / "train_deepspeed_lm.py"
FOLDER = ROOT / "templates" / "deepspeed"
SHAPE = [
    "--layers",
    "2",
    "--width",
    "64",
    "--heads",
    "4",
    "--mlp",
    "96",
    "--vocab",
    "100",
    "--bias",
    "true",
]
SMALL = [
    *(
        "--device",
        "cpu",
        "--dtype",
        "fp32",
        "--seq-len",
        "32",
        "--max-positions",
        "64",
        "--steps",
        "6",
    ),
    *("--learning-rate", "0.01", *SHAPE),  # high enough that weight decay of other parameters shows
]


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One folder for what DeepSpeed compiles, which takes minutes; ORCH_TEST_EXTENSIONS names one
    that is kept.
    """
    return os.environ.get("ORCH_TEST_EXTENSIONS", str(tmp_path_factory.mktemp("extensions")))


def outputs(
    folder: Path, arguments: list[str], ranks: int, extensions: str, program: str = TRAINER.name
) -> list[str]:
    return torchrun(
        [*SMALL, *arguments],
        folder,
        ranks,
        program=program,
        variables={"TORCH_EXTENSIONS_DIR": extensions},
        timeout_s=LIMIT_S,
    )


def losses(
    folder: Path, arguments: list[str], ranks: int, extensions: str, program: str = TRAINER.name
) -> list[float]:
    return [
        step["loss"]
        for step in samples("deepspeed", outputs(folder, arguments, ranks, extensions, program)[0])[
            1:
        ]
    ]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, extensions: str) -> list[float]:
    """The losses of our own trainer on one rank, with the same model, tokens and global batch."""
    needs("deepspeed", "ninja")
    words = ["--batch-size", "4"]
    return losses(tmp_path_factory.mktemp("ours"), words, 1, extensions, "train_lm.py")


@pytest.mark.parametrize(
    "words",
    [
        ["--zero", "0", "--batch-size", "2"],
        ["--zero", "1", "--batch-size", "1", "--accumulation", "2"],
        ["--zero", "2", "--batch-size", "2", "--checkpointing", "full"],
        ["--zero", "3", "--batch-size", "1", "--accumulation", "2", "--checkpointing", "full"],
    ],
)
def test_losses_are_those_of_our_own_trainer_with_every_stage(
    tmp_path: Path, ours: list[float], words: list[str], extensions: str
) -> None:
    """Lines have six digits; sums in another order differ by less. What each rank says of its steps
    is known up to ZeRO 2.
    """
    lines = outputs(tmp_path, words, 2, extensions)
    assert [step["loss"] for step in samples("deepspeed", lines[0])[1:]] == pytest.approx(
        ours, rel=1e-5
    )
    assert ours[4] < ours[0] and ours[5] < ours[1]
    for rank, text in enumerate(lines):
        parts = rank_parts("deepspeed", text)
        assert (parts["rank"], len(parts["step_s"])) == (rank, 6)
        assert (
            len(parts["compute_s"]) == len(parts["compute_cpu_s"]) == (0 if words[1] == "3" else 6)
        )
        assert all(
            0 < own < step for own, step in zip(parts["compute_s"], parts["step_s"], strict=False)
        )


def test_the_last_line_says_the_stage_that_deepspeed_took(tmp_path: Path, extensions: str) -> None:
    needs("deepspeed", "ninja")
    words = [*SMALL, "--batch-size", "1", "--zero", "3"]
    lines = torchrun(
        words,
        tmp_path,
        2,
        program=TRAINER.name,
        variables={"TORCH_EXTENSIONS_DIR": extensions},
        timeout_s=LIMIT_S,
    )
    assert [rank_lines("deepspeed", text) for text in lines] == [[(0, 2)], [(1, 2)]]
    facts = closing("deepspeed", lines[0])
    assert (facts["zero_stage"], facts["world_size"], facts["global_batch"], facts["steps"]) == (
        3,
        2,
        2,
        6,
    )
    # A table, positions; four matrices of attention and two of the MLP with their biases, two
    # norms; the last norm.
    layer = 4 * (64 * 64 + 64) + 2 * 64 * 96 + 96 + 64 + 4 * 64
    assert facts["parameters"] == 100 * 64 + 64 * 64 + 2 * layer + 2 * 64


def test_locks_of_ended_runs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    folder = opened("deepspeed")
    said = tmp_path / "said"
    recorder = tmp_path / "python"
    recorder.write_text(f'#!/bin/sh\nprintf %s "$TORCH_EXTENSIONS_DIR" >{said}\n')
    recorder.chmod(0o700)
    host = Host("node1", "10.11.0.2", slots=1, vars={"python": str(recorder)})
    spec = resolve(folder.framework, "gpt-tiny", device="cpu", choices={"nodes": 1, "gpus": 1})
    plan = plan_run(folder, spec, [host], run_id="b1.001", repeat=1, port=20000)
    run = tmp_path / "node1" / "runs" / "b1.001"
    run.mkdir(parents=True)
    for file in plan.nodes[0].files:
        (run / file.path).write_text(file.content)
    built = tmp_path / "node1" / "torch_extensions" / "deepspeed_shm_comm"
    built.mkdir(parents=True)
    for name in ("lock", "build.ninja", "deepspeed_shm_comm.so"):
        (built / name).write_text("")
    done = subprocess.run(
        ["/bin/bash", "launch.sh"],
        cwd=run,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in built.iterdir()) == ["build.ninja", "deepspeed_shm_comm.so"]
    assert said.read_text() == str(tmp_path / "node1" / "torch_extensions")
