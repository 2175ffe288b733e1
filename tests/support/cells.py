"""Results of the repeats of one cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.errors import RunError
from orchestrator.plan.spec import RunSpec
from orchestrator.results.numbers.throughput import Throughput
from orchestrator.results.run import RunResult

SPEC = RunSpec(
    framework="pytorch",
    model="resnet50",
    nodes=1,
    gpus=1,
    device="cuda",
    batch_size=128,
    dtype="fp32",
    loader="synthetic",
    steps=120,
    warmup_steps=20,
    timeout_s=1800.0,
    options={"image_size": 224, "channels_last": True},
    origins={
        "steps": "pytorch default",
        "warmup_steps": "command line",
        "options.image_size": "pytorch default",
    }
    | {"options.channels_last": "command line"},
)


def cell(
    shape: str,
    speeds: list[float],
    prefix: str = "",
    result: dict[str, Any] | None = None,
    **spec: Any,
) -> list[RunResult]:
    """Return one good run per speed, of the standard spec with changes."""
    nodes, gpus = (int(number) for number in shape[:-1].split("n"))
    planned = replace(SPEC, nodes=nodes, gpus=gpus, **spec)
    return [
        replace(
            RunResult(
                f"{prefix}{shape}-{i}",
                i,
                planned,
                False,
                "finished",
                Throughput(speed, 100, 100 / speed, 21, 120),
            ),
            **(result or {}),
        )
        for i, speed in enumerate(speeds, start=1)
    ]


def failed(shape: str, repeat: int, message: str = "rank 5 ended with SIGKILL") -> RunResult:
    error = RunError(message, kind="rank_failed", host="node2")
    return replace(
        cell(shape, [1.0])[0],
        run_id=f"{shape}-bad{repeat}",
        repeat=repeat,
        state="failed",
        throughput=None,
        error=error,
    )
