"""The execution of a bench: run after run, each collected and verified clean before the next
starts.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator.controller.active_hosts import ActiveHosts
from orchestrator.controller.busy import is_busy, wait_until_free
from orchestrator.controller.events import LeftOut, RunBegun, RunOver
from orchestrator.controller.launch import Launch, Outcome
from orchestrator.controller.reattach import Trace, find
from orchestrator.controller.root_cause import with_cause
from orchestrator.controller.spares import find_lost_hosts
from orchestrator.controller.stage import Stage
from orchestrator.engines.listing import logs_go_with_job
from orchestrator.errors import Faults, Interrupted, OrchError, RunError, TransportError
from orchestrator.nodes.collect import RESTARTED, collect_host, has_restarted
from orchestrator.nodes.fanout import each
from orchestrator.nodes.leftovers import Leftovers
from orchestrator.nodes.node import Node
from orchestrator.plan.bench import PORTS, PlannedRun, plan_run
from orchestrator.plan.render import Plan, without_secrets
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.journal import Event
from orchestrator.record.manifest import (
    Answer,
    Clean,
    RecordedOutcome,
    StartRecord,
    manifest_of,
    read_manifest,
    write_end,
)
from orchestrator.record.pending_work import supersede
from orchestrator.record.project import owner

_PORT_TRIES = 3
_WRITING = 32
_BACK_S = 30.0
"""How long a node that was lost may take to come back where its logs go with the job."""


@dataclass(slots=True)
class Campaign:
    """Everything that the runs of one bench share."""

    bench: BenchDir
    active: ActiveHosts
    stage: Stage
    next_port: Callable[[], int]
    errors: list[OrchError] = field(default_factory=list)

    def execute(self, runs: Iterable[PlannedRun], needed: Sequence[PlannedRun]) -> list[OrchError]:
        """Execute the runs in order, each requested when the previous one is over; return the
        errors of failed runs.

        ``needed`` holds a run of every kind that may follow. Raises at once if the cluster is
        unreachable or unfit for them.
        """
        for index, run in enumerate(() if self.stage.interrupt.signal else runs):
            if not self.stage.interrupt.signal:
                self.active.ready(run, needed)
            if self.stage.interrupt.signal:
                break
            self.stage.observe(RunBegun(index, run))
            outcome = self._execute(run)
            while (
                is_busy(outcome.error)
                and self.stage.limits.wait_s
                and not self.stage.interrupt.signal
            ):
                run = self._when_free(index, run)
                outcome = self._execute(run)
            self.stage.observe(RunOver(index, run, outcome.state, outcome.error))
            is_made_again = self.active.replace_lost(run, outcome.faults, needed)
            if not is_made_again:
                self.errors += [*([outcome.error] if outcome.error else []), *outcome.unreached]
            self.errors += outcome.leftovers
            if is_made_again:
                continue
            interrupted = outcome.error is not None and outcome.error.kind == "interrupted"
            # Further runs would meet the same run on the same node.
            if (
                self.stage.interrupt.signal
                or outcome.state == "lost"
                or interrupted
                or is_busy(outcome.error)
            ):
                break
            if outcome.unreached:
                break
        self._note_interrupt()
        return self.errors

    def _when_free(self, index: int, run: PlannedRun) -> PlannedRun:
        """Wait until the nodes are free, and return another attempt at a run that was not started."""
        self.stage.cluster.open()
        wait_until_free(self.stage, [host.name for host in self.active.hosts])
        attempt = supersede(self.bench, run)
        self.stage.observe(RunBegun(index, attempt))
        return attempt

    def _note_interrupt(self) -> None:
        """Add the error of a signal, which decides the end of a bench even if it came between two
        runs, and how to continue.
        """
        if self.stage.interrupt.signal and not any(
            isinstance(error, Interrupted) for error in self.errors
        ):
            message = (
                "interrupted by a signal to the controller; the remaining runs were not started"
            )
            self.errors.append(Interrupted(self.stage.interrupt.signal, message))
        for error in self.errors:
            if isinstance(error, Interrupted):
                error.hint = f"to continue: orch resume {shlex.quote(self.bench.path.name)}"
        self.errors.sort(key=lambda error: not isinstance(error, Interrupted))

    def _execute(self, run: PlannedRun) -> Outcome:
        rundir = self.bench.run(run.run_id)
        for attempt in range(1, _PORT_TRIES + 1):
            hosts = self.active.of(run)
            plan = plan_run(
                run.folder,
                run.spec,
                hosts,
                run_id=run.run_id,
                repeat=run.repeat,
                port=self.next_port(),
            )
            self._write(rundir, plan, run)
            launch = self._launch(plan, run)
            try:
                self.stage.cluster.ready_for_runs(self.active.hosts)
                outcome = launch.run()
                break
            except OrchError as error:
                busy = isinstance(error, Faults) and {fault.kind for fault in error.errors} == {
                    "port_busy"
                }
                if not busy or attempt == _PORT_TRIES:
                    state = "interrupted" if isinstance(error, Interrupted) else "failed"
                    outcome = Outcome(state, error, None, released=launch.watch.released)
                    break
        return self._finish(rundir, plan, outcome)

    def _launch(self, plan: Plan, run: PlannedRun) -> Launch:
        stage = replace(self.stage, journal=partial(self.stage.journal, run=run.run_id))
        return Launch(plan, run.folder, stage, owner())

    def take_over(self, run: PlannedRun) -> Outcome | None:
        """Take over a run that another controller abandoned, and bring it to its end; return None
        if no node had started it.

        A run that is still running on every node is watched to its end as usual. A run that was
        started on some nodes only, or that has lost its supervisor on a node, is stopped, and its
        outcome says so; so is one of which a node is lost, if there is a spare for it. Raises
        Faults of nodes that cannot be asked.
        """
        rundir = self.bench.run(run.run_id)
        port = read_manifest(rundir).placement.master_port
        plan = plan_run(
            run.folder,
            run.spec,
            self.active.hosts,
            run_id=run.run_id,
            repeat=run.repeat,
            port=port,
        )
        names = [slot.host for slot in plan.placement.slots]
        absent = {error.host: error for error in self.active.connect() if error.host in names}
        nodes, ask_s = self.stage.cluster.nodes, self.stage.limits.ask_s
        there = [name for name in names if name not in absent]
        traces, mute = each(there, lambda name: find(nodes[name], run.run_id, timeout_s=ask_s))
        absent |= mute
        lost = find_lost_hosts(self.active.hosts, absent.values())
        if absent and not (len(lost) == len(absent) and self.active.may_replace(lost, run)):
            _close(traces)
            raise Faults(list(absent.values()))
        states = {trace.state for trace in traces.values()}
        launch = self._launch(plan, run)
        if states == {"nothing"} and not lost:
            launch.take_back()
            return None
        start = self._start_of(run.run_id)
        if states <= {"running", "ended"} and not lost:
            self.stage.journal(Event.TAKEN_OVER, run=run.run_id)
            return self._finish(rundir, plan, launch.adopt(traces, start))
        _close(traces)
        cause = f"controller died {'in mid-run' if start else 'while it was being started'}"
        remains, _ = each(
            traces, lambda name: self._stop(run.run_id, name, f"interrupted: its {cause}")
        )
        rest = [f"{name}: {left.words}" for name, left in remains.items() if left.words]
        if lost:
            gone = self._lost_meanwhile(run, cause, rest, lost)
            silent = {name: Answer(silent=True) for name in lost}
            return self._finish(rundir, plan, Outcome("lost", gone, start, answers=silent))
        broken = next(
            name for name, trace in traces.items() if trace.state in ("broken", "nothing")
        )
        if start:
            what = "the supervisor on this node left no exit record"
            if traces[broken].state == "nothing":
                what = "this node no longer has the run"
            elif has_restarted(rundir, broken, traces[broken].boot_id):
                what = RESTARTED
            cause += f", and {what}"
        message = f"the {cause}; {'; '.join(rest) or 'the run was stopped on all nodes'}"
        error = RunError(message, kind="interrupted", host=broken, run_id=run.run_id, phase="go")
        return self._finish(rundir, plan, Outcome("interrupted", error, start))

    def _lost_meanwhile(
        self, run: PlannedRun, cause: str, rest: Sequence[str], lost: Mapping[str, OrchError]
    ) -> TransportError:
        """Return the error of a run that lost a node while it had no controller."""
        host, fault = next(iter(lost.items()))
        text = "; ".join(
            [
                fault.message,
                *rest,
                f"if it still runs, it stops the run by itself within {self.stage.limits.lease_s:g} s",
            ]
        )
        message = f"the {cause}, and this node is lost: {text}"
        return TransportError(
            message,
            kind=fault.kind,
            host=host,
            run_id=run.run_id,
            phase="watch",
            hint="when it is back, orch collect fetches its logs",
        )

    def _start_of(self, run_id: str) -> StartRecord | None:
        """Return the record of a run's start from the journal, None if it was not started
        everywhere.
        """
        started = [
            entry
            for entry in self.bench.events()
            if entry.event == Event.STARTED and entry.run == run_id
        ]
        if not started:
            return None
        return StartRecord.of(started[-1].fields)

    def _stop(self, run_id: str, host: str, reason: str) -> Leftovers:
        node, limits = self.stage.cluster.nodes[host], self.stage.limits
        timeout_s = limits.ask_s + limits.grace_s
        return Leftovers.of(
            node.ask(
                "stop", run=run_id, grace_s=limits.grace_s, reason=reason, timeout_s=timeout_s
            ),
            host,
        )

    def _write(self, rundir: RunDir, plan: Plan, run: PlannedRun) -> None:
        facts = {
            slot.host: self.active.facts[run.spec.framework][slot.host]
            for slot in plan.placement.slots
        }
        rundir.write_manifest(manifest_of(plan, run.folder, self.bench.path.name, facts))
        nodes = {
            node.slot.host: node
            for node in without_secrets(plan, self.stage.cluster.redaction).nodes
        }

        def write(host: str) -> None:
            for file in nodes[host].files:
                rundir.write_rendered(host, file.path, file.content.encode(), file.mode)

        # Each write waits for the disk, which flushes files of several hosts together.
        _, errors = each(nodes, write, _WRITING)
        for error in errors.values():  # of one disk: they would all say the same
            raise error
        self.stage.journal(Event.PLANNED, run=plan.run_id, port=plan.placement.master_port)

    def _finish(self, rundir: RunDir, plan: Plan, outcome: Outcome) -> Outcome:
        """Collect, look for leftover processes, end them, and record all of it, whatever happened
        before.
        """
        hosts = [slot.host for slot in plan.placement.slots]
        # Asking a node that has just been given up would only cost another timeout.
        nodes = self.stage.cluster.nodes
        back_s = _BACK_S if outcome.released and logs_go_with_job(self.bench.record()) else 0.0
        reachable = [
            host
            for host in hosts
            if back_s or host in nodes and not outcome.answers.get(host, Answer()).silent
        ]
        remains: dict[str, Leftovers] = {}
        results, errors = each(reachable, lambda host: self._collect(rundir, host, remains, back_s))
        for host, failure in errors.items():
            self.stage.journal(Event.NOT_COLLECTED, run=plan.run_id, host=host, error=str(failure))
        clean = {host: results.get(host, Clean(checked=False)) for host in hosts}
        facts = read_manifest(rundir).facts
        error = with_cause(outcome.error, outcome.rivals, rundir, facts)
        ended = RecordedOutcome(
            outcome.state, error, clean, outcome.answers, outcome.released, outcome.evidence
        )
        write_end(rundir, outcome.start, ended)
        self.stage.journal(outcome.state, run=plan.run_id, error=str(error) if error else None)
        if not errors and len(results) == len(hosts):
            self.stage.journal(Event.COLLECTED, run=plan.run_id)
        leftovers: list[OrchError] = [
            fault for host in hosts if host in remains for fault in remains[host].errors(host)
        ]
        for failure in errors.values():
            # A node that was lost in the run is the run's own error, and altered bytes show in its
            # results.
            if isinstance(failure, RunError):
                failure.run_id = plan.run_id
                leftovers.append(failure)
        unreached = [failure for failure in errors.values() if _is_news(failure, outcome)]
        for failure in unreached:
            failure.run_id = plan.run_id
        silent = [
            host
            for host, failure in errors.items()
            if isinstance(failure, TransportError) and self.active.spares
        ]
        faults = (*outcome.faults, *each(silent, self._greet)[1].values())
        rest = tuple(leftovers)
        return Outcome(
            outcome.state,
            error,
            outcome.start,
            leftovers=rest,
            faults=faults,
            unreached=tuple(unreached),
        )

    def _greet(self, host: str) -> None:
        """Raise OrchError if a node that could not be asked does not answer on a new connection
        either.
        """
        self.stage.cluster.reconnect(host).ask("status", timeout_s=self.stage.limits.ask_s)

    def _collect(
        self, rundir: RunDir, host: str, remains: dict[str, Leftovers], back_s: float
    ) -> Clean:
        """Collect one host's evidence, and enter leftovers of the run there in ``remains``, even on
        failure.

        A connection that broke after the run is made again, once, or for ``back_s``.
        """
        cluster = self.stage.cluster
        until = time.monotonic() + back_s
        node = cluster.nodes.get(host)
        if node and node.transport.alive:
            try:
                return self._collect_from(node, rundir, remains)
            except TransportError as error:
                if error.kind != "node_lost" or self.stage.interrupt.signal:
                    raise
        while True:
            try:
                return self._collect_from(cluster.reconnect(host), rundir, remains)
            except TransportError as error:
                is_in_time = time.monotonic() < until and not self.stage.interrupt.signal
                if is_in_time and not error.is_final:
                    time.sleep(1.0)
                    continue
                error.phase = "collect"
                error.hint = (
                    error.hint
                    if error.is_of_identity
                    else "when it is back, orch collect fetches its logs"
                )
                raise

    def _collect_from(self, node: Node, rundir: RunDir, remains: dict[str, Leftovers]) -> Clean:
        host = node.host.name
        left = Leftovers.of(
            node.ask("left", run=rundir.run_id, timeout_s=self.stage.limits.ask_s), host
        )
        if left.left:
            answer = node.ask(
                "stop",
                run=rundir.run_id,
                grace_s=1.0,
                reason="left over",
                timeout_s=self.stage.limits.ask_s,
            )
            left = Leftovers.of(answer, host)
        remains[host] = left
        collected = collect_host(node, rundir, max_bytes=self.stage.limits.output_bytes)
        if collected.odd:
            self.stage.journal(
                Event.LEFT_OUT, run=rundir.run_id, host=host, names=list(collected.odd)
            )
            self.stage.observe(LeftOut(host, collected.odd))
        return Clean(checked=True, left=left.left, unverified=left.processes)


def _is_news(failure: OrchError, outcome: Outcome) -> bool:
    """Return True for a node that could not be asked after a run that has no error, or that another
    server stands for.
    """
    if not isinstance(failure, TransportError) or failure.kind == "transfer_corrupt":
        return False
    return outcome.error is None or failure.is_of_identity


def _close(traces: Mapping[str, Trace]) -> None:
    for trace in traces.values():
        if trace.line:
            trace.line.close()


def ports(choose: Callable[[range], int]) -> Callable[[], int]:
    """Return a source of rendezvous ports, each returned once, because a port of the previous run
    may still be closing.
    """
    used = set()

    def take() -> int:
        while (port := choose(PORTS)) in used:
            continue
        used.add(port)
        return port

    return take
