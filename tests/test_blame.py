"""What is shown of a failed run's logs: the last words, however long they are."""

from __future__ import annotations

from pathlib import Path

from orchestrator.blame import explained
from orchestrator.errors import RunError
from orchestrator.rundir import RunDir


def test_of_a_line_that_is_very_long_both_ends_are_shown(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r1")
    log = run.log_path("node2", "rank-3.err")
    log.write_text("a first line\n" * 9000 + f"ValueError: {'x' * 6000} at the end\n")
    error = explained(RunError("rank 3 ended with exit code 1", kind="rank_failed", host="node2"), (), run, {})
    assert error is not None and error.hint is not None
    head, *lines = error.hint.splitlines()
    assert head == "last lines of rank-3.err on node2:" and len(lines) == 10 and lines[0] == "  a first line"
    assert lines[-1].startswith("  ValueError: xxx") and lines[-1].endswith("x at the end") and len(lines[-1]) < 520
