"""Runs of the simulated trainer: all of its ranks, or some, as processes on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.judge import LIMIT_S
from tests.support.ports import free_port
from tests.support.trainers import FLAT

SIMULATED = FLAT / "train_simulated.py"


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank ended, and what it said."""

    code: int
    out: str
    err: str


@contextmanager
def ring(
    world_size: int,
    arguments: Sequence[str],
    *,
    ranks: Sequence[int] = (),
    port: int | None = None,
    trainers: Sequence[Path] = (),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start all ranks of a simulated run, or only ``ranks``; whatever still lives at the end is
    killed.

    ``trainers``: another file for each rank.
    """
    port = port or free_port()
    processes = []
    for rank in ranks or range(world_size):
        identity = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        trainer = trainers[rank] if trainers else SIMULATED
        processes.append(
            subprocess.Popen(
                [sys.executable, "-s", "-E", "-S", "-u", str(trainer), *arguments],
                env={name: str(value) for name, value in identity.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.communicate()


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for a rank."""
    out, err = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, out, err)


def all_ended(world_size: int, arguments: Sequence[str], **more: Any) -> list[Ended]:
    """Run a simulated run to its end."""
    with ring(world_size, arguments, **more) as processes:
        return [ended(process) for process in processes]
