"""Removing a bench: what it holds, what keeps it, and that nothing else goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, RunError
from orchestrator.record.borrow import borrow
from orchestrator.record.journal import Event, last_controller
from orchestrator.record.ownership import hold
from orchestrator.record.removal import check_removal, contents_of, remove
from orchestrator.record.rundir import BenchDir
from tests.support.benches import bench

WHEN = "2026-01-01T00:00:00Z"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The benches a, of two runs, and b, which has borrowed both."""
    lender = bench(tmp_path / "runs", "a", WHEN, [1.0, 1.1], label="before")
    runs = {run.run_id: "a" for run in lender.runs()}
    borrower = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b", "created": WHEN, "runs": list(runs), "borrowed": runs}
    )
    for run in lender.runs():
        borrow(borrower, run)
    return tmp_path / "runs"


def test_what_a_bench_holds_is_counted(root: Path) -> None:
    contents = contents_of(BenchDir.open(root / "a"))
    files = [path for path in (root / "a").rglob("*") if path.is_file()]
    assert (contents.label, contents.runs) == ("before", 2)
    assert (contents.files, contents.size_bytes) == (
        len(files),
        sum(path.stat().st_size for path in files),
    )


def test_nodes_hold_a_run_until_it_is_pruned_and_borrowed_runs_are_the_lenders(root: Path) -> None:
    lender = BenchDir.open(root / "a")
    first, second = (run.run_id for run in lender.runs())
    assert contents_of(lender).on_nodes == {first: ["node1", "node2"], second: ["node1", "node2"]}
    lender.event(Event.PRUNED, run=first, hosts=["node1", "node2"])
    lender.event(Event.PRUNED, run=second, hosts=["node2"])
    assert contents_of(lender).on_nodes == {second: ["node1"]}
    assert contents_of(BenchDir.open(root / "b")).on_nodes == {}


def test_pruning_is_no_part_of_how_a_controller_ended(root: Path) -> None:
    lender = BenchDir.open(root / "a")
    lender.event(Event.BEGUN, argv=["orch"])
    lender.event(Event.OVER, code=0, errors=[])
    lender.event(Event.PRUNED, run="a-1", hosts=["node1"])
    assert [entry.event for entry in last_controller(lender.events())] == [Event.BEGUN, Event.OVER]


def test_a_bench_goes_with_all_its_files_and_no_other(root: Path) -> None:
    before = {path: path.read_bytes() for path in (root / "a").rglob("*") if path.is_file()}
    (borrower,) = check_removal(root, [root / "b"])
    remove(borrower)
    assert [path.name for path in root.iterdir()] == ["a"]
    assert {path: path.read_bytes() for path in before} == before


def test_a_link_in_a_bench_goes_and_what_it_points_to_stays(root: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (root / "b" / "link").symlink_to(tmp_path / "kept")
    remove(BenchDir(root / "b"))
    assert not (root / "b").exists() and (tmp_path / "kept" / "file").read_text() == "x"


def test_a_lender_stays_while_a_borrower_does(root: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_removal(root, [root / "a"])
    assert str(caught.value) == (
        "orch rm: expected a bench that has lent no runs, but b borrowed runs of a. to remove both, name b too"
    )
    assert [one.path.name for one in check_removal(root, [root / "a", root / "b"])] == ["a", "b"]


def test_a_bench_that_a_controller_runs_stays(root: Path) -> None:
    borrower = BenchDir.open(root / "b")
    with hold(borrower):
        with pytest.raises(RunError, match="another controller is running this bench"):
            check_removal(root, [root / "b"])
        with pytest.raises(RunError, match="another controller is running this bench"):
            remove(borrower)
    assert borrower.runs()


def test_only_benches_of_the_project_are_removed(root: Path, tmp_path: Path) -> None:
    elsewhere = bench(tmp_path / "other", "c", WHEN, [1.0]).path
    (root / "link").symlink_to(elsewhere)
    (root / "folder").mkdir()
    for path, words in (
        (elsewhere, "expected a bench of this project"),
        (root / "link", "expected a bench of this project"),
        (root, "expected a bench of this project"),
        (root / "b" / ".." / ".." / "other" / "c", "expected a bench of this project"),
        (root / "folder", "expected a bench, got a folder without bench.json"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_removal(root, [path])
    assert (elsewhere / "bench.json").is_file()


def test_a_damaged_bench_can_be_removed(root: Path) -> None:
    (root / "b" / "bench.json").write_text("{")
    (damaged,) = check_removal(root, [root / "b"])
    contents = contents_of(damaged)
    assert contents.runs == 0 and contents.files > 4
    remove(damaged)
    assert not (root / "b").exists()
