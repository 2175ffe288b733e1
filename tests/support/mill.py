"""A framework of the tests' own, which trains nothing: what planning needs of one, as a value."""

from __future__ import annotations

from orchestrator.logs.grammar import LogGrammar
from orchestrator.plan.framework import ConfigFile, Framework, Option

__all__ = ["MILL"]

MILL = Framework(
    name="mill",
    title="a mill",
    folder="templates/mill",
    digest="0" * 64,
    launch="every_node",
    batch_size_is="device",
    models={"resnet50": {}, "vgg16": {}},
    dtypes={"cuda": {"fp32": "float", "fp16": "half"}, "cpu": {"fp32": "float"}},
    loaders=("synthetic", "native"),
    defaults={
        "batch_size": 128, "dtype": "fp32", "loader": "synthetic", "steps": 120, "warmup_steps": 20, "timeout_s": 1800,
        "repeats": 5,
    },
    device_defaults={"cpu": {"batch_size": 2, "steps": 5, "warmup_steps": 1}},
    options={
        "image_size": Option("int", 224, minimum=32, device_default={"cpu": 32}),
        "rate": Option("float", 0.1, minimum=0),
        "compile": Option("bool", False),
        "layout": Option("str", "auto", choices=("auto", "on", "off")),
        "note": Option("str", ""),
    },
    env={},
    files=(ConfigFile("launch.sh.j2", "launch.sh"),),
    payload=(),
    probe="print('{}')",
    log=LogGrammar(files=("rank-0.out",), patterns=()),
)  # fmt: skip
