"""Stages of `orch accept` as they are carried out: repeated without nodes, gone on with after an
interruption, held to the budget. Nothing is contacted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator import yamlfile
from orchestrator.api.selection import Selection
from orchestrator.checks.check import failure
from orchestrator.cli.options import select
from orchestrator.errors import DataError, OrchError, RunError, TransportError
from orchestrator.features.accept import controller as carried_out
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.controller import Acceptance, _blame_hosts
from orchestrator.features.accept.record import AcceptanceDir, AcceptanceRecord, Attempt
from orchestrator.features.accept.suite import suite_of
from orchestrator.inventory import Host
from orchestrator.plan import Limits
from orchestrator.plan.bench import Bench
from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir
from orchestrator.results import RunResult
from orchestrator.results.read import read_run
from tests.support.acceptances import FACTS, SUITE, acceptance, fail_runs, repeated

NODES = ("node1", "node2", "node3", "node4")
REASON = "rank 2 was killed by signal 9"


class Stage:
    """The benches of the stage ``gemm`` as they end without being run: with the results that their
    folders have.

    ``begun`` are the hosts of benches that are planned anew; such a bench is refused and ends the
    stage. ``errors`` are those of the process that goes on."""

    def __init__(self, folder: AcceptanceDir, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.begun: list[tuple[str, ...]] = []
        self.errors: Sequence[OrchError] = ()
        monkeypatch.setattr(carried_out, "reopen_bench", lambda bench, **_: bench)
        monkeypatch.setattr(carried_out, "begin_bench", self.begin)
        monkeypatch.setattr(carried_out, "run", self.results)

    def begin(
        self,
        plan: Bench,
        _: object,
        __: object,
        hosts: Sequence[Host],
        *___: object,
        **____: object,
    ) -> None:
        self.begun.append(tuple(host.name for host in hosts))

    def results(self, bench: BenchDir | None) -> tuple[list[OrchError], list[RunResult]]:
        return (
            ([], []) if bench is None else ([*self.errors], [read_run(run) for run in bench.runs()])
        )


@pytest.fixture
def folder(tmp_path: Path) -> AcceptanceDir:
    """Return an acceptance of four nodes whose stage ``gemm`` was begun, and failed because of
    node4.
    """
    made = acceptance(tmp_path / "runs", {}, nodes=4)
    made.change(lambda record: replace(record, over={"checks": ""}))
    fail_runs(made, made.record().attempts[0].bench_id, "node4", 1)
    return made


@pytest.fixture
def stage(folder: AcceptanceDir, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(folder, monkeypatch)


def go_on(folder: AcceptanceDir, monkeypatch: pytest.MonkeyPatch, text: str = SUITE) -> None:
    """Go on with an acceptance as a new process does."""
    project = folder.path.parent.parent
    monkeypatch.setenv("ORCH_PROJECT", str(project))
    hosts = "".join(
        f"  {name}: {{address: {address}, gpus: 1}}\n"
        for name, address in folder.record().hosts.items()
    )
    (project / "cluster.yaml").write_text(f"schema: 1\nhosts:\n{hosts}")
    document = yamlfile.loads(text, "small.yaml")
    suite = suite_of(document, "small", "cuda")
    Acceptance(
        folder, select(str(project / "cluster.yaml")), document, suite, (), Limits()
    ).carry_out()


def test_a_repetition_that_succeeds_after_an_interruption_leaves_the_node_out_of_what_follows(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated(folder, 3)
    go_on(folder, monkeypatch)
    record = folder.record()
    assert (record.out, record.over, stage.begun) == (
        {"node4": REASON},
        {"checks": "", "gemm": ""},
        [],
    )


def test_a_repetition_that_fails_after_an_interruption_is_the_last_one_and_leaves_no_node_out(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_runs(folder, repeated(folder, 3), "node3", 1)
    go_on(folder, monkeypatch)
    record = folder.record()
    assert (record.out, record.over, len(record.attempts), stage.begun) == (
        {},
        {"checks": "", "gemm": ""},
        2,
        [],
    )


def test_a_repetition_that_was_noted_and_not_begun_is_begun_without_the_node(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder.path / repeated(folder, 3))
    go_on(folder, monkeypatch)
    assert stage.begun == [NODES[:3]]
    assert [attempt.hosts for attempt in folder.record().attempts] == [NODES, NODES[:3]]


def test_a_repetition_that_was_noted_and_can_no_longer_be_planned_is_forgotten(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder.path / repeated(folder, 3))
    go_on(folder, monkeypatch, SUITE + "    least: {nodes: 4}\n")
    assert stage.begun == [] and [attempt.hosts for attempt in folder.record().attempts] == [NODES]
    assert folder.record().over["gemm"] == "" and certificate_of(folder).verdict == "fail"


def test_a_failed_first_attempt_is_repeated_without_the_node_that_it_names_after_an_interruption(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(folder, monkeypatch)
    assert stage.begun == [NODES[:3]] and folder.record().out == {}


def refused(folder: AcceptanceDir, *hosts: str) -> Attempt:
    """Return an attempt on these hosts that ended without a run."""
    first = folder.record().attempts[0]
    name = f"refused-{len(hosts)}"
    shutil.copytree(folder.path / first.bench_id, folder.path / name)
    bench = folder.bench(name)
    for run in bench.runs():
        shutil.rmtree(run.path)
    bench.path.joinpath("events.jsonl").unlink(missing_ok=True)
    assert bench.runs() == []
    return Attempt("gemm", name, hosts)


def test_a_refusal_between_a_failure_and_its_repetition_does_not_acquit_the_node(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = refused(folder, *NODES[:3])
    repeated(folder, 2)
    first, third = folder.record().attempts
    folder.change(
        lambda record: replace(
            record, attempts=(first, second, third), out={"node3": "no interpreter"}
        )
    )
    go_on(folder, monkeypatch)
    assert (folder.record().out, stage.begun) == ({"node3": "no interpreter", "node4": REASON}, [])


@pytest.mark.parametrize(
    ("out", "begun", "left_out"),
    [
        ({}, (*NODES[:2], NODES[3]), {"node3"}),
        ({"node4": "no interpreter"}, NODES[:3], {"node4"}),
    ],
)
def test_a_stage_that_was_refused_begins_anew_without_a_node_that_was_left_out_and_otherwise_goes_on(
    out: dict[str, str],
    begun: tuple[str, ...],
    left_out: set[str],
    folder: AcceptanceDir,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = refused(folder, *NODES)
    folder.change(lambda record: replace(record, attempts=(first,), out=out))
    stage.errors = [RunError("no answer", kind="node_unfit", host="node3")]
    go_on(folder, monkeypatch)
    assert stage.begun == [begun] and set(folder.record().out) == left_out


def test_a_stage_that_was_refused_and_that_fewer_nodes_cannot_make_has_no_result(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = refused(folder, *NODES)
    folder.change(lambda record: replace(record, attempts=(first,)))
    stage.errors = [RunError("no answer", kind="node_unfit", host="node3")]
    go_on(folder, monkeypatch, SUITE.replace("repeats: 5", "nodes: 4, repeats: 5"))
    assert stage.begun == [] and "expected 4 hosts, 3 selected" in folder.record().over["gemm"]


def test_a_node_that_could_not_go_on_after_an_interruption_fails_if_runs_succeed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = acceptance(tmp_path / "runs", {}, nodes=4)
    bench = folder.bench(folder.record().attempts[0].bench_id)
    silent = TransportError("timed out after 10 s", kind="unreachable", host="node4")
    busy = RunError("another bench holds it", kind="node_busy", host="node3")
    bench.event(Event.BEGUN, argv=["orch", "accept"])
    bench.event(
        Event.OVER,
        code=3,
        errors=[{"run_id": error.run_id, **error.as_dict()} for error in (silent, busy)],
    )
    named = [
        (finding.kind, finding.text)
        for bar in certificate_of(folder).judged
        if bar.kind == "runs"
        for finding in bar.findings
    ]
    assert named == [("cluster", "node4: refused before a further run: timed out after 10 s")]
    repeated(folder, 3)
    assert {node.host: node.verdict for node in certificate_of(folder).nodes}["node4"] == "fail"
    folder.change(lambda record: replace(record, over={"checks": ""}))
    Stage(folder, monkeypatch)
    go_on(folder, monkeypatch)
    assert folder.record().out == {"node4": "timed out after 10 s"}


def test_an_optional_stage_is_repeated_once(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_runs(folder, repeated(folder, 3), "node3", 1)
    go_on(folder, monkeypatch, SUITE.replace("run: 20s", "run: 20s\n    optional: true"))
    assert (folder.record().out, stage.begun) == ({}, [])


def test_an_optional_stage_leaves_no_node_out_after_an_interruption_either(
    folder: AcceptanceDir, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated(folder, 3)
    go_on(folder, monkeypatch, SUITE.replace("run: 20s", "run: 20s\n    optional: true"))
    assert (folder.record().out, stage.begun) == ({}, [])


CHECKS = SUITE.replace("    needs: [checks]\n", "").replace("run: 30s", "run: 30s, per_node: 1s")
"""Inspects for 34 s on four nodes."""


@pytest.mark.parametrize(
    ("is_planned", "spent_s", "over"),
    [
        (True, 0.0, ""),
        (True, 71.0, ""),
        (True, 77.0, "takes about 34s, too little of the budget is left"),
        (False, 65.0, ""),
        (False, 67.0, None),
    ],
)
def test_checks_are_held_to_the_budget_as_benches_are(
    is_planned: bool,
    spent_s: float,
    over: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = acceptance(tmp_path / "runs", {}, nodes=4, suite=CHECKS)
    left_out = {} if is_planned else {"checks": "takes about 34s, 10s of the budget is left"}
    stages = ("checks", "gemm") if is_planned else ("gemm",)
    folder.change(
        lambda record: replace(record, stages=stages, left_out=left_out, over={}, budget_s=100.0)
    )
    Stage(folder, monkeypatch)
    times = iter([1000.0])
    monkeypatch.setattr(
        carried_out, "time", SimpleNamespace(monotonic=lambda: next(times, 1000.0 + spent_s))
    )
    monkeypatch.setattr(Acceptance, "_check_hosts", lambda self, stage: "")
    go_on(folder, monkeypatch, CHECKS)
    record = folder.record()
    assert record.over.get("checks") == over
    assert ("checks" in record.left_out) == (over is None)


def ended(state: str, error: OrchError | None = None) -> RunResult:
    """Return a run without a number."""
    return RunResult("r1", 1, None, False, state, error=error)


@pytest.mark.parametrize(
    ("errors", "results", "blamed"),
    [
        ([], [], {}),
        ([RunError("no disk", kind="node_unfit", host="node1")], [], {"node1": "no disk"}),
        (
            [],
            [ended("failed", RunError(REASON, kind="rank_failed", host="node2"))],
            {"node2": REASON},
        ),
        (
            [RunError("no disk", kind="node_unfit", host="node1")],
            [ended("failed", RunError(REASON, kind="rank_failed", host="node2"))],
            {"node1": "no disk", "node2": REASON},
        ),
        ([], [ended("interrupted", RunError("stopped", kind="interrupted", host="node2"))], {}),
        ([RunError("the end is not proven", kind="not_verified", host="node1")], [], {}),
        ([DataError("a wrong digest", kind="result_invalid", host="node1")], [], {}),
        (
            [],
            [ended("incomplete", DataError("a wrong digest", kind="result_invalid", host="node1"))],
            {},
        ),
        ([RunError("no host", kind="rank_failed")], [ended("failed")], {}),
    ],
)
def test_failed_runs_of_any_process_and_refusals_name_nodes_and_what_says_nothing_of_a_node_does_not(
    errors: Sequence[OrchError], results: Sequence[RunResult], blamed: dict[str, str]
) -> None:
    assert _blame_hosts(errors, results) == blamed


def test_a_node_that_cannot_be_reached_is_left_out_whatever_the_checks_are_and_another_check_leaves_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = SUITE.replace("checks: all", "checks: [ecc]")
    folder = acceptance(tmp_path / "runs", {}, nodes=4, suite=suite)
    folder.change(lambda record: replace(record, over={"gemm": ""}))
    facts = {host: FACTS | {"host_key": host} for host in NODES[:3]}
    silent = {"node4": TransportError("timed out after 10 s", kind="unreachable", host="node4")}
    cluster = SimpleNamespace(open_what_answers=lambda: silent, nodes=facts)
    monkeypatch.setattr(Selection, "cluster", lambda *_: nullcontext(cluster))
    monkeypatch.setattr(carried_out, "capture", lambda *_, **__: (facts, {}))
    monkeypatch.setattr(
        carried_out,
        "judge",
        lambda host, *_: [failure(host.name, "expect", "kernel 5", "kernel 6", "")],
    )
    monkeypatch.setattr(carried_out, "among", lambda *_: [])
    written: list[tuple[bool, bool]] = []
    change = AcceptanceDir.change

    def change_and_note(
        folder: AcceptanceDir, how: Callable[[AcceptanceRecord], AcceptanceRecord]
    ) -> AcceptanceRecord:
        record = change(folder, how)
        written.append(("node4" in record.out, "checks" in record.over))
        return record

    monkeypatch.setattr(AcceptanceDir, "change", change_and_note)
    go_on(folder, monkeypatch, suite)
    assert (True, False) not in written, "killed in between, its evidence would be overwritten"
    assert folder.record().out == {"node4": "reach: expected an answer, found timed out after 10 s"}
    captured, checks = folder.checks()["checks"]
    assert set(captured) == set(NODES[:3]) and [check["name"] for check in checks] == [
        "expect"
    ] * 3 + ["reach"]
    assert [node.verdict for node in certificate_of(folder).nodes] == [
        "pass",
        "pass",
        "pass",
        "fail",
    ]
