"""`orch bench gemm` and its kin in a lab: each device is measured, by its own rank, and all values
come from the logs.
"""

from __future__ import annotations

import re
from statistics import mean
from typing import Any

import pytest

from tests.e2e.rig import Controller
from tests.support.trainers import needs


def test_products_of_two_nodes_are_shown_together_and_for_each_device(
    controller: Controller,
) -> None:
    needs("torch")
    done = controller.orch(
        "bench", "gemm", "--nodes", "2", "--gpus", "1", "--repeats", "1", "--set", 'sizes="64,128"',
        "--set", "step_seconds=0.02", timeout_s=100,
    )  # fmt: skip
    assert done.code == 0, done
    assert (controller.manifest()["spec"]["dtype"], len(controller.runs)) == ("fp32", 1)
    logs = [(controller.runs[0] / f"logs/node{n + 1}/rank-{n}.out").read_text() for n in (0, 1)]
    printed = [
        {int(size): float(value) for size, value in re.findall(r"size=(\d+) .* tflops=(\S+)", log)}
        for log in logs
    ]
    assert [set(one) for one in printed] == [{64, 128}] * 2
    values: dict[Any, float] = {
        (row["metric"], *row["key"].values()): row["median"]
        for row in controller.orch("summarize", "--json").json["rows"]
    }
    for size in (64, 128):
        both = [one[size] for one in printed]
        assert [values.pop(("tflops_rank", size, rank)) for rank in (0, 1)] == pytest.approx(both)
        assert values.pop(("tflops", size)) == pytest.approx(mean(both))
        assert values.pop(("tflops_min", size)) == pytest.approx(min(both))
    assert values == {}


def test_copies_to_a_device_are_refused_where_there_is_none(controller: Controller) -> None:
    done = controller.orch("bench", "host_device", "--nodes", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith(
        "orch: --hosts: expected hosts for cuda, host_device does not run on cpu. "
    )
