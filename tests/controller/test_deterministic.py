"""Failures that every further run would repeat: which runs a bench does not make because of them,
and which it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.controller.controller import Controller
from orchestrator.controller.deterministic import deterministic_failure
from orchestrator.controller.events import Decided, RunBegun
from orchestrator.errors import OrchError, RunError
from orchestrator.plan.bench import Bench
from orchestrator.record.bench_record import new_bench_record
from orchestrator.record.journal import Event
from orchestrator.record.rundir import BenchDir
from orchestrator.results import RunResult
from orchestrator.results.bench import read_bench
from orchestrator.results.planned import planned_runs
from tests.support.fake_bench import FakeBench, training
from tests.support.fake_supervisor import Program, Rank

SILENT = b"orch rank=0 local_rank=0 world_size=2 node_rank=0 host=h pid=1 device=simulated\norch stop=1 t=9.5\n"


def ends(code: int, out: bytes = b"", err: str = "") -> Program:
    """Return the program of a node whose rank writes this and exits with ``code``."""
    return lambda order: {order["node_rank"]: Rank(out, code, 0.0)}


def unlike(order: Mapping[str, Any]) -> Mapping[int, Rank]:
    """Write lines that the log grammar does not know, and end well."""
    return {order["node_rank"]: Rank(SILENT if order["node_rank"] == 0 else b"", 0, 0.0)}


def two_cells(rig: FakeBench) -> None:
    """Make it a bench of two configurations, which differ in their batch size."""
    cells = (rig.spec, replace(rig.spec, batch_size=2 * rig.spec.batch_size))
    rig.plan = Bench("bench-2", cells, rig.plan.folders, rig.plan.schedule)
    record = new_bench_record(
        rig.plan, {}, rig.hosts, str(rig.source), rig.secrets, rig.limits, (), ["orch"]
    )
    rig.bench = BenchDir.create(rig.bench.path.parent, record.as_dict())


def conducted(
    rig: FakeBench, programs: list[Program] | None = None, **more: Any
) -> tuple[list[OrchError], list[str]]:
    """Conduct the bench, its runs with these programs in order; return its errors and the runs that
    were made.
    """
    left: Iterator[Program] = iter(programs or [])
    rig.when[RunBegun] = lambda: rig.runs(next(left)) if programs else None
    errors, _ = rig.controller(**more).conduct(rig.show)
    return errors, [run.run_id for run in rig.bench.runs()]


def test_a_log_without_a_line_ends_a_bench_after_its_first_run(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=3)
    rig.runs(unlike)
    (error,), made = conducted(rig)

    assert (error.exit_code, error.kind, error.host, error.where, made) == (
        4,
        "log_unmatched",
        "a",
        "rank-0.out",
        [rig.first.run_id],
    )
    assert (
        "log.patterns[0] comes nearest: line 2 matches up to 'orch st', then 'op=1" in error.message
    )
    assert error.hint.splitlines()[1:] == [
        "2 further runs were not started: their logs would give no number either; after the repair: orch resume bench-1; "
        "--keep-going runs them anyway"
    ]
    (decided,) = [entry.fields for entry in rig.bench.events() if entry.event == Event.DECIDED]
    assert (decided["reason"], decided["runs"]) == (
        "deterministic failure",
        [run.run_id for run in rig.plan.list_runs()[1:]],
    )
    notes = [note for event in rig.shown if isinstance(event, Decided) for note in event.notes]
    assert notes == ["  2 runs are not started: their logs would give no number either"]


def test_the_runs_that_were_not_made_stay_planned(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=3)
    rig.runs(unlike)
    conducted(rig)

    planned = planned_runs(rig.bench, read_bench(rig.bench))
    assert (planned.counts.planned, planned.counts.failed, planned.counts.never_run) == (3, 1, 2)
    assert "orch resume bench-1 continues it" in planned.note

    rig.runs(training(rig.spec, after_s=0.0))
    again = Controller.go_on(
        rig.bench, rig.bench.path.parent, lambda *_: rig.cluster, retry_failed=False, argv=["orch"]
    )
    errors, results = again.conduct(rig.show)
    assert [error.kind for error in errors] == ["log_unmatched"]
    assert [result.is_good for result in results] == [False, True, True]


def test_who_says_so_goes_on(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=3)
    rig.runs(unlike)
    errors, made = conducted(rig, keep_going=True)

    assert [error.kind for error in errors] == ["log_unmatched"] * 3
    assert len(made) == 3
    assert not any("started" in error.hint for error in errors)


def test_a_configuration_that_crashes_twice_alike_is_not_repeated_and_the_others_are(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=3)
    two_cells(rig)
    small, large = rig.plan.cells
    program = {small.batch_size: training(small, after_s=0.0), large.batch_size: ends(1)}
    runs = rig.plan.list_runs()
    expected = [run for run in runs if run.spec == small or run.repeat < 3]
    errors, made = conducted(rig, [program[run.spec.batch_size] for run in expected])

    assert made == [run.run_id for run in expected]
    assert [(error.exit_code, error.kind) for error in errors] == [(1, "rank_failed")] * 2
    assert (
        "1 further run was not started: the last 2 runs of this configuration failed in the same way"
        in errors[1].hint
    )
    assert "started" not in errors[0].hint


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([ends(1), ends(3), ends(1)], id="other exit codes"),
        pytest.param([ends(1), "good", ends(1)], id="a good run between them"),
        pytest.param(["good", ends(1), ends(1)], id="a good run before them"),
    ],
)
def test_crashes_that_differ_or_come_and_go_are_repeated(
    tmp_path: Path, programs: list[Any]
) -> None:
    rig = FakeBench(tmp_path, repeats=3)
    good = training(rig.spec, after_s=0.0)
    _, made = conducted(rig, [good if program == "good" else program for program in programs])

    assert len(made) == 3


@pytest.mark.parametrize("code", [2, 126, 127])
def test_a_program_that_does_not_start_ends_a_bench_after_its_first_run(
    tmp_path: Path, code: int
) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    two_cells(rig)
    rig.runs(a=ends(code), b=training(rig.spec))
    (error,), made = conducted(rig)

    assert (error.exit_code, error.kind, len(made)) == (1, "rank_failed", 1)
    assert "3 further runs were not started: their programs would not start either" in error.hint
    assert "after the repair: orch resume --retry-failed bench-2;" in error.hint


LIBRARY = b"libvision.so: cannot open shared object file: No such file or directory"
MEMORY = b"""Traceback (most recent call last):
  File "train.py", line 31, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


@pytest.mark.parametrize(
    ("last_words", "code", "runs"),
    [
        pytest.param(
            b"Traceback (most recent call last):\n  File\nImportError: " + LIBRARY,
            1,
            1,
            id="its end",
        ),
        pytest.param(
            b"io.py:13: UserWarning: " + LIBRARY + b"\n  warn(\n" + MEMORY,
            1,
            2,
            id="a warning before it",
        ),
        pytest.param(LIBRARY + b"\n" + MEMORY, 1, 2, id="an earlier line"),
        pytest.param(MEMORY, 2, 2, id="another cause, with the code of wrong arguments"),
    ],
)
def test_only_the_end_of_a_program_shows_that_others_would_not_start(
    tmp_path: Path, last_words: bytes, code: int, runs: int
) -> None:
    rig = FakeBench(tmp_path, repeats=1)
    two_cells(rig)
    rig.runs(a=ends(code, last_words), b=training(rig.spec))
    errors, made = conducted(rig)

    assert len(made) == runs
    assert ("would not start either" in errors[0].hint) == (runs == 1)


def test_the_value_of_an_argument_that_a_program_refuses_is_of_one_configuration(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=1)
    rig.runs(a=ends(2), b=training(rig.spec))  # one of two that end may stop the other first
    (failed,), _ = conducted(rig)

    def concerned(said: str) -> bool:
        error = RunError(failed.message, kind=failed.kind, host="a", cause=f"last output: {said}")
        result = RunResult(rig.first.run_id, 1, rig.spec, False, "failed", error=error)
        return deterministic_failure(rig.first, rig.run(), [result], [result]) is not None

    assert concerned("t.py: error: unrecognized arguments: --head 3")
    assert not concerned("t.py: error: argument --heads: invalid choice: 3 (choose from 4, 8)")
    assert not concerned("n1: Test CUDA failure common.cu:941 'named symbol not found'")


def test_a_program_that_does_not_start_on_another_node_may_start_in_other_configurations(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    two_cells(rig)
    rig.runs(b=ends(127), a=lambda order: {0: Rank(b"")})
    errors, made = conducted(rig)

    assert len(made) == 4
    assert {error.host for error in errors} == {"b"}


def test_a_program_that_ends_with_such_a_code_after_its_first_steps_has_started(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=2)

    def halfway(order: Mapping[str, Any]) -> Mapping[int, Rank]:
        return {
            rank: replace(done, code=2)
            for rank, done in training(rig.spec, after_s=0.0)(order).items()
        }

    rig.runs(a=halfway, b=lambda order: {1: Rank(b"")})
    errors, made = conducted(rig)

    assert len(made) == 2
    assert [error.host for error in errors] == ["a", "a"]


def test_a_log_without_a_line_concerns_its_configuration_alone_where_another_has_a_number(
    tmp_path: Path,
) -> None:
    rig = FakeBench(tmp_path, repeats=2)
    two_cells(rig)
    small, large = rig.plan.cells
    program = {small.batch_size: training(small, after_s=0.0), large.batch_size: unlike}
    expected = [run for run in rig.plan.list_runs() if run.spec == small or run.repeat == 1]
    errors, made = conducted(rig, [program[run.spec.batch_size] for run in expected])

    assert made == [run.run_id for run in expected]
    assert [error.kind for error in errors] == ["log_unmatched"]


def test_a_bench_that_adds_repeats_adds_none_of_what_fails_alike(tmp_path: Path) -> None:
    rig = FakeBench(tmp_path, repeats=2, until_ci=0.05, max_repeats=4)
    rig.runs(unlike)
    _, made = conducted(rig)

    assert len(made) == 1
    assert rig.bench.record().notes == ()


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("failed", "run_timeout"),
        ("failed", "storage_full"),
        ("lost", "node_lost"),
        ("interrupted", "interrupted"),
        ("failed", "port_busy"),
    ],
)
def test_what_is_no_property_of_the_program_is_no_deterministic_failure(
    rig: FakeBench, state: str, kind: str
) -> None:
    result = RunResult(
        rig.first.run_id,
        1,
        rig.spec,
        False,
        state,
        error=RunError("longer than 60 s", kind=kind, host="a"),
    )

    assert deterministic_failure(rig.first, rig.run(), [result, result], [result, result]) is None
    failed = replace(
        result,
        state="failed",
        error=RunError("rank 1 ended with exit code 1", kind="rank_failed", host="a"),
    )
    assert deterministic_failure(rig.first, rig.run(), [failed, failed], [failed, failed])


@pytest.mark.parametrize(
    ("said", "cause", "counts"),
    [
        ("RuntimeError: [x.cc:53] Connection closed by peer [10.11.0.3]:391", "last output: Connection closed by peer", False),
        ("RuntimeError: Timed out waiting 60000ms for recv operation", "a collective operation timed out; see", False),
        ("RuntimeError: address already in use (EADDRINUSE)", "a port that the program needs is in use; find", False),
        ("torch.OutOfMemoryError: CUDA out of memory.", "the GPU had no memory left; lower", True),
        ("ValueError: 3 heads", "last output: ValueError: 3 heads", True),
        ("own.py: no data\nChildFailedError: own.py FAILED", "last output: own.py: no data", True),
    ],
)  # fmt: skip
def test_what_another_process_or_the_network_did_twice_is_tried_again(
    rig: FakeBench, said: str, cause: str, counts: bool
) -> None:
    run = rig.run()
    run.log_path("a", "rank-1.err").write_text(f"{said}\n")
    error = RunError("rank 1 ended with exit code 1", kind="rank_failed", host="a", cause=cause)
    failed = RunResult(rig.first.run_id, 1, rig.spec, False, "failed", error=error)
    found = deterministic_failure(rig.first, run, [failed, failed], [failed, failed])
    assert (found is not None) == counts


def test_what_programs_say_at_their_end_makes_no_two_failures_of_one(rig: FakeBench) -> None:
    """It may name a rank, a host or a port of one run."""

    def failed(cause: str) -> RunResult:
        error = RunError("rank 1 ended with exit code 1", kind="rank_failed", host="a", cause=cause)
        return RunResult(rig.first.run_id, 1, rig.spec, False, "failed", error=error)

    alike = [failed(f"last output: nobody at 10.11.0.{number}") for number in (2, 3)]
    assert deterministic_failure(rig.first, rig.run(), alike, alike)
    unlike = [failed("a disk is full; free some"), failed("last output: nobody at 10.11.0.3")]
    assert deterministic_failure(rig.first, rig.run(), unlike, unlike) is None
