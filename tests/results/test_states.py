"""The state of a run: what was recorded of it, what its evidence says, and when neither can be
trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import DataError, RunError, TransportError
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import store
from orchestrator.results.read import read_run
from tests.support.run_folders import Before, build


def outcome(value: Any) -> Before:
    return lambda planned, _logs: planned.update(outcome=value)


def test_a_run_without_a_recorded_outcome_is_judged_by_its_evidence(bench: BenchDir) -> None:
    assert read_run(build(bench, "r1", outcome(None))).state == "finished"
    run = build(bench, "r2", outcome(None))
    run.log_path("node2", "exit.json").unlink()
    result = read_run(run)
    assert result.state == "incomplete" and result.throughput is None
    assert result.error and result.error.host == "node2" and "orch collect" in str(result.error)


@pytest.mark.parametrize(
    ("kind", "branch"),
    [
        ("node_lost", TransportError),
        ("rank_failed", RunError),
        ("result_invalid", DataError),
        ("odd", RunError),
    ],
)
def test_a_recorded_failure_keeps_its_first_cause_and_has_no_number(
    bench: BenchDir, kind: str, branch: type
) -> None:
    error = {"kind": kind, "message": "no beat for 3.5 s", "host": "node2", "phase": "watch"}
    result = read_run(build(bench, "r1", outcome({"state": "lost", "error": error})))
    assert (result.state, result.throughput) == ("lost", None)
    assert result.error and type(result.error) is branch
    assert result.error.as_dict() == error | {"run_id": "r1"}


def test_the_node_that_failed_is_named_before_those_stopped_because_of_it(bench: BenchDir) -> None:
    def after(records: list[dict[str, Any]]) -> None:
        records[0].update(state="stopped", code=None, signal="SIGTERM", reason="told to stop")
        records[1].update(state="failed", code=1, reason="rank_failed: rank 3 ended with SIGKILL")

    result = read_run(build(bench, "r1", outcome(None), after))
    assert isinstance(result.error, RunError)
    assert (result.state, result.error.host) == ("failed", "node2")
    assert "rank 3 ended with SIGKILL" in str(result.error)


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_recorded_failure_without_a_cause_says_so(bench: BenchDir, state: str) -> None:
    result = read_run(build(bench, "r1", outcome({"state": state, "error": None})))
    assert result.state == state and "no cause was recorded" in str(result.error)


@pytest.mark.parametrize("key", ["spec", "framework", "placement"])
@pytest.mark.parametrize(
    "value",
    [None, 3, "x", [], {}, {"log": {"files": 1, "patterns": 2}}, {"slots": [{}]}, {"slots": []}],
)
def test_a_manifest_of_wrong_types_is_damaged_state(bench: BenchDir, key: str, value: Any) -> None:
    result = read_run(build(bench, "r1", lambda planned, _logs: planned.update({key: value})))
    assert (result.state, result.spec) == ("damaged", None)
    assert result.error and result.error.kind == "state_damaged"
    store(bench.run("r1"), result)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["spec"].update(steps="120"),
        lambda p: p["spec"].update(nodes=4),
        lambda p: p["spec"].update(loader=1),
        lambda p: p["spec"].update(timeout_s="600"),
        lambda p: p["origins"].update(steps=None),
        lambda p: p["placement"]["slots"][1].update(nproc=10**30),
        lambda p: p["placement"]["slots"][1].update(first_rank=0),
        lambda p: p["placement"]["slots"][1].update(host="../.."),
        lambda p: p.update(facts=[1]),
        lambda p: p.update(outcome="finished"),
        lambda p: p["framework"]["log"].update(patterns=[1]),
    ],
)
def test_a_manifest_that_contradicts_itself_is_damaged_state(
    bench: BenchDir, change: Callable[[dict[str, Any]], Any]
) -> None:
    result = read_run(build(bench, "r1", lambda planned, _logs: change(planned)))
    assert result.state == "damaged" and result.throughput is None


@pytest.mark.parametrize(
    ("clean", "doubts"),
    [
        (
            {
                "node1": {"checked": True, "left": []},
                "node2": {"checked": True, "left": [{"pid": 7}]},
            },
            1,
        ),
        ({"node1": {"checked": True, "left": []}}, 0),
        (None, 0),
        ([1], 0),
    ],
)
def test_processes_that_were_left_qualify_the_number(
    bench: BenchDir, clean: Any, doubts: int
) -> None:
    result = read_run(
        build(bench, "r1", outcome({"state": "finished", "error": None, "clean": clean}))
    )
    assert result.throughput
    assert (
        result.qualifications
        == ("processes of the run were left over on node2 and had to be ended",) * doubts
    )
