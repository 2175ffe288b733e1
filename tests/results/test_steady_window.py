"""Whether the window of a run lies in its steady state: read from its log, said once, and in every
output that has repeats.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from orchestrator.report.cells import details
from orchestrator.report.formats import json as as_json
from orchestrator.results.hardware import unsteady_in
from orchestrator.results.numbers.notes import SLOW_START
from orchestrator.results.numbers.steady_start import SteadyStart
from orchestrator.results.numbers.tempo import StepTimes
from orchestrator.results.read import read_run
from orchestrator.results.run import RunResult
from orchestrator.results.summary import summarize
from tests.support.run_folders import BATCH, WORLD, build, closing, rank_line
from tests.support.summaries import runs

TIMES = StepTimes.of([0.5, 0.5, 0.6])


def warmed(*firsts: int | None, **changes: Any) -> list[RunResult]:
    """Runs whose window is steps 21 to 120, and whose steady state began with these steps."""
    made = runs("1n1g", [100.0] * len(firsts), step_times=TIMES, **changes)
    return [
        replace(run, steady=SteadyStart(first, 0.5))
        for run, first in zip(made, firsts, strict=True)
    ]


def test_a_window_within_the_steady_state_gets_no_note_and_one_before_it_says_what_is_enough() -> (
    None
):
    assert unsteady_in(warmed(1, 21)) == []
    assert unsteady_in(warmed(41)) == [
        "not steady: the steady state begins with step 41, the window with step 21: --warmup-steps 40 or more"
    ]
    assert unsteady_in(warmed(None)) == [
        "not steady: the run reached no steady state: more --steps may be needed"
    ]
    (text,) = unsteady_in(warmed(1, 41, 41))
    assert text.startswith(
        "not steady in 2 of 3 runs; in repeat 2: the steady state begins with step 41"
    )


def test_what_is_known_of_the_window_and_of_its_warm_up_is_one_note_with_one_hint() -> None:
    found = SLOW_START(steps="steps 21-40", longer=0.24, cost="2 s, 4.0% of the window")
    (text,) = unsteady_in(warmed(41, unsteady=(found,)))
    assert text == (
        "not steady: steps 21-40 took 24.0% longer per step than the others; that is 2 s, 4.0% of the window; "
        "the steady state begins with step 41, the window with step 21: --warmup-steps 40 or more"
    )


def test_it_is_in_json_and_beside_the_step_times() -> None:
    summary = summarize(warmed(3, 11, 41))
    repeats = json.loads(as_json.render(summary))["rows"][0]["repeats"]
    assert [repeat["steady"] for repeat in repeats] == [
        {"first_step": first, "step_s": 0.5} for first in (3, 11, 41)
    ]
    assert [repeat["window_is_steady"] for repeat in repeats] == [True, True, False]
    assert "steady from step 3 to 41" in details(summary.rows[0])
    none = details(summarize(warmed(3, None)).rows[0])
    assert "steady from step 3; no steady state in 1 of 2 runs" in none


@pytest.mark.parametrize(("slow", "early"), [(10, False), (40, True)])
def test_a_run_learns_it_from_all_steps_of_its_log(tmp_path: Path, slow: int, early: bool) -> None:
    def long(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {"steps": 120, "warmup_steps": 20}
        at, lines = 900.0, ["orch step=0 t=900.0 step_time_s=0 samples=0 loss=nan\n"]
        for step in range(1, 121):
            seconds = (0.15 if step <= slow else 0.1) * (1 + 0.01 * (step % 3))
            at += seconds
            lines.append(
                f"orch step={step} t={at:.6f} step_time_s={seconds:.6f} samples={BATCH * WORLD} loss=6.9\n"
            )
        logs[0]["rank-0.out"] = rank_line(0) + "".join(lines) + closing(steps=120)

    bench = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"]}
    )
    run = read_run(build(bench, "r1", long))
    assert (
        run.error is None
        and run.steady
        and run.steady.first_step == slow + 1
        and run.begins_too_early is early
    )
