"""Files on their way to a node and logs on their way home, through the runner alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noderun.logs import log_files, odd_files
from orchestrator.nodes.node import LEADER, boot_arguments
from orchestrator.plan.framework import run_path
from orchestrator.plan.payload import runner_source
from tests.support.judge import LIMIT_S
from tests.support.machine import (
    NEEDS_ROOT,
    RUN,
    SLEEP,
    Line,
    Machine,
    fetched,
    rank,
    read_logs,
)


def test_files_arrive_whole_with_their_mode_and_are_not_sent_twice(machine: Machine) -> None:
    files = (("payload/a/x.py", b"\0\xff\r\n" * 1000, 0o700), ("nodes/n/runs/r/env.sh", b"", 0o600))
    assert machine.put(*files) == {"done": True}
    assert (machine.root / "payload/a/x.py").read_bytes() == files[0][1]
    assert [oct((machine.root / path).stat().st_mode & 0o7777) for path, _, _ in files] == [
        "0o700",
        "0o600",
    ]
    assert (
        oct(machine.root.stat().st_mode & 0o777)
        == oct((machine.root / "nodes/n/runs/r").stat().st_mode & 0o777)
        == "0o700"
    )
    before = (machine.root / "payload/a/x.py").stat().st_ino
    listing = [
        {"path": p, "bytes": len(c), "sha256": hashlib.sha256(c).hexdigest(), "mode": m}
        for p, c, m in files
    ]
    assert machine.ask("put", files=listing)["missing"] == []
    assert (machine.root / "payload/a/x.py").stat().st_ino == before


def test_a_transfer_that_breaks_off_leaves_no_file_and_no_rest(machine: Machine) -> None:
    listing = [{"path": "payload/x", "bytes": 1000, "sha256": "0" * 64, "mode": 0o600}]
    line = machine.call("put", files=listing)
    line.read_line()
    line.send(b"half")
    assert line.process.stdin
    line.process.stdin.close()
    assert line.read_line()["error"]["kind"] == "transfer_corrupt"
    assert list((machine.root / "payload").iterdir()) == []


def test_bytes_that_are_not_what_was_announced_are_refused(machine: Machine) -> None:
    listing = [{"path": "payload/x", "bytes": 4, "sha256": "0" * 64, "mode": 0o600}]
    line = machine.call("put", files=listing)
    line.read_line()
    line.send(b"abcd")
    error = line.read_line()["error"]
    assert error["kind"] == "transfer_corrupt" and "0" * 64 in error["message"]
    assert list((machine.root / "payload").iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/x",
        "a//b",
        "",
        ".",
        "..",
        "a/.hidden",
        "-rf",
        "a/-b",
        "a b",
        "a\nb",
        "a\x00b",
        "ü",
        "a/",
        "x" * 200,
    ],
)
def test_names_that_leave_the_work_directory_or_hide_in_it_are_refused(
    machine: Machine, path: str
) -> None:
    answer = machine.put((path, b"x", 0o600))
    assert answer["error"]["kind"] == "unsafe_path"
    assert not (machine.root.parent / "x").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_and_never_followed(
    machine: Machine, tmp_path: Path
) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    machine.put(("payload/y", b"", 0o600))
    (machine.root / "payload" / "x").symlink_to(target)
    assert machine.put(("payload/x", b"new", 0o600)) == {"done": True}
    assert target.read_text() == "mine" and not (machine.root / "payload/x").is_symlink()


def _link(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    root.symlink_to(root.parent / "elsewhere")


def _file(root: Path) -> None:
    root.write_text("")


def _writable(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)


def _foreign(root: Path) -> None:
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)


@pytest.mark.parametrize(
    "plant", [_link, _file, _writable, pytest.param(_foreign, marks=NEEDS_ROOT)]
)
def test_a_work_directory_that_somebody_else_prepared_is_refused(
    machine: Machine, plant: Callable[[Path], None]
) -> None:
    plant(machine.root)
    answer = machine.put(("x", b"x", 0o600))
    assert (
        answer["error"]["kind"] == "node_unfit" and str(machine.root) in answer["error"]["message"]
    )


@NEEDS_ROOT
def test_a_full_disk_is_said_with_path_and_numbers_and_leaves_nothing(machine: Machine) -> None:
    machine.root.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(machine.root)],
        check=True,
        timeout=LIMIT_S,
    )
    try:
        error = machine.put(("payload/big", os.urandom(2 << 20), 0o600))["error"]
        assert error["kind"] == "storage_full"
        assert f"{machine.root}/payload/big" in error["message"]
        assert re.search(r"needed 2097152 bytes, free \d+", error["message"])
        assert list((machine.root / "payload").iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=LIMIT_S)


@pytest.mark.parametrize("silent", ["with the program", "with a file", "with taking a log"])
def test_no_process_waits_for_a_controller_that_has_vanished(tmp_path: Path, silent: str) -> None:
    """Standard input and output stay open, as they do where a server hears nothing of the other
    end's death.
    """
    source = runner_source().replace(b"IDLE_S = 60", b"IDLE_S = 1")
    arguments = [argument.replace("alarm(60)", "alarm(1)") for argument in boot_arguments(source)]
    assert b"IDLE_S = 1" in source and any("alarm(1)" in argument for argument in arguments)
    logs = tmp_path / run_path("node1", RUN) / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.out").write_bytes(os.urandom(1 << 22))
    file = {"path": "x", "bytes": 1000, "sha256": "0" * 64, "mode": 0o600}
    requests: dict[str, dict[str, Any]] = {
        "with the program": {"op": "left"},
        "with a file": {"op": "put", "files": [file]},
        "with taking a log": {
            "op": "get",
            "run": RUN,
            "have": {},
            "max_files": 10,
            "max_bytes": 1 << 30,
        },
    }
    header = (
        json.dumps(
            {"root": str(tmp_path), "node": "node1", "nonce": "n", **requests[silent]}
        ).encode()
        + b"\n"
    )
    sent = LEADER + source + header + b"half"
    argv = [sys.executable, *arguments]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    with process:
        process.stdin.write(sent[: len(source) // 2] if silent == "with the program" else sent)
        process.stdin.flush()
        assert process.wait(LIMIT_S) == -signal.SIGALRM


def test_a_sparse_giant_holds_nothing_up(machine: Machine) -> None:
    line = machine.start(
        RUN, "#!/bin/bash\ntruncate -s 4T logs/giant; exec sleep 60\n", output_limit_bytes=1 << 20
    )
    assert line.wait_for("ended")["record"]["files"]["giant"]["bytes"] == 1 << 20
    got = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=4096)
    received = 0
    while "done" not in (piece := got.read_line()):
        got.read(piece["bytes"])
        received += piece["raw"]
    assert received == 1 << 20


def test_what_is_no_log_is_named_and_not_sent(machine: Machine) -> None:
    script = "#!/bin/bash\ncd logs; ln -s /etc/passwd link; mkfifo pipe; mkdir folder; : > -dash; : > '.hidden'; echo said\n"
    record = machine.start(RUN, script).wait_for("ended")["record"]
    assert sorted(record["files"]) == ["node.err", "node.out"]
    got = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=4096)
    while "done" not in (piece := got.read_line()):
        got.read(piece["bytes"])
    assert piece["odd"] == ["-dash", ".hidden", "folder", "link", "pipe"] and sorted(
        piece["sizes"]
    ) == ["node.err", "node.out"]


def test_logs_come_from_the_offsets_asked_for_and_the_record_comes_last(machine: Machine) -> None:
    machine.start(
        RUN, "#!/bin/bash\nhead -c 700000 /dev/zero | tr '\\0' x\n" + rank("print(123)")
    ).wait_for("ended")
    found, head = fetched(machine, {})
    assert {name: len(data) for name, data in found.items()} == {
        "node.out": 700000,
        "rank-0.out": 4,
    }
    assert head["sizes"] == {"node.out": 700000, "node.err": 0, "rank-0.out": 4, "rank-0.err": 0}
    assert json.loads(head["record"]) == machine.record(RUN)
    found, _ = fetched(machine, {"node.out": 699990, "rank-0.out": 4})
    assert found == {"node.out": b"x" * 10}
    found, head = fetched(machine, {}, max_bytes=5, max_files=3)
    assert found["node.out"] == b"xxxxx" and head["left_out"] == 1


def with_log(machine: Machine, content: bytes) -> Path:
    path = machine.folder(RUN) / "logs" / "node.out"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@NEEDS_ROOT
def test_logs_come_home_from_a_disk_that_has_gone_read_only(machine: Machine) -> None:
    """Its supervisor has ended, and could not remove the variables of the run."""
    mount = ["mount", "-t", "tmpfs", "-o"]
    machine.root.mkdir(mode=0o700)
    subprocess.run([*mount, "mode=0700", "tmpfs", str(machine.root)], check=True, timeout=LIMIT_S)
    try:
        with_log(machine, b"step 1\n")
        variables = machine.folder(RUN) / "env.sh"
        variables.write_text("export TOKEN=x\n")
        subprocess.run([*mount, "remount,ro", str(machine.root)], check=True, timeout=LIMIT_S)
        assert fetched(machine, {})[0] == {"node.out": b"step 1\n"} and variables.exists()
        subprocess.run([*mount, "remount,rw", str(machine.root)], check=True, timeout=LIMIT_S)
        assert fetched(machine, {})[0] == {"node.out": b"step 1\n"} and not variables.exists()
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=LIMIT_S)


@pytest.mark.parametrize(("mib_s", "compresses"), [(0.1, True), (0.0, False)])
def test_a_log_is_compressed_where_the_line_is_slow_and_only_there(
    machine: Machine, mib_s: float, compresses: bool
) -> None:
    line = b"step=1 samples=256 step_time_s=0.123456 loss=6.9078\n"
    with_log(machine, line * ((24 << 20) // len(line)) if mib_s else os.urandom(24 << 20))
    reader = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=9)
    ways: list[bool] = []
    while not (head := reader.read_line()).get("done"):
        ways.append(head["packed"])
        # A line is slow all the time, not between two pieces.
        for offset in range(0, head["bytes"], 1 << 14):
            some = len(reader.read(min(1 << 14, head["bytes"] - offset)))
            time.sleep(mib_s * some / (1 << 20))
    assert ways[:3] == [True, True, False], "neither way is tried"
    assert len(ways) > 4 and set(ways[3:]) == {compresses}, ways


def test_a_log_goes_out_as_well_where_the_kernel_does_not_hand_it_over(
    machine: Machine, tmp_path: Path
) -> None:
    content = os.urandom(3 << 20)
    with_log(machine, content)
    source = runner_source()
    argv = [machine.python, *boot_arguments(source)]
    request = {
        "root": str(machine.root),
        "node": machine.name,
        "op": "get",
        "nonce": "n0nce",
        "run": RUN,
        "have": {},
    }
    header = json.dumps({**request, "max_bytes": 1 << 30, "max_files": 9}).encode() + b"\n"
    with (tmp_path / "said").open(
        "ab"
    ) as appended:  # sendfile(2) refuses a file that is open for appending
        subprocess.run(
            argv, input=LEADER + source + header, stdout=appended, timeout=LIMIT_S, check=True
        )
    line = Line(
        subprocess.Popen(
            ["tail", "-n", "+2", tmp_path / "said"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    )
    assert read_logs(line, {})[0] == {"node.out": content}


def test_a_log_that_is_cut_off_while_it_is_sent_is_never_filled_up(machine: Machine) -> None:
    content = os.urandom(8 << 20)
    path = with_log(machine, content)
    line = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=9)
    while (head := line.read_line())["packed"]:
        line.read(head["bytes"])
    assert head["bytes"] == 6 << 20, "a piece that is longer than what a pipe holds"
    os.truncate(path, head["offset"])
    process = line.process
    assert process.stdout and process.stderr
    sent = bytes(line.buffer) + process.stdout.read()
    assert len(sent) < head["bytes"] and process.wait(LIMIT_S) == 1
    assert process.stderr.read() == b"a log became shorter while it was being sent\n"


def test_links_pipes_and_odd_names_among_the_logs_are_neither_opened_nor_named(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    line = machine.start(RUN, SLEEP)
    logs = machine.folder(RUN) / "logs"
    (logs / "rank-7.out").symlink_to(tmp_path / "secret")
    os.mkfifo(logs / "rank-8.out")
    (logs / "-rf").write_text("x")
    (logs / "a b").write_text("x")
    (logs / "folder").mkdir()
    line.order("stop", reason="now")
    record = line.wait_for("ended")["record"]
    found, head = fetched(machine, {})
    assert set(record["files"]) == set(head["sizes"]) == {"node.out", "node.err"} and found == {}


def test_a_run_that_is_not_there_is_said_to_be_absent(machine: Machine) -> None:
    machine.put(("x", b"", 0o600))
    assert machine.ask("get", run="nothing", have={}, max_bytes=1, max_files=1) == {"absent": True}
    assert (
        machine.ask("get", run="../x", have={}, max_bytes=1, max_files=1)["error"]["kind"]
        == "unsafe_path"
    )


def test_a_log_folder_that_a_program_replaced_gives_no_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/shadow").write_text("secret")
    assert (log_files(str(tmp_path)), odd_files(str(tmp_path))) == ({}, ["logs"])
    (tmp_path / "logs").symlink_to("elsewhere")
    assert (log_files(str(tmp_path)), odd_files(str(tmp_path))) == ({}, ["logs"])
    (tmp_path / "logs").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "logs")
    assert (log_files(str(tmp_path)), odd_files(str(tmp_path))) == ({"shadow": 6}, [])
