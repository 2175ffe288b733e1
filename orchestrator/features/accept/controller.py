"""An acceptance carried out: stage after stage on the hosts that are still in it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.api.prepare import begin_bench
from orchestrator.api.selection import Selection
from orchestrator.checks import Check, same_machine
from orchestrator.checks.check import failure
from orchestrator.checks.judge import among, judge
from orchestrator.cli.controller import reopen_bench, run
from orchestrator.cli.options import open_frameworks, say
from orchestrator.controller.busy import is_busy
from orchestrator.controller.controller import Controller
from orchestrator.errors import ConfigError, DataError, Faults, Interrupted, OrchError
from orchestrator.feature import providers
from orchestrator.features.accept.nodes import is_chosen
from orchestrator.features.accept.record import AcceptanceDir, AcceptanceRecord, Attempt
from orchestrator.features.accept.stage_bench import bench_of
from orchestrator.features.accept.suite import Suite, SuiteStage
from orchestrator.inventory import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.preflight import capture
from orchestrator.plan import Limits
from orchestrator.plan.bench import Bench
from orchestrator.plan.framework import Framework
from orchestrator.plan.option_values import shortest
from orchestrator.plan.placement import used_hosts
from orchestrator.record.refusals import errors_between_runs
from orchestrator.record.rundir import RunDir
from orchestrator.report.text import one_line
from orchestrator.results import RunResult
from orchestrator.results.read import read_run
from orchestrator.yamlfile import Document

_LATE = 1.1
"""A stage that would end later than this many times the budget is left out."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """An attempt at a stage.

    ``accused`` are hosts that it does without because a failed run named them, with the reasons;
    ``is_repeated``: it comes after a failed one, and is the last; ``continued`` is the attempt of
    an earlier process to go on with.
    """

    hosts: Sequence[Host]
    accused: Mapping[str, str] = field(default_factory=dict)
    is_repeated: bool = False
    continued: Attempt | None = None


@dataclass(slots=True)
class Acceptance:
    """One acceptance that this process carries out."""

    folder: AcceptanceDir
    selection: Selection
    document: Document
    suite: Suite
    bases: Sequence[Path]
    limits: Limits
    accept_new: bool = False
    retry_failed: bool = False
    began_s: float = 0.0

    def carry_out(self) -> None:
        """Make every stage that is not over. Raises Interrupted after a signal, and errors that no
        stage can go on after.
        """
        record = self.folder.record()
        self.began_s = time.monotonic()
        by_name = {stage.name: stage for stage in self.suite.stages}
        for number, name in enumerate(record.stages, start=1):
            if name in self.folder.record().over:
                continue
            stage = by_name[name]
            _say(f"stage {number} of {len(record.stages)}, {name}: {stage.title}")
            self._make(stage, self._skip_reason(stage))
        if record.budget_s is not None and not record.is_over:
            self._make_what_still_fits()

    def _make(self, stage: SuiteStage, skip_reason: str) -> None:
        reason = skip_reason
        if not reason and stage.checks:
            self._check_hosts(stage)
        elif not reason:
            reason = self._run_bench(stage)
        if reason:
            _say(f"{stage.name} is not tested: {reason}")
        self._mark_over(stage.name, reason)

    def _make_what_still_fits(self) -> None:
        """Make stages that were left out, in order, as far as the others took less of the budget
        than was estimated.
        """
        for stage in self.suite.stages:
            if stage.name in self.folder.record().left_out and not self._skip_reason(
                stage, late=1.0
            ):
                _say(f"stage {stage.name} fits the budget after all: {stage.title}")
                self.folder.change(partial(_with_stage, name=stage.name))
                self._make(stage, "")

    def _skip_reason(self, stage: SuiteStage, late: float = _LATE) -> str:
        """Return why a stage cannot be made now, or would end later than ``late`` times the budget;
        empty if it can.
        """
        record = self.folder.record()
        missing = [name for name in stage.needs if record.over.get(name, "left out")]
        if missing:
            return f"needs {missing[0]}, which has no result"
        if record.of_stage(stage.name):
            return ""
        try:
            estimate_s = self._estimate_s(stage)
        except ConfigError as error:
            return str(error)
        spent_s = time.monotonic() - self.began_s
        if record.budget_s is not None and spent_s + estimate_s > late * record.budget_s:
            return f"takes about {shortest(round(estimate_s))}, too little of the budget is left"
        return ""

    def _estimate_s(self, stage: SuiteStage) -> float:
        if stage.checks:
            return stage.estimate_s(1, len(self.selection.hosts))
        hosts = self._hosts()
        plan = bench_of(stage, self.document, hosts, self.bases)
        return stage.estimate_s(len(plan.list_runs()), len(hosts))

    def _hosts(self) -> list[Host]:
        """Return the hosts that are still in."""
        out = self.folder.record().out
        return [host for host in self.selection.hosts if host.name not in out]

    def _mark_over(self, name: str, reason: str) -> None:
        self.folder.change(lambda now: replace(now, over={**now.over, name: reason}))

    def _leave_out(self, reasons: Mapping[str, str], over: str = "") -> None:
        """Leave hosts out of what follows; a stage whose evidence would be overwritten is ``over``
        in the same moment.
        """
        for host, reason in reasons.items():
            _say(f"{host} is left out of the remaining stages: {reason}")
        is_over = {over: ""} if over else {}
        self.folder.change(
            lambda now: replace(now, out={**now.out, **reasons}, over={**now.over, **is_over})
        )

    # -- checks

    def _check_hosts(self, stage: SuiteStage) -> None:
        """Check all hosts and leave out those that fail. Raises Faults if two are one machine, or
        none answers.
        """
        (folder,) = open_frameworks([stage.framework], self.bases)
        with self.selection.cluster(self.accept_new) as cluster:
            unreachable: Mapping[str, OrchError] = cluster.open_what_answers()
            facts, silent = capture(cluster, folder.framework, names=list(cluster.nodes))
            told, audited = _audit(cluster, facts) if "all" in stage.checks else ({}, [])
        if twice := same_machine(facts):
            raise Faults(twice)
        checks = self._judge(facts, {**unreachable, **silent}, folder.framework)
        self.folder.write_checks(
            stage.name,
            json.loads(json.dumps(facts, default=str)),
            list(map(asdict, checks)),
            (told, list(map(asdict, audited))),
        )
        reasons: dict[str, str] = {}
        for check in checks:
            if check.verdict == "failed" and is_chosen(check.name, stage.checks):
                reasons.setdefault(
                    check.host, f"{check.name}: expected {check.expected}, found {check.found}"
                )
        if len(reasons) == len(self.selection.hosts) and not facts:
            raise Faults([*unreachable.values(), *silent.values()])
        self._leave_out(reasons, over=stage.name)

    def _judge(
        self,
        facts: Mapping[str, Mapping[str, Any]],
        silent: Mapping[str, OrchError],
        framework: Framework,
    ) -> list[Check]:
        checks = []
        for host in self.selection.hosts:
            if host.name in facts:
                checks += judge(host, facts[host.name], framework, None)
        checks += among(facts, self.selection.hosts)
        for name, error in silent.items():
            checks.append(failure(name, "reach", error.message, "an answer", error.hint))
        return checks

    # -- benches

    def _run_bench(self, stage: SuiteStage) -> str:
        """Run a stage; without nodes that are unfit for it, and once more without those that a
        failed run names. Return why nothing was measured.

        Only if it then succeeds are they left out of what follows: a program that fails everywhere
        names one node after another. A node that is unfit is left out at once, also before that
        second time."""
        trial = self._first_trial(stage)
        while True:
            controller = self._continue(trial)
            if controller is None:
                try:
                    plan = bench_of(stage, self.document, trial.hosts, self.bases)
                except ConfigError as error:
                    return "" if self._is_measured(stage) else str(error)
                controller = self._begin(stage, plan, trial.hosts)
            errors, results = self._run(controller)
            following = self._next_trial(stage, trial, errors, results)
            if following is None:
                if any(result.is_good for result in results):
                    return ""
                return _words(errors)
            trial = following

    def _first_trial(self, stage: SuiteStage) -> _Trial:
        """Return the attempt that a process makes first: a new one, or where an earlier process was
        interrupted.
        """
        record = self.folder.record()
        attempts = record.of_stage(stage.name)
        if not attempts:
            return _Trial(self._hosts())
        last = attempts[-1]
        trial = _Trial(
            [host for host in self.selection.hosts if host.name in last.hosts], continued=last
        )
        left = [host for host in trial.hosts if host.name not in record.out]
        if not self._runs(last) and len(left) < len(
            trial.hosts
        ):  # refused, and one of them left out since
            trial = _Trial(left)
        failed = next((attempt for attempt in reversed(attempts[:-1]) if self._runs(attempt)), None)
        if failed is None or stage.optional:
            return replace(trial, is_repeated=failed is not None)
        errors = errors_between_runs(self.folder.bench(failed.bench_id))
        named = _blame_hosts(errors, [read_run(run) for run in self._runs(failed)])
        accused = {host: reason for host, reason in named.items() if host not in last.hosts}
        return replace(trial, accused=accused, is_repeated=True)

    def _continue(self, trial: _Trial) -> Controller | None:
        """Return the controller that goes on with the bench of an earlier process; None if there is
        none.
        """
        if not trial.continued or not self._has_bench(trial.continued):
            return None
        bench = self.folder.bench(trial.continued.bench_id)
        return reopen_bench(bench, accept_new=self.accept_new, retry_failed=self.retry_failed)

    def _begin(self, stage: SuiteStage, plan: Bench, hosts: Sequence[Host]) -> Controller:
        """Note a new attempt, and return its controller."""
        self._drop_orphan_attempts()
        attempt = Attempt(stage.name, plan.bench_id, tuple(host.name for host in hosts))
        self.folder.change(lambda now: replace(now, attempts=(*now.attempts, attempt)))
        return begin_bench(
            plan,
            [],
            self.selection,
            used_hosts(plan.cells, hosts),
            self.limits,
            self.bases,
            self.folder.path,
            argv=sys.argv,
            accept_new=self.accept_new,
        )

    def _run(self, controller: Controller) -> tuple[list[OrchError], list[RunResult]]:
        """Run a bench. Raises Interrupted after a signal, and Faults if its hosts are busy."""
        errors, results = run(controller)
        stopped = next((error for error in errors if isinstance(error, Interrupted)), None)
        if stopped:
            stopped.hint = f"to continue: orch resume {shlex.quote(self.folder.path.name)}"
            raise stopped
        if any(map(is_busy, errors)):
            raise Faults(errors)
        return errors, results

    def _next_trial(
        self,
        stage: SuiteStage,
        trial: _Trial,
        errors: Sequence[OrchError],
        results: Sequence[RunResult],
    ) -> _Trial | None:
        """Leave out the hosts at which an attempt has shown to fail; return the attempt without
        them, None after the last.
        """
        has_failed = any(result.has_failed for result in results)
        if trial.accused and any(result.is_good for result in results) and not has_failed:
            self._leave_out(trial.accused)
        blamed = _blame_hosts(errors, results)
        was_refused = not results
        if was_refused and not stage.optional:
            self._leave_out(blamed)
        out = self.folder.record().out
        left = [host for host in trial.hosts if host.name not in blamed and host.name not in out]
        is_last = trial.is_repeated and not was_refused
        is_too_few = not left or len(left) < stage.least_nodes
        if not blamed or is_last or is_too_few or len(left) == len(trial.hosts):
            return None
        accused = trial.accused if was_refused or stage.optional else blamed
        return _Trial(left, accused, is_repeated=trial.is_repeated or not was_refused)

    def _is_measured(self, stage: SuiteStage) -> bool:
        """Return whether an attempt at a stage has a number."""
        self._drop_orphan_attempts()
        attempts = self.folder.record().of_stage(stage.name)
        return any(read_run(run).is_good for attempt in attempts for run in self._runs(attempt))

    def _runs(self, attempt: Attempt) -> list[RunDir]:
        """Return the runs of an attempt that have begun."""
        if not self._has_bench(attempt):
            return []
        return self.folder.bench(attempt.bench_id).runs()

    def _has_bench(self, attempt: Attempt) -> bool:
        return (self.folder.path / attempt.bench_id / "bench.json").exists()

    def _drop_orphan_attempts(self) -> None:
        """Remove attempts without a bench: one may have been noted by a process that was killed
        before it made the folder.
        """
        self.folder.change(
            lambda now: replace(now, attempts=tuple(filter(self._has_bench, now.attempts)))
        )


def _blame_hosts(errors: Sequence[OrchError], results: Sequence[RunResult]) -> dict[str, str]:
    """Return the hosts that failed runs and refusals name, with the reasons; earlier processes'
    included.

    An end that could not be verified is no failure of a run.
    """
    of_runs = [result.error for result in results if result.has_failed and result.error]
    named = [*of_runs, *(error for error in errors if error.kind != "not_verified")]
    return {
        error.host: error.message
        for error in named
        if error.host and not isinstance(error, DataError)
    }


def _with_stage(record: AcceptanceRecord, name: str) -> AcceptanceRecord:
    left_out = {stage: reason for stage, reason in record.left_out.items() if stage != name}
    return replace(record, stages=(*record.stages, name), left_out=left_out)


def _words(errors: Sequence[OrchError]) -> str:
    texts = list(
        dict.fromkeys(
            f"{error.host}: {error.message}" if error.host else error.message for error in errors
        )
    )
    return (
        "; ".join(texts[:3]) + (f" (and {len(texts) - 3} more)" if len(texts) > 3 else "")
        or "nothing was measured"
    )


def _say(text: str) -> None:
    say(f"accept: {one_line(text)}")


def _audit(
    cluster: Cluster, facts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Check]]:
    """Return what the audit of all nodes that answer tells, and its checks: evidence, by which
    nothing is judged, so that an audit without an answer is only said.
    """
    told: dict[str, Any] = {}
    checks: list[Check] = []
    for auditor in providers("host_audit"):
        try:
            said, found = auditor.audit(cluster, facts)
        except Interrupted:
            raise
        except (Faults, OrchError) as error:
            _say(f"{auditor.__name__.split('.')[-2]} of nodes is left out: {error}")
            continue
        told.update(said)
        checks += found
    return told, checks
