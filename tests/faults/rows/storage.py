"""Files on their way and at their end: full disks, cut and altered transfers, logs that change,
names that come twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path

from orchestrator.plan.folders import open_framework
from orchestrator.plan.framework import run_path
from tests.faults.rows.common import GRACE_S, QUICK, running
from tests.faults.rows.setup import inventory, messages, on_node, refused, server
from tests.faults.rows.workload import release, workload
from tests.faults.suite import Trial, row
from tests.support import faults, judge


def temporaries(trial: Trial, node: str) -> list[str]:
    """Return what a transfer to the small disk of a node has left there under a temporary name."""
    return on_node(trial.lab, node, "find ~/small -name '*.tmp'").split()


@row("S1", "a node's disk is full at push, and in mid-run", limit_s=120)
def full_node(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    on_node(
        trial.lab,
        node,
        "mkdir -p -m 700 ~/small && mount -t tmpfs -o size=36k,mode=0700 none ~/small",
    )
    try:
        small = inventory(controller, variables={"workdir": "~/small"})
        text = refused(controller, "deploy", "-f", "simulated", "--hosts", small, code=1)
        assert text.startswith(f"orch: {node}: ") and "No space left on device" in text, text
        assert "needed " in text and "free " in text and "/root/small/payload/" in text, text
        assert not temporaries(trial, node)
        whole = open_framework("simulated").payload_digests
        for line in on_node(
            trial.lab, node, "find ~/small/payload -type f -exec sha256sum {} +"
        ).splitlines():
            digest, path = line.split()
            assert whole[Path(path).name] == digest, f"{path} is there in part"
        text = refused(controller, "bench", *QUICK, "--nodes", "4", "--hosts", small, code=1)
        # Where the files left no byte free, not even a link can be made.
        found = (
            "disk: expected 256 MiB",
            "disk: expected a writable work directory, found /root/small: No space left on device",
        )
        assert any(f"{node}: {words}" in text for words in found), text
    finally:
        on_node(trial.lab, node, "umount -l ~/small")
        for name in trial.nodes:
            on_node(trial.lab, name, "rm -rf ~/small")
    _filled_in_mid_run(trial, node)


def _filled_in_mid_run(trial: Trial, node: str) -> None:
    """The supervisor has its own disk: what it wrote before is kept, and nothing that ends there is
    a result.
    """
    controller, lab = trial.controller, trial.lab
    on_node(
        lab,
        node,
        "mkdir -p -m 700 ~/.orch-node && mount -t tmpfs -o size=300m,mode=0700 none ~/.orch-node",
    )
    try:
        process = running(controller, "--lease", "5")
        # All at once: no step of the run finds a disk that is nearly full. Most of it first, in one
        # piece that a log which grows meanwhile does not make too large; then what is left, and what
        # the run gives back meanwhile.
        on_node(
            lab,
            node,
            "cd ~/.orch-node; free() { df --output=avail -B1 . | tail -1; }; exec 2>/dev/null; "
            "fallocate -l $(($(free) - 65536)) filler; "
            "until head -c 1m /dev/zero >> filler; [ $(free) = 0 ]; do :; done",
        )
        done = controller.end(process, 60)
        assert done.code == 1, done
        assert f"{node}: " in messages(done) and "No space left on device" in messages(done), done
        judge.wait_until_clean(lab, 5.0 + 2.0 + GRACE_S)
        rows = controller.orch("summarize", "--json").json["rows"]
        assert [(entry["n"], entry["failed"], entry["median"]) for entry in rows] == [
            (0, 1, None)
        ], rows
        on_node(lab, node, "rm ~/.orch-node/filler")
        controller.orch("collect")
        for there in on_node(
            lab, node, "cd ~/.orch-node/nodes/*/runs/*/logs && sha256sum *"
        ).splitlines():
            digest, name = there.split()
            here = controller.runs[-1] / "logs" / node / name
            assert here.is_file() and judge.sha256(here) == digest, (
                f"{name} is not here as it is there"
            )
    finally:
        on_node(lab, node, "umount -l ~/.orch-node")


@row("S2", "a transfer is cut, or its controller killed, both ways", limit_s=180, short=False)
def cut_transfers(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    words = workload(
        controller, "# " + "x" * 3_000_000 + "\ndef start():\n    print('y' * 3_000_000)\n"
    )
    store = trial.lab.node(node).home / ".orch-node" / "payload"
    shutil.rmtree(store, ignore_errors=True)
    deploy = ("deploy", "-f", "odd", "--templates", str(controller.project / "templates"))
    for kill in (True, False):
        faults.rate(trial.lab, node, "8mbit")
        process = controller.start(*deploy)
        # A part of the size that chance wants has arrived under its temporary name.
        size = trial.random.randrange(100_000, 2_000_000)
        judge.wait_for(partial(_arrived, store, size), 30, "nothing arrives")
        if kill:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(judge.LIMIT_S)
        else:
            faults.link(trial.lab, node, up=False)
            done = controller.end(process, 90)
            assert done.code == 3 and node in messages(done), done
            faults.link(trial.lab, node, up=True)
        faults.rate(trial.lab, node, None)
        assert not list(store.glob("*/odd.py")), "half a file has its final name"
        # The node's kernel may not hear for long of a controller that hung up while there was no
        # line.
        judge.wait_for(
            lambda: not judge.ours(trial.lab), 65, lambda: f"left: {judge.ours(trial.lab)}"
        )
    judge.wait_for(lambda: controller.orch(*deploy).code == 0, 30, "the node does not answer again")
    whole = controller.project / "templates" / "odd" / "odd.py"
    assert [judge.sha256(path) for path in store.glob("*/odd.py")] == [judge.sha256(whole)]
    assert not _parts(store), "temporary files were left"
    _cut_pull(trial, words, node)


def _arrived(store: Path, size: int) -> bool:
    return any(path.stat().st_size > size for path in _parts(store))


def _parts(store: Path) -> list[Path]:
    return list(store.glob("*/odd.py.*"))


def _cut_pull(trial: Trial, words: tuple[str, ...], node: str) -> None:
    """The run ends; its logs come home over a slow line; the controller is killed half-way; `orch
    collect` brings the rest.
    """
    controller = trial.controller
    process = controller.start(*words, "--nodes", "4", "--lease", "5", "--set", "pause_ms=200")
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 30, "no run was planned"
    )
    controller.wait_for_step(1)
    faults.rate(trial.lab, node, "100kbit")
    home = controller.runs[-1] / "logs" / node
    judge.wait_for(
        lambda: (controller.node_run(node) / "exit.json").exists(), 30, "it does not end"
    )
    time.sleep(trial.random.uniform(0.1, 1.0))
    process.kill()
    process.wait(judge.LIMIT_S)
    faults.rate(trial.lab, node, None)
    assert not (home / "exit.json").exists() or judge.sha256(home / "exit.json")
    judge.wait_until_clean(trial.lab, 5.0 + 3.0)
    done = controller.orch("collect")
    assert done.code == 0, done
    trial.keep()
    assert not list(home.glob("*.refused")), "bytes had to be sent again that were here"


FLIP = """#!{python}
import os, sys
rename = os.rename
def flipped(source, target, **more):
    rename(source, target, **more)
    counter = os.path.expanduser("~/flips")
    left = int(open(counter).read())
    if target.endswith("/train_simulated.py") and left:
        open(counter, "w").write(str(left - 1))
        with open(target, "r+b") as file:
            file.seek(1000); byte = file.read(1)[0]; file.seek(1000); file.write(bytes([byte ^ 4]))
os.rename = flipped
code = sys.argv[sys.argv.index("-c") + 1]
sys.argv = ["-c", *sys.argv[sys.argv.index("-c") + 2:]]
exec(code)
"""


@row("S3", "bytes are altered on their way to a node's disk")
def altered_bytes(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    home = trial.lab.node(node).home
    wrapper = home / "flipping"
    wrapper.write_text(FLIP.format(python=trial.lab.python))
    wrapper.chmod(0o755)
    hosts = {machine.name: {"address": machine.address} for machine in trial.lab.nodes}
    hosts[node] |= {"vars": {"runner_python": "/root/flipping"}}
    own = inventory(controller, hosts)
    for flips, code in ((1, 0), (100, 3)):
        shutil.rmtree(home / ".orch-node", ignore_errors=True)
        (home / "flips").write_text(str(flips))
        done = controller.orch("deploy", "-f", "simulated", "--hosts", own)
        assert done.code == code, done
        there = [path for path in home.glob(".orch-node/payload/*/train_simulated.py")]
        if code:
            text = messages(done)
            assert (
                text.startswith(f"orch: {node}: ")
                and "expected SHA-256" in text
                and "train_simulated.py" in text
            ), text
            assert not there, "an altered file has its final name"
            assert int((home / "flips").read_text()) == flips - 2, "expected one retry"
        else:
            whole = open_framework("simulated").payload_digests["train_simulated.py"]
            assert [judge.sha256(path) for path in there] == [whole]
    refused(controller, "bench", *QUICK, "--nodes", "4", "--hosts", own, code=3)
    assert judge.ours(trial.lab) == []
    for name in ("flips", "flipping"):
        (home / name).unlink()


GROWING = """
def step(number):
    if number == STEPS:
        hold()
    print("x" * 20_000, flush=True)
    sys.stderr.write("e" * 5_000)
"""


@row("S4", "a log grows, shrinks, or is replaced while it is pulled", limit_s=120)
def changing_logs(trial: Trial) -> None:
    controller = trial.controller
    grows, shrinks, replaced = trial.random.sample(trial.nodes, 3)
    words = workload(controller, GROWING)
    process = controller.start(
        *words, "--nodes", "4", "--steps", "150", "--set", "pause_ms=60", "--timeout", "600"
    )
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 30, "no run was planned"
    )
    controller.wait_for_step(5)
    other = trial.rival()
    shutil.copytree(controller.project / "runs", other.project / "runs")
    shutil.copytree(controller.project / "templates", other.project / "templates")
    pulled = other.orch("collect")
    assert pulled.code == 4 and "still running on the node" in pulled.out, pulled
    early = {}
    for node in (grows, shrinks, replaced):
        log = next((other.runs[-1] / "logs" / node).glob("rank-*.out"))
        early[node] = log, log.read_bytes()
        assert log.stat().st_size > 20_000, f"{node}: nothing was pulled"
    for node, change in (
        (shrinks, "truncate -s 1000 {0}"),
        (replaced, "mv {0} {0}.old && head -c 900 /dev/urandom > {0}"),
    ):
        folder = f"~/.orch-node/{run_path(node, controller.runs[-1].name)}/logs"
        on_node(trial.lab, node, f"cd {folder} && {change.format(early[node][0].name)}")
    release(controller, trial.nodes)
    done = controller.end(process, 60)
    assert done.code in (0, 4), done
    last = other.orch("collect")
    assert last.code == 0, last
    trial.keep(controller=other)
    for node, (log, before) in early.items():
        if node == grows:
            assert log.read_bytes().startswith(before) and len(log.read_bytes()) > len(before)
            continue
        kept = log.with_name(f"{log.name}.refused")
        assert kept.is_file() and kept.read_bytes()[: len(before)] == before, (
            f"{node}: the bytes that came first are gone"
        )


@row(
    "S5",
    "no file transfer subsystem, a read-only home, a temporary folder without programs",
    limit_s=120,
)
def odd_mounts(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    address = trial.lab.node(node).address
    with server(trial.lab, node, without="Subsystem") as other:
        settings = {
            "port": other.port,
            "host_keys": "accept-new",
            "known_hosts": str(controller.project / "known"),
        }
        bare = inventory(controller, {"one": {"address": address}}, ssh=settings)
        done = controller.orch("bench", *QUICK, "--nodes", "1", "--hosts", bare)
        assert done.code == 0 and "subsystem request" not in other.log, done
    on_node(
        trial.lab, node, "rm -rf ~/.orch-node && mount --rbind ~ ~ && mount -o remount,bind,ro ~"
    )
    try:
        for command in (("deploy", "-f", "simulated"), ("bench", *QUICK, "--nodes", "4")):
            text = refused(controller, *command, code=1)
            assert (
                f"{node}: " in text
                and "/root/.orch-node" in text
                and "Read-only file system" in text
            ), text
            assert "vars.workdir" in text, text
        on_node(
            trial.lab,
            node,
            "mkdir -p /run/elsewhere && mount -t tmpfs -o size=400m,mode=0700,noexec none /run/elsewhere",
        )
        on_node(trial.lab, node, "mount -o remount,noexec /tmp")
        elsewhere = inventory(
            controller, variables={"workdir": "/run/elsewhere/work"}, name="elsewhere.yaml"
        )
        done = controller.orch("bench", *QUICK, "--nodes", "4", "--hosts", elsewhere)
        assert done.code == 0, done
    finally:
        on_node(
            trial.lab,
            node,
            "umount -l /run/elsewhere; mount -o remount,exec /tmp; umount -l ~",
            check=False,
        )


@row("S6", "equal host names, and two benches in the same second", limit_s=120)
def names_twice(trial: Trial) -> None:
    controller, lab = trial.controller, trial.lab
    first, second = trial.random.sample(trial.nodes, 2)
    for node in (first, second):
        on_node(lab, node, "hostname twin")
    try:
        done = controller.orch("bench", *QUICK, "--nodes", "4")
        assert done.code == 0, done
        assert sorted(path.name for path in (controller.runs[-1] / "logs").iterdir()) == sorted(
            trial.nodes
        )
        trial.keep()
        before = {
            path: judge.sha256(path)
            for path in controller.project.rglob("runs/**/*")
            if path.is_file()
        }
        alone = {
            node: inventory(
                controller, {node: {"address": lab.node(node).address}}, name=f"{node}.yaml"
            )
            for node in trial.nodes
        }
        racing = [
            controller.start("bench", *QUICK, "--nodes", "1", "--hosts", path)
            for path in alone.values()
        ]
        ended = [controller.end(process, 60) for process in racing]
        assert [done.code for done in ended] == [0] * 4, ended
        benches = [path.parent for path in controller.project.glob("runs/*/bench.json")]
        assert len(benches) == 5 and all(
            len(list(bench.glob("*/manifest.json"))) == 1 for bench in benches
        ), benches
        assert before == {path: judge.sha256(path) for path in before}, "what was here has changed"
    finally:
        for node in (first, second):
            on_node(lab, node, f"hostname {node}")
