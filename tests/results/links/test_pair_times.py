"""The lines of `orch bench pairs`: all of them understood, or none; and the words in which they are
told.
"""

from __future__ import annotations

import csv
import io
import re
from itertools import combinations
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.plan.folders import open_framework
from orchestrator.plan.measures import MEASURES
from orchestrator.plan.spec import RunSpec, resolve
from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import markdown
from orchestrator.results.diagnosis_tables import Content
from orchestrator.results.links.pair_tables import content
from orchestrator.results.links.pair_times import PairTimes, pair_times
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Summary, summarize

FRAMEWORK = open_framework("pairs").framework
READING = re.compile(FRAMEWORK.log.readings[0])
HOSTS = {"nodes": ["node1", "node2", "node3", "node4"]}


def spec_of(nodes: int = 3, gpus: int = 2, **sets: str) -> RunSpec:
    choices: dict[str, Any] = {"nodes": nodes, "gpus": gpus, "steps": 4, "warmup_steps": 1}
    options = {"size_bytes": "1000000", **sets}
    choices |= {f"options.{name}": text for name, text in options.items()}
    return resolve(FRAMEWORK, "pairs", device="cpu", choices=choices)


def line(**values: Any) -> dict[str, str]:
    match = READING.match(
        "orch pair " + " ".join(f"{name}={value}" for name, value in values.items())
    )
    assert match, values
    return match.groupdict()


def lines_of(
    spec: RunSpec, slow: dict[tuple[int, int, str], float] | None = None
) -> list[dict[str, str]]:
    """Every line of a run in which a transfer takes 1 ms, 2 ms both ways at once; a second rank
    takes a tenth more.
    """
    slow = slow or {}
    sizes = {"a-to-b": 1000000, "b-to-a": 1000000, "both": 1000000, "ping": 8}
    usual = {"a-to-b": 1e-3, "b-to-a": 1e-3, "both": 2e-3, "ping": 5e-5}
    return [
        line(sweep=sweep, round=1, a=a, b=b, local_rank=rank, direction=way, size_bytes=size,
             time_s=f"{usual[way] * (1 + 0.1 * rank) * slow.get((a, b, way), 1.0):.9f}")
        for sweep in (1, 2, 3) for a, b in combinations(range(spec.nodes), 2) for way, size in sizes.items()
        for rank in range(spec.gpus)
    ]  # fmt: skip


def test_the_slowest_rank_of_a_pair_is_its_time() -> None:
    spec = spec_of()
    found = pair_times(spec, lines_of(spec), HOSTS)
    assert len(found) == 3 * 4
    assert found[2] == PairTimes(
        (0, 1), ("node1", "node2"), "both", 2000000, (0.0022, 0.0022, 0.0022)
    )
    assert found[-1] == PairTimes((1, 2), ("node2", "node3"), "ping", 16, (5.5e-05,) * 3)


def changed(number: int, **values: Any) -> Any:
    return lambda lines: [*lines[:number], {**lines[number], **values}, *lines[number + 1 :]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], "expected 72 times of pairs, the logs have 71"),
        (lambda lines: [*lines, lines[0]], "expected 72 times of pairs, the logs have 73"),
        (
            lambda lines: [*lines[:-1], lines[0]],
            "node1 and node2, a-to-b, sweep 1, once, got it again",
        ),
        (changed(0, b="3"), "expected a time of this run, got sweep=1 round=1 a=0 b=3"),
        (changed(0, a="1"), "a=1 b=1"),
        (changed(0, sweep="4"), "sweep=4"),
        (changed(0, sweep="0"), "sweep=0"),
        (changed(0, local_rank="2"), "local_rank=2"),
        (changed(0, direction="sideways"), "direction=sideways"),
        (changed(0, direction="all-reduce"), "direction=all-reduce"),
        (changed(0, size_bytes="1000004"), "size_bytes=1000004"),
        (changed(0, time_s="0.000000000"), "time_s=0.000000000"),
        (changed(0, time_s="999999999.0"), "time_s=999999999.0"),
    ],
)
def test_what_is_missing_twice_there_or_of_another_run_is_an_error_and_no_smaller_table(
    change: Any, said: str
) -> None:
    spec = spec_of()
    with pytest.raises(DataError, match=said) as caught:
        pair_times(spec, change(lines_of(spec)), HOSTS)
    assert caught.value.kind == "result_invalid"


@pytest.mark.parametrize("time_s", ["1", "nan", "1e-3", "-1.0", "1.2.3", "0.5 ", "9" * 400 + ".0"])
def test_a_time_that_is_no_number_is_no_line(time_s: str) -> None:
    text = f"orch pair sweep=1 round=1 a=0 b=1 local_rank=0 direction=both size_bytes=8 time_s={time_s}"
    assert READING.match(text) is None


def told(spec: RunSpec, slow: dict[tuple[int, int, str], float], sweeps: int = 3) -> Any:
    found = pair_times(spec, lines_of(spec, slow), HOSTS)
    cut = [
        PairTimes(one.pair, one.names, one.direction, one.size_bytes, one.times_s[:sweeps])
        for one in found
    ]
    return content([(1, cut)])


def of_node(
    node: int, times: float, ways: tuple[str, ...] = ("both",)
) -> dict[tuple[int, int, str], float]:
    return {
        (a, b, way): times for a, b in combinations(range(4), 2) if node in (a, b) for way in ways
    }


def test_a_slow_node_is_told_with_its_partners_and_the_way_in_which_it_is_slow() -> None:
    spec = spec_of(nodes=4, gpus=1)
    ways = of_node(1, 3.0) | {(0, 1, "b-to-a"): 3.0, (1, 2, "a-to-b"): 3.0, (1, 3, "a-to-b"): 3.0}
    found = told(spec, ways)
    assert found.culprits == (
        "node2: 3.0x slower to every partner (95 %: 3.0 to 3.0), when sending",
    )
    assert found.said == (
        *found.culprits,
        "an ordinary pair: 0.5 GB/s each way at once, ping 0.05 ms",
    )
    every = told(spec, of_node(1, 3.0, ("both", "a-to-b", "b-to-a")))
    assert every.culprits == ("node2: 3.0x slower to every partner (95 %: 3.0 to 3.0)",)


def test_a_slow_link_is_told_with_its_ends_and_its_direction() -> None:
    found = told(spec_of(nodes=4, gpus=1), {(1, 3, "both"): 4.0, (1, 3, "b-to-a"): 4.0})
    what = "link node2 to node4: 4.0x slower than its nodes explain (95 %: 4.0 to 4.0), from node4 to node2"
    assert found.culprits == (what,)
    links = {row[:2]: row for row in found.grids[1].rows}
    assert (
        links["node2", "node4"][2] == pytest.approx(4.0) and links["node2", "node4"][-1] == "slow"
    )
    matrix = {row[0]: row[1:] for row in found.grids[2].rows}
    assert matrix["node2"] == pytest.approx((0.5, None, 0.5, 0.125)) and matrix["node4"][
        1
    ] == pytest.approx(0.125)


def test_bandwidth_counts_the_bytes_of_all_ranks() -> None:
    # Two ranks send 1 MB each in 2.2 ms.
    assert told(spec_of(), {}).grids[2].rows[0][2] == pytest.approx(2e6 / 2.2e-3 / 1e9)


def test_two_groups_are_told_as_a_boundary() -> None:
    across = {(a, b, "both"): 2.0 for a in (0, 1) for b in (2, 3)}
    assert told(spec_of(nodes=4, gpus=1), across).culprits == (
        "between node[1-2] and node[3-4]: 2.0x slower than within them, as across two switches",
    )


@pytest.mark.parametrize(
    ("spec", "sweeps", "said"),
    [
        (
            spec_of(nodes=4, gpus=1),
            3,
            "nothing stands out: all pairs within +0% and +0% of the ordinary time; "
            "a node 1.1x slower, or a link 1.1x, would have been named",
        ),
        (
            spec_of(nodes=2, gpus=1),
            3,
            "node1 and node2 form a single pair, which cannot be compared with another: no verdict. it takes three or more",
        ),
        (
            spec_of(nodes=4, gpus=1),
            2,
            "nothing stands out: all pairs within +0% and +0% of the ordinary time; "
            "a node 1.1x slower, or a link 1.1x, would have been named",
        ),
        (
            spec_of(nodes=4, gpus=1),
            1,
            "the noise of a single sweep is unknown: no verdict. use more --steps",
        ),
    ],
)
def test_where_nobody_is_named_it_says_what_would_have_been(
    spec: RunSpec, sweeps: int, said: str
) -> None:
    found = told(spec, {}, sweeps)
    assert (found.said[0], found.culprits) == (said, ())


def test_sweeps_of_several_runs_count_together() -> None:
    spec = spec_of(nodes=4, gpus=1)
    one, other = (
        pair_times(spec, lines_of(spec, of_node(1, times)), HOSTS) for times in (2.0, 8.0)
    )
    # The middle of 2 and 8 times, in logarithms.
    assert content([(1, one), (2, other)]).grids[0].rows[1][1] == pytest.approx(4.0)


def peers_of(nodes: int, gpus: int, slow: dict[tuple[int, int], float]) -> Content:
    """What is told of the devices of each node, whose links take 2 ms both ways, or more."""
    choices: dict[str, Any] = {"nodes": nodes, "gpus": gpus, "steps": 4, "warmup_steps": 1}
    choices["options.size_bytes"] = "1000000"
    spec = resolve(FRAMEWORK, "peers", device="cpu", choices=choices)
    sizes = {"a-to-b": 1000000, "b-to-a": 1000000, "both": 1000000, "ping": 8}
    lines = [
        line(sweep=sweep, round=1, a=first + a, b=first + b, local_rank=0, direction=way, size_bytes=size,
             time_s=f"{2e-3 * slow.get((first + a, first + b), 1.0):.9f}")
        for sweep in (1, 2, 3) for first in range(0, nodes * gpus, gpus)
        for a, b in combinations(range(gpus), 2) for way, size in sizes.items()
    ]  # fmt: skip
    return content([(1, pair_times(spec, lines, {"nodes": HOSTS["nodes"][:nodes]}))])


def test_devices_are_compared_within_their_node() -> None:
    # Device 1 of node2, and the whole of node3, which is slower than the others and even in itself.
    slow = {pair: 3.0 for pair in combinations(range(4, 8), 2) if 5 in pair}
    slow |= dict.fromkeys(combinations(range(8, 12), 2), 2.0)
    found = peers_of(3, 4, slow)
    assert found.culprits == ("node2 rank 1: 3.0x slower to every partner (95 %: 3.0 to 3.0)",)
    rates = [words for words in found.said if words.startswith("an ordinary pair")]
    assert [words.split(", ")[0] for words in rates] == [
        "an ordinary pair of devices of node1: 0.5 GB/s each way at once",
        "an ordinary pair of devices of node2: 0.5 GB/s each way at once",
        "an ordinary pair of devices of node3: 0.25 GB/s each way at once",
    ]
    assert [row[0] for row in found.grids[3].rows] == [f"node2 rank {place}" for place in range(4)]


def test_a_pair_across_two_nodes_is_no_pair_of_peers() -> None:
    spec = resolve(
        FRAMEWORK,
        "peers",
        device="cpu",
        choices={"nodes": 2, "gpus": 2, "steps": 2, "warmup_steps": 1},
    )
    size = spec.options["size_bytes"]
    ways = {"a-to-b": size, "b-to-a": size, "both": size, "ping": 8}
    lines = [
        line(
            sweep=1, round=1, a=a, b=b, local_rank=0, direction=way, size_bytes=bytes_, time_s="0.1"
        )
        for a, b in ((0, 1), (1, 2))
        for way, bytes_ in ways.items()
    ]
    with pytest.raises(DataError, match="expected a time of this run, got sweep=1 round=1 a=1 b=2"):
        pair_times(spec, lines, {"nodes": ["node1", "node2"]})


def summary_of(nodes: int, slow: dict[tuple[int, int, str], float]) -> Summary:
    spec = spec_of(nodes=nodes, gpus=1)
    found = pair_times(
        spec, lines_of(spec, slow), {"nodes": [f"node{n + 1}" for n in range(nodes)]}
    )
    return summarize(
        [
            RunResult(
                "r1", 1, spec, False, "finished", measure=MEASURES["pairs"], readings=tuple(found)
            )
        ]
    )


@pytest.mark.parametrize(("nodes", "drawn"), [(16, True), (17, False)])
def test_people_see_the_matrix_of_up_to_16_nodes_and_programs_that_of_any(
    nodes: int, drawn: bool
) -> None:
    summary = summary_of(nodes, {(1, 3, "both"): 4.0})
    shown = markdown.render(summary)
    assert ("### pairs pairs fp32 cpu 17n1g: every pair" not in shown) and (
        "16n1g: every pair" in shown
    ) == drawn
    told = "every pair, GB/s each way at once: 18 columns, only in --format csv and json"
    assert (told in shown) != drawn and "link node2 to node4: 4.0x slower" in shown
    assert shown.count("cpu: measured on CPUs") == 1  # below the last table that is drawn
    lines = list(csv.reader(io.StringIO(delimited.render(summary))))
    head = next(line for line in lines if f"node{nodes}" in line and "said" in line)
    place = head.index("table") + 1
    matrix = {line[place]: line for line in lines[lines.index(head) + 1 :]}
    assert len(matrix) == nodes and float(matrix["node2"][head.index("node4")]) == pytest.approx(
        0.125
    )


def test_every_line_of_the_csv_says_who_is_slow_or_what_would_have_been_found() -> None:
    for slow, begins in (
        ({(1, 3, "both"): 4.0}, "link node2 to node4: 4.0x slower"),
        ({}, "nothing stands out: "),
    ):
        blocks = delimited.render(summary_of(4, slow)).split("\n\n")
        assert len(blocks) == 3
        for said in (
            line["said"] for block in blocks for line in csv.DictReader(io.StringIO(block))
        ):
            assert said.startswith(begins) and said.endswith(
                "; an ordinary pair: 0.5 GB/s each way at once, ping 0.05 ms"
            )
