"""Runs of programs that print otherwise than our trainers do: on other nodes, on every rank, or
without naming ranks.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from orchestrator.results.run import RunResult
from tests.support.run_folders import (
    BATCH,
    GPUS,
    STEPS,
    WORLD,
    Before,
    build,
    rank_line,
    step_lines,
)


def grammar(**changes: Any) -> Before:
    return lambda planned, _logs: planned["framework"]["log"].update(changes)


def test_a_program_that_does_not_name_its_ranks_is_qualified(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", grammar(rank="", closing="")))
    assert result.throughput
    assert result.qualifications == (
        "rank count not verified (the log has no rank lines: log.rank)",
    )


def test_a_grammar_whose_files_are_not_there_is_an_error(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", grammar(files=["worker.*"])))
    assert (
        "expected a log like worker.*, the exit record lists node.err, node.out, rank-0.err"
        in str(result.error)
    )
    assert (
        result.error
        and result.error.kind == "log_unmatched"
        and "orch summarize --reread" in result.error.hint
    )


def test_rates_of_single_processes_count_for_all_ranks_of_all_nodes(bench: BenchDir) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        pattern = r"step (?P<step>[0-9]+): (?P<samples_per_s>[0-9.]+) images/s"
        grammar(
            files=["rank-*.out"], patterns=[pattern], nodes="every", scope="process", closing=""
        )(planned, logs)
        for files in logs:
            for name in [
                name for name in files if name.startswith("rank-") and name.endswith(".out")
            ]:
                rank = int(name[5:-4])
                files[name] = rank_line(rank) + "".join(
                    f"step {s}: {100 + rank} images/s\n" for s in range(1, STEPS + 1)
                )

    result = read_run(build(bench, "r1", before))
    assert result.throughput
    assert result.throughput.samples_per_s == pytest.approx(
        WORLD * WORLD / sum(1 / (100 + rank) for rank in range(WORLD))
    )


def test_lines_of_the_last_node_are_read_where_the_last_rank_prints(bench: BenchDir) -> None:
    """As Megatron does: the last rank is in the last pipeline stage."""

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        pattern = r"iteration +(?P<step>[0-9]+)/ +[0-9]+ .* \(ms\): (?P<step_time_s>[0-9.]+)"
        units = {"step_time_s": "ms"}
        grammar(files=["rank-*.out"], patterns=[pattern], nodes="last", units=units, closing="")(
            planned, logs
        )
        for files in logs:
            for name in [
                name for name in files if name.startswith("rank-") and name.endswith(".out")
            ]:
                rank = int(name[5:-4])
                each = " iteration {}/ {} | elapsed time per iteration (ms): 100.5\n"
                lines = [each.format(step, STEPS) for step in range(1, STEPS + 1)]
                files[name] = rank_line(rank) + ("".join(lines) if rank == WORLD - 1 else "")

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.error is None
    assert result.throughput.samples_per_s == pytest.approx(WORLD * BATCH / 0.1005)
    assert result.resolution == pytest.approx(result.throughput.samples_per_s * 0.1 / 100.5)


def test_a_pattern_that_cannot_be_used_is_an_error_of_the_run(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", grammar(patterns=["(a+)+(?P<step>[0-9]+)"])))
    assert isinstance(result, RunResult) and result.error and result.error.kind == "state_damaged"


def every_rank_speaks(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    """Let each rank log its own steps, the third rank a little slower than the others."""
    planned["framework"] = deepcopy(planned["framework"])
    planned["framework"]["log"] |= {
        "files": ["rank-*.out"],
        "nodes": "every",
        "scope": "process",
        "closing": "",
    }
    for node, files in enumerate(logs):
        for rank in range(node * GPUS, (node + 1) * GPUS):
            own = step_lines(0.5 if rank != 2 else 0.52).replace(
                f"samples={BATCH * WORLD}", f"samples={BATCH}"
            )
            files[f"rank-{rank}.out"] = rank_line(rank) + own


def test_logs_of_all_ranks_are_heard_as_one_in_one_process_or_several(
    bench: BenchDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build(bench, "b1.0", every_rank_speaks)
    alone = read_run(run)
    monkeypatch.setattr("orchestrator.results.node_logs._WORTH_BYTES", 0)
    together = read_run(run)
    assert alone.error is None and together == alone
    assert alone.throughput and alone.throughput.samples_per_s == pytest.approx(
        BATCH * WORLD / 0.505
    )


def test_what_another_process_finds_damaged_is_told_as_it_is_here(
    bench: BenchDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build(bench, "b1.0", every_rank_speaks)
    log = run.log_path("node2", "rank-3.out")
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    alone = read_run(run)
    monkeypatch.setattr("orchestrator.results.node_logs._WORTH_BYTES", 0)
    together = read_run(run)
    assert alone.error and together.error and together.error.as_dict() == alone.error.as_dict()
    assert alone.error.host == "node2" and "SHA-256" in alone.error.message
