"""The baselines that the speedups of a bench need: a shape of each spec, by default one rank, run
first, or borrowed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.plan.bench import Bench, plan_run
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.spec import RunSpec, Skipped, impossible

_BASELINE = "baseline"
"""The origin of the shape of a cell that was added as the baseline of a speedup."""
_AS_BASELINE = "as a baseline: "


Shape = tuple[int, int]
"""Nodes, and ranks per node."""


def is_baseline(spec: RunSpec) -> bool:
    """Return True if speedups over this spec were requested, or are the usual ones."""
    return (spec.nodes, spec.gpus) == (1, 1) or spec.origins.get("nodes", "").endswith(_BASELINE)


def baseline_of(spec: RunSpec, shape: Shape | None = None) -> RunSpec:
    """Return the spec that is the baseline for the speedup of ``spec``.

    It has the given ``shape``, by default one rank, or as many as compute one copy of the model.
    With strong scaling it has the same global batch.
    """
    nodes, gpus = shape or (1, spec.step.model_ranks)
    base = replace(
        spec,
        nodes=nodes,
        gpus=gpus,
        origins={**spec.origins, "nodes": _BASELINE, "gpus": _BASELINE},
    )
    kind, _, option = spec.follows.partition(".")
    ranks = nodes * gpus // spec.step.model_ranks
    if kind == "batch_size":
        return replace(base, batch_size=spec.global_batch // max(1, ranks))
    if kind == "options":
        micro_batches = spec.global_batch // max(1, ranks * spec.batch_size)
        options = {**spec.options, option: micro_batches}
        return replace(base, options=options, step=replace(spec.step, micro_batches=micro_batches))
    return base


def missing_baselines(specs: Sequence[RunSpec], shape: Shape | None = None) -> tuple[RunSpec, ...]:
    """Return the baselines of ``specs`` that are not among them, each once."""
    present = {repr(spec.as_dict()) for spec in specs}
    missing = {}
    for spec in specs:
        baseline = baseline_of(spec, shape)
        key = repr(baseline.as_dict())
        if key not in present:
            missing[key] = baseline
    return tuple(missing.values())


def mark_baselines(specs: Sequence[RunSpec], shape: Shape | None) -> tuple[RunSpec, ...]:
    """Return the specs, with the baselines among them marked in their origin.

    These are the specs of the requested ``shape`` or, without one, of one copy of a model that
    several ranks compute. A spec of one rank is always a baseline and is not marked.
    """
    copies = set()
    if shape is None:
        shared = [spec for spec in specs if spec.step.model_ranks > 1]
        copies = {repr(baseline_of(spec).as_dict()) for spec in shared}
    result = []
    for spec in specs:
        is_own = (spec.nodes, spec.gpus) == shape or repr(spec.as_dict()) in copies
        result.append(as_baseline(spec) if is_own else spec)
    return tuple(result)


def as_baseline(spec: RunSpec) -> RunSpec:
    """Return a spec that says by the origin of its shape that speedups are over it."""
    return replace(
        spec, origins={**spec.origins, "nodes": f"{spec.origins.get('nodes', '')}, {_BASELINE}"}
    )


def split_possible(
    specs: Sequence[RunSpec], folders: Mapping[str, FrameworkFolder], hosts: Sequence[Host]
) -> tuple[tuple[RunSpec, ...], tuple[Skipped, ...]]:
    """Return the baselines that can be run, and those that a template refuses, so that there is no
    speedup.
    """
    kept = []
    skipped: list[Skipped] = []
    for spec in specs:
        try:
            _check_division(spec)
            plan_run(folders[spec.framework], spec, hosts)
        except ConfigError as error:
            choices = {"nodes": spec.nodes, "gpus": spec.gpus, "dtype": spec.dtype}
            left_out = impossible(spec.framework, spec.model, choices, error)
            left_out = replace(left_out, reason=f"{_AS_BASELINE}{left_out.reason}")
            skipped += [left_out] if left_out not in skipped else []
        else:
            kept.append(spec)
    return tuple(kept), tuple(skipped)


def check_shape(shape: Shape | None, specs: Sequence[RunSpec], skipped: Sequence[Skipped]) -> None:
    """Raise ConfigError if no spec has the requested ``shape``, because its baselines were
    ``skipped``.
    """
    if shape and skipped and not any((spec.nodes, spec.gpus) == shape for spec in specs):
        reason = skipped[0].reason.removeprefix(_AS_BASELINE).removeprefix("--baseline-shape: ")
        raise ConfigError(
            f"expected a shape that a configuration can have: {reason}", where="--baseline-shape"
        )


def _check_division(spec: RunSpec) -> None:
    """Raise ConfigError if a baseline of another shape cannot compute the same as the shapes that
    are compared with it.
    """
    ranks = spec.world_size // spec.step.model_ranks
    if spec.world_size % spec.step.model_ranks:
        message = (
            f"expected a multiple of the {spec.step.model_ranks} ranks that share a copy of "
            f"the model, got {spec.world_size}"
        )
        raise ConfigError(message, where="--baseline-shape")
    if spec.follows and (ranks == 0 or spec.global_batch < 1):
        raise ConfigError(
            "expected a shape whose number of ranks divides the global batch",
            where="--baseline-shape",
        )


def borrowable(bench: Bench) -> tuple[RunSpec, ...]:
    """Return the baselines of one rank that were only added to a bench, and may be replaced by runs
    of an earlier bench.

    Empty if repeats may be added, because a baseline needs the added repeats too.
    """
    if bench.schedule.until_ci is not None:
        return ()
    return tuple(
        spec
        for spec in bench.cells
        if spec.origins.get("nodes") == _BASELINE and (spec.nodes, spec.gpus) == (1, 1)
    )


def without_cells(bench: Bench, borrowed: Collection[RunSpec]) -> Bench:
    """Return the bench without the cells whose runs come from an earlier bench."""
    return replace(bench, cells=tuple(spec for spec in bench.cells if spec not in borrowed))
