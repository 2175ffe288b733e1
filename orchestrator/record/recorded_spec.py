"""Read a spec from a file of a bench. It is checked, because the file may have been edited by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from orchestrator.plan import RunSpec
from orchestrator.plan.scaling import Step
from orchestrator.plan.transformer import RECOMPUTATIONS

__all__ = ["spec_of"]

_LATER = ("follows", "container", "cpu_binding")
"""Choices that a spec written by an earlier version does not have, as one for which they say
nothing.
"""


def spec_of(written: Mapping[str, Any], origins: Mapping[str, str]) -> RunSpec:
    """Return the spec recorded in ``written``, with its ``origins``. Raises KeyError or TypeError
    if a value is missing or invalid."""
    names = {field.name for field in fields(RunSpec)} - {"origins", "env", "step", "hosts", *_LATER}
    values, env = {name: written[name] for name in names}, written.get("env", {})
    later = {name: written.get(name, "") for name in _LATER}
    hosts = written.get("hosts", ())
    if not isinstance(hosts, (list, tuple)):
        raise TypeError("spec.hosts")
    spec = RunSpec(
        **values,
        **later,
        env=env,
        origins=origins,
        step=_step(written.get("step", {})),
        hosts=tuple(hosts),
    )
    numbers = (spec.nodes, spec.gpus, spec.batch_size, spec.steps, spec.warmup_steps)
    words = (
        spec.framework,
        spec.model,
        spec.device,
        spec.dtype,
        spec.loader,
        *spec.origins.values(),
        *spec.env.values(),
        spec.container,
        spec.cpu_binding,
        *spec.hosts,
    )
    if not all(type(number) is int for number in numbers) or type(spec.timeout_s) not in (
        int,
        float,
    ):
        raise TypeError("spec")
    if not all(isinstance(word, str) for word in words) or not isinstance(spec.options, dict):
        raise TypeError("spec")
    followers = {"", "batch_size", *(f"options.{name}" for name in spec.options)}
    if spec.world_size % spec.step.model_ranks or spec.follows not in followers:
        raise TypeError("spec.step")
    return spec


def _step(written: Mapping[str, Any]) -> Step:
    step = Step(**written)
    counts = (
        (step.tokens, 0),
        (step.micro_batches, 1),
        (step.model_ranks, 1),
        (step.batch_size_up_to, 0),
    )
    if (
        not all(type(number) is int and number >= least for number, least in counts)
        or step.recomputation not in RECOMPUTATIONS
    ):
        raise TypeError("spec.step")
    return step
