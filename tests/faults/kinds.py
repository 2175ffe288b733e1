"""Hang ranks of a training program that knows nothing of orch in many ways, and print how often the
right one was named.

    python -m tests.faults.kinds [--trials N] [--kinds sleep,skip_barrier,…] [--given spy,hook,…] [--jobs N] [--json FILE]
                                 [--start fork|exec|generated] [--limit SECONDS]

Three nodes with a rank each, real supervisors, wrappers and reports, as in `hangs`; the program is
`injected/own_training.py`. Its ranks are forked (`forks`), or, with ``--start exec``, each imports
PyTorch itself, as many cores can. With ``--start generated`` they are started by the launch script
of the folder that `orch framework new` makes of the program's torchrun command. None sees a GPU.
After ``--limit`` no further trial begins. ``--given`` is what the program has:

    spy    nothing but py-spy beside its interpreter
    hook   the flight recorder, and `rank_progress` with a mark a step
    one    the same, whose mark is called ``compute``, as an example of the documentation had it
    full   the flight recorder and a mark for each phase

A trial counts as right where the verdict, or the last suspicion that names anybody, names the
broken rank and no other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

import orchestrator
from tests.faults.forks import ASK
from tests.faults.hangs import FREEZER, INJECTED, ORDER_S, REPOSITORY, World
from tests.faults.stalled import stalled_files

NODES = 3
LIMIT_S = 75.0
SCRIPT = """\
#!/bin/bash
export RANK={rank} LOCAL_RANK=0 WORLD_SIZE={ranks} MASTER_ADDR=127.0.0.1 MASTER_PORT={port} INJECT_LAUNCHER=$$
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo CUDA_VISIBLE_DEVICES= {given}
{start}
"""
FORK = "{python} -I -S -c '{ask}' {socket} {words}".replace("{ask}", ASK)
EXEC = (
    "PYTHONPATH={remote} {python} -I -S {wrapper} -- {python} -u {injected}/own_training.py {words}"
)
COMMAND = "torchrun --nproc_per_node 1 own_training.py WORDS"
GIVEN = {
    "spy": ("", "--marks none"),
    "hook": ("TORCH_FR_BUFFER_SIZE=512", "--marks one --phase step"),
    "one": ("TORCH_FR_BUFFER_SIZE=512", "--marks one --phase compute"),
    "bare": ("", "--marks one --phase compute"),
    "full": ("TORCH_FR_BUFFER_SIZE=512", "--marks full"),
}
STEP = r"step (?P<step>\d+) "


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to hang: what the program is given (``words``), what is done from outside, and who may
    be named: the broken rank, or nobody at all where what happens tells nobody's fault."""

    words: str = ""
    outside: str = ""
    decidable: bool = True


ALONE = (
    "sleep", "loop", "compute", "print_loop", "deadlock", "empty_queue", "silent_socket", "subprocess_wait", "future",
    "coroutine", "gil_sleep", "gil_compute", "c_sleep", "hook_sleep", "poll_file", "stalled_file", "slow_disk", "swapped_out",
    "full_pipe", "stop_itself",
    "extra_barrier", "extra_reduction", "extra_monitored", "missing_key", "no_sync",
)  # fmt: skip
SKIPPED = (
    "barrier",
    "monitored",
    "store_barrier",
    "roots",
    "gathering",
    "to_root",
    "exchange",
    "ring",
    "objects",
)
KINDS: dict[str, Kind] = {name: Kind() for name in ALONE}
KINDS |= {f"skip_{name}": Kind(f"--calls {name},barrier --fault skip_{name}") for name in SKIPPED}
KINDS |= {
    "skip_checkpoint": Kind("--calls checkpoint,barrier"),
    "skip_reduction": Kind(),
    "skip_gradients": Kind(),
    "other_size": Kind(),
    "other_large_size": Kind(),
    "other_order": Kind(),
    "stop_worker": Kind("--workers 1"),
    "sleeping_worker": Kind("--workers 1"),
    "stop_launcher": Kind("--steps 75"),
    "alone": Kind("--steps 70 --after 100000 --fault nothing"),
    "deaf": Kind(decidable=False),
    "freeze": Kind("--fault nothing", "freeze"),
    "stopped_child": Kind("--fault nothing --workers 1", "child"),
}
KINDS |= {
    f"{name}_among_stores": Kind(f"--calls store_barrier,checkpoint --fault {name}")
    for name in ("sleep", "compute")
}
KINDS |= {
    f"{name}_among_roots": Kind(f"--calls roots,objects --fault {name}")
    for name in ("sleep", "compute")
}


@dataclass(slots=True)
class Trial:
    """One trial: who was named in the end, after how many seconds; when the broken rank was first
    suspected.
    """

    kind: str
    given: str
    rank: int
    named: tuple[int, ...] | None = None
    seconds: float | None = None
    suspected_s: float | None = None
    sentence: str = ""
    said: list[str] = field(default_factory=list)
    load: float = 0.0

    def accused(self) -> list[set[int]]:
        """Return the ranks that each suspicion names, and the verdict."""
        named = [set(accused_by(line)) for line in self.said]
        return [ranks for ranks in [*named, set(self.named or ())] if ranks]

    @property
    def outcome(self) -> str:
        """`right`, `healthy` where another rank was ever named, or `nobody`, which is right where
        nobody's fault is told.
        """
        accused = self.accused()
        if any(ranks - {self.rank} for ranks in accused):
            return "healthy"
        return "right" if accused or not KINDS[self.kind].decidable else "nobody"


def accused_by(words: str) -> list[int]:
    """Return the ranks that a suspicion names."""
    match = re.search(r"usually \S+ s: ranks? ((?:\d+(?:, )?)+) on ", words)
    return [int(number) for number in match[1].rstrip(", ").split(", ")] if match else []


def generated_start(project: Path) -> list[str]:
    """Return how ranks are started on each node by the folder that `orch framework new` makes of
    `COMMAND`: its launch script as planned, with what `World` fills in.
    """
    inventory = project / "hosts.yaml"
    hosts = {f"node{n}": {"address": f"127.0.0.{n}", "gpus": 0, "slots": 1} for n in (1, 2, 3)}
    inventory.write_text(yaml.safe_dump({"schema": 1, "hosts": hosts}))
    shutil.copy(INJECTED / "own_training.py", project)
    made = [sys.executable, "-m", "orchestrator", "framework", "new", "own"]
    subprocess.run(
        [*made, "--from-command", COMMAND],
        cwd=project,
        env=os.environ | {"ORCH_PROJECT": str(project), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
    )
    plan = orchestrator.prepare(
        "own",
        framework="own",
        project=project,
        hosts=str(inventory),
        nodes=NODES,
        baseline=False,
        repeats=1,
    )
    starts = []
    for files in plan.files(plan.runs[0]).values():
        script = files["launch.sh"].replace(". ./env.sh\n", files["env.sh"])
        script = re.sub(r"[{}]", r"\g<0>\g<0>", script)
        for pattern, words in (
            (r"--master_port \d+", "--master_port {port}"),
            (r"\S+/rank_wrapper\.py", "{wrapper}"),
            (r"\S+/own_training\.py", "{injected}/own_training.py"),
            (r"\bpython3\b", "{python}"),
            (r"\bWORDS\b", "{words}"),
        ):
            script, count = re.subn(pattern, words, script)
            assert count, (pattern, script)
        starts.append(script.replace("exec ", "export PYTHONPATH={remote}\nexec ", 1))
    return starts


def trial(number: int, kind: str, given: str, seed: int, starts: Sequence[str]) -> Trial:
    """Run one trial. ``starts``: how ranks are started, one for all nodes or one for each."""
    chance = random.Random(f"{seed}/{number}/{kind}/{given}")
    rank = chance.randrange(NODES)
    if kind == "skip_checkpoint":  # only the rank that writes keeps others waiting
        rank = 0
    result = Trial(kind, given, rank)
    with (
        tempfile.TemporaryDirectory(prefix="kind-", ignore_cleanup_errors=True) as name,
        ExitStack() as disk,
    ):
        mount = disk.enter_context(stalled_files(kind))
        variables, marks = GIVEN[given]
        words = f"--fault {kind} --calls barrier,store_barrier {KINDS[kind].words} {marks}"
        words += f" --rank {rank} --at {40 + chance.randrange(20)}"
        scripts = [SCRIPT.replace("{start}", start).replace("{words}", words) for start in starts]
        world = World(
            Path(name), NODES, f"{variables} INJECT_STALLED={mount}", scripts=scripts, steps=[STEP]
        )
        try:
            world.begin()
            _until_step(world, 30)
            with done_from_outside(KINDS[kind].outside, world, rank):
                _watch(world, result)
            result.load = os.getloadavg()[0]
        finally:
            disk.close()  # nothing ends a rank in state D before
            world.stop()
            world.close()
    return result


def _until_step(world: World, step: int) -> None:
    until = time.monotonic() + 300
    while world.step() < step:
        world.turn()
        if time.monotonic() > until or world.failures:
            failures = [record for _, record in world.failures]
            logs = {record["rank"]: world.log(record["rank"])[-600:] for record in failures}
            raise RuntimeError(f"step {step} was not reached: {failures[:1]}: {logs}")


def _watch(world: World, result: Trial) -> None:
    """Wait for the verdict. The clock starts with the first silence of a second."""
    step, begun = world.step(), time.monotonic()
    silent_since = begun
    while time.monotonic() - begun < LIMIT_S + (silent_since - begun):
        reason = world.turn()
        now = time.monotonic()
        if world.step() != step:
            step, silent_since = world.step(), now
        if silent_since - begun > 120:
            raise RuntimeError("it did not hang")
        if result.suspected_s is None and any(
            accused_by(line) == [result.rank] for line in world.said
        ):
            result.suspected_s = now - silent_since
        failed = world.failures and now - world.failures[0][0] > ORDER_S
        if (reason and world.hang.ended_by) or failed:
            named, words = world.judge(reason)
            result.named, result.sentence, result.seconds = named or None, words, now - silent_since
            break
    result.said = list(world.said)
    if not result.sentence:
        result.sentence = result.said[-1] if result.said else f"nothing was said after step {step}"


@contextmanager
def done_from_outside(what: str, world: World, rank: int) -> Iterator[None]:
    """Freeze a rank, or stop a process that it has started."""
    pid = world.pid(rank)
    group = FREEZER / f"orch-kind-{os.getpid()}-{pid}"
    if what == "freeze":
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
    elif what == "child":
        children = subprocess.run(
            ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        os.kill(int(children[-1]), signal.SIGSTOP)
    try:
        yield
    finally:
        if what == "freeze":
            (group / "freezer.state").write_text("THAWED")
            world.stop()
            with suppress(OSError):
                group.rmdir()


def table(results: Sequence[Trial]) -> str:
    """Return a line for each kind."""
    lines = [
        f"{'kind':22} {'trials':>6} {'right':>6} {'healthy':>7} {'nobody':>6} {'suspected':>9} {'verdict':>8} {'longest':>8}"
    ]
    for kind in [*dict.fromkeys(result.kind for result in results), "all"]:
        mine = [result for result in results if kind in (result.kind, "all")]
        counts = [
            sum(result.outcome == word for result in mine)
            for word in ("right", "healthy", "nobody")
        ]
        first = [result.suspected_s for result in mine if result.suspected_s is not None] or [
            float("nan")
        ]
        ended = [result.seconds for result in mine if result.seconds is not None] or [float("nan")]
        times = f"{statistics.median(first):9.1f} {statistics.median(ended):8.1f} {max(ended):8.1f}"
        lines.append(f"{kind:22} {len(mine):6} {counts[0]:6} {counts[1]:7} {counts[2]:6} {times}")
    return "\n".join(lines)


@contextmanager
def forking(python: str = sys.executable) -> Iterator[str]:
    """Have a process that forks ranks; its socket is returned."""
    with tempfile.TemporaryDirectory(prefix="forks-") as name:
        path = f"{name}/socket"
        server = subprocess.Popen(
            [python, "-m", "tests.faults.forks", path],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout and server.stdout.readline() == "ready\n"
            yield path
        finally:
            server.kill()
            server.wait()


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description="Hang ranks of a program of one's own and count who is named."
    )
    parser.add_argument(
        "--trials", type=int, default=1, help="trials of each kind and of each that it is given"
    )
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="number of the first trial, to go on where others ended",
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--given", default="hook,spy", help=f"of {', '.join(GIVEN)}")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument(
        "--start",
        choices=("fork", "exec", "generated"),
        default="fork",
        help="how a rank begins",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="begin no trial after so long",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    until = time.monotonic() + args.limit
    numbers = range(args.first, args.first + args.trials)
    kinds = [
        kind
        for kind in args.kinds.split(",")
        if FREEZER.is_dir() or KINDS[kind].outside != "freeze"
    ]
    work = [(n, kind, given) for n in numbers for kind in kinds for given in args.given.split(",")]
    results: list[Trial] = []
    with ExitStack() as stack:
        if args.start == "fork":
            starts = [FORK.replace("{socket}", stack.enter_context(forking()))]
        elif args.start == "generated":
            starts = generated_start(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        else:
            starts = [EXEC]
        pool = stack.enter_context(ThreadPoolExecutor(args.jobs))
        for result in pool.map(
            lambda row: _one(*row, args.seed, starts) if time.monotonic() < until else None, work
        ):
            if result is None:
                continue
            results.append(result)
            times = f"{result.suspected_s or -1:.1f}/{result.seconds or -1:.1f} s"
            where = f"{result.kind} {result.given} rank {result.rank}"
            print(f"{result.outcome:7} {where}: {times}: {result.sentence}", flush=True)
            if args.json:
                args.json.write_text(json.dumps([asdict(one) for one in results], indent=1))
    print(table(results))


def _one(number: int, kind: str, given: str, seed: int, starts: Sequence[str]) -> Trial:
    try:
        return trial(number, kind, given, seed, starts)
    except Exception as error:  # counted as a miss, and said
        return Trial(kind, given, -1, sentence=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
