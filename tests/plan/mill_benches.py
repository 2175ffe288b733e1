"""Benches of the mill on hosts of its own: what is planned, what is skipped and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import Knob, Option
from orchestrator.plan.planning import plan_bench
from orchestrator.plan.request import Request
from tests.support.mill import MILL

TEMPLATE = "{% if options.layout == 'off' and spec.nodes > 1 %}{{ refuse('--set layout', 'off needs one node') }}{% endif %}"
FRAMEWORK = replace(
    MILL,
    models={"resnet50": {}},
    device_defaults={"cpu": {"repeats": 2}},
    options={
        "layout": Option("str", "auto", choices=("auto", "on", "off")),
        "seed": Option("int", 0),
    },
    tunes=(
        Knob(("NCCL_ALGO",), "", (("Ring",), ("Tree",))),
        Knob((), "layout", (("on",),)),
        Knob((), "seed", ((1,),), numerics=True),
    ),
)
FOLDER = FrameworkFolder(FRAMEWORK, {"launch.sh.j2": TEMPLATE}, {"rank_wrapper.py": b""})
READER = replace(FOLDER, framework=replace(FRAMEWORK, name="reader", measures="readings"))
PAIRS = replace(FOLDER, framework=replace(FRAMEWORK, name="links", measures="pairs"))
HOSTS = [Host(f"n{n}", f"10.0.0.{n}", gpus=8) for n in range(1, 5)]
OF_INCLUDE = (
    "valid keys: framework, dtype, batch_size, loader, cpu_binding, options, env, nodes, gpus, shape, steps, warmup_steps, "
    "timeout_s, global_batch"
)
"""What a run file says of an unknown key of an entry of ``include``, lists first."""
KEYS = f"{OF_INCLUDE}, container, ladder, repeats, label, expect, include, exclude"
"""What it says of one of its own."""
CPUS = [Host(f"c{n}", f"10.0.0.{n}", gpus=0, slots=2) for n in range(1, 5)]


def bench_of(
    request: Request, *folders: FrameworkFolder, hosts: list[Host] = HOSTS, seed: int = 7
) -> Bench:
    return plan_bench(request, folders or (FOLDER,), hosts, bench_id="b1", seed=seed)


def cells_of(bench: Bench) -> list[str]:
    return [f"{spec.framework} {spec.shape} {spec.dtype}" for spec in bench.cells]


def run_file(text: str) -> yamlfile.Document:
    return yamlfile.loads(text, "choices.yaml")


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def skipped_of(bench: Bench) -> list[tuple[str, str]]:
    return [(str(one), one.reason) for one in bench.skipped]
