"""Nodes and cables that break, and the judge who counts what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.errors import ConfigError
from orchestrator.lab import Lab
from tests.support import faults, judge, node_groups
from tests.support.faultlab import MakeLab, Ssh, answers, held_line, let_go
from tests.support.judge import LIMIT_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def test_a_crashed_node_falls_silent_and_boots_with_its_home_and_an_empty_tmp(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    lab = make_lab()
    ssh(lab, "node2", "echo kept > ~/kept; echo lost > /tmp/lost")
    line, before = held_line(lab, "node2"), lab.node("node2").pid
    try:
        faults.crash(lab, "node2")
        assert lab.node("node2").pid == 0 and judge.processes(lab, "node2") == []
        assert not answers(lab, "node2") and answers(lab, "node1")
        time.sleep(0.5)
        assert line.poll() is None, "the dead node said goodbye"
        faults.boot(lab, "node2")
    finally:
        let_go(line)
    assert lab.node("node2").pid not in (0, before)
    done = ssh(
        lab,
        "node2",
        "hostname; cat ~/kept; test -e /tmp/lost || echo empty; cat /sys/class/net/eth0/address",
    )
    assert done.stdout.decode().split() == ["node2", "kept", "empty", "02:00:0a:0b:00:03"]


def test_a_killed_node_lets_its_peers_know(make_lab: MakeLab) -> None:
    lab = make_lab()
    line = held_line(lab, "node1")
    try:
        faults.kill(lab, "node1")
        assert line.wait(timeout=LIMIT_S) == 255
    finally:
        let_go(line)
    faults.boot(lab, "node1")
    with pytest.raises(ConfigError, match="node1 is running"):
        faults.boot(lab, "node1")


def test_a_pulled_cable_is_silence_and_plugging_it_in_mends_the_line(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    faults.link(lab, "node1", up=False)
    assert not answers(lab, "node1")
    faults.link(lab, "node1", up=True)
    judge.wait_for(lambda: answers(lab, "node1"), 10, "no answer after the cable was plugged in")


def test_a_frozen_node_answers_after_the_thaw(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    faults.freeze(lab, "node1")
    assert not answers(lab, "node1")
    faults.thaw(lab, "node1")
    assert answers(lab, "node1", timeout_s=LIMIT_S)


def test_a_limited_rate_slows_the_line_down_and_only_until_it_is_lifted(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    lab, data = make_lab(nodes=1), bytes(2_000_000)
    faults.rate(lab, "node1", "20mbit")
    begin = time.monotonic()
    assert ssh(lab, "node1", "wc -c", data).stdout == b"2000000\n"
    limited_s = time.monotonic() - begin
    assert limited_s > 0.6  # 16 Mbit at 20 Mbit/s, less the burst
    faults.rate(lab, "node1", None)
    assert (
        b"tbf"
        not in subprocess.run(
            labs.argv_on(lab, "node1", ["tc", "qdisc"]), capture_output=True, check=True
        ).stdout
    )


def test_one_way_of_a_line_is_limited_and_the_other_is_not(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=2)
    faults.rate(lab, "node1", "20mbit", ways=["sent"])
    assert _sending_s(lab, "node1", "node2") > 0.5
    _wait_for_a_quick_way(lab, "node2", "node1")
    faults.rate(lab, "node1", None, ways=["sent"])
    _wait_for_a_quick_way(lab, "node1", "node2")


def test_a_limited_pair_is_slow_to_each_other_and_to_nobody_else(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=3)
    faults.pair_rate(lab, "node1", "node3", "20mbit")
    # 16 Mbit at 20 Mbit/s, less the burst: 0.7 s.
    assert _sending_s(lab, "node1", "node3") > 0.5 and _sending_s(lab, "node3", "node1") > 0.5
    for ends in (("node1", "node2"), ("node2", "node1"), ("node3", "node2")):
        _wait_for_a_quick_way(lab, *ends)
    faults.pair_rate(lab, "node1", "node3", None)
    _wait_for_a_quick_way(lab, "node1", "node3")


def _wait_for_a_quick_way(lab: Lab, sender: str, receiver: str) -> None:
    """Repeat until 2 MB take less than they do at 20 Mbit/s: a busy machine delays many, and leaves
    one alone.
    """
    judge.wait_for(
        lambda: _sending_s(lab, sender, receiver) < 0.4, 5, f"slow from {sender} to {receiver}"
    )


def _sending_s(lab: Lab, sender: str, receiver: str) -> float:
    """Seconds for 2 MB from one node to another, without ssh: its programs take longer than the
    bytes on a busy machine.
    """
    listen = "import socket; s = socket.create_server(('', 2000)); print('on', flush=True); c = s.accept()[0]\n"
    code = listen + "left = 2_000_000\nwhile left: left -= len(c.recv(left))\nc.sendall(b'.')"
    with subprocess.Popen(
        labs.argv_on(lab, receiver, [sys.executable, "-c", code]), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"on\n"
        send = f"c = socket.create_connection(({lab.node(receiver).address!r}, 2000)); c.sendall(bytes(2_000_000)); c.recv(1)"
        code = f"import socket, time; begin = time.monotonic(); {send}; print(time.monotonic() - begin)"
        done = subprocess.run(
            labs.argv_on(lab, sender, [sys.executable, "-c", code]),
            capture_output=True,
            check=True,
            timeout=LIMIT_S,
        )
        return float(done.stdout)


def test_partitioned_nodes_hear_the_controller_but_not_each_other(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    lab = make_lab()
    faults.partition(lab, "node1", "node2")
    across = "timeout 1 bash -c 'exec 3<>/dev/tcp/node2/22'"
    assert ssh(lab, "node1", across).returncode == 124
    faults.heal(lab)
    assert ssh(lab, "node1", across).returncode == 0


def test_total_loss_is_silence(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    faults.loss(lab, "node1", 100)
    assert not answers(lab, "node1")
    faults.heal(lab)
    assert answers(lab, "node1", timeout_s=LIMIT_S)


def test_a_stopped_listener_refuses_newcomers_and_keeps_sessions(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    line = held_line(lab, "node1")
    try:
        for _ in range(5):
            faults.sshd_stop(lab, "node1")
            assert not answers(lab, "node1")
            assert line.poll() is None and lab.node("node1").pid
            faults.sshd_start(lab, "node1")
            assert answers(lab, "node1", timeout_s=LIMIT_S)
    finally:
        let_go(line)


def test_the_judge_sees_every_process_of_a_node_and_none_of_another(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    lab = make_lab()
    assert judge.ours(lab) == []
    line = held_line(lab, "node1")
    try:
        ssh(lab, "node1", "ORCH_RUN_ID=r-1 setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
        judge.wait_for(lambda: judge.ours(lab), 5, "the marked process was not seen")
        (found,) = judge.ours(lab)
        assert (found.node, found.comm, found.environ_run_id, found.cmdline) == (
            "node1",
            "sleep",
            "r-1",
            "sleep 1000",
        )
        everything = [one.cmdline for one in judge.processes(lab, "node1")]
        assert everything.count("sleep 1000") == 2
        assert not any("nodeinit" in text or "[listener]" in text for text in everything)
        assert judge.processes(lab, "node2") == []
        with pytest.raises(AssertionError, match="r-1"):
            judge.wait_until_clean(lab, 0.1)
        ssh(lab, "node1", "pkill -9 -P 1 sleep")
        judge.wait_until_clean(lab, 5)
    finally:
        let_go(line)


def test_the_judge_counts_defunct_processes_as_left_behind(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    code = "import os, time; os.fork() or os._exit(0); time.sleep(1000)"
    argv = labs.argv_on(lab, "node1", ["python3", "-I", "-S", "-c", code])
    process = subprocess.Popen(argv)
    try:
        judge.wait_for(lambda: judge.ours(lab), 5, "the defunct child was not seen")
        assert [one.defunct for one in judge.ours(lab)] == [True]
    finally:
        faults.kill(lab, "node1")
        process.wait()


def test_files_of_a_home_are_judged_from_outside(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab(nodes=1)
    text = ssh(
        lab, "node1", "mkdir -p ~/d/e; head -c 1000000 /dev/urandom > ~/d/e/f; sha256sum ~/d/e/f"
    ).stdout.decode()
    assert judge.digests(lab, "node1", "d") == {"e/f": text.split()[0]}


def test_faults_of_the_network_need_namespaces(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1, kind="asyncssh")
    with pytest.raises(ConfigError, match="is of kind asyncssh"):
        faults.link(lab, "node1", up=False)
    with pytest.raises(ConfigError, match="no node 'node9'.*nodes: node1"):
        faults.kill(lab, "node9")
    assert Path(lab.directory).exists()


def test_every_boot_has_an_identity_of_its_own_and_a_clock_where_asked_for(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    lab = make_lab()
    asked = f"cat /proc/sys/kernel/random/boot_id; {sys.executable} -c 'import time; print(time.monotonic())'"
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def look(node: str, ahead_s: float = 0.0) -> str:
        before = time.monotonic()
        boot, clock = ssh(lab, node, asked).stdout.decode().split()
        assert before <= float(clock) - ahead_s <= time.monotonic()
        return boot

    first, other = look("node1"), look("node2")
    faults.kill(lab, "node1")
    faults.boot(lab, "node1", ahead_s=86400.5)
    second = look("node1", 86400.5)
    faults.kill(lab, "node1")
    faults.boot(lab, "node1")
    third = look("node1")
    assert len({machine, first, other, second, third}) == 5


@pytest.mark.skipif(bool(node_groups.obstacle("freezer")), reason="no control groups")
def test_a_frozen_node_sees_no_signal_and_can_be_killed_as_it_is(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    faults.freeze(lab, "node1")
    state = Path(f"/proc/{lab.node('node1').pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state != "T" and not answers(lab, "node1")
    begin = time.monotonic()
    faults.kill(lab, "node1")
    assert lab.node("node1").pid == 0 and judge.in_time(time.monotonic() - begin, 5)
    faults.boot(lab, "node1")
    assert answers(lab, "node1", timeout_s=LIMIT_S)


@pytest.mark.skipif(bool(node_groups.obstacle("memory")), reason="no control groups")
def test_a_node_short_of_memory_loses_its_largest_program_until_the_limit_is_lifted(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    lab = make_lab(nodes=1)
    hog = f"{sys.executable} -c 'x = bytearray(200 << 20)'; echo $?"
    faults.memory(lab, "node1", 100 << 20)
    assert ssh(lab, "node1", hog).stdout == b"137\n"
    faults.heal(lab)
    assert ssh(lab, "node1", hog).stdout == b"0\n"


_COUNT = """\
import select, socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.bind(("", 9999))
    print("on", flush=True)
    count, waiting = 0, [sock, sys.stdin]
    # Until nobody sends any more, and then what is on the way.
    while ready := select.select(waiting, [], [], None if sys.stdin in waiting else 2)[0]:
        if sock in ready:
            sock.recv(100)
            count += 1
        else:
            waiting.remove(sys.stdin)
    print(count)
"""
_SEND = """\
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for _ in range(400):
        sock.sendto(b"x", (sys.argv[1], 9999))
        time.sleep(0.001)
"""


def test_what_is_lost_each_way_is_lost_each_way(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    ends = {
        "10.11.0.1": labs.argv_inside(lab, [sys.executable]),
        "10.11.0.2": labs.argv_on(lab, "node1", [sys.executable]),
    }

    def arrived(address: str) -> int:
        sender = next(argv for other, argv in ends.items() if other != address)
        with subprocess.Popen(
            [*ends[address], "-c", _COUNT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as counter:
            assert counter.stdin and counter.stdout and counter.stdout.readline() == "on\n"
            subprocess.run([*sender, "-c", _SEND, address], check=True, timeout=LIMIT_S)
            counter.stdin.close()
            return int(counter.stdout.readline())

    faults.loss(lab, "node1", 50, each_way=True)
    assert all(120 < arrived(address) < 280 for address in ends)
    faults.heal(lab)
    assert all(arrived(address) == 400 for address in ends)
