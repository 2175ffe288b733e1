"""The Python interface: the examples of docs/api.md, and that Python and the command line read and
plan the same.
"""

from __future__ import annotations

import doctest
import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import orchestrator
from orchestrator.api import arguments
from orchestrator.api.sealing import contents
from orchestrator.errors import ConfigError, DataError
from orchestrator.record.archive import seal
from tests.support import commands
from tests.support.acceptances import acceptance
from tests.support.benches import bench as made

REPOSITORY = Path(__file__).parents[2]
INVENTORY = """\
schema: 1
defaults: {gpus: 8, vars: {interface: ib0}, env: {HF_TOKEN: hush-hush}}
hosts: {"no[1-2]": {address: "nowhere-[1-2].invalid"}}
"""
NAME = "20260101-120000-ab12"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    made(tmp_path / "runs", NAME, "2026-01-01T12:00:00Z", [0.50, 0.52, 0.49], label="before")
    monkeypatch.chdir(tmp_path)
    for name in ("ORCH_PROJECT", "ORCH_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_examples_of_the_page_and_of_the_module_hold(project: Path) -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(page.replace("```", ""), {}, "api.md", None, 0)
    assert len(examples.examples) > 10
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples).failed == 0
    assert doctest.testmod(arguments).failed == 0


def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = "import sys, orchestrator; print([name for name in sys.modules if name.startswith('orchestrator.')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert {*orchestrator.__all__} <= {*dir(orchestrator)}
    assert all(getattr(orchestrator, name) for name in orchestrator.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        _ = orchestrator.lode


def test_a_bench_is_the_same_by_path_name_label_and_archive(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = orchestrator.load()
    archive = project / "sealed.tar"
    seal(
        orchestrator.api.find.find_bench(orchestrator.api.bench.project_of(None), NAME),
        archive,
        contents,
    )
    done = commands.orch(project, "summarize", "--json")
    assert bench.document == json.loads(done.stdout)
    monkeypatch.chdir("/")
    same = [
        orchestrator.load(project / "runs" / NAME),
        orchestrator.load(NAME, project=project),
        orchestrator.load(archive),
    ]
    assert [found.rows() for found in same] == [bench.rows()] * 3 and {
        found.id for found in same
    } == {NAME}
    archive.write_bytes(archive.read_bytes().replace(b'"repeat": 2', b'"repeat": 3', 1))
    with pytest.raises(DataError, match="expected SHA-256"):
        orchestrator.load(archive)


@pytest.mark.parametrize("name", ["nothing", "x" * 5000, "a\0b"])
def test_what_names_no_bench_is_refused(project: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no bench"):
        orchestrator.load(name)


def test_damaged_evidence_is_an_error_of_the_bench_and_leaves_the_others(project: Path) -> None:
    run = sorted((project / "runs" / NAME).glob("*/manifest.json"))[1]
    run.write_text("damaged")
    bench = orchestrator.load("before")
    assert [row["n"] for row in bench.rows()] == [2] and len(bench.errors) == 1
    with pytest.raises(DataError):
        bench.check()


def test_a_plan_is_that_of_the_command_which_it_names(project: Path) -> None:
    plan = orchestrator.prepare(
        "resnet50", hosts="cluster.yaml", nodes=[1, 2], dtype=["fp32", "fp16"], batch_size=64,
        env={"NCCL_ALGO": ["Ring", "Tree"]},
        options={"compile": [True, False]}, timeout_s=90, repeats=2, baseline=False, label="a, b", limits=orchestrator.Limits(),
    )  # fmt: skip
    done = commands.orch(project, *plan.command[1:], "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    ours = json.loads(json.dumps(plan.documents(), sort_keys=True))
    theirs = json.loads(done.stdout)
    assert [run["spec"] for run in ours] == [run["spec"] for run in theirs] and len(ours) == 32
    for one, other in zip(ours, theirs, strict=True):
        for node, same in zip(one["nodes"], other["nodes"], strict=True):
            assert [file["path"] for file in node["files"]] == [
                file["path"] for file in same["files"]
            ]
            launch, same_launch = (
                text["content"].replace(run["run_id"], "RUN")
                for run, files in ((one, node), (other, same))
                for text in files["files"]
                if text["path"] == "launch.sh"
            )
            assert launch == same_launch
    assert all(
        "hush-hush" not in text
        for files in plan.files(plan.runs[0]).values()
        for text in files.values()
    )
    assert not list(project.glob("runs/*/events.jsonl"))


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("repeats", 0, "--repeats: expected a whole number ≥ 1, got 0"),
        ("repeats", "x", "--repeats: expected a whole number ≥ 1, got 'x'"),
        ("budget", 30, "--budget: expected a text, got 30"),
        ("until_ci", 1, "--until-ci: expected a text, got 1"),
        ("label", 5, "--label: expected a text, got 5"),
        ("exclude", [], "--exclude: expected one value or a list of values, got []"),
        ("ladder", 1, "--ladder: expected True or False, got 1"),
        ("templates", [5], "--templates: expected paths, got 5"),
        ("expect", "faster", "--expect: expected a bound such as busbw >= 350, got 'faster'"),
        ("templates", "no/such", "no/such: expected a folder with framework folders"),
        ("options", {"compute_ms": None}, "--set compute_ms"),
        ("options", 5, "--set: expected values by name, got 5"),
        ("env", [1], "--env: expected values by name, got [1]"),
        ("limits", 5, "limits: expected orchestrator.Limits, got 5"),
        ("nodes", [], "--nodes: expected one value or a list of values, got []"),
        ("nodes", object, "--nodes: expected one value or a list of values, got <class 'object'>"),
        ("hosts", {}, "--hosts: expected one value or a list of values, got {}"),
        ("container", 5, "--container: expected a text, got 5"),
        ("global_batch", [8], "--global-batch: expected a whole number ≥ 1, got [8]"),
        ("timeout_s", [8], "--timeout: expected a number, got [8]"),
        ("expect", [None], "--expect: expected texts, got None"),
        ("file", 5, "--file: expected a path, got 5"),
        ("project", 5, "project: expected the path of a folder, got 5"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_option(
    project: Path, option: str, value: object, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        orchestrator.prepare(
            **{
                "model": "resnet50",
                "framework": "simulated",
                "hosts": "cluster.yaml",
                option: value,
            }
        )  # type: ignore[arg-type]
    assert str(caught.value).startswith(text)


def test_several_hosts_are_a_list_as_several_values_are(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_HOSTS", "cluster.yaml")
    plans = [
        orchestrator.prepare("resnet50", framework="simulated", hosts=hosts)
        for hosts in (["no1", "no2"], "no1,no2")
    ]
    assert plans[0].command == plans[1].command and plans[0].hosts == plans[1].hosts == (
        "no1",
        "no2",
    )


def test_what_is_no_plan_run_or_name_is_refused_with_what_was_expected(project: Path) -> None:
    plan = orchestrator.prepare(
        "resnet50", framework="simulated", hosts="cluster.yaml", baseline=False
    )
    near = plan.runs[0][:-1] + "x"
    for call, text in (
        (lambda: orchestrator.run(None), "plan: expected a plan of orchestrator.prepare, got None"),  # type: ignore[arg-type]
        (
            lambda: orchestrator.run(plan, observe=5),
            "observe: expected a function of an event, got 5",
        ),  # type: ignore[arg-type]
        (
            lambda: plan.files(near),
            f"run_id: no run {near!r} in this plan; did you mean '{plan.id}",
        ),
        (lambda: orchestrator.load(5), "name: expected a name or a path, got 5"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value).startswith(text)


def test_an_acceptance_is_no_bench_and_its_benches_are_named(project: Path) -> None:
    folder = acceptance(project / "runs", {}, nodes=3, name="a1-small")
    for name in ("a1-small", folder.path):
        with pytest.raises(
            ConfigError,
            match=r"a1-small: expected a bench, got an acceptance\. its benches are .*\(gemm\)",
        ) as caught:
            orchestrator.load(name)
        (named,) = re.findall(r"its benches are (\S+) \(gemm\)$", caught.value.hint)
        assert orchestrator.load(named).id == "a1-small.bench"


def test_none_is_a_value_that_is_not_given(project: Path) -> None:
    plan = orchestrator.prepare(
        "resnet50", framework="simulated", hosts="cluster.yaml", dtype=None, expect=None
    )  # type: ignore[arg-type]
    assert (
        plan.command
        == orchestrator.prepare("resnet50", framework="simulated", hosts="cluster.yaml").command
    )


def test_what_is_not_given_is_what_the_projects_file_says(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "orch.yaml").write_text(
        "hosts: cluster.yaml\nnodes: 2\nrepeats: 4\nlease: 2m\nexclude: no1\naccept_new: true\n"
    )
    with (
        caplog.at_level(logging.INFO, "orchestrator"),
        pytest.raises(ConfigError, match="expected 2 hosts"),
    ):
        orchestrator.prepare("resnet50", framework="simulated", gpus=1)
    assert "cluster.yaml (orch.yaml), 1 of 2 hosts" in caplog.text
    plan = orchestrator.prepare(
        "resnet50", framework="simulated", gpus=1, exclude="", baseline=False
    )
    assert (plan.hosts, len(plan.runs), plan.limits.lease_s, plan.accept_new) == (
        ("no1", "no2"),
        4,
        120.0,
        True,
    )
    assert replace(plan.limits, lease_s=60.0) == orchestrator.Limits()


def test_pandas_is_asked_for_by_the_name_of_its_extra(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = orchestrator.load()
    monkeypatch.setattr("orchestrator.extras.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"Bench.frame: expected pandas.*pip install 'orch-bench\[pandas\]'"
    ):
        bench.frame()
    assert bench.rows()
