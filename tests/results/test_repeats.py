"""Repeats that are one measurement, and a narrow dtype that is slower than a wide one."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support.run_folders import BATCH, STEPS, WORLD, build, closing, rank_line


def qualifications(bench: BenchDir, *texts: str) -> tuple[str, ...]:
    """Return the notes of a configuration whose repeats have these logs, without those on their
    number and spread.
    """

    def written(text: str) -> Any:
        def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
            logs[0]["rank-0.out"] = text

        return change

    runs = [build(bench, f"r{n}", written(text), repeat=n) for n, text in enumerate(texts, start=1)]
    (row,) = summarize([read_run(run) for run in runs]).rows
    assert row.n == len(texts)
    return tuple(note for note in row.qualifications if "equal" in note)


def log(start: float, step_s: float = 0.5, end: str = "") -> str:
    lines = [
        f"orch step={step} t={start + step * step_s:.6f} step_time_s={step_s:.6f} samples={BATCH * WORLD}\n"
        for step in range(STEPS + 1)
    ]
    return rank_line(0) + "".join(lines) + end + closing()


def test_logs_and_step_times_of_two_runs_are_never_equal(bench: BenchDir) -> None:
    assert qualifications(bench, log(900), log(1000, 0.501), log(900)) == (
        "the logs of repeats 1, 3 are equal byte for byte: one measurement, not 2",
    )
    assert qualifications(bench, log(900), log(900, end="pid 7\n"), log(950, 0.502)) == (
        "the step times of repeats 1, 2 are equal to the microsecond: one measurement, not 2",
    )
    assert qualifications(bench, log(900), log(900, 0.500002), log(900, 0.500004)) == ()


def test_repeats_on_different_hosts_are_named(bench: BenchDir) -> None:
    def elsewhere(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["facts"] = {f"other-{host}": facts for host, facts in planned["facts"].items()}

    built = [
        build(bench, "r1"),
        build(bench, "r2", elsewhere, repeat=2),
        build(bench, "r3", repeat=3),
    ]
    runs = [read_run(run) for run in built]
    assert all(run.facts for run in runs)
    (note,) = [
        note for row in summarize(runs).rows for note in row.qualifications if "hosts" in note
    ]
    assert note.startswith("repeats ran on different hosts: 1, 3 on ") and "; 2 on other-" in note
    assert not [
        note for row in summarize(runs[::2]).rows for note in row.qualifications if "hosts" in note
    ]


def test_repeats_over_different_interfaces_are_named(bench: BenchDir) -> None:
    def over(name: str) -> Any:
        def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
            interface = {"name": name, "why": "the route to the other nodes"} if name else None
            planned["facts"] = {
                host: {**facts, "interface": interface} for host, facts in planned["facts"].items()
            }

        return change

    built = [
        build(bench, f"r{n}", over(name), repeat=n)
        for n, name in enumerate(("ib0", "eth0", "ib0"), start=1)
    ]
    runs = [read_run(run) for run in built]
    (note,) = [
        note for row in summarize(runs).rows for note in row.qualifications if "interfaces" in note
    ]
    assert note.startswith("repeats ran over different interfaces on ") and note.endswith(
        ": 1, 3 over ib0; 2 over eth0"
    )
    assert not [
        note
        for row in summarize(runs[::2]).rows
        for note in row.qualifications
        if "interfaces" in note
    ]
    named = [read_run(build(bench, "r2", over(""), repeat=2))]
    (note,) = [
        note
        for row in summarize([runs[0], *named]).rows
        for note in row.qualifications
        if "interfaces" in note
    ]
    assert note.endswith(": 1 over ib0; 2 without a known one")


@pytest.mark.parametrize(
    ("narrow_s", "told"),
    [(0.6, "fp16 but slower than fp32 (128.00 samples/s)"), (0.505, ""), (0.3, "")],
)
def test_a_narrow_type_that_is_slower_than_a_wide_one_is_doubted(
    bench: BenchDir, narrow_s: float, told: str
) -> None:
    def wide(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"]["dtype"] = "fp32"
        logs[0]["rank-0.out"] = logs[0]["rank-0.out"].replace('"fp16"', '"fp32"')

    runs = [build(bench, "r1", wide), build(bench, "r2", seconds=narrow_s)]
    notes = {
        row.dtype: [note for note in row.qualifications if "slower" in note]
        for row in summarize([read_run(run) for run in runs]).rows
    }
    assert notes == {"fp32": [], "fp16": [told] if told else []}
