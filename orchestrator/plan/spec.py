"""What is measured: `RunSpec`, resolved once from framework defaults, a run file and the command line.

Precedence is framework defaults < run file < command line, and every value records its origin. Facts of the cluster are not
part of a spec; they are in `orchestrator.inventory`. Environment variables belong to the hosts, except those that an experiment
varies: these are part of the spec and take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import nearest
from orchestrator.plan.framework import Framework

__all__ = ["RunSpec", "as_written", "cells", "resolve"]

_COUNTS = {"nodes": 1, "gpus": 1, "batch_size": 1, "steps": 1, "warmup_steps": 0}


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One experiment. ``gpus`` is ranks per node, ``batch_size`` samples per device and step.

    ``env`` holds the variables that this experiment sets on all nodes; they override those of the hosts.
    """

    framework: str
    model: str
    nodes: int
    gpus: int
    device: str
    batch_size: int
    dtype: str
    loader: str
    steps: int
    warmup_steps: int
    timeout_s: float
    options: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def shape(self) -> str:
        """The shape as text, also called case: ``4n8g`` is four nodes with eight ranks each."""
        return f"{self.nodes}n{self.gpus}g"

    def as_dict(self) -> dict[str, Any]:
        """Return the spec for JSON, without origins and without an empty ``env``."""
        values = asdict(self)
        values.pop("origins")
        return values if self.env else {name: value for name, value in values.items() if name != "env"}

    @property
    def settings(self) -> dict[str, Any]:
        """Options and variables by name."""
        return {**self.options, **self.env}


def resolve(
    framework: Framework,
    model: str,
    *,
    device: str,
    choices: Mapping[str, Any],
    run_file: Mapping[str, Any] | None = None,
    sets: Mapping[str, str] | None = None,
) -> RunSpec:
    """Return the spec of one cell. ``choices`` come from the command line, ``sets`` from ``--set``.

    ``choices`` must hold ``nodes`` and ``gpus``; any other value that is None or missing falls back to the run file, then to
    the framework. Raises ConfigError for a model, type, loader, option or number that the framework does not support.
    """
    file_values = dict(run_file or {})
    _check_fixed(framework, {**file_values, **choices})
    if model not in framework.models:
        raise ConfigError(
            f"{framework.name} has no model {model!r}",
            where="model",
            hint=f"it has {', '.join(framework.models)}{nearest(model, framework.models)}",
        )
    values: dict[str, Any] = {}
    origins: dict[str, str] = {"model": "command line", "framework": "command line"}
    for key in ("nodes", "gpus", "batch_size", "dtype", "loader", "steps", "warmup_steps", "timeout_s"):
        if choices.get(key) is not None:
            values[key], origins[key] = choices[key], choices.get(f"{key}_origin", "command line")
        elif key in file_values:
            values[key], origins[key] = file_values[key], "run file"
        else:
            values[key], origins[key] = framework.default(key, device)
    _check_numbers(values)
    if values["loader"] not in framework.loaders:
        raise ConfigError(
            f"expected one of {', '.join(framework.loaders)} for {framework.name}, got {values['loader']!r}", where="--loader"
        )
    framework.dtype_flag(values["dtype"], device)
    options = _options(framework, device, file_values.get("options", {}), sets or {}, origins)
    return RunSpec(framework=framework.name, model=model, device=device, options=options, origins=origins, **values)


def _check_fixed(framework: Framework, choices: Mapping[str, Any]) -> None:
    for key in framework.measure.fixed:
        if choices.get(key) is not None:
            message = f"{framework.name} measures {framework.measure.noun} and takes no such value, got {choices[key]!r}"
            raise ConfigError(message, where=f"--{key.replace('_', '-')}", hint="leave it out")


def _check_numbers(values: Mapping[str, Any]) -> None:
    for key, least in _COUNTS.items():
        if not isinstance(values[key], int) or isinstance(values[key], bool) or values[key] < least:
            raise ConfigError(f"expected a whole number ≥ {least}, got {values[key]!r}", where=f"--{key.replace('_', '-')}")
    if values["steps"] <= values["warmup_steps"]:
        raise ConfigError(
            f"expected more steps than the {values['warmup_steps']} warm-up steps, got {values['steps']}",
            where="--steps",
            hint="--steps includes the warm-up; the steps after it are measured",
        )
    timeout_s = values["timeout_s"]
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not 0 < timeout_s < float("inf"):
        raise ConfigError(f"expected seconds above 0, got {values['timeout_s']!r}", where="--timeout")


def _options(
    framework: Framework, device: str, from_file: Mapping[str, Any], sets: Mapping[str, str], origins: dict[str, str]
) -> dict[str, Any]:
    for name in (*from_file, *sets):
        if name not in framework.options:
            raise ConfigError(
                f"{framework.name} has no option {name!r}",
                where=f"--set {name}",
                hint=f"it has {', '.join(f'{k}={o.default}' for k, o in framework.options.items())}"
                f"{nearest(name, framework.options)}",
            )
    values = {}
    for name, option in framework.options.items():
        if name in sets:
            values[name], origin = option.parse(name, sets[name]), "command line"
        elif name in from_file:
            values[name], origin = option.parse(name, str(from_file[name])), "run file"
        elif device in option.device_default:
            values[name], origin = option.device_default[device], f"{framework.name} default on {device}"
        else:
            values[name], origin = option.default, f"{framework.name} default"
        origins[f"options.{name}"] = origin
    return values


def cells(axes: Mapping[str, Sequence[Any]], shapes: Sequence[tuple[int, int]]) -> tuple[dict[str, Any], ...]:
    """Return every combination of the axes with every (nodes, gpus) shape, in the given order; shapes vary fastest.

    >>> cells({"dtype": ["fp32", "fp16"]}, [(1, 1), (4, 8)])[1]
    {'dtype': 'fp32', 'nodes': 4, 'gpus': 8}
    """
    names = list(axes)
    combinations = product(*(axes[name] for name in names))
    return tuple(
        dict(zip(names, values, strict=True)) | {"nodes": nodes, "gpus": gpus}
        for values in combinations
        for nodes, gpus in shapes
    )


def as_written(value: Any) -> str:
    """Return an option's value as it is written for ``--set``."""
    return str(value).lower() if isinstance(value, bool) else str(value)
