"""The baselines that the speedups of a bench need: one rank of each spec, run first, or borrowed from an earlier bench."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.plan.bench import PORTS, Bench, plan_run
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.spec import RunSpec, Skipped, impossible

__all__ = ["baseline_of", "borrowable", "missing_baselines", "possible", "without"]

_BASELINE = "baseline"
"""The origin of the shape of a cell that was added as the baseline of a speedup."""


def baseline_of(spec: RunSpec) -> RunSpec:
    """Return the one-rank spec that is the baseline for the speedup of ``spec``."""
    origins = {**spec.origins, "nodes": _BASELINE, "gpus": _BASELINE}
    return replace(spec, nodes=1, gpus=1, origins=origins)


def missing_baselines(specs: Sequence[RunSpec]) -> tuple[RunSpec, ...]:
    """Return the baselines of ``specs`` that are not among them, each once."""
    present = {repr(spec.as_dict()) for spec in specs}
    missing = {repr(base.as_dict()): base for base in map(baseline_of, specs)}
    return tuple(base for key, base in missing.items() if key not in present)


def possible(
    specs: Sequence[RunSpec], folders: Mapping[str, FrameworkFolder], hosts: Sequence[Host]
) -> tuple[tuple[RunSpec, ...], tuple[Skipped, ...]]:
    """Return the baselines that can be run, and those that a template refuses, so that there is no speedup."""
    kept: list[RunSpec] = []
    skipped: list[Skipped] = []
    for spec in specs:
        try:
            plan_run(folders[spec.framework], spec, hosts, run_id="plan", repeat=1, port=PORTS.start)
        except ConfigError as error:
            left_out = impossible(spec.framework, spec.model, {"nodes": 1, "gpus": 1, "dtype": spec.dtype}, error)
            skipped += [left_out] if left_out not in skipped else []
        else:
            kept.append(spec)
    return tuple(kept), tuple(skipped)


def borrowable(bench: Bench) -> tuple[RunSpec, ...]:
    """Return the baselines that were only added to a bench, and may be replaced by runs of an earlier bench.

    Empty if repeats may be added, because a baseline needs the added repeats too.
    """
    if bench.schedule.until_ci is not None:
        return ()
    return tuple(spec for spec in bench.cells if spec.origins.get("nodes") == _BASELINE)


def without(bench: Bench, borrowed: Collection[RunSpec]) -> Bench:
    """Return the bench without the cells whose runs come from an earlier bench."""
    return replace(bench, cells=tuple(spec for spec in bench.cells if spec not in borrowed))
