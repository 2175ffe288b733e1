"""What a supervisor takes for a stall, what it sees of its ranks, and that a limit ends a run only
after a look.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.features.hang.node_report import HangReport
from tests.faults.stalled import stalled_files
from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.judge import wait_for as wait_until
from tests.support.machine import NEEDS_ROOT, RUN, Line, Machine

REMOTE = Path(__file__).parents[3] / "remote"
COMMON = REMOTE / "trainers" / "common"
sys.path.insert(0, str(REMOTE))


def loaded(name: str) -> Any:
    """A part of the node runner as a module."""
    return importlib.import_module(f"noderun.{name}")


stall, examine = loaded("stall"), loaded("examine")
REPORTS = """\
import sys; sys.path.insert(0, {common!r})
import time, rank_progress
for step in range(1, 80):
    rank_progress.mark(step, "compute")
    time.sleep(0.1)
rank_progress.mark(80, "input")
{then}
"""


def rank(then: str) -> str:
    """A launch script of one rank that reports 79 steps of 0.1 s and then does something else."""
    code = REPORTS.format(common=str(COMMON), then=then)
    wrapper = "../../../../payload/x/rank_wrapper.py"
    command = f"{sys.executable} -I -S {wrapper} -- {sys.executable} -c {shlex.quote(code)}"
    return f"#!/bin/bash\nexport RANK=0 LOCAL_RANK=0\nexec {command}\n"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "node1")
    yield made
    made.close()


LIMITS = {
    "examines": True,
    "first_line_s": 600.0,
    "stall_s": 600.0,
    "progress": [],
    "limit_s": 120.0,
    "lease_s": 120.0,
}


def wait_for(line: Line, name: str, within_s: float = LIMIT_S) -> dict[str, Any]:
    """Wait for an event while beats go on, as those of a controller do."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        line.order("beat", n=1)
        while (event := line.read_line())["event"] != "beat":
            if event["event"] == name:
                return event
            assert event["event"] != "ended", event
        time.sleep(0.05)
    raise AssertionError(f"no {name} within {within_s:g} s")


def test_a_rank_that_sleeps_is_told_and_seen_where_it_sleeps(machine: Machine) -> None:
    line = machine.start(
        RUN, rank("def read_samples(): time.sleep(1000)\nread_samples()"), **LIMITS
    )
    told = wait_for(line, "stalled")
    assert told["ranks"] == [0] and told["step"] == 80 and told["silent_s"] > 3.0
    assert told["usual_s"] >= 0.1 and judge.in_time(told["usual_s"], 1.0)
    line.order("examine")
    (seen,) = HangReport.of(wait_for(line, "examined")["report"]).ranks
    assert (seen.rank, seen.state, seen.call, seen.frozen) == (0, "S", "clock_nanosleep", False)
    assert seen.progress and (seen.progress.step, seen.progress.phase) == (80, "input")
    assert any("in read_samples" in text for text in seen.python), seen.python
    assert seen.cpu_s < 0.1 and seen.pipe is None
    (folder,) = machine.root.glob("nodes/*/runs/*")
    assert (folder / "hang.json").exists()  # and no log of a run that may yet end well
    assert not (folder / "logs" / "hang.json").exists()
    line.order("stop", reason="run_timeout: rank 0 sleeps")
    record = wait_for(line, "ended")["record"]
    assert record["reason"] == "run_timeout: rank 0 sleeps" and "hang.json" in record["files"]


def test_a_rank_that_goes_on_after_a_pause_is_told_as_well(machine: Machine) -> None:
    line = machine.start(
        RUN,
        rank(
            'import os\nwhile not os.path.exists("told"): time.sleep(0.1)\n'
            'for step in range(81, 110):\n    rank_progress.mark(step, "compute")\n    time.sleep(0.1)'
        ),
        **LIMITS,
    )
    wait_for(line, "stalled")
    (machine.folder(RUN) / "told").touch()
    wait_for(line, "resumed")
    record = wait_for(line, "ended")["record"]
    assert (record["state"], record["reason"]) == ("finished", "") and "hang.json" not in record[
        "files"
    ]


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint", "compile", "end"])
def test_a_declared_pause_is_no_silence(phase: str) -> None:
    rhythm = stall.Rhythm()
    for second in range(20):
        rhythm.saw(10 * second, 10 * second, "compute", 100.0 + second)
    rhythm.saw(200, 201, phase, 120.0)
    assert rhythm.silent(100_000.0) == 0.0


def steady(usual_s: float, seconds: int = 60) -> Any:
    """The rhythm of a rank with steps of so many seconds, looked at once a second for a minute."""
    rhythm = stall.Rhythm()
    for second in range(seconds):
        steps = int(second / usual_s)
        rhythm.saw(steps, steps, "compute", float(second))
    return rhythm


@pytest.mark.parametrize(
    ("usual_s", "silent_from_s"), [(0.1, 3.0), (0.25, 3.0), (1.0, 10.0), (5.0, 50.0)]
)
def test_a_silence_is_measured_by_the_usual_time_of_a_step(
    usual_s: float, silent_from_s: float
) -> None:
    rhythm = steady(usual_s)
    assert rhythm.usual_s == pytest.approx(usual_s, rel=0.25)
    last = rhythm.since
    assert rhythm.silent(last + silent_from_s - 0.6) == 0.0
    assert rhythm.silent(last + silent_from_s * 1.3 + 0.5) > silent_from_s


def test_a_long_pause_is_learned() -> None:
    rhythm = steady(0.1)
    rhythm.saw(rhythm.count + 1, rhythm.marks + 1, "compute", 60.0 + 19.0)
    assert rhythm.silent(60.0 + 19.0 + 38.0) == 0.0 and rhythm.silent(60.0 + 19.0 + 42.0) > 40.0


def test_a_long_first_step_is_not_a_pause_of_the_run() -> None:
    rhythm = stall.Rhythm()
    rhythm.saw(0, 1, "start", 0.0)
    for phase, second in (
        ("compute", 1.0),
        ("collective", 30.0),
    ):  # of step 1, which chooses kernels
        rhythm.saw(1, rhythm.marks + 1, phase, second)
    for step in range(2, 40):
        rhythm.saw(step, rhythm.marks + 1, "compute", 60.0 + 0.1 * step)
    assert rhythm.pause_s < 1.0 and rhythm.usual_s == pytest.approx(0.1)
    assert rhythm.silent(rhythm.since + 3.5) > 3.0


@pytest.mark.parametrize("seen", [(26,), (1, 26), (0, 1, 2, 26)])
def test_steps_that_began_between_two_looks_are_learned_if_none_begins_after_them(
    seen: tuple[int, ...],
) -> None:
    """A small model takes dozens of steps in a second: the run hung, and nothing was suspected."""
    rhythm = stall.Rhythm()
    for second in range(40):
        rhythm.saw(0, 1, "start", float(second))
    for second, step in enumerate(seen, start=40):
        rhythm.saw(step, step + 1, "step", float(second))
    assert 1 / 26 <= rhythm.usual_s <= 4 / 26
    silent = [seconds for seconds in range(8) if rhythm.silent(39.0 + len(seen) + seconds)]
    assert silent == [4, 5, 6, 7]


def test_a_first_step_that_takes_long_makes_the_mean_of_the_first_ones_longer() -> None:
    rhythm = stall.Rhythm()
    rhythm.saw(0, 1, "start", 0.0)
    for second in range(1, 50):
        rhythm.saw(1, 2, "step", float(second))
    rhythm.saw(5, 6, "step", 50.0)
    assert rhythm.usual_s == pytest.approx(10.0)
    assert not rhythm.silent(149.0) and rhythm.silent(151.0)


@pytest.mark.parametrize(
    ("step", "marks", "suspected"), [(26, 27, True), (1026, 27, True), (1026, 2, False)]
)
def test_the_first_report_of_a_rank_may_come_after_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, marks: int, suspected: bool
) -> None:
    """A resumed run begins at the step of its checkpoint, which says nothing about the time of one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks").mkdir()
    judge, told = stall.Stall(), []
    judge.start(0.0)
    for second in range(40):
        if second == 20:
            record = (stall.PROGRESS_MAGIC, marks, step, 20.0, 20.0, b"step", marks)
            (tmp_path / "ranks/0.progress").write_bytes(stall.PROGRESS_RECORD.pack(*record))
        told.append(judge.look({"examines": True}, [{"rank": 0}], {}, float(second)))
    assert [second for second, event in enumerate(told) if event] == ([24] if suspected else [])


def test_steps_that_a_log_names_all_at_once_are_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    lines = "".join(f"step {number} loss 1\n" for number in range(1000, 1030))
    (tmp_path / "logs/rank-0.out").write_text("joining\n" + lines)
    order = {"examines": True, "progress": ["rank-0.out"], "steps": [r"step (?P<step>\d+) "]}
    judge = stall.Stall()
    judge.start(0.0)
    sizes = [8] * 20 + [8 + len(lines)] * 20
    told = [judge.look(order, [], {"rank-0.out": size}, float(at)) for at, size in enumerate(sizes)]
    assert [second for second, event in enumerate(told) if event] == [24]


@pytest.mark.parametrize(
    ("steps", "planned"),
    [
        (range(1, 41), 40),
        (range(40), 40),
        (range(10, 41, 10), 40),
        (range(0, 40, 10), 40),
        (range(10, 41, 10), 45),
        (range(1001, 1041), 40),
    ],
)
@pytest.mark.parametrize("lines_at_once", [1, 3])
def test_a_log_that_names_the_last_planned_step_says_so_before_any_silence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: range,
    planned: int,
    lines_at_once: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs/rank-0.out"
    order = {
        "examines": True,
        "progress": ["rank-0.out"],
        "steps": [r"step (?P<step>\d+) "],
        "planned_steps": planned,
    }
    judge, told, text = stall.Stall(), [], ""
    judge.start(0.0)
    for second, first in enumerate(range(0, len(steps), lines_at_once)):
        text += "".join(f"step {step} loss 1\n" for step in steps[first : first + lines_at_once])
        log.write_text(text)
        told.append(judge.look(order, [], {"rank-0.out": len(text)}, float(second)))
    assert told == [None] * (len(told) - 1) + [("finishing", {"of_run": True})]


@pytest.mark.parametrize(
    ("marked", "is_told"), [(0b1000, True), (0b1010, False), (0b10001000, False)]
)
def test_ranks_that_report_steps_alone_may_be_in_the_last_one_or_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: int, is_told: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks").mkdir()
    judge = stall.Stall()
    judge.start(0.0)
    told = []
    for step in range(1, 10):
        record = (stall.PROGRESS_MAGIC, step + 1, step, 0.0, 0.0, b"step", step + 1)
        (tmp_path / "ranks/0.progress").write_bytes(
            stall.PROGRESS_RECORD.pack(*record) + stall.MARKED_RECORD.pack(marked)
        )
        order = {"examines": True, "planned_steps": 9}
        told.append(judge.look(order, [{"rank": 0}], {}, float(step)))
    assert ("finishing", {"of_run": False}) in told if is_told else not any(told)


def test_nothing_is_suspected_before_the_usual_is_known() -> None:
    rhythm = stall.Rhythm()
    for second, steps in enumerate((0, 0, 1, 1, 2)):
        rhythm.saw(steps, steps, "compute", 100.0 * second)
    assert rhythm.silent(100_000.0) == 0.0


@pytest.mark.parametrize(
    "broken", [b"", b"x", b"orchprg1" + bytes(55), b"somebody" + bytes(56), bytes(64)]
)
def test_a_file_that_is_no_progress_is_none(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "0.progress"
    path.write_bytes(broken)
    assert stall.read_progress(str(path)) is None
    assert stall.read_progress(str(tmp_path / "1.progress")) is None
    os.mkfifo(tmp_path / "2.progress")
    assert stall.read_progress(str(tmp_path / "2.progress")) is None


@NEEDS_ROOT
@pytest.mark.skipif(
    not os.access("/dev/fuse", os.W_OK), reason="no file system without an answer can be made"
)
def test_a_rank_that_no_signal_ends_leaves_the_reason_as_it_was(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stalled_files() as folder:
        line = machine.start(RUN, rank(f"open({folder + '/samples'!r})"), **LIMITS)
        wait_for(line, "stalled")
        line.order("stop", reason="run_timeout: rank 0 waits for its samples")
        record = wait_for(line, "ended")["record"]
        assert (record["state"], record["reason"]) == (
            "stopped",
            "run_timeout: rank 0 waits for its samples",
        )
        ((pid, name),) = record["stuck"]
        assert Path(f"/proc/{pid}/comm").read_text() == name + "\n"
        line.order("bye")
        monkeypatch.setenv("ORCH_LAB_NODE", str(machine.root))
        left_of_runs = loaded("facts").left_of_runs
        # Until its supervisor has ended, the run holds the node, and nothing is left of it.
        wait_until(left_of_runs, LIMIT_S, "the run still holds the node, or nothing is left")
        assert left_of_runs() == [[pid, name, "D", RUN]]


def test_a_limit_without_a_controller_ends_the_run_after_a_look(machine: Machine) -> None:
    line = machine.start(RUN, rank("time.sleep(1000)"), **(LIMITS | {"limit_s": 5.0}))
    time.sleep(stall.CONTROLLER_S)  # a controller that says nothing
    assert line.wait_for("overdue")["reason"] == "run_timeout: longer than 5 s"
    assert line.wait_for("examined")["report"]["ranks"][0]["rank"] == 0
    assert line.wait_for("stopping")["reason"] == "run_timeout: longer than 5 s"
    assert "hang.json" in line.wait_for("ended")["record"]["files"]


def test_a_limit_waits_for_a_controller_that_looks_at_all_nodes(machine: Machine) -> None:
    line = machine.start(RUN, rank("time.sleep(1000)"), **(LIMITS | {"limit_s": 5.0}))
    wait_for(line, "overdue")
    wait_for(line, "examined")
    for _ in range(10):
        line.order("beat", n=1)
        assert line.wait_for("beat")["state"] == "running"
        time.sleep(0.1)
    line.order("stop", reason="run_timeout: longer than 5 s; rank 0 sleeps")
    assert (
        wait_for(line, "ended")["record"]["reason"] == "run_timeout: longer than 5 s; rank 0 sleeps"
    )


def test_a_full_pipe_is_seen_with_who_should_read_it() -> None:
    reader = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE)
    writer = subprocess.Popen(
        [sys.executable, "-c", "import os\nwhile True: os.write(1, bytes(65536))"],
        stdout=reader.stdin,
    )
    try:
        until = time.monotonic() + LIMIT_S
        while (blocked := examine.blocked_pipe(examine.examine_process(writer.pid, True))) is None:
            assert time.monotonic() < until
        assert [reader.pid, "sleep", "S"] in blocked["readers"]
    finally:
        for process in (writer, reader):
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()


def test_a_signal_is_sent_only_to_a_program_that_catches_it(tmp_path: Path) -> None:
    """A program of others, which has no handler, would be ended by it."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "0.progress").write_bytes(bytes(64))
    (tmp_path / "ranks" / "0.stacks").write_bytes(b"")
    process = subprocess.Popen(["sleep", "60"])
    try:
        question = loaded("stacks").Question(str(tmp_path), 0, process.pid)
        assert question.words(0.0) == {} and process.poll() is None
        assert not loaded("stacks").catches(process.pid, signal.SIGRTMIN + 14)
    finally:
        process.kill()
        process.wait()


def test_the_flight_recorder_is_cut_to_what_is_waited_for() -> None:
    entries = [
        {
            "collective_seq_id": number,
            "profiling_name": "gloo:all_reduce",
            "process_group": ["0", "default"],
            "retired": number < 300,
        }
        for number in range(1, 400)
    ]
    kept = loaded("stacks").last_collectives(json.dumps({"entries": entries}).encode())
    calls = [(entry["number"], entry["over"]) for entry in kept["collectives"]]
    assert calls[:2] == [(299, True), (300, False)] and len(calls) <= 8
    assert [entry["number"] for entry in kept["earlier"]] == list(range(300 - 64, 300))
    assert (
        loaded("stacks").last_collectives(b'{"entries": []}') == {}
    )  # a recorder that is not switched on proves nothing


PY_SPY = """\
Thread 7 (idle): "MainThread"
    nap (/job/train.py:4)
    main (/job/train.py:9)
Thread 8 (idle): "orch-answer"
    _answer (/job/rank_progress.py:1)
"""
FAULTHANDLER = """\
Current thread 0x8 (most recent call first):
  File "/job/rank_progress.py", line 1 in _answer

Thread 0x7 (most recent call first):
  File "/job/train.py", line 4 in nap
  File "/job/train.py", line 9 in main
"""


@pytest.mark.parametrize("text", [PY_SPY, FAULTHANDLER], ids=["py-spy", "faulthandler"])
def test_the_calls_of_the_main_thread_come_with_their_source(tmp_path: Path, text: str) -> None:
    program = tmp_path / "train.py"
    lines = [
        "import time",
        "",
        "def nap():",
        "    time.sleep(",
        "        5)",
        "",
        "def main():",
        "    while True:",
        "        nap()",
    ]
    program.write_text("\n".join(lines))
    found = loaded("frames").calls_of(text.replace("/job", str(tmp_path)), os.getpid())
    assert [(call["name"], call.get("code")) for call in found["calls"]] == [
        ("nap", "time.sleep( 5)"),
        ("main", "nap()"),
    ]
    assert found["calls"][0]["polls"] is False
    assert [[call["name"] for call in thread] for thread in found["beside"]] == [["_answer"]]


@pytest.mark.parametrize(
    ("loop", "polls"),
    [
        ("while not path.exists():\n    time.sleep(1)", True),
        ("while True:\n    time.sleep(1)\n    if done:\n        break", True),
        ("for attempt in range(9):\n    time.sleep(1)\n    if done: break", True),
        ("while True:\n    time.sleep(1)", False),
        ("for batch in batches:\n    time.sleep(1)\n    total += batch", False),
        ("while step < last:\n    time.sleep(1)\n    loss.backward()", False),
        ("if late:\n    time.sleep(1)", False),
        ("while not\n    time.sleep(1)", False),  # not a program
    ],
)
def test_a_loop_polls_if_it_is_short_and_ends_by_itself(loop: str, polls: bool) -> None:
    assert loaded("frames").polls(loop.splitlines(), 2) is polls


def test_progress_is_the_step_that_a_log_names_and_not_its_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "rank-0.out"
    order = {
        "examines": True,
        "progress": ["rank-0.out"],
        "steps": [r"step (?P<step>[\d,]+) ", "(?P<step>unbalanced"],
    }
    judge = stall.Stall()
    told: list[Any] = []
    with log.open("a") as file:
        for second in range(60):
            if second < 40:
                file.write(
                    "".join(f"step {1000 + 10 * second + at:,} loss 1\n" for at in range(10))
                )
            file.write("retrying the connection\n" * 50)
            file.flush()
            told.append(judge.look(order, [], {"rank-0.out": log.stat().st_size}, float(second)))
    (at,) = [second for second, event in enumerate(told) if event]
    event, fields = told[at]
    assert event == "stalled" and 42 <= at <= 45 and fields["usual_s"] == pytest.approx(0.1)


def test_a_launch_script_that_goes_on_after_its_ranks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = [{"rank": 0, "ended_mono_s": 100.0}]
    judge = stall.Stall()
    assert judge.look({"examines": True}, ended, {}, 101.0) is None
    event, fields = judge.look({"examines": True}, ended, {}, 104.0)
    assert (event, fields["silent_s"], fields["ranks"]) == ("stalled", 4.0, [])


def test_the_program_of_a_rank_is_the_child_that_its_launcher_waits_for() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)'])"
    shell = subprocess.Popen(
        ["bash", "-c", f"{sys.executable} -c {shlex.quote(code)}; true"], stdout=subprocess.PIPE
    )
    try:
        assert shell.stdout and shell.stdout.readline() == b"1\n"
        program = examine.program_of(shell.pid)
        assert (
            b"time.sleep" in Path(f"/proc/{program}/cmdline").read_bytes()
            and b"run(" not in Path(f"/proc/{program}/cmdline").read_bytes()
        )
        assert examine.program_of(program) == program
    finally:
        subprocess.run(
            ["pkill", "-P", str(examine.tree_of(shell.pid, examine.processes())[1])], check=False
        )
        shell.kill()
        shell.communicate()


def test_a_rank_that_fails_leaves_its_collectives(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    code = f"import sys; sys.path.insert(0, {str(COMMON)!r})\nimport rank_progress\n"
    code += 'rank_progress.collectives = lambda: b\'{"entries": [{"collective_seq_id": 7, "profiling_name": "gloo:x"}]}\'\n'
    code += "raise ValueError('a size differs')"
    environment = {**os.environ, "ORCH_PROGRESS": str(tmp_path / "ranks" / "0.progress")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "a size differs" in done.stderr
    calls = loaded("stacks").ask_collectives(str(tmp_path), [], [0, 1])
    assert [entry["number"] for entry in calls[0]["collectives"]] == [7] and 1 not in calls
