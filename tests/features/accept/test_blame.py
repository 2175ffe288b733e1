"""Which runs of a repetition say that a node was to blame for a failed run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import yamlfile
from orchestrator.errors import RunError
from orchestrator.features.accept.blame import depend_on_hosts, succeeds_without
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.suite import suite_of
from orchestrator.results import RunResult
from orchestrator.results.read import read_run
from tests.features.accept.certificates import judged, verdicts
from tests.support.acceptances import SUITE, acceptance, fail_runs, repeated

REST = ("node1", "node2", "node3")


@pytest.fixture
def good(tmp_path: Path) -> RunResult:
    """Return a good run on four nodes of one rank."""
    folder = acceptance(tmp_path, {}, nodes=4)
    return read_run(folder.bench(folder.record().attempts[0].bench_id).runs()[0])


def like(run: RunResult, **changes: object) -> RunResult:
    """Return a run whose spec differs."""
    assert run.spec
    return replace(run, spec=replace(run.spec, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "hosts", "is_blamed"),
    [
        ({"nodes": 3}, REST, True),
        ({"nodes": 2}, REST, False),
        ({"nodes": 3, "gpus": 8}, REST, True),
        ({"nodes": 3}, (*REST, "node4"), False),
        ({"nodes": 3, "container": "podman:image"}, REST, False),
        ({"nodes": 3, "cpu_binding": "numa"}, REST, False),
        ({"nodes": 3, "batch_size": 7}, REST, False),
        ({"nodes": 3, "options": {"sizes": "512"}}, REST, False),
        ({"nodes": 3, "env": {"NCCL_ALGO": "Ring"}}, REST, False),
    ],
)
def test_runs_that_succeed_without_a_node_blame_it_if_they_are_like_the_failed_one(
    changes: dict[str, object], hosts: Sequence[str], is_blamed: bool, good: RunResult
) -> None:
    later = [(hosts, [like(good, **changes)])]
    assert succeeds_without(later, (), "node4", good) == is_blamed


def test_one_failure_in_the_repetition_blames_nobody(good: RunResult) -> None:
    again = like(good, nodes=3)
    ended = replace(
        again,
        state="failed",
        throughput=None,
        error=RunError("no", kind="rank_failed", host="node3"),
    )
    assert ended.has_failed
    assert not succeeds_without([(REST, [again, ended])], (), "node4", good)


def test_any_good_run_without_it_blames_a_node_that_no_run_could_begin_with(
    good: RunResult,
) -> None:
    assert succeeds_without([(REST, [like(good, nodes=2)])], (), "node4", None)
    assert not succeeds_without([], (), "node4", None)


def test_options_that_stand_for_the_number_of_nodes_or_ranks_do_not_tell_runs_apart(
    good: RunResult,
) -> None:
    text = SUITE.replace(
        'options: {sizes: "8192"}', 'options: {sizes: "8192", groups: $nodes}, env: {RANKS: $ranks}'
    )
    document = yamlfile.loads(text, "small.yaml")
    checks, stage = suite_of(document, "small", "cuda").stages
    assert (
        depend_on_hosts(document, stage) == {"groups", "RANKS"}
        and depend_on_hosts(document, checks) == set()
    )
    failed = like(good, options={"groups": 4})
    later = [(REST, [like(good, nodes=3, options={"groups": 3})])]
    assert succeeds_without(later, {"groups"}, "node4", failed) and not succeeds_without(
        later, (), "node4", failed
    )


def test_a_failed_run_fails_the_node_that_it_names_if_runs_without_it_succeed(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path, {}, nodes=4)
    (first,) = folder.record().attempts
    fail_runs(folder, first.bench_id, "node4", 1)
    alone = certificate_of(folder)
    assert [finding.kind for finding in judged(alone, "runs").findings] == [
        "cluster"
    ] and alone.verdict == "fail"
    second = repeated(folder, 3)
    certificate = certificate_of(folder)
    assert verdicts(certificate) == {
        "node1": "pass",
        "node2": "pass",
        "node3": "pass",
        "node4": "fail",
    }
    assert "signal 9" in certificate.nodes[3].why[0]
    # Without the node another one is named: the program names any.
    fail_runs(folder, second, "node3", 1)
    everywhere = certificate_of(folder)
    assert {
        finding.kind for bar in everywhere.judged if bar.kind == "runs" for finding in bar.findings
    } == {"cluster"}
    assert everywhere.verdict == "fail" and "fail" not in verdicts(everywhere).values()
