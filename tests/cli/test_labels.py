"""Benches named by their labels, and their removal, as commands of a project."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir
from tests.support import commands
from tests.support.benches import bench
from tests.support.judge import LIMIT_S
from tests.support.terminal import Terminal

WHEN = "2026-01-0{}T00:00:00Z"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Benches a and c of one label, and b with a label of its own."""
    for day, (name, label) in enumerate(
        (("a", "nightly"), ("b", "new driver"), ("c", "nightly")), start=1
    ):
        bench(tmp_path / "runs", name, WHEN.format(day), [1.0, 1.0, 1.0], label=label)
    return tmp_path


def orch(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.orch(
        project, *words, environment={"ORCH_PROJECT": str(project), "COLUMNS": "170"}
    )


def test_a_label_of_one_bench_names_it(project: Path) -> None:
    document = json.loads(orch(project, "summarize", "new driver", "--json").stdout)
    assert document["label"] == "new driver" and document["rows"][0]["run_ids"] == [
        "b-1",
        "b-2",
        "b-3",
    ]
    assert orch(project, "summarize", "b").stdout.startswith("bench b (new driver)\n")
    assert orch(project, "summarize", "b", "--format", "markdown").stdout.startswith(
        "## new driver\n"
    )
    page = orch(project, "summarize", "b", "--format", "html").stdout
    assert "<h1>new driver</h1>" in page and "2n2g" in page
    compared = json.loads(orch(project, "compare", "a", "new driver", "--json").stdout)
    assert (compared["before"], compared["after"]) == ("a", "b")
    read = orch(project, "compare", "a", "new driver").stdout
    assert read.startswith("before a (nightly) · after b (new driver)\n")


def test_a_label_may_be_that_of_a_bench_that_cannot_be_read(project: Path) -> None:
    record = project / "runs" / "b" / "bench.json"
    record.write_text(record.read_text()[:-20])
    done = orch(project, "summarize", "new driver")
    first, second = done.stderr.splitlines()
    assert first == f"orch: {project}/runs: no bench 'new driver' among those that can be read"
    assert second.startswith(f"orch: {record}: expected JSON, got ")
    assert (done.returncode, done.stdout) == (2, "") and second.endswith("or orch rm b")


def test_a_run_whose_files_were_deleted_is_one_of_those_to_collect(project: Path) -> None:
    BenchDir(project / "runs" / "b").event(Event.PLANNED, run="b-2", port=1)
    shutil.rmtree(project / "runs" / "b" / "b-2")
    done = orch(project, "collect", "b")
    assert done.stdout == "bench b: 2 of 3 runs were already complete\n"
    assert "b-2/manifest.json: expected a file, found none" in done.stderr and done.returncode == 4


def test_a_newer_bench_without_runs_is_not_passed_over_in_silence(project: Path) -> None:
    refused = BenchDir.create(
        project / "runs",
        {"bench_id": "d", "created": WHEN.format(4), "runs": ["d-1"], "label": "tonight"},
    )
    refused.event(Event.BEGUN, argv=["orch", "bench"])
    error = {"kind": "node_unfit", "host": "node2", "message": "2 GPUs expected, 1 found"}
    refused.event(Event.OVER, code=3, errors=[error])
    why = "the newest bench, d (tonight), was refused before its first run: node2: 2 GPUs expected, 1 found"
    for words in (
        ("summarize",),
        ("summarize", "--format", "csv"),
        ("gate", "--baseline", "b"),
        ("archive",),
    ):
        done = orch(project, *words)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert (
            f"BENCH: expected the name of a bench, got none, and {why}. the latest bench with runs is c"
            in done.stderr
        )
    assert orch(project, "summarize", "c").stdout.startswith("bench c (nightly)\n")
    variables = commands.inherited_environment() | {
        "PYTHONPATH": str(commands.REPOSITORY),
        "COLUMNS": "170",
    }
    terminal = Terminal([sys.executable, "-m", "orchestrator", "summarize"], project, variables)
    try:
        assert terminal.end() == 0, terminal.text
    finally:
        terminal.close()
    assert (
        f"orch: {why}; this is c (nightly)\n" in terminal.text
        and "bench c (nightly)" in terminal.text
    )


def test_a_label_of_several_benches_names_none(project: Path) -> None:
    done = orch(project, "summarize", "nightly")
    assert (done.returncode, done.stdout) == (2, "")
    assert "2 benches have the label 'nightly'. name one of c, a" in done.stderr


def test_a_name_and_a_directory_come_before_a_label(project: Path) -> None:
    bench(project / "runs", "d", WHEN.format(4), [1.0], label="b")
    assert json.loads(orch(project, "summarize", "b", "--json").stdout)["label"] == "new driver"
    (project / "new driver").mkdir()  # no bench
    assert (
        json.loads(orch(project, "summarize", "new driver", "--json").stdout)["label"]
        == "new driver"
    )


def test_rm_says_what_it_removes_and_asks(project: Path) -> None:
    done = orch(project, "rm", "new driver")
    assert (
        done.returncode == 2
        and "expected --yes, because there is no terminal to ask on" in done.stderr
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("b new driver: 3 runs, ") and first.endswith(
        f", in {project / 'runs' / 'b'}"
    )
    assert second == (
        "  node[1-2] still have files of 3 of its runs: orch collect --prune b removes them, but not once the bench is removed"
    )
    assert (project / "runs" / "b").is_dir()


@pytest.mark.parametrize(
    ("answer", "said", "left"),
    [("n", "nothing was removed", ["a", "b", "c"]), ("y", "removed a", ["b", "c"])],
)
def test_rm_does_as_it_is_answered(project: Path, answer: str, said: str, left: list[str]) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        variables = commands.inherited_environment() | {"PYTHONPATH": str(commands.REPOSITORY)}
        argv = [sys.executable, "-m", "orchestrator", "rm", "a"]
        done = subprocess.run(
            argv,
            cwd=project,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=variables,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert (
        done.returncode == 0
        and "remove it? [y/N]" in done.stdout
        and done.stdout.endswith(f"{said}\n")
    ), done
    assert sorted(path.name for path in (project / "runs").iterdir()) == left


def test_rm_yes_removes_several_and_a_second_time_there_is_none(project: Path) -> None:
    done = orch(project, "rm", "a", "b", "a", "--yes")
    assert done.returncode == 0 and done.stdout.splitlines()[-2:] == ["removed a", "removed b"], (
        done
    )
    assert [path.name for path in (project / "runs").iterdir()] == ["c"]
    assert "no bench 'a'" in orch(project, "rm", "a", "--yes").stderr


def test_a_label_moves_to_another_bench_and_leaves_every_other(project: Path) -> None:
    done = orch(project, "label", "b", "nightly")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0, ["a (nightly) is now a", "b (new driver) is now b (nightly)", "c (nightly) is now c"],
    ), done  # fmt: skip
    assert json.loads(orch(project, "summarize", "nightly", "--json").stdout)["rows"][0][
        "run_ids"
    ] == ["b-1", "b-2", "b-3"]
    assert orch(project, "label", "nightly", "").stdout == "b (nightly) is now b\n"
    assert (
        orch(project, "label", "b", "two\nlines").returncode == 2
        and orch(project, "label", "gone", "x").returncode == 2
    )


def test_a_refused_bench_leaves_no_path_of_an_earlier_one(project: Path) -> None:
    (project / "bench.path").write_text("/old\n")
    done = orch(project, "bench", "resnet50", "--hosts", "nowhere.yaml", "--output", "bench.path")
    assert done.returncode == 2 and not (project / "bench.path").exists(), done
