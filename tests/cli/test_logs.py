"""`orch logs` of collected runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.record.rundir import BenchDir
from tests.support import commands
from tests.support.run_folders import build


def test_equal_lines_of_all_ranks_are_printed_once_with_the_ranks_that_have_them(
    tmp_path: Path,
) -> None:
    record = {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"], "inventory": "gone.yaml"}
    record |= {"superseded": {"r0": "r1"}}
    bench = BenchDir.create(tmp_path / "runs", record)

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        for node, files in enumerate(logs):
            for rank in (2 * node, 2 * node + 1):
                files[f"rank-{rank}.out"] = "begin\nring of 4\nend\n"
                del files[f"rank-{rank}.err"]
        logs[1]["rank-2.out"] = "begin\nring of \x1b3\nend\nbye\n"
        logs[0]["rank-1.out"] = ""
        logs[0]["node.err"], logs[1]["node.err"] = "no banner\n", "no banner\n"

    build(bench, "r1", change)
    build(bench, "r0", change)

    def orch(*words: str) -> Any:
        return commands.orch(tmp_path, *words, environment={"ORCH_PROJECT": str(tmp_path)})

    shown = orch("logs", "--all")
    assert (shown.returncode, shown.stdout.splitlines()) == (
        0,
        [
            "node[1-2] rank-[0,2-3].out: begin",
            "node[1-2] rank-[0,3].out: ring of 4",
            "node2 rank-2.out: ring of \\x1b3",
            "node[1-2] rank-[0,2-3].out: end",
            "node2 rank-2.out: bye",
        ],
    )
    assert orch("logs", "b1", "--all").stdout == shown.stdout
    assert orch("logs", "--all", "--err").stdout == "node[1-2] node.err: no banner\n"
    one = orch("logs", "--rank", "2")
    assert one.stdout.splitlines()[1] == "node2 rank-2.out: ring of \\x1b3"
    empty = orch("logs", "--rank", "1")
    assert empty.stderr == "node1 rank-1.out: no line; --err prints standard error\n"
    refused = orch("logs", "--all", "--follow")
    assert refused.returncode == 2 and "--all: expected it without --follow" in refused.stderr

    BenchDir.create(tmp_path / "runs", record | {"bench_id": "b2", "created": "2025-01-02"})
    assert orch("logs", "r1", "--all").stdout == shown.stdout
    assert orch("logs", "r0", "--all").stdout == shown.stdout
    assert "no run has started yet" in orch("logs", "b2").stderr
    missing = orch("logs", "r3")
    assert missing.returncode == 2 and "no bench 'r3'" in missing.stderr, missing
