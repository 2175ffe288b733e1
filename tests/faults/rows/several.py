"""Several controllers at once, several names of one machine, several users of a port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from orchestrator import lab as labs
from tests.e2e.rig import QUICK, SMALL, Controller
from tests.faults.rows.common import GRACE_S, running
from tests.faults.rows.setup import inventory, messages, on_node, refused, server
from tests.faults.suite import Trial, row
from tests.support import judge
from tests.support.faultlab import listener

_LEASE_S = 15.0  # so long that a second controller comes as far as the nodes meanwhile, however busy the machine is


@row("L1", "two controllers want the same nodes; the owner is killed", limit_s=150, short=False)
def two_controllers(trial: Trial) -> None:
    controller, other = trial.controller, trial.rival()
    words = (
        "bench",
        *SMALL,
        "--set",
        "compute_ms=300",
        "--steps",
        "24",
        "--warmup-steps",
        "1",
        "--nodes",
        "4",
    )
    racing = [racer.start(*words) for racer in (controller, other)]
    ended = [controller.end(process, 90) for process in racing]
    assert sorted(done.code for done in ended) == [0, 1], ended
    loser = next(done for done in ended if done.code == 1)
    winner = (controller, other)[[done.code for done in ended].index(0)]
    _names_the_owner(messages(loser), winner)
    assert judge.ours(trial.lab) == []
    _killed_owner(trial, trial.rival("third"), other)


def _killed_owner(trial: Trial, controller: Controller, other: Controller) -> None:
    process = running(controller, "--lease", str(_LEASE_S))
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    _names_the_owner(
        refused(other, "bench", *QUICK, "--nodes", "4", code=1, within_s=15), controller
    )
    judge.wait_until_clean(
        trial.lab, max(0.1, _LEASE_S + 2.0 + GRACE_S - (time.monotonic() - killed))
    )
    trial.stopped_s = time.monotonic() - killed
    done = other.orch("bench", *QUICK, "--nodes", "4")
    assert done.code == 0, done


def _names_the_owner(text: str, owner: Controller) -> None:
    for words in (
        "another run holds this node",
        f"run {owner.runs[-1].name} of ",
        ", process ",
        ", since ",
    ):
        assert words in text, f"{words!r} is not in {text}"


@row("L2", "one machine under two names, by one address and by two", limit_s=60)
def two_names(trial: Trial) -> None:
    controller, first, second = trial.controller, *trial.random.sample(list(trial.lab.nodes), 2)
    hosts = {
        "first": {"address": first.address},
        "second": {"address": first.address},
        "third": {"address": second.address},
    }
    same = inventory(controller, hosts, name="same.yaml")
    for command in (("deploy", "-f", "simulated"), ("bench", *QUICK, "--nodes", "2")):
        text = refused(controller, *command, "--hosts", same, code=2, within_s=10)
        assert "expected one name per machine" in text and "'first' and 'second'" in text, text
    on_node(trial.lab, first.name, "ip addr add 10.11.0.77/24 dev eth0")
    # In a trial before this one another machine may have had the address.
    subprocess.run(labs.argv_inside(trial.lab, ["ip", "neigh", "flush", "dev", "br0"]), check=True)
    try:
        hosts["second"] = {"address": "10.11.0.77"}
        known = controller.project / "known"
        known.write_text("")
        twice = inventory(
            controller,
            hosts,
            name="twice.yaml",
            ssh={"known_hosts": str(known), "host_keys": "accept-new"},
        )
        with server(trial.lab, first.name, port=22, address="10.11.0.77"):
            for command in (("deploy", "-f", "simulated"), ("bench", *QUICK, "--nodes", "3")):
                text = refused(controller, *command, "--hosts", twice, code=1, within_s=20)
                assert "first and second are one machine" in text, text
                assert judge.ours(trial.lab) == []
        assert not list(controller.project.glob("runs/*/*/manifest.json")), "a run was planned"
    finally:
        on_node(trial.lab, first.name, "ip addr del 10.11.0.77/24 dev eth0")


FIXED = (
    "import sys; sys.argv[0] = 'orch'; from orchestrator.cli import main; from orchestrator.controller import controller\n"
    "controller.ports = lambda choose: iter(({ports})).__next__; main.main()"
)


@row("L3", "the rendezvous port is taken, or still closing", limit_s=150)
def taken_port(trial: Trial) -> None:
    controller = trial.controller
    first, second = trial.random.sample(range(20000, 30000), 2)
    with listener(controller.lab, "node1", first):
        chosen = (sys.executable, "-c", FIXED.format(ports=f"{first}, {second}"))
        done = controller.end(controller.start("bench", *QUICK, "--nodes", "2", program=chosen), 60)
        assert done.code == 0 and controller.manifest()["placement"]["master_port"] == second, done
        stubborn = (sys.executable, "-c", FIXED.format(ports=f"{first}, " * 3))
        done = controller.end(
            controller.start("bench", *QUICK, "--nodes", "2", program=stubborn), 60
        )
        text = messages(done)
        assert done.code == 1 and f"node1: port {first}: Address already in use" in text, done
        assert judge.ours(trial.lab) == []
    repeats = 20 if trial.full else 3
    done = controller.orch(
        "bench", *QUICK, "--nodes", "2", "--gpus", "1", "--repeats", str(repeats), timeout_s=120
    )
    assert done.code == 0, done
    ports = [
        json.loads((run / "manifest.json").read_text())["placement"]["master_port"]
        for run in controller.runs
    ]
    assert len(set(ports)) == repeats, ports


@row("L4", "16 controllers on one node each", trials=3, limit_s=400, short=False)
def many_controllers(trial: Trial) -> None:
    with trial.own_lab(nodes=16) as controller:
        words = (
            "bench",
            *SMALL,
            "--set",
            "compute_ms=20",
            "--steps",
            "40",
            "--warmup-steps",
            "2",
            "--nodes",
            "1",
            "--gpus",
            "1",
        )
        many = []
        for node in controller.lab.nodes:
            project = trial.scratch / f"of-{node.name}"
            project.mkdir()
            many.append(Controller(controller.lab, project, started=controller.started))
        pairs = list(zip(many, controller.lab.nodes, strict=True))
        hosts = [inventory(racer, {node.name: {"address": node.address}}) for racer, node in pairs]
        alone = [many[0].orch(*words, "--hosts", hosts[0])]
        serial = shape_of(many[0])
        racing = [
            racer.start(*words, "--hosts", path) for racer, path in zip(many, hosts, strict=True)
        ]
        peaks = watch(racing)
        ended = [racer.end(process, 200) for racer, process in zip(many, racing, strict=True)]
        assert [done.code for done in (*alone, *ended)] == [0] * 17, [
            done for done in ended if done.code
        ]
        for racer, node in pairs:
            assert shape_of(racer) == serial, (node.name, shape_of(racer), serial)
            slots = racer.manifest()["placement"]["slots"]
            assert [(slot["host"], slot["address"]) for slot in slots] == [
                (node.name, node.address)
            ], slots
            assert [path.name for path in (racer.runs[-1] / "logs").iterdir()] == [node.name]
            log = (racer.runs[-1] / "logs" / node.name / "rank-0.out").read_text()
            assert f" host={node.name} " in log, f"{node.name} has the log of another"
            trial.keep(node.name, controller=racer)
        assert (
            max(threads for threads, _ in peaks) <= 12 and max(files for _, files in peaks) <= 40
        ), peaks


def shape_of(controller: Controller) -> dict[str, object]:
    """Return what must be the same in every one of the runs, however busy the machine was."""
    row = controller.orch("summarize", "--json").json["rows"][-1]
    kept = {
        name: row[name]
        for name in (
            "framework",
            "model",
            "world_size",
            "nodes",
            "gpus",
            "batch_size",
            "options",
            "failed",
        )
    }
    record = controller.exit_record(next(iter(controller.manifest()["facts"])))
    logs = (controller.runs[-1] / "logs").glob("*/rank-0.out")
    steps = [
        line.split()[1]
        for log in logs
        for line in log.read_text().splitlines()
        if line.startswith("orch step=")
    ]
    return kept | {"state": record["state"], "files": sorted(record["files"]), "steps": steps}


def watch(processes: list[subprocess.Popen[str]]) -> list[tuple[int, int]]:
    """Return the most threads and descriptors that each process had, sampled until all have ended."""
    peaks = [(0, 0)] * len(processes)
    while any(process.poll() is None for process in processes):
        for index, process in enumerate(processes):
            try:
                threads = len(os.listdir(f"/proc/{process.pid}/task"))
                files = len(os.listdir(f"/proc/{process.pid}/fd"))
            except OSError:
                continue
            peaks[index] = max(peaks[index][0], threads), max(peaks[index][1], files)
        time.sleep(0.05)
    return peaks
