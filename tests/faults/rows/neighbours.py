"""Another user of a node, who takes addresses, names and places, and says whatever he likes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.procs import cmdline, snapshot
from tests.contract.bastion import no_pam
from tests.contract.openssh.asking import REACH, eavesdropper, environment, project, with_passwords
from tests.contract.rig import Keys, Rig
from tests.contract.sshd import make_key
from tests.faults.rows.common import GRACE_S, QUICK, running
from tests.faults.rows.setup import inventory
from tests.faults.suite import Trial, row
from tests.support import judge
from tests.support.second_user import Other, missing, second_user, taking
from tests.support.terminal import Terminal

_KINDS = ((socket.SOCK_DGRAM,), (socket.SOCK_STREAM, socket.SOCK_DGRAM))


@contextmanager
def neighbour(trial: Trial, node: str) -> Iterator[Other]:
    """Have another user on a node."""
    with second_user(trial.lab.node(node).folder / "etc" / "passwd") as other:
        yield other


@contextmanager
def taker(
    trial: Trial, node: str, other: Other, name: str, said: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process of another user on a node that takes the addresses with this beginning as soon
    as they are free.
    """
    words = json.dumps([name, trial.random.choice(_KINDS), said])
    argv = taking(labs.argv_on(trial.lab, node, []), other, words)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"on\n"
        try:
            yield process
        finally:
            process.kill()


@row(
    "A1",
    "a supervisor is killed, and another user of its node takes its address",
    limit_s=180,
    short=False,
    skip=missing,
)
def taken_address(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(("node1", "node2"))
    hello = (
        json.dumps({"event": "hello", "state": "running", "started": None, "record": None}) + "\n"
    )
    process = running(controller, nodes=2)
    with (
        neighbour(trial, victim) as other,
        taker(trial, victim, other, "@orch-run-", hello) as thief,
    ):
        assert thief.stdout and thief.stdout.readline().startswith(b'["@orch-run-')
        if trial.random.choice((True, False)):  # else the controller is there to see it
            os.kill(process.pid, signal.SIGKILL)
        os.kill(controller.supervisor(victim).pid, signal.SIGKILL)
        assert thief.stdout.readline() == b"taken\n"
        done = controller.end(process, 30)
        cancelled = controller.orch("cancel", controller.bench.name)
        collected = controller.orch("collect", controller.bench.name)
        assert cancelled.code in (0, 1) and "Traceback" not in done.err, (
            done,
            cancelled,
            collected,
        )
        trial.clean_within(GRACE_S + 5.0)
        assert not (controller.node_run(victim) / "env.sh").exists(), "the variables stay"
        status = controller.orch("status", "--json").json
        assert not any(answer["runs"] for answer in status["nodes"].values()), status
        trial.keep("node1", "node2")
        dropped = controller.orch("undeploy", "--force", "--hosts", "node[1-2]")
        assert dropped.code == 0 and not controller.node_run(victim).exists(), dropped


@row(
    "A3",
    "another user's link where a shared connection of ssh would be",
    limit_s=180,
    short=False,
    skip=missing,
)
def planted_link(trial: Trial) -> None:
    """The link leads to a live connection of ours, to another node: what is for node2 would run on
    node1.
    """
    controller, lab = trial.controller, trial.lab
    place = Path(tempfile.mkdtemp(prefix="shared-"))  # as /tmp, and its path is short
    place.chmod(0o1777)
    own = trial.scratch / "own"
    own.mkdir(mode=0o700)
    config = trial.scratch / "ssh_config"
    config.write_text(f"ControlPath {place}/cm-%h\n{lab.ssh_config.read_text()}")
    hosts = {"node2": {"address": lab.node("node2").address, "transport": "openssh"}}
    words = (
        "--hosts",
        inventory(controller, hosts, ssh={"config": str(config)}),
        "--nodes",
        "1",
        "--gpus",
        "1",
    )
    argv = ["ssh", "-F", str(lab.ssh_config), "-M", "-N", "-S", str(own / "cm"), "node1"]
    with (
        second_user() as other,
        subprocess.Popen(labs.argv_inside(lab, argv), stdin=subprocess.DEVNULL) as master,
    ):
        try:
            judge.wait_for((own / "cm").exists, 60, "the user's connection does not start")
            link = place / f"cm-{lab.node('node2').address}"
            plant = [
                "setpriv",
                f"--reuid={other.number}",
                "--clear-groups",
                "ln",
                "-s",
                str(own / "cm"),
                str(link),
            ]
            subprocess.run(plant, check=True)
            done = controller.orch("bench", *QUICK, *words)
            assert done.code == 0 and master.poll() is None, done
        finally:
            master.terminate()
            shutil.rmtree(place)
    there = [
        node
        for node in trial.nodes
        if list(
            (lab.node(node).home / ".orch-node/nodes/node2").glob(f"runs/{controller.bench.name}*")
        )
    ]
    assert there == ["node2"], f"the run was on {there}"
    trial.keep("node2")


@row(
    "A4",
    "a controller with connections of ssh is killed; processes of others name its folder",
    limit_s=180,
    short=False,
    skip=missing,
)
def named_folder(trial: Trial) -> None:
    controller, lab = trial.controller, trial.lab
    hosts = {
        name: {"address": lab.node(name).address, "transport": "openssh"}
        for name in ("node1", "node2")
    }
    place = Path(tempfile.mkdtemp(prefix="run-"))
    controller.environment["XDG_RUNTIME_DIR"] = str(place)
    process = running(controller, "--hosts", inventory(controller, hosts), "--lease", "5", nodes=2)
    (folder,) = place.glob("orch-ssh-*")
    program = ["/usr/bin/tail", "-f", "/dev/null", f"{folder}/log"]
    with second_user() as other, ExitStack() as ended:
        ended.callback(shutil.rmtree, place, ignore_errors=True)
        innocents = []
        for user in (None, other.number):
            innocents.append(
                subprocess.Popen(
                    program, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
            ended.callback(innocents[-1].wait)
            ended.callback(innocents[-1].kill)
        masters = {pid for pid in snapshot() if f"-S\0{folder}/".encode() in cmdline(pid)}
        os.kill(process.pid, signal.SIGKILL)
        judge.wait_for(lambda: not folder.exists(), 60, "the folder stays")
        judge.wait_for(lambda: not masters & set(snapshot()), 60, "connections stay")
        assert masters and [one.poll() for one in innocents] == [None, None], (
            "somebody else was ended"
        )
    trial.clean_within(5.0 + 2.5 + GRACE_S + 2.0)
    assert controller.orch("collect").code == 0
    trial.keep("node1", "node2")


@row(
    "A2",
    "another user holds a node's name, and says that he is somebody else",
    limit_s=180,
    short=False,
    skip=missing,
)
def false_owner(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(("node1", "node2"))
    record = {
        "user": "alice",
        "controller": "desk",
        "process": 7,
        "since": "noon",
        "run_id": "20260101-000000-abcd-r1",
    }
    said = trial.random.choice(
        (json.dumps(record | {"state": "running"}), json.dumps([record]), "", "\x1b[2J")
    )
    ready = controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1")
    assert ready.code == 0, ready
    process = running(controller, nodes=2)
    with neighbour(trial, victim) as other:
        words = json.dumps(["@orch-node-", [socket.SOCK_STREAM], said])
        argv = taking(labs.argv_on(trial.lab, victim, []), other, words)
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as thief:
            assert (
                thief.stdout
                and thief.stdout.readline() == b"on\n"
                and thief.stdout.readline().startswith(b"[")
            )
            os.kill(process.pid, signal.SIGINT)
            assert controller.end(process, 30).code == 130 and thief.stdout.readline() == b"taken\n"
            refused = controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1")
            status = controller.orch("status")
            thief.kill()
    assert (
        refused.code == 1 and f"{victim}: another run holds this node: process " in refused.err
    ), refused
    assert (
        f"of user {other.name}, which " in refused.err
        and f"of user {other.name}, which " in status.out
    ), (refused, status)
    assert ("that it has run" in refused.err) == said.startswith("{"), refused
    assert judge.ours(trial.lab) == []
    again = controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1")
    assert again.code == 0, again
    trial.keep("node1", "node2")


@row(
    "A5",
    "a server asks for the password that was typed for the gate before it",
    short=False,
    skip=lambda: missing() or no_pam(),
)
def asked_again(trial: Trial) -> None:
    keys = Keys(*(make_key(trial.scratch / name) for name in ("client", "stranger", "server")))
    (trial.scratch / "rig").mkdir()
    rig, heard = Rig(trial.scratch / "rig", keys, "openssh"), trial.scratch / "heard"
    try:
        rig.configure("Host *\nNumberOfPasswordPrompts 1")
        gate, evil = with_passwords(rig), eavesdropper(rig, heard)
        folder = project(rig, trial.scratch / "asking", rig.behind(evil, gate))
        is_wanted = trial.random.choice((True, False))
        terminal = Terminal(REACH, folder, environment(folder))
        with closing(terminal):
            terminal.wait_for("Password: ", 60)
            terminal.type(gate.password)
            terminal.wait_for("Password: (Enter sends the one typed for node1 (jump host", 60)
            assert not heard.exists(), "the password was sent"
            terminal.type("" if is_wanted else "another")
            assert terminal.end() == 3, terminal.text
        assert heard.read_text().rstrip("\n") == (gate.password if is_wanted else "another")
    finally:
        rig.close()
