"""`orch accept` before it contacts a host: what suites plan on nodes with and without GPUs, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.acceptance import bench_of, earlier_of
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.plan.suite import suite_of
from orchestrator.plan.suite_files import open_suite, suites
from orchestrator.record.acceptance import AcceptanceDir
from tests.support.acceptances import STEADY, acceptance, hosts_of

INVENTORY = "schema: 1\ndefaults: {gpus: 8}\nhosts:\n  'gpu[1-4]': {address: '10.0.0.[1-4]'}\n"


def orch(*words: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setenv("ORCH_PROJECT", str(project))
    return CliRunner().invoke(program(), ["accept", *words])


@pytest.mark.parametrize("gpus", [8, 0])
@pytest.mark.parametrize("name", suites())
def test_every_stage_of_a_suite_is_planned_or_says_why_not(name: str, gpus: int) -> None:
    hosts = [Host(host.name, host.address, gpus=gpus, slots=1) for host in hosts_of(4)]
    document = open_suite(name)
    suite = suite_of(document, name, hosts[0].device)
    impossible = {}
    for stage in suite.stages:
        if not stage.checks:
            try:
                plan = bench_of(stage, document, hosts, ())
            except ConfigError as error:
                impossible[stage.name] = error.message
                continue
            assert plan.planned() and {cell.device for cell in plan.cells} == {hosts[0].device}
            if stage.name == "all-reduce-in-node":
                assert plan.cells[0].options["group_ranks"] == 8
    on_cpu = {"host-device", "all-reduce-in-node"} & {stage.name for stage in suite.stages}
    assert set(impossible) == (set() if gpus else on_cpu)


def test_a_plan_contacts_no_host_and_names_what_the_budget_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    done = orch(
        "accept",
        "--hosts",
        str(tmp_path / "cluster.yaml"),
        "--budget",
        "30m",
        "--dry-run",
        project=tmp_path,
        monkeypatch=monkeypatch,
    )
    assert done.exit_code == 0, done.output
    assert "gemm: matrix products, every device at the same time; 8 runs of 4n8g" in done.output
    assert "bar: tflops_rank size=8192, at most 3% slower than peers and 5% slower than before" in done.output
    assert "left out: " in done.output and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("qick",), "no suite 'qick'"),
        (("quick", "--budget", "1s"), "expected a stage that fits, there is none"),
        (("quick", "--budget", "soon"), "expected a time such as"),
        (("missing.yaml",), "expected a file, there is none"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    done = orch(*words, "--hosts", str(tmp_path / "cluster.yaml"), project=tmp_path, monkeypatch=monkeypatch)
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)


def test_hosts_are_compared_with_their_last_acceptance_that_passed(tmp_path: Path) -> None:
    from orchestrator.cli.acceptance import certify

    hosts = hosts_of(3)
    for name, tflops in (("a1-good", {}), ("a2-bad", {0: tuple(0.7 * value for value in STEADY)})):
        certify(AcceptanceDir(acceptance(tmp_path, tflops, nodes=3, name=name).path))
    known = earlier_of(tmp_path, "small", hosts)
    assert known["id"] == "a1-good" and len(next(iter(known["measured"].values()))["units"]) == 3
    page = tmp_path / "a1-good" / "certificate.json"
    page.write_text(page.read_text().replace('"units": {', '"units": {"x": [0],', 1))
    assert earlier_of(tmp_path, "small", hosts) == {}
    assert earlier_of(tmp_path, "small", hosts[:2]) == {} == earlier_of(tmp_path, "quick", hosts)
