"""Break benches in pods of a real Kubernetes: ``trials.py FOLDER [-n TRIALS] [CASE…]``.

FOLDER is that of `up.sh`, which runs. After each trial no pod of a job may be left, no job, no
process of a run on this machine, no kubectl, and every byte of the pods' logs has come home.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

IMAGE = "image=localhost/orch/node:1,cpus=1"
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "one"},
    "spec": {"hard": {"pods": "1"}},
}
SHORT = ("bench", "resnet50", "-f", "simulated", "--nodes", "2", "--no-baseline", "--repeats", "2", "--steps", "60",
         "--warmup-steps", "5", "--set", "compute_ms=20", "--set", "gradient_mb=0.1")  # fmt: skip
LONG = (*SHORT, "--steps", "9000", "--lease", "5")
LIMIT_S = 240.0
HOMES = "root/root/.orch-node/nodes"
"""Where a pod keeps its runs, as a process in it sees its root."""


def processes() -> Iterator[tuple[Path, str, bytes]]:
    """Yield every process of this machine with its environment and its arguments."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().decode(errors="replace")
            yield folder, environment, (folder / "cmdline").read_bytes()
        except OSError:
            continue


class LogKeeper(threading.Thread):
    """Holds the logs of runs open from outside of their pods, so that they can be read later."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.files: dict[tuple[str, str, str], BinaryIO] = {}

    def run(self) -> None:
        """Open what is new until it is over."""
        while not self.over.wait(0.2):
            for folder, environment, _ in processes():
                if "ORCH_RUN_ID=" not in environment:
                    continue
                try:
                    paths = list((folder / HOMES).glob("orch-*/runs/*/logs/*"))
                    for path in paths:
                        host, _, run, _, name = path.parts[-5:]
                        if (run, host, name) not in self.files:
                            self.files[run, host, name] = path.open("rb")
                except OSError:  # it ends while it is read
                    continue

    def lost(self, project: Path, without: str) -> list[str]:
        """Return what did not come home as it was there, but for that of a host."""
        self.over.set()
        self.join()
        lost = []
        for (run, host, name), file in self.files.items():
            with file:
                there = file.read()
            if not (project / "runs" / run.partition(".")[0]).exists():
                continue  # of somebody else
            here = [path.read_bytes() for path in project.glob(f"runs/*/{run}/logs/{host}/{name}")]
            if host != without and here != [there]:
                lost.append(f"{run} {host} {name}: {list(map(len, here))} of {len(there)} bytes")
        return lost


@dataclass
class Trial:
    """One project, in which one bench is broken."""

    folder: Path
    project: Path
    without: str = ""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start orch in the project, as a user with few rights."""
        config = {"KUBECONFIG": f"{self.folder}/run/bench.conf"}
        orch = [f"{self.folder}/enter", sys.executable, "-m", "orchestrator", *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            orch, cwd=self.project, env=os.environ | config, text=True, stdout=pipe, stderr=subprocess.STDOUT
        )  # fmt: skip
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for orch, and return its exit status and what it said."""
        told = process.communicate(timeout=LIMIT_S)[0]
        return process.returncode, told

    def orch(self, *words: str) -> str:
        """Run orch to its good end, and return what it said."""
        code, told = self.end(self.start(*words))
        assert code == 0, told
        return told

    def submitted(self) -> list[str]:
        """Return the benches that have a job."""
        return [path.stem for path in self.project.glob(".orch/jobs/*.json")]

    def running(self, *words: str) -> subprocess.Popen[str]:
        """Start a bench and return once a run of it has begun."""
        process = self.start(*words)
        begin = time.monotonic()
        while not any(
            '"started"' in path.read_text() for path in self.project.glob("runs/*/events.jsonl")
        ):
            assert process.poll() is None and time.monotonic() - begin < LIMIT_S, self.end(process)
            time.sleep(0.05)
        time.sleep(random.uniform(0, 1))
        return process

    def finished(self) -> None:
        """Check that all runs of the bench have measured something."""
        (path,) = self.project.glob("runs/*/bench.json")
        for run in json.loads(path.read_text())["runs"]:
            manifest = json.loads((path.parent / run / "manifest.json").read_text())
            assert manifest["outcome"]["state"] == "finished", manifest["outcome"]

    def kubectl(self, *words: str, text: str = "") -> str:
        """Return what kubectl says to a user who may do all."""
        config = {"KUBECONFIG": f"{self.folder}/run/admin.conf"}
        command = [f"{self.folder}/enter", f"{Path(sys.executable).parent}/kubectl", *words]
        return subprocess.run(
            command, env=os.environ | config, text=True, input=text, capture_output=True, timeout=LIMIT_S, check=True
        ).stdout  # fmt: skip

    def left(self) -> list[str]:
        """Return what a bench may not leave."""
        listed = self.kubectl("get", "jobs,pods", "-o", "name").split()
        jobs = [name for name in listed if "/orch-" in name]
        records = [str(path) for path in self.project.glob(".orch/jobs/*")]
        benches = [path.name for path in self.project.glob("runs/*")]
        running = [
            command.replace(b"\0", b" ").decode(errors="replace")[:120]
            for _, environment, command in processes()
            if any(f"ORCH_RUN_ID={bench}." in environment for bench in benches)
            or f"KUBECONFIG={self.folder}/run/bench.conf" in environment
        ]
        return [*jobs, *records, *running]

    def servers(self, number: int) -> None:
        """Send a signal to the API server."""
        for folder, _, command in processes():
            if command.startswith(os.fsencode(f"{self.folder}/kube-apiserver")):
                os.kill(int(folder.name), number)


def interrupted(trial: Trial) -> str:
    """Ctrl-C in mid-run."""
    process = trial.running(*LONG, "--kubernetes", IMAGE)
    process.send_signal(signal.SIGINT)
    code, told = trial.end(process)
    assert code == 130, told
    return told


def killed(trial: Trial) -> str:
    """The controller is killed at a random instant of a run, and resumed."""
    process = trial.running(*SHORT, "--kubernetes", IMAGE)
    process.kill()
    trial.end(process)
    told = trial.orch("resume")
    trial.finished()
    return told


def cancelled(trial: Trial) -> str:
    """The controller is killed, its lease ends, and the bench is cancelled."""
    process = trial.running(*LONG, "--kubernetes", IMAGE)
    process.kill()
    trial.end(process)
    time.sleep(random.uniform(0, 10))
    (bench,) = trial.submitted()
    return trial.orch("cancel", bench)


def kubectl(trial: Trial) -> str:
    """All kubectl of a bench are killed."""
    process = trial.running(*SHORT, "--kubernetes", IMAGE)
    for folder, environment, command in processes():
        if f"KUBECONFIG={trial.folder}/" in environment and b"exec\0--stdin" in command:
            os.kill(int(folder.name), signal.SIGKILL)
    code, told = trial.end(process)
    if code:
        assert code == 3 and "no sign of life" in told, told
        time.sleep(10)
        return trial.orch("resume")
    trial.finished()
    return told


def paused(trial: Trial) -> str:
    """The API server answers nobody for 10 s."""
    process = trial.running(*SHORT, "--kubernetes", IMAGE)
    trial.servers(signal.SIGSTOP)
    time.sleep(10)
    trial.servers(signal.SIGCONT)
    code, told = trial.end(process)
    assert code in (0, 3), told
    if code:
        told = trial.orch("resume")
    trial.finished()
    return told


def taken(trial: Trial) -> str:
    """A pod is deleted or evicted in mid-run."""
    process = trial.running(*LONG, "--kubernetes", IMAGE)
    (bench,) = [path.name for path in trial.project.glob("runs/*")]
    trial.without = f"orch-{bench}-{random.choice('01')}"
    listed = trial.kubectl(
        "get", "pods", "--no-headers", "-o", "custom-columns=:metadata.name"
    ).split()
    (pod,) = [name for name in listed if name.startswith(trial.without)]
    if random.random() < 0.5:
        trial.kubectl("delete", "pod", pod, "--wait=false")
    else:
        eviction = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": "bench"},
        }
        path = f"/api/v1/namespaces/bench/pods/{pod}/eviction"
        trial.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    code, told = trial.end(process)
    assert code == 3 and f"pod {pod} in namespace bench" in told, told
    return told


def cut(trial: Trial) -> str:
    """The cable of a node is out in mid-run."""
    process = trial.running(*LONG, "--kubernetes", IMAGE)
    where = trial.kubectl(
        "get", "pods", "--no-headers", "-o", "custom-columns=:metadata.name,:spec.nodeName"
    )
    host, node = random.choice([
        (line.split()[0], line.split()[1]) for line in where.splitlines() if line.startswith("orch-")
    ])  # fmt: skip
    trial.without = host.rpartition("-")[0]
    link = [f"{trial.folder}/enter", "ip", "link", "set", node]
    subprocess.run([*link, "down"], check=True)
    try:
        time.sleep(12)
    finally:
        subprocess.run([*link, "up"], check=True)
    code, told = trial.end(process)
    assert code == 3 and "no sign of life" in told, told
    return told


def never_there(trial: Trial) -> str:
    """No machine has room, the image cannot be pulled, or a quota admits one pod."""
    wanted, words = random.choice((
        ("image=localhost/orch/node:1,cpus=9", "Insufficient cpu"),
        ("image=127.0.0.1:9/no/such:1,cpus=1", "ImagePull|ErrImage"),
        (IMAGE, "exceeded quota"),
    ))  # fmt: skip
    if "quota" in words:
        trial.kubectl("create", "--validate=false", "-f", "-", text=json.dumps(QUOTA))
    try:
        code, told = trial.end(trial.start(*SHORT, "--kubernetes", f"{wanted},wait=15s"))
    finally:
        trial.kubectl("delete", "resourcequota", "one", "--ignore-not-found")
    assert code == 1 and "of 2 pods run, without index" in told and re.search(words, told), told
    return told


def given_up(trial: Trial) -> str:
    """Ctrl-C, or kill -9 and cancel, while the pods wait."""
    process = trial.start(*SHORT, "--kubernetes", "image=localhost/orch/node:1,cpus=9")
    while not trial.submitted():
        time.sleep(0.05)
    time.sleep(random.uniform(0, 4))
    (bench,) = trial.submitted()
    if random.random() < 0.5:
        process.send_signal(signal.SIGINT)
        code, told = trial.end(process)
        assert code == 130, told
        return told
    process.kill()
    trial.end(process)
    return trial.orch("cancel", bench)


def two_benches(trial: Trial) -> str:
    """Two benches want all processors of all machines, and each has half of them."""

    def start(option: str, machines: int) -> subprocess.Popen[str]:
        process = trial.start(*SHORT, "--kubernetes", f"{option},cpus=2,nodes=4")
        columns = "custom-columns=:metadata.name,:spec.nodeName"
        placed = re.compile(r"^orch-\S+ +node", re.MULTILINE)
        while len(placed.findall(trial.kubectl("get", "pods", "-o", columns))) < machines:
            assert process.poll() is None, trial.end(process)
            time.sleep(0.5)
        return process

    template = trial.project / "pod.yaml"
    container = {"name": "main", "image": "localhost/orch/node:1"}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
    template.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}))
    taint = ("taint", "nodes", "node3", "node4", "--overwrite")
    trial.kubectl(*taint, "of=younger:NoSchedule")
    try:
        benches = [start("image=localhost/orch/node:1", 2), start(template.name, 4)]
    finally:
        trial.kubectl(*taint, "of-")
    told = [trial.end(process) for process in benches]
    assert [code for code, _ in told] == [0, 0], told
    assert ["gives way to" in text for _, text in told] == [False, True], told
    return "".join(text for _, text in told)


def secrets(trial: Trial) -> str:
    """A template with a secret and a variable: neither they nor the token of the user is seen."""
    words = ["secret-of-the-cluster", "secret-of-the-template"]
    words += [(trial.folder / "run/tokens.csv").read_text().partition(",")[0]]
    name = f"token-{time.time_ns()}"
    trial.kubectl("create", "secret", "generic", name, f"--from-literal=value={words[0]}")
    source = {"secretKeyRef": {"name": name, "key": "value"}}
    variables = [{"name": "A", "valueFrom": source}, {"name": "B", "value": words[1]}]
    container = {"name": "main", "image": "localhost/orch/node:1", "env": variables}
    template = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}}
    (trial.project / "pod.yaml").write_text(json.dumps(template))
    process = trial.start(*SHORT, "--kubernetes", "pod.yaml")
    seen = set()
    while process.poll() is None:
        seen |= {
            word for _, _, command in processes() for word in words if word.encode() in command
        }
        time.sleep(0.1)
    code, told = trial.end(process)
    trial.finished()
    (trial.project / "pod.yaml").unlink()
    kept = [path.read_bytes() for path in trial.project.rglob("*") if path.is_file()]
    seen |= {word for word in words for text in (*kept, told.encode()) if word.encode() in text}
    assert code == 0 and not seen, (code, seen, told)
    return told


CASES: dict[str, Callable[[Trial], str]] = {
    one.__name__: one
    for one in (interrupted, killed, cancelled, kubectl, paused, taken, cut, never_there, given_up, two_benches, secrets)
}  # fmt: skip


def attempt(folder: Path, name: str) -> bool:
    """Make one trial, print what it has left and lost, and return whether that was nothing. The
    project of another one is kept.
    """
    trial = Trial(folder, Path(tempfile.mkdtemp(prefix="orch-")))
    keeper = LogKeeper()
    keeper.start()
    begin = time.monotonic()
    told, wrong = "", []
    try:
        told = CASES[name](trial)
    except (AssertionError, subprocess.SubprocessError, ValueError) as error:
        wrong = f"{type(error).__name__}: {error}".splitlines()[-25:]
    finally:
        trial.servers(signal.SIGCONT)
        for process in trial.started:
            process.kill()
    took_s = time.monotonic() - begin
    while (left := trial.left()) and time.monotonic() - begin - took_s < 70:
        time.sleep(0.5)
    gone_s = time.monotonic() - begin - took_s
    lost = keeper.lost(trial.project, trial.without)
    seen = "; ".join(re.findall(r"skew .*|gives way to .*", told))
    print(
        f"{name}: {took_s:.0f} s, {gone_s:.1f} s later: left {len(left)}, lost {len(lost)}; {seen}"
    )
    if bad := [*left, *lost, *wrong]:
        (trial.project / "said.txt").write_text(told)
        print("", *bad, f"kept: {trial.project}", sep="\n    ", flush=True)
    else:
        shutil.rmtree(trial.project)
    sys.stdout.flush()
    return not bad


def main() -> None:
    """Make the trials that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("-n", type=int, default=3, dest="trials")
    asked = parser.parse_intermixed_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"no case {' '.join(unknown)}; there are {' '.join(CASES)}")
    results = [
        (name, attempt(asked.folder.resolve(), name))
        for _ in range(asked.trials)
        for name in asked.cases or CASES
    ]
    for name in dict.fromkeys(name for name, _ in results):
        good = [is_good for one, is_good in results if one == name]
        print(f"{name:12} {sum(good)} of {len(good)}")
    sys.exit(not all(is_good for _, is_good in results))


if __name__ == "__main__":
    main()
