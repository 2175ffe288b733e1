"""Labs without root: sshd as an ordinary user, and the server in Python where no sshd is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.support import faults, judge
from tests.support.faultlab import AsUser, MakeLab, Ssh
from tests.support.judge import LIMIT_S

USER_ID = 1000

SESSION = """
import json, os, subprocess, sys
from pathlib import Path
from orchestrator import lab as labs

directory, said = Path(sys.argv[1]) / "lab", []

def ssh(node, command, data=b""):
    argv = labs.argv_inside(lab, ["ssh", "-F", str(lab.ssh_config), node, command])
    return subprocess.run(argv, input=data, capture_output=True)

try:
    lab = labs.up(directory, nodes=3, gpus_per_node=0, say=said.append)
    data = bytes(range(256)) * 2000
    result = {
        "said": said, "kind": lab.kind, "uid": os.getuid(), "addresses": [node.address for node in lab.nodes],
        "homes": [ssh(node.name, "echo $HOME; pwd; whoami").stdout.decode().split() for node in lab.nodes],
        "expected": [str(node.home) for node in lab.nodes],
        "exact": ssh("node2", "cat; echo err >&2; exit 3", data).stdout == data,
        "codes": [ssh("node1", command).returncode for command in ("true", "exit 7", "no-such-program")],
        "stderr": ssh("node3", "echo to-err >&2").stderr.decode(),
        "inventory": lab.inventory.read_text(),
    }
    ssh("node1", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & sleep 0.5")
finally:
    ended = labs.down(directory)
def of_lab(pid):
    try:
        said = [open(f"/proc/{pid}/{name}", "rb").read() for name in ("environ", "cmdline")]
    except OSError:
        return False
    return lab.marker.encode() in said[0] or str(directory).encode() in said[1]

left = [pid for pid in os.listdir("/proc") if pid.isdigit() and of_lab(pid)]
result |= {"ended": ended, "left": left, "gone": not directory.exists()}
print(json.dumps(result))
"""


@pytest.fixture(params=["loopback", "asyncssh"])
def session(request: pytest.FixtureRequest, as_user: AsUser) -> dict[str, object]:
    """Return what an ordinary user saw of the lab that came up, with and without sshd on the
    machine.
    """
    hidden = ["/usr/sbin/sshd", "/usr/bin/sshd"] if request.param == "asyncssh" else []
    if hidden and os.geteuid():
        pytest.skip("hiding the installed sshd needs root")
    done = as_user(SESSION, hidden=hidden)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    assert found["kind"] == request.param, found["said"]
    return found


def test_an_ordinary_user_has_a_working_lab_that_leaves_nothing(session: dict[str, object]) -> None:
    assert session["uid"] == (USER_ID if os.geteuid() == 0 else os.getuid())
    assert session["addresses"] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    user = "tester" if os.geteuid() == 0 else os.environ["USER"]
    assert session["homes"] == [[home, home, user] for home in session["expected"]]  # type: ignore[attr-defined]
    assert session["exact"] is True
    assert session["codes"] == [0, 7, 127]
    assert session["stderr"] == "to-err\n"
    assert session["gone"] is True
    assert session["left"] == []
    ended = session["ended"]
    assert isinstance(ended, list) and "ended 1 process of sleep" in ended


def test_the_user_is_told_why_it_is_not_the_better_lab(session: dict[str, object]) -> None:
    said = session["said"]
    assert isinstance(said, list)
    assert said[0] == "lab: not namespaces: needs root"
    if session["kind"] == "asyncssh":
        assert (
            "not loopback: missing sshd (apt-get install --no-install-recommends openssh-server)"
            in said[1]
        )
        assert "a Python SSH server, not OpenSSH" in said[2]
    else:
        assert (
            "3 nodes of 1 CPU slot, 127.0.0.2 to 127.0.0.4 port" in said[1]
            and "share files and ports" in said[1]
        )
    assert '    interface: "lo"\n' in str(session["inventory"])


@pytest.fixture
def python_lab(make_lab: MakeLab) -> Lab:
    """Return a lab of Python SSH servers, as whoever runs the tests."""
    return make_lab(kind="asyncssh")


def test_a_client_that_disappears_ends_nothing(python_lab: Lab, ssh: Ssh) -> None:
    argv = [
        "ssh",
        "-F",
        str(python_lab.ssh_config),
        "node1",
        "echo on; cat; echo over > ~/mark; exec sleep 1000",
    ]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout and client.stdout.readline() == b"on\n"
        client.kill()
    judge.wait_for(
        (python_lab.node("node1").home / "mark").exists, 10, "the command's stdin was not closed"
    )
    judge.wait_for(lambda: "sleep 1000" in _commands(python_lab), 5, "the command was ended")


def _commands(lab: Lab) -> list[str]:
    return [one.cmdline for one in judge.processes(lab, "node1")]


def test_a_session_lasts_until_its_output_is_closed(python_lab: Lab, ssh: Ssh) -> None:
    assert (
        ssh(python_lab, "node1", "(sleep 0.5; echo late) & echo early").stdout == b"early\nlate\n"
    )


def test_a_death_by_signal_is_reported_as_one(python_lab: Lab, ssh: Ssh) -> None:
    assert ssh(python_lab, "node1", "kill -9 $$").returncode == 255


def test_sessions_side_by_side_do_not_disturb_each_other(python_lab: Lab) -> None:
    argv = ["ssh", "-F", str(python_lab.ssh_config), "node2", "cat"]
    clients = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(6)
    ]
    for number, client in enumerate(clients):
        payload = bytes([number]) * 300_000
        assert client.communicate(payload, timeout=LIMIT_S)[0] == payload


def test_a_node_is_killed_and_boots_while_the_others_go_on(python_lab: Lab, ssh: Ssh) -> None:
    ssh(python_lab, "node1", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
    faults.kill(python_lab, "node1")
    assert python_lab.node("node1").pid == 0 and judge.processes(python_lab, "node1") == []
    assert (
        ssh(python_lab, "node1", "true").returncode == 255
        and ssh(python_lab, "node2", "true").returncode == 0
    )
    faults.boot(python_lab, "node1")
    assert ssh(python_lab, "node1", "true").returncode == 0


def test_a_program_runs_on_a_node_past_ssh(python_lab: Lab) -> None:
    done = subprocess.run(
        labs.argv_on(python_lab, "node2", ["pwd"]),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert Path(done.stdout.strip()) == python_lab.node("node2").home


def test_the_next_command_names_the_directory_of_the_lab(tmp_path: Path) -> None:
    place = tmp_path / "my lab"
    words = ("--kind", "asyncssh", "--nodes", "1", "--dir", str(place))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "lab", "up", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert f"next: orch lab exec --dir '{place}' -- orch bench " in done.stdout, done
    finally:
        labs.down(place)
