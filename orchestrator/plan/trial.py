"""A framework folder tried on machines that do not exist: every shape, type and choice rendered,
before there is an inventory.

>>> from orchestrator.plan.folders import open_framework
>>> [trial.name for trial in trials(open_framework("pairs"))][:2]
['1n1g cuda fp32', '1n2g cuda fp32']
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.plan.bench import plan_run
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.option_values import as_written
from orchestrator.plan.render import RenderedFile, fold_files
from orchestrator.plan.sandbox import check_syntax
from orchestrator.plan.spec import resolve

SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2))
"""The nodes and ranks per node that are tried."""
_VARIABLE = re.compile(r"""\bhost_vars(?:\.([A-Za-z_]\w*)|\[\s*['"]([^'"]+)['"]\s*\])""")


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration of a folder, rendered for made-up hosts.

    ``files`` are the distinct files, each with its hosts; ``refused`` are the words in which the
    folder refuses this configuration, ``error`` is the error of a template. ``option`` is the
    option that differs from its default, as written.
    """

    shape: str
    device: str
    dtype: str
    option: str = ""
    files: tuple[tuple[tuple[str, ...], RenderedFile], ...] = field(default=(), repr=False)
    refused: str = ""
    error: ConfigError | None = None

    @property
    def name(self) -> str:
        """The configuration in words."""
        return " ".join(filter(None, (self.shape, self.device, self.dtype, self.option)))


def trials(folder: FrameworkFolder) -> Iterator[Trial]:
    """Yield a trial of every shape with every type of every device, and of every choice of every
    option.
    """
    framework = folder.framework
    for device, types in framework.dtypes.items():
        for dtype in types:
            for shape in SHAPES:
                yield _trial(folder, device, dtype, shape, {})
        for name, option in framework.options.items():
            values = option.choices or ((False, True) if option.type == "bool" else ())
            for value in values:
                if value != option.default:
                    yield _trial(
                        folder, device, next(iter(types)), SHAPES[-1], {name: as_written(value)}
                    )


def _trial(
    folder: FrameworkFolder,
    device: str,
    dtype: str,
    shape: tuple[int, int],
    sets: Mapping[str, str],
) -> Trial:
    framework, (nodes, gpus) = folder.framework, shape
    option = "".join(f"{name}={value}" for name, value in sets.items())
    trial = Trial(f"{nodes}n{gpus}g", device, dtype, option)
    choices: dict[str, Any] = {"nodes": nodes, "gpus": gpus, "dtype": dtype}
    choices |= {f"options.{name}": value for name, value in sets.items()}
    try:
        spec = resolve(framework, next(iter(framework.models)), device=device, choices=choices)
        hosts = _hosts(folder, device, nodes, SHAPES[-1][1])
        plan = plan_run(folder, spec, hosts, run_id="check")
    except ConfigError as error:
        is_of_template = error.kind == "template_error"
        if is_of_template:
            return replace(trial, error=error)
        return replace(trial, refused=str(error))
    return replace(trial, files=tuple(fold_files(plan.nodes)))


def find_refusal(
    folder: FrameworkFolder,
    model: str,
    device: str,
    choice: Mapping[str, Any],
    shape: tuple[int, int],
) -> ConfigError | None:
    """Return why a configuration is possible on no hosts; None if it is on some. ``choice`` holds
    its values by name, as in a run file. A shape that it leaves open, or that is larger than
    ``shape``, may be this one or one of `SHAPES`. An error that names no option, nor the model, is
    about hosts or templates, and says nothing of the choice."""
    devices = [
        name
        for name, types in folder.framework.dtypes.items()
        if choice.get("dtype") in (None, *types)
    ]
    device = device if device in devices else next(iter(devices), device)
    sizes = (choice.get("nodes", 1), choice.get("gpus", 1))
    if any(size > most for size, most in zip(sizes, shape, strict=True)):
        choice = {name: value for name, value in choice.items() if name not in ("nodes", "gpus")}
    errors = []
    for nodes, gpus in (shape, *SHAPES):
        whole = {"nodes": nodes, "gpus": gpus, **choice}
        try:
            spec = resolve(folder.framework, model, device=device, choices=whole)
            plan_run(folder, spec, _hosts(folder, device, spec.nodes, spec.gpus))
        except ConfigError as error:
            if error.where != "model" and not error.where.startswith("--"):
                return None
            errors.append(error)
        else:
            return None
    return errors[0]


def _hosts(folder: FrameworkFolder, device: str, nodes: int, ranks: int) -> list[Host]:
    return [_host(folder, device, number, ranks) for number in range(1, nodes + 1)]


def _host(folder: FrameworkFolder, device: str, number: int, ranks: int) -> Host:
    usual = {"interface": "eth0", "python": "/opt/python/bin/python3", "data_dir": "/data"}
    needed = {
        name: f"/opt/{name}"
        for name in (*folder.framework.requires, *read_variables(folder))
        if name not in usual
    }
    needed.pop("cuda_visible_devices", None)
    gpus = ranks if device == "cuda" else 0
    return Host(f"node{number}", f"10.0.0.{number}", gpus=gpus, slots=ranks, vars=usual | needed)


def read_variables(folder: FrameworkFolder) -> tuple[str, ...]:
    """Return the names in ``vars`` of a host that the templates read."""
    names = {
        match[1] or match[2]
        for source in folder.sources.values()
        for match in _VARIABLE.finditer(source)
    }
    return tuple(sorted(names))


def unread_options(folder: FrameworkFolder) -> tuple[str, ...]:
    """Return the options that no template reads, so that setting them changes nothing. A template
    that reads the global batch reads the micro-batches of a step; ``threads`` are in env.sh."""
    text = "\n".join(folder.sources.values())
    if re.search(r"\boptions\b(?!\s*[.\[]\s*['\"]?\w)", text):  # all of them at once
        return ()
    read = {
        "threads",
        *(match[1] for match in re.finditer(r"""\boptions\s*[.\[]\s*['"]?(\w+)""", text)),
    }
    if folder.framework.step and re.search(r"\bspec\.global_batch\b", text):
        read.add(folder.framework.step.micro_batches)
    return tuple(name for name in folder.framework.options if name not in read)


def syntax_errors(sources: Mapping[str, str], where: str) -> list[ConfigError]:
    """Return the syntax error of each template of a folder that has one; ``where`` is the path of
    the folder.
    """
    errors = [check_syntax(name, source, where) for name, source in sources.items()]
    return [error for error in errors if error]
