"""The time to reach many hosts, compared with the usual programs for this, in the same rounds.

    orch lab up --nodes 64 && orch lab exec -- python benchmarks/fanout.py cold --n 4,64 [--rounds 5] [--with clush,pdsh,…]
    orch lab exec -- python benchmarks/fanout.py skew|deploy|push|pull …

`orch` connects with its own packet path over paramiko; `orch-openssh` is the same command through
the program ssh (`transport: openssh`), one master for each host.

- cold: connect to N hosts, run `true`, disconnect; includes the start of the program.
- skew: time between the first and the last start of a command on N hosts. The nodes of a lab share
  one clock, which the commands of the other programs print. For orch these are runs of the
  simulated framework: `orch` is the release of the launch scripts, from the nodes' own records;
  `orch-script` is the first line of these scripts, which is comparable with the other programs: it
  includes N starts of bash on one machine, but not the training programs, which start two seconds
  later; `orch-says` is the skew in the manifests, which know the nodes' clocks only from
  measurements.
- deploy: the PyTorch payload to N fresh hosts, and once more when it is already there; Ansible
  copies the same files.
- push: 20 files, 1 MiB in all, to N hosts.
- pull: a log of 64 MiB, or of ``--log-mib``, from N hosts, over open connections. For orch, they
  have already been used to ask what a run has left, as a bench does before it collects.

The programs alternate, round by round. Each line is a median with the range, and its ratio to
orch's in the same round, the median with the range again: above 1 it is slower than orch. A round
of skew is a bench of orch with ``--runs`` repeats, whose median is its value for the ratio, and
each other program once. A program that is not installed is reported and left out. All programs and
all servers share this machine: every figure includes the servers' own work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.plan.folders import open_framework

LAB = Path(os.environ["ORCH_HOSTS"]).parents[2] if "ORCH_HOSTS" in os.environ else Path()
ORCH = [sys.executable, "-m", "orchestrator"]
HERE = Path(__file__).parent
FILES, FILE_BYTES = 20, 52_429
LIMIT_S, LIMIT_S_PER_HOST = 300.0, 2.0


@dataclass(frozen=True)
class Bed:
    """The setting of one measurement: the number of hosts, and a folder on the controller that is
    empty at first.
    """

    count: int
    folder: Path

    @property
    def names(self) -> list[str]:
        """The hosts."""
        return [f"node{number}" for number in range(1, self.count + 1)]

    @property
    def expression(self) -> str:
        """The hosts, as `orch`, clush and pdsh write them."""
        return f"node[1-{self.count}]"

    @property
    def homes(self) -> list[Path]:
        """The hosts' home directories, seen from outside."""
        return [LAB / "nodes" / name / "home" for name in self.names]

    def orch(self, *words: str) -> list[str]:
        """Return a command of `orch` on these hosts."""
        return [*ORCH, *words, "--hosts", self.expression]

    def clush(self, *words: str) -> list[str]:
        """Return a command of clush with its default fan-out: 64 hosts at a time."""
        return [
            "clush",
            "-q",
            "-S",
            "-O",
            f"ssh_options=-F {LAB}/ssh_config",
            "-w",
            self.expression,
            *words,
        ]

    def pdsh(self, *words: str) -> list[str]:
        """Return a command of pdsh with its default fan-out: 32 hosts at a time."""
        return [
            "env",
            f"PDSH_SSH_ARGS=-F {LAB}/ssh_config %h",
            "pdsh",
            "-S",
            "-R",
            "ssh",
            "-w",
            self.expression,
            *words,
        ]

    def ansible(self, *words: str) -> list[str]:
        """Return a command of Ansible: pipelining on, as many forks as hosts up to 64."""
        settings = [
            "ANSIBLE_PIPELINING=1",
            "ANSIBLE_HOST_KEY_CHECKING=1",
            f"ANSIBLE_HOME={self.folder}/ansible",
        ]
        settings += [
            f"ANSIBLE_SSH_ARGS=-F {LAB}/ssh_config -o ControlMaster=no",
            f"ANSIBLE_PYTHON_INTERPRETER={sys.executable}",
        ]
        hosts = ",".join(self.names) + ","
        return [
            "env",
            *settings,
            "ansible",
            "all",
            "-i",
            hosts,
            "-f",
            str(min(64, self.count)),
            "-o",
            *words,
        ]

    def peer(self, *words: str) -> list[str]:
        """Return a command that runs a contender of peers.py."""
        return [sys.executable, str(HERE / "peers.py"), *words, str(LAB), str(self.count)]


Contender = Callable[[Bed], float]


def timed(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Return the seconds that a command took. Ends the benchmark if it failed."""
    return said(argv, env=env)[0]


def over_openssh(bed: Bed) -> dict[str, str]:
    """Return the environment in which orch reaches the hosts through the masters of the program
    ssh.
    """
    inventory = bed.folder / "openssh.yaml"
    text = Path(os.environ["ORCH_HOSTS"]).read_text()
    inventory.write_text(text.replace("defaults:\n", "defaults:\n  transport: openssh\n", 1))
    return {**os.environ, "ORCH_HOSTS": str(inventory)}


def said(
    argv: Sequence[str], count: int = 0, env: dict[str, str] | None = None
) -> tuple[float, str]:
    """Return the seconds that a command on ``count`` hosts took, and its standard output."""
    began, limit_s = time.monotonic(), LIMIT_S + LIMIT_S_PER_HOST * count
    done = subprocess.run(
        list(argv),
        capture_output=True,
        text=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        check=False,
        env=env,
    )
    took = time.monotonic() - began
    if done.returncode:
        sys.exit(
            f"{' '.join(argv)[:200]} ended with {done.returncode}: {(done.stderr or done.stdout)[-600:]}"
        )
    return took, done.stdout


def inner(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Return the seconds that a contender of peers.py measured itself, over open connections."""
    return float(said(argv, env=env)[1].split()[-1])


# --- measurements ---------------------------------------------------------------------------------


def spread_ms(argv: Sequence[str], count: int) -> float:
    """Return the milliseconds between the first and the last instant that a command printed on all
    hosts.
    """
    instants = [float(text) for text in re.findall(r"\b\d{10}\.\d{6}\b", said(argv, count)[1])]
    if len(instants) != count:
        sys.exit(f"{argv[0]}: expected {count} instants, got {len(instants)}")
    return apart_ms(instants)


def our_skews_ms(bed: Bed, runs: int, env: dict[str, str] | None = None) -> dict[str, list[float]]:
    """Return the start skew of each of ``runs`` runs: of the release, of the launch scripts' first
    lines, as recorded.
    """
    folder = bed.folder / "templates" / "simulated"
    shutil.copytree(HERE.parent / "templates" / "simulated", folder)
    script = folder / "launch.sh.j2"
    script.write_text(script.read_text().replace("\n", "\necho $EPOCHREALTIME\nsleep 2\n", 1))
    words = [
        "bench",
        "resnet50",
        "--framework",
        "simulated",
        "--nodes",
        str(bed.count),
        "--gpus",
        "1",
        "--no-baseline",
    ]
    words += ["--templates", str(folder.parent), "--repeats", str(runs)]
    words += [
        "--steps",
        "5",
        "--warmup-steps",
        "1",
        "--set",
        "compute_ms=20",
        "--set",
        "gradient_mb=0.001",
    ]
    said(
        bed.orch(*words),
        bed.count * (1 + runs),
        {**(env or os.environ), "ORCH_PROJECT": str(bed.folder)},
    )
    figures: dict[str, list[float]] = {"orch": [], "orch-script": [], "orch-says": []}
    for path in bed.folder.glob("runs/*/*/manifest.json"):
        logs = [path.parent / "logs" / name for name in bed.names]
        released = [
            float(json.loads((log / "exit.json").read_text())["started_mono_s"]) for log in logs
        ]
        figures["orch"].append(apart_ms(released))
        figures["orch-script"].append(
            apart_ms([float((log / "node.out").read_text().split()[0]) for log in logs])
        )
        figures["orch-says"].append(json.loads(path.read_text())["start"]["skew_s"] * 1e3)
    return figures


def apart_ms(instants: Sequence[float]) -> float:
    """Return the milliseconds between the first and the last of these instants, given in seconds."""
    return (max(instants) - min(instants)) * 1e3


def deployed_afresh(bed: Bed) -> float:
    """Deploy to hosts that have no payload."""
    for home in bed.homes:
        shutil.rmtree(home / ".orch-node", ignore_errors=True)
    return timed(bed.orch("deploy"))


def copied_by_ansible(bed: Bed) -> float:
    """Let Ansible copy the same files to hosts that do not have them."""
    source = bed.folder / "payload"
    source.mkdir()
    for name, content in open_framework("pytorch").payload.items():
        (source / name).write_bytes(content)
    for home in bed.homes:
        shutil.rmtree(home / "copied", ignore_errors=True)
    return timed(bed.ansible("-m", "ansible.builtin.copy", "-a", f"src={source}/ dest=copied/"))


def with_files(bed: Bed) -> Path:
    """Create the files to push: no two rounds push the same bytes."""
    source = bed.folder / "files"
    source.mkdir()
    for number in range(FILES):
        (source / f"file{number:02}").write_bytes(os.urandom(FILE_BYTES))
    return source


def with_log(bed: Bed, size: int) -> None:
    """Put a log of ``size`` bytes on every host, where a run would have left it, with numbers that
    vary like measured ones.
    """
    chance, at, lines = random.Random(1), 0.0, []
    for number in range(size // 70):
        took = 0.03125 * chance.gauss(1, 0.01)
        at += took
        loss = 6.9078 * 0.99999**number
        lines.append(
            f"orch step={number} t={at:.6f} step_time_s={took:.6f} samples=1024 loss={loss:.4f}\n"
        )
    text = "".join(lines).encode()[:size]
    assert len(text) == size
    for name, home in zip(bed.names, bed.homes, strict=True):
        folder = home / ".orch-node" / "nodes" / name / "runs" / "pulled" / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "node.out"
        if not log.exists() or log.stat().st_size != size:
            log.write_bytes(text)


STAMP = "bash -c 'echo $EPOCHREALTIME'"
OPERATIONS: dict[str, dict[str, Contender]] = {
    "cold": {
        "orch": lambda bed: timed(bed.orch("check", "--only", "reach")),
        "orch-openssh": lambda bed: timed(bed.orch("check", "--only", "reach"), over_openssh(bed)),
        "paramiko": lambda bed: timed(bed.peer("cold")),
        "fabric": lambda bed: timed(bed.peer("fabric")),
        "clush": lambda bed: timed(bed.clush("true")),
        "pdsh": lambda bed: timed(bed.pdsh("true")),
        "ansible": lambda bed: timed(bed.ansible("-m", "ansible.builtin.raw", "-a", "true")),
    },
    "skew": {
        "orch-openssh": lambda bed: statistics.median(
            our_skews_ms(bed, 4, over_openssh(bed))["orch"]
        ),
        "fabric": lambda bed: spread_ms(bed.peer("fabric", "--stamp"), bed.count),
        "clush": lambda bed: spread_ms(bed.clush(STAMP), bed.count),
        "pdsh": lambda bed: spread_ms(bed.pdsh(STAMP), bed.count),
        "ansible": lambda bed: spread_ms(
            bed.ansible("-m", "ansible.builtin.raw", "-a", STAMP), bed.count
        ),
    },
    "deploy": {
        "orch": deployed_afresh,
        "orch-again": lambda bed: timed(bed.orch("deploy")),
        "orch-cold": lambda bed: timed(bed.orch("check", "--only", "reach")),
        "ansible": copied_by_ansible,
    },
    "push": {
        "orch": lambda bed: timed(bed.peer("push-orch", str(with_files(bed)))),
        "openssh": lambda bed: timed(bed.peer("push-tar", str(with_files(bed)))),
        "clush": lambda bed: timed(
            bed.clush("--copy", str(with_files(bed)), "--dest", "/root/pushed")
        ),
    },
    "pull": {
        "orch": lambda bed: inner(bed.peer("pull-orch", str(bed.folder))),
        "orch-openssh": lambda bed: inner(
            bed.peer("pull-orch", str(bed.folder)), over_openssh(bed)
        ),
        "openssh": lambda bed: inner(bed.peer("pull-openssh", str(bed.folder))),
        "paramiko": lambda bed: inner(bed.peer("pull-paramiko", str(bed.folder))),
    },
}
PROGRAMS = {"clush": "clush", "pdsh": "pdsh", "ansible": "ansible"}


def main() -> None:
    """Run the rounds and print medians and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("--n", default="4", help="numbers of hosts, e.g. 4,16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=4, help="runs of orch in a round of skew")
    parser.add_argument("--log-mib", type=int, default=64, help="size of a log to pull")
    parser.add_argument("--with", dest="chosen", default="", help="contenders; all if not said")
    asked = parser.parse_args()
    if not LAB.name:
        sys.exit(
            "ORCH_HOSTS is not set: run this through `orch lab exec -- python benchmarks/fanout.py …`"
        )
    contenders = OPERATIONS[asked.operation]
    chosen = asked.chosen.split(",") if asked.chosen else list(contenders)
    for name in [name for name in chosen if name in PROGRAMS and not shutil.which(PROGRAMS[name])]:
        print(f"{name} is not installed, and left out")
        chosen.remove(name)
    for count in map(int, asked.n.split(",")):
        measure(
            asked.operation,
            {name: contenders[name] for name in chosen if name in contenders},
            count,
            asked,
        )


def measure(
    operation: str, contenders: dict[str, Contender], count: int, asked: argparse.Namespace
) -> None:
    """Run one operation on ``count`` hosts, and print the figures."""
    figures: dict[str, list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    if operation == "pull":
        with_log(Bed(count, Path()), asked.log_mib << 20)
    for _ in range(asked.rounds):
        taken: dict[str, list[float]] = {}
        if operation == "skew":
            with tempfile.TemporaryDirectory() as folder:
                taken |= our_skews_ms(Bed(count, Path(folder)), asked.runs)
        for name, contender in contenders.items():
            with tempfile.TemporaryDirectory() as folder:
                taken[name] = [contender(Bed(count, Path(folder)))]
        ours = statistics.median(taken.get("orch", [math.nan]))
        for name, values in taken.items():
            figures[name] += values
            ratios[name].append(statistics.median(values) / ours)
    unit = "ms" if operation == "skew" else "s"
    moved = {"push": FILES * FILE_BYTES, "pull": asked.log_mib << 20}.get(operation, 0) * count
    print(f"{operation}, {count} hosts, load {os.getloadavg()[0]:.1f}")
    for name, values in figures.items():
        middle = statistics.median(values)
        rate = f"  {moved / middle / 1e6:7.1f} MB/s" if moved else ""
        print(
            f"  {name:11} {middle:9.3f} {unit}  {min(values):9.3f} to {max(values):9.3f}  n={len(values):<3}"
            f" ratio {statistics.median(ratios[name]):7.2f}  {min(ratios[name]):.2f} to {max(ratios[name]):.2f}{rate}",
            flush=True,
        )


if __name__ == "__main__":
    main()
