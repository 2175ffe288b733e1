"""What an incomplete bench says in every output: how many runs are missing, why, and the command
that adds them.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from junitparser import JUnitXml
from rich.console import Console

from orchestrator.controller.events import RunOver, Started
from orchestrator.record.refusals import refusal
from orchestrator.record.rundir import BenchDir
from orchestrator.report import terminal
from orchestrator.report.formats import csv as delimited
from orchestrator.report.formats import json as jsonout
from orchestrator.report.formats import junit, markdown, mllog, prometheus
from orchestrator.report.html.page import render as page
from orchestrator.results.bench import notes_of, read_bench
from orchestrator.results.planned import Counts, Planned, planned_runs
from orchestrator.results.run import NEVER_RUN, RUNNING
from orchestrator.results.run_history import history_of
from orchestrator.results.summary import of_bench
from tests.support.fake_bench import FakeBench
from tests.support.fake_supervisor import Rank
from tests.support.run_folders import build


def conducted(rig: FakeBench) -> Planned:
    rig.controller().conduct(rig.show)
    return planned_runs(rig.bench, read_bench(rig.bench))


@pytest.fixture
def stopped(tmp_path: Path) -> FakeBench:
    """A bench of four repeats that was interrupted after the first."""
    rig = FakeBench(tmp_path, repeats=4)
    rig.when[RunOver] = lambda: setattr(rig.interrupt, "signal", 2)
    return rig


def test_runs_that_were_never_started_are_counted_and_continued_by_resume(
    stopped: FakeBench,
) -> None:
    planned = conducted(stopped)
    assert planned.counts == Counts(
        planned=4, measured=1, failed=0, interrupted=0, running=0, never_run=3
    )
    assert [run.state for run in planned.results] == ["finished", *[NEVER_RUN] * 3]
    assert planned.note == (
        "incomplete: 1 of 4 planned runs measured, 3 never run; orch resume bench-1 continues it"
    )


def test_a_run_whose_files_were_lost_is_made_again_by_resume(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    conducted(rig)
    lost = rig.bench.runs()[1]
    shutil.rmtree(lost.path)
    planned = planned_runs(rig.bench, read_bench(rig.bench))
    assert [run.state for run in planned.results] == ["finished", "damaged"]
    assert planned.note.endswith("1 failed; orch resume bench-1 continues it")


def test_a_run_that_was_stopped_is_interrupted_and_none_has_failed(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.when[Started] = lambda: setattr(rig.interrupt, "signal", 2)
    planned = conducted(rig)
    assert planned.counts == Counts(
        planned=2, measured=0, failed=0, interrupted=1, running=0, never_run=1
    )
    assert planned.note.endswith("1 interrupted, 1 never run; orch resume bench-1 continues it")


def test_a_run_that_failed_by_itself_needs_the_option(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.runs(b=lambda order: {1: Rank(b"", 3, 0.05)})
    planned = conducted(rig)
    assert planned.counts == Counts(
        planned=2, measured=0, failed=2, interrupted=0, running=0, never_run=0
    )
    assert planned.note.endswith("2 failed; orch resume --retry-failed bench-1 repeats failed runs")


def test_a_run_under_way_is_running_and_has_no_error(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    seen: list[Planned] = []
    rig.when[Started] = lambda: seen.append(planned_runs(rig.bench, read_bench(rig.bench)))
    assert conducted(rig).note is None
    assert seen[0].counts == Counts(
        planned=2, measured=0, failed=0, interrupted=0, running=1, never_run=1
    )
    assert [(run.state, run.error, run.throughput) for run in seen[0].results] == [
        (RUNNING, None, None), (NEVER_RUN, None, None),
    ]  # fmt: skip
    assert seen[0].note == (
        "in progress: 0 of 2 planned runs measured, 1 running, 1 never run; orch attach bench-1 follows it"
    )
    (row,) = of_bench(seen[0]).rows
    assert (row.n, row.failed, row.running, row.never_run, row.failures) == (0, 0, 1, 1, ())


def test_every_output_says_what_is_missing(
    stopped: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = conducted(stopped)
    summary = of_bench(planned, notes_of(stopped.bench))
    note = planned.note
    terminal.render(summary, Console(width=200))
    assert note in capsys.readouterr().out
    assert note in markdown.render(summary).replace(
        "\\", ""
    ) and "1 (3 never run)" in markdown.render(summary)
    results = [run for run in planned.results if run.state != NEVER_RUN]
    shown = page(summary, results, history_of(stopped.bench, results))
    assert (
        "<h1>resnet50 fp32 with simulated on 2n1g</h1>" in shown
        and "<title>resnet50 fp32 with" in shown
    )
    assert shown.count("SIMULATED") and "synthetic cpu simulated</h2>" not in shown
    assert (
        shown.count(note) == 2
        and "4 planned runs" in shown
        and '<span class="bad">3 never run</span>' in shown
    )
    document = json.loads(jsonout.render(summary))
    assert document["runs"] == {
        "planned": 4,
        "measured": 1,
        "failed": 0,
        "interrupted": 0,
        "running": 0,
        "never_run": 3,
    }
    assert (document["rows"][0]["planned"], document["rows"][0]["never_run"]) == (4, 3)
    (line,) = csv.DictReader(io.StringIO(delimited.render(summary)))
    assert (line["n"], line["planned"], line["failed"], line["never_run"]) == ("1", "4", "0", "3")
    suites = {suite.name: suite for suite in JUnitXml.fromstring(junit.render(summary).encode())}
    (case,) = suites["bench"]
    assert (
        case.result[0].message == "1 of 4 planned runs measured: 3 never run"
        and note in case.result[0].text
    )
    assert "orch_never_run_repeats{" in prometheus.render(
        summary
    ) and " 3.0\n" in prometheus.render(summary)
    assert '"never_run": 3' in mllog.render(summary) and '"status": "aborted"' in mllog.render(
        summary
    )


def test_a_bench_that_was_refused_is_not_one_to_continue(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    assert refusal(rig.bench) == ""
    rig.b.owner = "another program"
    planned = conducted(rig)
    assert refusal(rig.bench) == "b: another run holds this node: another program"
    assert planned.counts.never_run == 2 and not planned.results
    rig.b.owner = None
    rig.when[RunOver] = lambda: setattr(rig.interrupt, "signal", 2)
    conducted(rig)
    assert refusal(rig.bench) == ""


def test_a_bench_that_was_interrupted_before_its_first_run_is_not_refused(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    rig.bench.event("begun", argv=["orch"])
    rig.bench.event("over", code=130, errors=[{"kind": "interrupted", "message": "interrupted"}])
    assert refusal(rig.bench) == ""


def test_a_log_that_no_pattern_matches_is_read_again_and_not_measured_again(tmp_path: Path) -> None:
    bench = BenchDir.create(
        tmp_path, {"bench_id": "b1", "created": "2026-11-23T00:00:00Z", "runs": ["r1"]}
    )
    build(
        bench,
        "r1",
        lambda planned, logs: planned["framework"]["log"].update(
            patterns=["^stop=(?P<step>[0-9]+) (?P<loss>.)"]
        ),
    )

    note = planned_runs(bench, read_bench(bench)).note

    assert note.endswith(
        "1 failed; orch summarize --reread b1 reads the logs again after a correction of the log grammar"
    )
