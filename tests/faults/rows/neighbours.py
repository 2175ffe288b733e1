"""Another user of a node, who takes addresses, names and places, and says whatever he likes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator import lab as labs
from tests.faults.rows.common import GRACE_S, QUICK, running
from tests.faults.suite import Trial, row
from tests.support import judge
from tests.support.second_user import Other, missing, second_user, taking

_KINDS = ((socket.SOCK_DGRAM,), (socket.SOCK_STREAM, socket.SOCK_DGRAM))


@contextmanager
def neighbour(trial: Trial, node: str) -> Iterator[Other]:
    """Have another user on a node."""
    with second_user(trial.lab.node(node).folder / "etc" / "passwd") as other:
        yield other


@contextmanager
def taker(trial: Trial, node: str, other: Other, name: str, said: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process of another user on a node that takes the addresses with this beginning as soon as they are free."""
    words = json.dumps([name, trial.random.choice(_KINDS), said])
    argv = taking(labs.argv_on(trial.lab, node, []), other, words)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"on\n"
        try:
            yield process
        finally:
            process.kill()


@row("A1", "a supervisor is killed, and another user of its node takes its address", limit_s=180, skip=missing)
def taken_address(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(("node1", "node2"))
    hello = json.dumps({"event": "hello", "state": "running", "started": None, "record": None}) + "\n"
    process = running(controller, nodes=2)
    with neighbour(trial, victim) as other, taker(trial, victim, other, "@orch-run-", hello) as thief:
        assert thief.stdout and thief.stdout.readline().startswith(b'["@orch-run-')
        if trial.random.choice((True, False)):  # else the controller is there to see it
            os.kill(process.pid, signal.SIGKILL)
        os.kill(controller.supervisor(victim).pid, signal.SIGKILL)
        assert thief.stdout.readline() == b"taken\n"
        done = controller.end(process, 30)
        cancelled = controller.orch("cancel", controller.bench.name)
        collected = controller.orch("collect", controller.bench.name)
        assert cancelled.code in (0, 1) and "Traceback" not in done.err, (done, cancelled, collected)
        trial.clean_within(GRACE_S + 5.0)
        assert not (controller.node_run(victim) / "env.sh").exists(), "the variables stay"
        status = controller.orch("status", "--json").json
        assert not any(answer["runs"] for answer in status["nodes"].values()), status
        trial.keep("node1", "node2")
        dropped = controller.orch("undeploy", "--force", "--hosts", "node[1-2]")
        assert dropped.code == 0 and not controller.node_run(victim).exists(), dropped


@row("A2", "another user holds a node's name, and says that he is somebody else", limit_s=180, skip=missing)
def false_owner(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(("node1", "node2"))
    record = {"user": "alice", "controller": "desk", "process": 7, "since": "noon", "run_id": "20260101-000000-abcd-r1"}
    said = trial.random.choice((json.dumps(record | {"state": "running"}), json.dumps([record]), "", "\x1b[2J"))
    ready = controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1")
    assert ready.code == 0, ready
    process = running(controller, nodes=2)
    with neighbour(trial, victim) as other:
        words = json.dumps(["@orch-node-", [socket.SOCK_STREAM], said])
        argv = taking(labs.argv_on(trial.lab, victim, []), other, words)
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as thief:
            assert thief.stdout and thief.stdout.readline() == b"on\n" and thief.stdout.readline().startswith(b"[")
            os.kill(process.pid, signal.SIGINT)
            assert controller.end(process, 30).code == 130 and thief.stdout.readline() == b"taken\n"
            refused = controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1")
            status = controller.orch("status")
            thief.kill()
    assert refused.code == 1 and f"{victim}: another run holds this node: process " in refused.err, refused
    assert f"of user {other.name}, which " in refused.err and f"of user {other.name}, which " in status.out, (refused, status)
    assert ("that it has run" in refused.err) == said.startswith("{"), refused
    assert judge.ours(trial.lab) == []
    again = controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1")
    assert again.code == 0, again
    trial.keep("node1", "node2")
