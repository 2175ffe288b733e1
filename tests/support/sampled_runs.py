"""Telemetry files as a node's sampling process writes them, from plain values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

GPU = {"name": "NVIDIA H200", "uuid": "GPU-0", "limit_w": 700.0, "most_mhz": 1980, "shared": False}
Column = Callable[[float], float | None]


def telemetry(
    times: Sequence[float],
    columns: Mapping[str, Column],
    events: Sequence[Mapping[str, Any]] = (),
    **header: Any,
) -> str:
    """Return the text of a file with a row for each of ``times``; each column is a function of the
    time.
    """
    about = {"schema": 1, "period_s": 1.0, "processors": 8, "columns": ["t", *columns], **header}
    rows = [[at, *(column(at) for column in columns.values())] for at in times]
    end = {
        "t": times[-1] if times else 0.0,
        "event": "end",
        "samples": len(rows),
        "used_s": 0.05,
        "seconds": 50.0,
    }
    return "".join(json.dumps(line) + "\n" for line in (about, *rows, *events, end))


def gpus(
    count: int, watts: Callable[[int, float], float] = lambda gpu, at: 600.0, **columns: Column
) -> dict[str, Column]:
    """Return the columns of GPUs whose power is a function of their place and the time; energy is
    its sum over time from 0 on, in steps of a tenth of a second."""

    def energy(gpu: int) -> Column:
        return lambda at: sum(watts(gpu, tenth / 10) / 10 for tenth in range(int(at * 10)))

    made: dict[str, Column] = {}
    for gpu in range(count):
        made[f"gpu{gpu}.power_w"] = lambda at, gpu=gpu: watts(gpu, at)  # type: ignore[misc]
        made[f"gpu{gpu}.energy_j"] = energy(gpu)
        made |= {f"gpu{gpu}.{name}": column for name, column in columns.items()}
    return made
