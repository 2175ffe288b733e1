"""What is wrong in a suite whatever the hosts are is refused before any is contacted, with file,
line and stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.api.selection import Selection
from orchestrator.errors import ConfigError, Faults
from orchestrator.features.accept.suite_files import suites
from orchestrator.features.accept.suite_plan import SuitePlan, plan_suite, show
from orchestrator.inventory import open_inventory
from orchestrator.record.project import Project
from tests.support import hashing
from tests.support.features import needs

STAGE = """\
stages:
  - name: hashing
    bench: hashing
    framework: hashing
    choices: {steps: 4, warmup_steps: 2, expect: [rate >= 1 seconds=0.5], options: {seconds: 0.5}}
    run: 5s
    bars: [{metric: rate, at: {seconds: 0.5}, peers: 5%}]
    cpu: {bench: hashing}
"""
IN_CHOICES, BAR = "suite.yaml:5: stages[0].choices", "suite.yaml:7: stages[0].bars[0]"
NO_METRIC = "expected a metric that this bench measures, got"
NO_KEY = "expected a field, an option, a variable or a key of rate"
NEAREST = "the metrics are rate; did you mean 'rate'?"


INVENTORY = """\
schema: 1
secrets: [NCCL_ALGO]
defaults: {gpus: 0, slots: 1, env: {NCCL_ALGO: Ring}}
hosts: {"n[1-2]": {address: "10.0.0.[1-2]"}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two hosts without GPUs, and the framework ``hashing``."""
    hashing.write(tmp_path)
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    return tmp_path


def plan_of(project: Path, text: str) -> SuitePlan:
    (project / "suite.yaml").write_text(text)
    machines = open_inventory(str(project / "cluster.yaml"))
    selection = Selection(Project(project), machines, machines.hosts, "cluster.yaml", "")
    return plan_suite(str(project / "suite.yaml"), selection, [project / "templates"], None)


def faults_of(project: Path, text: str) -> list[str]:
    with pytest.raises((ConfigError, Faults)) as refused:
        plan_of(project, text)
    errors = refused.value.errors if isinstance(refused.value, Faults) else [refused.value]
    assert refused.value.exit_code == 2
    return [str(error).replace(f"{project}/", "") for error in errors]


def test_a_suite_without_faults_is_planned(project: Path) -> None:
    plan = plan_of(project, STAGE)
    assert [stage.name for stage, _ in plan.stages] == ["hashing"] and plan.left_out == {}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("options: {seconds", "options: {secnds",
         f"{IN_CHOICES}.options.secnds: hashing has no option 'secnds'. it has seconds=0.3, cpu_time=False; "
         "did you mean 'seconds'?"),
        ("options: {seconds: 0.5", "options: {seconds: fast",
         f"{IN_CHOICES}.options.seconds: expected a number ≥ 0.01, got 'fast'"),
        ("steps: 4", "steps: 1", f"{IN_CHOICES}.steps: expected more steps than the 2 warm-up steps, got 1"),
        ("steps: 4", "steps: 4, nodes: -1", f"{IN_CHOICES}.nodes: expected a whole number ≥ 1, got -1"),
        ("steps: 4", "steps: 4, dtype: fp8", f"{IN_CHOICES}.dtype: expected one of none for hashing on cpu, got 'fp8'"),
        ("steps: 4", "steps: 4, container: foo", f"{IN_CHOICES}.container: expected ENGINE:IMAGE or none, got 'foo'"),
        ("steps: 4", "steps: 4, env: {HF_TOKEN: hush}", f"{IN_CHOICES}.env.HF_TOKEN: expected a variable that is not secret"),
        ("steps: 4", "steps: 4, env: {NCCL_ALGO: [hush]}",
         f"{IN_CHOICES}.env.NCCL_ALGO[0]: expected a variable that is not secret"),
        ("steps: 4", "steps: 4, nodes: [1, 2], exclude: [{nodes: 1}, {nodes: 2}]",
         f"{IN_CHOICES}: expected at least one configuration after exclude:"),
        ("bench: hashing\n", "bench: hashin\n",
         "suite.yaml:3: stages[0].bench: hashing has no model 'hashin'. it has hashing; did you mean 'hashing'?"),
        ("    framework: hashing", "    framework: hasing", "suite.yaml:4: stages[0].framework: no framework 'hasing'. "),
        ("cpu: {bench: hashing}", "cpu: {bench: foo}", "suite.yaml:8: stages[0].cpu.bench: hashing has no model 'foo'"),
        ("rate >= 1", "raate >= 1", f"{IN_CHOICES}.expect[0]: {NO_METRIC} 'raate'. {NEAREST}"),
        ("rate >= 1 seconds", "rate >= 1 secnds", f"{IN_CHOICES}.expect[0]: {NO_KEY} in 'rate >= 1 secnds=0.5', got 'secnds'"),
        ("metric: rate", "metric: ratee", f"{BAR}: {NO_METRIC} 'ratee'. {NEAREST}"),
        ("at: {seconds", "at: {secnds", f"{BAR}: {NO_KEY} in 'rate secnds=0.5', got 'secnds'"),
        (", peers: 5%", "", f"{BAR}: expected peers:, earlier: or a reference figure of rate, found none"),
    ],
)  # fmt: skip
def test_a_fault_is_refused_with_file_line_and_stage(
    project: Path, before: str, after: str, message: str
) -> None:
    assert before in STAGE
    (fault,) = faults_of(project, STAGE.replace(before, after, 1))
    assert fault.startswith(message) and "hush" not in fault


def test_what_is_wrong_for_other_devices_is_refused_too(project: Path) -> None:
    text = STAGE.replace("cpu: {bench: hashing}", "cpu: {choices: {dtype: none}, bars: []}")
    secret, bound = faults_of(
        project,
        text.replace("rate >= 1", "raate >= 1").replace(
            "steps: 4", "steps: 4, env: {HF_TOKEN: hush}"
        ),
    )
    assert secret.startswith(f"{IN_CHOICES}.env.HF_TOKEN: ") and bound.startswith(
        f"{IN_CHOICES}.expect[0]: "
    )


def test_all_faults_are_reported_together(project: Path) -> None:
    text = STAGE.replace("steps: 4", "steps: 1").replace("metric: rate", "metric: ratee")
    checks = "  - {name: checks, checks: [ecc, gpuz], framework: gem}\n"
    assert [fault.split(": ")[1] for fault in faults_of(project, text + checks)] == [
        "stages[0].bars[0]", "stages[0].choices.steps", "stages[1].framework", "stages[1].checks[1]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choices", "left_out"),
    [
        ("{nodes: 9}", {"hashing": "suite.yaml:4: stages[0].choices.nodes: expected 9 hosts, 2 selected: n[1-2]"}),
        ("{nodes: [1, 9]}",
         {"hashing, hashing hashing 9n1g": "suite.yaml:4: stages[0].choices.nodes[1]: expected 9 hosts, 2 selected: n[1-2]"}),
    ],
)  # fmt: skip
def test_what_these_hosts_make_impossible_is_left_out_with_its_place(
    project: Path, choices: str, left_out: Mapping[str, str]
) -> None:
    plan = plan_of(
        project, f"stages:\n  - name: hashing\n    bench: hashing\n    choices: {choices}\n"
    )
    assert {
        name: reason.replace(f"{project}/", "") for name, reason in plan.left_out.items()
    } == left_out
    assert [cell.shape for _, bench in plan.stages if bench for cell in bench.cells] == (
        [] if "hashing" in left_out else ["1n1g"]
    )


def test_a_fault_of_a_template_is_no_reason_to_leave_a_stage_out(project: Path) -> None:
    (project / "templates" / "hashing" / "launch.sh.j2").write_text("{{ optons.seconds }}\n")
    with pytest.raises(
        ConfigError, match=r"launch.sh.j2:1: expected a name that a template sees, got 'optons'"
    ) as refused:
        plan_of(project, STAGE)
    assert refused.value.kind == "template_error"


def test_a_number_of_ranks_that_these_hosts_lack_is_no_fault_of_the_suite(project: Path) -> None:
    text = "stages: [{name: a, bench: allreduce, choices: {options: {group_ranks: $ranks}}}]"
    assert list(plan_of(project, text).left_out) == ["a"]


def test_a_bar_that_reference_figures_judge_needs_nothing_else(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "suites" / "references").mkdir(parents=True)
    figures = "device: box\nsource: a table\nfigures: [{framework: hashing, metric: rate, value: 5, tolerance: 8%}]\n"
    (project / "suites" / "references" / "own.yaml").write_text(figures)
    show(plan_of(project, STAGE.replace(", peers: 5%", "")), 2, as_json=False)
    assert "bar: rate seconds=0.5, by reference figures alone\n" in capsys.readouterr().out
    (project / "suites" / "references" / "own.yaml").write_text(figures.replace("5", "five"))
    with pytest.raises(ConfigError, match="value: expected a number above 0, got 'five'"):
        plan_of(project, STAGE)


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs("audit") if name == "clustermax" else ()) for name in suites()],
)
def test_a_suite_that_comes_with_orch_has_no_fault(name: str, gpus: int, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        f"schema: 1\nhosts: {{n1: {{address: 10.0.0.1, gpus: {gpus}, slots: 1}}}}\n"
    )
    machines = open_inventory(str(tmp_path / "cluster.yaml"))
    assert plan_suite(
        name, Selection(Project(tmp_path), machines, machines.hosts, "cluster.yaml", ""), (), None
    ).stages
