"""Plans rendered from a template that is given as text."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import cache
from typing import Any

from orchestrator.devices.vendor import show_devices
from orchestrator.inventory.hosts import Host
from orchestrator.logs.grammar import LogGrammar
from orchestrator.plan.bench import plan_run
from orchestrator.plan.folders import open_framework
from orchestrator.plan.framework import ConfigFile, Framework
from orchestrator.plan.placement import place
from orchestrator.plan.render import Plan, render
from orchestrator.plan.spec import RunSpec, resolve
from tests.support.judge import LIMIT_S

FRAMEWORK = Framework(
    name="echo", title="echo", folder="templates/echo", digest="0" * 64, launch="every_node", batch_size_is="device",
    models={"resnet50": {}}, dtypes={"cuda": {"fp32": "float"}}, loaders=("synthetic",), defaults={}, device_defaults={},
    options={}, env={}, files=(ConfigFile("launch.sh.j2", "launch.sh", "sh", 0o700),), payload=(), probe="",
    log=LogGrammar(files=("rank-0.out",), patterns=()),
)  # fmt: skip

opened = cache(open_framework)
"""A framework folder of the project, read once."""


def rendered(
    template: str, options: dict[str, Any], *, target: str = "sh", nodes: int = 1, **sources: str
) -> Plan:
    spec = RunSpec(
        "echo", "resnet50", nodes, 2, "cuda", 128, "fp32", "synthetic", 20, 5, 60.0, options
    )
    hosts = [
        Host(f"gpu{n}", f"10.11.0.{n}", gpus=2, vars={"thing": options.get("value")})
        for n in range(2, 2 + nodes)
    ]
    framework = replace(FRAMEWORK, files=(ConfigFile("launch.sh.j2", "launch.sh", target, 0o700),))
    placement = place(spec, hosts, 20000)
    named = {"launch.sh.j2": template} | {
        name.replace("_", ".", 1): text for name, text in sources.items()
    }
    by_name = {host.name: host for host in hosts}
    return render(
        framework,
        named,
        spec,
        placement,
        by_name,
        run_id="r",
        repeat=1,
        payload={"rank_wrapper.py": "0"},
    )


def planned(
    framework: str, shape: tuple[int, int], device: str = "cuda", model: str = "", **sets: str
) -> Plan:
    """One run of a framework, decided, on nodes of 8 GPUs or 8 CPU slots."""
    folder = opened(framework)
    variables = {"interface": "ib0", "python": "/opt/python"} | {
        name: f"/opt/{name}" for name in folder.framework.requires
    }
    gpus = 8 if device == "cuda" else 0
    hosts = [
        Host(f"node{n}", f"10.11.0.{n + 1}", gpus=gpus, slots=8, vars=variables)
        for n in range(1, shape[0] + 1)
    ]
    options = {key: value for key, value in sets.items() if key in folder.framework.options}
    choices: dict[str, Any] = {"nodes": shape[0], "gpus": shape[1]}
    choices |= {
        key: int(sets[key]) for key in ("steps", "warmup_steps", "batch_size") if key in sets
    }
    choices |= {key: sets[key] for key in ("dtype", "loader") if key in sets}
    spec = resolve(
        folder.framework,
        model or next(iter(folder.framework.models)),
        device=device,
        choices=choices | {f"options.{name}": text for name, text in options.items()},
    )
    return plan_run(folder, spec, hosts, run_id="b1.001", repeat=1, port=20000)


def without_vendors(text: str, plan: Plan) -> str:
    """Return a rendered file with one line in place of those by which a run sees its devices: they
    change with every vendor, golden files with their folder alone.
    """
    for devices in dict.fromkeys(node.slot.devices for node in plan.nodes):
        text = text.replace(show_devices(devices), f"(devices {devices}, for every vendor)\n")
    return text


def file_of(plan: Plan, node: int, path: str = "launch.sh") -> str:
    """A file of a node, each command on one line."""
    content = next(file.content for file in plan.nodes[node].files if file.path == path)
    return re.sub(r" *\\\n *", " ", content)


@cache
def complaint(script: str) -> str:
    """Return what bash says of a script that it reads and does not run, empty if it is sound."""
    done = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.stderr or (f"exit {done.returncode}" if done.returncode else "")
