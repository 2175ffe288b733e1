"""Benches that add repeats until intervals are narrow, and benches with a budget of time."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import Any

from tests.e2e.rig import QUICK, SMALL, Controller
from tests.support import judge

STEADY = (*SMALL, "--set", "compute_ms=50", "--steps", "4", "--warmup-steps", "1")


def record_of(controller: Controller) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((controller.bench / "bench.json").read_text())
    return value


def decisions(controller: Controller) -> list[tuple[str, int]]:
    """Return reason and number of blocks of each decision in the journal."""
    return [
        (event["reason"], event["blocks"])
        for event in controller.events()
        if event["event"] == "decided"
    ]


def test_repeats_are_added_block_by_block_to_the_baseline_too_and_the_table_says_so(
    controller: Controller,
) -> None:
    aim = ("--until-ci", "0.001%", "--repeats", "2", "--max-repeats", "4", "--order", "random")
    done = controller.orch("bench", *QUICK, "--nodes", "1,2", "--gpus", "1", *aim, "--json")
    assert done.code == 0, done
    assert "plan: 2 cells, 2 to 4 repeats; until every 95 % interval is within ±0.001%" in done.err
    assert "[8/8]" in done.err and "4 of at most 4 repeats; widest 95 % interval ±" in done.err
    assert [row["n"] for row in done.json["rows"]] == [4, 4]
    # A busy machine has notes of its own: slower on the way, a row far from its median.
    notes = done.json["notes"]
    seed = record_of(controller)["course"]["seed"]
    end = "after 4 repeats, the maximum, not every 95 % interval is within ±0.001%; the widest is ±"
    assert notes.count(f"random order in blocks, seed {seed}") == 1
    assert sum(note.startswith(end) for note in notes) == 1
    assert decisions(controller) == [("wide", 2), ("wide", 3), ("most", 4)]
    blocks = [json.loads((run / "manifest.json").read_text())["repeat"] for run in controller.runs]
    assert blocks == [1, 1, 2, 2, 3, 3, 4, 4]
    assert controller.orch("summarize", "--json").out == done.out

    again = (
        "bench",
        *QUICK,
        "--baseline",
        "--nodes",
        "2",
        "--gpus",
        "1",
        "--repeats",
        "2",
        "--dry-run",
    )
    borrowing, measuring = controller.orch(*again), controller.orch(*again, "--until-ci", "1%")
    assert ("-1n1g-" in borrowing.out, "-1n1g-" in measuring.out) == (False, True)


def test_a_bench_that_is_narrow_enough_ends_with_the_repeats_it_began_with(
    controller: Controller,
) -> None:
    done = controller.orch("bench", *STEADY, "--nodes", "2", "--until-ci", "99%", "--repeats", "3")
    assert done.code == 0 and decisions(controller) == [("narrow", 3)], done
    assert (
        "repeats were added until every 95 % interval was within ±99%: 3; the widest is" in done.out
    )


def test_resume_after_a_kill_in_an_added_block_ends_as_the_bench_would_have(
    controller: Controller,
) -> None:
    words = (
        *SMALL,
        "--set",
        "compute_ms=40",
        "--steps",
        "15",
        "--warmup-steps",
        "1",
        "--nodes",
        "1,2",
        "--gpus",
        "1",
    )
    process = controller.start(
        "bench",
        *words,
        "--until-ci",
        "0.001%",
        "--repeats",
        "2",
        "--max-repeats",
        "3",
        "--lease",
        "5",
    )
    judge.wait_for(lambda: list(controller.project.glob("runs/*/events.jsonl")), 20, "no bench")
    judge.wait_for(lambda: decisions(controller) == [("wide", 2)], 40, "no block was added")
    judge.wait_for(lambda: len(controller.runs) == 5, 20, "no run of the added block")
    os.kill(process.pid, signal.SIGKILL)
    controller.end(process, 10)
    before = record_of(controller)
    assert len(before["runs"]) == 6

    done = controller.orch("resume", "--json")
    assert done.code == 0, done
    after = record_of(controller)
    fresh = {old: after["superseded"].get(old, old) for old in before["runs"]}
    assert after["runs"] == list(fresh.values())
    assert [row["n"] for row in done.json["rows"]] == [3, 3]
    assert decisions(controller) == [("wide", 2), ("most", 3)]
    again = controller.orch("resume", "--json")
    assert (again.code, again.out) == (0, done.out) and record_of(controller)["runs"] == after[
        "runs"
    ]


def test_a_budget_leaves_out_what_does_not_fit_whole_blocks_first_and_says_so(
    controller: Controller,
) -> None:
    words = (*STEADY, "--nodes", "1,2", "--gpus", "1", "--repeats", "40")
    began = time.monotonic()
    assert controller.orch("bench", *STEADY, "--nodes", "1,2", "--gpus", "1").code == 0
    # Of a block of both; what orch itself takes to start is a part of it, the more the busier the
    # machine is.
    budget_s = max(4, round(2 * (time.monotonic() - began)))
    done = controller.orch("bench", *words, "--budget", f"{budget_s}s", "--json")
    assert done.code == 0, done
    first, second = (row["n"] for row in done.json["rows"])
    assert abs(first - second) <= 1 and 1 <= second < 40, done.json
    (note,) = (note for note in done.json["notes"] if note.startswith("left out"))
    left_out, _, rest = note.partition(" runs, ")
    assert re.fullmatch(rf"left out for the budget of .+: {80 - first - second}", left_out), note
    # What would have been next comes first: every other block runs backwards.
    assert sorted(rest.split(", ")) == sorted([f"{40 - first} of 1n1g", f"{40 - second} of 2n1g"])
    assert note in done.err and "s of the budget left" in done.err
    events = controller.events()
    begun, ended = (
        next(one["at"] for one in events if one["event"] == name) for name in ("begun", "decided")
    )
    assert judge.in_time(ended - begun, 2 * budget_s)
    assert "to continue" not in controller.orch("status").out
    assert controller.orch("resume", "--json").out == done.out

    plan = controller.orch("bench", *words, "--budget", "1m", "--dry-run")
    assert plan.code == 0 and "a budget of 60 s, enough for about " in plan.out
    short = controller.orch("bench", *words, "--budget", "0.2s")
    assert (
        short.code == 1
        and "used up before the first run of 1n1g fp32. use a larger --budget" in short.err
    ), short
    assert not controller.runs and controller.orch("resume", controller.bench.name).code == 1


def test_cells_that_only_fail_end_a_bench_and_a_detached_one_tells_so_too(
    controller: Controller,
) -> None:
    words = (
        "--set",
        "fail_at_step=2",
        "--until-ci",
        "5%",
        "--repeats",
        "3",
        "--keep-going",
        "--detach",
    )
    assert controller.orch("bench", *QUICK, "--nodes", "1", "--gpus", "1", *words).code == 0
    done = controller.orch("attach", "--json")
    assert done.code == 1 and decisions(controller) == [("failing", 3)], done
    assert "no further repeats: the last three of every cell failed" in done.json["notes"]
    assert [(row["n"], row["failed"]) for row in done.json["rows"]] == [(0, 3)]
