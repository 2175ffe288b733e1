"""Folders that measure something else than training: how they are chosen, and what becomes of their
runs everywhere.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory.hosts import Host
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import framework_for, open_framework
from orchestrator.plan.request import Request
from orchestrator.record.rundir import BenchDir
from orchestrator.report.formats import json as jsonout
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support import commands
from tests.support.features import needs
from tests.support.run_folders import build

FOLDER = """\
title: latency of a ping
measures: readings
models: {{{model}: {{}}}}
dtypes: {{cpu: {{fp32: fp32}}}}
defaults: {{dtype: fp32, steps: 25, warmup_steps: 5, timeout_s: 60, repeats: 3}}
files: [{{template: launch.sh.j2, path: launch.sh, mode: "0700"}}]
probe: "print('{{}}')"
log:
  files: [node.out]
  readings: '^ping to=(?P<to>\\d+) time_s=(?P<time_s>[\\d.]+)$'
  metrics: {{time_s: {{unit: s, better: lower, keys: [to]}}}}
"""
METRICS = [{"name": "time_s", "unit": "s", "better": "lower", "keys": ["to"]}]
READINGS = "^ping to=(?P<to>[0-9]+) time_s=(?P<time_s>[0-9.]+)$"
HOSTS = [Host(f"node{n}", f"10.11.0.{n + 1}", gpus=0, slots=2) for n in (1, 2)]


def folder(templates: Path, name: str, model: str = "ping", text: str = FOLDER) -> None:
    """Write a framework folder below ``templates``."""
    (templates / name).mkdir(parents=True)
    (templates / name / "framework.yaml").write_text(text.format(model=model))
    (templates / name / "launch.sh.j2").write_text("#!/bin/bash\nexec true {{ spec.steps }}\n")


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder(tmp_path / "templates", "pinger")
    return tmp_path / "templates"


# --- which folder, and what may be asked of it


def test_a_model_of_one_folder_chooses_it_and_a_model_to_train_the_usual_one(
    templates: Path,
) -> None:
    assert framework_for("ping", (templates,)) == "pinger"
    assert framework_for("resnet50", (templates,)) == "pytorch"


def test_a_model_of_several_folders_or_of_none_is_refused(templates: Path) -> None:
    folder(templates, "other")
    with pytest.raises(
        ConfigError,
        match=r"several frameworks have a model 'ping': other, pinger. choose one of them",
    ):
        framework_for("ping", (templates,))
    with pytest.raises(ConfigError, match=r"no framework has a model 'pong'.*did you mean 'ping'"):
        framework_for("pong", (templates,))


def test_a_folder_says_what_its_kind_of_measurement_needs(tmp_path: Path) -> None:
    folder(tmp_path, "silent", text=FOLDER.replace("  readings:", "  rank:"))
    with pytest.raises(
        Faults,
        match=r"log\.readings: expected the pattern of a line with a result in a folder that measures readings",
    ):
        open_framework("silent", (tmp_path,))
    folder(tmp_path, "trains", text=FOLDER.replace("measures: readings\n", ""))
    with pytest.raises(
        Faults,
        match=r"(?s)loaders: expected .* log\.patterns: expected at least one pattern in a folder that measures training",
    ):
        open_framework("trains", (tmp_path,))


@pytest.mark.parametrize(
    ("axis", "where"),
    [({"batch_size": (4,)}, "--batch-size"), ({"loader": ("native",)}, "--loader")],
)
def test_choices_that_mean_nothing_are_refused(
    templates: Path, axis: dict[str, tuple[Any, ...]], where: str
) -> None:
    found = open_framework("pinger", (templates,))
    with pytest.raises(ConfigError, match=f"{where}: pinger measures metrics of its own"):
        configure(Request("ping", axes=axis), [found], HOSTS)
    (spec,) = configure(Request("ping"), [found], HOSTS).specs
    assert (spec.batch_size, spec.loader, spec.shape) == (1, "none", "2n2g")


# --- what becomes of its runs


def orch(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.orch(
        project, *words, environment={"ORCH_PROJECT": str(project), "COLUMNS": "150"}
    )


def pings(times: list[str]) -> Any:
    """Return what makes a run of `build` one that measured these times."""

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {
            "framework": "pinger",
            "model": "ping",
            "batch_size": 1,
            "loader": "none",
        }
        log = planned["framework"]["log"] | {
            "patterns": [],
            "closing": "",
            "readings": [READINGS],
            "metrics": METRICS,
        }
        planned["framework"] |= {"measures": "readings", "log": log}
        lines = [line for line in logs[0]["rank-0.out"].splitlines() if "rank=" in line]
        lines += [f"ping to={n} time_s={time}" for n, time in enumerate(times)]
        logs[0]["rank-0.out"] = "\n".join(lines) + "\n"

    return change


def made_bench(root: Path, name: str, repeats: list[list[str]]) -> BenchDir:
    runs = [f"{name}-r{n}" for n in range(1, len(repeats) + 1)]
    made = BenchDir.create(
        root / "runs", {"bench_id": name, "created": "2025-01-01T00:00:00Z", "runs": runs}
    )
    for repeat, (run_id, times) in enumerate(zip(runs, repeats, strict=True), start=1):
        build(made, run_id, pings(times), repeat=repeat)
    return made


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    """Three repeats of two times; the third printed none."""
    return made_bench(tmp_path, "b1", [["0.125", "20.5"], ["0.25", "21.5"], []])


@pytest.mark.parametrize(
    ("line", "notes"), [("ping to=0 time_s=0.5", 1), ("ping to=0 time_s=0.125", 0), ("ready", 0)]
)
def test_results_of_other_ranks_that_are_not_read_are_said_where_they_differ(
    tmp_path: Path, line: str, notes: int
) -> None:
    made = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01T00:00:00Z", "runs": ["r1"]}
    )

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        pings(["0.125"])(planned, logs)
        logs[1]["rank-2.out"] += f"{line}\n"

    run = read_run(build(made, "r1", change))
    said = [text for text in run.qualifications if "were not read" in text]
    expected = "logs of node2 have matching lines that were not read, such as node2/rank-2.out"
    assert [text.partition(";")[0] for text in said] == [expected] * notes and run.is_good


def test_each_key_is_a_row_and_a_run_without_lines_has_failed(bench: BenchDir) -> None:
    results = [read_run(run) for run in bench.runs()]
    assert [(run.state, [(value.key, value.number) for value in run.values], run.throughput) for run in results] == [
        ("finished", [((0,), 0.125), ((1,), 20.5)], None),
        ("finished", [((0,), 0.25), ((1,), 21.5)], None),
        ("failed", [], None),
    ]  # fmt: skip
    summary = summarize(results)
    assert (summary.sheets, summary.notes, summary.baseline) == ((), (), {})
    first, second = summary.rows
    assert (first.series, first.shape, first.n, first.failed) == (
        "pinger ping fp16 time_s to=0",
        "2n2g",
        2,
        1,
    )
    assert (first.metric, first.unit, first.better, first.key, second.key) == (
        "time_s",
        "s",
        "lower",
        {"to": 0},
        {"to": 1},
    )
    assert (first.minimum, first.maximum, first.average) == (0.125, 0.25, 0.1875)
    assert first.value == pytest.approx((0.125 * 0.25) ** 0.5) and first.speedup is None
    assert "2 good repeats: interval unreliable below n=3" in first.qualifications
    assert "repeats spread over more than 5% of the median" in first.qualifications
    assert "expected lines with results, found 0" in first.failures[0]


def test_json_has_the_rows_as_its_schema_says(bench: BenchDir) -> None:
    document = json.loads(jsonout.render(summarize([read_run(run) for run in bench.runs()])))
    schema = json.loads(
        (Path(jsonout.__file__).parent / "summary.schema.json").read_text(encoding="utf-8")
    )
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []
    assert document["rows"][1]["key"] == {"to": 1} and document["rows"][1]["maximum"] == 21.5


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_people_see_the_values_by_key(bench: BenchDir, tmp_path: Path, form: str) -> None:
    done = orch(tmp_path, "summarize", "b1", "--format", form)
    assert done.returncode == 4, (
        done.stderr
    )  # the third run's evidence is incomplete, as for training
    shown = done.stdout.replace("\\", "")
    for text in (
        "pinger ping fp16",
        "time_s s",
        "2 (1 failed)",
        "20.99",
        "r3 failed",
        "best time_s 2n2g: 0.177 s at to=0",
    ):
        assert text in shown, text


@pytest.mark.parametrize("form", ["table", "markdown", "html", "csv", "json"])
def test_a_bench_without_any_lines_says_why_there_is_no_number(tmp_path: Path, form: str) -> None:
    made_bench(tmp_path, "b2", [[]])
    done = orch(tmp_path, "summarize", "b2", "--format", form)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "expected lines with results, found 0" in done.stdout.replace("\\", "")


def test_csv_has_a_line_for_each_key(bench: BenchDir, tmp_path: Path) -> None:
    lines = list(
        csv.DictReader(io.StringIO(orch(tmp_path, "summarize", "b1", "--format", "csv").stdout))
    )
    assert [(line["model"], line["metric"], line["unit"], line["key.to"], line["n"], line["median"]) for line in lines] == [
        ("ping", "time_s", "s", "0", "2", "0.188"), ("ping", "time_s", "s", "1", "2", "21.00"),
    ]  # fmt: skip


def test_a_rule_of_published_speeds_is_refused(bench: BenchDir, tmp_path: Path) -> None:
    done = orch(tmp_path, "summarize", "b1", "--rule", "dlperf")
    assert (done.returncode, done.stdout) == (2, "")
    assert "measured metrics of its own" in done.stderr and "Traceback" not in done.stderr


def test_compare_and_gate_judge_each_key_and_less_is_better(tmp_path: Path) -> None:
    quick, slow = [["1.00", "20.1"], ["1.01", "20.2"], ["1.02", "20.3"], ["1.03", "20.0"]], []
    slow = [[f"{1.2 * float(first):.3f}", second] for first, second in quick]
    made_bench(tmp_path, "b1", quick)
    made_bench(tmp_path, "b2", slow)
    compared = json.loads(orch(tmp_path, "compare", "b1", "b2", "--json").stdout)
    assert [(pair["case"], pair["metric"], pair["unit"], pair["better"], pair["verdict"]) for pair in compared["pairs"]] == [
        ("2n2g to=0", "time_s", "s", "lower", "slower"), ("2n2g to=1", "time_s", "s", "lower", "no difference"),
    ]  # fmt: skip
    assert compared["pairs"][0]["ratio"] == pytest.approx(1.2, rel=1e-3)
    back = json.loads(orch(tmp_path, "compare", "b2", "b1", "--json").stdout)
    assert [pair["verdict"] for pair in back["pairs"]] == ["faster", "no difference"]
    gate = orch(tmp_path, "gate", "b2", "--baseline", "b1")
    assert (
        gate.returncode == 5
        and "b2: 2n2g to=0: expected at most 3% slower than b1, got +20.0%" in gate.stderr
    ), gate
    assert orch(tmp_path, "gate", "b1", "--baseline", "b2").returncode == 0
    wrong = orch(tmp_path, "compare", "b1", "b2", "--metric", "time")
    assert wrong.returncode == 2 and "they have time_s; did you mean 'time_s'" in wrong.stderr, (
        wrong
    )


def test_a_bench_of_it_plans_no_baseline_and_may_end_by_intervals(
    templates: Path, tmp_path: Path
) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "schema: 1\nhosts:\n  node1: {address: 10.11.0.2, gpus: 0}\n  node2: {address: 10.11.0.3, gpus: 0}\n"
    )
    words = ("bench", "ping", "--hosts", "hosts.yaml", "--templates", str(templates))
    done = orch(tmp_path, *words, "--dry-run", "--json")
    assert {run["spec"]["nodes"] for run in json.loads(done.stdout)} == {2}, done.stderr
    assert orch(tmp_path, *words, "--until-ci", "1%", "--dry-run", "--json").returncode == 0


def test_a_bound_on_a_metric_that_nothing_measures_is_refused_before_a_run(
    templates: Path, tmp_path: Path
) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "schema: 1\nhosts:\n  node1: {address: 10.11.0.2, gpus: 0}\n"
    )
    words = (
        "bench",
        "ping",
        "--hosts",
        "hosts.yaml",
        "--templates",
        str(templates),
        "--dry-run",
        "--json",
    )
    assert orch(tmp_path, *words, "--expect", "time_s <= 3").returncode == 0
    done = orch(tmp_path, *words, "--expect", "times <= 3")
    assert (
        done.returncode == 2
        and "expected a metric that this bench measures, got 'times'. the metrics are time_s"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ("time_s <= 3 colour=3", "got 'colour'. the keys of time_s are to"),
        ("time_s <= 3 node=1", "got 'node'. the keys of time_s are to; did you mean 'nodes'?"),
        (
            "time_s <= 3 nodes=2",
            "expected a value of nodes that this bench has in 'time_s <= 3 nodes=2', got '2'. nodes has 1",
        ),
        (
            "time_s <= 3 to=7 shape=1n1g world_size=1 device=cpu",
            "",
        ),  # which keys come is known after a run only
    ],
)
def test_a_bound_that_can_apply_to_no_run_is_refused_before_the_first(
    templates: Path, tmp_path: Path, bound: str, message: str
) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "schema: 1\nhosts:\n  node1: {address: 10.11.0.2, gpus: 0}\n"
    )
    words = (
        "bench",
        "ping",
        "--hosts",
        "hosts.yaml",
        "--templates",
        str(templates),
        "--shape",
        "1n1g",
        "--dry-run",
        "--json",
    )
    done = orch(tmp_path, *words, "--expect", bound)
    assert done.returncode == (2 if message else 0), done.stderr
    assert message in done.stderr


ROWS = "schema: 1\nhosts:\n  node1: {address: 10.11.0.2, gpus: 0}\n  node2: {address: 10.11.0.3, gpus: 0}\n"
PAIRED = """\
include:
  - {nodes: 1, options: {test: random read, depth: 1}}
  - {nodes: 1, options: {test: write, depth: 8}}
  - {nodes: 2, options: {test: write, depth: 1}}
"""


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (
            'time_s <= 3 test="random read" depth=8',
            "--expect: expected values that a configuration of this bench has together in "
            """'time_s <= 3 test="random read" depth=8', none has all of them. """
            'the nearest configurations have test="random read" depth=1; test=write depth=8; test=write depth=1\n',
        ),
        (
            "time_s <= 3 nodes=2 depth=8 to=1",
            "have nodes=1 depth=8; nodes=2 depth=1; nodes=1 depth=1\n",
        ),
        ("time_s <= 3 test=read", """test has "random read", write\n"""),
        ("time_s <= 3 test='random read' depth=1 to=1", ""),
        ("time_s <= 3 nodes=2 depth=1", ""),
    ],
)
def test_values_of_a_bound_are_those_of_one_configuration(
    tmp_path: Path, bound: str, message: str
) -> None:
    options = "options:\n  test: {type: str, default: write, help: test}\n  depth: {type: int, default: 1, help: depth}\n"
    folder(
        tmp_path / "templates",
        "pinger",
        text=FOLDER + options.replace("{", "{{").replace("}", "}}"),
    )
    (tmp_path / "hosts.yaml").write_text(ROWS)
    (tmp_path / "run.yaml").write_text(PAIRED)
    words = (
        "bench",
        "ping",
        "--hosts",
        "hosts.yaml",
        "--templates",
        "templates",
        "--file",
        "run.yaml",
        "--dry-run",
        "--json",
    )
    done = orch(tmp_path, *words, "--expect", bound)
    assert (done.returncode, message in done.stderr) == (2 if message else 0, True), done.stderr


def test_a_bound_on_what_is_skipped_as_impossible_is_judged_at_the_end(
    templates: Path, tmp_path: Path
) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "schema: 1\nhosts:\n  node1: {address: 10.11.0.2, gpus: 0}\n"
    )
    words = (
        "bench",
        "ping",
        "--hosts",
        "hosts.yaml",
        "--templates",
        str(templates),
        "--nodes",
        "1,2",
        "--dry-run",
        "--json",
    )
    assert orch(tmp_path, *words, "--expect", "time_s <= 3 nodes=2").returncode == 0


@needs("published")
def test_logs_of_another_tool_are_read_by_the_metrics_of_a_folder(
    templates: Path, tmp_path: Path
) -> None:
    logs = tmp_path / "logs" / "1n1g"
    logs.mkdir(parents=True)
    for number, time in enumerate(("0.50", "0.52", "0.51"), start=1):
        (logs / f"ping_b1_fp32_{number}.log").write_text(f"ping to=3 time_s={time}\n")
    words = (
        "summarize",
        "--from-logs",
        str(tmp_path / "logs"),
        "-f",
        "pinger",
        "--templates",
        str(templates),
        "--json",
    )
    done = orch(tmp_path, *words)
    assert done.returncode == 0, done
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["metric"], row["key"], row["n"], row["median"]) == ("time_s", {"to": 3}, 3, 0.51)
    (logs / "ping_b1_fp32_3.log").write_text("ping to=3 took=0.5\n")
    done = orch(tmp_path, *words)
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["n"], row["failed"]) == (2, 1)
    assert (
        "expected lines with results, found 0; log.readings[0] comes nearest" in row["failures"][0]
    )
