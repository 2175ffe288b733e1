"""The events of a bench: in order, whole after a cut at any byte, from many writers at once."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.errors import DataError, OrchError
from orchestrator.record.journal import Entry
from orchestrator.record.rundir import BenchDir
from tests.support.judge import LIMIT_S


def test_events_keep_order_and_fields(bench: BenchDir) -> None:
    assert bench.events() == []
    bench.event("planned", at=1.5, port=2)
    bench.event("reattached", run="r1", host="node1")
    first, second = bench.events()
    assert first == Entry("planned", 1.5, "", {"port": 2})
    assert (
        second.at and second.at > 1e9 and (second.run, second.fields) == ("r1", {"host": "node1"})
    )


def test_events_cut_at_any_byte_lose_only_the_torn_line_and_go_on(bench: BenchDir) -> None:
    for name in ("planned", "staged", "armed"):
        bench.event(name, at=0)
    path = bench.path / "events.jsonl"
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        names = [entry.event for entry in bench.events()]
        assert names == ["planned", "staged", "armed"][: data[:cut].count(b"\n")]
        bench.event("over", at=0)
        assert [entry.event for entry in bench.events()] == [*names, "over"]


def test_damage_inside_the_events_names_file_and_byte(bench: BenchDir) -> None:
    for name in ("planned", "staged"):
        bench.event(name, at=0)
    path = bench.path / "events.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"event": "staged"', b'{"event": staged', 1))
    with pytest.raises(DataError, match=f"events.jsonl: line at byte {data.find(10) + 1}"):
        bench.events()
    path.write_bytes(b"3\n" + data)
    with pytest.raises(DataError, match="byte 0: expected an event"):
        bench.events()


def test_events_of_many_threads_and_processes_are_all_whole(bench: BenchDir) -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.record.rundir import BenchDir\n"
        "b = BenchDir(Path(sys.argv[1]))\nfor i in range(50): b.event('over', code=i, errors=['x' * 5000])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(bench.path)])

    def append() -> None:
        for i in range(50):
            bench.event("planned", port=i)

    threads = [threading.Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.wait(timeout=LIMIT_S) == 0
    events = bench.events()
    assert len(events) == 200
    assert [entry.code for entry in events if entry.event == "over"] == list(range(50))


def test_an_event_waits_for_another_writer(bench: BenchDir) -> None:
    """A writer mends a torn end before it appends; it must not take the half-written line of
    another for one.
    """
    bench.event("begun", at=0)
    with (bench.path / "events.jsonl").open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"event": "staged",')
        thread = threading.Thread(target=bench.event, args=("over",))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        other.write(b' "at": 0}\n')
    thread.join(LIMIT_S)
    assert [entry.event for entry in bench.events()] == ["begun", "staged", "over"]


def test_an_event_is_never_written_through_a_link(bench: BenchDir, tmp_path: Path) -> None:
    (bench.path / "events.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OrchError):
        bench.event("begun")
    assert not (tmp_path / "target").exists()
