"""Read a spec from a file of a bench. It is checked, because the file may have been edited by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.documents import Invalid, read, strict_reader
from orchestrator.plan import RunSpec
from orchestrator.plan.scaling import Step
from orchestrator.plan.transformer import RECOMPUTATIONS

_LEAST = {"tokens": 0, "micro_batches": 1, "model_ranks": 1, "batch_size_up_to": 0}


def spec_of(written: Mapping[str, Any], origins: Mapping[str, str]) -> RunSpec:
    """Return the spec recorded in ``written``, with its ``origins``. Raises Invalid."""
    step = strict_reader(Step)(written.get("step", {}))
    spec = read(RunSpec, {**written, "origins": dict(origins), "step": step})
    if any(getattr(step, name) < least for name, least in _LEAST.items()):
        raise Invalid("expected counts that a step can have", "step")
    if step.recomputation not in RECOMPUTATIONS or spec.world_size % step.model_ranks:
        raise Invalid("expected a step of these ranks", "step")
    followers = {"", "batch_size", *(f"options.{name}" for name in spec.options)}
    if spec.follows not in followers:
        raise Invalid(f"expected one of its choices, got {spec.follows!r}", "follows")
    return spec
