"""Plans rendered from a template that is given as text."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache
from typing import Any

from orchestrator.inventory.hosts import Host
from orchestrator.logs.grammar import LogGrammar
from orchestrator.plan.folders import open_framework
from orchestrator.plan.framework import ConfigFile, Framework
from orchestrator.plan.placement import place
from orchestrator.plan.render import Plan, render
from orchestrator.plan.spec import RunSpec

FRAMEWORK = Framework(
    name="echo", title="echo", folder="templates/echo", digest="0" * 64, launch="every_node", batch_size_is="device",
    models={"resnet50": {}}, dtypes={"cuda": {"fp32": "float"}}, loaders=("synthetic",), defaults={}, device_defaults={},
    options={}, env={}, files=(ConfigFile("launch.sh.j2", "launch.sh", "sh", 0o700),), payload=(), probe="",
    log=LogGrammar(files=("rank-0.out",), patterns=()),
)  # fmt: skip

opened = cache(open_framework)
"""A framework folder of the project, read once."""


def rendered(template: str, options: dict[str, Any], *, target: str = "sh", nodes: int = 1, **sources: str) -> Plan:
    spec = RunSpec("echo", "resnet50", nodes, 2, "cuda", 128, "fp32", "synthetic", 20, 5, 60.0, options)
    hosts = [Host(f"gpu{n}", f"10.11.0.{n}", gpus=2, vars={"thing": options.get("value")}) for n in range(2, 2 + nodes)]
    framework = replace(FRAMEWORK, files=(ConfigFile("launch.sh.j2", "launch.sh", target, 0o700),))
    placement = place(spec, hosts, 20000)
    named = {"launch.sh.j2": template} | {name.replace("_", ".", 1): text for name, text in sources.items()}
    by_name = {host.name: host for host in hosts}
    return render(framework, named, spec, placement, by_name, run_id="r", repeat=1, payload={"rank_wrapper.py": "0"})


@cache
def complaint(script: str) -> str:
    """Return what bash says of a script that it reads and does not run, empty if it is sound."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30, check=False)
    return done.stderr or (f"exit {done.returncode}" if done.returncode else "")
