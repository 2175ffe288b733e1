"""A run whose ranks log their own steps has a number only if all that print hold out to the end of
the window.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from orchestrator.results.run import RunResult
from tests.support.run_folders import BATCH, GPUS, STEPS, WORLD, build, rank_line, step_lines

OWN = step_lines().replace(f"samples={BATCH * WORLD}", f"samples={BATCH}")
RATE = r"step (?P<step>[0-9]+): (?P<samples_per_s>[0-9.]+) images/s"
Logs = list[dict[str, str]]


def rates(per_s: float, steps: range = range(1, STEPS + 1)) -> str:
    return "".join(f"step {step}: {per_s} images/s\n" for step in steps)


def read(tmp_path: Path, of_rank: Callable[[int], str], **log: Any) -> RunResult:
    """Return the result of a run of two nodes with two ranks each, whose ranks print what
    ``of_rank`` says.
    """

    def before(planned: dict[str, Any], logs: Logs) -> None:
        planned["framework"] = deepcopy(planned["framework"])
        planned["framework"]["log"] |= {
            "files": ["rank-*.out"],
            "nodes": "every",
            "scope": "process",
            "closing": "",
        } | log
        for node, files in enumerate(logs):
            for rank in range(node * GPUS, (node + 1) * GPUS):
                files[f"rank-{rank}.out"] = rank_line(rank) + of_rank(rank)

    bench = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"]}
    )
    return read_run(build(bench, "r1", before))


def only(steps: range, lines: str) -> str:
    wanted = set(steps)
    return "".join(
        line
        for line in lines.splitlines(True)
        if int(re.findall("step[ =]([0-9]+)", line)[0]) in wanted
    )


@pytest.mark.parametrize("text", [OWN, rates(50.0)], ids=["clock", "rate"])
@pytest.mark.parametrize(
    ("kept", "got"),
    [
        (range(3), "got none for 10 of them, first for step 3"),
        (range(12), "got none for 1 of them, first for step 12"),
        (range(8, STEPS + 1), "got none for 5 of them, first for step 3"),
    ],
    ids=["stops after warm-up", "stops before the end", "begins late"],
)
def test_a_rank_without_lines_in_the_window_takes_the_number(
    tmp_path: Path, text: str, kept: range, got: str
) -> None:
    patterns = {"patterns": [RATE]} if text != OWN else {}
    result = read(tmp_path, lambda rank: text if rank < 2 else only(kept, text), **patterns)
    assert result.throughput is None and result.error
    assert (result.error.host, result.error.where) == ("node2", "rank-2.out")
    expected = "expected a line for each of the 10 steps from 3 to 12 that ranks printed"
    assert result.error.message == f"{expected}, {got}; 1 more log has such steps"


@pytest.mark.parametrize(
    ("silent", "told"),
    [
        ({2, 3}, "expected step lines of every node (nodes: every), got none from this one"),
        (
            {3},
            "expected step lines of all 2 ranks of this node, or of one on each node, got those of 1",
        ),
    ],
    ids=["a node", "a rank"],
)
def test_a_rank_or_a_node_that_prints_no_step_at_all_takes_the_number(
    tmp_path: Path, silent: set[int], told: str
) -> None:
    result = read(tmp_path, lambda rank: "" if rank in silent else OWN)
    assert result.error and (result.error.host, result.error.message) == ("node2", told)


@pytest.mark.parametrize(
    ("printing", "log"),
    [
        ({0, 2}, {}),
        ({0}, {"nodes": "first", "files": ["rank-0.out"]}),
        ({0}, {"nodes": "first"}),
        ({1, 2, 3}, {"files": ["rank-[123].out"]}),
    ],
    ids=["the first of each node", "one", "one of the first node", "those that are named"],
)
def test_where_only_some_ranks_print_by_design_they_have_a_number(
    tmp_path: Path, printing: set[int], log: dict[str, Any]
) -> None:
    result = read(tmp_path, lambda rank: OWN if rank in printing else "", **log)
    assert (
        result.error is None
        and result.throughput
        and result.throughput.samples_per_s == pytest.approx(BATCH * WORLD / 0.5)
    )


@pytest.mark.parametrize(
    ("alive", "told"),
    [
        ([True] * 4, ""),
        (
            [True, True, False, False],
            "expected 4 lines for each of the 10 steps from 3 to 12 that ranks printed, got 2 for 10 of them",
        ),
        (
            [True] * 3,
            "expected step lines of all 2 ranks of this node, or of one on each node, got those of 3",
        ),
    ],
    ids=["all", "two stop", "three of four"],
)
def test_ranks_without_names_in_one_log_are_counted(
    tmp_path: Path, alive: list[bool], told: str
) -> None:
    """As where a launcher sends all output to the first node; ranks that are not alive stop after
    the warm-up.
    """
    lines = OWN.splitlines(True)
    together = "".join(
        lines[step] for step in range(STEPS + 1) for lives in alive if lives or step < 3
    )
    result = read(
        tmp_path, lambda rank: together if rank == 0 else "", nodes="first", files=["rank-0.out"]
    )
    assert (result.error is None) == (not told) and told in str(result.error)


def test_a_line_that_is_printed_twice_in_the_warm_up_takes_nothing(tmp_path: Path) -> None:
    lines = OWN.splitlines(True)
    twice = "".join([*lines[:2], *lines[1:]])
    assert read(tmp_path, lambda rank: twice if rank == 3 else OWN).error is None


def test_a_line_that_is_printed_twice_in_the_window_takes_the_number(tmp_path: Path) -> None:
    lines = OWN.splitlines(True)
    result = read(tmp_path, lambda rank: "".join([*lines[:7], *lines[6:]]) if rank == 3 else OWN)
    assert (
        result.error
        and result.error.message.endswith("got 2 for 1 of them, first for step 6")
        and result.error.hint == "a step was printed again"
    )


def test_rates_of_all_nodes_count_where_those_of_every_node_are_read(tmp_path: Path) -> None:
    """Two nodes at 400 and 100 samples/s take as long for their share as two at 160."""
    log = {"scope": "node", "patterns": [RATE]}
    result = read(tmp_path, lambda rank: {0: rates(400.0), 2: rates(100.0)}.get(rank, ""), **log)
    assert result.throughput and result.throughput.samples_per_s == pytest.approx(320.0)


@pytest.mark.parametrize(
    ("of_second", "told"),
    [
        ("", "node2: expected step lines of every node (nodes: every), got none from this one"),
        (
            rates(100.0, range(1, 6)),
            "node2: expected a line for each of the 10 steps from 3 to 12 that ranks printed, got none",
        ),
        (
            rates(100.0, range(1, 13, 2)),
            "node2: expected a line for each of the 10 steps from 3 to 12 that ranks printed, got none",
        ),
    ],
    ids=["silent", "stops", "every other step"],
)
def test_a_node_that_lacks_lines_takes_the_number(
    tmp_path: Path, of_second: str, told: str
) -> None:
    log = {"scope": "node", "patterns": [RATE]}
    result = read(tmp_path, lambda rank: {0: rates(400.0), 2: of_second}.get(rank, ""), **log)
    assert result.error and told in f"{result.error.host}: {result.error.message}"


def test_a_global_rate_counts_once_whether_all_nodes_print_it_or_one(tmp_path: Path) -> None:
    log = {"scope": "global", "patterns": [RATE]}
    for printing in ({0, 1, 2, 3}, {2}):
        result = read(
            tmp_path / str(len(printing)),
            lambda rank, some=printing: rates(400.0) if rank in some else "",
            **log,
        )
        assert result.throughput and result.throughput.samples_per_s == pytest.approx(400.0)
