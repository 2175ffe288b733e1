"""The launch of one run on all its nodes: stage, arm, start signal, and then `Watch` until its end.

Nothing starts on any node before every node is armed. `Launch.adopt` continues a run that another
controller started and abandoned.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.controller.events import Started, TakenOver
from orchestrator.controller.peer import Peer, close_seconds
from orchestrator.controller.reattach import Trace
from orchestrator.controller.stage import Stage
from orchestrator.controller.watch import Watch
from orchestrator.errors import Faults, OrchError, RunError, TransportError
from orchestrator.inventory.reserved import LAB_VARIABLE
from orchestrator.nodes.conversation import SupervisorLine
from orchestrator.nodes.deploy import stage_payload
from orchestrator.nodes.fanout import each, each_or_raise
from orchestrator.nodes.node import Upload
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import run_path
from orchestrator.plan.payload import pack, telemetry_source
from orchestrator.plan.render import Plan
from orchestrator.record.journal import Event
from orchestrator.record.manifest import Answer, StartRecord

MOST_SAMPLED = 8
"""Of nodes that are one machine, as in a lab, no more are sampled: each costs it 30 ms at its
start, and all see the same.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: finished, failed, lost or interrupted, with the first cause and the
    record of the start.

    ``rivals`` are failures of ranks that may have preceded that cause within the precision of the
    clocks; ``answers`` is the result of `Watch.answers`. Unless ``released``, nothing has run on
    any node. ``leftovers`` says on which nodes processes still run, or where their end could not be
    verified. ``evidence`` is what monitors of the run leave in its manifest. ``faults`` are the
    errors of nodes that were given up in the run, or do not answer at its end. ``unreached`` are
    the errors of nodes that could not be asked afterwards, although the run itself has no such
    error.
    """

    state: str
    error: OrchError | None
    start: StartRecord | None
    rivals: tuple[OrchError, ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    released: bool = True
    leftovers: tuple[OrchError, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[OrchError, ...] = ()
    unreached: tuple[OrchError, ...] = ()


class Launch:
    """One run from its files to its outcome. ``owner`` is the record on the nodes that shows whose
    run it is.
    """

    def __init__(
        self, plan: Plan, folder: FrameworkFolder, stage: Stage, owner: Mapping[str, Any]
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.stage = stage
        self.owner = owner
        grammar = self._grammar
        self.watch = Watch(plan, stage, tail=grammar.files[0], of_last=grammar.nodes == "last")
        self.hosts = self.watch.hosts
        self._plans = {node.slot.host: node for node in plan.nodes}

    def run(self) -> Outcome:
        """Launch and watch the run. Raises OrchError if nothing was started; any later error is in
        the outcome.
        """
        try:
            each_or_raise(self.hosts, self._stage)
            self.stage.journal(Event.STAGED)
            self._arm()
            self.watch.synchronise()
            start = self._go()
            self.watch.run()
        finally:
            self.watch.close()
            if not self.watch.released:
                self.take_back()
        return self._outcome(start)

    def adopt(self, traces: Mapping[str, Trace], start: StartRecord | None) -> Outcome:
        """Continue a run that another controller started; every node has a supervisor or an exit
        record of it.

        ``start`` is that controller's record of the start, if it wrote one; it holds the clock
        offsets for nodes with only an exit record.
        """
        offsets = {host: node.offset_s for host, node in start.hosts.items()} if start else {}
        watch = self.watch
        watch.released = True
        try:
            for name in self.hosts:
                trace = traces[name]
                peer = watch.peers[name] = Peer(name, trace.line, offset_s=offsets.get(name, 0.0))
                if trace.line:
                    started, peer.boot_id = (
                        trace.line.hello.get("started"),
                        str(trace.line.hello.get("boot_id", "")),
                    )
                    peer.started = started if isinstance(started, (int, float)) else None
                    watch.listen(trace.line)
            for name, trace in traces.items():
                if trace.record is not None:
                    watch.take_end(watch.peers[name], trace.record)
            self.stage.observe(TakenOver(self.hosts))
            watch.run()
        finally:
            watch.close()
        return self._outcome(start)

    def take_back(self) -> None:
        """Remove from every node the staged files of a run that never started, in particular its
        environment variables.
        """
        each(self.hosts, self._drop)

    @property
    def _grammar(self) -> Any:
        return self.folder.framework.log.with_options(self.plan.spec.options)

    @property
    def _arm_s(self) -> float:
        return self.stage.limits.round_s(self.stage.limits.arm_s, len(self.hosts))

    def _outcome(self, start: StartRecord | None) -> Outcome:
        watch = self.watch
        state, error = watch.verdict()
        rivals = close_seconds(watch.peers, self.plan.run_id)
        faults = tuple(peer.error for peer in watch.peers.values() if peer.error)
        evidence = watch.monitors.evidence(error)
        return Outcome(
            state, error, start, rivals, watch.answers(), evidence=evidence, faults=faults
        )

    # -- stage, arm, go

    def _stage(self, name: str) -> None:
        node = self.stage.cluster.nodes[name]
        stage_payload(node, self.folder)
        base = run_path(name, self.plan.run_id)
        node.put(
            [
                Upload(f"{base}/{file.path}", file.content.encode(), file.mode)
                for file in self._plans[name].staged
            ],
            timeout_s=60,
        )

    def _drop(self, name: str) -> None:
        self.stage.cluster.nodes[name].ask(
            "drop", run=self.plan.run_id, finished=False, timeout_s=self.stage.limits.ask_s
        )

    def _arm(self) -> None:
        arm_s = self._arm_s

        def open_line(name: str) -> SupervisorLine:
            node = self.stage.cluster.nodes[name]
            try:
                return node.supervisor(self.plan.run_id, start=True, timeout_s=arm_s)
            except TransportError as error:
                if error.kind != "node_lost" or not node.transport.alive:
                    raise
                expected = f"expected its supervisor to be ready within {arm_s:g} s, got no answer"
                message = f"{expected}; nothing was started: {error.message}"
                raise RunError(
                    message, kind="start_timeout", host=name, run_id=self.plan.run_id, phase="arm"
                ) from error

        lines, errors = each(self.hosts, open_line)
        self.watch.peers = {name: Peer(name, line) for name, line in lines.items()}
        if errors:
            raise Faults(list(errors.values()))
        nodes = self.stage.cluster.nodes
        machines = {
            name: LAB_VARIABLE in nodes[name].host.vars or line.hello.get("boot_id")
            for name, line in lines.items()
        }
        sampled = first_of_each(machines, MOST_SAMPLED)
        for name, peer in self.watch.peers.items():
            self.watch.listen(lines[name])
            peer.send(
                "arm",
                **self._order(name, is_sampled=self.stage.limits.telemetry and name in sampled),
            )
        self.watch.wait(lambda peer: peer.armed, arm_s, "arm")
        self.stage.journal(Event.ARMED)

    def _order(self, name: str, *, is_sampled: bool = False) -> dict[str, Any]:
        node, limits = self._plans[name], self.stage.limits
        holding = {"first": (0,), "last": (len(self.hosts) - 1,)}.get(self._grammar.nodes)
        holds_samples = holding is None or node.slot.node_rank in holding
        return {
            "run_id": self.plan.run_id,
            "node_rank": node.slot.node_rank,
            "argv": list(node.argv),
            "files": {
                file.path: hashlib.sha256(file.content.encode()).hexdigest() for file in node.staged
            },
            "variables": node.variables,
            "ports": list(node.ports),
            # Processes started here by another node's launcher do not descend from the supervisor;
            # the run's marker finds them.
            "by_marker": self.plan.launch == "first_node",
            "lease_s": limits.lease_s,
            "limit_s": self.plan.spec.timeout_s,
            "first_line_s": limits.first_line_s,
            "stall_s": limits.stall_s,
            "progress": list(self._grammar.files) if holds_samples else [],
            "rank_logs": list(self._grammar.rank_files),
            "steps": [pattern for pattern in self._grammar.patterns if "(?P<step>" in pattern],
            "planned_steps": self.plan.spec.steps * self._grammar.micro_batches,
            "examines": True,
            "grace_s": limits.grace_s,
            "output_limit_bytes": limits.output_bytes,
            "owner": {**self.owner, "run_id": self.plan.run_id},
            "telemetry": is_sampled
            and {
                "packed": pack(telemetry_source()),
                "device": self.plan.spec.device,
                "devices": node.slot.devices,
            },
        }

    def _go(self) -> StartRecord | None:
        """Send every node the start signal for one instant, given in its own clock; return the
        record of the start.

        Nothing is raised from here on, because a released run is watched to its end. None if not
        every node started.
        """
        peers, interrupt = self.watch.peers, self.stage.interrupt
        slowest = max(peer.round_trip_s for peer in peers.values())
        instant = time.monotonic() + max(0.03 + 0.002 * len(peers), 4 * slowest)
        self.watch.released = True
        for peer in peers.values():
            peer.send("go", at=instant + peer.offset_s)
        deadline = time.monotonic() + self._arm_s
        while (
            any(peer.started is None and not peer.over for peer in peers.values())
            and not interrupt.signal
        ):
            self.watch.take_events(0.05)
            if time.monotonic() > deadline:
                break
        start = self.watch.start_record()
        if start:
            self.stage.journal(Event.STARTED, **asdict(start))
            self.stage.observe(Started(list(start.hosts), start.skew_s, start.bound_s))
        elif not interrupt.signal:
            message = f"expected the launch script to start within {self._arm_s:g} s of the start signal, got no report of it"
            for name, peer in peers.items():
                if peer.started is None and not peer.over:
                    peer.error = RunError(
                        message,
                        kind="start_timeout",
                        host=name,
                        run_id=self.plan.run_id,
                        phase="go",
                    )
        return start


def first_of_each(kinds: Mapping[str, Any], most: int) -> set[str]:
    """Return the names that are among the first ``most`` of their kind.

    >>> sorted(first_of_each({"a": 1, "b": 1, "c": 1, "d": 2}, 2))
    ['a', 'b', 'd']
    """
    seen: Counter[Any] = Counter()
    chosen = set()
    for name, kind in kinds.items():
        seen[kind] += 1
        if seen[kind] <= most:
            chosen.add(name)
    return chosen
