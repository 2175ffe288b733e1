"""The exit record of a node: read whole, and refused where a field is not as the runner writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.record.node_record import ExitRecord, LogFile, RankRecord, exit_record
from orchestrator.record.rundir import RunDir

RANKS = [
    {"rank": 0, "local_rank": 0, "wrapper": 9, "pid": 10, "code": None, "signal": "SIGTERM", "started_mono_s": 2.0,
     "ended_mono_s": 8.5, "slowed_us": {"sw_power_cap": 3000, "odd": "x"}},
    {"rank": 1, "local_rank": 1, "wrapper": 11, "pid": 12, "code": None, "signal": "SIGKILL", "note": "the kernel killed it"},
]  # fmt: skip
RECORD: dict[str, Any] = {
    "schema": 1, "run_id": "r1", "node_rank": 0, "state": "failed", "code": 1, "signal": None, "reason": "rank_failed: rank 1",
    "started_mono_s": 1.0, "stopped_mono_s": 8, "ended_mono_s": 9.0, "boot_id": "x", "oom_kills": 2, "ranks": RANKS,
    "files": {"rank-0.out": {"bytes": 3, "sha256": "ab"}},
}  # fmt: skip


def test_a_record_is_read_whole() -> None:
    found = ExitRecord.of(RECORD)
    first = RankRecord(0, None, "SIGTERM", "", 2.0, 8.5, {"sw_power_cap": 3000})
    second = RankRecord(1, None, "SIGKILL", "the kernel killed it")
    assert found == ExitRecord(
        "r1",
        0,
        "failed",
        1,
        None,
        "rank_failed: rank 1",
        1.0,
        8,
        9.0,
        2,
        (first, second),
        {"rank-0.out": LogFile(3, "ab")},
    )
    assert (found.how, first.how, found.ended_by("SIGTERM"), found.ended_by("SIGHUP")) == (
        "exit code 1",
        "SIGTERM",
        [0],
        [],
    )
    assert [found.memory_kills(rank) for rank in (None, 0, 1)] == [2, 0, 2]
    assert (found.took_s, ExitRecord.of(RECORD | {"ended_mono_s": None}).took_s) == (8.0, None)
    launcher = ExitRecord.of(RECORD | {"signal": "SIGKILL", "ranks": RANKS[:1]})
    assert [launcher.memory_kills(rank) for rank in (None, 0)] == [2, 0]


def test_links_that_were_lost_are_counted_by_interface() -> None:
    meter = {"growth": [], "links_lost": {"eth0": 2, "ib0": 0}}
    assert ExitRecord.of(RECORD | {"meter": meter}).meter.links_lost == {"eth0": 2}
    assert ExitRecord.of(RECORD | {"meter": meter | {"links_lost": [1]}}).meter.links_lost == {}


def test_an_earlier_runner_wrote_less() -> None:
    names = ("schema", "node_rank", "state", "ranks", "files")
    oldest = ExitRecord.of(
        {name: RECORD[name] for name in names} | {"reason": None, "ranks": [{"rank": 0, "code": 0}]}
    )
    assert (oldest.reason, oldest.oom_kills, oldest.ended_mono_s, oldest.ranks[0].ended_mono_s) == (
        "",
        0,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("schema", 2, "expected schema 1, got 2"), ("schema", True, "expected schema 1, got True"),
        ("run_id", 5, "run_id: expected text"), ("node_rank", "0", "node_rank: expected a whole number"),
        ("node_rank", False, "node_rank: "), ("state", "odd", "expected state 'finished' with code 0, got state 'odd'"),
        ("state", [], "expected state"), ("code", "0", "expected state"), ("code", False, "expected state"),
        ("signal", 9, "expected state"), ("reason", [], "reason: expected text"),
        *((name, "now", f"{name}: expected seconds") for name in ("started_mono_s", "stopped_mono_s", "ended_mono_s")),
        ("oom_kills", "3", "oom_kills: "), ("oom_kills", True, "oom_kills: "), ("ranks", None, "ranks: expected a list"),
        ("ranks", [5], "ranks: expected a list of objects"), ("ranks", [{}], "rank: expected a whole number"),
        ("ranks", [{"rank": 0, "code": "x"}], "code: "), ("ranks", [{"rank": 0, "signal": 9}], "signal: expected text"),
        ("files", [], r"files: expected an object, got \[\]"), ("files", {"a": "x"}, "files.a: expected bytes and sha256"),
        ("files", {"a": {"bytes": True, "sha256": ""}}, "files.a: "), ("files", {"a": {"bytes": 1, "sha256": 2}}, "files.a: "),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_field(tmp_path: Path, key: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ExitRecord.of(RECORD | {key: value})
    run = RunDir(tmp_path / "r1")
    run.write_log("node1", "exit.json", json.dumps(RECORD | {key: value}).encode())
    with pytest.raises(DataError, match=words) as caught:
        exit_record(run, "node1")
    assert (caught.value.kind, caught.value.host, caught.value.where) == (
        "result_invalid",
        "node1",
        "exit.json",
    )


def test_a_record_that_did_not_come_home_is_none(tmp_path: Path) -> None:
    assert exit_record(RunDir(tmp_path / "r1"), "node1") is None
