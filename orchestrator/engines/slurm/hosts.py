"""The hosts of a Slurm job as an inventory file in orch's own format.

A file, because what a bench was planned with has to be readable when the job is over. It stands on
the project's inventory, where that one lists the hosts, and adds what belongs to the job: which
devices, and through which job `srun` reaches them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.engines.slurm.client import Job
from orchestrator.errors import ConfigError
from orchestrator.inventory import expand, fold

SOURCES: Mapping[str, str] = {"slurm": "ssh", "srun": "srun"}
"""The sources that stand for the hosts of a job, and the transport of each."""


def names_of(job: Job) -> list[str]:
    """Return the hosts of a job that has begun.

    Raises ConfigError if it waits, if its hosts are gone, or if it has several parts, such as a
    heterogeneous job, with hosts, GPUs and steps of their own.
    """
    where = f"Slurm's job {job.id}"
    if job.components:
        parts = ", ".join(job.components[:8])
        hint = (
            f"name a part that Slurm shows alone, as in --hosts slurm:{job.components[-1]}, "
            "or its hosts: --hosts node1,node2"
        )
        raise ConfigError(
            f"expected a job of one part, got a heterogeneous job or an array: {parts}",
            where=where,
            hint=hint,
        )
    if job.state != "RUNNING" or not job.nodes:
        reason = f" ({job.reason})" if job.reason else ""
        raise ConfigError(
            f"expected a running job, got one in state {job.state}{reason}", where=where
        )
    return expand(job.nodes)


def inventory_text(job: Job, transport: str, base: str, devices: Mapping[str, str]) -> str:
    """Return the inventory of a job's hosts; ``base`` is the inventory that lists them, empty
    without one.

    ``devices`` are the numbers of the GPUs by host, where they are known better than from the job's
    record. A host without GPUs in the job is measured on its CPU, with a rank for each task of a
    node, unless ``base`` says what it has.
    """
    by_host = {
        name: (devices.get(name, numbers), count)
        for nodes, numbers, count in job.devices
        for name in expand(nodes)
    }
    same: dict[str, list[str]] = {}
    for name in names_of(job):
        settings: dict[str, Any] = {"vars": {"slurm_job": job.id}}
        numbers, count = by_host.get(name, ("", 0))
        if transport != "ssh":
            settings["transport"] = transport
        if count:
            settings["gpus"] = count
        elif not base:
            settings |= {"gpus": 0, "slots": job.tasks_per_node}
        if numbers:
            settings["vars"]["cuda_visible_devices"] = numbers
        same.setdefault(json.dumps(settings), []).append(name)
    head = f"# Written by orch: the hosts of Slurm's job {job.id}, and what the job has of them.\nschema: 1\n"
    base_line = f"base: {json.dumps(base)}\n" if base else ""
    hosts = "".join(
        f"  {json.dumps(fold(names))}: {settings}\n" for settings, names in same.items()
    )
    return f"{head}{base_line}hosts:\n{hosts}"
