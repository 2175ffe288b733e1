"""Folders that measure something else than training: how they are chosen, and what becomes of their runs everywhere."""

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
from orchestrator.plan.folders import framework_for, open_framework
from orchestrator.plan.request import Request, checked_specs
from orchestrator.record.rundir import BenchDir
from orchestrator.report.formats import json as jsonout
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support import commands
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
"""
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


def test_a_model_of_one_folder_chooses_it_and_a_model_to_train_the_usual_one(templates: Path) -> None:
    assert framework_for("ping", (templates,)) == "pinger"
    assert framework_for("resnet50", (templates,)) == "pytorch"


def test_a_model_of_several_folders_or_of_none_is_refused(templates: Path) -> None:
    folder(templates, "other")
    with pytest.raises(ConfigError, match=r"several frameworks have a model 'ping': other, pinger. choose one of them"):
        framework_for("ping", (templates,))
    with pytest.raises(ConfigError, match=r"no framework has a model 'pong'.*did you mean 'ping'"):
        framework_for("pong", (templates,))


def test_a_folder_says_what_its_kind_of_measurement_needs(tmp_path: Path) -> None:
    folder(tmp_path, "silent", text=FOLDER.replace("  readings:", "  rank:"))
    with pytest.raises(
        Faults, match=r"log\.readings: expected the pattern of a line with a result in a folder that measures readings"
    ):
        open_framework("silent", (tmp_path,))
    folder(tmp_path, "trains", text=FOLDER.replace("measures: readings\n", ""))
    with pytest.raises(
        Faults,
        match=r"(?s)loaders: expected .* log\.patterns: expected at least one pattern in a folder that measures training",
    ):
        open_framework("trains", (tmp_path,))


@pytest.mark.parametrize(("axis", "where"), [({"batch_size": (4,)}, "--batch-size"), ({"loader": ("native",)}, "--loader")])
def test_choices_that_mean_nothing_are_refused(templates: Path, axis: dict[str, tuple[Any, ...]], where: str) -> None:
    found = open_framework("pinger", (templates,))
    with pytest.raises(ConfigError, match=f"{where}: pinger measures readings of its own"):
        checked_specs(Request("ping", axes=axis), [found], HOSTS)
    (spec,) = checked_specs(Request("ping"), [found], HOSTS)
    assert (spec.batch_size, spec.loader, spec.shape) == (1, "none", "2n2g")


# --- what becomes of its runs


def orch(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.orch(project, *words, environment={"ORCH_PROJECT": str(project), "COLUMNS": "150"})


def pings(times: list[str]) -> Any:
    """Return what makes a run of `build` one that measured these times."""

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {"framework": "pinger", "model": "ping", "batch_size": 1, "loader": "none"}
        log = planned["framework"]["log"]
        planned["framework"] |= {"measures": "readings", "log": {**log, "patterns": [], "closing": "", "readings": READINGS}}
        lines = [line for line in logs[0]["rank-0.out"].splitlines() if "rank=" in line]
        lines += [f"ping to={n} time_s={time}" for n, time in enumerate(times)]
        logs[0]["rank-0.out"] = "\n".join(lines) + "\n"

    return change


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    """Three repeats of two readings; the third printed none."""
    record = {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1", "r2", "r3"]}
    made = BenchDir.create(tmp_path / "runs", record)
    for repeat, times in enumerate((["0.125", "20.5"], ["0.25", "21.5"], []), start=1):
        build(made, f"r{repeat}", pings(times), repeat=repeat)
    return made


def test_its_runs_are_a_sheet_and_no_row_and_a_run_without_readings_has_failed(bench: BenchDir) -> None:
    results = [read_run(run) for run in bench.runs()]
    assert [(run.state, len(run.readings), run.throughput) for run in results] == [
        ("finished", 2, None), ("finished", 2, None), ("failed", 0, None),
    ]  # fmt: skip
    summary = summarize(results)
    (sheet,) = summary.sheets
    assert (summary.rows, summary.notes) == ((), ())
    assert (sheet.series, sheet.shape, sheet.n, sheet.failed) == ("pinger ping fp16", "2n2g", 2, 1)
    assert sheet.grids[0].columns == ("repeat", "to", "time_s")
    assert sheet.grids[0].rows == ((1, "0", "0.125"), (1, "1", "20.5"), (2, "0", "0.25"), (2, "1", "21.5"))
    assert sheet.qualifications[0] == "2 good repeats: interval unreliable below n=3"
    assert "expected lines with readings of its own, found 0" in sheet.failures[0]


def test_json_has_the_sheet_as_its_schema_says(bench: BenchDir) -> None:
    document = json.loads(jsonout.render(summarize([read_run(run) for run in bench.runs()])))
    schema = json.loads((Path(jsonout.__file__).parent / "summary.schema.json").read_text(encoding="utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []
    assert document["sheets"][0]["grids"][0]["rows"][1] == [1, "1", "20.5"]


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_people_see_the_sheet(bench: BenchDir, tmp_path: Path, form: str) -> None:
    done = orch(tmp_path, "summarize", "b1", "--format", form)
    assert done.returncode == 4, done.stderr  # the third run's evidence is incomplete, as for training
    for text in ("pinger ping fp16 2n2g", "n=2, 1 failed", "20.5", "r3 failed"):
        assert text in done.stdout.replace("\\", ""), text


@pytest.mark.parametrize("form", ["table", "markdown", "html", "csv", "json"])
def test_a_bench_without_any_readings_says_why_there_is_no_number(tmp_path: Path, form: str) -> None:
    made = BenchDir.create(tmp_path / "runs", {"bench_id": "b2", "created": "2025-01-01", "runs": ["r1"]})
    build(made, "r1", pings([]), repeat=1)
    done = orch(tmp_path, "summarize", "b2", "--format", form)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "expected lines with readings of its own, found 0" in done.stdout.replace("\\", "")
    if form in ("table", "markdown", "html"):
        assert "n=0" in done.stdout.replace("\\", "") and "no good run, so there is no number" in done.stdout


def test_csv_has_a_line_for_each_row_of_the_sheet(bench: BenchDir, tmp_path: Path) -> None:
    text = orch(tmp_path, "summarize", "b1", "--format", "csv").stdout
    assert text.splitlines()[0] == (
        "framework,model,dtype,device,nodes,gpus,world_size,options,simulated,n,planned,failed,interrupted,running,never_run,"
        "table,repeat,to,time_s,said,hardware,qualifications,failures,run_ids"
    )
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(line["model"], line["n"], line["repeat"], line["time_s"]) for line in lines] == [
        ("ping", "2", "1", "0.125"), ("ping", "2", "1", "20.5"), ("ping", "2", "2", "0.25"), ("ping", "2", "2", "21.5"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("summarize", "b1", "--format", "prometheus"), ("summarize", "b1", "--format", "dlperf"),
        ("summarize", "b1", "--rule", "dlperf"), ("compare", "b1", "b1"), ("gate", "b1", "--baseline", "b1"),
    ],
)  # fmt: skip
def test_what_is_for_speeds_only_says_so(bench: BenchDir, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = orch(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "measured readings of its own" in done.stderr and "Traceback" not in done.stderr


def test_history_names_the_bench_and_lists_no_speed(bench: BenchDir, tmp_path: Path) -> None:
    done = orch(tmp_path, "history")
    assert "not listed, because it measured readings of its own: orch summarize b1" in done.stderr
    assert "b1" not in done.stdout
    assert json.loads(orch(tmp_path, "history", "--json").stdout)["speedless"] == {"b1": "readings of its own"}


def test_a_bench_of_it_plans_no_baseline_and_no_end_by_intervals(templates: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "schema: 1\nhosts:\n  node1: {address: 10.11.0.2, gpus: 0}\n  node2: {address: 10.11.0.3, gpus: 0}\n"
    )
    words = ("bench", "ping", "--hosts", "hosts.yaml", "--templates", str(templates))
    done = orch(tmp_path, *words, "--dry-run", "--json")
    assert {run["spec"]["nodes"] for run in json.loads(done.stdout)} == {2}, done.stderr
    done = orch(tmp_path, *words, "--until-ci", "1%")
    assert done.returncode == 2 and "orch: --until-ci: pinger measures readings of its own" in done.stderr
