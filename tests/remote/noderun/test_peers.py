"""Other users of a node, who may take any address and say anything: what counts is what the kernel
says of them.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from noderun.lock import abstract_name
from noderun.runs import address_of
from tests.support import judge
from tests.support.machine import NEEDS_ROOT, RUN, SLEEP, Machine, bearing, supervisors

pytestmark = NEEDS_ROOT

STRANGER = 65534
TAKE = """
import json, os, socket, sys
address, kinds, said, user = json.loads(sys.argv[1])
held = []
for kind in kinds:
    one = socket.socket(socket.AF_UNIX, kind)
    one.bind(address)
    held.append(one)
os.setuid(user)
for one in held:
    if one.type == socket.SOCK_STREAM:
        one.listen(64)
print("on", flush=True)
listener = next((one for one in held if one.type == socket.SOCK_STREAM), None)
while listener:
    client = listener.accept()[0]
    try:
        client.sendall(said.encode())
    except OSError:
        pass
    client.close()
sys.stdin.read()
"""
STREAM, DATAGRAM = 1, 2


@contextmanager
def taken(address: str, *kinds: int, said: str = "", user: int = STRANGER) -> Iterator[int]:
    """Have a process of another user that holds an abstract address and says something to all who
    connect; yield its number.
    """
    argv = [sys.executable, "-c", TAKE, json.dumps([address, kinds, said, user])]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"on\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """The marks of the machine's node in this process too, so that it computes the same addresses."""
    monkeypatch.setenv("ORCH_LAB_NODE", machine.mark or str(machine.root))
    monkeypatch.delenv("ORCH_LAB", raising=False)


def killed(machine: Machine, run: str) -> None:
    """Kill the supervisor of a run that has started."""
    (supervisor,) = supervisors(machine.folder(run))
    os.kill(supervisor, signal.SIGKILL)
    judge.wait_for(lambda: not supervisors(machine.folder(run)), 20, "it is not killed")


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("kinds", [(DATAGRAM,), (STREAM,), (DATAGRAM, STREAM)], ids=str)
def test_a_run_whose_supervisor_was_killed_is_over_whoever_takes_its_address(
    machine: Machine, kinds: Sequence[int]
) -> None:
    machine.start(RUN, SLEEP)
    killed(machine, RUN)
    variables = machine.folder(RUN) / "env.sh"
    assert variables.exists()
    hello = json.dumps({"event": "hello", "state": "running"}) + "\n"
    with taken(address_of(str(machine.folder(RUN))), *kinds, said=hello) as pid:
        left = machine.ask("left", run=RUN)
        assert left["supervisor"] is False and not variables.exists(), left
        line = machine.call("line", run=RUN, start=False, wait_s=1)
        error = line.read_line()["error"]
        reason = f"process {pid} of user {pwd.getpwuid(STRANGER).pw_name} holds its address"
        assert error["kind"] == "node_lost" and (
            STREAM not in kinds or reason in error["message"]
        ), error
        assert machine.ask("stop", run=RUN, grace_s=0.2, reason="now") == {
            "stopped": [RUN],
            "left": [],
        }
        assert bearing(RUN) == []
        assert machine.ask("drop", run=RUN, finished=True) == {"dropped": True}


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("kinds", [(DATAGRAM,), (STREAM,), (DATAGRAM, STREAM)], ids=str)
def test_a_run_whose_address_is_taken_before_it_begins_does_not_start_and_says_why(
    machine: Machine, kinds: Sequence[int]
) -> None:
    machine.stage(RUN, SLEEP)
    with taken(address_of(str(machine.folder(RUN))), *kinds, said="{}\n") as pid:
        error = machine.call("line", run=RUN, start=True, wait_s=3).read_line()["error"]
    assert error["kind"] == "node_lost", error
    assert error["message"].endswith("; it ended with OSError: [Errno 98] Address already in use")
    who = f"process {pid} of user {pwd.getpwuid(STRANGER).pw_name} holds its address"
    assert STREAM not in kinds or who in error["message"], error
    assert not supervisors(machine.folder(RUN)) and bearing(RUN) == []


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("state", [signal.SIGCONT, signal.SIGSTOP])
def test_a_supervisor_is_found_by_its_own_user_also_while_it_is_stopped(
    machine: Machine, state: int
) -> None:
    line = machine.start(RUN, SLEEP)
    (supervisor,) = supervisors(machine.folder(RUN))
    os.kill(supervisor, state)
    try:
        assert machine.ask("left", run=RUN)["supervisor"] is True
    finally:
        os.kill(supervisor, signal.SIGCONT)
    line.order("stop", reason="now")
    line.wait_for("ended")


RECORD = {
    "user": "alice",
    "controller": "desk",
    "process": 7,
    "since": "noon",
    "run_id": f"{RUN}-a",
    "state": "running",
}


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize(
    "said",
    [
        json.dumps(RECORD),
        json.dumps(RECORD | {"held_by": "process 1 of user root", "extra": [[]]}),
        json.dumps(RECORD | {"run_id": RUN}),
        "",
        "[" * 4000,
        json.dumps([1]),
        '{"run_id": {}}',
        "\x1b[2J",
    ],
    # A run's id has the number of a process, so it may not be part of a test's name: the workers of
    # xdist must collect the same tests.
    ids=["record", "more", "run", "nothing", "nested", "list", "wrong", "screen"],
)
def test_who_holds_the_name_of_a_node_is_named_by_the_kernel(machine: Machine, said: str) -> None:
    name = abstract_name(
        "node", [os.readlink("/proc/self/ns/pid"), None, os.environ["ORCH_LAB_NODE"]]
    )
    files = machine.stage(RUN, SLEEP)
    line = machine.supervisor(RUN)
    with taken(name, STREAM, said=said) as pid:
        who = f"process {pid} of user {pwd.getpwuid(STRANGER).pw_name}"
        machine.arm(line, RUN, files)
        error = line.wait_for("error")
        assert error["kind"] == "node_busy" and who in error["owner"], error
        owner = machine.ask("status")["owner"]
    assert owner == error["owner"]
    if "run_id" in said and "{}" not in said:
        assert json.loads(owner)["held_by"] == who and json.loads(owner)["user"] == "alice"
    else:
        assert owner == f"{who}, which {'names no run' if said else 'does not answer'}"


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("listens", [False, True])
def test_a_name_that_is_held_without_taking_connections_is_not_free(
    machine: Machine, listens: bool
) -> None:
    name = abstract_name(
        "node", [os.readlink("/proc/self/ns/pid"), None, os.environ["ORCH_LAB_NODE"]]
    )
    files = machine.stage(RUN, SLEEP)
    line = machine.supervisor(RUN)
    with socket.socket(socket.AF_UNIX) as holder, socket.socket(socket.AF_UNIX) as waiting:
        holder.bind(name)
        if listens:  # but its queue is full
            holder.listen(0)
            waiting.connect(name)
        machine.arm(line, RUN, files)
        error = line.wait_for("error")
        owner = machine.ask("status")["owner"]
    assert error["kind"] == "node_busy" and error["owner"] == owner, error
    assert owner == "a process that takes no connections (ss -xap, as root, shows it)"


@pytest.mark.usefixtures("marked")
def test_a_stranger_at_the_address_of_a_spawner_is_named(machine: Machine) -> None:
    address = abstract_name(
        "spawner", [0, "7", os.readlink("/proc/self/ns/pid"), None, os.environ["ORCH_LAB_NODE"]]
    )
    machine.stage(RUN, SLEEP)
    with taken(address, STREAM, said="{}\n") as pid:
        who = f"process {pid} of user {pwd.getpwuid(STRANGER).pw_name}"
        line = machine.call("line", run=RUN, start=True, job="7", wait_s=1)
        assert f"{who} holds its address" in line.read_line()["error"]["message"]
        spawned = machine.call("spawn", job="7", lease_s=5.0)
        assert f"{who} holds its address" in spawned.read_line()["error"]["message"]


def test_a_number_that_another_process_has_by_now_is_not_named(machine: Machine) -> None:
    """The kernel keeps the number of the process that began to listen, and another process may hold
    the socket now.
    """
    from noderun.peers import who_is

    assert who_is(os.getpid(), STRANGER) == f"a process of user {pwd.getpwuid(STRANGER).pw_name}"
    assert who_is(0, 4242424) == "a process of user 4242424"
    assert who_is(os.getpid(), os.getuid()) == f"process {os.getpid()} of user root"
