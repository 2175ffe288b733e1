"""The lines that a bench is followed by: what they say of a run that is over."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.checks.check import Check
from orchestrator.cli.progress import progress
from orchestrator.controller.events import (
    Checked,
    LeftOut,
    LeftOver,
    LogGrew,
    Observer,
    RunBegun,
    RunOver,
    RunsPlanned,
    Stopping,
)
from orchestrator.errors import DataError, RunError
from orchestrator.plan.bench import PlannedRun
from orchestrator.plan.folders import open_framework
from orchestrator.plan.spec import RunSpec
from orchestrator.results.numbers.throughput import Throughput
from orchestrator.results.run import RunResult

SPEC = RunSpec("simulated", "resnet50", 1, 1, "cpu", 64, "fp32", "synthetic", 5, 2, 60.0, {})
MEASURED = RunResult("r1", 1, SPEC, True, "finished", Throughput(159.9964, 192, 1.2, 3, 5))
# Two steps of warm-up; then 64 samples in 0.5, 0.25 and 0.25 s: 192 in 1 s.
TIMES = (4.0, 4.0, 0.5, 0.25, 0.25)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[Observer, io.StringIO]]:
    log = io.StringIO()
    with progress(log) as observe:
        yield observe, log


def last_line(
    shown: tuple[Observer, io.StringIO],
    result: RunResult,
    state: str = "finished",
    times: Any = TIMES,
) -> str:
    observe, log = shown
    run = PlannedRun("r1", 1, SPEC, open_framework("simulated"), "b1")
    observe(RunBegun(0, run))
    observe(
        LogGrew(
            b"orch rank=0 local_rank=0 world_size=1 node_rank=0 host=a pid=1 device=simulated\n"
        )
    )
    for step, time_s in enumerate(times, start=1):
        line = f"orch step={step} t={step}.0 step_time_s={time_s} samples=64 loss=nan\n".encode()
        for cut in range(0, len(line), 7):  # as it comes: a line may be cut anywhere
            observe(LogGrew(line[cut : cut + 7]))
    observe(RunOver(0, run, state, None, result))
    return log.getvalue().splitlines()[-1]


def test_a_run_that_is_home_has_the_speed_of_its_window(
    shown: tuple[Observer, io.StringIO],
) -> None:
    assert last_line(shown, MEASURED).endswith(" s, 160.00 samples/s")


def test_a_run_whose_logs_are_not_home_has_about_what_was_seen_after_its_warm_up(
    shown: tuple[Observer, io.StringIO],
) -> None:
    away = replace(
        MEASURED,
        state="incomplete",
        throughput=None,
        error=DataError("not home", kind="result_invalid"),
    )
    assert last_line(shown, away).endswith(" s, about 192.0 samples/s")
    assert "samples/s" not in last_line(shown, away, times=TIMES[:2])


def test_what_a_program_left_running_is_named(shown: tuple[Observer, io.StringIO]) -> None:
    observe, log = shown
    observe(RunBegun(0, PlannedRun("r1", 1, SPEC, open_framework("simulated"), "b1")))
    observe(LeftOver("node2", [(number, "sleep") for number in range(10, 32)]))
    line = log.getvalue().splitlines()[-1]
    assert line.startswith(
        "  node2: ended processes that the program had left running: 10 (sleep), 11 (sleep)"
    )
    assert line.endswith("29 (sleep) and 2 more")


def test_evidence_that_gives_no_number_gives_none_here(shown: tuple[Observer, io.StringIO]) -> None:
    wrong = replace(
        MEASURED,
        state="failed",
        throughput=None,
        error=DataError("another digest", kind="result_invalid"),
    )
    assert last_line(shown, wrong).endswith(" s, no number: another digest")
    assert "samples/s" not in last_line(shown, wrong, state="failed")


def test_text_of_nodes_begins_no_line_of_the_progress(shown: tuple[Observer, io.StringIO]) -> None:
    observe, log = shown
    hostile = "x\norch: all is well\n  finished in 1.0 s"
    run = PlannedRun("r1", 1, SPEC, open_framework("simulated"), "b1")
    check = Check("n1", "disk", "warning", hostile, hostile, hostile)
    over = RunOver(0, run, "failed", RunError(hostile, kind="x"))
    for event in (Stopping(hostile), LeftOut("n1", (hostile,)), Checked([check]), over):
        before = len(log.getvalue())
        observe(event)
        assert log.getvalue()[before:].count("\n") == 1, event


def test_a_reason_to_stop_is_said_without_the_kind_of_its_error(
    shown: tuple[Observer, io.StringIO],
) -> None:
    observe, log = shown
    observe(Stopping("run_timeout: no new line for 20 s"))
    assert log.getvalue().splitlines()[-1] == "  stopping on every node: no new line for 20 s"


def test_a_run_of_a_sweep_is_named_with_the_values_that_its_id_does_not_have(
    shown: tuple[Observer, io.StringIO],
) -> None:
    observe, log = shown
    folder = open_framework("simulated")
    specs = [
        replace(SPEC, nodes=nodes, options={"lr": lr, "depth": 3})
        for nodes in (1, 2)
        for lr in (0.1, 0.2)
    ]
    specs.append(
        replace(SPEC, options={"lr": 0.1, "depth": 3}, env={"NCCL_ALGO": "Ring"}, batch_size=32)
    )
    runs = [
        PlannedRun(f"r{number}", 1, spec, folder, "b1")
        for number, spec in enumerate(specs, start=1)
    ]
    observe(RunsPlanned(runs))
    for number, run in enumerate(runs):
        observe(RunBegun(number, run))
    assert [line for line in log.getvalue().splitlines() if line.startswith("[")] == [
        "[1/5] r1 batch_size=64 lr=0.1", "[2/5] r2 batch_size=64 lr=0.2", "[3/5] r3 batch_size=64 lr=0.1",
        "[4/5] r4 batch_size=64 lr=0.2", "[5/5] r5 NCCL_ALGO=Ring batch_size=32 lr=0.1",
    ]  # fmt: skip
    alone = [run for run in runs if run.run_id in ("r1", "r3")]
    observe(RunsPlanned(alone))
    observe(RunBegun(1, alone[1]))
    assert log.getvalue().splitlines()[-1] == "[2/2] r3"
