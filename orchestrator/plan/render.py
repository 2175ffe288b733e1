"""Render a spec and a placement into a `Plan` with the exact files of every node.

Templates see only the values listed in `_context`; `orchestrator.plan.sandbox` renders them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.devices.vendor import show_devices
from orchestrator.errors import ConfigError, nearest
from orchestrator.grouping import group_pairs
from orchestrator.inventory import Host, Redaction
from orchestrator.inventory.reserved import RESERVED
from orchestrator.logs import SETUP_LOG
from orchestrator.plan.binding import BINDING_FILE, binding_of, binding_text
from orchestrator.plan.containers import (
    INSIDE,
    RECORD,
    SCRIPT,
    Container,
    container_name,
    container_of,
    inside,
)
from orchestrator.plan.environment import env_file, setup_lines, variables
from orchestrator.plan.framework import Framework, payload_digest, payload_path, run_path
from orchestrator.plan.placement import Placement, Slot
from orchestrator.plan.sandbox import HostVariables, command, render_text
from orchestrator.plan.spec import RunSpec

_VARIABLES = "env.sh"
# An assignment, or a removal by unset, env -u or export -n. `-x ORCH_RUN_ID`, which passes the
# variable on, is neither.
_CHANGES_IDENTITY = re.compile(
    rf"(?<![\w$-])(?P<set>{RESERVED}\w+)\+?=|\b(?:unset|env\b[^|;&]*\s-u|export\s+-n)\b[^|;&]*?\s?(?P<unset>{RESERVED}\w+)"
)
_WAITING = """\
#!/bin/bash
# The launcher on the first node starts the processes on this node; this script waits until the controller ends the run.
# They start in the first node's directory of the run. Where nodes share no work directory, that is this one.
mkdir -p ../../../{first}/runs
[ -e ../../../{first}/runs/{run_id} ] || ln -s "$PWD" ../../../{first}/runs/{run_id}
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
    """The files and the command of one node, and the ports that must be free on it."""

    slot: Slot
    files: tuple[RenderedFile, ...]
    argv: tuple[str, ...]
    ports: tuple[int, ...] = ()

    @property
    def staged(self) -> tuple[RenderedFile, ...]:
        """The files written before the node's supervisor starts: all except the variables."""
        return tuple(file for file in self.files if file.path != _VARIABLES)

    @property
    def variables(self) -> str:
        """The file of variables, including secrets. The supervisor writes it, and removes it when
        it exits.
        """
        return next(file.content for file in self.files if file.path == _VARIABLES)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run: id, spec, placement, and for each node the exact files and argv.
    ``payload`` maps names to SHA-256.

    With ``launch`` = ``first_node`` the other nodes only wait, and end after the first node has.
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
    """Render every node's files. ``sources`` maps template names to texts, ``payload`` names of
    sent files to digests.

    Raises ConfigError of kind template_error naming template and line, and ConfigError if a
    template refuses the spec or a host variable is missing.
    """
    launch = framework.launch_style(spec.options)
    nodes = []
    for slot in placement.slots:
        host = hosts[slot.host]
        _check_requirements(framework, host)
        setup = "\n".join(setup_lines(framework, host))
        _check_identity(setup, setup, f"setup of {framework.name} and host {host.name}")
        container = container_of(host, spec.container, with_data=spec.loader != "synthetic")
        if container:
            _check_launch_style(framework, launch, container)
        seen_inside = inside(host, container)
        context = _context(framework, spec, placement, slot, seen_inside, run_id, payload)
        variables_text = INSIDE if container else ""
        threads = spec.options.get("threads", 1)
        threads = threads if isinstance(threads, int) else 1
        variables_text += env_file(
            framework, seen_inside, spec.env, f"logs/{SETUP_LOG}", threads=threads
        )
        variables_text += show_devices(slot.devices) if spec.device == "cuda" else ""
        files = [RenderedFile(_VARIABLES, variables_text, 0o600)]
        files += _binding_files(framework, sources, spec, host, slot)
        if launch == "first_node" and slot.node_rank > 0:
            waiting = _WAITING.format(first=placement.slots[0].host, run_id=run_id)
            files.append(RenderedFile("launch.sh", waiting, 0o700))
        else:
            for file in framework.files:
                text = render_text(
                    file.template, sources, file.target, context, folder=framework.folder
                )
                if file.target == "sh":
                    _check_identity(
                        text, sources[file.template], f"{framework.folder}/{file.template}"
                    )
                files.append(RenderedFile(file.path, text, file.mode))
        argv: tuple[str, ...] = ("/bin/bash", "launch.sh")
        if container:
            files += _container_files(container, run_id, slot)
            argv = ("/bin/bash", SCRIPT, "bash", "launch.sh")
        ports = framework.ports_of(slot.node_rank, slot.nproc, placement.master_port)
        nodes.append(NodePlan(slot, tuple(files), argv, ports))
    return Plan(run_id, repeat, spec, placement, dict(payload), tuple(nodes), launch)


def _check_requirements(framework: Framework, host: Host) -> None:
    for name, content in framework.requires.items():
        if not host.vars.get(name):
            message = f"expected a folder, which {framework.name} requires, got nothing"
            hint = f"set it to the folder on the node that contains {content}{nearest(name, host.vars)}"
            raise ConfigError(message, where=f"vars.{name} of host {host.name}", hint=hint)


def _check_launch_style(framework: Framework, launch: str, container: Container) -> None:
    if launch == "first_node":
        message = f"expected no container for {framework.name}, whose launcher starts processes on other nodes, outside of it"
        hint = f"got {container.description}; run it on the hosts with --container none"
        raise ConfigError(message, where="container", hint=hint)


def _binding_files(
    framework: Framework, sources: Mapping[str, str], spec: RunSpec, host: Host, slot: Slot
) -> list[RenderedFile]:
    """Return the file from which the wrapper of each rank binds it to CPUs; none without a binding.

    A folder whose ranks start without the wrapper cannot have one: refused if the spec demands it,
    else without effect.
    """
    binding = binding_of(host, spec.cpu_binding)
    if not binding:
        return []
    if not any("rank_wrapper" in sources[file.template] for file in framework.files):
        if spec.cpu_binding:
            message = (
                f"{framework.name} starts its ranks without the wrapper that binds them to CPUs"
            )
            raise ConfigError(
                message,
                where="--cpu-binding",
                hint="leave it out; the program's own launcher may have such an option",
            )
        return []
    return [
        RenderedFile(
            BINDING_FILE,
            binding_text(binding, slot.nproc, slot.devices if spec.device == "cuda" else ""),
            0o600,
        )
    ]


def _container_files(container: Container, run_id: str, slot: Slot) -> list[RenderedFile]:
    """Return the script that starts the container of a node, and the record of an object for its
    supervisor.
    """
    name, labels = (
        container_name(run_id, slot.node_rank),
        {"orch.run": run_id, "orch.node_rank": str(slot.node_rank)},
    )
    variables = {"ORCH_RUN_ID": run_id, "ORCH_NODE_RANK": str(slot.node_rank)}
    files = [RenderedFile(SCRIPT, container.script(name, labels, variables), 0o700)]
    if container.is_object:
        return [*files, RenderedFile(RECORD, container.record(name, labels), 0o600)]
    return files


def _check_identity(text: str, source: str, template: str) -> None:
    """Refuse a script, rendered from ``source``, that sets or removes a variable that identifies a
    run to orch.
    """
    change = next(filter(None, map(_change_of_identity, text.splitlines())), None)
    if change:
        number = next(
            (at for at, line in enumerate(source.splitlines(), 1) if _change_of_identity(line)),
            None,
        )
        raise ConfigError(
            f"expected no change of {change['set'] or change['unset']}, because orch identifies the processes of a run by it",
            kind="template_error",
            where=f"{template}:{number}" if number else template,
            hint="use another name for a variable of your own",
        )


def _change_of_identity(line: str) -> re.Match[str] | None:
    if line.lstrip().startswith("#"):
        return None
    return _CHANGES_IDENTITY.search(line)


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
    host_vars = HostVariables(host.name, host.vars)
    payload_set = payload_digest(payload)
    addresses = [other.address for other in placement.slots]
    return {
        "run_id": run_id,
        "spec": _fields(
            spec,
            "model nodes gpus batch_size dtype loader steps warmup_steps device world_size global_batch shape",
        ),
        "model": _model(framework, spec.model),
        "dtype_flag": framework.dtype_flag(spec.dtype, spec.device),
        "options": dict(spec.options),
        "node": _fields(slot, "node_rank first_rank nproc host address devices"),
        "master_addr": placement.master_addr,
        "master_port": placement.master_port,
        "addresses": addresses,
        "url_hosts": [f"[{one}]" if ":" in one else one for one in addresses],
        "python": command(host.python),
        "runner_python": command(host.runner_python),
        "host_vars": host_vars,
        # The variables that a launcher must pass to the processes it starts on other nodes.
        "env_names": [*variables(framework, host, spec.env), "ORCH_RUN_ID"],
        "refuse": _refusal(framework),
        # Relative to the run's directory, because the path of the work directory differs between
        # nodes.
        "payload": {name: _from_run(payload_path(name, payload_set)) for name in payload},
        "rank_wrapper": _from_run(payload_path("rank_wrapper.py", payload_set)),
    }


def _model(framework: Framework, name: str) -> dict[str, Any]:
    """Return a model as its folder declares it, with all sizes of a language model."""
    transformer = framework.transformer(name)
    return {
        **framework.models[name],
        **({"transformer": asdict(transformer)} if transformer else {}),
    }


def _from_run(path: str) -> str:
    """Return a path in the work directory relative to the directory of a run, where launch scripts
    start.
    """
    return "../" * len(run_path("host", "run").split("/")) + path


def _fields(value: Any, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def without_secrets(plan: Plan, redaction: Redaction) -> Plan:
    """Return the plan for display and storage, without secret values in the files."""

    def clean(node: NodePlan) -> NodePlan:
        return replace(
            node,
            files=tuple(replace(file, content=redaction.text(file.content)) for file in node.files),
        )

    return replace(plan, nodes=tuple(map(clean, plan.nodes)))


def fold_files(nodes: Sequence[NodePlan]) -> list[tuple[tuple[str, ...], RenderedFile]]:
    """Return each distinct file once, with the hosts that receive it in order of node_rank."""
    groups = group_pairs((file, node.slot.host) for node in nodes for file in node.files)
    return [(tuple(hosts), file) for file, hosts in groups.items()]
