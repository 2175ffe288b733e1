"""What is said of a run in whose logs the log grammar finds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from tests.support.run_folders import LOG, Before, build


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    return BenchDir.create(tmp_path, {"bench_id": "b1", "created": "2026-11-23T00:00:00Z"})


def grammar(**changes: Any) -> Before:
    return lambda planned, logs: planned["framework"]["log"].update(changes)


def error_of(bench: BenchDir, before: Before) -> DataError:
    result = read_run(build(bench, "r1", before))
    assert result.throughput is None
    assert isinstance(result.error, DataError)
    return result.error


def test_the_file_the_pattern_and_the_line_that_comes_nearest_are_named(bench: BenchDir) -> None:
    error = error_of(
        bench,
        grammar(
            patterns=[
                "orch epoch=(?P<step>[0-9]+)",
                LOG["patterns"][0].replace("samples=", "images="),
            ]
        ),
    )  # type: ignore[index]

    assert (error.kind, error.exit_code, error.host, error.where) == (
        "log_unmatched",
        4,
        "node1",
        "rank-0.out",
    )
    assert error.message == (
        "expected lines for steps 3…12, found 0; log.patterns[1] comes nearest: line 2 matches up to "
        "'orch step=0 t=900.000000 step_time_s=0 ', then 'samples=0 loss=nan' where the pattern has 'images=(?"
        "P<samples>[0-9]+)'"
    )
    assert error.hint == (
        "correct log.patterns[0] or log.patterns[1] in the framework.yaml of pytorch, then: orch summarize --reread"
    )


def test_a_log_that_is_nothing_like_the_pattern_is_shown_as_it_begins(bench: BenchDir) -> None:
    error = error_of(
        bench, grammar(patterns=["Iteration (?P<step>[0-9]+) took (?P<step_time_s>[0-9.]+)"])
    )

    assert (
        "no line comes near log.patterns[0]; the log begins with 'orch rank=0 local_rank=0"
        in error.message
    )


def test_an_empty_log_is_said_to_be_empty(bench: BenchDir) -> None:
    def empty(planned: Any, logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] = ""

    assert error_of(bench, empty).message == "expected lines for steps 3…12, found 0; it is empty"


def test_a_log_of_another_name_that_has_the_lines_is_named(bench: BenchDir) -> None:
    def logged_to_stderr(planned: Any, logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.err"], logs[0]["rank-0.out"] = logs[0]["rank-0.out"], "ready\n"

    error = error_of(bench, logged_to_stderr)
    assert error.message == "expected lines for steps 3…12, found 0; rank-0.err has such lines"
    assert error.hint == (
        "name rank-0.err in log.files in the framework.yaml of pytorch, then: orch summarize --reread"
    )


def test_rank_lines_in_a_log_of_another_name_are_sought_in_rank_files(bench: BenchDir) -> None:
    def introduced_on_stderr(planned: Any, logs: list[dict[str, str]]) -> None:
        planned["framework"]["log"]["rank"] = "^I am (?P<rank>[0-9]+)$"
        logs[0]["rank-0.err"] = "I am 0\n"

    error = error_of(bench, introduced_on_stderr)
    assert "found 0; rank-0.err has such lines" in error.message
    assert "name rank-0.err in log.rank_files" in error.hint


def test_a_value_that_matches_and_is_no_number_is_quoted(bench: BenchDir) -> None:
    def separated(planned: Any, logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] += "".join(
            f"step {step} | tps: {7000 + step:,}\n" for step in range(1, 13)
        )
        planned["framework"]["log"]["patterns"] = [
            r"step (?P<step>[0-9]+) \| tps: (?P<samples_per_s>[0-9,.]+)"
        ]

    assert error_of(bench, separated).message == (
        "expected lines for steps 3…12, found 0; lines match, but in the first of them samples_per_s '7,001' is not a number"
    )


def test_a_step_that_is_no_number_is_quoted(bench: BenchDir) -> None:
    def separated(planned: Any, logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] += "step 1e3 0.5 s\n"
        planned["framework"]["log"]["patterns"] = [
            "step (?P<step>[0-9e]+) (?P<step_time_s>[0-9.]+) s"
        ]

    assert "step '1e3' is not a number" in error_of(bench, separated).message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": "orch rank=(?P<rank>[0-9]+) of"}, "expected rank lines of 4 ranks, found 0; log.rank comes nearest: "
            "line 1 matches up to"),
        ({"closing": r"orch end (?P<json>\{.*\})"}, "expected the program's closing line, found none; "
            "log.closing comes nearest: line"),
    ],
)  # fmt: skip
def test_rank_lines_and_the_closing_line_are_sought_likewise(
    bench: BenchDir, changes: dict[str, Any], message: str
) -> None:
    error = error_of(bench, grammar(**changes))
    assert (error.kind, error.where) == ("log_unmatched", "rank-0.out")
    assert message in error.message


def test_secrets_stay_hidden_in_the_line_that_is_quoted(bench: BenchDir) -> None:
    run = build(
        bench, "r1", grammar(patterns=["orch step=(?P<step>[0-9]+) T=(?P<timestamp>[0-9.]+)"])
    )
    data = run.log_path("node1", "rank-0.out").read_bytes()
    start = data.index(b"t=900.000000")
    run.write_secret_places("node1", {"rank-0.out": [(start, start + 12)]})

    error = read_run(run).error
    assert error
    assert "900.000000" not in str(error)
