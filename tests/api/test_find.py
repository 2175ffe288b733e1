"""Names of new benches."""

from __future__ import annotations

import re
import time

from orchestrator.api.find import new_bench_id


def test_names_of_benches_sort_by_time_within_a_second_too() -> None:
    names = []
    for _ in range(200):
        names.append(new_bench_id())
        time.sleep(0.001)
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}", name) for name in names)
