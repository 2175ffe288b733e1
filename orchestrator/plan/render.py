"""Texts for nodes out of a spec and a placement: `Plan`, with the exact files of every node.

Templates see the values listed in `_context` and nothing else; `orchestrator.plan.sandbox` renders them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host, secret_values
from orchestrator.plan.framework import Framework, payload_digest, payload_path
from orchestrator.plan.placement import Placement, Slot
from orchestrator.plan.sandbox import HostVariables, rendered
from orchestrator.plan.spec import RunSpec

__all__ = ["NodePlan", "Plan", "RenderedFile", "render", "without_secrets"]

# Set for every run: numbers and messages that a parser can rely on, output at once, and a hash that is the same on every rank.
_BASE_ENV = {"LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
_VARIABLES = "env.sh"
_WAITING = """\
#!/bin/bash
# The launcher of the first node starts what runs here; this script waits until the controller says that the run is over.
trap 'exit 0' TERM
sleep infinity &
wait
"""


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file of one node; ``path`` is relative to the node's run directory."""

    path: str
    content: str
    mode: int


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node gets and runs, and the ports it must have free."""

    slot: Slot
    files: tuple[RenderedFile, ...]
    argv: tuple[str, ...]
    ports: tuple[int, ...] = ()

    @property
    def staged(self) -> tuple[RenderedFile, ...]:
        """The files that are on the node before its keeper is: all but the variables."""
        return tuple(file for file in self.files if file.path != _VARIABLES)

    @property
    def variables(self) -> str:
        """The file of variables, secrets among them. The keeper writes it, and removes it when it goes."""
        return next(file.content for file in self.files if file.path == _VARIABLES)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, decided: id, spec, placement, and for each node the exact files and argv. ``payload`` maps names to SHA-256.

    ``launch``: where it is ``first_node``, the other nodes only wait, and end when the first has.
    """

    run_id: str
    repeat: int
    spec: RunSpec
    placement: Placement
    payload: Mapping[str, str]
    nodes: tuple[NodePlan, ...]
    launch: str = "every_node"


def render(
    framework: Framework,
    sources: Mapping[str, str],
    spec: RunSpec,
    placement: Placement,
    hosts: Mapping[str, Host],
    *,
    run_id: str,
    repeat: int,
    payload: Mapping[str, str],
) -> Plan:
    """Render every node's files. ``sources`` maps template names to texts, ``payload`` names of sent files to digests.

    Raises ConfigError kind template_error naming template and line, ConfigError for what the folder refuses or a host lacks.
    """
    launch = framework.launch_style(spec.options)
    nodes = []
    for slot in placement.slots:
        host = hosts[slot.host]
        _check_requirements(framework, host)
        context = _context(framework, spec, placement, slot, host, run_id, payload)
        files = [RenderedFile(_VARIABLES, env_file(framework, host, spec.env), 0o600)]
        if launch == "first_node" and slot.node_rank > 0:
            files.append(RenderedFile("launch.sh", _WAITING, 0o700))
        else:
            for file in framework.files:
                text = rendered(file.template, sources, file.target, context, folder=framework.folder)
                files.append(RenderedFile(file.path, text, file.mode))
        ports = framework.ports_of(slot.node_rank, slot.nproc, placement.master_port)
        nodes.append(NodePlan(slot, tuple(files), ("/bin/bash", "launch.sh"), ports))
    return Plan(run_id, repeat, spec, placement, dict(payload), tuple(nodes), launch)


def env_file(framework: Framework, host: Host, chosen: Mapping[str, str]) -> str:
    """Return the shell file with the run's variables: ours, the framework's, the host's, then those of the experiment."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in _environment(framework, host, chosen).items())


def _environment(framework: Framework, host: Host, chosen: Mapping[str, str]) -> dict[str, str]:
    return _BASE_ENV | dict(framework.env) | dict(host.env) | dict(chosen)


def _check_requirements(framework: Framework, host: Host) -> None:
    for name, holds in framework.requires.items():
        if not host.vars.get(name):
            hint = f"it is the folder on the node that holds {holds}"
            raise ConfigError(f"{framework.name} needs it, it is not set", where=f"vars.{name} of host {host.name}", hint=hint)


def _refusal(framework: Framework) -> Callable[[str, str], None]:
    def refuse(where: str, message: str) -> None:
        raise ConfigError(f"{framework.name}: {message}", where=where)

    return refuse


def _context(
    framework: Framework,
    spec: RunSpec,
    placement: Placement,
    slot: Slot,
    host: Host,
    run_id: str,
    payload: Mapping[str, str],
) -> dict[str, Any]:
    variables = HostVariables(host.name, host.vars)
    payload_set = payload_digest(payload)
    return {
        "run_id": run_id,
        "spec": _fields(
            spec, "model nodes gpus batch_size dtype loader steps warmup_steps device world_size global_batch shape"
        ),
        "model": framework.models[spec.model],
        "dtype_flag": framework.dtype_flag(spec.dtype, spec.device),
        "options": dict(spec.options),
        "node": _fields(slot, "node_rank first_rank nproc host address devices"),
        "master_addr": placement.master_addr,
        "master_port": placement.master_port,
        "addresses": [other.address for other in placement.slots],
        "python": variables.get("python", "python3"),
        "runner_python": variables.get("runner_python", "python3"),
        "host_vars": variables,
        # What a launcher has to hand on to the processes that it starts on other nodes.
        "env_names": [*_environment(framework, host, spec.env), "ORCH_RUN_ID"],
        "refuse": _refusal(framework),
        # Relative, because a launch script runs in runs/<run id> of the work directory, wherever a node has that.
        "payload": {name: f"../../{payload_path(name, payload_set)}" for name in payload},
        "rank_wrapper": f"../../{payload_path('rank_wrapper.py', payload_set)}",
    }


def _fields(value: Any, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def without_secrets(plan: Plan, hosts: Sequence[Host], names: Sequence[str]) -> Plan:
    """Return the plan as it may be shown and kept: the values of these variables of the hosts' environment are not in it."""
    values = secret_values(hosts, names)

    def cleaned(file: RenderedFile) -> RenderedFile:
        text = file.content
        for value in sorted(values, key=len, reverse=True):
            text = text.replace(shlex.quote(value), "'(not shown)'").replace(value, "(not shown)")
        return replace(file, content=text)

    if not values:
        return plan
    return replace(plan, nodes=tuple(replace(node, files=tuple(map(cleaned, node.files))) for node in plan.nodes))


def folded(nodes: Sequence[NodePlan]) -> list[tuple[tuple[str, ...], RenderedFile]]:
    """Return each distinct file once with the hosts that get it, in order of node_rank."""
    groups: dict[RenderedFile, list[str]] = {}
    for node in nodes:
        for file in node.files:
            groups.setdefault(file, []).append(node.slot.host)
    return [(tuple(hosts), file) for file, hosts in groups.items()]
