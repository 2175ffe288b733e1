"""What the records of wrappers say of the CPUs that ranks had."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.record.node_record import Bound, RankRecord
from orchestrator.results import binding


@pytest.mark.parametrize(("written", "cpus"), [
    ({"binding": "cores", "cpus": "0-3,8", "numa_node": 0, "gpu": None}, {0, 1, 2, 3, 8}),
    ({"binding": "cores", "cpus": "0-3,"}, None),
    ({"binding": "\x1b[31m", "cpus": "0"}, None),
    ({"binding": "numa", "cpus": 3}, None),
    ("numa", None),
    (None, None),
])  # fmt: skip
def test_a_record_that_is_none_is_no_binding(written: Any, cpus: set[int] | None) -> None:
    bound = RankRecord.of({"rank": 7, "code": 0, "signal": None, "bound": written}).bound
    assert (bound and bound.cpu_set) == cpus


def test_ranks_of_one_numa_node_share_its_cpus_without_a_warning() -> None:
    assert (
        binding.find_shared_cores({"n": {0: Bound("numa", "0-3"), 1: Bound("numa", "0-3")}}) == []
    )


def test_nodes_whose_ranks_have_other_cpus_are_named_apart() -> None:
    words = binding.binding_words(
        {"n1": {0: Bound("numa", "0-3")}, "n2": {1: Bound("numa", "4-7")}}
    )
    assert words == "numa: 0-3 on n1; numa: 4-7 on n2"
