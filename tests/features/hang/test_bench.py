"""The hangs of a bench: the recorded verdict, what each rank did by its node's report, and what is
missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.features.hang.bench import Hang, hangs_of_bench
from orchestrator.features.hang.cause import Verdict
from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import read_bench
from tests.support.run_folders import build

TOLD = Verdict(
    "stopped",
    "stopped in step 118 (state T)",
    "; ranks 0, 1, 3 wait in all-reduce 119",
    "node2",
    (2,),
)
STACK = [
    "Thread 0x1 (most recent call first):",
    "  helper",
    "Current thread 0x2:",
    '  File "<b>t.py", line 3 in step',
]
PENDING = {"group": "0", "number": 119, "name": "gloo:all_reduce", "over": False, "sizes": "[[4]]"}


def seen(rank: int, **changes: Any) -> dict[str, Any]:
    """Return what a node reports of a rank that waits in an all-reduce."""
    progress = {"marks": 9, "step": 118, "phase": "step", "t": 1.0, "begun": 1.0}
    waits = {
        "state": "S",
        "was": "S",
        "call": "futex",
        "wchan": "futex_wait_queue",
        "window_s": 0.5,
        "cpu_s": 0.1,
    }
    return {
        "rank": rank,
        "pid": 7,
        "progress": progress,
        "collectives": [PENDING],
        "python": STACK,
        **waits,
        **changes,
    }


REPORTS = [[seen(0), seen(1)], [seen(2, state="T", was="T"), seen(3)]]


def hung(
    root: Path, outcome: dict[str, Any] | None = None, reports: Any = None, change: Any = None
) -> BenchDir:
    """Make a bench of a run that was ended for a hang, and of one that failed otherwise."""
    bench = BenchDir.create(root, {"bench_id": "b", "created": "", "runs": ["r1", "r2"]})
    error = {"kind": "run_timeout", "message": TOLD.message, "host": "node2"}
    ended = {
        "state": "failed",
        "error": error,
        "clean": {},
        **({"hang": asdict(TOLD)} if outcome is None else outcome),
    }

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["outcome"] = ended
        for files, ranks in zip(logs, REPORTS if reports is None else reports, strict=True):
            if ranks is not None:
                files["hang.json"] = json.dumps({"schema": 1, "ranks": ranks})

    def other(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["outcome"] = {
            "state": "failed",
            "error": {"kind": "rank_failed", "message": "exit code 1", "host": "node1"},
        }

    build(bench, "r1", before, change or (lambda records: None))
    build(bench, "r2", other, repeat=2)
    journal = bench.journal
    journal.write(Event.STARTED, at=100.0, run="r1", skew_s=0.0, bound_s=0.0, hosts={})
    journal.write(Event.STALLED, at=142.5, run="r1", words=f"no step for 4.7 s: {TOLD.sentence}")
    journal.write(Event.STALLED, at=150.0, run="r2", words="another run")
    return bench


def of_bench(bench: BenchDir) -> Hang:
    (hang,) = hangs_of_bench(bench, read_bench(bench))
    return hang


def test_a_hang_has_the_verdict_and_what_each_rank_did(tmp_path: Path) -> None:
    hang = of_bench(hung(tmp_path))
    assert (hang.run_id, hang.kind, hang.host, hang.ranks, hang.sentence) == (
        "r1",
        "stopped",
        "node2",
        (2,),
        TOLD.sentence,
    )
    assert hang.waiting == (0, 1, 3) and hang.missing == ()
    assert [(own.rank, own.host, own.state, own.step) for own in hang.seen] == [
        (0, "node1", "S", 118), (1, "node1", "S", 118), (2, "node2", "T", 118), (3, "node2", "S", 118),
    ]  # fmt: skip
    assert (
        hang.seen[0].does == "waits in all-reduce 119"
        and hang.seen[2].does == "stopped in step 118 (state T)"
    )
    assert hang.seen[0].stack == ('File "<b>t.py", line 3 in step',) and hang.seen[
        0
    ].processor == pytest.approx(0.2)
    (suspicion,) = hang.suspicions
    assert suspicion.after_s == pytest.approx(42.5) and suspicion.words.startswith(
        "no step for 4.7 s: rank 2 on node2"
    )


def test_the_stack_of_the_main_thread_is_the_first_that_py_spy_writes(tmp_path: Path) -> None:
    by_py_spy = [
        'Thread 7 (active): "MainThread"',
        "    step (t.py:3)",
        'Thread 8 (idle): "pin"',
        "    wait (queue.py:1)",
    ]
    hang = of_bench(
        hung(tmp_path, reports=[[seen(0, python=by_py_spy), seen(1, python=[])], REPORTS[1]])
    )
    assert (hang.seen[0].stack, hang.seen[1].stack) == (("step (t.py:3)",), ())


def test_nobody_is_named_afterwards_whom_no_controller_named(tmp_path: Path) -> None:
    hang = of_bench(hung(tmp_path, outcome={}))
    assert (hang.kind, hang.host, hang.ranks, hang.sentence) == ("", "", (), "")
    assert hang.seen[2].does == "stopped in step 118 (state T)"


def test_a_node_without_a_report_or_with_an_altered_one_is_named(tmp_path: Path) -> None:
    assert of_bench(hung(tmp_path / "none", reports=[REPORTS[0], None])).missing == (
        "node2: its ranks were not inspected, or the report was not collected",
    )
    bench = hung(tmp_path / "altered")
    path = bench.run("r1").path / "logs/node2/hang.json"
    path.write_text(path.read_text().replace('"rank": 2', '"rank": 0'))
    hang = of_bench(bench)
    assert [own.rank for own in hang.seen] == [0, 1] and hang.ranks == (2,)
    assert hang.missing == (
        "node2: expected the SHA-256 that the node recorded, got a different one",
    )


def test_it_is_in_every_output_and_names_from_nodes_are_no_markup(tmp_path: Path) -> None:
    bench = hung(tmp_path)

    def printed(*options: str) -> str:
        return (
            CliRunner()
            .invoke(program(), ["summarize", str(bench.path), *options], env={"COLUMNS": "300"})
            .stdout
        )

    (hang,) = json.loads(printed("--json"))["hangs"]
    assert (hang["ranks"], hang["host"], hang["waiting"], len(hang["seen"])) == (
        [2],
        "node2",
        [0, 1, 3],
        4,
    )
    lines = printed().splitlines()
    place = lines.index(f"hang of r1: {TOLD.sentence}")
    assert (
        lines[place + 1]
        == "  rank 2 on node2: stopped in step 118 (state T); state T in futex, 20% of a processor"
    )
    assert lines[place + 2].startswith("  rank 0 on node1: waits in all-reduce 119")
    page = printed("--format", "html")
    section = page[page.index('<section id="hangs">') :]
    section = section[: section.index("</section>")]
    assert TOLD.sentence in section and "42.5 s after the start: no step for 4.7 s" in section
    assert '<tr class="differs"><td>2</td><td>node2</td><td>118</td>' in section
    assert "&lt;b&gt;t.py" in section and "<b>t.py" not in section
