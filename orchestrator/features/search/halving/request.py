"""From the options of `orch tune` to a request of one cell, and to the parameters that remain free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.plan import Framework, Knob
from orchestrator.plan.request import Request
from orchestrator.plan.words import assignments
from orchestrator.plan.words import shapes as shapes_of
from orchestrator.plan.words import single as single_values

__all__ = ["allows_numerics", "free_knobs", "tune_request"]


def tune_request(
    model: str, *, shape: str, sets: Sequence[str], budget: str, single: Mapping[str, Any]
) -> Request:
    """Return the request made by the options of ``orch tune``: one cell, run once, without a
    baseline. Raises ConfigError.
    """
    shapes = shapes_of(shape)
    if len(shapes) > 1:
        hint = "tune each shape by itself: good settings of one may not suit another"
        raise ConfigError(f"expected one shape, got {shape}", where="--shape", hint=hint)
    given = {name: value for name, value in single.items() if value is not None}
    fixed = single_values(assignments(sets, "--set"), "--set")
    axes = {f"options.{name}": (value,) for name, value in fixed.items()}
    return Request(
        model, shapes=shapes, single=given, axes=axes, repeats=1, budget=budget, baseline=False
    )


def allows_numerics(allow: str) -> bool:
    """Return True if ``--allow`` lets a tune change the computed numbers. Raises ConfigError unless
    it is empty or numerics.
    """
    if allow not in ("", "numerics"):
        raise ConfigError(f"expected numerics, got {allow!r}", where="--allow")
    return bool(allow)


def free_knobs(framework: Framework, request: Request) -> list[Knob]:
    """Return the framework's parameters that the request does not fix. Raises ConfigError if the
    framework has none.
    """
    if not framework.tunes:
        hint = "list them under tunes: in its framework.yaml"
        raise ConfigError(
            f"{framework.name} has no parameters to tune", where="--framework", hint=hint
        )
    fixed = {*request.axes, *request.single}
    return [
        knob for knob in framework.tunes if not {f"options.{knob.option}", knob.multiplies} & fixed
    ]
