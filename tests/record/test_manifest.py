"""The manifest of a run: what was planned reads back, what was found out is written, and damage is
refused or left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError, RunError, TransportError
from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import plan_run
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.request import Request
from orchestrator.record.manifest import (
    Answer,
    Clean,
    Manifest,
    NodeStart,
    RecordedOutcome,
    StartRecord,
    manifest_of,
    read_manifest,
    write_end,
    write_outcome,
)
from orchestrator.record.rundir import RunDir

HOSTS = [
    Host(name, f"127.0.0.{index}", gpus=0, slots=2) for index, name in enumerate("ab", start=2)
]
FOLDER = open_framework("simulated")
(SPEC,) = configure(
    Request("resnet50", shapes=((2, 2),), axes={"dtype": ("fp32",)}), [FOLDER], HOSTS
).specs
PLAN = plan_run(FOLDER, SPEC, HOSTS, run_id="r1", repeat=3, port=20007)
FACTS = {"a": {"kernel": "6.1"}, "b": {"kernel": "6.1"}}
START = StartRecord(
    0.25, 0.002, {"a": NodeStart(10.5, 0.5, 0.001), "b": NodeStart(7.25, -3.0, 0.001)}
)
ERROR = TransportError(
    "no sign of life for 3.1 s", kind="node_lost", host="b", run_id="r1", phase="watch"
)
OUTCOME = RecordedOutcome(
    "lost",
    ERROR,
    {"a": Clean(True, (4711,)), "b": Clean(False)},
    {"a": Answer(0.5, 0.001), "b": Answer(3.1, 0.002, True)},
    False,
    {"hang": {"kind": "stopped", "words": "stopped in step 7 (state T)", "ranks": [2, 3]}},
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "r1")
    made.write_manifest(manifest_of(PLAN, FOLDER, "b1", FACTS))
    return made


def damaged(run: RunDir, change: dict[str, Any]) -> Manifest:
    content = json.loads(json.dumps(run.manifest_content())) | change
    return Manifest.of(content, "manifest.json", "r1")


def test_a_manifest_reads_back_as_it_was_planned(run: RunDir) -> None:
    found = read_manifest(run)
    assert (found.run_id, found.bench_id, found.repeat, found.spec) == ("r1", "b1", 3, SPEC)
    assert (
        found.spec.origins == SPEC.origins
        and found.placement == PLAN.placement
        and found.hosts == ["a", "b"]
    )
    assert (found.framework, found.digest, found.payload) == (
        "simulated",
        FOLDER.framework.digest,
        FOLDER.payload_digests,
    )
    assert (
        found.grammar == FOLDER.framework.log.with_options(SPEC.options)
        and found.simulated
        and found.measure.has_samples
    )
    assert (found.facts, found.start, found.outcome, found.was_released) == (
        FACTS,
        None,
        None,
        True,
    )


def test_start_and_outcome_read_back_and_change_nothing_else(run: RunDir) -> None:
    before = run.manifest_content()
    write_end(run, START, OUTCOME)
    found = read_manifest(run)
    assert found.start == START and found.outcome is not None and not found.was_released
    assert found.outcome.error is not None and found.outcome.error.as_dict() == ERROR.as_dict()
    assert (
        type(found.outcome.error) is TransportError and found.outcome.as_dict() == OUTCOME.as_dict()
    )
    after = run.manifest_content()
    assert list(after) == list(before) and {key for key in after if after[key] != before[key]} == {
        "start",
        "outcome",
    }
    assert after["outcome"]["clean"] == {
        "a": {"checked": True, "left": [4711]},
        "b": {"checked": False, "left": []},
    }
    assert (
        after["outcome"]["released"] is False and after["start"]["hosts"]["b"]["offset_s"] == -3.0
    )


def test_an_outcome_says_only_what_there_is_to_say(run: RunDir) -> None:
    write_outcome(
        run,
        RecordedOutcome("failed", RunError("it ended with code 3", kind="rank_failed", host="a")),
    )
    error = {"kind": "rank_failed", "message": "it ended with code 3", "host": "a"}
    assert run.manifest_content()["outcome"] == {"state": "failed", "error": error, "clean": {}}


def test_an_earlier_version_wrote_less(run: RunDir) -> None:
    content = run.manifest_content()
    for key in ("repeat", "bench_id", "payload", "origins", "facts", "start", "outcome"):
        del content[key]
    for key in ("measures", "caveats", "simulated", "digest", "name"):
        del content["framework"][key]
    for slot in content["placement"]["slots"]:
        del slot["devices"], slot["address"]
    found = Manifest.of(content, "manifest.json", "r1")
    assert (found.repeat, found.bench_id, found.payload, found.facts, found.framework) == (
        1,
        "",
        {},
        {},
        "simulated",
    )
    assert (found.measure.has_samples, found.simulated, found.slots[1].address) == (True, False, "")
    assert found.outcome is None and damaged(run, {"outcome": {}}).outcome is None


@pytest.mark.parametrize(
    "change",
    [
        *({key: value} for value in (7, "x", [7], {"x": 7}) for key in ("spec", "framework", "placement")),
        *({key: value} for value in (7, "x", [7]) for key in ("origins", "outcome", "payload", "facts")),
        {"repeat": "3"}, {"repeat": True}, {"bench_id": 5}, {"payload": {"x": 7}}, {"spec": None}, {"placement": None},
    ],
)  # fmt: skip
def test_damage_in_what_is_relied_on_is_named(run: RunDir, change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="^manifest.json: expected a run's manifest") as caught:
        damaged(run, change)
    assert (caught.value.kind, caught.value.run_id) == ("state_damaged", "r1")


@pytest.mark.parametrize(
    ("slot", "key", "value"),
    [
        (0, "host", "../x"),
        (0, "host", 5),
        (1, "nproc", 1 << 40),
        (1, "nproc", None),
        (1, "first_rank", 0),
        (0, "address", 5),
    ],
)
def test_a_placement_that_cannot_be_is_damage(run: RunDir, slot: int, key: str, value: Any) -> None:
    placement = run.manifest_content()["placement"]
    placement["slots"][slot][key] = value
    with pytest.raises(DataError) as caught:
        damaged(run, {"placement": placement})
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "start",
    [7, [], {}, {"skew_s": "x", "bound_s": 0, "hosts": {}}, {"skew_s": 0, "bound_s": 0, "hosts": {"../x": {}}},
     {"skew_s": 0, "bound_s": 0, "hosts": {"a": {"started_mono_s": 1, "offset_s": True, "bound_s": 0}}}],
)  # fmt: skip
def test_a_record_of_the_start_that_is_none_is_left_out(run: RunDir, start: Any) -> None:
    assert damaged(run, {"start": start}).start is None


def test_what_only_goes_beside_a_number_is_left_out_where_it_is_damaged(run: RunDir) -> None:
    outcome = {
        "state": "finished",
        "error": None,
        "clean": [1],
        "answers": {"a": 3, "b": {"round_trip_s": "quick"}},
    }
    found = damaged(run, {"outcome": outcome}).outcome
    assert found == RecordedOutcome("finished", None, {}, {"b": Answer()}) and found.measured
