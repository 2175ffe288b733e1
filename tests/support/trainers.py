"""Helpers of trainer tests: an interpreter that has the framework, and readers of a trainer's
output.

Frameworks are large. Where the interpreter of the tests lacks one, `ORCH_TEST_PYTHON` may name
another that has it; where neither does, the test is skipped and says so.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
import yaml

from tests.support.judge import LIMIT_S
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("ORCH_TEST_PYTHON", sys.executable)
DONE_KEYS = {
    *(
        "world_size",
        "ranks",
        "hosts",
        "devices",
        "steps",
        "model",
        "dtype",
        "batch_size",
        "global_batch",
        "parameters",
    ),
    *(
        "framework",
        "framework_version",
        "python",
        "cuda",
        "cudnn",
        "nccl",
        "backend",
        "gradient_bytes",
        "simulated",
    ),
    "max_memory_bytes",
}
"""What every trainer tells in its last line."""
LOADER_KEYS = DONE_KEYS | {"loader"}
"""What those tell besides that can read data."""


def _laid_flat() -> Path:
    """Copy our trainers into one folder, which is removed when this process ends, not when a
    process forked from it does.
    """
    folder, owner = Path(tempfile.mkdtemp(prefix="orch-trainers-")), os.getpid()
    for path in (ROOT / "remote" / "trainers").glob("*/*.py"):
        shutil.copy(path, folder)
    atexit.register(
        lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None
    )
    return folder


FLAT = _laid_flat()
"""Our trainers, as a node has them: in one folder."""
SHARED = FLAT / "trainer.py"
"""What our trainers have in common."""
PYTORCH = FLAT / "train_pytorch.py"
"""The trainer of PyTorch for images."""


READ_FLAGS = """
import argparse, json, runpy, sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

class StandIns:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] in FRAMEWORKS else None
    def create_module(self, spec):
        return MagicMock(__path__=[])
    def exec_module(self, module):
        pass

def read(parser):
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = [action.option_strings[0] for action in shown if action.dest != "help"]
    sys.exit(json.dumps(flags))

FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax", "numpy")
sys.meta_path.insert(0, StandIns())
argparse.ArgumentParser.parse_args = read
runpy.run_path(sys.argv[1])["arguments"]()
"""
"""A program that writes the flags which a trainer's parser has, without importing its framework."""


@cache
def flags(trainer: Path) -> frozenset[str]:
    """Every flag of a trainer's parser that its help shows."""
    done = subprocess.run(
        [sys.executable, "-c", READ_FLAGS, str(trainer)],
        env={"PYTHONPATH": str(FLAT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr.startswith("["), done.stderr
    return frozenset(json.loads(done.stderr))


def module(path: Path) -> ModuleType:
    """A trainer, imported without being run; it finds its neighbours, as the launch script sees to."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path.remove(str(path.parent))
    return loaded


@cache
def has(name: str) -> bool:
    """Tell whether the interpreter of the frameworks can find a module. It is not imported: some
    take seconds.
    """
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return (
        subprocess.run(
            [PYTHON, "-c", code], capture_output=True, timeout=LIMIT_S, check=False
        ).returncode
        == 0
    )


def needs(*names: str) -> None:
    """Skip the test where a module is missing."""
    missing = [name for name in names if not has(name)]
    if missing:
        pytest.skip(
            f"{PYTHON} has no {', '.join(missing)}; ORCH_TEST_PYTHON may name an interpreter that has"
        )


def grammar(framework: str) -> dict[str, Any]:
    """The log grammar that the framework's folder declares."""
    document: dict[str, Any] = yaml.safe_load(
        (ROOT / "templates" / framework / "framework.yaml").read_text()
    )
    log: dict[str, Any] = document["log"]
    return log


def samples(framework: str, text: str) -> list[dict[str, float]]:
    """The step lines of a log, as the folder's own pattern reads them."""
    pattern = re.compile(grammar(framework)["patterns"][0])
    groups = [match.groupdict() for match in map(pattern.match, text.splitlines()) if match]
    kinds = {
        "step": int,
        "timestamp": float,
        "step_time_s": float,
        "samples": int,
        "loss": float,
        "skipped": int,
    }
    rows = [
        {name: kind(values[name]) for name, kind in kinds.items() if name in values}
        for values in groups
    ]
    return [{name: value for name, value in row.items() if not math.isnan(value)} for row in rows]


def closing(framework: str, text: str) -> dict[str, Any]:
    """The facts in the last line of a log."""
    match = re.match(grammar(framework)["closing"], text.splitlines()[-1])
    assert match, text
    facts: dict[str, Any] = json.loads(match["json"], parse_constant=pytest.fail)
    return facts


def rank_lines(framework: str, text: str) -> list[tuple[int, int]]:
    """The (rank, world_size) of every rank line."""
    matches = [re.match(grammar(framework)["rank"], line) for line in text.splitlines()]
    return [(int(match["rank"]), int(match["world_size"])) for match in matches if match]


def rank_parts(framework: str, text: str) -> dict[str, Any]:
    """The parts of its steps that a rank printed, as the folder's own pattern finds them."""
    (match,) = filter(
        None, (re.match(grammar(framework)["rank_parts"], line) for line in text.splitlines())
    )
    facts: dict[str, Any] = json.loads(match["json"])
    return facts


def torchrun(
    arguments: Sequence[str],
    folder: Path,
    nproc: int,
    program: str = "train_pytorch.py",
    variables: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = LIMIT_S,
) -> list[str]:
    """Run a program of PyTorch under torchrun, the trainer if none is named; return what each rank
    printed. ``variables`` are further ones of its environment."""
    wrapper = folder / "rank.sh"
    wrapper.write_text('#!/bin/sh\nexec "$@" >"$0-$RANK.out" 2>"$0-$RANK.err"\n')
    wrapper.chmod(0o700)
    environment = {"PATH": os.environ["PATH"], "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(FLAT), **variables}
    command = [
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "1",
        "--nproc_per_node",
        str(nproc),
    ]
    command += [
        "--node_rank",
        "0",
        "--rdzv_backend",
        "static",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        str(free_port()),
    ]
    command += ["--max_restarts", "0", "--monitor_interval", "0.1", "--no_python", str(wrapper)]
    command += [PYTHON, "-u", str(FLAT / program), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    errors = "".join(path.read_text() for path in sorted(folder.glob("*.err")))
    assert done.returncode == 0, done.stderr + errors
    return [path.read_text() for path in sorted(folder.glob("*.out"))]
