"""CPU binding of ranks: the choices, and the file that tells the wrapper of each rank.

The node selects the CPUs (`remote/noderun/binding.py`): only it knows its NUMA nodes, cores and the
places of its GPUs. Other launchers call it ``--cpu-bind`` (srun), ``--bind-to`` (mpirun) and
``--numa-binding`` (torchrun).
"""

from __future__ import annotations

import json

from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory import Host
from orchestrator.plural import join_words

BINDINGS = ("none", "numa", "cores")
"""none: all CPUs of the node; numa: the CPUs of the rank's GPU's NUMA node; cores: the rank's own
share of these.
"""
BINDING_FILE = "cpu_binding.json"


def check_binding(value: object, where: str) -> None:
    """Raise ConfigError for a binding that does not exist."""
    if value not in BINDINGS:
        raise ConfigError(
            f"expected {join_words(BINDINGS, 'or')}, got {value!r}",
            where=where,
            hint=nearest(str(value), BINDINGS).removeprefix("; "),
        )


def binding_of(host: Host, choice: str) -> str:
    """Return how ranks on a host are bound: ``choice`` of the spec, else ``vars.cpu_binding``;
    empty for not at all.
    """
    value = choice or host.vars.get("cpu_binding") or "none"
    check_binding(value, "--cpu-binding" if choice else f"vars.cpu_binding of host {host.name}")
    return "" if value == "none" else str(value)


def binding_text(binding: str, ranks: int, devices: str) -> str:
    """Return the file for one node. ``devices`` are in the format of CUDA_VISIBLE_DEVICES, empty
    without GPUs.

    >>> binding_text("numa", 2, "0,3")
    '{"binding": "numa", "ranks": 2, "devices": ["0", "3"]}\\n'
    """
    return (
        json.dumps(
            {"binding": binding, "ranks": ranks, "devices": devices.split(",") if devices else []}
        )
        + "\n"
    )
