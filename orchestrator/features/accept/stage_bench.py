"""The bench of a stage on the hosts of an acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.cli.options import open_frameworks
from orchestrator.errors import ConfigError
from orchestrator.features.accept.suite import SuiteStage, choices_of
from orchestrator.inventory import Host
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import FrameworkFolder, framework_for
from orchestrator.plan.planning import plan_bench
from orchestrator.plan.request import Request, request_of
from orchestrator.plural import plural
from orchestrator.yamlfile import Document


def ranks_of(hosts: Sequence[Host]) -> int:
    """Return how many ranks fit on each of these hosts."""
    return min((host.capacity or 1 for host in hosts), default=1)


def bench_of(
    stage: SuiteStage,
    document: Document,
    hosts: Sequence[Host],
    bases: Sequence[Path],
    read: Callable[[str], FrameworkFolder] | None = None,
) -> Bench:
    """Return the bench of a stage on these hosts; ``read`` is as in `framework_for`. Raises
    ConfigError if that is not possible there."""
    if len(hosts) < stage.least_nodes:
        raise ConfigError(f"needs {plural(stage.least_nodes, 'node')}, {len(hosts)} left")
    ranks = ranks_of(hosts)
    if ranks < stage.least_ranks:
        raise ConfigError(
            f"needs {plural(stage.least_ranks, 'rank')} on each node, the smallest has {ranks}"
        )
    request = request_for(stage, document, len(hosts), ranks)
    folders = open_frameworks(
        request.framework_names(lambda: framework_for(stage.bench, bases, read)), bases
    )
    return plan_bench(request, folders, hosts, bench_id=new_bench_id(), seed=new_seed())


def request_for(stage: SuiteStage, document: Document, nodes: int, ranks: int) -> Request:
    """Return the request of a stage for this number of nodes and of ranks per node."""
    choices = choices_of(document, stage, nodes, ranks)
    return request_of(
        stage.bench,
        framework=stage.framework,
        run_file=choices if choices.value else None,
        baseline=False,
        label="" if "label" in choices.value else stage.name,
    )
