"""Processes die, hang, or will not die; a node boots anew under its run."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.procs import own_groups
from tests.e2e.rig import Controller, Done, outer_environment
from tests.faults.rows.common import DETECT_S, GRACE_S, LEASE_S, LONG, QUICK, running
from tests.faults.rows.network import CHATTER, spread, stopping
from tests.faults.rows.setup import on_node
from tests.faults.rows.workload import workload
from tests.faults.suite import Trial, row
from tests.support import faults, judge, node_groups

RANK_S = 0.5
"""At most so many seconds after its end is a rank known to be gone."""


def noticed(trial: Trial, within_s: float, controller: Controller | None = None) -> None:
    """Wait until the fault is noticed, and hold that to the contract."""
    watched = controller or trial.controller
    trial.detected_s = judge.wait_for(
        lambda: stopping(watched), within_s + 3.0, "it was not noticed"
    )
    assert judge.in_time(trial.detected_s, within_s), f"noticed after {trial.detected_s:.2f} s"


def stopped(trial: Trial, within_s: float) -> None:
    """Wait until no process of a run is left; what still asks or collects is not one."""

    def running_ones() -> list[judge.Proc]:
        left = judge.ours(trial.lab)
        return [
            proc
            for proc in left
            if proc.defunct
            or proc.environ_run_id
            or ".py" in proc.cmdline
            or proc.comm == "orch-supervisor"
        ]

    trial.stopped_s = judge.wait_for(
        lambda: not running_ones(), within_s, lambda: f"left: {running_ones()}"
    )


@row("P1", "a rank is killed, or leaves with an exit code")
def dead_rank(trial: Trial) -> None:
    controller, (nodes, victim) = trial.controller, spread(trial)
    rank = trial.nodes.index(victim)
    if trial.random.choice((True, False)):
        process = running(controller, nodes=nodes)
        os.kill(controller.rank_process(victim).pid, signal.SIGKILL)
        noticed(trial, RANK_S)
        words = f"orch: {victim}: rank {rank} ended with SIGKILL"
    else:
        fault = (
            "--set",
            "fail_at_step=10",
            "--set",
            f"fail_rank={rank}",
            "--set",
            "fail_mode=exit3",
        )
        process = running(controller, *fault, nodes=nodes)
        judge.wait_for(
            lambda: _rank_record(controller, victim, rank).get("code") == 3,
            20,
            "the rank did not leave",
        )
        noticed(trial, RANK_S)
        words = f"orch: {victim}: rank {rank} ended with exit code 3"
    stopped(trial, GRACE_S + 1.0)
    done = controller.end(process, 20)
    assert (
        done.code == 1
        and words in done.err
        and f"last lines of rank-{rank}.out on {victim}" in done.err
    ), done
    trial.keep()


def _rank_record(controller: Controller, node: str, rank: int) -> dict[str, object]:
    try:
        value: dict[str, object] = json.loads(
            (controller.node_run(node) / "ranks" / f"{rank}.json").read_text()
        )
    except OSError:
        return {}
    return value


@row("P2", "a workload that hears nothing, a leader that leaves its children behind")
def deaf_or_leaderless(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(trial.nodes)
    rank = trial.nodes.index(victim)
    if trial.random.choice((True, False)):
        process = running(
            controller,
            "--set",
            "fail_at_step=4",
            "--set",
            f"fail_rank={rank}",
            "--set",
            "fail_mode=deaf",
        )
        deaf = controller.rank_process(victim).pid
        judge.wait_for(lambda: _ignores(deaf, signal.SIGTERM), 10, "it hears everything")
        other = next(name for name in trial.nodes if name != victim)
        os.kill(controller.rank_process(other).pid, signal.SIGKILL)
        noticed(trial, RANK_S)
        words = f"orch: {other}: rank {trial.nodes.index(other)} ended with SIGKILL"
    else:
        process = running(controller)
        leaders = ("bash launch.sh", "rank_wrapper.py")
        leader = trial.random.choice(leaders)
        (proc,) = [proc for proc in judge.processes(trial.lab, victim) if leader in proc.cmdline]
        os.kill(proc.pid, signal.SIGKILL)
        noticed(trial, RANK_S)
        # Of a leader and its children either may be the first to be missed; that it was this node
        # is certain.
        words = f"orch: {victim}: "
    stopped(trial, GRACE_S + 1.0)
    done = controller.end(process, 20)
    assert done.code == 1 and words in done.err and "SIGKILL" in done.err, done
    trial.keep()


def _ignores(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        (mask,) = re.findall(r"^SigIgn:\s+(\w+)", status.read(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@row("P3", "the controller is told to end, once or twice, or its terminal closes", limit_s=180)
def told_to_end(trial: Trial) -> None:
    trial.random.choice((_one_signal, _terminal_closes, _two_signals))(trial)


def _one_signal(trial: Trial) -> None:
    controller = trial.controller
    number, code = trial.random.choice(
        ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129))
    )
    process = running(controller)
    if trial.random.choice((True, False)):
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    stopped(trial, 0.5 + GRACE_S + 1.0)
    done = controller.end(process, 15)
    assert (
        done.code == code and "interrupted: stopping on every node, then collecting" in done.err
    ), done
    assert controller.manifest()["outcome"]["state"] == "interrupted"
    trial.keep()
    assert "interrupted" in controller.exit_record("node2")["reason"]


def _terminal_closes(trial: Trial) -> None:
    controller = trial.controller
    with _on_a_terminal(controller, "bench", *LONG, "--nodes", "4", "--gpus", "1") as (
        process,
        host,
    ):
        judge.wait_for(
            lambda: list(controller.project.glob("runs/*/*/manifest.json")),
            30,
            "no run was planned",
        )
        controller.wait_for_step(3)
        os.close(host)
        stopped(trial, 0.5 + GRACE_S + 1.0)
        assert process.wait(judge.LIMIT_S) == 129
    assert controller.manifest()["outcome"]["state"] == "interrupted"
    trial.keep()


@contextmanager
def _on_a_terminal(
    controller: Controller, *words: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the program on a terminal of its own; the caller closes the other end."""
    host, terminal = os.openpty()
    process = subprocess.Popen(
        labs.argv_inside(controller.lab, [*controller.program, *words]),
        cwd=controller.project,
        env=outer_environment(controller.project) | dict(labs.environment(controller.lab)),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        text=True,
        preexec_fn=_take_terminal,
    )
    os.close(terminal)
    controller.started.append(process)
    yield process, host


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _two_signals(trial: Trial) -> None:
    """The second one leaves at once; the nodes, which could not be reached, end by their lease, or
    by the printed command.
    """
    controller = trial.controller
    process = running(
        controller, "--lease", str(LEASE_S), "--set", "fail_mode=deaf", "--stop-grace", "5"
    )
    for name in trial.nodes:
        faults.freeze(trial.lab, name)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    began = time.monotonic()
    done = controller.end(process, 5)
    assert done.code == 130 and judge.in_time(time.monotonic() - began, 1.0), done
    by_lease = trial.random.choice((True, False))
    if by_lease:
        time.sleep(LEASE_S)
    for name in trial.nodes:
        faults.thaw(trial.lab, name)
    if by_lease:
        stopped(trial, 2.0 + 5.0)
    advice = [
        shlex.split(command)[1:] for command in done.err.rpartition("To finish: ")[2].split("&&")
    ]
    assert [words[0] for words in advice] == ["cancel", "collect"], done.err
    cancel = controller.orch(*advice[0])
    assert cancel.code == 0 and judge.ours(trial.lab) == [], cancel
    collect = controller.orch(*advice[1])
    assert collect.code == 0, collect
    trial.keep()


@row("P4", "the node's supervisor is killed")
def killed_supervisor(trial: Trial) -> None:
    controller, (nodes, victim) = trial.controller, spread(trial)
    process = running(controller, nodes=nodes)
    os.kill(controller.supervisor(victim).pid, signal.SIGKILL)
    noticed(trial, DETECT_S)
    stopped(trial, GRACE_S + 1.0 + 1.0)
    done = controller.end(process, 20)
    assert done.code in (1, 3) and judge.names_killed_runner(victim, done.err), done
    trial.keep()


SHED = """
def start():
    if RANK == 1:
        import subprocess
        subprocess.run(["env", "-i", "setsid", "sh", "-c", "sleep 7654 & exit 0"], stdin=subprocess.DEVNULL, check=True)
"""


def _no_groups() -> str:
    places = [group for group, _, _ in own_groups("pids")]  # in either hierarchy
    return (
        ""
        if any(os.access(place, os.W_OK) for place in places)
        else "no control group may be made here"
    )


@row(
    "P10", "the supervisor is killed, and a daemon has shed every mark of its run", skip=_no_groups
)
def shed_marks(trial: Trial) -> None:
    """The daemon's parent is gone, its session is its own, its environment is empty: only its
    control group tells.
    """

    def daemons() -> list[judge.Proc]:
        return [
            proc for proc in judge.processes(trial.lab, "node2") if proc.cmdline == "sleep 7654"
        ]

    controller = trial.controller
    words = workload(controller, SHED)
    for end in ("by its supervisor", "without its supervisor"):
        process = controller.start(
            *words, "--nodes", "2", "--set", "pause_ms=200", "--steps", "200"
        )
        judge.wait_for(daemons, 30, "the daemon was not started")
        assert not any(proc.environ_run_id for proc in daemons())
        if end.startswith("by"):
            os.kill(process.pid, signal.SIGINT)
        else:
            os.kill(controller.supervisor("node2").pid, signal.SIGKILL)
        trial.stopped_s = judge.wait_for(
            lambda: not daemons(), DETECT_S + 5.0 + 1.0, f"the daemon lives, ended {end}"
        )
        controller.end(process, 30)
        tops = {top for _, top, _ in own_groups("pids")}
        assert not [
            group for top in tops for group in top.glob(f"**/orch-{controller.runs[-1].name}-*")
        ], "a group is left"


@contextmanager
def _without_groups(trial: Trial, node: str) -> Iterator[None]:
    """Hide the control groups' file systems from a node, so that no group can be made there."""
    on_node(trial.lab, node, "mount -t tmpfs none /sys/fs/cgroup")
    try:
        yield
    finally:
        on_node(trial.lab, node, "umount /sys/fs/cgroup", check=False)


@row(
    "P12",
    "the supervisor is killed where no control group can be made, and a daemon has shed every mark of its run",
)
def nothing_shows_whose_it_is(trial: Trial) -> None:
    """The daemon cannot be told from another process of this user, so nothing may say that the run
    has ended.
    """

    def daemons() -> list[judge.Proc]:
        return [
            proc for proc in judge.processes(trial.lab, "node2") if proc.cmdline == "sleep 7654"
        ]

    controller = trial.controller
    words = workload(controller, SHED)
    controller_dies = trial.random.choice((True, False))
    with _without_groups(trial, "node2"):
        process = controller.start(
            *words,
            "--nodes",
            "2",
            "--set",
            "pause_ms=100",
            "--steps",
            "80",
            "--lease",
            str(LEASE_S),
        )
        judge.wait_for(daemons, 30, "the daemon was not started")
        (daemon,) = daemons()
        number = (
            Path(f"/proc/{daemon.pid}/status")
            .read_text()
            .partition("NSpid:")[2]
            .split("\n")[0]
            .split()[-1]
        )
        words = f"{number} (sleep)"
        if controller_dies:
            process.kill()
            process.wait(judge.LIMIT_S)
        os.kill(controller.supervisor("node2").pid, signal.SIGKILL)
        if controller_dies:
            judge.wait_for(
                lambda: {proc.node for proc in judge.ours(trial.lab)} <= {"node2"},
                20,
                "node1 does not end by its lease",
            )
            done = controller.orch("resume", controller.bench.name)
        else:
            done = controller.end(process, 40)
        assert done.code == 1 and "not verified" in done.err and words in done.err and daemons(), (
            done
        )
        manifests = [
            json.loads(path.read_text()) for path in controller.bench.glob("*/manifest.json")
        ]
        clean = [
            manifest["outcome"]["clean"]["node2"] for manifest in manifests if manifest["outcome"]
        ]
        assert any(state.get("unverified") == [[int(number), "sleep"]] for state in clean), clean
        for command in (("cancel",), ("cancel", controller.bench.name), ("collect",), ("status",)):
            done = controller.orch(*command)
            assert done.code == 1 and "not verified" in done.err and words in done.err, (
                command,
                done,
            )
            assert "no orch processes" not in done.out and daemons(), (command, done)
        os.kill(daemon.pid, signal.SIGKILL)
        judge.wait_for(lambda: not daemons(), 3, "the daemon does not die")
        done = controller.orch("cancel")
        assert done.code == 0 and "no orch processes left" in done.out, done


@row("P5", "a run that is too long, that never begins to speak, that falls silent", limit_s=180)
def too_long(trial: Trial) -> None:
    hang = ("--set", "fail_mode=hang", "--set", "fail_rank=0")
    ways = {
        "longer than 6 s": ("--timeout", "6"),
        "no line within 3 s of the start": ("--first-line-timeout", "3"),
        "no new line for 3 s": ("--set", "fail_at_step=20", *hang, "--stall-timeout", "3"),
    }
    words = trial.random.choice(sorted(ways))
    controller = trial.controller
    options = ways[words]
    if words.startswith("no line"):
        with _mute_python(controller):
            done = _ended_by_itself(trial, options, 3.0)
    else:
        done = _ended_by_itself(trial, options, 6.0 if "longer" in words else 20 * 0.1 + 3.0)
    assert done.code == 1 and words in done.err, done
    if words.startswith("no new line"):
        assert (
            "orch: node1: rank 0 sleeps in clock_nanosleep in step 20 outside of every collective"
            in done.err
        ), done
    else:  # what is wrong with ranks that have said nothing, or go on, is not known
        assert (
            "still made progress" if "longer" in words else "cannot be determined"
        ) in done.err and "orch: node" not in done.err, done
    assert controller.manifest()["outcome"]["error"]["kind"] == "run_timeout", (
        controller.manifest()["outcome"]
    )
    trial.keep()


def _ended_by_itself(trial: Trial, options: tuple[str, ...], after_s: float) -> Done:
    """Run a bench that has to be ended by a limit, and hold the time that takes to the limit and
    the grace.
    """
    controller = trial.controller
    process = controller.start("bench", *LONG, "--nodes", "4", "--gpus", "1", *options)
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/events.jsonl")), 30, "no run was planned"
    )
    judge.wait_for(
        lambda: any(event["event"] == "started" for event in controller.events()),
        40,
        "no run was started",
    )
    waited = judge.wait_for(
        lambda: stopping(controller), after_s + 6.0, "it goes on beyond its limit"
    )
    assert waited > after_s - 1.5, f"stopped after {waited:.2f} s already"
    trial.detected_s = max(0.0, waited - after_s)
    stopped(trial, GRACE_S + 1.0)
    return controller.end(process, 20)


@contextmanager
def _mute_python(controller: Controller) -> Iterator[None]:
    """Have an interpreter for the first node's rank that sleeps before it becomes itself."""
    lab = controller.lab
    slow = lab.node("node1").home / "slow-python"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *train_*) sleep 60;; esac\nexec {lab.python} "$@"\n')
    slow.chmod(0o755)
    before = lab.inventory.read_text()
    text = before.replace("  node1:\n", "  node1:\n    vars: {python: /root/slow-python}\n")
    assert text != before
    lab.inventory.write_text(text)
    try:
        yield
    finally:
        lab.inventory.write_text(before)
        slow.unlink()


@row("P6", "the kernel kills a rank for memory", skip=lambda: node_groups.obstacle("memory"))
def out_of_memory(trial: Trial) -> None:
    controller, victim = trial.controller, trial.random.choice(trial.nodes)
    rank = trial.nodes.index(victim)
    faults.memory(trial.lab, victim, 200 << 20)
    process = controller.start(
        "bench",
        *CHATTER,
        "--nodes",
        "4",
        "--gpus",
        "1",
        "--set",
        f"hog_rank={rank}",
        "--steps",
        "100",
    )
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/events.jsonl")) and stopping(controller),
        40,
        "not noticed",
    )
    stopped(trial, GRACE_S + 1.0)
    faults.heal(trial.lab)
    done = controller.end(process, 20)
    assert done.code == 1 and f"orch: {victim}: rank {rank} ended with SIGKILL" in done.err, done
    assert "the kernel's OOM killer killed it" in done.err, done
    assert controller.exit_record(victim)["oom_kills"] >= 1
    trial.keep()


@row("P7", "a node boots anew in mid-run, and is back at once")
def reboot(trial: Trial) -> None:
    controller, (nodes, victim) = trial.controller, spread(trial)
    process = running(controller, nodes=nodes)
    old = {*_numbers(controller, victim)}
    assert len(old) >= 2
    faults.kill(trial.lab, victim)
    began = time.monotonic()
    faults.boot(trial.lab, victim)
    with _decoys(trial, victim, old) as (decoys, held):
        trial.detected_s = judge.wait_for(
            lambda: stopping(controller), 8.0, "the reboot was not noticed"
        )
        trial.detected_s = time.monotonic() - began
        done = controller.end(process, 30)
        assert judge.ours(trial.lab) == []
        assert decoys.poll() is None and len(_children(decoys)) == held, (
            "a process with an old number was signalled"
        )
    assert judge.in_time(trial.detected_s, DETECT_S), f"detected after {trial.detected_s:.2f} s"
    assert done.code in (1, 3) and f"orch: {victim}: " in done.err, done
    outcome = controller.manifest()["outcome"]
    if outcome["error"]["kind"] == "node_lost" and judge.patience > 1:
        # On a busy machine it was away for longer than a node that is only back at once.
        assert "no sign of life for" in outcome["error"]["message"], outcome
    else:
        assert outcome["error"]["kind"] == "node_rebooted", outcome
    assert list((controller.node_run(victim) / "logs").iterdir())
    trial.keep()


def _numbers(controller: Controller, node: str) -> Iterator[int]:
    """Return the numbers that the run's processes have on their node, from the records of its owner
    and of ranks.
    """
    run = controller.node_run(node)
    yield int(json.loads((run / "owner.json").read_text())["supervisor"])
    for path in (run / "ranks").glob("*.json"):
        record = json.loads(path.read_text())
        yield from (int(record["pid"]), int(record["wrapper"]))


# From the highest number down: whoever else forks in between gets a number above, and none that is
# still wanted. A number that stays taken has its stranger already: a session of the node that
# booted anew.
_DECOYS = """\
import os, sys, time
held = 0
for target in map(int, sys.argv[1:]):
    for _ in range(200):
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(target - 1))
        pid = os.fork()
        if pid == 0:
            if os.getpid() == target:
                time.sleep(1000)
            os._exit(0)
        if pid == target:
            held += 1
            break
        os.waitpid(pid, 0)
print(held, flush=True)
sys.stdin.read()
"""


@contextmanager
def _decoys(
    trial: Trial, node: str, numbers: set[int]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Have strangers on a node under those of these process numbers that are free; a signal to one
    of them ends it.

    Yield their parent, and how many they are.
    """
    words = [sys.executable, "-I", "-S", "-c", _DECOYS, *map(str, sorted(numbers, reverse=True))]
    argv = labs.argv_on(trial.lab, node, words)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            held = int(process.stdout.readline())
            assert held == len(_children(process)) > 0, (
                f"{held} of the numbers {sorted(numbers)} could be had"
            )
            yield process, held
        finally:
            for pid in _children(process):
                os.kill(pid, signal.SIGKILL)
            process.communicate(timeout=judge.LIMIT_S)


def _children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the decoys' numbers on the machine: nsenter's child is their parent."""
    decoys, queue = [], [process.pid]
    while queue:
        pid = queue.pop()
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as children:
                below = [int(word) for word in children.read().split()]
        except OSError:
            continue
        decoys += below if pid != process.pid else []
        queue += below
    return decoys


@row("P8", "one node never gets ready", trials=5, limit_s=180, short=False)
def never_ready(trial: Trial) -> None:
    """Its supervisor stands still between the staging of the files and the word that it is armed."""
    controller, victim = trial.controller, trial.random.choice(trial.nodes)
    assert controller.orch("deploy", "-f", "simulated").code == 0
    process = controller.start("bench", *QUICK, "--nodes", "4", "--gpus", "1")
    trained = False
    supervisor = _supervisor(trial, victim, process)
    os.kill(supervisor, signal.SIGSTOP)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() < began + 60:
        trained = trained or any("train_" in proc.cmdline for proc in judge.ours(trial.lab))
        time.sleep(0.02)
    trial.detected_s = time.monotonic() - began
    os.kill(supervisor, signal.SIGCONT)
    done = controller.end(process, 10)
    assert done.code == 1 and f"orch: {victim}: " in done.err and "not" in done.err, done
    assert "start_timeout" in json.dumps(controller.manifest()["outcome"]["error"]), (
        controller.manifest()["outcome"]
    )
    assert not trained, "a rank was started"
    stopped(trial, 5.0)
    assert not any((controller.node_run(name) / "ranks" / "0.json").exists()
                   for name in trial.nodes)  # fmt: skip


@row("P11", "what waits for the start on one node is killed")
def killed_at_the_barrier(trial: Trial) -> None:
    """Another node's supervisor goes on by small steps, so that there is time between the victim's
    report that it is armed and the start: before all have said hello no node is armed."""
    controller, (victim, late) = trial.controller, trial.random.sample(trial.nodes, 2)
    process = controller.start("bench", *LONG, "--nodes", "4", "--gpus", "1")
    held = _supervisor(trial, late, process)
    os.kill(held, signal.SIGSTOP)
    supervisor = _supervisor(trial, victim, process)
    waits = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    deadline = time.monotonic() + judge.LIMIT_S
    while not waits.read_text():
        assert time.monotonic() < deadline, "nothing waits for the start"
        os.kill(held, signal.SIGCONT)
        time.sleep(0.005)
        os.kill(held, signal.SIGSTOP)
        time.sleep(0.1)
    os.kill(
        int(waits.read_text().split()[0]), signal.SIGKILL
    )  # the oldest child; the sampler is another one
    os.kill(held, signal.SIGCONT)
    noticed(trial, RANK_S + 2.0)
    stopped(trial, GRACE_S + 1.0)
    done = controller.end(process, 20)
    assert done.code == 1 and f"orch: {victim}: its launch script ended with SIGKILL" in done.err, (
        done
    )
    assert controller.manifest()["outcome"]["state"] == "failed"
    trial.keep()
    done = controller.orch("summarize")
    assert done.code == 0 and "its launch script ended with SIGKILL" in done.out, done


def _supervisor(trial: Trial, node: str, process: subprocess.Popen[str]) -> int:
    """Wait for the supervisor of a run on a node; return its number on the machine."""
    deadline = time.monotonic() + judge.LIMIT_S
    while not (
        pids := [
            proc.pid for proc in judge.processes(trial.lab, node) if proc.comm == "orch-supervisor"
        ]
    ):
        assert time.monotonic() < deadline and process.poll() is None, "no supervisor was started"
    return min(pids)


@row("P9", "one of two runs is ended")
def one_of_two(trial: Trial) -> None:
    mine, other = trial.controller, trial.rival()
    kept = other.start(
        "bench", *LONG, "--hosts", "node[3-4]", "--nodes", "2", "--gpus", "1", "--steps", "80"
    )
    process = running(mine, "--hosts", "node[1-2]", nodes=2)
    judge.wait_for(lambda: _steps(other) > 2, 20, "the other run does not begin")
    if trial.random.choice((True, False)):
        os.kill(process.pid, signal.SIGINT)
        assert mine.end(process, 20).code == 130
    else:
        cancel = mine.orch("cancel", "--hosts", "node[1-2]")
        assert cancel.code == 0, cancel
        assert mine.end(process, 20).code != 0
    assert not [proc for proc in judge.ours(trial.lab) if proc.node in ("node1", "node2")]
    done = other.end(kept, 40)
    assert done.code == 0, done
    assert other.manifest()["outcome"]["state"] == "finished" and _steps(other) == 81
    trial.keep("node1", "node2", controller=mine)
    trial.keep("node3", "node4", controller=other)


def _steps(controller: Controller) -> int:
    """Return how many steps the newest run of a controller on node3 has logged, step 0 included."""
    try:
        return (
            (controller.node_run("node3") / "logs" / "rank-0.out").read_text().count("orch step=")
        )
    except (OSError, ValueError, IndexError):
        return 0
