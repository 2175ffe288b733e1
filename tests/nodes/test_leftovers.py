"""What a node answers of processes that are left, as errors of a command."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import RunError
from orchestrator.nodes.leftovers import Leftovers


def test_nothing_left_is_nothing_to_say() -> None:
    remains = Leftovers.of({"left": [], "stopped": ["r1"]}, "a")
    assert (remains.words, remains.errors("a"), remains.processes) == ("", [], ())


def test_every_kind_of_rest_is_an_error_of_its_run_and_node() -> None:
    answer = {
        "left": [[7, "r1"], [8, "r1"], [9, "r2"]],
        "unverified": {"r3": [[11, "sleep"], [12, "python3"]], "r4": []},
        "alive": ["r5"],
    }
    remains = Leftovers.of(answer, "a")
    errors = remains.errors("a")
    assert [(error.host, error.run_id, error.kind, error.exit_code) for error in errors] == [
        ("a", "r1", "rank_failed", 1),
        ("a", "r2", "rank_failed", 1),
        ("a", "r3", "not_verified", 1),
        ("a", "r4", "not_verified", 1),
        ("a", "r5", "not_verified", 1),
    ]
    assert errors[0].message == "processes 7, 8 still run after SIGKILL"
    assert (
        "processes 11 (sleep), 12 (python3) may belong to the run" in errors[2].message
        and "ps -fp 11,12" in errors[2].hint
    )
    assert "another PID namespace" in errors[3].message and errors[3].hint == ""
    assert remains.processes == ((11, "sleep"), (12, "python3"), (0, "not visible"))
    assert all(
        words in remains.words
        for words in ("7, 8, 9 still run", "not verified: processes 11", "supervisor of r5")
    )


def test_a_container_that_may_be_left_is_not_verified_and_says_why() -> None:
    remains = Leftovers.of(
        {
            "left": [],
            "containers": {"r1": ["docker: no answer within 8 s"], "r2": ["container orch-r2-0"]},
        },
        "a",
    )
    assert [(error.run_id, error.kind, error.exit_code) for error in remains.errors("a")] == [
        ("r1", "not_verified", 1),
        ("r2", "not_verified", 1),
    ]
    assert "no answer within 8 s" in remains.errors("a")[0].message
    assert (
        remains.words
        == "not verified: docker: no answer within 8 s; not verified: container orch-r2-0"
    )
    assert remains.processes == ((0, "docker: no answer within 8 s"), (0, "container orch-r2-0"))
    with pytest.raises(RunError, match="something malformed"):
        Leftovers.of({"left": [], "containers": ["r1"]}, "a")


def test_a_crowd_is_counted_and_not_listed() -> None:
    (error,) = Leftovers(left=tuple((pid, "r1") for pid in range(100, 130))).errors("a")
    assert error.message.endswith("118, 119 and 10 more still run after SIGKILL")


@pytest.mark.parametrize(
    "answer",
    [{"left": 7}, {"left": [[1]]}, {"unverified": {"r": [["x", "y"]]}}, {"unverified": [1]}],
)
def test_an_answer_that_is_none_is_named_as_such(answer: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="malformed") as caught:
        Leftovers.of(answer, "a")
    assert (caught.value.kind, caught.value.host) == ("result_invalid", "a")
