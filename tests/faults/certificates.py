"""Plant faults in labs of many nodes, run `orch accept` there, and count whom its certificates
name.

    python -m tests.faults.certificates [--nodes 16,64] [--faults cpu,one-way,…] [--trials N] [--together N] [--clean N]
                                        [--suite quick] [--seed N] [--json FILE]

Needs root. Each lab is real sshd in network namespaces of this machine, and each acceptance the
real command. The suite is the shape of `quick` in a size for many nodes on few cores: all checks, a
program that measures each node alone, all pairs; a fault is measured by the stages that can show it
(`PLANTS`). ``--suite quick`` takes the shipped one. ``--together`` plants all faults of
``--faults`` at once, each on a node of its own, which one certificate must name. A ``--clean``
acceptance has no fault; all clean ones of a lab are of one project, so that each is also compared
with the last one that passed.

A trial is right if exactly the planted nodes fail, open if one of them is only named as undecided
and nobody else fails, wrong if anybody else fails: a node, a link or the cluster. Processes that
are left on nodes are counted by the judge of the tests.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.e2e.rig import Controller
from tests.support import faults, hashing, plain_pairs
from tests.support.faultlab import mend

SUITE = """\
title: the shape of quick, for many nodes on few cores
stages:
  - {{name: checks, checks: all, framework: hashing, run: 30s}}
  - name: hashing
    bench: hashing
    choices: {{repeats: 5, options: {{seconds: {seconds}}}}}
    run: 10s
    needs: [checks]
    bars: [{{metric: rate, peers: 10%, earlier: 20%}}]
  - name: pairs
    bench: {pairs}
    choices: {{steps: {sweeps}, warmup_steps: 1, options: {{size_bytes: {size}}}}}
    run: 60s
    needs: [checks]
    least: {{nodes: 2}}
"""
_FEW = 16
"""Nodes up to which messages and sweeps are those of `quick`."""
_LIMIT_S = 3000
# A core is divided among many nodes: what each of them has, and how much less the slow one.
_CORES, _SLOWER, _LEAST_PERCENT = 2, 4, 1.0
NVIDIA_SMI = """\
#!/bin/sh
if [ "$*" = "-q -x" ]; then
  echo "<nvidia_smi_log><driver_version>{driver}</driver_version>"
  echo "<gpu><product_name>Stand-in</product_name></gpu></nvidia_smi_log>"
else
  echo {driver}
fi
"""
RUNNER = '#!/bin/sh\nPATH=/root/stand-in:$PATH exec {python} "$@"\n'


@dataclass(slots=True)
class World:
    """A lab, the nodes of a fault in it, and what the inventory has to say of hosts: ``given`` by
    host.
    """

    lab: Lab
    given: dict[str, dict[str, Any]] = field(default_factory=dict)
    gpus: int = 0

    def on(self, node: str, script: str) -> None:
        """Run a script as root on a node."""
        subprocess.run(
            labs.argv_on(self.lab, node, ["sh", "-ec", script]), check=True, capture_output=True
        )

    def inventory(self, project: Path) -> Path:
        """Write the lab's inventory into a project, with what is given, and return its path."""
        text = self.lab.inventory.read_text().replace("  gpus: 0\n", f"  gpus: {self.gpus}\n")
        for host, facts in self.given.items():
            lines = "".join(f"    {name}: {json.dumps(value)}\n" for name, value in facts.items())
            text = text.replace(f"  {host}:\n", f"  {host}:\n{lines}")
        path = project / "planted.yaml"
        path.write_text(text)
        return path


@contextmanager
def slow_cpu(world: World, node: str) -> Iterator[None]:
    """The node may use a fraction of what the machine has for each node."""
    faults.cpu(world.lab, node, max(_LEAST_PERCENT, 100 * _CORES / len(world.lab.nodes) / _SLOWER))
    yield


@contextmanager
def one_way(world: World, node: str) -> Iterator[None]:
    """What the node sends is limited; what it receives is not."""
    faults.rate(world.lab, node, "40mbit", ways=["sent"])
    try:
        yield
    finally:
        faults.rate(world.lab, node, None, ways=["sent"])


@contextmanager
def flapping(world: World, node: str, down_s: float = 0.4, up_s: float = 6.0) -> Iterator[None]:
    """The node's cable loses its link for a moment, again and again; no connection breaks."""
    over = threading.Event()

    def flap() -> None:
        while not over.wait(up_s):
            faults.link(world.lab, node, up=False)
            over.wait(down_s)
            faults.link(world.lab, node, up=True)

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def small_memory(world: World, node: str) -> Iterator[None]:
    """Programs on the node have 192 MiB of memory: less than PyTorch needs to start, enough for
    everything else.
    """
    faults.memory(world.lab, node, 192 << 20)
    yield


@contextmanager
def wrong_driver(world: World, node: str) -> Iterator[None]:
    """Every node has a stand-in for nvidia-smi; that of this node tells of another driver than the
    inventory expects.
    """
    world.gpus = 1
    for machine in world.lab.nodes:
        folder = machine.home / "stand-in"
        folder.mkdir(exist_ok=True)
        driver = "535.54.03" if machine.name == node else "580.95.05"
        texts = {
            "nvidia-smi": NVIDIA_SMI.format(driver=driver),
            "runner": RUNNER.format(python=world.lab.python),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        of_host = world.given.setdefault(machine.name, {})
        of_host |= {
            "expect": {"driver": "580*"},
            "vars": {"runner_python": "/root/stand-in/runner"},
        }
    try:
        yield
    finally:
        for machine in world.lab.nodes:
            shutil.rmtree(machine.home / "stand-in")


@contextmanager
def wrong_kernel(world: World, node: str) -> Iterator[None]:
    """The inventory expects another kernel on the node than it has."""
    world.given.setdefault(node, {})["expect"] = {"kernel": "4.4*"}
    yield


@contextmanager
def full_disk(world: World, node: str) -> Iterator[None]:
    """The file system of the node's work directory has 40 MiB left."""
    world.on(
        node,
        "mkdir -p -m 700 ~/.orch-node && mount -t tmpfs -o size=300m,mode=0700 none ~/.orch-node",
    )
    world.on(node, "head -c 260m /dev/zero > ~/.orch-node/filler")
    try:
        yield
    finally:
        world.on(node, "umount -l ~/.orch-node")


@contextmanager
def dying_rank(world: World, node: str) -> Iterator[None]:
    """The program of every run is killed on the node while it measures."""
    world.given.setdefault(node, {}).setdefault("vars", {})["dies"] = True
    yield


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault: how it is planted, the stages that can show it, and what the certificate must say of
    the node.
    """

    plant: Callable[[World, str], Any]
    stages: tuple[str, ...]
    words: str


PLANTS: Mapping[str, Plant] = {
    "cpu": Plant(slow_cpu, ("checks", "hashing"), "slower than its peers"),
    "one-way": Plant(one_way, ("checks", "pairs"), "slower to"),
    "flapping": Plant(flapping, ("checks", "pairs"), "lost its link"),
    "memory": Plant(small_memory, ("checks", "hashing", "pairs"), "memory"),
    "driver": Plant(wrong_driver, ("checks", "hashing"), "driver"),
    "disk": Plant(full_disk, ("checks", "hashing"), "disk"),
    "rank": Plant(dying_rank, ("checks", "hashing"), "SIGKILL"),
    "kernel": Plant(wrong_kernel, ("checks", "hashing"), "kernel"),
}
SEVEN = ("cpu", "one-way", "flapping", "memory", "driver", "disk", "rank")


@dataclass(slots=True)
class Result:
    """One acceptance. ``planted``: fault by node. ``named``: the words of each subject that failed,
    ``undecided`` of each that is open. ``stages_s`` are seconds by stage, ``rest_s`` those from the
    end of the last run to the end of the command."""

    nodes: int
    kind: str
    planted: dict[str, str]
    code: int
    verdict: str
    named: dict[str, list[str]]
    undecided: dict[str, list[str]]
    seconds: float
    stages_s: dict[str, float]
    rest_s: float
    left: int
    sizes: dict[str, int]
    load: float

    @property
    def outcome(self) -> str:
        """``right``, ``open``, ``wrong`` or ``nothing``; see the module."""
        if set(self.named) - set(self.planted) or self.code not in (0, 5, 6):
            return "wrong"
        if set(self.named) == set(self.planted):
            return "right"
        return "open" if set(self.planted) <= set(self.named) | set(self.undecided) else "nothing"

    def reasons(self) -> dict[str, bool]:
        """Return by planted node whether the certificate has the words that belong to its fault."""
        texts = {
            node: " ".join([*self.named.get(node, ()), *self.undecided.get(node, ())])
            for node in self.planted
        }
        return {node: PLANTS[fault].words in texts[node] for node, fault in self.planted.items()}


def suite_text(nodes: int, stages: Sequence[str], pairs: str) -> str:
    """Return the suite for so many nodes. Those of one machine share its cores: messages are
    smaller, measurements longer.
    """
    many = nodes > _FEW
    size, sweeps = (262144, 7) if many else (1048576, 13)
    text = SUITE.format(seconds=4 if many else 2, sweeps=sweeps, size=size, pairs=pairs)
    head, *parts = text.split("  - ")
    kept = [part for part in parts if any(f"name: {stage}" in part for stage in stages)]
    return head + "".join(f"  - {part}" for part in kept)


def accept(
    world: World, project: Path, suite: str, stages: Sequence[str], pairs: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Run the command; return its status, its certificate, and seconds, by stage, of the rest, and
    all together.
    """
    controller = Controller(world.lab, project)
    if not (project / "templates").exists():
        hashing.write(project)
        plain_pairs.write(project)
        (project / "suites").mkdir()
    (project / "suites" / "lab.yaml").write_text(suite_text(len(world.lab.nodes), stages, pairs))
    inventory = world.inventory(project)
    process = controller.start("accept", suite, "--hosts", inventory.name, "--json")
    begun = last = time.monotonic()
    name, seconds = "", dict[str, float]()
    limit = threading.Timer(_LIMIT_S, process.kill)
    limit.start()
    assert process.stderr and process.stdout
    try:
        with (project / "said.txt").open("a") as said:
            for line in process.stderr:
                now = time.monotonic()
                print(f"{now - begun:8.1f} {line}", end="", file=said, flush=True)
                if line.startswith("accept: stage "):
                    if name:
                        seconds[name] = round(now - last, 1)
                    name, last = line.split(", ", 1)[1].split(":")[0], now
                elif line.startswith("  finished") or line.startswith("  failed"):
                    seconds["last run"] = round(now - begun, 1)
        output = process.stdout.read()
        code, now = process.wait(), time.monotonic()
    finally:
        limit.cancel()
        controller.let_go()  # an interrupt of this script is none of the command
    seconds[name] = round(now - last, 1)
    rest = now - begun - seconds.pop("last run", now - begun)
    content = json.loads(output) if output.strip().startswith("{") else {}
    return code, content, {"stages": seconds, "rest": round(rest, 1), "all": round(now - begun, 1)}


def subjects(content: Mapping[str, Any], verdict: str) -> dict[str, list[str]]:
    """Return the findings of one verdict by what they name."""
    texts: dict[str, list[str]] = {}
    for bar in content.get("judged", ()):
        for finding in bar["findings"]:
            if finding["verdict"] == verdict:
                name = (
                    finding["hosts"][0]
                    if finding["kind"] == "node"
                    else f"{finding['kind']} {finding['subject']}"
                )
                texts.setdefault(name, []).append(f"{bar['stage']}: {finding['text']}")
    return texts


def trial(
    lab: Lab, kind: str, planted: Mapping[str, str], suite: str, pairs: str, project: Path
) -> Result:
    """Plant faults, by node, run an acceptance, mend the lab, and return what was counted."""
    project.mkdir(parents=True, exist_ok=True)
    world = World(lab)
    stages = {stage for fault in planted.values() for stage in PLANTS[fault].stages} or {
        "checks",
        "hashing",
        "pairs",
    }
    load = float(Path("/proc/loadavg").read_text().split()[0])
    try:
        with ExitStack() as stack:
            for node, fault in planted.items():
                stack.enter_context(PLANTS[fault].plant(world, node))
            code, content, seconds = accept(world, project, suite, sorted(stages), pairs)
    finally:
        left = mend(lab)
    folder = Path(content["path"]) if content else project
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("certificate.*"))}
    named, is_open = subjects(content, "fail"), subjects(content, "undecided")
    verdict = str(content.get("verdict", "none"))
    times = seconds["all"], seconds["stages"], seconds["rest"]
    return Result(
        len(lab.nodes),
        kind,
        dict(planted),
        code,
        verdict,
        named,
        is_open,
        *times,
        len(left),
        sizes,
        load,
    )


def table(results: Sequence[Result]) -> str:
    """Return a line for each kind of trial of each lab."""
    lines = [
        "| nodes | planted | runs | right | open | nothing | wrong | reason | left | seconds, median |"
    ]
    lines.append("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for nodes, kind in dict.fromkeys((result.nodes, result.kind) for result in results):
        mine = [result for result in results if (result.nodes, result.kind) == (nodes, kind)]
        counts = [
            sum(result.outcome == outcome for result in mine)
            for outcome in ("right", "open", "nothing", "wrong")
        ]
        reasons = [is_said for result in mine for is_said in result.reasons().values()]
        shown = f"{sum(reasons)} of {len(reasons)}" if reasons else "–"
        left, median = (
            sum(result.left for result in mine),
            statistics.median(result.seconds for result in mine),
        )
        words = " | ".join(map(str, counts))
        lines.append(
            f"| {nodes} | {kind} | {len(mine)} | {words} | {shown} | {left} | {median:.0f} |"
        )
    return "\n".join(lines)


def planned(
    args: argparse.Namespace, nodes: Sequence[str], chance: random.Random
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the kind of each trial and what is planted in it."""
    chosen = args.faults.split(",") if args.faults else list(SEVEN)
    for _ in range(args.trials):
        for fault in chosen:
            yield fault, {chance.choice(nodes): fault}
    # Nodes with stand-ins for GPUs have no pairs to measure: among others, the fact that is wrong
    # is the kernel.
    others = list(dict.fromkeys("kernel" if fault == "driver" else fault for fault in chosen))
    for _ in range(args.together):
        yield "together", dict(zip(chance.sample(list(nodes), len(others)), others, strict=True))
    for _ in range(args.clean):
        yield "clean", {}


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="16,64")
    parser.add_argument(
        "--faults", default="", help=f"of {', '.join(PLANTS)}; {', '.join(SEVEN)} if empty"
    )
    parser.add_argument("--trials", type=int, default=1, help="acceptances with each fault alone")
    parser.add_argument("--together", type=int, default=0, help="acceptances with all of them")
    parser.add_argument("--clean", type=int, default=0, help="acceptances without a fault")
    parser.add_argument("--suite", default="lab", help="lab, or any suite of orch")
    parser.add_argument(
        "--pairs",
        default="plain_pairs",
        choices=["pairs", "plain_pairs"],
        help="what measures pairs in lab",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append every trial to this file, a line each")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the projects, which are removed otherwise"
    )
    args = parser.parse_args()
    chance, results = random.Random(args.seed), list[Result]()
    with tempfile.TemporaryDirectory(prefix="certificates-") as scratch:
        for count in map(int, args.nodes.split(",")):
            projects = (args.keep or Path(scratch)) / f"{count}"
            lab = labs.up(
                Path(scratch) / f"lab{count}",
                nodes=count,
                gpus_per_node=0,
                kind="namespaces",
                say=lambda _: None,
            )
            try:
                for number, (kind, planted) in enumerate(
                    planned(args, [node.name for node in lab.nodes], chance), start=1
                ):
                    project = projects / (kind if kind == "clean" else f"{number}-{kind}")
                    result = trial(lab, kind, planted, args.suite, args.pairs, project)
                    results.append(result)
                    words = json.dumps(
                        {"named": result.named, "undecided": result.undecided}, indent=1
                    )
                    print(
                        f"{count} nodes, {kind} {planted}: {result.outcome}, {result.seconds:.0f} s {words}",
                        file=sys.stderr,
                    )
                    if args.json:
                        with args.json.open("a") as file:
                            file.write(
                                json.dumps({**asdict(result), "outcome": result.outcome}) + "\n"
                            )
            finally:
                labs.down(lab.directory)
    print(table(results))
    return 0 if all(result.outcome != "wrong" and not result.left for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
