"""Nodes and cables that break, and the judge who counts what is left."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.errors import ConfigError
from orchestrator.lab import faults
from tests import judge
from tests.faultlab import MakeLab, Ssh, answers, held_line, let_go

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def test_a_crashed_node_falls_silent_and_boots_with_its_home_and_an_empty_tmp(make_lab: MakeLab, ssh: Ssh) -> None:
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
    done = ssh(lab, "node2", "hostname; cat ~/kept; test -e /tmp/lost || echo empty; cat /sys/class/net/eth0/address")
    assert done.stdout.decode().split() == ["node2", "kept", "empty", "02:00:0a:0b:00:03"]


def test_a_killed_node_lets_its_peers_know(make_lab: MakeLab) -> None:
    lab = make_lab()
    line = held_line(lab, "node1")
    try:
        faults.kill(lab, "node1")
        assert line.wait(timeout=10) == 255
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
    assert answers(lab, "node1", timeout_s=8)


def test_a_limited_rate_slows_the_line_down_and_only_until_it_is_lifted(make_lab: MakeLab, ssh: Ssh) -> None:
    lab, data = make_lab(nodes=1), bytes(2_000_000)
    faults.rate(lab, "node1", "20mbit")
    begin = time.monotonic()
    assert ssh(lab, "node1", "wc -c", data).stdout == b"2000000\n"
    limited_s = time.monotonic() - begin
    assert limited_s > 0.6  # 16 Mbit at 20 Mbit/s, less the burst
    faults.rate(lab, "node1", None)
    assert b"tbf" not in subprocess.run(labs.argv_on(lab, "node1", ["tc", "qdisc"]), capture_output=True, check=True).stdout


def test_partitioned_nodes_hear_the_controller_but_not_each_other(make_lab: MakeLab, ssh: Ssh) -> None:
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
    assert answers(lab, "node1")


def test_a_stopped_listener_refuses_newcomers_and_keeps_sessions(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    line = held_line(lab, "node1")
    try:
        faults.sshd_stop(lab, "node1")
        judge.wait_for(lambda: not answers(lab, "node1"), 5, "the listener still answers")
        assert line.poll() is None and lab.node("node1").pid
        faults.sshd_start(lab, "node1")
        assert answers(lab, "node1")
    finally:
        let_go(line)


def test_the_judge_sees_every_process_of_a_node_and_none_of_another(make_lab: MakeLab, ssh: Ssh) -> None:
    lab = make_lab()
    assert judge.ours(lab) == []
    line = held_line(lab, "node1")
    try:
        ssh(lab, "node1", "ORCH_RUN_ID=r-1 setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
        judge.wait_for(lambda: judge.ours(lab), 5, "the marked process was not seen")
        (found,) = judge.ours(lab)
        assert (found.node, found.comm, found.environ_run_id, found.cmdline) == ("node1", "sleep", "r-1", "sleep 1000")
        everything = [one.cmdline for one in judge.processes(lab, "node1")]
        assert everything.count("sleep 1000") == 2
        assert not any("nodeinit" in text or "[listener]" in text for text in everything)
        assert judge.processes(lab, "node2") == []
        with pytest.raises(AssertionError, match="r-1"):
            judge.wait_until_clean(lab, 0.1)
        ssh(lab, "node1", "pkill -9 -P 1 sleep")
        assert judge.wait_until_clean(lab, 5) < 5
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
    text = ssh(lab, "node1", "mkdir -p ~/d/e; head -c 1000000 /dev/urandom > ~/d/e/f; sha256sum ~/d/e/f").stdout.decode()
    assert judge.digests(lab, "node1", "d") == {"e/f": text.split()[0]}


def test_faults_of_the_network_need_namespaces(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1, kind="asyncssh")
    with pytest.raises(ConfigError, match="is of kind asyncssh"):
        faults.link(lab, "node1", up=False)
    with pytest.raises(ConfigError, match="no node 'node9'.*nodes: node1"):
        faults.kill(lab, "node9")
    assert Path(lab.directory).exists()
