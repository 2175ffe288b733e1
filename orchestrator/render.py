"""Texts for nodes out of a spec and a placement: `Plan`, with the exact files of every node.

The only home of Jinja2. Templates see the values listed in `_context`, nothing of Python, no files and no environment. Every
value that a template prints is quoted for the kind of file it goes into, so a template writes ``{{ value }}`` bare.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.framework import Framework
from orchestrator.inventory import Host
from orchestrator.spec import RunSpec
from orchestrator.topology import Placement, Slot

__all__ = ["NodePlan", "Plan", "RenderedFile", "payload_path", "render"]

_OUTPUT_LIMIT = 1 << 20
_SPEC_FIELDS = "model nodes gpus batch_size dtype loader steps warmup_steps device world_size global_batch shape"
# Set for every run: numbers and messages that a parser can rely on, output at once, and a hash that is the same on every rank.
_BASE_ENV = {"LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file of one node; ``path`` is relative to the node's run directory."""

    path: str
    content: str
    mode: int


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node gets and runs."""

    slot: Slot
    files: tuple[RenderedFile, ...]
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, decided: id, spec, placement, and for each node the exact files and argv. ``payload`` maps names to SHA-256."""

    run_id: str
    repeat: int
    spec: RunSpec
    placement: Placement
    payload: Mapping[str, str]
    nodes: tuple[NodePlan, ...]


def payload_path(name: str, digest: str) -> str:
    """Return where a payload file lies in a node's work directory: under its digest, so it is sent once and never stale."""
    return f"payload/{digest}/{name}"


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

    Raises ConfigError kind template_error naming template and line.
    """
    nodes = []
    for slot in placement.slots:
        host = hosts[slot.host]
        context = _context(framework, spec, placement, slot, host, run_id, payload)
        files = [RenderedFile("env.sh", env_file(framework, host), 0o600)]
        for file in framework.files:
            text = _render_one(framework, file.template, sources, file.target, context)
            files.append(RenderedFile(file.path, text, file.mode))
        nodes.append(NodePlan(slot, tuple(files), ("/bin/bash", "launch.sh")))
    return Plan(run_id, repeat, spec, placement, dict(payload), tuple(nodes))


def env_file(framework: Framework, host: Host) -> str:
    """Return the shell file with the run's variables: ours, then the framework's, then the host's."""
    values = _BASE_ENV | dict(framework.env) | dict(host.env)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def _context(
    framework: Framework,
    spec: RunSpec,
    placement: Placement,
    slot: Slot,
    host: Host,
    run_id: str,
    payload: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "spec": _fields(
            spec, "model nodes gpus batch_size dtype loader steps warmup_steps device world_size global_batch shape"
        ),
        "dtype_flag": framework.dtype_flag(spec.dtype, spec.device),
        "options": dict(spec.options),
        "node": _fields(slot, "node_rank first_rank nproc host address devices"),
        "master_addr": placement.master_addr,
        "master_port": placement.master_port,
        "addresses": [each.address for each in placement.slots],
        "python": str(host.vars.get("python", "python3")),
        "runner_python": str(host.vars.get("runner_python", "python3")),
        "host_vars": dict(host.vars),
        # Relative, because a launch script runs in runs/<run id> of the work directory, wherever a node has that.
        "payload": {name: f"../../{payload_path(name, digest)}" for name, digest in payload.items()},
        "noderun": f"../../{payload_path('noderun.py', payload['noderun.py'])}",
    }


def _fields(value: Any, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def _render_one(
    framework: Framework, template: str, sources: Mapping[str, str], target: str, context: Mapping[str, Any]
) -> str:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    where = f"{framework.folder}/{template}"
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        loader=jinja2.DictLoader(dict(sources)),
        finalize=_FINALIZE[target],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    try:
        text = environment.get_template(template).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(error.message or "syntax error", kind="template_error", where=f"{where}:{error.lineno}") from error
    except (jinja2.TemplateError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise ConfigError(
            str(error), kind="template_error", where=where, hint="docs/frameworks.md lists the names that a template may read"
        ) from error
    if len(text) > _OUTPUT_LIMIT or "\0" in text or "\r" in text:
        raise ConfigError(
            f"expected up to {_OUTPUT_LIMIT} characters without NUL and carriage return", kind="template_error", where=where
        )
    return text


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _shell(value: Any) -> Any:
    """Quote one printed value; a list becomes its quoted words."""
    if isinstance(value, list | tuple):
        return " ".join(shlex.quote(_word(item)) for item in value)
    return value if _is_undefined(value) else shlex.quote(_word(value))


def _json(value: Any) -> Any:
    return value if _is_undefined(value) else json.dumps(value, ensure_ascii=False)


def _is_undefined(value: Any) -> bool:
    import jinja2

    return isinstance(value, jinja2.Undefined)


# JSON is YAML, so one way of printing a value serves both.
_FINALIZE: Mapping[str, Callable[[Any], Any]] = {"sh": _shell, "json": _json, "yaml": _json}


def folded(nodes: Sequence[NodePlan]) -> list[tuple[tuple[str, ...], RenderedFile]]:
    """Return each distinct file once with the hosts that get it, in order of node_rank."""
    groups: dict[RenderedFile, list[str]] = {}
    for node in nodes:
        for file in node.files:
            groups.setdefault(file, []).append(node.slot.host)
    return [(tuple(hosts), file) for file, hosts in groups.items()]
