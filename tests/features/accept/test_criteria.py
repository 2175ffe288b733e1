"""Answers to public criteria: what was not measured is never met, and each says what was seen."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.checks.catalogue import all_entries
from orchestrator.errors import ConfigError
from orchestrator.features.accept.bench_group import contents
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.criteria import (
    MET,
    NOT_MET,
    NOT_TESTABLE,
    PODS,
    SLURM,
    Answer,
    Criteria,
    Criterion,
    Evidence,
    answer,
    answer_all,
    criteria_of,
    place_of,
)
from orchestrator.features.accept.figures import UnitFigure
from orchestrator.features.accept.page import render
from orchestrator.features.accept.report import lines
from orchestrator.features.accept.suite import suite_of
from orchestrator.features.accept.suite_check import check_criteria
from orchestrator.features.accept.suite_files import open_criteria, open_suite
from orchestrator.features.accept.verdicts import FAIL, UNDECIDED, Finding, Judged
from orchestrator.record.archive import seal, verify
from orchestrator.record.state_file import write_state
from tests.support.acceptances import acceptance
from tests.support.features import needs

Row = dict[str, str]


def check(host: str, name: str, verdict: str = "ok", found: str = "as it should be") -> Row:
    told = {"host": host, "name": name, "verdict": verdict, "found": found}
    return {**told, "expected": "better", "hint": "mend it"}


TOLD: dict[str, dict[str, Any]] = {
    "node1": {"admin": True, "tenant": {"tools": ["perf"], "slurm": {"Epilog": "", "A": "b"}}},
    "node2": {"admin": True, "tenant": {"tools": ["docker", "perf"], "slurm": {"A": "b"}}},
}
BOTH = Evidence([check("node1", "acs"), check("node2", "acs")], TOLD)


def asked(seen: Evidence, **row: Any) -> Answer:
    return answer(Criterion("id", "title", **row), seen)


def test_a_criterion_is_met_if_its_check_is_ok_on_every_node() -> None:
    assert asked(BOTH, checks=("acs",)).answer == MET
    assert asked(BOTH, checks=("acs",)).evidence == ("node[1-2]: acs: as it should be",)
    one = replace(BOTH, checks=BOTH.checks[:1])
    assert asked(one, checks=("acs",)).words == "not testable: acs has nothing to inspect on node2"
    assert asked(BOTH, checks=("acs", "iommu")).answer == NOT_TESTABLE
    assert asked(BOTH, checks=("acs",), about="runc").answer == NOT_TESTABLE


@pytest.mark.parametrize(
    ("verdict", "answered", "why"),
    [
        ("warning", NOT_MET, "expected better; mend it"),
        ("failed", NOT_MET, "expected better; mend it"),
        ("unknown", NOT_TESTABLE, "bits"),
    ],
)
def test_one_node_that_is_not_ok_decides(verdict: str, answered: str, why: str) -> None:
    seen = replace(BOTH, checks=[check("node1", "acs"), check("node2", "acs", verdict, "bits")])
    found = asked(seen, checks=("acs",))
    assert (found.answer, found.why) == (answered, why)
    assert "node2: acs: bits" in found.evidence


@pytest.mark.parametrize(
    ("facts", "answered", "why"),
    [
        ({"tenant.tools": r"\bperf\b", "admin": "True"}, MET, ""),
        ({"tenant.tools": "docker"}, NOT_MET, "tenant.tools does not match docker on node1"),
        ({"tenant.slurm": "A=b"}, MET, ""),
        ({"tenant.slurm.Epilog": "."}, NOT_TESTABLE, "node2 does not tell tenant.slurm.Epilog"),
        ({"nothing": "."}, NOT_TESTABLE, "node[1-2] does not tell nothing"),
        ({"admin.more": "."}, NOT_TESTABLE, "node[1-2] does not tell admin.more"),
    ],
)
def test_facts_are_what_every_node_told(facts: Row, answered: str, why: str) -> None:
    found = asked(BOTH, facts=facts)
    assert (found.answer, found.why) == (answered, why)
    assert asked(replace(BOTH, told={}), facts=facts).why == "no node was audited"


def test_part_of_an_answer_is_none() -> None:
    assert asked(BOTH, checks=("acs",), partly="half").words == "not testable: half"
    assert asked(BOTH, facts={"admin": "False"}, otherwise="root").words == "not testable: root"
    assert asked(BOTH, facts={"admin": "False"}, partly="half").answer == NOT_MET
    assert asked(BOTH, because="a contract").words == "not testable: a contract"


def test_a_criterion_of_another_place_is_not_about_these_nodes() -> None:
    here = dict(checks=("acs",), on=("slurm", "pods"))
    assert asked(BOTH, **here).why == (
        "it is about jobs of Slurm and pods, and these are bare hosts"
    )
    assert asked(replace(BOTH, place=SLURM), **here).answer == MET
    assert asked(BOTH, checks=("acs",), on=("gpus",)).why == "these nodes have no GPUs"
    assert asked(replace(BOTH, has_gpus=True), checks=("acs",), on=("gpus",)).answer == MET
    assert place_of({"node1": {"kubernetes": {}}}) == PODS
    assert place_of(TOLD) == SLURM and place_of({"node1": {"tenant": {"slurm": {}}}}) == "hosts"


def test_of_rows_with_one_id_that_of_the_place_is_answered() -> None:
    rows = (
        Criterion("t", "of slurm", on=("slurm",), because="no"),
        Criterion("t", "of pods", on=("pods",), facts={"admin": "True"}),
        Criterion("u", "other", because="provider"),
    )
    criteria = Criteria("x", "y", rows, {"provider": "it is theirs"})
    found = answer_all(criteria, replace(BOTH, place=PODS))
    assert [(one.title, one.answer) for one in found] == [("of pods", MET), ("other", NOT_TESTABLE)]
    assert found[1].why == "it is theirs"
    assert [one.title for one in answer_all(criteria, BOTH)] == ["of slurm", "other"]


FIGURE = UnitFigure(
    "storage", "bandwidth", "node1", ("node1",), "cpu", "MB/s", 2, 812.5, 1.0, 2.0, 1.0, None, None
)


def bar(kind: str, verdict: str = "") -> Judged:
    findings = (Finding("node", "node1", ("node1",), verdict, "too slow"),) if verdict else ()
    return Judged("storage", kind, "a bar", "got it", "the suite", ("node1",), findings)


@pytest.mark.parametrize(
    ("bars", "answered", "why"),
    [
        ([bar("runs"), bar("peers")], MET, ""),
        ([bar("runs")], NOT_TESTABLE, "stage storage: it was measured, and no bar decides"),
        ([bar("peers", UNDECIDED)], NOT_TESTABLE, "stage storage: a verdict of it is open"),
        ([bar("peers", FAIL)], NOT_MET, "too slow"),
        ([bar("runs", FAIL)], NOT_MET, "too slow"),
    ],
)
def test_a_stage_answers_by_a_bar_and_shows_what_was_measured(
    bars: list[Judged], answered: str, why: str
) -> None:
    seen = replace(BOTH, judged=bars, figures=(FIGURE,))
    found = asked(seen, stage="storage")
    assert (found.answer, found.why) == (answered, why)
    assert found.evidence[0] == "node1: storage: bandwidth 812.50 MB/s"
    without = replace(seen, without_result={"storage": "fio is missing"})
    assert asked(without, stage="storage").why == "the stage storage has no result: fio is missing"


def test_nothing_of_the_public_criteria_is_met_without_evidence() -> None:
    criteria = criteria_of(open_criteria("clustermax"))
    for place in ("hosts", SLURM, PODS):
        for seen in (Evidence([], {}), Evidence([], {"node1": {}})):
            answers = answer_all(criteria, replace(seen, place=place, has_gpus=True))
            assert {one.answer for one in answers} == {NOT_TESTABLE}
            assert all(one.why for one in answers)


@needs("audit")
def test_each_public_criterion_stands_once_for_a_place_and_names_what_there_is() -> None:
    document = open_criteria("clustermax")
    criteria = criteria_of(document)
    check_criteria(document, suite_of(open_suite("clustermax"), "clustermax", "cuda"))
    known = {entry.name for entry in all_entries()}
    places = []
    for row in criteria.criteria:
        assert set(row.checks) <= known
        assert bool(row.because) != bool(row.checks or row.facts or row.stage), row.id
        wheres = [place for place in row.on if place != "gpus"] or ["hosts", "slurm", "pods"]
        places += [(row.id, place) for place in wheres]
    assert len(places) == len(set(places))
    assert len({row.id for row in criteria.criteria}) == 151 and "2026" in criteria.source


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{id: a, title: b, check: [acs]}", "check: expected one of"),
        ("{id: a, title: b, checks: [acz]}", "expected a check or a stage of the suite, got 'acz'"),
        ("{id: a, title: b, stage: gem}", "expected a check or a stage of the suite, got 'gem'"),
    ],
)
def test_criteria_that_name_nothing_are_refused(row: str, words: str) -> None:
    document = yamlfile.loads(f"title: x\nsource: y\ncriteria:\n  - {row}\n", "own.yaml")
    suite = suite_of(open_suite("clustermax"), "clustermax", "cpu")
    with pytest.raises(ConfigError) as raised:
        check_criteria(document, suite)
    assert words in str(raised.value)


CRITERIA = """\
title: theirs
source: their page, read today
criteria:
  - {id: acs-off, title: no ACS, checks: [acs]}
  - {id: governor, title: full clock, checks: [governor]}
  - {id: gemm-fast, title: as fast as others, stage: gemm}
  - {id: iso, title: a certificate, because: it is theirs}
"""


def test_the_certificate_has_answers_and_audit_and_is_the_same_when_it_is_verified(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path, {}, nodes=2)
    audited = [check(f"node{n}", "governor", "warning", "<b>powersave</b>") for n in (1, 2)]
    audited += [check(f"node{n}", "acs") for n in (1, 2)]
    facts, checks = folder.checks()["checks"]
    folder.write_checks("checks", facts, checks, ({"node1": {}, "node2": {}}, audited))
    before = certificate_of(folder)
    assert before.criteria == () and [one.name for one in before.audit] == ["governor"]
    folder.change(lambda record: replace(record, criteria=CRITERIA))
    certificate = certificate_of(folder)
    assert certificate.verdict == before.verdict and certificate.nodes == before.nodes
    answers = {one.id: one.answer for one in certificate.criteria}
    assert answers == {"acs-off": MET, "governor": NOT_MET, "gemm-fast": MET, "iso": NOT_TESTABLE}
    text = "\n".join(lines(certificate))
    assert "  ✗ governor: full clock" in text and "TFLOP/s" in certificate.criteria[2].evidence[0]
    assert "of 4 criteria 2 met, 1 not met, 1 not testable" in text and "iso" not in text
    page = render(certificate)
    assert "<b>powersave" not in page and "it is theirs" in page and "their page" in page
    archive = seal(folder, tmp_path / "a.tar", contents)
    sealed = json.loads(json.dumps(archive.tables))
    assert [one["id"] for one in sealed["criteria"]] == [*answers]
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert any(name.endswith("/checks.json") for name in tar.getnames())
    assert verify(tmp_path / "a.tar", contents).seal == archive.seal


def test_records_of_earlier_versions_have_no_audit(tmp_path: Path) -> None:
    folder = acceptance(tmp_path, {}, nodes=2)
    path = folder.path / "checks.json"
    content = json.loads(path.read_text())
    for stage in content["stages"].values():
        stage.pop("audit", None)
    write_state(path, {"stages": content["stages"]})
    assert folder.audits() == {} and certificate_of(folder).audit == ()
