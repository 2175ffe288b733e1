"""The life of a run under its supervisor: what is refused, what is started, what ends it, and that
nothing outlives it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan.framework import run_path
from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.machine import (
    DEAF,
    NEEDS_ROOT,
    RUN,
    SLEEP,
    Machine,
    bearing,
    rank,
    supervisors,
)


def children_of(process: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


@NEEDS_ROOT
@pytest.mark.parametrize("variables", ["export A=1\n", f"export A={'x' * 300_000}\n"])
def test_a_disk_without_room_for_a_run_is_said_with_its_directory_and_numbers(
    machine: Machine, variables: str
) -> None:
    machine.root.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k,mode=0700", "tmpfs", str(machine.root)],
        check=True,
        timeout=LIMIT_S,
    )
    try:
        files = machine.stage(RUN, SLEEP)
        line = machine.supervisor(RUN)
        machine.arm(line, RUN, files, variables=variables)
        error = line.wait_for("error")
        assert error["kind"] == "storage_full"
        needed = (1 << 18) + len(variables)
        found = re.fullmatch(
            rf"{machine.folder(RUN)}: No space left on device; needed {needed} bytes, free (\d+)",
            error["message"],
        )
        assert found and int(found[1]) < needed
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=LIMIT_S)


def test_a_good_run_from_arm_to_bye(machine: Machine) -> None:
    code = 'import os; print("out"); os.write(2, bytes(range(256)))'
    line = machine.start(RUN, "#!/bin/bash\nset -e\necho node\n. ./env.sh\n" + rank(code))
    events = [line.wait_for("rank"), line.wait_for("ended")]
    assert (events[0]["rank"], events[0]["code"], events[0]["signal"]) == (0, 0, None)
    record = machine.record(RUN)
    assert events[1]["record"] == record
    assert (record["state"], record["code"], record["signal"], record["reason"]) == (
        "finished",
        0,
        None,
        "",
    )
    assert (
        record["started_mono_s"] <= record["ranks"][0]["started_mono_s"] <= record["ended_mono_s"]
    )
    logs = {path.name: path.read_bytes() for path in (machine.folder(RUN) / "logs").iterdir()}
    assert logs == {
        "node.out": b"node\n",
        "node.err": b"",
        "rank-0.out": b"out\n",
        "rank-0.err": bytes(range(256)),
    }
    assert record["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in logs.items()
    }
    assert not (machine.folder(RUN) / "env.sh").exists(), "the variables are gone after the run"
    line.order("bye")
    judge.wait_for(lambda: not supervisors(machine.folder(RUN)), 2, "the supervisor stays")
    assert (machine.folder(RUN) / "supervisor.err").read_bytes() == b""


@pytest.mark.parametrize("after", ["another run", "a stop", "status", "left", "get"])
def test_variables_are_there_with_a_supervisor_or_until_the_next_one_if_it_was_killed(
    machine: Machine, after: str
) -> None:
    variables, other = machine.folder(RUN) / "env.sh", f"{RUN}b"
    files = machine.stage(RUN, SLEEP)
    line = machine.supervisor(RUN)
    assert not variables.exists()
    machine.arm(line, RUN, files)
    supervisor = line.wait_for("armed")["pid"]
    assert variables.read_text() == "export SECRET=1\n"
    os.kill(supervisor, signal.SIGKILL)
    judge.wait_for(lambda: not supervisors(machine.folder(RUN)), 3, "it is not killed")
    assert variables.exists()
    (machine.folder(RUN) / "env.sh.77.tmp").write_text("export SEC")
    if after == "a stop":
        machine.ask("stop", run=other, grace_s=0.2, reason="x")
    elif after != "another run":
        machine.ask(after, run=RUN, have={}, max_bytes=0, max_files=0)
    else:
        machine.start(other, rank("print(1)")).wait_for("ended")
    assert not list(machine.folder(RUN).glob("env.sh*"))


def test_every_file_and_folder_of_a_run_is_private(machine: Machine) -> None:
    machine.start(RUN, rank("print(1)")).wait_for("ended")
    assert [path for path in machine.root.rglob("*") if path.lstat().st_mode & 0o077] == []


def test_the_start_is_at_the_agreed_instant(machine: Machine) -> None:
    files = machine.stage(RUN, "#!/bin/bash\ntrue\n")
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files)
    line.wait_for("armed")
    at = time.monotonic() + 0.5
    line.order("go", at=at)
    late_s = line.wait_for("started")["mono"] - at
    assert late_s >= 0 and judge.in_time(late_s, 0.2)
    line.wait_for("ended")


def test_what_waits_at_the_gate_goes_before_others_and_the_launch_script_as_usual(
    machine: Machine,
) -> None:
    if subprocess.run(
        ["chrt", "--fifo", "1", "true"], stderr=subprocess.DEVNULL, check=False
    ).returncode:
        pytest.skip("this user may not go before others")
    files = machine.stage(RUN, "#!/bin/bash\ncat /proc/self/stat\n")
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files)
    (waiting,) = children_of(line.wait_for("armed")["pid"])
    judge.wait_for(
        lambda: os.sched_getscheduler(waiting) == os.SCHED_FIFO, 3, "it waits as everybody does"
    )
    line.order("go", at=None)
    line.wait_for("ended")
    said = (machine.folder(RUN) / "logs" / "node.out").read_text()
    assert said.rpartition(")")[2].split()[38] == str(os.SCHED_OTHER)


@pytest.mark.parametrize("stop_first", [False, True])
def test_a_line_that_closes_before_the_go_word_starts_nothing(
    machine: Machine, stop_first: bool
) -> None:
    files = machine.stage(RUN, "#!/bin/bash\ntouch started\n")
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files)
    line.wait_for("armed")
    if stop_first:
        line.order("stop", reason="never mind")
    line.close()
    judge.wait_for(lambda: not supervisors(machine.folder(RUN)), 3, "the supervisor stays")
    assert (
        not (machine.folder(RUN) / "started").exists()
        and not (machine.folder(RUN) / "exit.json").exists()
    )


def test_what_waits_at_the_gate_goes_with_a_supervisor_that_is_killed(machine: Machine) -> None:
    files = machine.stage(RUN, "#!/bin/bash\ntouch started\n")
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files)
    supervisor = line.wait_for("armed")["pid"]
    waiting = children_of(supervisor)
    assert len(waiting) == 1 and not list((machine.folder(RUN) / "logs").iterdir())
    os.kill(supervisor, signal.SIGKILL)
    judge.wait_for(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in waiting), 3, "it stays at the gate"
    )
    assert not (machine.folder(RUN) / "started").exists()


def test_what_is_killed_at_the_gate_is_a_launch_that_failed(machine: Machine) -> None:
    files = machine.stage(RUN, SLEEP)
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files)
    supervisor = line.wait_for("armed")["pid"]
    for pid in children_of(supervisor):
        os.kill(pid, signal.SIGKILL)
    judge.wait_for(lambda: not children_of(supervisor), 3, "nobody collects it")
    line.order("go", at=None)
    assert (
        line.wait_for("stopping")["reason"] == "rank_failed: its launch script ended with SIGKILL"
    )
    record = line.wait_for("ended")["record"]
    assert (
        record["state"] == "failed"
        and record["signal"] == "SIGKILL"
        and record["started_mono_s"] is None
    ), record


def test_an_altered_file_is_not_executed(machine: Machine) -> None:
    files = machine.stage(RUN, SLEEP)
    (machine.folder(RUN) / "launch.sh").write_text(SLEEP.replace("1000", "1001"))
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files)
    error = line.wait_for("error")
    assert error["kind"] == "transfer_corrupt" and "launch.sh" in error["message"]
    judge.wait_for(lambda: not supervisors(machine.folder(RUN)), 3, "the supervisor stays")


def test_a_run_that_has_ended_is_not_started_again(machine: Machine) -> None:
    script = rank('print("once")')
    line = machine.start(RUN, script)
    line.wait_for("ended")
    line.order("bye")
    judge.wait_for(lambda: not supervisors(machine.folder(RUN)), 5, "the supervisor stays")
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, machine.stage(RUN, script))
    error = line.wait_for("error")
    assert error["kind"] == "node_unfit" and "has already ended on this node" in error["message"]
    assert (machine.folder(RUN) / "logs" / "rank-0.out").read_bytes() == b"once\n"


def test_a_port_that_is_taken_is_refused_when_armed(machine: Machine) -> None:
    files = machine.stage(RUN, SLEEP)
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = machine.supervisor(RUN)
        machine.arm(line, RUN, files, ports=[server.getsockname()[1]])
        error = line.wait_for("error")
        assert (error["kind"], error["port"]) == ("port_busy", server.getsockname()[1])
    line.close()


def test_beats_are_answered_with_the_clock_and_the_log_from_an_offset(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\necho abcdef\nexec sleep 1000\n")
    machine.wait_for_log(RUN, "node.out", b"abcdef\n")
    before = time.monotonic()
    line.order("beat", n=7, tail={"file": "node.out", "offset": 2})
    beat = line.wait_for("beat")
    assert (beat["n"], beat["state"], beat["data"], beat["offset"]) == (7, "running", "Y2RlZgo=", 2)
    assert before <= beat["mono"] <= time.monotonic()
    line.order("stop", reason="enough: said the test")
    record = line.wait_for("ended")["record"]
    assert (record["state"], record["signal"], record["reason"]) == (
        "stopped",
        "SIGTERM",
        "enough: said the test",
    )


def test_a_beat_that_names_logs_by_a_pattern_has_the_first_that_is_written(
    machine: Machine,
) -> None:
    line = machine.start(
        RUN, "#!/bin/bash\ncd logs; touch a.log; echo b > c.log; echo abc > b.log\nexec sleep 9\n"
    )
    machine.wait_for_log(RUN, "b.log", b"abc\n")
    line.order("beat", n=7, tail={"file": "?.log", "offset": 0})
    beat = line.wait_for("beat")
    assert (beat["file"], beat["data"]) == ("b.log", "YWJjCg==")
    line.order("stop", reason="enough: said the test")
    line.wait_for("ended")


def test_a_run_that_nobody_renews_ends_by_its_lease_and_says_so(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP, lease_s=1.0)
    begin = time.monotonic()
    line.close()
    judge.wait_for(lambda: not bearing(RUN), 3.0, "it outlived its lease")
    assert time.monotonic() - begin > 0.8
    judge.wait_for(lambda: (machine.folder(RUN) / "exit.json").exists(), 2, "no record")
    assert machine.record(RUN)["reason"] == "lease_expired: no controller renewed the lease for 1 s"
    assert machine.record(RUN)["state"] == "stopped"


@pytest.mark.parametrize("removed", [True, False])
def test_a_run_whose_folder_is_taken_away_ends_and_says_so(machine: Machine, removed: bool) -> None:
    line = machine.start(RUN, "#!/bin/bash\necho on\nexec sleep 1000\n")
    machine.wait_for_log(RUN, "node.out", b"on\n")
    if removed:
        shutil.rmtree(machine.folder(RUN))
        reason = line.wait_for("stopping")["reason"]
        assert "was it, or its work directory, removed or renamed?" in reason, reason
    else:
        machine.root.rename(machine.root.with_name("renamed"))
        line.order("stop", reason="enough")
    judge.wait_for(lambda: not bearing(RUN), LIMIT_S, "it outlived its folder")


def test_beats_renew_the_lease_on_a_second_line_as_well(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nsleep 31\n", lease_s=15.0)
    line.close()
    line = machine.supervisor(RUN, start=False)
    event = {"event": "beat"}
    while event["event"] == "beat":
        line.order("beat", n=1)
        event = line.read_line()
        time.sleep(0.1)
    assert machine.record(RUN)["state"] == "finished"


def test_a_run_ends_at_its_time_limit(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP, limit_s=0.5)
    assert line.wait_for("stopping")["reason"] == "run_timeout: longer than 0.5 s"
    assert line.wait_for("ended")["record"]["state"] == "stopped"


LIMITS = {"first_line_s": 1.5, "stall_s": 1.5, "progress": ["rank-*.out"]}


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        ("echo node\nexec sleep 1000", LIMITS, "no line within 1.5 s of the start"),
        (
            "echo loaded >logs/setup.out\nexec sleep 1000",
            {**LIMITS, "progress": ["s*.out"]},
            "no line within 1.5 s of the start",
        ),
        (
            rank("import time; print(1, flush=True); time.sleep(1000)"),
            LIMITS,
            "no new line for 1.5 s",
        ),
        (
            rank("import time; time.sleep(1000)"),
            {**LIMITS, "first_line_s": 0, "limit_s": 3.0},
            "longer than 3 s",
        ),
        ("exec sleep 1000", {**LIMITS, "progress": [], "limit_s": 3.0}, "longer than 3 s"),
    ],
    ids=["silent", "only-setup-lines", "stalls", "switched-off", "holds-no-samples"],
)
def test_a_log_that_does_not_begin_or_no_longer_grows_ends_the_run(
    machine: Machine, script: str, limits: dict[str, Any], reason: str
) -> None:
    line = machine.start(RUN, f"#!/bin/bash\n{script}\n", **limits)
    assert line.wait_for("stopping")["reason"] == f"run_timeout: {reason}"
    assert line.wait_for("ended")["record"]["state"] == "stopped"


def test_a_log_that_grows_slowly_is_no_stall(machine: Machine) -> None:
    code = (
        "import time\nfor number in range(5):\n    print(number, flush=True)\n    time.sleep(0.7)"
    )
    line = machine.start(RUN, f"#!/bin/bash\n{rank(code)}\n", **LIMITS)
    record = line.wait_for("ended")["record"]
    assert (record["state"], record["reason"]) == ("finished", ""), record


def test_the_record_says_when_the_log_grew_and_how_busy_the_processors_were(
    machine: Machine,
) -> None:
    code = "import time\nfor step in range(1, 4):\n    print(step, flush=True)\n    end = time.monotonic() + 1.2\n"
    code += (
        '    while time.monotonic() < end: pass\nopen("spent", "w").write(str(time.process_time()))'
    )
    line = machine.start(RUN, f"#!/bin/bash\n{rank(code)}\n", **{**LIMITS, "stall_s": 5.0})
    record = line.wait_for("ended")["record"]
    assert record["state"] == "finished", record
    growth, processors = record["meter"]["growth"], record["meter"]["processors"]
    sizes = [marks["rank-0.out"] for _, marks in growth]
    assert len(sizes) >= 2 and sizes == sorted(set(sizes)) and set(sizes) <= {2, 4, 6}
    assert all(
        record["started_mono_s"] <= seconds <= record["ended_mono_s"] for seconds, _ in growth
    )
    # What a rank computes is known when it has ended: it is the supervisor's, not that of others.
    spent_s = float(next(machine.root.rglob("spent")).read_text())
    assert (
        spent_s <= processors["own_s"] + 0.1 < 3 * 1.2 + 2
        and processors["own_s"] <= processors["busy_s"] + 0.2
    )
    assert (
        processors["count"] == os.cpu_count()
        and processors["switches"][0] < processors["switches"][1]
    )
    assert record["meter"]["sent_bytes"] >= 0


def test_beats_that_waited_in_a_frozen_node_renew_nothing(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP, lease_s=1.0)
    (supervisor,) = supervisors(machine.folder(RUN))
    os.kill(supervisor, signal.SIGSTOP)
    line.order("beat", n=1)
    time.sleep(1.3)
    line.order("beat", n=2)
    os.kill(supervisor, signal.SIGCONT)
    assert (
        line.wait_for("ended")["record"]["reason"]
        == "lease_expired: no controller renewed the lease for 1 s"
    )


def test_a_flood_of_output_is_stopped(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nexec yes\n", output_limit_bytes=1 << 20)
    assert line.wait_for("stopping")["reason"] == "output_limit: more than 1048576 bytes of logs"
    record = line.wait_for("ended")["record"]
    written = (machine.folder(RUN) / "logs/node.out").read_bytes()
    kept = written[: 1 << 20]
    assert record["files"]["node.out"] == {
        "bytes": len(kept),
        "sha256": hashlib.sha256(kept).hexdigest(),
    }


def test_a_giant_log_is_cut_displaces_no_other_and_holds_up_no_answer(machine: Machine) -> None:
    """It is sparse: no byte of it was ever written, and hashing as much as may be kept still takes
    a second or more.
    """
    giant = 64 << 30
    script = f"#!/bin/bash\nhead -c 3000000 /dev/zero > logs/rank-1.err\ntruncate -s {giant} logs/rank-0.out\nsleep 1000\n"
    line = machine.start(RUN, script, output_limit_bytes=2 << 30)
    asked = 0
    while True:
        asked += 1
        line.order("beat", n=asked)
        while (event := line.read_line())["event"] not in ("beat", "ended"):
            pass
        if event["event"] == "ended":
            break
    assert asked > 2, "no beat was answered while the log was cut"
    record = event["record"]
    assert (
        record["reason"].startswith("output_limit: more than 2147483648 bytes")
        and record["state"] == "stopped"
    )
    assert record["files"]["rank-1.err"]["bytes"] == 3_000_000
    assert sum(file["bytes"] for file in record["files"].values()) == 2 << 30


def test_a_crowd_of_files_is_stopped_and_displaces_no_log_of_a_rank(machine: Machine) -> None:
    crowd = 'for n in {1..4200}; do : > "logs/crowd-$n"; done; echo said; exec sleep 60\n'
    line = machine.start(RUN, f"#!/bin/bash\n{crowd}")
    assert line.wait_for("stopping")["reason"] == "output_limit: more than 4096 log files"
    files = line.wait_for("ended")["record"]["files"]
    assert len(files) == 4096 and files["node.out"]["bytes"] == 5 and "node.err" in files
    got = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=4096)
    assert got.read_line()["name"] == "node.out"


def test_a_deaf_workload_is_killed_after_the_grace(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\n" + rank(DEAF))
    machine.wait_for_log(RUN, "rank-0.out", b"1\n")
    begin = time.monotonic()
    line.order("stop", reason="now")
    record = line.wait_for("ended")["record"]
    assert time.monotonic() - begin >= 0.5
    assert record["ranks"][0]["signal"] == "SIGKILL" and bearing(RUN) == []


ESCAPED = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        open("escaping", "w").write(str(os.getpid()))
        os.rename("escaping", "escaped")
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists("escaped"): time.sleep(0.01)
"""


@pytest.mark.parametrize("marked", [True, False], ids=["with-its-marker", "without-its-marker"])
def test_what_a_workload_leaves_behind_as_a_daemon_is_ended_with_it(
    machine: Machine, marked: bool
) -> None:
    code = (
        ESCAPED
        if marked
        else "import os; os.environ.pop('ORCH_RUN_ID'); os.execv('"
        + sys.executable
        + "', ['x', 'escape.py'])"
    )
    machine.put((f"{run_path(machine.name, RUN)}/escape.py", ESCAPED.encode(), 0o600))
    machine.put((f"{run_path(machine.name, RUN)}/first.py", code.encode(), 0o600))
    line = machine.start(RUN, f"#!/bin/bash\nexec {sys.executable} first.py\n")
    record = line.wait_for("ended")["record"]
    assert record["state"] == "finished"
    escaped = int((machine.folder(RUN) / "escaped").read_text())
    assert [pid for pid, name in record["left_over"] if name.startswith("python")] == [escaped], (
        record
    )
    judge.wait_for(lambda: not Path(f"/proc/{escaped}").exists(), 1.0, "the daemon lives on")


def test_the_group_of_a_leader_that_died_is_emptied(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nsleep 1000 & sleep 1000 &\nkill -9 $$\n")
    record = line.wait_for("ended")["record"]
    assert (record["state"], record["signal"]) == ("failed", "SIGKILL") and bearing(RUN) == []


def test_a_process_of_the_same_name_that_is_not_ours_is_left_alone(machine: Machine) -> None:
    others = [
        subprocess.Popen(["sleep", "1000"]),
        subprocess.Popen(
            ["sleep", "1000"], env={"ORCH_RUN_ID": f"{RUN}-another", "PATH": os.environ["PATH"]}
        ),
    ]
    try:
        line = machine.start(RUN, SLEEP)
        line.order("stop", reason="now")
        line.wait_for("ended")
        assert machine.ask("stop", run=RUN, grace_s=0.2, reason="now") == {
            "stopped": [],
            "left": [],
        }
        assert [other.poll() for other in others] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()
