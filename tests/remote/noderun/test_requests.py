"""What the node runner answers about runs, and that it says so where there is nothing to answer for
it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from noderun.runs import address_of
from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.machine import (
    DEAF,
    RUN,
    SLEEP,
    Machine,
    bearing,
    fetched,
    old_interpreters,
    python_name,
    rank,
    supervisors,
)


@pytest.mark.parametrize("python", old_interpreters(), ids=python_name)
def test_the_runner_works_under_every_python_of_this_machine(python: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "work", python)
    assert machine.put(("a/b.txt", b"text", 0o640)) == {"done": True}
    facts = machine.ask(
        "facts", python=[python], probe="import json; print(json.dumps({'x': 1}))", probe_timeout_s=int(LIMIT_S), ports=[],
        environment="", interface="lo", data_dir=str(tmp_path), capture="c1",
    )["facts"]  # fmt: skip
    asked = [python, "-c", "import platform; print(platform.python_version())"]
    expected = subprocess.run(asked, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert facts["runner_python"] == expected.stdout.strip() and facts["framework"] == {"x": 1}
    assert facts["interface"]["mtu"] > 0 and facts["data_dir"] is True and facts["cores"] >= 1
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    line = machine.start(f"{RUN}-py", rank("print(1)"))
    assert line.wait_for("ended")["record"]["state"] == "finished"
    line.order("bye")
    line.close()
    assert b"".join(one.process.stderr.read() for one in machine.lines if one.process.stderr) == b""
    machine.close()


def test_after_a_goodbye_the_runner_of_the_line_answers_more_requests(machine: Machine) -> None:
    line = machine.start(RUN, "exit 0\n")
    line.wait_for("ended")
    line.order("bye")
    line.wait_for("closed")
    judge.wait_for(lambda: not supervisors(machine.folder(RUN)), 2, "the supervisor stays")
    line.send(
        json.dumps(
            {
                "root": str(machine.root),
                "node": machine.name,
                "op": "left",
                "nonce": "again",
                "run": RUN,
            }
        ).encode()
        + b"\n"
    )
    assert line.read(len(b"ORCH again\n")) == b"ORCH again\n"
    assert line.read_line()["left"] == []
    assert line.process.wait(LIMIT_S) == 0


def test_all_runs_of_a_node_are_none_of_another_node_of_the_same_machine(
    machine: Machine, tmp_path: Path
) -> None:
    other, bare = Machine(tmp_path / "other"), {**os.environ, "ORCH_RUN_ID": f"{RUN}-c"}
    machine.start(f"{RUN}-a", SLEEP)
    other.start(f"{RUN}-b", SLEEP)
    with subprocess.Popen(
        ["sleep", "60"], env=bare
    ) as outside:  # a run of the machine itself, in no lab
        try:
            assert list(machine.ask("status")["runs"]) == [f"{RUN}-a"]
            assert machine.ask("stop", grace_s=0.2, reason="now") == {
                "stopped": [f"{RUN}-a"],
                "left": [],
            }
            assert not bearing(f"{RUN}-a") and bearing(f"{RUN}-b") and outside.poll() is None
            assert other.ask("stop", run=f"{RUN}-b", grace_s=0.2, reason="now")["left"] == []
        finally:
            outside.kill()
            other.close()


def test_where_a_supervisor_is_gone_without_a_goodbye_the_line_ends(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP)
    os.kill(supervisors(machine.folder(RUN))[0], signal.SIGKILL)
    assert line.process.wait(LIMIT_S) == 0
    assert line.process.stdout and not line.process.stdout.read(), (
        "no word that requests may follow"
    )
    assert machine.ask("stop", run=RUN, grace_s=0.5, reason="test")["left"] == []


def test_every_answer_about_a_run_says_which_boot_it_is_of(machine: Machine) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    files = machine.stage(RUN, SLEEP)
    refused = machine.call("line", run=RUN, start=False, wait_s=5).read_line()["error"]
    line = machine.call("line", run=RUN, start=True, wait_s=5)
    hello = line.read_line()
    machine.arm(line, RUN, files)
    armed = line.wait_for("armed")
    line.close()
    _, head = fetched(machine, {})
    assert [one["boot_id"] for one in (refused, hello, armed, head)] == [boot] * 4


def test_whatever_the_system_refuses_is_told_with_path_and_cause(machine: Machine) -> None:
    machine.folder("r1").parent.mkdir(parents=True)
    machine.root.chmod(0o700)
    machine.folder("r1").touch()
    error = machine.ask("line", run="r1", start=False)["error"]
    message = f"the node's system: {machine.folder('r1')}: Not a directory"
    assert (error["kind"], error["message"]) == ("node_unfit", message)


def test_stop_ends_every_run_and_says_which(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\n" + rank(DEAF))
    machine.wait_for_log(RUN, "rank-0.out", b"1\n")
    status = machine.ask("status")
    assert status["runs"][RUN] == len(bearing(RUN)) >= 2
    assert machine.ask("left", run=RUN)["supervisor"] is True
    answer = machine.ask("stop", run=RUN, grace_s=0.5, reason="cancelled")
    assert answer == {"stopped": [RUN], "left": []}
    assert (machine.record(RUN)["state"], machine.record(RUN)["reason"]) == ("stopped", "cancelled")
    status = machine.ask("status")
    assert RUN not in status["runs"] and status["owner"] is None
    assert machine.ask("left", run=RUN) == {"left": [], "supervisor": False}
    line.close()


def test_a_log_is_followed_until_the_run_ends(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nfor i in 1 2 3; do echo $i; sleep 0.2; done\n")
    tail = machine.call("tail", run=RUN, file="node.out", offset=0, follow=True)
    line.wait_for("ended")
    line.order("bye")
    text = b""
    while not (head := tail.read_line()).get("done"):
        text += tail.read(head["bytes"])
    assert text == b"1\n2\n3\n" and head["offset"] == 6


def test_no_supervisor_is_an_answer_and_no_wait(machine: Machine) -> None:
    machine.stage(RUN, SLEEP)
    line = machine.call("line", run=RUN, start=False, wait_s=5)
    assert line.read_line()["error"]["kind"] == "node_lost"


@pytest.mark.parametrize("accepts", [False, True])
def test_a_supervisor_that_leaves_before_its_first_word_is_no_supervisor(
    machine: Machine, accepts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.stage(RUN, SLEEP)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        monkeypatch.delenv("ORCH_LAB", raising=False)
        monkeypatch.setenv("ORCH_LAB_NODE", str(machine.root))
        door.bind(address_of(str(machine.folder(RUN))))
        door.listen(4)
        line = machine.call("line", run=RUN, start=False, wait_s=5)
        assert select.select([door], [], [], 5)[0], "nobody comes"
        if accepts:
            door.accept()[0].close()
    error = line.read_line()["error"]
    assert error["kind"] == "node_lost" and error["boot_id"]


def test_a_work_directory_with_a_long_path_works(tmp_path: Path) -> None:
    machine = Machine(tmp_path / ("d" * 120) / "work")
    machine.root.parent.mkdir()
    line = machine.start(RUN, rank("print(1)"))
    assert line.wait_for("ended")["record"]["state"] == "finished"
    machine.close()


def test_the_end_of_a_log_and_of_the_samples_are_sent_while_a_run_lasts(machine: Machine) -> None:
    rows = "".join(f"[{second}.0,{second * 2}]\\n" for second in range(20000))
    samples = f'{{"columns":["t","busy_s"]}}\\n{rows}'
    script = f"printf 'x%.0s' $(seq 5000); echo end; printf '{samples}' > .orch-samples; echo ready\n{SLEEP}"
    line = machine.start(RUN, script)
    log = machine.folder(RUN) / "logs" / "node.out"
    judge.wait_for(
        lambda: log.exists() and log.read_bytes().endswith(b"ready\n"),
        10,
        "the program says nothing",
    )

    def recent(file: str, most: int) -> tuple[dict[str, Any], bytes, bytes]:
        call = machine.call("recent", run=RUN, file=file, most=most, most_samples=1000)
        head = call.read_line()
        return head, call.read(head["log"]), call.read(head["samples"])

    head, end, rest = recent("node.out", 20)
    assert head["lives"] is True and head["sizes"]["node.out"] == log.stat().st_size
    assert end == b"xxxxxxxxxx" + b"end\nready\n" and rest.startswith(
        b'{"columns":["t","busy_s"]}\n['
    )
    assert (
        rest.endswith(b"[19999.0,39998]\n")
        and 900 < len(rest) < 1100
        and all(map(json.loads, rest.splitlines()))
    )
    assert (
        len(recent("node.out", 10**6)[1]) == log.stat().st_size
        and recent("rank-7.out", 20)[1] == b""
    )
    assert machine.ask("recent", run="20260101-never", file="node.out", most=9, most_samples=9) == {
        "absent": True
    }
    assert (
        machine.ask("recent", run=RUN, file="../exit.json", most=9, most_samples=9)["error"]["kind"]
        == "unsafe_path"
    )
    (log.parent / "link").symlink_to("/etc/passwd")
    assert recent("link", 100)[1] == b"" and "link" not in recent("link", 100)[0]["sizes"]
    line.order("bye")
    assert machine.ask("stop", run=RUN, grace_s=0.5, reason="test")["left"] == []
