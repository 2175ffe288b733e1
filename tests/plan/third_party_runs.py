"""Runs of other people's trainers as tests plan them, and their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.inventory.hosts import Host
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.steps import StepSample
from orchestrator.plan import folders as library
from orchestrator.plan.bench import plan_run
from orchestrator.plan.measures import TRAINING
from orchestrator.plan.render import Plan
from orchestrator.plan.spec import resolve
from tests.support.rendering import opened

FRAMEWORKS = [opened(name).framework for name in library.frameworks()]
FOREIGN = tuple(
    framework.name
    for framework in FRAMEWORKS
    if framework.requires and framework.measures == TRAINING
)
PORT = 20000
VARS = {
    "interface": "ib0",
    "python": "/opt/python/bin/python3",
    "data_dir": "/data/imagenet",
    "pytorch_examples_dir": "/opt/examples",
    "tf_models_dir": "/opt/tf models",
    "paddle_models_dir": "/opt/paddle-models",
    "fleetx_dir": "/opt/fleetx",
    "tensorpack_dir": "/opt/tensorpack",
    "tf_cnn_benchmarks_dir": "/opt/tf_cnn_benchmarks",
    "oneflow_cnns_dir": "/opt/oneflow/cnns",
    "horovod_dir": "/opt/horovod",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One rendering: a shape as (nodes, gpus) and what differs from the framework's defaults."""

    shape: tuple[int, int]
    choices: Mapping[str, Any] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)
    model: str = "resnet50"

    @property
    def label(self) -> str:
        values = [
            *map(str, self.choices.values()),
            *(f"{name}={value}" for name, value in self.sets.items()),
        ]
        return " ".join([self.model, f"{self.shape[0]}n{self.shape[1]}g", *values])


SHAPES = [(1, 1), (1, 8), (2, 8), (4, 8)]
VARIANTS: dict[str, list[Case]] = {
    "pytorch_examples": [
        Case((2, 8), {"loader": "native", "dtype": "tf32"}, {"workers": "48"}),
        Case((2, 8), {"loader": "dali-cpu"}, {"program": "imagenet/main_dali.py"}),
    ],
    "tensorflow_official": [
        Case((1, 8), {"dtype": "fp16"}, {"xla": "true"}),
        Case((2, 8), {"dtype": "fp16", "loader": "synthetic"}, {"layout": "legacy"}),
    ],
    "paddle_models": [
        Case((1, 8), {"dtype": "fp16"}),
        Case((2, 8), {"loader": "dali-gpu"}),
        Case((2, 8), model="vgg16"),
    ],
    "fleetx": [
        Case((2, 8), {"dtype": "fp16", "batch_size": 64}, model="vgg16"),
        Case((2, 8), {"dtype": "fp16"}, {"strategy": "auto"}, model="vgg16"),
    ],
    "tensorpack": [
        Case((1, 8), {}, {"variable_update": "parameter_server", "fake_location": "cpu"}),
        Case((1, 8), {}, {"fake_location": "zmq-consume"}),
        Case((2, 8), {"dtype": "fp16"}, {"variable_update": "horovod", "xla": "true"}),
    ],
    "tf_cnn_benchmarks": [
        Case((2, 8), {}, {"variable_update": "parameter_server"}),
        Case((2, 8), {"dtype": "fp16"}, {"variable_update": "horovod", "xla": "true"}),
    ],
    "oneflow": [
        Case(
            (2, 8),
            {"dtype": "fp16", "loader": "synthetic"},
            {"fuse": "true", "channel_last": "true"},
        )
    ],
    "horovod_examples": [
        Case((2, 8), {"dtype": "tf32"}, {"program": "tensorflow2", "fp16_allreduce": "true"}),
        Case(
            (1, 8),
            {"steps": 64, "warmup_steps": 4},
            {"adasum": "true", "batches_per_iteration": "6"},
            "vgg16",
        ),
    ],
}


def cases(framework: str) -> list[Case]:
    """The four published shapes, and the variants."""
    sets = {"variable_update": "distributed_replicated"} if framework == "tf_cnn_benchmarks" else {}
    model = "vgg16" if framework == "fleetx" else "resnet50"
    return [Case(shape, {}, sets, model) for shape in SHAPES] + VARIANTS.get(framework, [])


def hosts(count: int, gpus: int, **changes: Any) -> list[Host]:
    """Hosts named and addressed as in the published cluster."""
    return [
        Host(f"node{i + 1}", f"10.11.0.{i + 2}", gpus=gpus, vars=VARS | changes)
        for i in range(count)
    ]


def planned(framework: str, case: Case, on: Sequence[Host] = ()) -> Plan:
    """One run of a framework, decided."""
    folder = opened(framework)
    on = on or hosts(case.shape[0], case.shape[1])
    choices = {"nodes": case.shape[0], "gpus": case.shape[1], **case.choices}
    choices |= {f"options.{name}": text for name, text in case.sets.items()}
    spec = resolve(folder.framework, case.model, device=on[0].device, choices=choices)
    return plan_run(folder, spec, on, run_id="b1.001", repeat=1, port=PORT)


def launch(plan: Plan, node: int) -> str:
    """A node's launch script."""
    return next(file.content for file in plan.nodes[node].files if file.path == "launch.sh")


def grammar(framework: str) -> LogGrammar:
    """A folder's log grammar."""
    return opened(framework).framework.log


# ------------------------------------------------------------------ logs


def as_rows(samples: Sequence[StepSample]) -> list[dict[str, Any]]:
    """Samples as ``sample.json`` has them."""
    return [
        {name: value for name, value in asdict(sample).items() if value is not None}
        for sample in samples
    ]


def epoch_line(step: int, seconds: float) -> str:
    return (
        f"Epoch: [0][{step:3d}/312]\tTime {seconds:6.3f} ({seconds:6.3f})\tData  0.001 ( 0.001)\t"
        "Loss 6.9828e+00 (6.9828e+00)\tAcc@1   0.78 (  0.78)\tAcc@5   1.56 (  1.56)\n"
    )
