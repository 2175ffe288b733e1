"""What the node runner writes of a run fits its reader: the whole record, with a rank that fails
and one that is stopped.
"""

from __future__ import annotations

import hashlib
import os
import queue
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nodes.collect import collect_host, left_behind
from orchestrator.nodes.node import Node, Upload
from orchestrator.plan.framework import run_path
from orchestrator.plan.payload import rank_source, runner_source
from orchestrator.record.node_record import SCHEMA, ExitRecord, RankRecord, exit_record
from orchestrator.record.rundir import RunDir
from orchestrator.transport.ssh import Transport
from tests.support.judge import LIMIT_S

NOT_READ = {"schema", "boot_id"}
"""Of the record, and of a rank: what it is proven by, and what is for people who look for
themselves.
"""
NOT_READ_OF_A_RANK = {"local_rank", "wrapper", "ticks", "pids", "pid"}
RUN_ID = f"r{os.getpid()}"
"""Of this process: tests beside it end what runs under their own."""
LAUNCH = """#!/bin/bash
rank() {{ RANK=$1 LOCAL_RANK=$1 {python} -I -S rank_wrapper.py -- {python} -c "$2"; }}
rank 1 'import time; open("up", "w"); time.sleep(60)' &
until [ -e up ]; do sleep 0.01; done
rank 0 'print("words"); raise SystemExit({code})'
kill $!; wait; exit {code}
"""


@pytest.fixture
def node(line: Transport, tmp_path: Path) -> Iterator[Node]:
    line.host = replace(line.host, vars={"workdir": str(tmp_path / "work")})
    made = Node(line, runner_source())
    yield made
    made.close()


def ended(node: Node, code: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run two ranks, of which the first ends with ``code``. Return the record, and the ends of
    ranks as the line told them.
    """
    launch = LAUNCH.format(python=sys.executable, code=code).encode()
    files = {"launch.sh": launch, "rank_wrapper.py": rank_source()}
    node.put(
        [
            Upload(f"{run_path(node.host.name, RUN_ID)}/{name}", data, 0o700)
            for name, data in files.items()
        ],
        timeout_s=LIMIT_S,
    )
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    line = node.supervisor(RUN_ID, start=True, timeout_s=LIMIT_S)
    line.start(lambda _, event: events.put(event))
    line.send(
        "arm", run_id=RUN_ID, node_rank=0, argv=["./launch.sh"], variables="", ports=[], by_marker=False, progress=[],
        files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()}, owner={"run_id": RUN_ID},
        lease_s=60.0, limit_s=60.0, first_line_s=60.0, stall_s=60.0, grace_s=2.0, output_limit_bytes=1 << 20,
    )  # fmt: skip
    ranks: list[dict[str, Any]] = []
    while True:
        event = events.get(timeout=LIMIT_S)
        assert event["event"] not in ("error", "lost"), event
        if event["event"] == "armed":
            line.send("go", at=time.monotonic())
        if event["event"] == "rank":
            ranks.append(event)
        if event["event"] == "ended":
            line.send("bye")
            line.close(5)
            return event["record"], ranks


@pytest.mark.parametrize("code", [3, 0])
def test_the_record_of_the_runner_fits_its_reader(node: Node, tmp_path: Path, code: int) -> None:
    written, told = ended(node, code)
    record = ExitRecord.of(written)
    assert written["schema"] == SCHEMA and set(written) - NOT_READ == {
        field.name for field in fields(ExitRecord)
    }
    known = {field.name for field in fields(RankRecord)} | NOT_READ_OF_A_RANK
    assert all(set(rank) <= known for rank in written["ranks"])
    assert (record.run_id, record.node_rank, record.state) == (RUN_ID, 0, "failed")
    assert {rank.rank: (rank.code, rank.signal is None) for rank in record.ranks}[0] == (code, True)
    assert record.ended_by("SIGTERM") == [1] and record.files["rank-0.out"].bytes == len("words\n")
    times = [
        time_s
        for rank in record.ranks
        for time_s in (rank.started_mono_s, rank.ended_mono_s)
        if time_s is not None
    ]
    assert len(times) == 4 and record.started_mono_s is not None and record.ended_mono_s is not None
    assert record.started_mono_s < min(times) and max(times) < record.ended_mono_s
    assert {rank.rank for rank in map(RankRecord.of, told)} == {0, 1}
    left = left_behind(node, RUN_ID, timeout_s=LIMIT_S)
    run = RunDir(tmp_path / RUN_ID)
    assert collect_host(node, run).complete
    assert left is not None and left.record == exit_record(run, node.host.name) == record
