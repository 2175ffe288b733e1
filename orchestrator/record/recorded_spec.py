"""Read a spec from a file of a bench. It is checked, because the file may have been edited by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from orchestrator.plan import RunSpec

__all__ = ["spec_of"]


def spec_of(written: Mapping[str, Any], origins: Mapping[str, str]) -> RunSpec:
    """Return the spec recorded in ``written``, with its ``origins``. Raises KeyError or TypeError if a value is missing or
    invalid."""
    names = {field.name for field in fields(RunSpec)} - {"origins", "env"}
    values, env = {name: written[name] for name in names}, written.get("env", {})
    spec = RunSpec(**values, env=env, origins=origins)
    numbers = (spec.nodes, spec.gpus, spec.batch_size, spec.steps, spec.warmup_steps)
    words = (spec.framework, spec.model, spec.device, spec.dtype, spec.loader, *spec.origins.values(), *spec.env.values())
    if not all(type(number) is int for number in numbers) or type(spec.timeout_s) not in (int, float):
        raise TypeError("spec")
    if not all(isinstance(word, str) for word in words) or not isinstance(spec.options, dict):
        raise TypeError("spec")
    return spec
