"""The network fails: cut, lossy, slow, shut, or only as far as somebody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.plan.limits import Limits
from tests.e2e.rig import SMALL, Controller
from tests.faults.rows.common import DETECT_S, GRACE_S, LEASE_S, QUICK, running
from tests.faults.rows.setup import on_node, server
from tests.faults.rows.workload import workload
from tests.faults.suite import Trial, row
from tests.support import faults, judge
from tests.support.faultlab import listener

TEMPLATES = Path(__file__).parents[1] / "templates"

CHATTER = (
    "chatter",
    "-f",
    "chatter",
    "--templates",
    str(TEMPLATES),
    "--no-baseline",
    "--repeats",
    "1",
    "--stop-grace",
    "0.5",
)
"""A bench of ranks that print what one tells them to."""


def spread(trial: Trial) -> tuple[int, str]:
    """Return a number of nodes, 1, 2 or 4, and one of them: the first, one in the middle or the
    last.
    """
    nodes = trial.random.choice((1, 2, 4)) if trial.full else 4
    return nodes, trial.nodes[trial.random.choice(sorted({0, nodes // 2, nodes - 1}))]


def stopping(controller: Controller) -> bool:
    """Claim that the controller has noticed a failure and stops the run."""
    return any(event["event"] == "stopping" for event in controller.events())


def lost_within(trial: Trial, controller: Controller, others: list[str]) -> None:
    """Wait until the loss is noticed and everybody else has stopped, within the bounds of the
    contract.
    """
    trial.detected_s = judge.wait_for(lambda: stopping(controller), 5.0, "the loss was not noticed")
    trial.stopped_s = judge.wait_for(
        lambda: not [proc for proc in judge.ours(controller.lab) if proc.node in others and "train_" in proc.cmdline],
        GRACE_S + 1.0, "the other nodes were not stopped",
    )  # fmt: skip
    assert judge.in_time(trial.detected_s, DETECT_S), f"detected after {trial.detected_s:.2f} s"


def ended_by_lease(controller: Controller, *victims: str) -> None:
    """Check that these nodes ended their part by themselves, and said why."""
    for victim in victims:
        record = controller.exit_record(victim)
        assert (record["state"], record["reason"].partition(":")[0]) == (
            "stopped",
            "lease_expired",
        ), record


@row("N1", "node cut off for good in mid-run")
def cut_off(trial: Trial) -> None:
    controller, (nodes, victim) = trial.controller, spread(trial)
    process = running(controller, "--lease", str(LEASE_S), nodes=nodes)
    faults.link(trial.lab, victim, up=False)
    lost_within(trial, controller, [name for name in trial.nodes[:nodes] if name != victim])
    done = controller.end(process, 30)
    assert done.code == 3 and f"orch: {victim}: no sign of life for" in done.err, done
    judge.wait_until_clean(trial.lab, LEASE_S + 2.0 + GRACE_S)
    faults.link(trial.lab, victim, up=True)
    judge.wait_for(
        lambda: controller.orch("check", "--only", "reach").code == 0,
        20,
        f"{victim} does not answer",
    )
    assert judge.ours(trial.lab) == []
    assert controller.orch("collect").code == 0
    trial.keep()
    ended_by_lease(controller, victim)


@row("N2", "a cut of 1.5 s, then a lossy line", trials=1, limit_s=2400)
def lossy(trial: Trial) -> None:
    """Full length: 5% lost each way for ten minutes, 20% for one; a false alarm is the failure."""
    controller, victim = trial.controller, trial.random.choice(trial.nodes)
    phases = ((5, 600.0), (20, 60.0)) if trial.full else ((5, 3.0), (20, 3.0))
    length = (
        ("2700", "compute_ms=250", "2400")
        if trial.full
        else (judge.steps(70), "compute_ms=100", "100")
    )
    words = ("--steps", length[0], "--set", length[1], "--timeout", length[2])
    process = controller.start(
        "bench",
        *SMALL,
        *words,
        "--nodes",
        "4",
        "--gpus",
        "1",
        "--warmup-steps",
        "1",
        "--set",
        "peer_timeout_s=120",
    )
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 30, "no run was planned"
    )
    controller.wait_for_step(3)
    faults.link(trial.lab, victim, up=False)
    time.sleep(1.5)
    faults.link(trial.lab, victim, up=True)
    # A node that also loses ARP requests is silent for longer: docs/reliability.md, "When silence
    # is not death".
    neighbours = "ip neigh show 10.11.0.1"
    judge.wait_for(
        lambda: "lladdr" in on_node(trial.lab, victim, neighbours),
        3,
        "the controller is not resolved",
    )
    for percent, seconds in phases:
        faults.loss(trial.lab, victim, percent, each_way=True)
        time.sleep(seconds)
        assert process.poll() is None, (
            f"it was over during {percent}% loss: {controller.end(process, 5)}"
        )
        faults.heal(trial.lab)
    done = controller.end(process, 1500 if trial.full else 40)
    assert done.code == 0, done
    assert not stopping(controller)
    trial.keep()
    silence = controller.manifest()["outcome"]["answers"][victim]["longest_silence_s"]
    # The cut was felt; beyond the limit a node is still there as long as it greets, and no further.
    limit_s = Limits().lost_s + Limits().doubt_s
    assert silence > 1.0 and judge.in_time(silence, limit_s), controller.manifest()["outcome"]
    trial.notes.append(f"longest silence {silence:.2f} s")


@row(
    "N3",
    "a slow link during push and pull, a slow processor during the run",
    limit_s=400,
    trials=3,
    short=False,
)
def slow(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(trial.nodes)
    megabytes = 12 if trial.full else 0.3
    faults.rate(trial.lab, victim, "1mbit")
    began = time.monotonic()
    done = controller.orch(
        "bench",
        *CHATTER,
        "--nodes",
        "4",
        "--gpus",
        "1",
        "--set",
        f"random_mb={megabytes}",
        timeout_s=240,
    )
    faults.rate(trial.lab, victim, None)
    assert done.code == 0 and not stopping(controller), done
    trial.keep()
    trial.notes.append(
        f"{time.monotonic() - began:.1f} s with {megabytes} MB to bring home at 1 Mbit/s"
    )
    again = trial.rival("second")
    process = running(again, "--steps", "60")
    faults.cpu(trial.lab, victim, 5)
    done = again.end(process, 150)
    faults.heal(trial.lab)
    assert done.code == 0 and not stopping(again), done
    judge.wait_until_clean(trial.lab, 2.0)  # what had a twentieth of a core may still be leaving
    trial.keep(controller=again)


@row("N4", "connections die, nodes live")
def connections_die(trial: Trial) -> None:
    controller = trial.controller
    victims = trial.random.sample(trial.nodes, trial.random.choice((1, 2, 4)))
    process = running(controller, "--steps", judge.steps(150))
    before = {
        name: (controller.rank_process(name), controller.supervisor(name)) for name in trial.nodes
    }
    how = trial.random.choice((_kill_sessions, _kill_sockets))
    for name in victims:
        how(controller, name)
    controller.wait_for_step(45)
    assert {
        name: (controller.rank_process(name), controller.supervisor(name)) for name in trial.nodes
    } == before
    done = controller.end(process, 40)
    assert done.code == 0 and not stopping(controller), done
    events = [(event["event"], event.get("host")) for event in controller.events()]
    for name in trial.nodes:
        expected = 1 if name in victims else 0
        assert (events.count(("line_lost", name)), events.count(("reattached", name))) == (
            expected,
            expected,
        ), events
    trial.keep()
    assert [len(controller.exit_record(name)["ranks"]) for name in trial.nodes] == [1, 1, 1, 1]


def _kill_sessions(controller: Controller, node: str) -> None:
    sessions = controller.sessions(node)
    assert sessions
    for session in sessions:
        os.kill(session.pid, signal.SIGKILL)


def _kill_sockets(controller: Controller, node: str) -> None:
    """Let the kernel of the controller's side reset its connection to a node."""
    words = ["ss", "-K", "-H", "-t", "dst", controller.lab.node(node).address, "dport", "=", "22"]
    argv = labs.argv_inside(controller.lab, words)
    killed = subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=judge.LIMIT_S
    ).stdout
    assert killed.strip(), "the kernel had no socket to kill"


@row("N5", "a frozen node whose kernel still acknowledges", short=False)
def frozen(trial: Trial) -> None:
    controller, (nodes, victim) = trial.controller, spread(trial)
    process = running(controller, "--lease", str(LEASE_S), nodes=nodes)
    froze = time.monotonic()
    faults.freeze(trial.lab, victim)
    lost_within(trial, controller, [name for name in trial.nodes[:nodes] if name != victim])
    done = controller.end(process, 40)
    assert done.code == 3 and f"orch: {victim}: no sign of life for" in done.err, done
    time.sleep(max(0.0, froze + LEASE_S + 0.5 - time.monotonic()))
    faults.thaw(trial.lab, victim)
    judge.wait_until_clean(trial.lab, 2.0 + GRACE_S)
    assert controller.orch("collect").code == 0
    trial.keep()
    ended_by_lease(controller, victim)


@row("N6", "hosts that cannot be reached: down, shut, mute, unknown", trials=5)
def unreachable(trial: Trial) -> None:
    controller = trial.controller
    extra = "".join(f"  gone{n}:\n    address: 10.11.0.{n}\n" for n in (200, 201))
    extra += "  shut:\n    address: 10.11.0.4\n    ssh: {port: 2222}\n  mute:\n    address: 10.11.0.3\n    ssh: {port: 2223}\n"
    extra += "  nameless:\n    address: no-such-name.invalid\n"
    inventory = controller.project / "some-are-gone.yaml"
    inventory.write_text(trial.lab.inventory.read_text() + extra)
    faults.sshd_stop(trial.lab, "node4")
    before = _homes(controller)
    try:
        with listener(controller.lab, "node2", 2223):
            began = time.monotonic()
            done = controller.orch(
                "bench", *QUICK, "--nodes", "9", "--gpus", "1", "--hosts", str(inventory)
            )
            trial.detected_s = time.monotonic() - began
    finally:
        faults.sshd_start(trial.lab, "node4")
    assert done.code == 3 and judge.in_time(trial.detected_s, 12), (trial.detected_s, done)
    said = "\n".join(line for line in done.err.splitlines() if line.startswith("orch: "))
    expected = (
        "gone[200-201]: ",
        "shut: connection refused on port 2222",
        "mute: ",
        "nameless: the name no-such-name.invalid",
    )
    assert all(words in said for words in (*expected, "node4: connection refused on port 22")), done
    assert not any(f"node{number}: " in said for number in (1, 2, 3)), done
    assert judge.ours(trial.lab) == [] and _homes(controller) == before
    assert not list(controller.project.glob("runs/*/*/manifest.json"))


def _homes(controller: Controller) -> dict[str, dict[str, str]]:
    return {node.name: judge.digests(controller.lab, node.name) for node in controller.lab.nodes}


@contextmanager
def serving(controller: Controller, node: str, *options: str) -> Iterator[None]:
    """Have these lines in a node's ``sshd_config``, before all others."""
    path = controller.lab.node(node).folder / "sshd_config"
    text = path.read_text()
    path.write_text("\n".join(options) + "\n" + text)
    faults.sshd_stop(controller.lab, node)
    faults.sshd_start(controller.lab, node)
    try:
        yield
    finally:
        path.write_text(text)
        if controller.lab.node(node).pid:
            faults.sshd_stop(controller.lab, node)
            faults.sshd_start(controller.lab, node)


def behind_a_jump_host(controller: Controller, jump: str, names: dict[str, str]) -> Path:
    """Write an inventory of hosts, address by name, that are reached through a node of the lab."""
    lab = controller.lab
    ssh = {"user": "root", "key": str(lab.directory / "id_ed25519"), "known_hosts": str(lab.directory / "known_hosts"),
           "config": str(lab.ssh_config), "jump": jump}  # fmt: skip
    variables = {"interface": "eth0", "python": lab.python, "runner_python": lab.python}
    value = {
        "schema": 1,
        "defaults": {"gpus": 0, "slots": 1, "ssh": ssh, "vars": variables},
        "hosts": {name: {"address": address} for name, address in names.items()},
    }
    path = controller.project / "behind.yaml"
    path.write_text(json.dumps(value))
    return path


@row("N7", "servers that limit connections and sessions", short=False)
def server_limits(trial: Trial) -> None:
    """Sixteen hosts behind one jump host that drops connections, and nodes that allow two sessions
    a connection.
    """
    with trial.own_lab(nodes=17) as controller:
        lab = controller.lab
        inventory = behind_a_jump_host(
            controller, lab.nodes[0].address, {node.name: node.address for node in lab.nodes[1:]}
        )
        with serving(controller, "node1", "MaxStartups 2:50:4"):
            began = time.monotonic()
            done = controller.orch("check", "--only", "reach", "--hosts", str(inventory))
            trial.detected_s = time.monotonic() - began
        assert done.code == 0 and judge.in_time(trial.detected_s, 30), (trial.detected_s, done)
        log = (lab.node("node1").folder / "sshd.log").read_text()
        assert "MaxStartups" in log, "the jump host dropped nobody"
    controller = trial.controller
    with (
        serving(controller, "node2", "MaxSessions 2"),
        serving(controller, "node4", "MaxSessions 2"),
    ):
        done = controller.orch("bench", *QUICK, "--nodes", "4", "--gpus", "1")
        assert done.code == 0, done
    trial.keep()


@row("N8", "the jump host dies in mid-run")
def jump_host_dies(trial: Trial) -> None:
    controller = trial.controller
    jump, *behind = trial.nodes
    inventory = behind_a_jump_host(
        controller,
        trial.lab.node(jump).address,
        {name: trial.lab.node(name).address for name in behind},
    )
    words = (
        "--set",
        "compute_ms=100",
        "--steps",
        "1000",
        "--warmup-steps",
        "1",
        "--set",
        "peer_timeout_s=30",
    )
    process = controller.start(
        "bench",
        *SMALL,
        *words,
        "--nodes",
        "3",
        "--gpus",
        "1",
        "--lease",
        str(LEASE_S),
        "--hosts",
        str(inventory),
    )
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 30, "no run was planned"
    )
    log = trial.lab.node(behind[0]).home / ".orch-node" / "nodes" / behind[0] / "runs"
    judge.wait_for(lambda: any(b"orch step=3 " in file.read_bytes() for file in log.glob(f"{controller.runs[-1].name}/logs/*")),
                   20, "step 3 was not reached")  # fmt: skip
    trial.random.choice((faults.crash, faults.kill))(trial.lab, jump)
    began = time.monotonic()
    trial.detected_s = judge.wait_for(lambda: stopping(controller), 5.0, "the loss was not noticed")
    judge.wait_until_clean(trial.lab, began + LEASE_S + 2.0 + GRACE_S - time.monotonic())
    trial.stopped_s = time.monotonic() - began
    done = controller.end(process, 60)
    faults.boot(trial.lab, jump)
    assert judge.in_time(trial.detected_s, DETECT_S), f"detected after {trial.detected_s:.2f} s"
    assert done.code == 3, done
    first = next(line for line in done.err.splitlines() if line.startswith("orch: "))
    assert trial.lab.node(jump).address in first and "jump" in first, done
    judge.wait_for(
        lambda: controller.orch("check", "--only", "reach", "--hosts", str(inventory)).code == 0,
        20,
        "no way back",
    )
    done = controller.orch("collect")
    assert done.code == 0, done
    trial.keep(*behind)
    # The first lease to expire ends ranks that others wait for, some of which notice that before
    # their own lease expires.
    reasons = {controller.exit_record(name)["reason"].partition(":")[0] for name in behind}
    assert "lease_expired" in reasons <= {"lease_expired", "rank_failed"}, reasons


LATE = """
def end():
    if RANK == 1:
        time.sleep(3)
"""


@row(
    "N9",
    "a connection dies between the end of a run and the pull, and another server may take the address",
    limit_s=180,
)
def dies_before_the_pull(trial: Trial) -> None:
    """The first node has ended and waits for the other, so nothing is heard from it any more."""
    controller, is_stranger = trial.controller, trial.random.choice((True, False))
    lease = ("--lease", "10")
    process = controller.start(*workload(controller, LATE), "--nodes", "2", *lease)
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 60, "no run was planned"
    )
    judge.wait_for(
        (controller.node_run("node1") / "exit.json").exists, 60, "the first node does not end"
    )
    sessions = controller.sessions("node1")
    with ExitStack() as stack:
        if is_stranger:
            faults.sshd_stop(trial.lab, "node1")
            stack.callback(faults.sshd_start, trial.lab, "node1")
            stranger = stack.enter_context(server(trial.lab, "node1", port=22))
        for session in sessions:
            os.kill(session.pid, signal.SIGKILL)
        done = controller.end(process, 60)
        if is_stranger:
            assert not stranger.attempts, stranger.attempts
    if is_stranger:
        assert done.code == 3 and "orch: node1: the host key changed" in done.err, done
    else:
        assert done.code == 0, done
        controller.assert_all_bytes_are_home("node1", "node2")
    collected = controller.orch("collect")
    rows = controller.orch("summarize", "--json").json["rows"]
    assert collected.code == 0 and [entry["n"] for entry in rows] == [1], (collected, rows)
    trial.clean_within(10 + GRACE_S + 3.0)
    trial.keep("node1", "node2")
