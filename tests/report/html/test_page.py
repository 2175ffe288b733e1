"""The page of a sweep: one table of all its configurations before the sections of its series."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orchestrator.record.rundir import BenchDir
from orchestrator.report.html import render as page
from orchestrator.results.account import account_of
from orchestrator.results.bench import read_bench
from orchestrator.results.planned import planned_runs
from orchestrator.results.summary import of_bench
from tests.support.run_folders import build


def swept(value: int) -> Any:
    """Return what gives a run of `build` an option and a variable."""

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"]["options"] |= {"bucket_cap_mb": value}
        planned["spec"]["env"] = {"NCCL_ALGO": "Ring"}

    return change


def shown(root: Path, values: list[int]) -> str:
    bench = BenchDir.create(root, {"bench_id": "b", "created": "", "runs": [f"r{n}" for n, _ in enumerate(values)]})
    for number, value in enumerate(values):
        build(bench, f"r{number}", swept(value), seconds=0.5 + 0.1 * number)
    results = read_bench(bench)
    return page(of_bench(planned_runs(bench, results)), results, account_of(bench, results))


def test_a_sweep_has_a_table_of_all_its_configurations(tmp_path: Path) -> None:
    text = shown(tmp_path, [100, 25])
    overview = text[text.index('<section id="o1">') : text.index('<section id="s1">')]
    assert "<h2>All of pytorch resnet50 fp16 b16 synthetic NCCL_ALGO=Ring</h2>" in overview
    assert re.findall(r"<th>(.*?)</th>", overview)[:3] == ["case", "bucket_cap_mb", "n"]
    assert re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td>", overview) == [("2n2g", "25"), ("2n2g", "100")]
    assert "<h2>pytorch resnet50 fp16 b16 synthetic NCCL_ALGO=Ring bucket_cap_mb=100</h2>" in text


def test_a_bench_without_a_sweep_has_none(tmp_path: Path) -> None:
    assert '<section id="o1">' not in shown(tmp_path, [25])
