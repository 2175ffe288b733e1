"""Names of new benches."""

from __future__ import annotations

import re

from orchestrator.api.find import new_bench_id


def test_names_of_benches_sort_by_time_though_planned_one_after_the_other_at_once() -> None:
    names = [new_bench_id() for _ in range(200)]
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}", name) for name in names)
