"""The lines that ranks print at their end: read where they are right, named where they are not,
never an error of the run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir, RunDir
from orchestrator.results.rank_parts import RankParts
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support.run_folders import LOG, STEPS, WARMUP, build

BLOCKS = STEPS - WARMUP
WITH_PARTS = LOG | {"rank_parts": r"^orch parts (?P<json>\{.*\})$"}


def facts(rank: int, compute_s: float = 0.1) -> dict[str, Any]:
    steady = [compute_s * (1 + 0.001 * (block % 2)) for block in range(BLOCKS)]
    window = {"first_step": WARMUP + 1, "last_step": STEPS}
    return {
        "rank": rank,
        **window,
        "step_s": [0.5] * BLOCKS,
        "input_s": [0.001] * BLOCKS,
        "compute_s": steady,
    }


def run_with(tmp_path: Path, *lines: str, of: dict[int, Any] | None = None) -> RunDir:
    """A run whose ranks print the lines of ``of`` (facts by rank), the first of them also
    ``lines``.
    """

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["framework"]["log"] = WITH_PARTS
        for rank, values in (of or {}).items():
            logs[rank // 2][f"rank-{rank}.out"] += f"orch parts {json.dumps(values)}\n"
        logs[1]["rank-2.out"] += "".join(f"{line}\n" for line in lines)

    return build(BenchDir(tmp_path), "r1", before)


def test_a_slow_rank_is_named_beside_the_number_and_its_parts_are_in_the_row(
    tmp_path: Path,
) -> None:
    result = read_run(
        run_with(tmp_path, of={rank: facts(rank, 0.112 if rank == 2 else 0.1) for rank in range(4)})
    )
    assert result.is_good and [part.rank for part in result.rank_parts] == [0, 1, 2, 3]
    assert result.rank_parts[2] == RankParts(
        2, "node2", (0.5,) * BLOCKS, (0.001,) * BLOCKS, tuple(facts(2, 0.112)["compute_s"])
    )
    row = next(row for row in summarize([result]).rows if row.is_speed)
    (words,) = (text for text in row.qualifications if "longer to compute" in text)
    assert words.startswith(
        "rank 2 on node2 takes 12.0% (6.8% to 17.4%) longer to compute than the other ranks, which wait"
    )
    assert [times.host for times in row.ranks] == ["node1", "node1", "node2", "node2"]
    assert row.ranks[2].excess and row.ranks[2].excess.value == pytest.approx(0.12)


def test_a_program_that_prints_no_parts_has_none_and_no_note(tmp_path: Path) -> None:
    result = read_run(run_with(tmp_path))
    assert (
        result.is_good
        and result.rank_parts == ()
        and not [text for text in result.qualifications if "parts" in text]
    )


def test_computing_that_is_not_known_leaves_the_input(tmp_path: Path) -> None:
    of = {rank: facts(rank) | {"compute_s": []} for rank in range(4)}
    of[3]["input_s"] = [0.06] * BLOCKS
    row = next(row for row in summarize([read_run(run_with(tmp_path, of=of))]).rows if row.is_speed)
    assert [times.compute_s for times in row.ranks] == [None] * 4
    assert [text for text in row.qualifications if "input" in text] == [
        "rank 3 on node2 waits for its input 11.8% (7.1% to 16.5%) of a step longer than the other ranks"
    ]


def test_processor_time_is_read_where_it_is_printed_and_missed_nowhere(tmp_path: Path) -> None:
    of = {rank: facts(rank) | {"compute_cpu_s": [0.08] * BLOCKS} for rank in range(3)} | {
        3: facts(3)
    }
    result = read_run(run_with(tmp_path, of=of))
    assert [len(part.compute_cpu_s) for part in result.rank_parts] == [BLOCKS, BLOCKS, BLOCKS, 0]
    row = next(row for row in summarize([result]).rows if row.is_speed)
    assert [times.compute_cpu_s for times in row.ranks] == [0.08, 0.08, 0.08, None]
    assert [times.cpu_excess for times in row.ranks] == [None] * 4 and all(
        times.excess for times in row.ranks
    )


def test_gpus_that_wait_for_their_programs_are_told_beside_the_number_and_nobody_is_named(
    tmp_path: Path,
) -> None:
    of = {
        rank: facts(rank, 0.14 if rank == 2 else 0.1) | {"gpu_waits": 0.96 if rank == 2 else 0}
        for rank in range(4)
    }
    result = read_run(run_with(tmp_path, of=of))
    assert [part.gpu_waits for part in result.rank_parts] == [0.0, 0.0, 0.96, 0.0]
    row = next(row for row in summarize([result]).rows if row.is_speed)
    assert row.slow == () and [text for text in row.qualifications if "compute" in text] == [
        "the GPU of rank 2 on node2 waits for its program (the CPU side) in 96% of the steps, "
        "so ranks are not compared by compute time"
    ]


WRONG = {
    "half a line": '{"rank": 2, "first_step": 3}',
    "not an object": '{"rank": 2}'.replace('"rank": 2', '"a": NaN'),
    "a rank of another node": json.dumps(facts(0)),
    "no rank": json.dumps(facts(2) | {"rank": True}),
    "twice": json.dumps(facts(2)),
    "another window": json.dumps(facts(2) | {"first_step": 1}),
    "too many blocks": json.dumps(facts(2) | {"step_s": [0.5] * 5000}),
    "fewer blocks": json.dumps(
        facts(2) | {name: [0.1] * 5 for name in ("step_s", "input_s", "compute_s")}
    ),
    "text": json.dumps(facts(2) | {"input_s": ["0.1"] * BLOCKS}),
    "negative": json.dumps(facts(2) | {"input_s": [-0.1] * BLOCKS}),
    "absurd": json.dumps(facts(2) | {"compute_s": [1e300] * BLOCKS}),
    "no time": json.dumps(facts(2) | {"step_s": [0.0] * BLOCKS}),
    "a part is missing": json.dumps(
        {key: value for key, value in facts(2).items() if key != "compute_s"}
    ),
    "fewer blocks of processor time": json.dumps(
        facts(2) | {"compute_cpu_s": [0.1] * (BLOCKS - 1)}
    ),
    "more than all steps": json.dumps(facts(2) | {"gpu_waits": 1.01}),
    "a share that is no number": json.dumps(facts(2) | {"gpu_waits": True}),
    "deep": "{" + '"a":{' * 60 + "}" * 61,
    "escapes": json.dumps(facts(2) | {"rank": "\x1b[2J<script>"}),
}


@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG.keys())
def test_a_line_that_cannot_be_right_is_named_and_the_run_keeps_its_number(
    tmp_path: Path, line: str
) -> None:
    others = [rank for rank in range(4) if rank != 2 or line == WRONG["twice"]]
    result = read_run(
        run_with(tmp_path, f"orch parts {line}", of={rank: facts(rank) for rank in others})
    )
    assert result.is_good and result.rank_parts == ()
    (note,) = (text for text in result.qualifications if text.startswith("the parts of steps"))
    assert "were not used: expected" in note and len(note) < 300


def test_a_rank_without_its_line_is_missed(tmp_path: Path) -> None:
    result = read_run(run_with(tmp_path, of={rank: facts(rank) for rank in (0, 1, 3)}))
    assert (
        "the parts of steps were not used: expected one line of each of 4 ranks, got 3 lines"
        in result.qualifications
    )
