"""Stages that inspect nodes: which checks they judge, and that each is judged by what it found
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.nodes import is_chosen
from tests.features.accept.certificates import CHECK, judged, verdicts
from tests.support.acceptances import SUITE, acceptance


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "undecided"),
        ({"verdict": "failed", "name": "expect"}, "fail"),
        ({"name": "load"}, "pass"),
        ({"verdict": "ok"}, "pass"),
    ],
)
def test_what_a_node_is_fails_it_or_leaves_it_open_and_how_busy_it_is_does_not(
    change: dict[str, str], verdict: str, tmp_path: Path
) -> None:
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=3, checks=[{**CHECK, **change}]))
    assert verdicts(certificate) == {"node1": "pass", "node2": verdict, "node3": "pass"}
    assert certificate.verdict == verdict
    if verdict == "undecided":
        assert (
            "state the right value under expect:"
            in judged(certificate, "checks").findings[0].decides
        )


@pytest.mark.parametrize(
    ("name", "names", "chosen"),
    [
        ("ecc", ["all"], True),
        ("ecc", ["disk", "ecc"], True),
        ("ecc", ["disk"], False),
        ("reach", ["all"], True),
        ("reach", ["disk"], True),
    ],
)
def test_a_stage_judges_the_checks_that_it_names_and_always_whether_a_node_answers(
    name: str, names: Sequence[str], chosen: bool, tmp_path: Path
) -> None:
    assert is_chosen(name, names) == chosen
    suite = SUITE.replace(
        "checks: all", f"checks: [{', '.join(names)}]" if names != ["all"] else "checks: all"
    )
    failure = {**CHECK, "verdict": "failed", "name": name}
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=3, suite=suite, checks=[failure]))
    assert verdicts(certificate)["node2"] == ("fail" if chosen else "pass")


@pytest.mark.parametrize("failing", ["checks", "after"])
def test_each_of_two_stages_of_checks_is_judged_by_what_it_found_itself(
    failing: str, tmp_path: Path
) -> None:
    suite = SUITE + "  - {name: after, checks: [ecc], framework: gemm, run: 30s, needs: [gemm]}\n"
    failure = {**CHECK, "verdict": "failed", "name": "ecc"}
    folder = acceptance(
        tmp_path, {}, nodes=3, suite=suite, checks=[failure] if failing == "checks" else []
    )
    before, _ = folder.checks()["checks"]
    now = {host: facts | {"boot_id": "c"} for host, facts in before.items() if host != "node3"}
    folder.write_checks("after", now, [failure] if failing == "after" else [])
    folder.change(
        lambda record: replace(
            record, stages=("checks", "gemm", "after"), over={**record.over, "after": ""}
        )
    )
    certificate = certificate_of(folder)
    bars = {bar.stage: bar.verdict for bar in certificate.judged if bar.kind == "checks"}
    assert bars == {"checks": "pass", "after": "pass", failing: "fail"}
    assert verdicts(certificate) == {"node1": "pass", "node2": "fail", "node3": "pass"}
    assert [node.serials["boot id"] for node in certificate.nodes] == ["c", "c", "b"], (
        "the last facts of each node"
    )
    assert {stage.name: stage.measured for stage in certificate.stages if not stage.bench_id} == {
        "checks": 3,
        "after": 2,
    }
