"""A planned bench of one cell on fake nodes, and all that is handed to what carries it out:
`FakeBench`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from orchestrator.controller.active_hosts import ActiveHosts
from orchestrator.controller.campaign import Campaign
from orchestrator.controller.controller import Controller
from orchestrator.controller.events import Observer, ProgressEvent, RunOver
from orchestrator.controller.launch import Launch
from orchestrator.controller.peer import Interrupt
from orchestrator.controller.stage import Stage
from orchestrator.inventory.read import open_inventory
from orchestrator.plan.bench import Bench, PlannedRun, plan_run
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.limits import Limits
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec
from orchestrator.record.bench_record import new_bench_record
from orchestrator.record.rundir import BenchDir, RunDir
from tests.support import judge
from tests.support.fake_node import FakeCluster, FakeNode
from tests.support.fake_supervisor import Program, Rank

__all__ = ["IMPATIENT", "INVENTORY", "LIMITS", "FakeBench", "left_in_the_middle", "training"]

INVENTORY = """\
schema: 1
defaults: {gpus: 0, slots: 2, env: {HF_TOKEN: hush-hush}}
hosts:
  a: {address: 10.11.0.2}
  b: {address: 10.11.0.3}
"""
LIMITS = Limits(
    beat_s=0.02, lost_s=3.0, doubt_s=0.5, lease_s=9.0, grace_s=0.2, arm_s=2.0, ask_s=2.0
)
"""Short ones, but for the silence after which a node is lost: the machine of the tests may be busy.
"""
FOLDER = open_framework("simulated")
IMPATIENT = replace(LIMITS, lost_s=0.4)


def training(spec: RunSpec, *, after_s: float = 0.02, step_s: float = 0.5) -> Program:
    """Return what the ranks of a spec with one rank a node write: rank 0 a line for each step of
    ``step_s``.
    """

    def program(order: Mapping[str, Any]) -> dict[int, Rank]:
        rank, world = order["node_rank"], spec.world_size
        lines = [
            f"orch rank={rank} local_rank=0 world_size={world} node_rank={rank} host=h pid=1 device=simulated"
        ]
        if rank == 0:
            lines += [
                f"orch step={step} t={9 + step * step_s:.6f} step_time_s={step_s * (step > 0)} "
                f"samples={spec.global_batch * (step > 0)} loss=nan"
                for step in range(spec.steps + 1)
            ]
            lines.append(
                f"orch done {json.dumps({'world_size': world, 'ranks': list(range(world)), 'simulated': True})}"
            )
        return {rank: Rank("".join(f"{line}\n" for line in lines).encode(), after_s=after_s)}

    return program


class FakeBench:
    """A bench of one cell, ``2n1g``, on the nodes a and b; ``schedule`` as in `Schedule`.
    ``spares`` are further nodes, and
    ``nodes`` other sizes than 2."""

    def __init__(
        self,
        directory: Path,
        *,
        limits: Limits = LIMITS,
        spares: Sequence[str] = (),
        nodes: tuple[int, ...] = (2,),
        **schedule: Any,
    ) -> None:
        self.source = directory / "cluster.yaml"
        further = "".join(
            f"  {name}: {{address: 10.11.0.{last}}}\n" for last, name in enumerate(spares, 4)
        )
        self.source.write_text(INVENTORY + further)
        inventory = open_inventory(str(self.source))
        self.hosts, self.secrets = inventory.hosts[:2], inventory.secrets
        self.spares = inventory.hosts[2:]
        self.folder = FOLDER
        request = Request(
            "resnet50", nodes=nodes, gpus=(1,), single={"steps": 6, "warmup_steps": 1}
        )
        specs = configure(request, [self.folder], self.hosts).specs
        self.spec = specs[0]
        self.plan = Bench(
            "bench-1",
            tuple(specs),
            {"simulated": self.folder},
            Schedule(**{"repeats": 1, **schedule}),
        )
        record = new_bench_record(
            self.plan,
            {},
            self.hosts,
            str(self.source),
            self.secrets,
            limits,
            (),
            ["orch"],
            spares=self.spares,
        )
        self.bench = BenchDir.create(directory / "runs", record.as_dict())
        everyone = [*self.hosts, *self.spares]
        self.nodes = {
            host.name: FakeNode(host, directory / host.name, training(self.spec))
            for host in everyone
        }
        self.a, self.b, *_ = self.nodes.values()
        self.cluster: Any = FakeCluster(list(self.nodes.values()), inventory.redaction())
        self.limits = limits
        self.interrupt = Interrupt()
        self.shown: list[ProgressEvent] = []
        self.when: dict[str | type[ProgressEvent], Callable[[], Any]] = {}
        """What happens at a transition of the journal, by its name, or when an event is shown, by
        its type.
        """
        self.stage = Stage(self.cluster, limits, self.interrupt, self.journal, self.observe)

    def journal(self, event: str, **fields: Any) -> None:
        """Write into the bench's own journal."""
        self.bench.event(event, **fields)
        self.when.get(event, lambda: None)()

    def observe(self, event: ProgressEvent) -> None:
        """Keep the event."""
        self.shown.append(event)
        self.when.get(type(event), lambda: None)()

    def runs(self, program: Program | None = None, **programs: Program) -> None:
        """Set what the ranks do, on all nodes or on those that are named."""
        for name, node in self.nodes.items():
            node.program = programs.get(name, program or node.program)

    @property
    def campaign(self) -> Campaign:
        """Return what executes the runs of this bench."""
        numbers = iter(range(20000, 30000))
        return Campaign(
            self.bench,
            ActiveHosts(self.bench, self.hosts, self.stage),
            self.stage,
            numbers.__next__,
        )

    def launch(self, **changes: Any) -> Launch:
        """Return the launch of the first run, its nodes connected."""
        self.cluster.open()
        plan = plan_run(
            self.folder, self.spec, self.hosts, run_id=self.first.run_id, repeat=1, port=20000
        )
        for name, value in changes.items():
            object.__setattr__(plan, name, value)
        return Launch(
            plan,
            self.folder,
            self.stage,
            {"user": "me", "controller": "desk", "process": 1, "since": "noon"},
        )

    def controller(self, **more: Any) -> Controller:
        """Return the controller that begins this bench."""
        arguments = {"borrowed": (), "argv": ["orch"], "spares": self.spares, **more}
        return Controller.begin(self.bench, self.plan, self.cluster, self.limits, **arguments)

    @contextmanager
    def show(self, interrupt: Interrupt, log: TextIO) -> Iterator[Observer]:
        """Show as tests do: keep the events, write that a run is over, set the interrupt where this
        bench's own is set.
        """

        def observe(event: ProgressEvent) -> None:
            self.observe(event)
            interrupt.signal = self.interrupt.signal
            if isinstance(event, RunOver):
                log.write(f"{event.run.run_id} {event.state}\n")

        yield observe

    @property
    def first(self) -> PlannedRun:
        """The first planned run."""
        return self.plan.list_runs()[0]

    def run(self, number: int = 0) -> RunDir:
        """Return the folder of a planned run, from 0."""
        return self.bench.run(self.plan.list_runs()[number].run_id)

    def told(self) -> list[str]:
        """Return the names in the journal, in order."""
        return [entry.event for entry in self.bench.events()]

    def started_on(self) -> list[str]:
        """Return the nodes on which a launch script of any run has started."""
        return [
            name
            for name, node in self.nodes.items()
            if list(node.root.glob("nodes/*/runs/*/logs/node.out"))
        ]


def left_in_the_middle(rig: FakeBench, started: tuple[str, ...]) -> Campaign:
    """A run as a controller leaves it that dies while it starts the nodes; those that are named
    have started.
    """
    rig.runs(training(rig.spec, after_s=0.4))
    campaign, launch = rig.campaign, rig.launch()
    campaign.active.facts["simulated"] = {name: {} for name in rig.nodes}
    campaign._write(rig.run(), launch.plan, rig.first)
    for name in launch.hosts:
        launch._stage(name)
        line = rig.nodes[name].supervisor(rig.first.run_id, start=True, timeout_s=1)
        line.send("arm", **launch._order(name))
        if name in started:
            line.send("go", at=0.0)
            supervisor = rig.nodes[name].supervisors[rig.first.run_id]
            judge.wait_for(lambda supervisor=supervisor: supervisor.started, 5, "it does not start")
        line.close()
    return campaign
