"""What end-to-end tests share: the real program on the controller's side of a lab, and eyes that do
not belong to it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import lab as labs
from orchestrator.lab import Lab, machine
from orchestrator.plan.framework import run_path
from orchestrator.record.project import Project
from orchestrator.record.submission import submissions
from tests.support import forked, judge
from tests.support.commands import inherited_environment
from tests.support.judge import Proc

REPOSITORY = Path(__file__).parents[2]
ORCH = (
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'orch'; from orchestrator.cli.process import run; run()",
)
"""The program without its console script, so that tests run in a bare source tree as well."""

SMALL = (
    "resnet50",
    "-f",
    "simulated",
    "--set",
    "gradient_mb=0.1",
    "--no-baseline",
    "--repeats",
    "1",
    "--stop-grace",
    "0.5",
)
QUICK = (*SMALL, "--set", "compute_ms=5", "--steps", "4", "--warmup-steps", "1")
"""A bench that is over in a second."""
LONG = (
    *SMALL,
    "--set",
    "compute_ms=100",
    "--steps",
    "1000",
    "--warmup-steps",
    "1",
    "--set",
    "peer_timeout_s=30",
)
"""A bench that has to be ended."""
Process = subprocess.Popen[str] | forked.Forked
GRACE_S = 0.5
"""Seconds from terminate to kill in all of these."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON value."""
        return json.loads(self.out)


@dataclass(slots=True)
class Controller:
    """A project directory on the controller's side of a lab; ``orch`` is started in it.

    ``shared`` is the work directory that its nodes share; by default each has its own, in its home.
    ``forks``: `orch` is forked from a process that has loaded it, so that its command line and its
    environment in /proc are not its own.
    """

    lab: Lab
    project: Path
    environment: dict[str, str] = field(default_factory=dict)
    program: Sequence[str] = ORCH
    started: list[Process] = field(default_factory=list)
    shared: Path | None = None
    forks: bool = True

    def orch(self, *words: str, timeout_s: float = 60.0) -> Done:
        """Run a command to its end."""
        return self.end(self.start(*words), timeout_s)

    def start(self, *words: str, program: Sequence[str] | None = None) -> Process:
        """Start a command; its process id is that of the program itself."""
        environment = outer_environment(self.project) | dict(labs.environment(self.lab))
        environment |= self.environment
        process: Process
        if self.forks and (program or self.program) is ORCH:
            net = f"/proc/{self.lab.holder}/ns/net" if self.lab.in_namespaces else ""
            process = forked.start(words, self.project, environment, net)
        else:
            process = subprocess.Popen(
                labs.argv_inside(self.lab, [*(program or self.program), *words]),
                cwd=self.project,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def end(self, process: Process, timeout_s: float) -> Done:
        """Wait for the end of a command, and fail with what it said where that takes too long."""
        try:
            out, err = process.communicate(timeout=timeout_s * judge.patience)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(
                f"not over within {timeout_s:g} s; it said:\n{out}\n{err}"
            ) from None
        return Done(process.returncode, out, err)

    def let_go(self) -> None:
        """Kill what a failed test left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    # -- what came home

    @property
    def bench(self) -> Path:
        """The newest bench's folder."""
        return max(
            self.project.glob("runs/*/bench.json"), key=lambda path: path.stat().st_mtime_ns
        ).parent

    @property
    def runs(self) -> list[Path]:
        """The folders of the newest bench's runs."""
        return sorted(path.parent for path in self.bench.glob("*/manifest.json"))

    @property
    def submitted(self) -> list[str]:
        """The benches that have a job."""
        return [one.bench_id for one in submissions(Project(self.project))]

    def manifest(self) -> dict[str, Any]:
        """The manifest of the newest bench's last run."""
        value: dict[str, Any] = json.loads((self.runs[-1] / "manifest.json").read_text())
        return value

    def events(self) -> list[dict[str, Any]]:
        """The journal of the newest bench."""
        return [json.loads(line) for line in (self.bench / "events.jsonl").read_text().splitlines()]

    def exit_record(self, host: str) -> dict[str, Any]:
        """The exit record of a host in the newest bench's last run."""
        value: dict[str, Any] = json.loads(
            (self.runs[-1] / "logs" / host / "exit.json").read_text()
        )
        return value

    # -- what is true on the nodes, seen from outside

    def node_run(self, node: str) -> Path:
        """The newest bench's last run directory on a node, as the node sees it: something may be
        mounted there.
        """
        if self.shared:
            return self.shared / run_path(node, self.runs[-1].name)
        one = self.lab.node(node)
        home = (
            Path(f"/proc/{one.pid}/root{machine.HOME}")
            if self.lab.kind == "namespaces" and one.pid
            else one.home
        )
        return home / ".orch-node" / run_path(node, self.runs[-1].name)

    def wait_for_step(self, step: int, *, node: str = "node1", within_s: float = 20.0) -> None:
        """Wait until rank 0 has done so many steps, by its own log on its own node."""

        def there() -> bool:
            try:
                return (
                    f"orch step={step} "
                    in (self.node_run(node) / "logs" / "rank-0.out").read_text()
                )
            except (OSError, ValueError):
                return False

        judge.wait_for(there, within_s, f"step {step} was not reached")

    def wait_for_starts(self, count: int, *, within_s: float = 40.0) -> None:
        """Wait until so many runs of the newest bench have started."""

        def there() -> bool:
            known = bool(list(self.project.glob("runs/*/events.jsonl")))
            return known and sum(event["event"] == "started" for event in self.events()) >= count

        judge.wait_for(there, within_s, f"run {count} does not start")

    def rank_process(self, node: str) -> Proc:
        """The training process of a node's only rank; not its wrapper."""
        found = [
            one
            for one in judge.processes(self.lab, node)
            if "train_simulated.py" in one.cmdline and "rank_wrapper.py" not in one.cmdline
        ]
        assert len(found) == 1, (node, found, self.events())
        return found[0]

    def supervisor(self, node: str) -> Proc:
        """The node runner that owns the run on a node."""
        found = [one for one in judge.processes(self.lab, node) if one.comm == "orch-supervisor"]
        assert len(found) == 1, found
        return found[0]

    def sessions(self, node: str) -> list[Proc]:
        """The SSH server's processes that serve a connection."""
        return [
            one
            for one in judge.processes(self.lab, node)
            if one.comm.startswith("sshd") and not one.defunct
        ]

    def assert_all_bytes_are_home(self, *hosts: str) -> None:
        """Compare every log of the last run with the node's own file, by SHA-256, read past the
        tool.
        """
        for host in hosts:
            there = judge.digests(
                self.lab, host, f".orch-node/{run_path(host, self.runs[-1].name)}/logs"
            )
            here = {
                path.name: judge.sha256(path) for path in (self.runs[-1] / "logs" / host).iterdir()
            }
            assert here.pop("exit.json") == judge.sha256(self.node_run(host) / "exit.json")
            assert here == there and there, host


def running(controller: Controller, *words: str, nodes: int = 4, step: int = 3) -> Process:
    """Start a bench that lasts, and return once its first rank has done a few steps."""
    known = set(controller.project.glob("runs/*/*/manifest.json"))
    process = controller.start("bench", *LONG, "--nodes", str(nodes), "--gpus", "1", *words)
    judge.wait_for(
        lambda: set(controller.project.glob("runs/*/*/manifest.json")) > known,
        20,
        "no run was planned",
    )
    controller.wait_for_step(step)
    return process


def held(controller: Controller, node: str, folder: Path) -> Path:
    """Write the framework ``simulated`` into a folder so that its runs do nothing as long as the
    file is there that is returned, on a node.
    """
    shutil.copytree(REPOSITORY / "templates" / "simulated", folder / "simulated")
    script = folder / "simulated" / "launch.sh.j2"
    wait = ". ./env.sh\nwhile [ -e ~/hold ]; do sleep 0.1; done\n"
    script.write_text(script.read_text().replace(". ./env.sh\n", wait, 1))
    hold = controller.lab.node(node).home / "hold"
    hold.touch()
    return hold


def outer_environment(home: Path) -> dict[str, str]:
    """Return the environment without anything of the developer's: no agent, no ssh settings, no
    other lab.
    """
    return inherited_environment() | {
        "HOME": str(home),
        "PYTHONPATH": str(REPOSITORY),
        "NO_COLOR": "1",
        "COLUMNS": "160",
    }
