"""An acceptance carried out: stage after stage on the hosts that are still in it, and its
certificate.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.api.prepare import begin_bench
from orchestrator.api.selection import Selection
from orchestrator.checks import Check, same_machine
from orchestrator.checks.check import failed
from orchestrator.checks.judge import among, judge
from orchestrator.cli.controller import reopened, run
from orchestrator.cli.options import open_frameworks
from orchestrator.controller.busy import is_busy
from orchestrator.errors import ConfigError, DataError, Faults, Interrupted, OrchError
from orchestrator.features.accept.certificate import Certificate, certificate_of
from orchestrator.features.accept.nodes import is_chosen
from orchestrator.features.accept.page import render
from orchestrator.features.accept.record import (
    CERTIFICATE,
    AcceptanceDir,
    AcceptanceRecord,
    Attempt,
    acceptances,
    earlier_values,
)
from orchestrator.features.accept.suite import Suite, SuiteStage, choices_of
from orchestrator.files import write_atomic
from orchestrator.inventory import Host
from orchestrator.nodes.preflight import capture
from orchestrator.plan import Limits
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import FrameworkFolder, framework_for
from orchestrator.plan.placement import taken
from orchestrator.plan.planning import plan_bench
from orchestrator.plan.request import Request, request_of
from orchestrator.plan.words import shortest
from orchestrator.plural import plural
from orchestrator.record.refusals import errors_between_runs
from orchestrator.record.rundir import RunDir
from orchestrator.report.text import one_line
from orchestrator.results import RunResult
from orchestrator.results.read import read_run
from orchestrator.yamlfile import Document

__all__ = ["Acceptance", "bench_of", "certify", "earlier_of", "ranks_of", "request_for"]

_LATE = 1.1
"""A stage that would end later than this many times the budget is left out."""


def ranks_of(hosts: Sequence[Host]) -> int:
    """Return how many ranks fit on each of these hosts."""
    return min((host.capacity or 1 for host in hosts), default=1)


def bench_of(
    stage: SuiteStage,
    document: Document,
    hosts: Sequence[Host],
    bases: Sequence[Path],
    read: Callable[[str], FrameworkFolder] | None = None,
) -> Bench:
    """Return the bench of a stage on these hosts; ``read`` is as in `framework_for`. Raises
    ConfigError if that is not possible there."""
    if len(hosts) < stage.least_nodes:
        raise ConfigError(f"needs {plural(stage.least_nodes, 'node')}, {len(hosts)} left")
    if (ranks := ranks_of(hosts)) < stage.least_ranks:
        raise ConfigError(
            f"needs {plural(stage.least_ranks, 'rank')} on each node, the smallest has {ranks}"
        )
    request = request_for(stage, document, len(hosts), ranks)
    folders = open_frameworks(
        request.framework_names(lambda: framework_for(stage.bench, bases, read)), bases
    )
    return plan_bench(request, folders, hosts, bench_id=new_bench_id(), seed=new_seed())


def request_for(stage: SuiteStage, document: Document, nodes: int, ranks: int) -> Request:
    """Return what a stage asks for on so many nodes of so many ranks."""
    choices = choices_of(document, stage, nodes, ranks)
    return request_of(
        stage.bench,
        framework=stage.framework,
        run_file=choices if choices.value else None,
        baseline=False,
        label="" if "label" in choices.value else stage.name,
    )


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
            self._make(stage, self._why_not(stage))
        if record.budget_s is not None and not record.is_over:
            self._make_what_still_fits()

    def _make(self, stage: SuiteStage, why_not: str) -> None:
        reason = why_not or (self._checks(stage) if stage.checks else self._bench(stage))
        if reason:
            _say(f"{stage.name} is not tested: {reason}")
        self._over(stage.name, reason)

    def _make_what_still_fits(self) -> None:
        """Make stages that were left out, in order, as far as the others took less of the budget
        than was estimated.
        """
        for stage in self.suite.stages:
            if stage.name in self.folder.record().left_out and not self._why_not(stage, late=1.0):
                _say(f"stage {stage.name} fits the budget after all: {stage.title}")
                self.folder.change(partial(_with_stage, name=stage.name))
                self._make(stage, "")

    def _over(self, name: str, reason: str) -> None:
        self.folder.change(lambda now: replace(now, over={**now.over, name: reason}))

    def _note(self, attempt: Attempt) -> None:
        self._forget_what_has_no_bench()
        self.folder.change(lambda now: replace(now, attempts=(*now.attempts, attempt)))

    def _has_bench(self, attempt: Attempt) -> bool:
        return (self.folder.path / attempt.bench_id / "bench.json").exists()

    def _forget_what_has_no_bench(self) -> None:
        """Remove attempts without a bench: one may have been noted by a process that was killed
        before it made the folder.
        """
        self.folder.change(
            lambda now: replace(now, attempts=tuple(filter(self._has_bench, now.attempts)))
        )

    def hosts(self) -> list[Host]:
        """Return the hosts that are still in."""
        out = self.folder.record().out
        return [host for host in self.selection.hosts if host.name not in out]

    def _why_not(self, stage: SuiteStage, late: float = _LATE) -> str:
        """Return why a stage cannot be made now, or would end later than ``late`` times the budget;
        empty if it can.
        """
        record = self.folder.record()
        if missing := [name for name in stage.needs if record.over.get(name, "left out")]:
            return f"needs {missing[0]}, which has no result"
        if record.of_stage(stage.name):
            return ""
        if stage.checks:
            estimate_s = stage.estimate_s(1, len(self.selection.hosts))
        else:
            try:
                plan = bench_of(stage, self.document, self.hosts(), self.bases)
            except ConfigError as error:
                return str(error)
            estimate_s = stage.estimate_s(len(plan.planned()), len(self.hosts()))
        spent_s = time.monotonic() - self.began_s
        if record.budget_s is not None and spent_s + estimate_s > late * record.budget_s:
            return f"takes about {shortest(round(estimate_s))}, too little of the budget is left"
        return ""

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

    def _checks(self, stage: SuiteStage) -> str:
        (folder,) = open_frameworks([stage.framework], self.bases)
        with self.selection.cluster(self.accept_new) as cluster:
            unreachable: Mapping[str, OrchError] = cluster.open_what_answers()
            facts, silent = capture(cluster, folder.framework, names=list(cluster.nodes))
        if twice := same_machine(facts):
            raise Faults(twice)
        checks: list[Check] = []
        for host in self.selection.hosts:
            if host.name in facts:
                checks += judge(host, facts[host.name], folder.framework, None)
        checks += among(facts)
        for name, error in {**unreachable, **silent}.items():
            checks.append(failed(name, "reach", error.message, "an answer", error.hint))
        plain = [{key: getattr(check, key) for key in check.__slots__} for check in checks]
        self.folder.write_checks(stage.name, json.loads(json.dumps(facts, default=str)), plain)
        reasons: dict[str, str] = {}
        for check in checks:
            if check.verdict == "failed" and is_chosen(check.name, stage.checks):
                reasons.setdefault(
                    check.host, f"{check.name}: expected {check.expected}, found {check.found}"
                )
        if len(reasons) == len(self.selection.hosts) and not facts:
            raise Faults([*unreachable.values(), *silent.values()])
        self._leave_out(reasons, over=stage.name)
        return ""

    # -- benches

    def _bench(self, stage: SuiteStage) -> str:
        """Run a stage; without nodes that are unfit for it, and once more without those that a
        failed run names.

        Only if it then succeeds are they left out of what follows: a program that fails everywhere
        names one node after another. A node that is unfit is left out at once, also before that
        second time."""
        going_on, hosts, accused, is_repeated = self._begun(stage)
        while True:
            if going_on and self._has_bench(going_on):
                bench = self.folder.bench(going_on.bench_id)
                controller = reopened(
                    bench, accept_new=self.accept_new, retry_failed=self.retry_failed
                )
            else:
                try:
                    plan = bench_of(stage, self.document, hosts, self.bases)
                except ConfigError as error:
                    self._forget_what_has_no_bench()
                    attempts = self.folder.record().of_stage(stage.name)
                    is_measured = any(
                        read_run(run).is_good for attempt in attempts for run in self._runs(attempt)
                    )
                    return "" if is_measured else str(error)
                self._note(Attempt(stage.name, plan.bench_id, tuple(host.name for host in hosts)))
                controller = begin_bench(
                    plan,
                    [],
                    self.selection,
                    taken(plan.cells, hosts),
                    self.limits,
                    self.bases,
                    self.folder.path,
                    argv=sys.argv,
                    accept_new=self.accept_new,
                )
            going_on = None
            errors, results = run(controller)
            if stopped := next((error for error in errors if isinstance(error, Interrupted)), None):
                stopped.hint = f"to continue: orch resume {shlex.quote(self.folder.path.name)}"
                raise stopped
            if any(is_busy(error) for error in errors):
                raise Faults(errors)
            has_good = any(result.is_good for result in results)
            if accused and has_good and not any(result.has_failed for result in results):
                self._leave_out(accused)
            blamed = _blamed(errors, results)
            out = self.folder.record().out
            left = [host for host in hosts if host.name not in blamed and host.name not in out]
            was_refused = not results
            if was_refused and not stage.optional:
                self._leave_out(blamed)
            is_last = is_repeated and not was_refused
            if (
                not blamed
                or is_last
                or len(left) < stage.least_nodes
                or len(left) == len(hosts)
                or not left
            ):
                return "" if has_good else _words(errors)
            hosts = left
            is_repeated = is_repeated or not was_refused
            if not was_refused and not stage.optional:
                accused = blamed

    def _begun(self, stage: SuiteStage) -> tuple[Attempt | None, list[Host], dict[str, str], bool]:
        """Return the attempt to go on with, if there is one, the hosts to make the stage on, those
        that it is repeated without because a failed attempt named them, with the reasons, and
        whether it is that repetition."""
        record = self.folder.record()
        attempts = record.of_stage(stage.name)
        if not attempts:
            return None, self.hosts(), {}, False
        last = attempts[-1]
        going_on: Attempt | None = last
        hosts = [host for host in self.selection.hosts if host.name in last.hosts]
        if not self._runs(last) and any(
            host.name in record.out for host in hosts
        ):  # refused, and one of them left out since
            going_on, hosts = None, [host for host in hosts if host.name not in record.out]
        failed = next((attempt for attempt in reversed(attempts[:-1]) if self._runs(attempt)), None)
        if failed is None or stage.optional:
            return going_on, hosts, {}, failed is not None
        errors = errors_between_runs(self.folder.bench(failed.bench_id))
        named = _blamed(errors, [read_run(run) for run in self._runs(failed)])
        return (
            going_on,
            hosts,
            {host: reason for host, reason in named.items() if host not in last.hosts},
            True,
        )

    def _runs(self, attempt: Attempt) -> list[RunDir]:
        """Return the runs of an attempt that have begun."""
        return self.folder.bench(attempt.bench_id).runs() if self._has_bench(attempt) else []


def _blamed(errors: Sequence[OrchError], results: Sequence[RunResult]) -> dict[str, str]:
    """Return the hosts that failed runs name, those of an earlier process too, and that refusals
    do, with the reasons. That an end could not be verified is no failure of a run."""
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


def earlier_of(runs: Path, suite: str, hosts: Sequence[Host]) -> dict[str, Any]:
    """Return id and values of the last acceptance of these hosts with this suite that passed;
    nothing without one.
    """
    addresses = {host.name: host.address for host in hosts}
    for folder in acceptances(runs):
        try:
            content = json.loads((folder.path / f"{CERTIFICATE}.json").read_text(encoding="utf-8"))
            known = {node["host"]: node["address"] for node in content["nodes"]}
            if content["verdict"] == "pass" and content["suite"] == suite and known == addresses:
                return dict(
                    earlier_values(
                        {"id": content["acceptance_id"], "measured": content["measured"]}
                    )
                )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # it has no certificate, or none of this version
    return {}


def certify(folder: AcceptanceDir) -> Certificate:
    """Write the certificate of an acceptance, as JSON and as a page, and return it."""
    certificate = certificate_of(folder)
    text = json.dumps(certificate.as_dict(), indent=1, allow_nan=False) + "\n"
    write_atomic(folder.path / f"{CERTIFICATE}.json", text.encode())
    write_atomic(folder.path / f"{CERTIFICATE}.html", render(certificate).encode())
    return certificate


def _say(text: str) -> None:
    typer.echo(f"accept: {one_line(text)}", err=True)
