"""Logs that are read again with the log grammar of a corrected folder: what is recorded, and what a
changed folder allows.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.errors import DataError
from orchestrator.plan.folders import open_framework
from orchestrator.record.grammar_override import folders_of, reread
from orchestrator.record.journal import Event
from orchestrator.record.manifest import read_manifest
from orchestrator.record.pending_work import reopen
from orchestrator.results.bench import read_bench
from orchestrator.results.summary import summarize
from tests.support import fake_bench
from tests.support.fake_bench import FakeBench, training

WRONG, RIGHT = "orch stop=", "orch step="


class Project:
    """A framework folder that can be edited, and a bench that was planned with it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
        self.templates = root / "templates"
        self.folder = self.templates / "simulated"
        shutil.copytree(open_framework("simulated").framework.folder, self.folder)
        self.edit(RIGHT, pattern)
        monkeypatch.setattr(fake_bench, "FOLDER", open_framework("simulated", (self.templates,)))
        self.rig = FakeBench(root, repeats=2)
        self.rig.bench.change(
            lambda record: record.__class__.of(
                {**record.as_dict(), "templates": str(self.templates)}, "x/bench.json"
            )
        )
        self.rig.runs(training(self.rig.spec, after_s=0.0))

    def edit(self, old: str, new: str, name: str = "framework.yaml") -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path, monkeypatch, WRONG)
    made.rig.controller(keep_going=True).conduct(made.rig.show)
    return made


def test_logs_are_read_with_the_planned_grammar_until_they_are_read_again(project: Project) -> None:
    bench = project.rig.bench
    project.edit(WRONG, RIGHT)
    assert [getattr(run.error, "kind", "") for run in read_bench(bench)] == [
        "log_unmatched",
        "log_unmatched",
    ]

    digest = open_framework("simulated", (project.templates,)).framework.digest
    (words,) = reread(bench, folders_of(bench, ()))

    assert words == f"the logs of 2 runs are read again with {project.folder}, digest {digest[:12]}"
    results = read_bench(bench)
    assert [run.is_good for run in results] == [True, True]
    (row,) = summarize(results).rows
    (note,) = [text for text in row.qualifications if text.startswith("log read again on 20")]
    assert f"with framework folder {digest[:12]}, planned with " in note
    assert [entry.run for entry in bench.events() if entry.event == Event.REREAD] == [
        run.run_id for run in bench.runs()
    ]


def test_the_planned_grammar_stays_on_record_and_can_be_returned_to(project: Project) -> None:
    bench = project.rig.bench
    before = [run.manifest_content()["framework"] for run in bench.runs()]
    project.edit(WRONG, RIGHT)
    reread(bench, folders_of(bench, ()))
    assert [run.manifest_content()["framework"] for run in bench.runs()] == before

    project.edit(RIGHT, WRONG)
    assert len(reread(bench, folders_of(bench, ()))) == 1
    assert [read_manifest(run).reread for run in bench.runs()] == ["", ""]
    assert reread(bench, folders_of(bench, ())) == []


def test_a_damaged_run_is_left_out(project: Project) -> None:
    first, second = project.rig.bench.runs()
    (first.path / "manifest.json").write_text("{")
    project.edit(WRONG, RIGHT)

    assert "the log of 1 run is" in reread(project.rig.bench, folders_of(project.rig.bench, ()))[0]
    assert read_manifest(second).reread


def test_a_bench_goes_on_with_a_corrected_log_grammar(project: Project) -> None:
    project.edit(WRONG, RIGHT)
    opened = reopen(project.rig.bench)

    assert "orch step=" in opened.plan.folders["simulated"].framework.log.patterns[0]


def test_a_bench_goes_on_with_another_published_rule(project: Project) -> None:
    project.edit(WRONG, RIGHT)
    pattern = "orch step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+)"
    lines = f'{{title: t, lines: "{pattern}", window: {{after: 2, last: 4}}, by: timestamp}}'
    rule = f"published: {{rule: mine, runs: 3, statistic: median, rules: {{mine: {lines}}}}}"
    project.edit("\nlog:\n", f"\n{rule}\nlog:\n")

    assert (
        "mine" in reopen(project.rig.bench).plan.folders["simulated"].framework.published["rules"]
    )


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("framework.yaml", "steps: ", "steps: 1"),
        ("launch.sh.j2", "set -euo pipefail", "set -uo pipefail"),
    ],
)
def test_a_bench_does_not_go_on_with_another_program(
    project: Project, name: str, old: str, new: str
) -> None:
    project.edit(WRONG, RIGHT)
    project.edit(old, new, name)
    with pytest.raises(
        DataError, match="frameworks.simulated.files: the file has changed"
    ) as caught:
        reopen(project.rig.bench)
    assert caught.value.kind == "plan_changed"


def test_a_bench_that_an_earlier_version_planned_goes_on_with_its_folder_alone(
    project: Project,
) -> None:
    def as_before(record):  # type: ignore[no-untyped-def]
        content = record.as_dict()
        del content["planned_with"]["frameworks"]["simulated"]["launch"]
        return record.of(content, "x/bench.json")

    project.rig.bench.change(as_before)
    assert reopen(project.rig.bench).runs
    project.edit(WRONG, RIGHT)
    with pytest.raises(DataError, match="the file has changed"):
        reopen(project.rig.bench)
