"""Runs in pods, through kubectl: the controller, a kubectl, the API server, a pod or a node ends, or
the pods never come.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.engines.kubernetes import client
from orchestrator.engines.kubernetes.hosts import INDEX
from orchestrator.lab import namespaces
from orchestrator.lab import pods as podlab
from orchestrator.lab.state import Lab
from orchestrator.procs import cmdline, descendants, live_pid, snapshot
from tests.e2e.rig import Controller, Done
from tests.faults.rows.common import DETECT_S, GRACE_S, LEASE_S, LONG, QUICK
from tests.faults.suite import Trial, row
from tests.support import faults, judge
from tests.support.pods import no_pods

CELL = ("resnet50", "-f", "simulated", "--no-baseline", "--gpus", "1", "--repeats", "2", "--stop-grace", "0.5",
        "--set", "gradient_mb=0.1", "--set", "compute_ms=20", "--steps", "60", "--warmup-steps", "5",
        "--nodes", "2")  # fmt: skip
"""A bench of two runs that end by themselves."""
BENCH_S = 20.0
"""About how long it takes from its start to its end."""
THERE, JOB = ("--hosts", "pods:app=lab"), ("--kubernetes", "image=lab,cpus=1")
"""The pods that are the nodes; one pod of a job on each node, which takes all of its CPU."""
LEAVE_S = 10.0
"""A controller that has been told to end, and the runner of a command that nobody reads."""
SILENCE_S = 2.9
"""A node that is silent for longer is lost. Another connection takes two kubectl."""
IDLE_S = 70.0
"""A runner that no controller reaches waits 60 s for the next request."""


def no_cluster() -> str:
    """Return why there can be no pods here."""
    return no_pods() or ("needs root" if os.geteuid() else "")


class LogKeeper(threading.Thread):
    """Holds the logs in the pods of jobs open, so that they can be read when the pods are gone."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(daemon=True)
        self.lab = lab
        self.over = threading.Event()
        self.files: dict[tuple[str, str, str], BinaryIO] = {}

    def run(self) -> None:
        """Open what is new until it is over."""
        while not self.over.wait(0.05):
            for node in self.lab.nodes:
                top = Path(f"/proc/{node.pid}/root/tmp")
                with suppress(OSError):  # a pod ends while it is looked at
                    for path in top.glob("pod-*/.orch-node/nodes/*/runs/*/logs/*"):
                        host, _, run, _, name = path.parts[-5:]
                        if (run, host, name) not in self.files:
                            self.files[run, host, name] = path.open("rb")

    def compare(self, trial: Trial, controller: Controller, without: str) -> None:
        """Count the bytes of the logs that did not come home, but for a host."""
        self.over.set()
        self.join()
        for (run, host, name), file in self.files.items():
            with file:
                there = file.read()
            here = list(controller.project.glob(f"runs/*/{run}/logs/{host}/{name}"))
            if host != without and [path.read_bytes() for path in here] != [there]:
                trial.lost_bytes += max(1, len(there))
                trial.notes.append(f"{host}: {name} is not here as it was there")


@contextmanager
def cluster(trial: Trial, *, without: Callable[[], str] = str) -> Iterator[Controller]:
    """Have a lab with pods on two nodes. At the end no pod of a job may be left, no job, no record of
    one, no kubectl and no process of ours in any pod; and all logs of pods are home, but for a host.
    """
    with trial.own_lab(nodes=2, pods=True) as controller:
        keeper = LogKeeper(controller.lab)
        keeper.start()
        yield controller
        trial.stopped_s = judge.wait_until_clean(controller.lab, LEAVE_S)
        left = [pod["metadata"]["name"] for pod in pods(controller).values()]
        left += [item["metadata"]["name"] for item in listed(controller, "/apis/batch/v1", "jobs")]
        trial.left += len(left)
        assert not left, left
        assert not list(controller.project.glob(".orch/jobs/*"))
        judge.wait_for(lambda: not relays(controller.lab), LEAVE_S, "a kubectl is left")
        keeper.compare(trial, controller, without())
        trial.keep(*names(controller), controller=controller)


def names(controller: Controller) -> list[str]:
    """Return the names of the nodes."""
    return [node.name for node in controller.lab.nodes]


def kubectl(controller: Controller, *words: str) -> str:
    """Return what kubectl says on the controller's side."""
    done = controller.end(controller.start(program=[client.program(), *words]), judge.LIMIT_S)
    assert done.code == 0, done
    return done.out


def listed(controller: Controller, group: str, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind, as the API lists them."""
    text = kubectl(controller, "get", "--raw", f"{group}/namespaces/default/{kind}")
    return list(json.loads(text)["items"])


def pods(controller: Controller) -> dict[str, dict[str, Any]]:
    """Return the pods of jobs by job and index."""
    found = {}
    for pod in listed(controller, "/api/v1", "pods"):
        index = pod["metadata"].get("annotations", {}).get(INDEX)
        if index is not None:
            found[f"{pod['metadata']['labels']['job-name']}-{index}"] = pod
    return found


def relays(lab: Lab) -> list[int]:
    """Return the programs kubectl that belong to a lab."""
    found = []
    for pid in snapshot():
        try:
            is_ours = f"KUBECONFIG={lab.pods_folder}/" in Path(f"/proc/{pid}/environ").read_text()
        except (OSError, UnicodeDecodeError):
            continue
        if is_ours and b"kubectl\0" in cmdline(pid).split(b" ")[0][:400]:
            found.append(pid)
    return found


def running(controller: Controller, *words: str) -> subprocess.Popen[str]:
    """Start a bench and return once its first run has begun."""
    bench = () if "--repeats" in words else LONG
    process = controller.start("bench", *bench, "--nodes", "2", "--gpus", "1", *words)
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/events.jsonl")), 90, "no bench begins"
    )
    controller.wait_for_starts(1, within_s=90)
    return process


def ended(trial: Trial, controller: Controller, process: subprocess.Popen[str]) -> Done:
    """Wait until a bench is over by itself because of a fault that is now."""
    begin = time.monotonic()
    done = controller.end(process, 120)
    trial.detected_s = time.monotonic() - begin
    return done


def serve_again(controller: Controller) -> None:
    """Start the API server that was killed."""
    process = podlab.start(controller.lab, namespaces.inside(controller.lab))
    process.returncode = 0  # the lab ends it


def kill_server(controller: Controller) -> None:
    """Kill the API server."""
    os.kill(live_pid(controller.lab.pods_folder / "pid"), signal.SIGKILL)


@row(
    "K1",
    "pods: the controller is killed and its lease ends, then resumed",
    short=False,
    limit_s=400,
    skip=no_cluster,
)
def killed_until_the_lease_ends(trial: Trial) -> None:
    with cluster(trial) as controller:
        words = trial.random.choice((THERE, JOB))
        process = running(controller, *CELL, *words, "--lease", str(LEASE_S))
        time.sleep(trial.random.uniform(0.0, 1.0))
        process.kill()
        trial.detected_s = judge.wait_until_clean(controller.lab, IDLE_S)
        controller.end(process, 10)
        done = controller.orch("resume", timeout_s=200)
        assert done.code == 0, done
        finished(controller)


def finished(controller: Controller) -> None:
    """Check that all runs of a bench of `CELL` have measured something."""
    bench = json.loads((controller.bench / "bench.json").read_text())
    manifests = [
        json.loads((controller.bench / run / "manifest.json").read_text()) for run in bench["runs"]
    ]
    states = [manifest["outcome"]["state"] for manifest in manifests]
    assert states == ["finished"] * 2, states


@row(
    "K2",
    "pods of a job: the controller is killed at a random instant, then resumed or cancelled",
    short=False,
    limit_s=400,
    skip=no_cluster,
)
def killed_and_resumed(trial: Trial) -> None:
    with cluster(trial) as controller:
        process = controller.start("bench", *CELL, *JOB)
        time.sleep(trial.random.uniform(0.0, BENCH_S))
        process.kill()
        controller.end(process, 10)
        if list(controller.project.glob("runs/*/bench.json")):
            done = controller.orch("resume", timeout_s=200)
            assert done.code == 0, done
            finished(controller)
            return
        for bench in controller.submitted:
            done = controller.orch("cancel", bench, timeout_s=90)
            assert done.code == 0, done
        trial.notes.append("killed before there was a bench")


@row(
    "K3", "pods: a kubectl is killed in mid-run, or all", short=False, limit_s=240, skip=no_cluster
)
def killed_kubectl(trial: Trial) -> None:
    with cluster(trial) as controller:
        process = running(controller, *trial.random.choice((THERE, JOB)))
        own = descendants([process.pid], snapshot())
        victims = sorted(pid for pid in own if b"exec\0--stdin" in cmdline(pid))
        assert victims
        if trial.random.random() < 0.5:
            victims = [trial.random.choice(victims)]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

        def reattached() -> bool:
            events = [event["event"] for event in controller.events()]
            return events.count("reattached") >= len(victims)

        begin = time.monotonic()
        kubectl(controller, "get", "pods")
        is_slow = 2 * (time.monotonic() - begin) > SILENCE_S / 2
        judge.wait_for(
            lambda: reattached() or is_slow and process.poll() is not None,
            60,
            lambda: f"they are not reattached: {controller.events()}",
        )
        if is_back := reattached():
            process.send_signal(signal.SIGINT)
        done = controller.end(process, 60)
        assert done.code == (130 if is_back else 3), done
        if not is_back or "orch collect" in done.err:
            assert is_back or "no sign of life" in done.err, done
            judge.wait_until_clean(controller.lab, IDLE_S)
            assert controller.orch("collect", timeout_s=90).code == 0
            trial.notes.append("silent for too long, as kubectl takes its time here")


@row(
    "K4",
    "pods: the API server is killed, and back after 10 s",
    short=False,
    limit_s=400,
    skip=no_cluster,
)
def server_back(trial: Trial) -> None:
    with cluster(trial) as controller:
        process = running(controller, *CELL, *JOB)
        kill_server(controller)
        time.sleep(10.0)
        serve_again(controller)
        done = ended(trial, controller, process)
        assert done.code == 3 and "orch resume" in done.out, done
        assert "is deleted, and none of its pods is left" in done.err, done
        again = controller.orch("resume", timeout_s=200)
        assert again.code == 0, again
        finished(controller)


@row(
    "K5",
    "pods: the API server is killed, never to come back",
    short=False,
    limit_s=400,
    skip=no_cluster,
)
def server_gone(trial: Trial) -> None:
    with cluster(trial) as controller:
        words = trial.random.choice((THERE, JOB))
        process = running(controller, *words, "--lease", str(LEASE_S))
        kill_server(controller)
        trial.detected_s = judge.wait_until_clean(controller.lab, IDLE_S)
        done = controller.end(process, 200)
        assert done.code == 3 and "no sign of life" in done.err, done
        assert "does not answer" in done.err and "orch collect" in done.err, done
        if words is JOB:
            assert f"orch cancel {controller.bench.name}" in done.err, done
        serve_again(controller)  # for the judge, who asks it what is left
        done = controller.orch("collect", timeout_s=90)
        assert done.code == 0, done
        if words is JOB:
            assert controller.orch("cancel", controller.bench.name, timeout_s=90).code == 0


@row(
    "K6",
    "pods: a pod is deleted, evicted, or out of memory on its node",
    limit_s=240,
    skip=no_cluster,
)
def pod_taken(trial: Trial) -> None:
    victim = ""
    with cluster(trial, without=lambda: victim) as controller:
        process = running(controller, *JOB)
        victim = f"orch-{controller.bench.name}-{trial.random.choice('01')}"
        pod = pods(controller)[victim]["metadata"]["name"]
        how = trial.random.choice(("deleted", "evicted", "out of memory"))
        words = take(controller, pod, how)
        done = ended(trial, controller, process)
        assert done.code == 3 and f"pod {pod} in namespace default" in done.err, done
        assert words in done.err, done


def take(controller: Controller, pod: str, how: str) -> str:
    """Take a pod away, and return the reason that Kubernetes has for it."""
    path = f"/api/v1/namespaces/default/pods/{pod}"
    if how == "deleted":
        kubectl(controller, "delete", "--raw", path)
        return "Killing, Stopping container main"
    if how == "evicted":
        body = controller.project / "body.json"
        body.write_text("{}")
        kubectl(controller, "create", "--raw", f"{path}/eviction", "-f", str(body))
        return "Eviction API: evicting"
    status = {"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"}
    patch = json.dumps({"status": status})
    kubectl(controller, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch)
    return "is Failed: Evicted, low on resource: memory"


@row(
    "K7", "pods: the node of a pod is cut off in mid-run", short=False, limit_s=300, skip=no_cluster
)
def node_cut(trial: Trial) -> None:
    with cluster(trial) as controller:
        process = running(controller, *THERE, "--lease", str(LEASE_S))
        victim = trial.random.choice(names(controller))
        faults.link(controller.lab, victim, up=False)
        begin = time.monotonic()
        judge.wait_for(lambda: not ranks(controller, besides=victim), 60, "the other node runs on")
        trial.detected_s = time.monotonic() - begin
        assert judge.in_time(trial.detected_s, DETECT_S + GRACE_S + 2.0), trial.detected_s
        done = controller.end(process, 120)
        assert done.code == 3 and f"{victim}: no sign of life" in done.err, done
        judge.wait_until_clean(controller.lab, IDLE_S)
        faults.link(controller.lab, victim, up=True)
        done = controller.orch("collect", timeout_s=90)
        assert done.code == 0, done


def ranks(controller: Controller, *, besides: str = "") -> bool:
    """Claim that a node besides one has a process of a run."""
    return any(one.environ_run_id and one.node != besides for one in judge.ours(controller.lab))


@row("K8", "pods: Ctrl-C in mid-run", short=False, limit_s=240, skip=no_cluster)
def interrupted(trial: Trial) -> None:
    with cluster(trial) as controller:
        process = running(controller, *trial.random.choice((THERE, JOB)))
        process.send_signal(signal.SIGINT)
        assert ended(trial, controller, process).code == 130


@row(
    "K9",
    "pods: Ctrl-C, orch cancel, or kill -9 and orch cancel, while the pods wait",
    limit_s=240,
    skip=no_cluster,
)
def given_up(trial: Trial) -> None:
    with cluster(trial) as controller:
        process = controller.start(
            "bench", *QUICK, "--nodes", "2", "--kubernetes", "image=lab,cpus=9"
        )
        judge.wait_for(lambda: len(pods(controller)) == 2, 90, "no pods wait")
        (bench,) = controller.submitted
        number = trial.random.choice((signal.SIGINT, signal.SIGKILL, 0))
        if number:
            process.send_signal(number)
        if number == signal.SIGKILL:
            controller.end(process, 10)
        if number != signal.SIGINT:
            assert controller.orch("cancel", bench, timeout_s=90).code == 0
        assert ended(trial, controller, process).code in (130, 143, -9)


@row(
    "K10",
    "pods: a queue never admits the job, no machine has room, or the image cannot be pulled",
    limit_s=240,
    skip=no_cluster,
)
def never_there(trial: Trial) -> None:
    wanted, words = trial.random.choice((
        ("image=lab,cpus=1,queue=full", "the queue full has not admitted it"),
        ("image=lab,cpus=9", "0/2 nodes are available: 2 Insufficient cpu"),
        ("image=no-such,cpus=1", "ImagePullBackOff, Back-off pulling"),
    ))  # fmt: skip
    with cluster(trial) as controller:
        process = controller.start(
            "bench", *QUICK, "--nodes", "2", "--kubernetes", f"{wanted},wait=2s"
        )
        done = ended(trial, controller, process)
        assert done.code == 1 and "0 of 2 pods run, without index 0, 1;" in done.err, done
        assert words in done.err, done
        assert not list(controller.project.glob("runs/*"))


@row(
    "K11",
    "pods: two benches want the same machines, and each gets half of them",
    short=False,
    limit_s=400,
    skip=no_cluster,
)
def two_benches(trial: Trial) -> None:
    with cluster(trial) as controller:
        first = running(controller, *JOB)
        words = ("bench", *QUICK, "--nodes", "2", "--kubernetes")
        rivals = [controller.start(*words, "image=lab,cpus=1") for _ in range(2)]
        judge.wait_for(lambda: len(pods(controller)) == 6, 90, "they do not wait")
        first.send_signal(signal.SIGINT)
        over = controller.end(first, 60)
        assert over.code == 130, over
        done = [controller.end(process, 200) for process in rivals]
        assert [one.code for one in done] == [0, 0], done
        gave_way = sum("gives way to" in one.err for one in done)
        trial.notes.append(f"{gave_way} gave way")
