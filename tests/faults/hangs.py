"""Hang ranks of the simulated trainer in every way, many times, and print how often the right one
was named, and how soon.

    python -m tests.faults.hangs [--trials N] [--faults stop,loop,…] [--jobs N] [--seed N] [--json FILE]
    python -m tests.faults.hangs --torch gloo|gloo-lm|nccl [--trials N] [--faults stop,nosync,…] [--jobs N]

Each trial has real supervisors, wrappers, ranks and reports; what is left out is ssh, so that many
trials run side by side: a node is a work directory of this machine with a supervisor of its own.
Ranks are broken from outside as in `rows.hangs`. With ``--torch gloo`` they train ResNet-50, with
``gloo-lm`` a small language model, whose steps are short on a busy machine too; with ``nccl`` ranks
are dealt out to the GPUs and may share one, which NCCL accepts from ranks whose `NCCL_HOSTID`
differs. `pauses` counts false alarms.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orchestrator.controller.events import Stalled
from orchestrator.controller.peer import A_NODE_FAILED
from orchestrator.controller.root_cause import with_cause
from orchestrator.errors import RunError
from orchestrator.features.hang.watch import HangWatch
from orchestrator.record import RunDir
from orchestrator.record.node_record import ExitRecord
from tests.support.machine import Line, Machine
from tests.support.trainers import FLAT

REPOSITORY = Path(__file__).parents[2]
INJECTED = Path(__file__).parent / "injected"
FREEZER = Path("/sys/fs/cgroup/freezer")
FAULTS = ("stop", "loop", "asleep", "lock", "socket", "skip", "pipe", "freeze", "kill")
LIMIT_S = 150.0
READY_STEP = 40
ORDER_S = 1.0
SCRIPT = """\
#!/bin/bash
export RANK={rank} LOCAL_RANK={gpu} NODE_RANK={rank} WORLD_SIZE={ranks} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}
export PYTHONPATH={injected} {given}
exec {python} -I -S {wrapper} -- {python} -u {remote}/{trainer}
"""
SIMULATED = "train_simulated.py --steps 1000000 --compute-ms 100 --gradient-mb 0.1 --timeout-s 600"
_TORCH = "train_pytorch.py --steps 100000 --image-size 32 --num-classes 10 --solo-steps 0 --timeout-s 1800"
_TINY = "--device cpu --dtype fp32 --batch-size 4 --seq-len 64 --steps 1000000 --solo-steps 0 --timeout-s 1800"
TRAINERS = {
    "": SIMULATED,
    "gloo": f"{_TORCH} --device cpu --dtype fp32 --batch-size 2",
    "gloo-lm": f"train_lm.py --layers 2 --width 64 --heads 4 --mlp 256 --vocab 500 {_TINY}",
    "nccl": f"{_TORCH} --device cuda --dtype fp16 --batch-size 64",
}
_OF_TORCH = "INJECT_AT_ONCE=1 OMP_NUM_THREADS=1 TORCH_FR_BUFFER_SIZE=512"
GIVEN = {
    "": "",
    "gloo": f"{_OF_TORCH} GLOO_SOCKET_IFNAME=lo",
    "gloo-lm": f"{_OF_TORCH} GLOO_SOCKET_IFNAME=lo",
    "nccl": f"{_OF_TORCH} NCCL_SOCKET_IFNAME=lo NCCL_HOSTID=node$RANK NCCL_IB_DISABLE=1",
}
ACCUSING = r"usually \S+ s: (ranks? \d+(?:, \d+)*)"
"""What names ranks in a suspicion."""
TORCH_FAULTS = ("stop", "loop", "asleep", "nosync", "barrier", "kill")


@dataclass(slots=True)
class Result:
    """One trial: who was named (None: nobody), after how many seconds, and the suspicions on the
    way.
    """

    fault: str
    nodes: int
    rank: int
    named: tuple[int, ...] | None = None
    seconds: float | None = None
    sentence: str = ""
    said: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether exactly the broken rank was named."""
        return self.named == (self.rank,)

    @property
    def is_wrong(self) -> bool:
        """Whether a healthy rank was named, at the end or in a suspicion."""
        accusing = [line for line in self.said if re.search(ACCUSING, line)]
        suspected = [
            line for line in accusing if f" s: rank {self.rank} on node{self.rank + 1} " not in line
        ]
        return bool(suspected) or (self.named is not None and not self.is_right)


class World:
    """The nodes of one run, with a rank each, and what a controller does with their events."""

    def __init__(
        self,
        scratch: Path,
        nodes: int,
        given: str,
        backend: str = "",
        scripts: Sequence[str] = (SCRIPT,),
        steps: Sequence[str] = (),
    ) -> None:
        self.machines = [
            Machine(scratch / f"node{rank + 1}", name=f"node{rank + 1}", mark=f"{scratch}/{rank}")
            for rank in range(nodes)
        ]
        self.run_id = f"run-{os.urandom(6).hex()}"
        self.lines: list[Line] = []
        self.said: list[str] = []
        self.said_at: list[float] = []
        self.failures: list[tuple[float, dict[str, Any]]] = []
        self.ended: set[int] = set()
        slots = [
            SimpleNamespace(slot=SimpleNamespace(host=machine.name, ranks=(rank,)))
            for rank, machine in enumerate(self.machines)
        ]
        stage = SimpleNamespace(journal=lambda *_, **__: None, observe=self._observe)
        self.hang = HangWatch(SimpleNamespace(run_id=self.run_id, nodes=slots), stage)  # type: ignore[arg-type]
        self.nodes, self.given, self.trainer = nodes, f"{given} {GIVEN[backend]}", TRAINERS[backend]
        self.gpus = gpus() if backend == "nccl" else 1
        self.scripts, self.steps = scripts, list(steps)
        self.peers: dict[str, Any] = {}
        self.beat_due = 0.0

    def begin(self) -> None:
        """Arm all nodes, and start them: each by its script, or all by one."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        for rank, machine in enumerate(self.machines):
            words = {
                "rank": rank,
                "ranks": self.nodes,
                "gpu": rank % self.gpus,
                "port": port,
                "injected": INJECTED,
                "given": self.given,
                "trainer": self.trainer,
            }
            words |= {
                "python": sys.executable,
                "wrapper": machine.root / "payload/x/rank_wrapper.py",
            }
            script = self.scripts[rank % len(self.scripts)].format(**words, remote=FLAT)
            files = machine.stage(self.run_id, script)
            line = machine.supervisor(self.run_id)
            self.lines.append(line)
            limits = {
                "limit_s": 36000.0,
                "first_line_s": 600.0,
                "stall_s": 600.0,
                "lease_s": 120.0,
                "node_rank": rank,
            }
            logs = {
                "progress": ["rank-0.out"] if rank == 0 else [],
                "rank_logs": ["rank-*.out"],
                "steps": self.steps,
            }
            machine.arm(line, self.run_id, files, examines=True, **limits, **logs)
            line.wait_for("armed")
        for line in self.lines:
            line.order("go", at=None)
        self.peers = {
            machine.name: SimpleNamespace(over=False, attaching=False, record=None, send=line.order)
            for machine, line in zip(self.machines, self.lines, strict=True)
        }

    def _observe(self, event: object) -> None:
        if isinstance(event, Stalled):
            self.said.append(event.words)
            self.said_at.append(time.monotonic())

    def turn(self) -> str:
        """Send beats, take events, and return the reason of a stop, empty without one."""
        now = time.monotonic()
        if now >= self.beat_due:
            self.beat_due = now + 0.5
            for rank, line in enumerate(self.lines):
                if rank not in self.ended:
                    with suppress(BrokenPipeError):  # its end has not been heard yet
                        line.order("beat", n=1)
        outputs = {
            line.process.stdout: rank
            for rank, line in enumerate(self.lines)
            if rank not in self.ended
        }
        for stream in select.select(list(outputs), [], [], 0.1)[0]:
            rank = outputs[stream]
            line = self.lines[rank]
            line.more()
            while b"\n" in line.buffer:
                self._take(rank, line.read_line())
        return self.hang.turn(time.monotonic(), self.peers)  # type: ignore[arg-type]

    def _take(self, rank: int, event: dict[str, Any]) -> None:
        if event["event"] in ("stalled", "resumed", "overdue", "examined", "collectives"):
            self.hang.take(self.machines[rank].name, {**event, "at": time.monotonic()})
        elif event["event"] == "rank" and event["code"] != 0:
            self.failures.append((time.monotonic(), event))
        elif event["event"] == "ended":
            self.ended.add(rank)
            peer = self.peers[self.machines[rank].name]
            peer.over, peer.record = True, ExitRecord.of(event["record"])

    def step(self) -> int:
        """Return the last step in the log of rank 0."""
        with suppress(OSError, IndexError, ValueError):
            return int(re.findall(r"^(?:orch step=|step )(\d+) ", self.log(0), re.M)[-1])
        return 0

    def log(self, rank: int) -> str:
        """Return what a rank has printed."""
        return (self.folder(rank) / "logs" / f"rank-{rank}.out").read_text()

    def judge(self, reason: str) -> tuple[tuple[int, ...], str]:
        """Return who is named for the end of the run, and the sentence: the verdict, or the cause
        that the controller sees behind the first failure by the clock of the ranks."""
        if reason and (ended_by := self.hang.ended_by):
            return ended_by.ranks, ended_by.sentence
        self.stop(A_NODE_FAILED)
        # A rank that lost another may exit before the kernel has closed the GPUs of that one.
        events = sorted(
            (event for _, event in self.failures),
            key=lambda event: (event["signal"] is None, event["ended_mono_s"]),
        )
        first, *rivals = [self._failure(event) for event in events]
        _, told = self.hang.outcome("failed", first)
        facts: dict[str, dict[str, Any]] = {machine.name: {} for machine in self.machines}
        told = with_cause(told, rivals, self._collect(), facts)
        assert told
        named = re.match(r"ranks? ((?:\d+(?:, )?)+)", told.message)
        return tuple(map(int, named[1].rstrip(", ").split(", "))) if named else (), told.message

    def _failure(self, event: Mapping[str, Any]) -> RunError:
        how = event["signal"] or f"exit code {event['code']}"
        return RunError(
            f"rank {event['rank']} ended with {how}",
            kind="rank_failed",
            host=self.hang.placed[event["rank"]],
            run_id=self.run_id,
        )

    def _collect(self) -> RunDir:
        """Return the run as a controller has it once the logs of all nodes are collected."""
        run = RunDir(self.machines[0].root.parent / "collected")
        for rank, machine in enumerate(self.machines):
            for path in (self.folder(rank) / "logs").iterdir():
                run.write_log(machine.name, path.name, path.read_bytes())
        return run

    def folder(self, rank: int) -> Path:
        """Return the run's folder on the node of a rank."""
        return self.machines[rank].root / "nodes" / self.machines[rank].name / "runs" / self.run_id

    def pid(self, rank: int) -> int:
        """Return the process of a rank, not its wrapper."""
        return int(json.loads((self.folder(rank) / "ranks" / f"{rank}.json").read_text())["pid"])

    def stop(self, reason: str = "over") -> None:
        """Stop the run on every node and wait for its end."""
        deadline = time.monotonic() + 60
        for rank, line in enumerate(self.lines):
            if rank not in self.ended:
                with suppress(BrokenPipeError):
                    line.order("stop", reason=reason)
        while len(self.ended) < len(self.lines) and time.monotonic() < deadline:
            self.turn()

    def close(self) -> None:
        """End everything."""
        for line in self.lines:
            with suppress(OSError):
                line.order("bye")
        for machine in self.machines:
            machine.close()


def gpus() -> int:
    """Return the number of GPUs of this machine."""
    return len(
        subprocess.run(
            ["nvidia-smi", "--list-gpus"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.splitlines()
    )


@contextmanager
def broken(world: World, fault: str, rank: int, scratch: Path) -> Iterator[None]:
    """Break a rank, and mend it at the end so that it can be ended."""
    pid, group = world.pid(rank), FREEZER / f"orch-hang-{os.getpid()}-{world.pid(rank)}"
    if fault == "freeze":
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
    elif fault in ("stop", "kill"):
        os.kill(pid, {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[fault])
    else:
        (scratch / "fault").write_text(fault)
        os.kill(pid, signal.SIGUSR1)
    try:
        yield
    finally:
        if fault == "freeze":
            (group / "freezer.state").write_text("THAWED")
            world.stop()
            with suppress(OSError):
                group.rmdir()


def trial(number: int, fault: str, seed: int, backend: str) -> Result:
    """Run one trial, of PyTorch if a backend is given."""
    chance = random.Random(f"{seed}/{number}")
    nodes = (2, 4)[number % 2]
    rank = number // 2 % nodes
    if (
        fault == "barrier"
    ):  # of two ranks in different collectives, which one is wrong cannot be told
        nodes, rank = 4, number % 4
    result = Result(fault, nodes, rank)
    with tempfile.TemporaryDirectory(prefix="hang-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        world = World(scratch, nodes, f"INJECT_FAULT={scratch}/fault", backend)
        try:
            world.begin()
            until, ready = (
                time.monotonic() + 600,
                READY_STEP // (3 if backend else 1) + chance.randrange(20),
            )
            while world.step() < ready:
                world.turn()
                if time.monotonic() > until or world.failures:
                    raise RuntimeError(f"step {ready} was not reached: {world.failures[:1]}")
            with broken(world, fault, rank, scratch):
                _watch(world, result)
            world.stop()
        finally:
            world.close()
    return result


def _watch(world: World, result: Result) -> None:
    begun, step = time.monotonic(), world.step()
    world.said.clear()
    while time.monotonic() - begun < LIMIT_S:
        reason = world.turn()
        failed = world.failures and time.monotonic() - world.failures[0][0] > ORDER_S
        if (reason and world.hang.ended_by) or failed:
            named, result.sentence = world.judge(reason)
            result.named, result.seconds = named or None, time.monotonic() - begun
            break
    else:
        stacks = world.folder(result.rank) / "ranks" / f"{result.rank}.stacks"
        tail = stacks.read_text()[-2000:] if stacks.exists() else ""
        result.sentence = f"nobody: step {step}, now {world.step()}; {vars(world.hang)}; {tail}"
    result.said = list(world.said)


def table(results: Sequence[Result]) -> str:
    """Return a line for each fault: trials, right ones, wrong ones, none; median and longest
    seconds.
    """
    lines = [
        f"{'fault':8} {'trials':>6} {'right':>6} {'wrong':>6} {'none':>5} {'median':>8} {'longest':>8}"
    ]
    for fault in dict.fromkeys([*(result.fault for result in results), "all"]):
        mine = [result for result in results if fault in (result.fault, "all")]
        times = [result.seconds for result in mine if result.seconds is not None] or [float("nan")]
        right, wrong = (
            sum(result.is_right for result in mine),
            sum(result.is_wrong for result in mine),
        )
        none = sum(result.named is None for result in mine)
        lines.append(
            f"{fault:8} {len(mine):6} {right:6} {wrong:6} {none:5} {statistics.median(times):8.1f} {max(times):8.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Hang ranks and count who is named.")
    parser.add_argument("--trials", type=int, default=24, help="trials of each fault")
    parser.add_argument(
        "--torch",
        choices=sorted(filter(None, TRAINERS)),
        default="",
        help="ranks of PyTorch, not simulated ones",
    )
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="number of the first trial, to go on where others ended",
    )
    parser.add_argument(
        "--faults",
        default="",
        help=f"of {', '.join(FAULTS)}; with --torch of {', '.join(TORCH_FAULTS)}",
    )
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        faults = args.faults.split(",") if args.faults else TORCH_FAULTS if args.torch else FAULTS
        work = [
            (number, fault)
            for number in range(args.first, args.first + args.trials)
            for fault in faults
        ]
        results = []
        for result in pool.map(lambda pair: _one(*pair, args.seed, args.torch), work):
            results.append(result)
            mark = "WRONG" if result.is_wrong else "ok" if result.is_right else "none"
            where = f"{result.fault} {result.nodes}n rank {result.rank}"
            print(
                f"{mark:5} {where}: {result.seconds or -1:.1f} s: {result.sentence or result.said}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    print(table(results))


def _one(number: int, fault: str, seed: int, backend: str) -> Result:
    try:
        return trial(number, fault, seed, backend)
    except Exception as error:  # counted as a miss, and said
        return Result(fault, 0, -1, sentence=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
