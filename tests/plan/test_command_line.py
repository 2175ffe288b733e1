"""A training command taken apart."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.plan.command_line import TrainingCommand, training_command

HERE = {"train.py", "src/train.py", "bin/bench"}


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("torchrun --nnodes=2 --nproc-per-node 8 --standalone train.py --lr 0.1",
         {"launcher": "torchrun", "script": "train.py", "is_here": True, "arguments": ("--lr", "0.1"),
          "left_out": ("--nnodes=2", "--nproc-per-node 8", "--standalone")}),
        ("python3 -u -m torch.distributed.launch --nproc_per_node=8 src/train.py",
         {"launcher": "torchrun", "script": "src/train.py", "is_here": True, "flags": ("-u",),
          "left_out": ("--nproc_per_node=8",)}),
        ("torchrun -m pkg.train --epochs 1", {"launcher": "torchrun", "module": "pkg.train", "arguments": ("--epochs", "1")}),
        ("python -m pkg.train", {"launcher": "python", "module": "pkg.train"}),
        ("RANK=0 WORLD_SIZE=1 A='b c' /opt/py/bin/python3.11 -O train.py",
         {"launcher": "python", "script": "train.py", "is_here": True, "flags": ("-O",), "env": (("A", "b c"),),
          "left_out": ("RANK=0", "WORLD_SIZE=1", "/opt/py/bin/python3.11")}),
        ("/shared/train/run --x", {"launcher": "program", "program": "/shared/train/run", "arguments": ("--x",)}),
        ("bin/bench", {"launcher": "program", "program": "bin/bench", "is_here": True}),
        ("FOO=1 sh bin/bench --config src/train.py --data=/d -x train.py",
         {"launcher": "program", "shell": "sh", "program": "bin/bench", "is_here": True, "env": (("FOO", "1"),),
          "arguments": ("--config", "src/train.py", "--data=/d", "-x", "train.py"), "inputs": ("src/train.py", "train.py")}),
        (r'''bin/bench 'a; $B' \$C \; "5$ > 'x' * \$D" e$ x''',
         {"launcher": "program", "program": "bin/bench", "is_here": True,
          "arguments": ("a; $B", "$C", ";", "5$ > 'x' * $D", "e$", "x")}),
        ("MASTER_ADDR=$A torchrun --nnodes=$N --nproc_per_node ${P} train.py --lr 0.1",
         {"launcher": "torchrun", "script": "train.py", "is_here": True, "arguments": ("--lr", "0.1"),
          "left_out": ("MASTER_ADDR=$A", "--nnodes=$N", "--nproc_per_node ${P}")}),
        ("fio --name=a", {"launcher": "program", "program": "fio", "arguments": ("--name=a",)}),
        ("python /opt/train.py", {"launcher": "python", "script": "/opt/train.py"}),
        ("torchrun --nproc_per_node 2 --no_python bin/bench -x",
         {"launcher": "program", "program": "bin/bench", "is_here": True, "arguments": ("-x",),
          "left_out": ("--nproc_per_node 2",)}),
    ],
)  # fmt: skip
def test_what_orch_sets_is_left_out_and_the_rest_is_kept(typed: str, taken: dict[str, Any]) -> None:
    assert training_command(typed, HERE.__contains__) == TrainingCommand(**taken)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "expected a command such as 'torchrun train.py', got none"),
        ("A=1", "got none"),
        ("torchrun 'train.py", "expected a command, got no closing quotation"),
        ("torchrun", "expected a script, got none"),
        ("torchrun --nprocs 8 train.py", "expected an option of torchrun, got --nprocs"),
        ("torchrun --no_python", "expected a program, got none"),
        ("python -c 'print()'", "expected a script, got -c"),
        ("torchrun gone.py", "found no gone.py here"),
        ("./gone --x", "found no ./gone here"),
        (
            "python train.py | tee log",
            "expected one command, got '|'. put the command into a script",
        ),
        ("python train.py; rm -rf x", "expected one command, got ';'"),
        ("python train.py --steps 3&& true", "expected one command, got '&&'"),
        ("python train.py --day $(date)", "expected one command, got '$('"),
        ('python train.py --day "`date`"', "expected one command, got '`'"),
        (
            "python train.py --data $HOME/data",
            "expected a word without shell syntax, got '$HOME/data'. write the value, or",
        ),
        ('A="b ${C}" python train.py', "expected a word without shell syntax, got 'b ${C}'"),
        (
            "python train.py --files *.txt",
            "expected a word without shell syntax, got '*.txt'. put the command into a script",
        ),
        (
            "mpirun -np 8 python train.py",
            "expected a command without a launcher of its own, got mpirun. give the command",
        ),
    ],
)
def test_what_is_no_training_command_is_refused(typed: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        training_command(typed, HERE.__contains__)
    assert said in str(caught.value) and str(caught.value).startswith("--from-command: ")
