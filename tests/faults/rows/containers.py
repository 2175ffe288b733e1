"""Runs in containers: podman in nodes of a lab (B), and docker on this machine, outside of a lab's
namespaces (D).

podman needs no daemon. The rows of docker ask whatever `docker version` asks, and are skipped where
that does not answer. On a machine without a daemon, start one as root that needs no network of its
own, because runs have the network of their node:

    dockerd --iptables=false --bridge=none --storage-driver=vfs --data-root=DIR/data --exec-root=DIR/exec --pidfile=DIR/pid
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from subprocess import Popen
from typing import Any

from tests.e2e.rig import Controller, Done
from tests.faults.rows.common import DETECT_S, GRACE_S, LEASE_S, LONG, QUICK
from tests.faults.rows.processes import noticed
from tests.faults.rows.setup import on_node
from tests.faults.rows.workload import workload
from tests.faults.suite import Trial, row
from tests.support import engines, judge, podman
from tests.support.engines import NODES, Engine

ENGINE_S = 10.0
"""An engine takes its time to create, to end and to remove a container on a busy machine."""
BENCH_S = 8.0
"""Until a bench has done its first steps, start of the interpreter and preflight included."""

# It leaves its parents, its session, its environment and its outputs, and hears no signal but
# SIGKILL.
_DAEMON = """
import signal

def start():
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.execve("/usr/bin/sleep", {words}, {{}})
    os.waitpid(child, 0)
"""


@dataclass(slots=True)
class Site:
    """What a row on containers has: its trial, a controller and the engine of its two nodes.
    ``daemon`` is the command line of what ranks leave in their container."""

    trial: Trial
    controller: Controller
    engine: Engine
    hosts: tuple[str, ...]
    daemon: str

    def start(self, *words: str) -> Popen[str]:
        """Start a bench on both nodes."""
        return self.controller.start("bench", *words, *self.hosts, "--nodes", "2")

    def with_daemons(self, *words: str) -> Popen[str]:
        """Start a bench whose ranks leave a daemon in their container; return once both are there
        and steps are done.
        """
        code = _DAEMON.format(words=self.daemon.split())
        command, *bench = workload(self.controller, code)
        assert command == "bench"
        process = self.begun(*bench, "--set", "pause_ms=100", "--steps", "300", *words)
        # The rank of node2 may have left nothing yet.
        judge.wait_for(lambda: len(self.daemons()) == 2, 5, lambda: f"daemons: {self.daemons()}")
        return process

    def begun(self, *words: str) -> Popen[str]:
        """Start a bench that lasts; return once it has done a few steps in containers that the
        engine lists.
        """
        process = self.start(*words)
        runs = self.controller.project
        judge.wait_for(
            lambda: [*runs.glob("runs/*/*/manifest.json")] or process.poll() is not None,
            40,
            "no run was planned",
        )
        assert process.poll() is None, self.controller.end(process, 1)
        self.controller.wait_for_step(3, within_s=40)
        # The steps were node1's: the container of node2 may still be starting.
        judge.wait_for(
            self._in_both,
            10,
            lambda: f"{self.engine.containers()}, {self.engine.processes(self.daemon)}",
        )
        return process

    def _in_both(self) -> bool:
        """Whether the engine lists both containers, each with its supervisor, engine and rank."""
        return len(self.engine.containers()) == 2 and len(self.engine.processes(self.daemon)) >= 6

    def daemons(self) -> list[judge.Proc]:
        """Return the daemons that live."""
        return [proc for proc in self.engine.processes(self.daemon) if proc.cmdline == self.daemon]

    def nothing_left(self, within_s: float) -> None:
        """Wait until neither a process of a run nor a container is left, and note how long that
        took as the time to stop.
        """

        def rest() -> list[object]:
            return [*(self.engine.processes(self.daemon) or self.engine.containers())]

        try:
            self.trial.stopped_s = judge.wait_for(
                lambda: not rest(), within_s, lambda: f"left: {rest()}"
            )
        except AssertionError:
            self.trial.left += len(self.engine.processes(self.daemon)) + len(
                self.engine.containers()
            )
            raise

    def kill_supervisors(self, *nodes: str) -> None:
        """Kill the supervisors of the run on these nodes."""
        for node in nodes:
            os.kill(self.controller.supervisor(node).pid, signal.SIGKILL)

    def kill_controller(self, process: Popen[str]) -> None:
        """Kill the controller, for good."""
        os.kill(process.pid, signal.SIGKILL)
        self.controller.end(process, 10)

    def ended(self, process: Popen[str], *codes: int) -> Done:
        """Wait for the end of a bench with one of these exit codes; it may leave no doubt about its
        containers.
        """
        done = self.controller.end(process, 60)
        assert done.code in codes and "not verified" not in done.err, done
        return done

    def cancel(self) -> None:
        """Cancel what runs on the nodes: it ends, and that is proven."""
        done = self.controller.orch("cancel", *self.hosts)
        assert (
            done.code == 0
            and "no orch processes left" in done.out
            and "not verified" not in done.err
        ), done

    def keep(self) -> None:
        """Count the bytes of logs that are on the nodes and not, alike, in the project."""
        self.trial.keep(*NODES, controller=self.controller)


@contextmanager
def _podman(trial: Trial) -> Iterator[Site]:
    with engines.podman_on_nodes(trial.lab, trial.scratch.name) as engine:
        yield _site(trial, trial.controller, engine, "-x", "node[3-4]")


@contextmanager
def _docker(trial: Trial) -> Iterator[Site]:
    with (
        trial.own_lab(nodes=2, kind="loopback") as made,
        engines.docker_outside(made.lab, trial.scratch.name) as engine,
    ):
        yield _site(trial, made, engine)


def _site(trial: Trial, controller: Controller, engine: Engine, *without: str) -> Site:
    hosts = ("-H", engine.inventory(controller.project / "containers.yaml"), *without)
    return Site(trial, controller, engine, hosts, f"sleep {trial.random.randrange(10**7, 10**8)}")


Act = Callable[[Site], None]
_ACTS: list[tuple[str, Act, dict[str, Any]]] = []


def _fault(words: str, **options: Any) -> Callable[[Act], Act]:
    """Enter a function as the next row of either engine."""

    def enter(act: Act) -> Act:
        _ACTS.append((words, act, options))
        return act

    return enter


@_fault("a bench that runs to its end", short=False)
def ordinary(site: Site) -> None:
    done = site.ended(site.start(*QUICK), 0)
    site.nothing_left(ENGINE_S)
    for node in NODES:
        record = site.controller.exit_record(node)
        assert (
            record["state"] == "finished"
            and record["container"]["by"]
            and record["container"]["left"] == []
        ), (record, done)
    site.keep()


@_fault("Ctrl-C in mid-run", short=False)
def interrupted(site: Site) -> None:
    process = site.begun(*LONG)
    os.kill(process.pid, signal.SIGINT)
    site.nothing_left(GRACE_S + ENGINE_S)
    site.ended(process, 130)
    site.keep()


@_fault("the controller is killed at a random instant, never to come back", short=False)
def killed_for_good(site: Site) -> None:
    controller = site.controller
    process = site.start(*LONG, "--lease", str(LEASE_S))
    time.sleep(site.trial.random.uniform(0.0, BENCH_S))
    site.kill_controller(process)
    site.nothing_left(LEASE_S + 2.0 + GRACE_S + ENGINE_S)
    if not list(controller.project.glob("runs/*/*/manifest.json")):
        site.trial.notes.append("killed before there was a run")
        return
    ended = [node for node in NODES if (controller.node_run(node) / "exit.json").exists()]
    done = controller.orch("collect")
    assert done.code == (0 if len(ended) == len(NODES) else 4) and "not verified" not in done.err, (
        ended,
        done,
    )
    for node in NODES:
        if node not in ended:
            site.trial.notes.append(f"killed before {node} had begun")
            _has_not_begun(controller, node)
    site.keep()


def _has_not_begun(controller: Controller, node: str) -> None:
    """Check that a node without an exit record has no log of a rank, there or here, and that the
    journal knows no start.
    """
    logs = [
        *controller.node_run(node).glob("logs/rank-*"),
        *controller.runs[-1].glob(f"logs/{node}/rank-*"),
    ]
    journal = [event["event"] for event in controller.events()]
    assert not logs and "started" not in journal, (node, logs, journal)


@_fault("a supervisor is killed; its rank has left a daemon")
def killed_supervisor(site: Site) -> None:
    victim = site.trial.random.choice(NODES)
    process = site.with_daemons()
    site.kill_supervisors(victim)
    noticed(site.trial, DETECT_S, site.controller)
    site.nothing_left(GRACE_S + ENGINE_S)
    done = site.ended(process, 1, 3)
    assert judge.names_killed_runner(victim, done.err), done
    site.keep()


@_fault("the controller and supervisors are killed, then orch cancel; ranks have left daemons")
def cancelled(site: Site) -> None:
    process = site.with_daemons()
    site.kill_controller(process)
    site.kill_supervisors(*site.trial.random.choice((NODES, NODES[:1], NODES[1:])))
    assert len(site.daemons()) == 2 and site.engine.containers(), (
        site.daemons(),
        site.engine.containers(),
    )
    begin = time.monotonic()
    site.cancel()
    site.nothing_left(1.0)
    site.trial.stopped_s = time.monotonic() - begin
    done = site.controller.orch("collect")
    assert "not verified" not in done.err and "Traceback" not in done.err, done
    site.keep()


@_fault(
    "a rank leaves a daemon without parents, session and environment, then the run ends, or Ctrl-C",
    short=False,
)
def daemons(site: Site) -> None:
    if site.trial.random.choice((True, False)):
        site.trial.notes.append("Ctrl-C")
        process = site.with_daemons()
        os.kill(process.pid, signal.SIGINT)
        site.nothing_left(GRACE_S + ENGINE_S)
        site.ended(process, 130)
    else:
        site.trial.notes.append("the run ends")
        process = site.with_daemons("--steps", "30")
        assert len(site.daemons()) == 2
        site.ended(process, 0)
        site.nothing_left(1.0)
    site.keep()


@_fault(
    "the engine cannot be asked any more: what is not known to have ended is not verified", trials=5
)
def unreadable(site: Site) -> None:
    ways = [_proven_by_its_group, _without_a_trace, _groups_hidden][
        : 3 if site.engine.name == "podman" else 2
    ]
    way = ways[site.trial.random.randrange(len(ways))]
    site.trial.notes.append(way.__name__.strip("_").replace("_", " "))
    way(site)


def _proven_by_its_group(site: Site) -> None:
    """The control groups show the end without the engine."""
    process = site.with_daemons()
    with site.engine.gone():
        os.kill(process.pid, signal.SIGINT)
        site.ended(process, 130)
        assert not site.engine.processes(site.daemon)
    for node in NODES:
        assert site.controller.exit_record(node)["container"] == {
            "by": ["control group"],
            "left": [],
        }
    site.nothing_left(ENGINE_S)
    site.keep()


def _without_a_trace(site: Site) -> None:
    """Nothing is there that could know the container: no supervisor, no note of its id, no engine."""
    process = site.with_daemons()
    notes = [
        site.controller.node_run("node1") / name for name in ("container.id", "container.groups")
    ]
    judge.wait_for(
        lambda: all(note.exists() for note in notes),
        5,
        "the supervisor has not noted its container",
    )
    site.kill_controller(process)
    site.kill_supervisors(*NODES)
    for note in notes:
        note.unlink()
    with site.engine.gone():
        for command in ("cancel", "status", "cancel"):
            _not_verified(site.controller.orch(command, *site.hosts), "node1")
    site.cancel()
    site.nothing_left(1.0)


def _groups_hidden(site: Site) -> None:
    """The control groups' file systems are hidden from a node in mid-run, and its engine is gone."""
    process = site.with_daemons()
    on_node(site.controller.lab, "node1", "mount -t tmpfs none /sys/fs/cgroup")
    try:
        with site.engine.gone():
            os.kill(process.pid, signal.SIGINT)
            _not_verified(site.controller.end(process, 60), "node1")
            _not_verified(site.controller.orch("status", *site.hosts), "node1")
    finally:
        on_node(site.controller.lab, "node1", "umount /sys/fs/cgroup")
    site.cancel()
    site.nothing_left(1.0)
    site.keep()


def _not_verified(done: Done, node: str) -> None:
    assert (
        done.code
        and "not verified" in done.err
        and node in done.err
        and "no orch processes" not in done.out
    ), done


def _on(site: Callable[[Trial], AbstractContextManager[Site]], act: Act, trial: Trial) -> None:
    with site(trial) as made:
        act(made)


for _letter, _where, _made, _obstacle in (
    ("B", "podman in nodes", _podman, podman.obstacle),
    ("D", "docker outside", _docker, engines.no_docker),
):
    for _number, (_words, _act, _options) in enumerate(_ACTS, 1):
        row(f"{_letter}{_number}", f"{_where}: {_words}", limit_s=240, skip=_obstacle, **_options)(
            partial(_on, _made, _act)
        )
