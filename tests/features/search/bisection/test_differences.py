"""How two measured cells differ, as `orch bisect --dry-run` says it: what a run can have either
way, and what no run can.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from tests.support.cli_project import Project
from tests.support.run_folders import build

INVENTORY = """\
schema: 1
defaults: {gpus: 2, env: {HELD: "1", TOKEN: hush}}
secrets: [TOKEN]
hosts:
  node1: {address: 10.11.0.2}
  node2: {address: 10.11.0.3}
  node3: {address: 10.11.0.4}
"""
Change = Callable[[dict[str, Any]], Any]
Made = Callable[..., BenchDir]
SCATTER = (0.998, 1.002, 1.0, 0.999)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    return Project(tmp_path)


@pytest.fixture
def made(project: Project) -> Made:
    """Make a bench of one cell: its name, the seconds of a step, what is changed in its plan,
    variables of its hosts.
    """

    def make(
        name: str,
        seconds: float,
        change: Change = lambda plan: None,
        env: dict[str, str] | None = None,
    ) -> BenchDir:
        names = [f"{name}.{n}" for n in range(1, 5)]
        hosts = {f"node{n}": {"env": env or {}} for n in (1, 2, 3)}
        record = {
            "bench_id": name, "runs": names, "argv": ["orch", "bench"], "created": name,
            "inventory": str(project.path / "cluster.yaml"), "planned_with": {"hosts": hosts, "frameworks": {}},
        }  # fmt: skip
        bench = BenchDir.create(project.path / "runs", record)

        def planned(plan: dict[str, Any], logs: Any) -> None:
            plan["bench_id"] = name
            change(plan)

        for repeat, (run, noise) in enumerate(zip(names, SCATTER, strict=True), start=1):
            build(bench, run, planned, repeat=repeat, seconds=seconds * noise)
        return bench

    return make


def options(**values: Any) -> Change:
    return lambda plan: plan["spec"]["options"].update(values)


def dry(project: Project, *words: str) -> dict[str, Any]:
    done = project.orch("bisect", *words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_differs_is_listed_and_a_and_b_are_planned_as_they_were(
    project: Project, made: Made
) -> None:
    def changed(plan: dict[str, Any]) -> None:
        options(bucket_cap_mb=100)(plan)
        plan["spec"].update(env={"NCCL_ALGO": "Ring"})
        plan["facts"]["node2"].update(kernel="6.8")
        plan["framework"]["digest"] = "11"

    made("a", 0.5, options(bucket_cap_mb=25))
    made("b", 0.6, changed)
    found = dry(project, "a", "b")
    assert [(one["name"], one["before"], one["after"]) for one in found["differences"]] == [
        ("options.bucket_cap_mb", 25, 100),
        ("env.NCCL_ALGO", None, "Ring"),
    ]
    fixed = {one["name"]: one["why"] for one in found["fixed"]}
    assert set(fixed) == {"template.pytorch", "node.kernel"}
    assert (
        fixed["template.pytorch"]
        == "its content is not recorded, only its digest; both sides run today's version"
    )
    assert (found["case"], found["verdict"], found["before"]["n"]) == ("2n2g", "slower", 4)
    # in blocks, forwards and backwards
    ran = [
        (run["spec"]["options"]["bucket_cap_mb"], run["spec"].get("env", {}))
        for run in found["runs"]
    ]
    a, b = (25, {}), (100, {"NCCL_ALGO": "Ring"})
    assert ran == [a, b, b, a, b, a, a, b]
    shown = project.orch("bisect", "a", "b", "--dry-run")
    assert "options.bucket_cap_mb: 25 → 100" in shown.stdout and "(B, b)" in shown.stdout
    assert "A with one at a time: bucket_cap_mb=100; NCCL_ALGO=Ring\n" in shown.stdout
    assert not [path for path in (project.path / "runs").iterdir() if path.name not in ("a", "b")]


def test_a_binding_to_cpus_is_a_difference_and_one_that_both_have_is_kept(
    project: Project, made: Made
) -> None:
    def bound(binding: str, cap: int) -> Change:
        return lambda plan: plan["spec"].update(
            cpu_binding=binding, options=plan["spec"]["options"] | {"bucket_cap_mb": cap}
        )

    made("a", 0.5, options(bucket_cap_mb=25))
    made("b", 0.6, bound("none", 25))
    made("c", 0.7, bound("none", 100))
    found = dry(project, "a", "b")
    assert [(one["name"], one["before"], one["after"]) for one in found["differences"]] == [
        ("cpu_binding", None, "none")
    ]
    assert "cpu_binding" not in {one["name"] for one in found["fixed"]}
    assert [run["spec"].get("cpu_binding") for run in found["runs"]][:2] == [None, "none"]
    found = dry(project, "b", "c")
    assert [one["name"] for one in found["differences"]] == ["options.bucket_cap_mb"]
    assert {run["spec"].get("cpu_binding") for run in found["runs"]} == {"none"}


def test_hosts_that_are_left_out_run_nothing(project: Project, made: Made) -> None:
    made("a", 0.5, options(bucket_cap_mb=25))
    made("b", 0.6, options(bucket_cap_mb=100))
    used = [
        {
            slot["host"]
            for run in dry(project, "a", "b", *words)["runs"]
            for slot in run["placement"]["slots"]
        }
        for words in ((), ("-x", "node1"))
    ]
    assert used == [{"node1", "node2"}, {"node2", "node3"}]


def test_variables_count_as_they_were_in_effect_and_what_no_run_can_change_is_said(
    project: Project, made: Made
) -> None:
    made("a", 0.5, env={"HELD": "1", "TOKEN": "sha256 1", "ONCE": "x"})
    made(
        "b",
        0.6,
        lambda plan: plan["spec"].update(env={"HELD": "2"}),
        env={"HELD": "1", "TOKEN": "sha256 2"},
    )
    found = dry(project, "a", "b")
    # of HELD the host's value is as good as the spec's; ONCE is on no host today, so that both
    # sides can be had
    assert [(one["name"], one["before"], one["after"]) for one in found["differences"]] == [
        ("env.HELD", "1", "2"),
        ("env.ONCE", "x", None),
    ]
    assert [(one["name"], one["before"], one["why"]) for one in found["fixed"]] == [
        ("env.TOKEN", "(secret)", "its value is secret")
    ]
    made("d", 0.6, env={"HELD": "1", "TOKEN": "sha256 1", "ONCE": "None"})
    assert [
        (one["name"], one["before"], one["after"]) for one in dry(project, "b", "d")["differences"]
    ][1:] == [("env.ONCE", None, "None")]
    made("c", 0.6, env={"TOKEN": "sha256 1", "ONCE": "x"})
    done = project.orch("bisect", "a", "c")
    assert done.returncode == 2 and "the inventory sets it on node1, node2 today" in done.stderr


def test_other_hosts_are_a_difference_if_the_inventory_has_them(
    project: Project, made: Made
) -> None:
    made("a", 0.5)
    bench = made("b", 0.6)
    for run in bench.runs():
        placement = run.manifest_content()["placement"]
        placement["slots"][1]["host"] = "node3"
        run.update_manifest(placement=placement)
        (run.path / "logs" / "node2").rename(run.path / "logs" / "node3")
    found = dry(project, "a", "b")
    (hosts,) = found["differences"]
    assert (hosts["name"], hosts["before"], hosts["after"]) == (
        "hosts",
        "node1,node2",
        "node1,node3",
    )
    assert [[slot["host"] for slot in run["placement"]["slots"]] for run in found["runs"]][:2] == [
        ["node1", "node2"],
        ["node1", "node3"],
    ]
    (project.path / "cluster.yaml").write_text(
        INVENTORY.replace("  node3: {address: 10.11.0.4}\n", "")
    )
    done = project.orch("bisect", "a", "b")
    assert done.returncode == 2 and "not all of them are in the inventory" in done.stderr


def test_what_cannot_be_bisected_is_refused_before_any_host_is_contacted(
    project: Project, made: Made
) -> None:
    made("a", 0.5)
    made("b", 0.6)
    made("c", 0.6, options(compile=True))
    for words, code, text in (
        (("a", "b"), 2, "expected a difference that a run can take from A or from B, found none"),
        (("a",), 2, "B: expected a second bench, got none"),
        (("a", "--by", "dtype"), 2, "expected a field and two values"),
        (
            ("a", "c", "--case", "9n9g"),
            2,
            "expected a configuration with numbers in A and in B, found none",
        ),
        (("a", "c", "--metric", "all"), 2, "expected the name of one metric, got all"),
        (("a", "c", "--budget", "soon"), 2, "--budget: "),
    ):
        done = project.orch("bisect", *words)
        assert (done.returncode, done.stdout) == (code, "") and text in done.stderr, done.stderr
    assert sorted(path.name for path in (project.path / "runs").iterdir()) == ["a", "b", "c"]
