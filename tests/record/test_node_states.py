"""What a project remembers of its nodes after acceptances and what people say."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import DataError
from orchestrator.record.node_states import (
    GOOD,
    OUT,
    SUSPECT,
    NodeState,
    apply_verdicts,
    change,
    node_states,
    past_states,
)

AT, SLOW = "10.0.0.1", "12% slower"


def after(
    *verdicts: str, address: str = AT, start: dict[str, NodeState] | None = None
) -> NodeState | None:
    states = start or {}
    for number, verdict in enumerate(verdicts, start=1):
        states = apply_verdicts(
            states, {"n1": (verdict, address, SLOW)}, f"a{number}", f"day {number}"
        )
    return states.get("n1")


def test_a_node_that_fails_is_suspect_since_then_and_good_when_it_passes() -> None:
    assert after("fail") == NodeState(SUSPECT, AT, SLOW, "a1", "day 1")
    assert after("fail", "fail") == NodeState(SUSPECT, AT, SLOW, "a2", "day 1")
    assert after("fail", "undecided") == after("fail")
    assert after("fail", "pass") == NodeState(GOOD, AT, "passed", "a2", "day 2")
    assert (
        after("pass", "pass") == NodeState(GOOD, AT, "passed", "a1", "day 1")
        and after("undecided") is None
    )


def test_what_a_person_took_out_stays_out_unless_it_is_another_machine() -> None:
    out = {"n1": NodeState(OUT, AT, "sent back", "", "day 0")}
    assert after("pass", "fail", start=out) == out["n1"]
    replaced = after("fail", address="10.0.0.9", start=out)
    assert replaced and (replaced.state, replaced.since) == (SUSPECT, "day 1")


def test_states_are_kept_and_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / ".orch" / "nodes.json"
    assert node_states(path) == {}
    states = {"n1": NodeState(SUSPECT, AT, SLOW, "a1", "day 1")}
    assert change(path, lambda _: states) == ({}, states)
    assert node_states(path) == states
    for content in (
        {"schema": 1},
        {"schema": 1, "nodes": {"n1": {"state": "odd"}}},
        {"schema": 1, "nodes": [1]},
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"nodes: expected a state"):
            node_states(path)
    for data in (b"", b"{", b"\xff", b'{"schema": 1, "nodes": {}, "seal": "0"}'):
        path.write_bytes(data)
        with pytest.raises(DataError) as refused:
            change(path, dict)
        assert "remove it to forget all states" in refused.value.hint and path.read_bytes() == data


def test_commands_that_change_states_at_the_same_time_lose_none(tmp_path: Path) -> None:
    path = tmp_path / ".orch" / "nodes.json"

    def add(number: int) -> None:
        change(path, lambda known: {**known, f"n{number}": NodeState(OUT, AT, "", "", "day 1")})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert sorted(node_states(path)) == sorted(f"n{number}" for number in range(24))


def test_what_a_node_was_before_is_kept_beside_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    states = [
        NodeState(word, AT, "why", f"a{day}", f"day {day}")
        for day, word in enumerate((GOOD, SUSPECT, OUT, GOOD))
    ]
    for state in states:
        for _ in range(2):  # the second time nothing has changed
            change(path, lambda _, state=state: {"n1": state, "n2": states[0]})
    assert (
        past_states(path) == {"n1": tuple(states), "n2": (states[0],)}
        and node_states(path)["n1"] == states[-1]
    )
    # A version that knew no past wrote the file, and one whose past is damaged: what is now is not
    # lost.
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"schema": 1, "nodes": content["nodes"]}))
    assert past_states(path)["n1"] == (states[-1],)
    path.write_text(json.dumps({"schema": 1, "nodes": content["nodes"], "past": {"n1": [3]}}))
    with pytest.raises(DataError, match="past: expected the earlier states"):
        past_states(path)
    change(path, lambda _: {"n1": states[0]})
    assert past_states(path) == {"n1": (states[-1], states[0])}
