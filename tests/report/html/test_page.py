"""The page: one table of all configurations of a sweep before the sections of its series, and the
ranks of a configuration.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.record.rundir import BenchDir
from orchestrator.report.cells import COLUMNS, OF_REPEATS
from orchestrator.report.html.page import render as page
from orchestrator.results.bench import read_bench
from orchestrator.results.numbers.excess import Excess
from orchestrator.results.planned import planned_runs
from orchestrator.results.run_history import history_of
from orchestrator.results.slow_ranks import RankTimes
from orchestrator.results.summary import of_bench
from tests.support.run_folders import build


def swept(value: int) -> Any:
    """Return what gives a run of `build` an option and a variable."""

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"]["options"] |= {"bucket_cap_mb": value}
        planned["spec"]["env"] = {"NCCL_ALGO": "Ring"}

    return change


def shown(root: Path, values: list[int], ranks: tuple[RankTimes, ...] = ()) -> str:
    bench = BenchDir.create(
        root, {"bench_id": "b", "created": "", "runs": [f"r{n}" for n, _ in enumerate(values)]}
    )
    for number, value in enumerate(values):
        build(bench, f"r{number}", swept(value), seconds=0.5 + 0.1 * number)
    results = read_bench(bench)
    summary = of_bench(planned_runs(bench, results))
    with_ranks = replace(summary, rows=tuple(replace(row, ranks=ranks) for row in summary.rows))
    return page(with_ranks, results, history_of(bench, results))


def test_a_sweep_has_a_table_of_all_its_configurations(tmp_path: Path) -> None:
    text = shown(tmp_path, [100, 25])
    overview = text[text.index('<section id="o1">') : text.index('<section id="s1">')]
    assert "<h2>All of pytorch resnet50 fp16 b16 synthetic NCCL_ALGO=Ring</h2>" in overview
    assert re.findall(r"<th>(.*?)</th>", overview)[:3] == ["case", "bucket_cap_mb", "n"]
    assert re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td>", overview) == [
        ("2n2g", "25"),
        ("2n2g", "100"),
    ]
    assert "<h2>pytorch resnet50 fp16 b16 synthetic NCCL_ALGO=Ring bucket_cap_mb=100</h2>" in text


def of_tokens(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    """Make a run of `build` one of a language model whose samples are sequences of 64 tokens."""
    planned["spec"]["step"] = {"tokens": 64}
    planned["framework"]["measures"] = "language_model"


def test_the_page_of_a_language_model_counts_tokens_and_nothing_else(tmp_path: Path) -> None:
    bench = BenchDir.create(tmp_path, {"bench_id": "b", "created": "", "runs": ["r0", "r1"]})
    for name in ("r0", "r1"):
        build(bench, name, of_tokens)
    results = read_bench(bench)
    text = page(of_bench(planned_runs(bench, results)), results, history_of(bench, results))
    # 4 ranks x 16 sequences of 64 tokens in 0.5 s
    assert "<strong>8192.00</strong> tokens/s" in text and "Speeds in tokens/s" in text
    assert (
        "speed of each step, tokens/s" in text
        and "repeats, tokens/s" in text
        and "<dd>tokens of the window" in text
    )
    assert [speed for run in results for _, speed in run.pace] == [8192.0] * 2 * 12
    assert "samples" not in re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)


def test_intervals_stand_below_their_values_and_what_describes_the_repeats_at_the_end(
    tmp_path: Path,
) -> None:
    text = shown(tmp_path, [100, 25])
    section = text[text.index('<section id="s1">') : text.index('<section id="s2">')]
    names = [name for name in COLUMNS if not name.endswith("95%")]
    heads = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", section)[: len(names)]
    assert heads[:3] == ["case", "n", "speed"]
    assert heads[heads.index("notes") :][:5] == ["notes", "average", "median", "min", "max"]
    assert set(heads[heads.index("notes") + 1 :]) <= set(OF_REPEATS.values())
    (cell,) = re.findall(
        r'<td>([0-9.]+)<span class="range">(.*?)</span></td><td>[0-9.]+</td>', section
    )[:1]
    assert cell[1] == "–", "one repeat has no interval"
    assert (
        re.search(r'<td class="marks"><a href="#s1n1">1</a>', section)
        and '<li id="s1n1">' in section
    )


def test_facts_of_nodes_are_in_words_with_units(tmp_path: Path) -> None:
    bench = BenchDir.create(tmp_path, {"bench_id": "b", "created": "", "runs": ["r0"]})
    facts = {
        "memory_bytes": 25276510208,
        "interface": {"speed_mbit": 10000},
        "open_driver": False,
        "gpus": None,
        "kernel": "6.1",
    }
    build(bench, "r0", lambda planned, logs: planned.update(facts={"node1": facts, "node2": facts}))
    results = read_bench(bench)
    text = page(of_bench(planned_runs(bench, results)), results, history_of(bench, results))
    section = text[text.index('<section id="environment">') :]
    assert re.findall(r'<tr><td>(.*?)</td><td>(.*?)</td><td class="hosts">node\[1-2\]</td>', section) == [
        ("memory", "23.54 GiB"), ("interface: speed", "10 Gbit/s"), ("open driver", "no"), ("gpus", "none"), ("kernel", "6.1"),
    ]  # fmt: skip


def test_a_bench_without_a_sweep_has_none(tmp_path: Path) -> None:
    assert '<section id="o1">' not in shown(tmp_path, [25])


def test_a_slow_rank_is_in_the_table_of_the_ranks_and_the_text_of_a_node_is_no_markup(
    tmp_path: Path,
) -> None:
    evil = "<script>node</script>"
    ranks = tuple(
        RankTimes(
            rank,
            evil,
            0.3,
            0.0012345,
            own,
            None,
            Excess(by, by - 0.01, by + 0.01, True),
            None,
            None,
        )
        for rank, (own, by) in enumerate([(0.1, -0.1), (0.1121, 0.121)])
    )
    text = shown(tmp_path, [25], ranks)
    assert (
        "<td>1</td><td>&lt;script&gt;node&lt;/script&gt;</td><td>300.000</td><td>1.234</td><td>112.100</td>"
        in text
    )
    assert (
        "<td>12.1 %</td><td>11.1 to 13.1 %</td></tr>" in text
        and evil not in text
        and "processor time of it" not in text
    )
    worked = tuple(
        replace(times, compute_cpu_s=0.09, cpu_excess=Excess(0.2, 0.1, 0.3, True))
        for times in ranks
    )
    text = shown(tmp_path / "worked", [25], worked)
    assert (
        "<th>processor time of it</th>" in text
        and "<td>90.000</td><td>20.0 %</td><td>10.0 to 30.0 %</td></tr>" in text
    )
