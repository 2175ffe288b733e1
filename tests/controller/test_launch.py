"""One run on all its nodes at once: nothing starts before all are armed, and what was refused is
taken back.
"""

from __future__ import annotations

import doctest
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.controller import events
from orchestrator.controller.events import Started
from orchestrator.controller.reattach import Trace
from orchestrator.errors import Faults, Interrupted, TransportError
from orchestrator.plan.limits import Limits
from orchestrator.record.node_record import ExitRecord
from tests.support import judge
from tests.support.fake_bench import FakeBench, training
from tests.support.fake_supervisor import Rank


def test_a_run_is_staged_armed_and_started_on_every_node(rig: FakeBench) -> None:
    outcome = rig.launch().run()
    assert (outcome.state, outcome.error, outcome.released) == ("finished", None, True)
    assert outcome.start and set(outcome.start.hosts) == {"a", "b"}
    assert judge.in_time(outcome.start.skew_s, 1.0)
    assert rig.told() == ["staged", "armed", "started"]
    (started,) = [event for event in rig.shown if isinstance(event, Started)]
    assert (list(started.hosts), started.skew_s) == (["a", "b"], outcome.start.skew_s)
    assert started.bound_s == outcome.start.bound_s and doctest.testmod(events).failed == 0
    assert set(outcome.answers) == {"a", "b"} and not outcome.answers["a"].silent


def test_the_payload_is_sent_once_and_the_variables_only_with_the_order(rig: FakeBench) -> None:
    rig.launch().run()
    sent = {path.name for path in rig.a.root.rglob("*") if path.is_file()}
    assert {"rank_wrapper.py", "train_simulated.py", "launch.sh"} <= sent and "env.sh" not in sent
    assert not any(
        b"hush-hush" in path.read_bytes() for path in rig.a.root.rglob("*") if path.is_file()
    )
    assert sum(rig.launch()._stage(name) or 0 for name in ("a", "b")) == 0


def test_every_node_is_told_its_part_of_the_run(rig: FakeBench) -> None:
    orders = {}
    for name, node in rig.nodes.items():
        node.program = lambda order, name=name: (
            orders.setdefault(name, order) and training(rig.spec)(order)
        )
    rig.launch().run()
    assert [orders[name]["node_rank"] for name in ("a", "b")] == [0, 1]
    assert [orders[name]["progress"] for name in ("a", "b")] == [
        ["rank-0.out"],
        [],
    ]  # b's logs hold no samples
    assert (
        orders["a"]["ports"] == [20000]
        and orders["b"]["ports"] == []
        and "hush-hush" in orders["b"]["variables"]
    )
    script = rig.b.folder(rig.first.run_id) / "launch.sh"
    assert orders["b"]["files"]["launch.sh"] == hashlib.sha256(script.read_bytes()).hexdigest()
    assert (
        orders["b"]["owner"]["run_id"] == rig.first.run_id
        and orders["b"]["lease_s"] == rig.limits.lease_s
    )
    assert orders["b"]["limit_s"] == rig.spec.timeout_s and not orders["b"]["by_marker"]


def test_nothing_starts_where_one_node_refuses_and_what_was_staged_is_taken_back(
    rig: FakeBench,
) -> None:
    rig.b.refusals = [("node_busy", "another run holds this node")]
    launch = rig.launch()
    with pytest.raises(Faults) as caught:
        launch.run()
    assert [(error.kind, error.host) for error in caught.value.errors] == [("node_busy", "b")]
    assert rig.started_on() == [] and not launch.watch.released and rig.told() == ["staged"]
    for node in (rig.a, rig.b):
        assert not node.supervisors and not node.folder(rig.first.run_id).exists()


def test_all_nodes_that_refuse_are_named_together(rig: FakeBench) -> None:
    rig.a.refusals = rig.b.refusals = [("node_busy", "another run holds this node")] * 2
    with pytest.raises(Faults) as caught:
        rig.launch().run()
    assert {error.host for error in caught.value.errors} == {"a", "b"}


def test_a_node_that_does_not_arm_in_time_is_named_and_nothing_starts(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, limits=Limits(arm_s=0.3, ask_s=0.3))
    rig.runs(b=lambda order: setattr(rig.b, "silent", True) or {})
    with pytest.raises(Faults) as caught:
        rig.launch().run()
    assert [(error.kind, error.host) for error in caught.value.errors] == [("start_timeout", "b")]
    assert "nothing was started" in caught.value.errors[0].message and rig.started_on() == []


@pytest.mark.parametrize("is_lab", [True, False])
def test_of_nodes_of_a_lab_which_are_one_machine_only_some_are_sampled(
    rig: FakeBench, is_lab: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.controller.launch.MOST_SAMPLED", 1)
    orders: dict[int, Mapping[str, Any]] = {}

    def program(order: Mapping[str, Any]) -> dict[int, Rank]:
        orders[order["node_rank"]] = order
        return training(rig.spec)(order)

    rig.runs(program)
    for node in rig.nodes.values():
        node.host = replace(
            node.host, vars={**node.host.vars, **({"lab_private": "/home"} if is_lab else {})}
        )
    rig.launch().run()
    assert [bool(orders[rank]["telemetry"]) for rank in (0, 1)] == [True, not is_lab]


def test_the_leases_of_armed_nodes_are_renewed_while_another_one_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FakeBench(tmp_path, limits=Limits(arm_s=3.0, lease_s=2.0, ask_s=0.3))
    rig.runs(b=lambda order: setattr(rig.b, "silent", True) or {})
    launch, beats = rig.launch(), []
    monkeypatch.setattr(launch.watch, "_beat", lambda **_: beats.append(time.monotonic()))
    with pytest.raises(Faults):
        launch.run()
    assert len(beats) >= 3
    assert judge.in_time(max(late - early for early, late in pairwise(beats)), 2.0)


def test_a_node_that_is_gone_before_the_files_are_there_starts_nothing(rig: FakeBench) -> None:
    launch = rig.launch()
    rig.b.break_lines()
    with pytest.raises(Faults) as caught:
        launch.run()
    (error,) = caught.value.errors
    assert isinstance(error, TransportError) and error.host == "b" and rig.told() == []


def test_a_signal_before_the_start_starts_nothing(rig: FakeBench) -> None:
    rig.runs(b=lambda order: setattr(rig.interrupt, "signal", 15) or training(rig.spec)(order))
    rig.when["armed"] = lambda: setattr(
        rig.b, "silent", True
    )  # so that there is something to wait for
    with pytest.raises(Interrupted) as caught:
        rig.launch().run()
    assert caught.value.exit_code == 143 and rig.started_on() == []


def test_a_run_that_is_adopted_is_judged_by_the_clocks_that_were_measured_at_its_start(
    rig: FakeBench,
) -> None:
    rig.runs(training(rig.spec, after_s=0.05))
    first = rig.launch().run()
    # By its own clock b was first; by the controller's it was a, since b's clock is 100 s behind.
    traces = {
        name: Trace("ended", record=_failed(rig, name, earlier_s))
        for name, earlier_s in (("a", 0), ("b", 50))
    }
    launch = rig.launch()
    assert first.start
    offsets_s = {"a": 0.0, "b": -100.0}
    hosts = {
        name: replace(node, offset_s=offsets_s[name]) for name, node in first.start.hosts.items()
    }
    start = replace(first.start, hosts=hosts)
    outcome = launch.adopt(traces, start)
    assert (
        outcome.state == "failed"
        and outcome.error
        and outcome.error.host == "a"
        and outcome.start is start
    )


def _failed(rig: FakeBench, name: str, earlier_s: float) -> ExitRecord:
    """Return a node's record of the run as if its rank had ended with 1, so many seconds earlier."""
    record = ExitRecord.of(
        json.loads((rig.nodes[name].folder(rig.first.run_id) / "exit.json").read_text())
    )
    (rank,) = record.ranks
    assert rank.ended_mono_s
    rank = replace(rank, code=1, ended_mono_s=rank.ended_mono_s - earlier_s)
    return replace(record, state="failed", reason="", ranks=(rank,))
