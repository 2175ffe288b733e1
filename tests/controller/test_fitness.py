"""What preflight asks of each host of a bench."""

from __future__ import annotations

from orchestrator.checks.facts import node_facts
from orchestrator.checks.host import slots_check
from orchestrator.controller.fitness import kinds_of
from orchestrator.inventory import Host
from orchestrator.plan.bench import Bench
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule


def test_a_host_needs_slots_for_the_runs_that_are_placed_on_it_alone() -> None:
    small, large, spare = (
        Host(name, f"10.0.0.{slots}", gpus=0, slots=slots)
        for name, slots in (("small", 1), ("large", 2), ("spare", 2))
    )
    folder = open_framework("simulated")
    request = Request("resnet50", shapes=((1, 1), (1, 2)), axes={"dtype": ("fp32",)})
    cells = configure(request, [folder], [small, large]).specs
    plan = Bench("bench-1", cells, {"simulated": folder}, Schedule())
    (kind,) = kinds_of(plan.list_runs(), [small, large])
    assert [kind.ranks_on(host.name) for host in (small, large, spare)] == [1, 2, 2]
    for host in (small, large, spare):
        check = slots_check(host, node_facts({}), kind.ranks_on(host.name))
        assert check.verdict == "ok", check
