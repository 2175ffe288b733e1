"""What the controller keeps: damaged, without room, without descriptors and threads."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.record.rundir import BenchDir
from orchestrator.record.sealed import KEY
from orchestrator.results.read import read_run
from tests.e2e.rig import ORCH, Controller
from tests.faults.rows.common import GRACE_S, QUICK, running
from tests.faults.rows.setup import messages, refused
from tests.faults.suite import Trial, row
from tests.support import judge

Reading = Callable[[], Any]


@row(
    "C5",
    "damaged state: cut at every byte, bits flipped, empty, of a newer version",
    trials=3,
    limit_s=400,
)
def damaged_state(trial: Trial) -> None:
    controller = trial.controller
    done = controller.orch("bench", *QUICK, "--nodes", "1")
    assert done.code == 0, done
    bench = BenchDir(controller.bench)
    run = bench.runs()[0]

    def result() -> Any:
        read_back = read_run(run)
        if read_back.error:
            raise read_back.error
        return read_back

    readings: dict[Path, Reading] = {
        bench.path / "bench.json": lambda: BenchDir.open(bench.path).record(),
        bench.path / "events.jsonl": bench.events,
        run.path / "manifest.json": result,
        run.path / "logs" / "node1" / "exit.json": result,
    }
    for path, read in readings.items():
        before = path.read_bytes()
        whole = read()
        try:
            for damage, offset in _damages(before, trial):
                path.write_bytes(damage)
                _judge_reading(path, read, whole, before, damage, offset)
        finally:
            path.write_bytes(before)
        assert read() == whole
    _say_it(controller, run.path / "manifest.json", trial.random)


def _damages(data: bytes, trial: Trial) -> Iterator[tuple[bytes, int]]:
    """Yield damaged versions of a file and where each is damaged: all lengths, a flipped bit in
    every byte.
    """
    offsets = range(len(data)) if trial.full else sorted(trial.random.sample(range(len(data)), 150))
    yield b"", 0
    yield from ((data[:offset], offset) for offset in offsets)
    for offset in offsets:
        yield (
            data[:offset]
            + bytes([data[offset] ^ 1 << trial.random.randrange(8)])
            + data[offset + 1 :],
            offset,
        )
    if b'"schema": 1' in data:
        yield data.replace(b'"schema": 1', b'"schema": 99', 1), data.index(b'"schema": 1')


def _judge_reading(
    path: Path, read: Reading, whole: Any, before: bytes, damage: bytes, offset: int
) -> None:
    """Assert that damage is an error that names the file, or that what is read is what was written."""
    try:
        read_back = read()
    except OrchError as error:
        assert error.kind in ("state_damaged", "result_invalid", "rank_failed"), (
            f"{path.name} at {offset}: {error!r}"
        )
        assert path.name in f"{error.where} {error}" or error.kind != "state_damaged", (
            f"{path.name} at {offset}: {error}"
        )
        return
    if _only_of(read_back, whole) == whole:
        return
    if path.name == "events.jsonl" and (len(damage) < len(before) or not damage.endswith(b"\n")):
        # A torn last line was never acknowledged.
        assert read_back == whole[: len(read_back)], f"cut at {offset}: other events"
        assert len(read_back) == damage.count(b"\n"), (
            f"cut at {offset}: {len(read_back)} events of {damage.count(10)} whole lines"
        )
        return
    if path.name == "exit.json":
        # The node wrote it. What a result rests on in it is checked against the logs, so the
        # numbers are the same.
        assert read_back.throughput == whole.throughput, f"{path.name} at {offset}: other numbers"
        return
    assert KEY.encode() not in before, (
        f"{path.name} at {offset}: read as if whole: {_context(damage, offset)}"
    )


def _only_of(read_back: Any, whole: Any) -> Any:
    """Return what was read without keys that were never written: one is there where a flip hit the
    name of the seal.
    """
    if isinstance(whole, dict) and isinstance(read_back, dict):
        return {name: value for name, value in read_back.items() if name in whole}
    if isinstance(whole, list) and isinstance(read_back, list) and len(read_back) == len(whole):
        return [_only_of(part, other) for part, other in zip(read_back, whole, strict=True)]
    return read_back


def _context(data: bytes, offset: int) -> bytes:
    return data[max(0, offset - 30) : offset + 30]


def _say_it(controller: Controller, manifest: Path, chance: random.Random) -> None:
    """The command itself: the file and the offset are named, other runs are reported, nothing is a
    traceback.
    """
    before = manifest.read_bytes()
    offset = chance.randrange(1, len(before) - 2)
    for damage, words in (
        (before[:offset], "at byte"),
        (b"", "at byte 0"),
        (before.replace(b": 1,", b": 99,", 1), "schema 1"),
    ):
        manifest.write_bytes(damage)
        done = controller.orch("summarize", "--json")
        text = done.err + done.out
        assert "Traceback" not in text and "manifest.json" in text and words in text, done
    bench = manifest.parents[1] / "bench.json"
    kept = bench.read_bytes()
    bench.write_bytes(kept[: len(kept) // 2])
    for command in ("summarize", "collect"):
        text = refused(controller, command, code=4)
        assert "bench.json" in text and re.search(r"at byte [0-9]+", text), text
    bench.write_bytes(kept)
    manifest.write_bytes(before)


@contextmanager
def small_disk(controller: Controller, size: str) -> Iterator[Controller]:
    """Give a controller whose runs lie on a small disk of its own, which only a private mount
    namespace has.
    """
    runs = controller.project / "runs"
    runs.mkdir(mode=0o700, exist_ok=True)
    script = f"mount -t tmpfs -o size={size},mode=0700 none {shlex.quote(str(runs))} && echo on && exec sleep 1000"
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == b"on\n", (
                "no mount namespace can be made here"
            )
            project = Path(f"/proc/{holder.pid}/root{controller.project}")
            enter = (
                "nsenter",
                f"--mount=/proc/{holder.pid}/ns/mnt",
                "--",
                "env",
                "-C",
                str(controller.project),
            )
            yield Controller(
                controller.lab, project, program=(*enter, *ORCH), started=controller.started
            )
        finally:
            holder.kill()


def fill(folder: Path, leave: int = 0) -> Path:
    """Fill the disk that a folder is on, but for so many bytes; return the file that does it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            pass
        stream.truncate(max(0, stream.tell() - leave))
    return filler


def ended_by_the_disk(
    trial: Trial,
    controller: Controller,
    process: subprocess.Popen[str],
    complaint: str,
    *words: str,
) -> None:
    """Check that the command says so, the nodes end by themselves, and collecting says so too."""
    done = controller.end(process, 60)
    text = messages(done)
    assert done.code == 4 and all(word in text for word in (complaint, "/runs/", *words)), done
    judge.wait_until_clean(trial.lab, 5.0 + 2.0 + GRACE_S)
    again = controller.orch("collect")
    assert again.code == 4 and complaint in messages(again), again


@row("C6", "the controller's disk is full in mid-run", limit_s=120)
def full_disk(trial: Trial) -> None:
    with small_disk(trial.controller, "4m") as controller:
        text = refused(
            controller, "bench", *QUICK, "--nodes", "4", "--repeats", "500", code=2, within_s=10
        )
        assert (
            "the plan of 500 runs on up to 4 hosts needs 126 MiB, but only 4 MiB are free" in text
        ), text
        assert not list((controller.project / "runs").iterdir())
        process = running(controller, "--steps", "40", "--lease", "5")
        filler = fill(controller.project / "runs", leave=trial.random.choice((0, 0, 100, 2000)))
        ended_by_the_disk(trial, controller, process, "no space on the controller's disk", "free")
        filler.unlink()
        assert controller.orch("collect").code in (0, 4)
        trial.keep(controller=controller)
        assert controller.orch("collect").code == 0


@row("C8", "the controller's file system becomes read-only in mid-run", limit_s=120)
def read_only_disk(trial: Trial) -> None:
    """As after an error of its disk. Hosts have been contacted, so this is no bad input, and the
    run ends on its nodes.
    """
    with small_disk(trial.controller, "4m") as controller:
        process = running(controller, "--steps", "40", "--lease", "5")
        # The folder once more, read-only, on top of itself: a mount that has files open for writing
        # cannot become read-only.
        script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
        nsenter, folder = controller.program[:3], str(trial.controller.project / "runs")
        subprocess.run([*nsenter, "sh", "-c", script, folder], check=True, timeout=judge.LIMIT_S)
        ended_by_the_disk(trial, controller, process, "Read-only file system", "orch resume")
        subprocess.run([*nsenter, "umount", "--lazy", folder], check=True, timeout=judge.LIMIT_S)
        assert controller.orch("collect").code == 0
        trial.keep(controller=controller)


def _no_group() -> str:
    return "" if Path("/sys/fs/cgroup/pids/cgroup.procs").exists() else "no control group for pids"


@row(
    "C7",
    "few descriptors, few threads, and 200 connections that fail",
    trials=5,
    limit_s=180,
    skip=_no_group,
)
def few_descriptors(trial: Trial) -> None:
    controller = trial.controller
    controller.program = ("prlimit", "--nofile=64:64", *ORCH)
    done = controller.orch("bench", *QUICK, "--nodes", "4")
    assert done.code == 0, done
    controller.program = ("prlimit", "--nofile=40:40", *ORCH)
    text = refused(controller, "bench", *QUICK, "--nodes", "4", code=2, within_s=10)
    assert (
        "reaching 4 hosts needs up to 64 open files, but this process may open only 40" in text
    ), text
    assert "ulimit -n 64" in text, text
    controller.program = ORCH
    with few_tasks(trial, 12) as program:
        controller.program = program
        text = refused(controller, "bench", *QUICK, "--nodes", "4", code=2, within_s=10)
        assert (
            "reaching 4 hosts needs up to 18 further threads, but the limit of 12 tasks" in text
        ), text
    controller.program = ORCH
    assert judge.ours(trial.lab) == []
    _no_leak(trial)


@contextmanager
def few_tasks(trial: Trial, room: int) -> Iterator[tuple[str, ...]]:
    """Give the beginning of an argv under which a program and its children may be so many threads
    in all.
    """
    group = Path(f"/sys/fs/cgroup/pids/orch-lab-{trial.lab.marker}-few")
    group.mkdir()
    try:
        (group / "pids.max").write_text(str(room))
        yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *ORCH)
    finally:
        judge.wait_for(
            lambda: not (group / "cgroup.procs").read_text(), 10, "the group keeps processes"
        )
        group.rmdir()


FAILING = """
import os, sys, threading, time
from pathlib import Path
from orchestrator.nodes.cluster import Cluster
from orchestrator.inventory import NO_SECRETS
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport import Trust
address, config, key, rounds = sys.argv[1:]
settings = dict(config=config, key=key, known_hosts="/dev/null", connect_timeout_s=5)
shut = [Host(f"shut{n}", address, ssh=SshSettings(port=2300 + n, **settings)) for n in range(5)]
stranger = [Host(f"stranger{n}", address, ssh=SshSettings(port=22, **settings)) for n in range(5)]
def count():
    return len(os.listdir("/proc/self/fd")), threading.active_count()
def fail():
    with Cluster(shut + stranger, Trust(Path("/nonexistent/known")), NO_SECRETS) as cluster:
        errors = cluster.open_what_answers()
        assert len(errors) == 10, errors
fail()
before = count()
for _ in range(int(rounds)):
    fail()
time.sleep(0.5)
print(before, count())
"""


def _no_leak(trial: Trial) -> None:
    """Half of the connections are refused, half are not trusted: none may leave a descriptor or a
    thread behind.
    """
    lab = trial.lab
    address, rounds = (
        lab.node(trial.random.choice(trial.nodes)).address,
        "20" if trial.full else "4",
    )
    words = (FAILING, address, str(lab.ssh_config), str(lab.directory / "id_ed25519"), rounds)
    done = trial.controller.end(trial.controller.start(*words, program=(sys.executable, "-c")), 120)
    assert done.code == 0, done
    before, after = re.findall(r"\(([0-9]+, [0-9]+)\)", done.out)
    assert before == after, (
        f"descriptors and threads: {before} before, {after} after 200 failed connections"
    )
