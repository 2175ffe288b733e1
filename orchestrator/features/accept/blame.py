"""Blame a node for a failed run if such runs succeed when repeated without it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.features.accept.suite import SuiteStage, choices_of
from orchestrator.plan.spec import EXTRA_CHOICES, RunSpec
from orchestrator.results import RunResult
from orchestrator.yamlfile import Document


def succeeds_without(
    later: Sequence[tuple[Sequence[str], Sequence[RunResult]]],
    by_hosts: Collection[str],
    host: str,
    failed: RunResult | None,
) -> bool:
    """Return whether later attempts made such runs without a host, and none of them failed.

    Such runs are like ``failed``, or any runs if it is None. ``later`` has the hosts and the
    results of the later attempts; ``by_hosts`` names the options and variables that depend on an
    attempt's hosts. Runs on fewer nodes or ranks are not alike, unless they use all nodes of the
    attempt.
    """

    def kind(spec: RunSpec) -> object:
        options, env = (
            {
                name: value
                for name, value in values.items()
                if name not in by_hosts and spec.follows != f"options.{name}"
            }
            for values in (spec.options, spec.env)
        )
        batch_size = None if spec.follows == "batch_size" else spec.batch_size
        of_nodes = spec.device, *(getattr(spec, name) for name in EXTRA_CHOICES)
        return (
            spec.framework,
            spec.model,
            spec.dtype,
            spec.loader,
            batch_size,
            options,
            env,
            of_nodes,
        )

    def is_alike(spec: RunSpec | None, nodes: int) -> bool:
        if failed is None or failed.spec is None or spec is None:
            return failed is None
        like = failed.spec
        return (
            spec.nodes >= min(like.nodes, nodes)
            and spec.gpus >= like.gpus
            and kind(spec) == kind(like)
        )

    alike = [
        run
        for hosts, results in later
        if host not in hosts
        for run in results
        if is_alike(run.spec, len(hosts))
    ]
    return any(run.is_good for run in alike) and not any(run.has_failed for run in alike)


def depend_on_hosts(document: Document, stage: SuiteStage) -> set[str]:
    """Return the options and variables of a stage whose values stand for the number of its nodes or
    ranks.
    """
    few, more = (choices_of(document, stage, count, count).value for count in (1, 2))
    parts = [(few.get(part), more.get(part)) for part in ("options", "env")]
    return {
        name
        for less, other in parts
        if isinstance(less, dict)
        for name in less
        if less[name] != other[name]
    }
