"""Progress of a running bench, in lines of text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from orchestrator.checks.check import fold_checks
from orchestrator.controller.events import (
    BlockOver,
    Checked,
    Decided,
    FilesAnswer,
    FilesSilent,
    LeftOut,
    LeftOver,
    LogGrew,
    NodeEnded,
    PlanMade,
    ProgressEvent,
    Resumed,
    RunBegun,
    RunOver,
    RunsPlanned,
    Stalled,
    Started,
    Stopping,
    Stuck,
    TakenOver,
    TakingOver,
    Waiting,
)
from orchestrator.controller.stop_rule import block_words
from orchestrator.grouping import group_pairs
from orchestrator.inventory import fold
from orchestrator.logs.parse import parse
from orchestrator.plan.bench import PlannedRun
from orchestrator.plan.option_values import as_written
from orchestrator.record.node_record import cause_of
from orchestrator.report.cells import number
from orchestrator.report.text import one_line
from orchestrator.results import RunResult
from orchestrator.results.numbers.throughput import Terms, speed_of_line

_SHOWN_METRICS = 3
"""Metrics that the line of a run shows."""


_MOST_NAMED = 20


def _values(run: PlannedRun) -> dict[str, Any]:
    return {"batch_size": run.spec.batch_size, "loader": run.spec.loader, **run.spec.settings}


def _differing(runs: Sequence[PlannedRun]) -> tuple[str, ...]:
    """Return the names of the values that differ between runs of one framework."""
    by_framework = group_pairs((run.spec.framework, _values(run)) for run in runs)
    differing = set()
    for values in by_framework.values():
        names = {name for of_run in values for name in of_run}
        for name in names:
            if len({repr(of_run.get(name)) for of_run in values}) > 1:
                differing.add(name)
    return tuple(sorted(differing))


def _name_processes(processes: Sequence[tuple[int, str]]) -> str:
    named = ", ".join(f"{pid} ({name})" for pid, name in processes[:_MOST_NAMED])
    more = f" and {len(processes) - _MOST_NAMED} more" if len(processes) > _MOST_NAMED else ""
    return one_line(named) + more


def write(stream: TextIO, lines: Sequence[str]) -> None:
    """Write lines; the terminal may be gone, and that must not affect the bench."""
    with suppress(OSError):
        for line in lines:
            stream.write(f"{line}\n")
            stream.flush()


def _unknown(event: NoReturn) -> NoReturn:
    """Refuse an event without a text; the type checker verifies that every event has one."""
    raise AssertionError(event)


class Progress:
    """The current state of a bench, as its events tell it; `take` returns the lines that are shown
    of each.
    """

    def __init__(self) -> None:
        self.planned: Sequence[PlannedRun] = ()
        self.differing: tuple[str, ...] = ()
        self.began = time.monotonic()
        self.done = 0
        self._begin(None)

    def _begin(self, run: PlannedRun | None) -> None:
        """Reset the state for a new run. ``speed`` is the last one in its log, in the unit of the
        run; ``measured`` is the number of steps after the warm-up with a logged speed, and the sum
        of the inverses of these speeds."""
        self.run, self.run_began = run, time.monotonic()
        self.states: dict[str, str] = {}
        self.step, self.speed, self.log = 0, 0.0, b""
        self.measured = (0, 0.0)

    @property
    def unit(self) -> str:
        """The unit of the speed of the current run."""
        speed = self.run.folder.framework.measure.speed if self.run else None
        return speed.unit if speed else ""

    def _settings(self, run: PlannedRun) -> dict[str, str]:
        """Return the settings that distinguish a run from others of the bench and are not in its
        id.
        """
        values = _values(run)
        return {name: as_written(values[name]) for name in self.differing if name in values}

    def take(self, event: ProgressEvent) -> list[str]:
        """Update the state with one event; return its lines for a log."""
        match event:
            case PlanMade(words):
                return [f"plan: {words}"]
            case RunsPlanned(runs):
                self.planned, self.differing = runs, _differing(runs)
            case Checked(checks):
                return [
                    one_line(
                        f"{fold(hosts)}: {check.name}: {check.found}; expected {check.expected}. {check.hint}"
                    )
                    for check, hosts in fold_checks(checks).items()
                    if check.verdict == "warning"
                ]
            case Waiting(holders):
                by_holder = group_pairs((holder, host) for host, holder in holders.items())
                return [
                    f"waiting for {fold(hosts)}, held by {one_line(holder)}"
                    for holder, hosts in by_holder.items()
                ]
            case RunBegun(index, run):
                self._begin(run)
                settings = "".join(
                    f" {name}={value}" for name, value in self._settings(run).items()
                )
                return [
                    one_line(
                        f"[{index + 1}/{max(index + 1, len(self.planned))}] {run.run_id}{settings}"
                    )
                ]
            case Started(hosts):
                self.states = dict.fromkeys(hosts, "running")
                return [f"  started on {fold(hosts)}{event.skew}"]
            case TakingOver(run):
                self._begin(run)
                return [f"taking over {run.run_id}"]
            case TakenOver(hosts):
                self.states = dict.fromkeys(hosts, "running")
                return [f"  continuing on {fold(hosts)}"]
            case LogGrew(data):
                self._read(data)
            case Stalled(words):
                return [f"  {one_line(words)}"]
            case Resumed(silent_s):
                return [f"  the run continues, after {silent_s:.1f} s without a step"]
            case FilesSilent(host, mount, seconds):
                return [f"  {host}: {one_line(mount)} has not answered for {seconds:.0f} s"]
            case FilesAnswer(host, mount, seconds):
                return [f"  {host}: {one_line(mount)} answers again, after {seconds:.0f} s"]
            case Stopping(reason):
                self.states = {
                    host: "stopping" if state == "running" else state
                    for host, state in self.states.items()
                }
                return [f"  stopping on every node: {one_line(cause_of(reason)[1])}"]
            case NodeEnded(host, state):
                self.states[host] = state
            case LeftOver(host, processes):
                return [
                    f"  {host}: ended processes that the program had left running: {_name_processes(processes)}"
                ]
            case Stuck(host, processes):
                why = "no signal ends them, as they wait in the kernel; orch check says whether they still run"
                return [f"  {host}: processes {_name_processes(processes)} are left: {why}"]
            case LeftOut(host, names):
                return [
                    f"  {host}: left on the node, because they are not logs: {one_line(', '.join(names))}"
                ]
            case RunOver():
                return [self._over(event)]
            case BlockOver(repeat, width, schedule, left_s):
                return [f"  {block_words(schedule, width, repeat, left_s)}"]
            case Decided(notes):
                return list(notes)
            case _:
                _unknown(event)
        return []

    def _over(self, event: RunOver) -> str:
        self.done = event.index + 1
        took = time.monotonic() - self.run_began
        speed = self._speed(event.result) if event.state == "finished" and event.result else ""
        words = [event.error.host, one_line(event.error.message)] if event.error else []
        if event.result and event.result.has_failed and event.result.error and not event.error:
            words = [one_line(event.result.error.message)]
        cause = "".join(f": {word}" for word in words if word)
        return f"  {event.state} in {took:.1f} s{speed}{cause}"

    def _speed(self, result: RunResult) -> str:
        """Return the speed of a run over its window, as in the table, or its first metrics, or a
        remark that it has none.

        Without collected logs, the speed comes from the live log.
        """
        if result.speed is not None and result.measure.speed:
            return f", {number(result.speed)} {result.measure.speed.unit}"
        if result.values and not any(value.key for value in result.values):
            units = {metric.name: metric.unit for metric in result.metrics}
            shown = result.values[:_SHOWN_METRICS]
            return "".join(
                f", {value.metric} {number(value.number)} {units[value.metric]}" for value in shown
            )
        if result.has_failed:
            return ", no number"
        lines, sum_of_inverse = self.measured
        if lines and result.state == "incomplete":
            return f", about {lines / sum_of_inverse:.1f} {self.unit}"
        return ""

    def _read(self, data: bytes) -> None:
        """Read current step and speed from the first rank's log, for display only; results come
        from the collected files.
        """
        if self.run is None:
            return
        self.log = (self.log + data)[-65536:]
        spec = self.run.spec
        grammar = self.run.folder.framework.log.with_options(spec.options)
        terms = Terms.of(spec, grammar)
        whole = self.log[
            : 1 + max(self.log.rfind(b"\n"), self.log.rfind(b"\r"))
        ]  # an incomplete line may end within a number
        for sample in parse(whole, grammar).samples:
            if sample.step <= self.step:
                continue
            self.step, speed = sample.step, speed_of_line(sample, terms)
            if speed:
                self.speed = speed * spec.items
                if sample.step > terms.warmup_steps:
                    self.measured = self.measured[0] + 1, self.measured[1] + 1 / self.speed
