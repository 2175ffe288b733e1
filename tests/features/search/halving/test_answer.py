"""What `orch summarize` shows of a tune: the default and the best beside each other, and where all
else is.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.features.search.halving.answer import Tuned, answer, rungs
from orchestrator.features.search.halving.files import options_file
from orchestrator.features.search.kinds import in_short
from orchestrator.features.search.reading import open_search
from orchestrator.features.search.record import TuneRecord
from orchestrator.features.search.rounds import Rounds
from orchestrator.inventory import Host
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import open_framework
from orchestrator.plan.run_file import run_file_of
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import resolve
from orchestrator.record.bench_record import BenchRecord
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import read_state, write_state
from orchestrator.results.bench import read_bench
from orchestrator.results.read import read_run
from orchestrator.yamlfile import loads
from tests.support import commands
from tests.support.run_folders import GPUS, NODES, STEPS, build, closing, manifest, rank_line

KNOB = {"env": ["NCCL_ALGO"], "option": "", "values": [["Ring"], ["Tree"], ["PAT"]], "networks": [], "numerics": False,
        "default": "unset"}  # fmt: skip
ALGOS = ("", "Ring", "Tree", "PAT")
"""By cell, the default first."""
FIRST = [("r2", 0, 0.50), ("r3", 1, 0.48), ("r4", 2, 0.40), ("r5", 3, 0.60)]
"""Runs of the first rung: cell, and seconds of a step. Tree is best."""
LAST = [
    (f"r{6 + 2 * n + best}", 2 * best, 0.4 if best else 0.5) for n in range(3) for best in (0, 1)
]
"""The confirmation: three times the default and Tree."""


def bench(root: Path, rungs: list[list[tuple[str, int, float]]]) -> BenchDir:
    """Write a tune as its controller leaves it: the pilot ``r1`` and these rungs, of which the
    second one confirms.
    """
    plan: dict[str, Any] = {"r1": {"cell": 0, "repeat": 1}}
    kept = [{"candidates": [[1], [2], [3]], "repeats": 1, "steps": 12, "confirms": False, "cells": [0, 1, 2, 3]},
            {"candidates": [[2]], "repeats": 3, "steps": 12, "confirms": True, "cells": [0, 2]}]  # fmt: skip
    for number, runs in enumerate(rungs):
        for place, (run, cell, _) in enumerate(runs):
            plan[run] = {
                "cell": cell,
                "repeat": 2 + number + place // len(kept[number]["cells"]),
                "rung": number,
            }
    cells = [
        {
            "spec": {**manifest("")["spec"], "env": {"NCCL_ALGO": algo} if algo else {}},
            "origins": {},
        }
        for algo in ALGOS
    ]
    tune = {
        "knobs": [KNOB],
        "seed": 1,
        "numerics": False,
        "output": "",
        "held": {},
        "rungs": kept[: len(rungs)],
        "ended": "",
    }
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


def tuned(made: BenchDir) -> Tuned:
    found = open_search(made, read_bench(made)).outcome(made.record()).result
    assert isinstance(found, Tuned)
    return found


def tune_of(record: BenchRecord) -> TuneRecord:
    found = record.added["tune"]
    assert isinstance(found, TuneRecord)
    return found


@pytest.mark.parametrize(("rungs", "shown"), [
    ([], ["r1"]), ([FIRST], ["r2", "r3", "r4", "r5"]), ([FIRST, []], ["r2", "r3", "r4", "r5"]),
    ([FIRST, LAST], ["r6", "r7", "r8", "r9", "r10", "r11"]),
])  # fmt: skip
def test_the_last_round_is_shown_in_which_the_default_and_the_best_ran_beside_each_other(
    tmp_path: Path, rungs: list[list[tuple[str, int, float]]], shown: list[str]
) -> None:
    made = bench(tmp_path, rungs)
    results = [read_run(run) for run in made.runs()]
    told, notes = in_short(made, results, results)
    assert [run.run_id for run in told] == shown and notes[0] == answer(tuned(made))
    again, record = read_bench(made), made.record()
    assert open_search(made, results).outcome(record) == open_search(made, again).outcome(record)


def test_people_see_the_answer_and_two_rows_and_programs_see_all(tmp_path: Path) -> None:
    bench(tmp_path, [FIRST, LAST])

    def summarize(form: str) -> str:
        done = commands.orch(
            tmp_path, "summarize", "b1", "--format", form, environment={"COLUMNS": "150"}
        )
        assert done.returncode == 0, done
        return done.stdout

    table = summarize("table")
    assert [line.split()[:3] for line in table.splitlines() if line.startswith(("case ", "2n2g "))] == [
        ["case", "NCCL_ALGO", "n"], ["2n2g", "3", "128.00"], ["2n2g", "Tree", "3"],
    ]  # fmt: skip
    shown = " ".join(table.split())
    # 64 samples a step, of 0.5 s and of 0.4 s.
    assert (
        "1.250 times the speed of the default" in shown
        and "medians 160.0 against 128.0 samples/s): NCCL_ALGO=Tree" in shown
    )
    assert "not shown: 5 earlier runs; orch attach b1 lists all candidates" in shown
    document = json.loads(summarize("json"))
    assert sorted(row["median"] for row in document["rows"]) == pytest.approx(
        [64 / 0.6, 64 / 0.5, 64 / 0.48, 64 / 0.4]
    )


def test_a_budget_that_is_over_before_the_first_run_ends_a_tune_each_time_it_is_gone_on_with(
    tmp_path: Path,
) -> None:
    made, seconds = (
        bench(tmp_path, []),
        [0.0, 9.0],
    )  # a controller that took its time before anything ran
    (made.path / "r1").rename(tmp_path / "away")
    spec = made.record().cells[0]
    plan = Bench("b1", (spec,), {"pytorch": open_framework("pytorch")}, Schedule(budget_s=5))
    first = Rounds(
        made,
        plan,
        lambda *_: None,
        clock=lambda: seconds.pop(0) if len(seconds) > 1 else seconds[0],
    )
    owed = [replace(plan.list_runs()[0], run_id="r1")]
    again = Rounds(made, plan, lambda *_: None)
    for search, runs in ((first, owed), (again, [])):
        assert list(search.runs(runs)) == []
        (error,) = search.select_errors([])
        text = "start a new orch tune with --budget 1m or more, or fewer --steps"
        assert str(error).endswith(text)
    assert tuned(made).why == "no time was left to try a candidate"


# --- a language model

SIZE = {"env": [], "option": "", "multiplies": "batch_size", "values": [[2], [4], [3]], "networks": [], "numerics": False,
        "default": ""}  # fmt: skip
MICRO, GLOBAL = 2, 16


def language(root: Path, global_batch: int | None = GLOBAL) -> tuple[BenchDir, Bench]:
    """Write a tune of the micro-batch after its pilot, with a constant global batch or without, and
    its controller's plan.
    """
    folder = open_framework("pytorch_lm")
    choices = {
        "nodes": NODES,
        "gpus": GPUS,
        "steps": STEPS,
        "warmup_steps": 2,
        "batch_size": MICRO,
        "global_batch": global_batch,
    }
    spec = resolve(folder.framework, "gpt-tiny", device="cpu", choices=choices)
    tune = {
        "knobs": [SIZE],
        "seed": 1,
        "numerics": False,
        "output": "",
        "held": {},
        "rungs": [],
        "ended": "",
    }
    record = {
        "bench_id": "b1",
        "created": "2025-01-01",
        "runs": ["r1"],
        "plan": {"r1": {"cell": 0, "repeat": 1}},
    }
    record |= {
        "cells": [{"spec": spec.as_dict(), "origins": dict(spec.origins)}],
        "inventory": "lab.yaml",
        "tune": tune,
    }
    made = BenchDir.create(root / "runs", record)

    def pilot(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"], planned["origins"] = spec.as_dict(), dict(spec.origins)
        planned["framework"] |= {"name": "pytorch_lm", "measures": "language_model"}
        lines = [
            f"orch step={n} t={900 + n} step_time_s=1 samples={spec.global_batch if n else 0}\n"
            for n in range(STEPS + 1)
        ]
        facts = {
            "model": "gpt-tiny",
            "dtype": spec.dtype,
            "batch_size": MICRO,
            "global_batch": spec.global_batch,
        }
        logs[0]["rank-0.out"] = rank_line(0) + "".join(lines) + closing(**facts)

    build(made, "r1", pilot)
    return made, Bench("b1", (spec,), {"pytorch_lm": folder}, Schedule(budget_s=3000))


def test_candidates_that_cannot_be_run_are_losers_with_their_reason(tmp_path: Path) -> None:
    made, plan = language(tmp_path)
    said: list[Any] = []
    started = next(Rounds(made, plan, said.append).runs([]))
    record = made.record()
    assert (tune := tune_of(record)) and record.plan
    (rung,) = tune.rungs
    assert rung.candidates == ((1,),) and [candidate for candidate, _ in rung.refused] == [
        (2,),
        (3,),
    ]
    default, doubled = (record.cells[cell] for cell in rung.cells)
    assert (default.batch_size, doubled.batch_size) == (MICRO, 2 * MICRO) and started.spec in (
        default,
        doubled,
    )
    assert (
        default.global_batch == doubled.global_batch == GLOBAL
        and doubled.options["accumulation"] == 1
    )
    result = tuned(made)
    assert (result.unit, result.global_batches) == ("tokens/s", (GLOBAL, GLOBAL))
    failures = {tried.settings: tried.failure for tried in result.tried}
    assert failures["batch_size=8"] == (
        "--global-batch: expected a divisor of the global batch 16, got 4 copies of the model with 8 samples each, 32"
    )
    assert any(
        "batch_size=6: –  --global-batch: expected a divisor" in line for line in rungs(result)[0]
    )


def test_a_larger_batch_has_more_time_for_its_steps(tmp_path: Path) -> None:
    made, plan = language(tmp_path, None)
    next(Rounds(made, plan, lambda *_: None).runs([]))
    record = made.record()
    assert (tune := tune_of(record))
    limits = {
        record.cells[cell].batch_size: record.cells[cell].timeout_s for cell in tune.rungs[0].cells
    }
    assert limits == {2: 240, 4: 480, 8: 960, 6: 720}


def test_a_candidate_that_a_template_refuses_is_a_loser_too(tmp_path: Path) -> None:
    made, plan = language(tmp_path, None)
    folder = plan.folders["pytorch_lm"]
    refusing = (
        "{% if spec.batch_size == 8 %}{{ refuse('--batch-size', 'eight is too many') }}{% endif %}"
    )
    sources = {name: refusing + text for name, text in folder.sources.items()}
    plan = replace(plan, folders={"pytorch_lm": replace(folder, sources=sources)})
    hosts = [Host(f"node{n}", f"10.0.0.{n}", gpus=0, slots=GPUS) for n in range(1, NODES + 1)]
    next(Rounds(made, plan, lambda *_: None, hosts=hosts).runs([]))
    record = made.record()
    assert (tune := tune_of(record)) and tune.rungs[0].refused == (
        ((2,), "--batch-size: pytorch_lm: eight is too many"),
    )


def test_the_answer_says_that_a_step_computes_more_and_the_run_file_has_its_batch_size(
    tmp_path: Path,
) -> None:
    found = replace(
        tuned(bench(tmp_path, [FIRST, LAST])),
        batch_size=32,
        options={"checkpointing": "none"},
        env={},
        global_batches=(64, 128),
    )
    assert "; a step computes a global batch of 128 instead of 64): NCCL_ALGO=Tree" in answer(found)
    chosen = run_file_of(loads(options_file(found), "tuned.options.yaml"))
    assert chosen.single == {"batch_size": 32, "options.checkpointing": "none"}
    alone = run_file_of(loads(options_file(replace(found, options={})), "tuned.options.yaml"))
    assert alone.single == {"batch_size": 32}


def test_candidates_that_find_their_batch_size_are_told_with_the_one_that_they_found(
    tmp_path: Path,
) -> None:
    """The default finds 16 sequences per rank, the best candidate 24; both were planned with 8."""
    made = bench(tmp_path, [FIRST, LAST])
    record = read_state(made.path / "bench.json")
    step = {
        "tokens": 128,
        "micro_batches": 1,
        "model_ranks": 1,
        "recomputation": "none",
        "batch_size_up_to": 64,
    }
    for each in record["cells"]:
        each["spec"] |= {"batch_size": 8, "step": step}
    write_state(made.path / "bench.json", record)
    for run, cell, seconds in [("r1", 0, 0.5), *FIRST, *LAST]:
        found = 24 if cell == 2 else 16
        env = {"NCCL_ALGO": ALGOS[cell]} if ALGOS[cell] else {}

        def searched(
            planned: dict[str, Any],
            logs: Any,
            env: Any = env,
            found: int = found,
            seconds: float = seconds,
        ) -> None:
            planned["spec"] |= {"env": env, "batch_size": 8, "step": step}
            planned["framework"] |= {"measures": "language_model"}
            planned["origins"] = {"env.NCCL_ALGO": "tune"} if env else {"timeout_s": "tune"}
            sequences = found * NODES * GPUS
            steps = [
                f"orch step={n} t={900 + n * seconds} step_time_s={seconds} samples={sequences * (n > 0)}\n"
                for n in range(STEPS + 1)
            ]
            logs[0]["rank-0.out"] = (
                rank_line(0) + "".join(steps) + closing(batch_size=found, global_batch=sequences)
            )

        build(made, run, searched, repeat=record["plan"][run]["repeat"])
    result = tuned(made)
    assert (result.batch_size, result.global_batches) == (None, (64, 96))
    assert result.gain and result.gain.ratio == pytest.approx(96 / 0.4 / (64 / 0.5))
    assert (
        f"{96 * 128 / 0.4:.1f} against {64 * 128 / 0.5:.1f} tokens/s; a step computes a global batch of 96 instead of 64"
        in answer(result)
    )
