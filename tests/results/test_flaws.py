"""Flaws of what a run left: each is an error of that run alone, and no number."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support.run_folders import BATCH, WORLD, build, exit_record, logs_of, step_lines

Flaw = dict[str, Any]


def in_log(old: str, new: str, *, count: int = 1, node: int = 0, name: str = "rank-0.out") -> Flaw:
    def before(_planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        assert old in logs[node][name]
        logs[node][name] = logs[node][name].replace(old, new, count)

    return {"before": before}


def in_record(node: int = 0, **changes: Any) -> Flaw:
    return {"after": lambda records: records[node].update(changes)}


def in_file_entry(name: str, entry: Any) -> Flaw:
    return {"after": lambda records: records[0]["files"].update({name: entry})}


@pytest.mark.parametrize(
    ("flaw", "host", "text"),
    [
        # the log says less or other than planned
        (
            in_log(step_lines().splitlines()[-1] + "\n", ""),
            "node1",
            "found 9, the last for step 11; the first missing is step 12",
        ),
        (
            in_log("orch step=5 ", "orch stop=5 "),
            "node1",
            "found 9, the last for step 12; the first missing is step 5",
        ),
        (
            in_log("t=905.500000", "t=904.000000"),
            "node1",
            "expected a time above 0 s up to step 11",
        ),
        (
            in_log(f"samples={BATCH * WORLD} ", f"samples={BATCH} ", count=99),
            "node1",
            "expected 640 samples in the window, the log counts 160",
        ),
        (
            in_log("orch done {", "orch done ["),
            "node1",
            "expected the program's closing line, found none; log.closing comes nearest",
        ),
        (
            in_log('"world_size"', '"world_size": 1, "world_size"'),
            "node1",
            "has none. closing line: expected JSON, got the key",
        ),
        (in_log('"nccl": null', '"nccl": NaN'), "node1", "got the number NaN"),
        (
            in_log('"steps": 12', '"steps": 120'),
            "node1",
            "expected steps 12 as planned, the program reports 120",
        ),
        (
            in_log('"fp16"', '"fp32"'),
            "node1",
            "expected dtype 'fp16' as planned, the program reports 'fp32'",
        ),
        (
            in_log('"global_batch": 64', '"global_batch": 16'),
            "node1",
            "expected global_batch 64 as planned",
        ),
        (in_log('"world_size": 4', '"world_size": 1'), "node1", "expected world_size 4 as planned"),
        (
            in_log('"ranks": [0, 1, 2, 3]', '"ranks": [0, 1, 2]'),
            "node1",
            "expected ranks 0-3 in the closing line",
        ),
        # ranks
        (
            in_log("orch rank=3", "rank=3", node=1, name="rank-3.out"),
            "node2",
            "1 are missing, first rank 3",
        ),
        (
            in_log("rank=3", "rank=2", node=1, name="rank-3.out"),
            "node2",
            "expected one rank line of rank 2, got another",
        ),
        (
            in_log("rank=3", "rank=1", node=1, name="rank-3.out"),
            "node2",
            "expected rank lines of 2-3 on this node, got one of rank 1",
        ),
        (in_log("rank=3", "rank=9", node=1, name="rank-3.out"), "node2", "got one of rank 9"),
        (
            in_log("world_size=4", "world_size=8", node=1, name="rank-2.out"),
            "node2",
            "expected world size 4, rank 2 logged 8",
        ),
        # exit records that lie or are damaged
        (in_record(run_id="another"), "node1", "expected run_id 'r1', got 'another'"),
        (in_record(node_rank=1), "node1", "expected node_rank 0, got 1"),
        (in_record(schema=2), "node1", "expected schema 1, got 2"),
        (in_record(code=3), "node1", "expected state 'finished' with code 0"),
        (in_record(code="0"), "node1", "expected state 'finished' with code 0"),
        (in_record(signal="SIGKILL"), "node1", "signal 'SIGKILL'"),
        (in_record(state=["finished"]), "node1", "expected state 'finished'"),
        (
            in_record(ranks=[{"rank": 1, "code": None, "signal": "SIGSEGV"}]),
            "node1",
            "rank 1 ended with 'SIGSEGV' in a run recorded as",
        ),
        (in_record(ranks="none"), "node1", "ranks: expected a list"),
        (in_record(files=[]), "node1", "files: expected an object"),
        (
            in_record(files={}),
            "node1",
            "expected a log like rank-0.out, the exit record lists none",
        ),
        (
            in_file_entry("rank-0.out", {"bytes": 5, "sha256": "0"}),
            "node1",
            "expected 5 bytes as on the node",
        ),
        (in_file_entry("rank-0.out", "x"), "node1", "files.rank-0.out: expected bytes and sha256"),
        (
            in_file_entry("../../manifest.json", {"bytes": 1, "sha256": "0"}),
            "node1",
            "expected a name of letters",
        ),
        (
            in_file_entry("rank-9.out", {"bytes": 1, "sha256": "0"}),
            "node1",
            "expected the log, but it has not been collected",
        ),
    ],
)
def test_a_flaw_is_an_error_of_the_run_and_no_number(
    bench: BenchDir, flaw: Flaw, host: str, text: str
) -> None:
    result = read_run(build(bench, "r1", **flaw))
    assert result.throughput is None and result.state == "failed"
    kind = "log_unmatched" if "found none" in text else "result_invalid"
    assert isinstance(result.error, DataError) and result.error.kind == kind
    assert text in str(result.error)
    assert result.error.host == host and result.error.run_id == "r1"
    assert summarize([result]).rows[0].median is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'{"code": NaN}',
        b'{"code": 1e999}',
        b'{"code": 0, "code": 0}',
        b"[" * 100_000,
        b" " * (17 << 20),
        b"\x00",
    ],
    ids=["empty", "cut", "null", "nan", "infinite", "twice", "deep", "huge", "nul"],
)
def test_a_malformed_exit_record_is_an_error_of_the_run(bench: BenchDir, content: bytes) -> None:
    run = build(bench, "r1")
    run.write_log("node2", "exit.json", content)
    result = read_run(run)
    assert isinstance(result.error, DataError) and result.error.kind == "result_invalid"
    assert result.error.host == "node2" and "exit.json" in str(result.error)


def _giant(path: Path) -> None:
    path.touch()
    os.truncate(path, (1 << 30) + 1)


def _swap(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize(
    "make",
    [lambda p: p.symlink_to("/dev/zero"), os.mkfifo, lambda p: p.mkdir(), _giant],
    ids=["link", "fifo", "folder", "sparse giant"],
)
def test_a_log_that_is_no_plain_file_is_never_read(
    bench: BenchDir, make: Callable[[Path], Any]
) -> None:
    run = build(bench, "r1")
    _swap(run.log_path("node1", "rank-0.out"), make)
    result = read_run(run)
    assert isinstance(result.error, DataError) and "rank-0.out" in str(result.error)


def test_a_log_changed_after_collection_has_no_number(bench: BenchDir) -> None:
    run = build(bench, "r1")
    path = run.log_path("node1", "rank-0.out")
    path.write_bytes(path.read_bytes().replace(b"t=906.0", b"t=905.9"))
    assert "expected the SHA-256" in str(read_run(run).error)


def test_a_log_cut_anywhere_has_no_number(bench: BenchDir) -> None:
    """Even where the exit record is made to agree with the cut log."""
    whole = logs_of(0)["rank-0.out"]
    run = build(bench, "r1")
    for cut in range(0, len(whole), 13):
        data = {name: text.encode() for name, text in logs_of(0).items()} | {
            "rank-0.out": whole[:cut].encode()
        }
        run.write_log("node1", "rank-0.out", data["rank-0.out"])
        run.write_log("node1", "exit.json", json.dumps(exit_record("r1", 0, data)).encode())
        assert read_run(run).throughput is None


def test_a_run_called_finished_whose_node_failed_has_no_number(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", **in_record(1, state="failed", code=1, reason="x")))
    assert (result.state, result.throughput) == ("failed", None)
