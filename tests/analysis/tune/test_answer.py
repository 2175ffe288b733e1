"""What `orch summarize` shows of a tune: the default and the best beside each other, and where all else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.tune.answer import compared, tuned
from orchestrator.controller.search import Search
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import open_framework
from orchestrator.plan.schedule import Schedule
from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from tests.support import commands
from tests.support.run_folders import build, manifest

KNOB = {"env": ["NCCL_ALGO"], "option": "", "values": [["Ring"], ["Tree"], ["PAT"]], "networks": [], "numerics": False,
        "default": "unset"}  # fmt: skip
ALGOS = ("", "Ring", "Tree", "PAT")
"""By cell, the default first."""
FIRST = [("r2", 0, 0.50), ("r3", 1, 0.48), ("r4", 2, 0.40), ("r5", 3, 0.60)]
"""Runs of the first rung: cell, and seconds of a step. Tree is best."""
LAST = [(f"r{6 + 2 * n + best}", 2 * best, 0.4 if best else 0.5) for n in range(3) for best in (0, 1)]
"""The confirmation: three times the default and Tree."""


def bench(root: Path, rungs: list[list[tuple[str, int, float]]]) -> BenchDir:
    """Write a tune as its controller leaves it: the pilot ``r1`` and these rungs, of which the second one confirms."""
    plan: dict[str, Any] = {"r1": {"cell": 0, "repeat": 1}}
    kept = [{"candidates": [[1], [2], [3]], "repeats": 1, "steps": 12, "confirms": False, "cells": [0, 1, 2, 3]},
            {"candidates": [[2]], "repeats": 3, "steps": 12, "confirms": True, "cells": [0, 2]}]  # fmt: skip
    for number, runs in enumerate(rungs):
        for place, (run, cell, _) in enumerate(runs):
            plan[run] = {"cell": cell, "repeat": 2 + number + place // len(kept[number]["cells"]), "rung": number}
    cells = [{"spec": {**manifest("")["spec"], "env": {"NCCL_ALGO": algo} if algo else {}}, "origins": {}} for algo in ALGOS]
    tune = {"knobs": [KNOB], "seed": 1, "numerics": False, "output": "", "held": {}, "rungs": kept[: len(rungs)], "ended": ""}
    record = {
        "bench_id": "b1",
        "created": "2025-01-01",
        "runs": list(plan),
        "plan": plan,
        "cells": cells,
        "inventory": "lab.yaml",
    }
    more = {"planned_with": {"hosts": {"node1": {}, "node2": {}}}}
    more["tune"] = {**tune, "ended": "confirmed" if len(rungs) == 2 else ""}
    made = BenchDir.create(root / "runs", record | more)
    for run, cell, seconds in [("r1", 0, 0.5), *(each for runs in rungs for each in runs)]:
        env = {"NCCL_ALGO": ALGOS[cell]} if ALGOS[cell] else {}

        def turned(planned: dict[str, Any], _: Any, env: dict[str, str] = env) -> None:
            planned["spec"]["env"] = env
            planned["origins"] = {"env.NCCL_ALGO": "tune"} if env else {"timeout_s": "tune"}

        build(made, run, turned, repeat=plan[run]["repeat"], seconds=seconds)
    return made


@pytest.mark.parametrize(("rungs", "shown", "others"), [
    ([], ["r1"], 0), ([FIRST], ["r2", "r4"], 2), ([FIRST, []], ["r2", "r4"], 2),
    ([FIRST, LAST], ["r6", "r7", "r8", "r9", "r10", "r11"], 2),
])  # fmt: skip
def test_the_default_and_the_best_are_shown_as_they_ran_beside_each_other_last(
    tmp_path: Path, rungs: list[list[tuple[str, int, float]]], shown: list[str], others: int
) -> None:
    made = bench(tmp_path, rungs)
    results = [read_run(run) for run in made.runs()]
    told, count = compared(made, results)
    assert ([run.run_id for run in told], count) == (shown, others)
    assert tuned(made, results) == tuned(made)


def test_people_see_the_answer_and_two_rows_and_programs_see_all(tmp_path: Path) -> None:
    bench(tmp_path, [FIRST, LAST])

    def summarize(form: str) -> str:
        done = commands.orch(tmp_path, "summarize", "b1", "--format", form, environment={"COLUMNS": "150"})
        assert done.returncode == 0, done
        return done.stdout

    table = summarize("table")
    assert [line.split()[:3] for line in table.splitlines() if line.startswith(("case ", "2n2g "))] == [
        ["case", "NCCL_ALGO", "n"], ["2n2g", "3", "128.00"], ["2n2g", "Tree", "3"],
    ]  # fmt: skip
    shown = " ".join(table.split())
    # 64 samples a step, of 0.5 s and of 0.4 s.
    assert "1.250 times the speed of the default" in shown and "160.0 against 128.0 samples/s): NCCL_ALGO=Tree" in shown
    assert "2 other candidates and 5 earlier runs are not shown: orch attach b1 lists all candidates" in shown
    document = json.loads(summarize("json"))
    assert sorted(row["median"] for row in document["rows"]) == pytest.approx([64 / 0.6, 64 / 0.5, 64 / 0.48, 64 / 0.4])


def test_a_budget_that_is_over_before_the_first_run_ends_a_tune_each_time_it_is_gone_on_with(tmp_path: Path) -> None:
    made, seconds = bench(tmp_path, []), [0.0, 9.0]  # a controller that took its time before anything ran
    (made.path / "r1").rename(tmp_path / "away")
    spec = made.record().cells[0]
    plan = Bench("b1", (spec,), {"pytorch": open_framework("pytorch")}, Schedule(budget_s=5))
    first = Search(made, plan, lambda *_: None, clock=lambda: seconds.pop(0) if len(seconds) > 1 else seconds[0])
    owed = [replace(plan.planned()[0], run_id="r1")]
    again = Search(made, plan, lambda *_: None)
    for search, runs in ((first, owed), (again, [])):
        assert list(search.runs(runs)) == []
        (error,) = search.counted([])
        text = "the budget of 5 s was used up before the first run. start a new orch tune with a larger --budget"
        assert str(error).endswith(text)
    assert tuned(made).why == "no time was left to try a candidate"
