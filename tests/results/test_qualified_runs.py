"""What is found in a run and told beside its number: lowered clocks, drifting steps, another type,
sockets for InfiniBand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import read_bench, store
from orchestrator.results.hardware import slowdown_notes
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support.run_folders import (
    BATCH,
    LOG,
    WORLD,
    build,
    closing,
    lasting,
    rank_line,
    step_lines,
)


def test_what_nccl_chose_on_all_nodes_is_kept_shown_and_doubted(bench: BenchDir) -> None:
    """Both nodes have active InfiniBand, and NCCL took sockets: the log of each of them is read."""
    spoken = "NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>\nNCCL INFO Using network Socket\n"
    paths = [
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 00/0 : 3[1] -> 0[0] [send] via NET/Socket/0",
    ]

    def with_nccl(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["framework"]["log"] = {**LOG, "nccl_files": ["nccl-*.log"]}
        planned["facts"] = {f"node{n}": {"kernel": "6.1", "infiniband_gbit": 200} for n in (1, 2)}
        for node, path in enumerate(paths):
            logs[node][f"nccl-node{node + 1}-7.log"] = f"{spoken}NCCL INFO {path}\n"

    run = build(bench, "r1", with_nccl)
    result = read_run(run)
    store(run, result)
    kept = json.loads((run.path / "results" / "throughput.json").read_text())["transport"]
    assert (kept["paths"], kept["gdrdma"]) == ({"NET/Socket": 1, "P2P/CUMEM": 1}, False)
    (row,) = summarize([result]).rows
    assert "NET/Socket on eth0 · P2P/CUMEM" in row.hardware
    told = "NCCL uses NET/Socket on eth0 between nodes, not InfiniBand, although node[1-2] have active ports"
    assert told in row.qualifications


@pytest.mark.parametrize(
    ("step_time_s", "told"),
    [
        (
            0.24,
            [
                "the log disagrees with itself: 266.67 samples/s by its step times, 128.00 by the elapsed time"
            ],
        ),
        (
            0.6,
            [
                "the log disagrees with itself: 106.67 samples/s by its step times, 128.00 by the elapsed time"
            ],
        ),
        (0.49, []),
    ],
)
def test_step_times_that_do_not_make_up_the_time_that_passed_are_told(
    bench: BenchDir, step_time_s: float, told: list[str]
) -> None:
    def between_steps(_planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] = logs[0]["rank-0.out"].replace(
            "step_time_s=0.500000", f"step_time_s={step_time_s:.6f}"
        )

    result = read_run(build(bench, "r1", between_steps))
    assert result.throughput and result.throughput.samples_per_s == pytest.approx(128)
    assert list(result.qualifications) == told


@pytest.mark.parametrize(
    ("slowed_us", "told"),
    [
        ({"sw_power_cap": 5_000_000},
         ["clocks lowered by the power limit: for 83% of the run, 80% to 100% of the measured window on node[1-2]"]),
        ({"sw_power_cap": 6_000_000},
         ["clocks lowered by the power limit: for 100% of the run, 100% of the measured window on node[1-2]"]),
        ({"sw_thermal_slowdown": 249_000, "hw_thermal_slowdown": 251_000},
         ["clocks lowered by temperature, by half or more: for 4% of the run, at most 5% of the measured window on node[1-2]"]),
        ({"sw_power_cap": "3000000", "sync_boost": True, "\x1b[31m": 3_000_000}, []),
        ([3_000_000], []),
        ({}, []),
    ],
)  # fmt: skip
def test_clocks_that_were_lowered_for_a_twentieth_of_the_window_are_told(
    bench: BenchDir, slowed_us: Any, told: list[str]
) -> None:
    """The window is 5 s of the 6 s of a rank."""

    def slow(records: list[dict[str, Any]]) -> None:
        for record in records:
            record["ranks"][0] |= {
                "slowed_us": slowed_us,
                "started_mono_s": 2.0,
                "ended_mono_s": 8.0,
            }

    result = read_run(build(bench, "r1", after=slow))
    assert result.throughput and slowdown_notes([result]) == told
    store(bench.run("r1"), result)
    assert (
        json.loads((bench.path / "r1/results/throughput.json").read_text())["qualifications"]
        == told
    )


def test_lowered_clocks_of_several_runs_are_one_note(bench: BenchDir) -> None:
    """The power limit took 0.54, 1.5 and 1.62 s of 6 s on node 1, and at last all on node 2; a
    window has 5 s of them.
    """

    def slow(*slowed_us: int) -> Callable[[list[dict[str, Any]]], None]:
        def change(records: list[dict[str, Any]]) -> None:
            for record, time_us in zip(records, slowed_us, strict=True):
                told = {"sw_power_cap": time_us}
                record["ranks"][0] |= {
                    "slowed_us": told,
                    "started_mono_s": 2.0,
                    "ended_mono_s": 8.0,
                }

        return change

    lost = [(540_000, 0), (0, 0), (1_500_000, 0), (1_620_000, 6_000_000)]
    runs = [
        build(bench, f"r{n}", after=slow(*times), repeat=n, seconds=0.5 + n / 1000)
        for n, times in enumerate(lost, start=1)
    ]
    (row,) = summarize([read_run(run) for run in runs]).rows
    assert row.qualifications == (
        "clocks lowered by the power limit: for 9% to 100% of the run, at most 100% of the measured window on node[1-2], "
        "in 3 of 4 runs",
    )
    (row,) = summarize([read_run(run) for run in runs[1:3]]).rows
    assert (
        row.qualifications[-1]
        == "clocks lowered by the power limit: for 25% of the run, 11% to 30% of the measured window on node1, in 1 of 2 runs"
    )


def test_a_restart_inside_the_log_qualifies_the_number(bench: BenchDir) -> None:
    def before(_planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] = rank_line(0) + step_lines(0.1, last=5) + step_lines() + closing()

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.throughput.samples_per_s == pytest.approx(128)
    assert result.qualifications == (
        "the step goes back once: the last attempt that reaches step 12 was used",
    )


@pytest.mark.parametrize(
    ("grown", "said"),
    [
        (
            0.10,
            "the last fifth of the window is 7.9% slower per step than the first; that is 3.8% of the window; "
            "the machine slows down",
        ),
        (
            -0.10,
            "the last fifth of the window is 8.1% faster per step than the first; that is 4.2% of the window; "
            "more --warmup-steps may be needed",
        ),
        (0.0, ""),
    ],
)
def test_a_window_in_which_steps_drift_qualifies_the_number_and_stays(
    bench: BenchDir, grown: float, said: str
) -> None:
    warmup, steps = 2, 102

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {"steps": steps, "warmup_steps": warmup}
        end, lines = 900.0, [step_lines(last=0)]
        for step in range(1, steps + 1):
            seconds = 0.5 * (1 + grown * (step - warmup) / (steps - warmup))
            end += seconds
            lines.append(
                f"orch step={step} t={end:.6f} step_time_s={seconds:.6f} samples={BATCH * WORLD} loss=6.9\n"
            )
        logs[0]["rank-0.out"] = rank_line(0) + "".join(lines) + closing(steps=steps)

    result = read_run(build(bench, "r1", before, lasting(60.0)))
    assert result.throughput and (result.throughput.first_step, result.throughput.last_step) == (
        warmup + 1,
        steps,
    )
    assert result.unsteady == ((said,) if said else ())
    assert [text for text in summarize([result]).rows[0].qualifications if "steady" in text] == (
        [f"not steady: {said}"] if said else []
    )
    (again,) = read_bench(bench)
    stored = json.loads((bench.run("r1").path / "results" / "throughput.json").read_text())
    assert (
        again.place == 0
        and again.step_times
        and stored["step_times"]["p50_s"] == again.step_times.p50_s
    )
    assert stored["qualifications"] == ([f"not steady: {said}"] if said else [])


@pytest.mark.parametrize("where", ["manifest", "closing"])
def test_simulated_is_said_if_either_the_folder_or_the_program_says_it(
    bench: BenchDir, where: str
) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        if where == "manifest":
            planned["framework"]["simulated"] = True
        else:
            logs[0]["rank-0.out"] = rank_line(0) + step_lines() + closing(simulated=True)

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.simulated
    assert summarize([result]).rows[0].simulated


def test_what_always_qualifies_a_program_on_a_device_stands_beside_its_numbers(
    bench: BenchDir,
) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        device = planned["spec"]["device"]
        planned["framework"]["caveats"] = {device: "nothing is averaged", "other": "not this one"}

    assert read_run(build(bench, "r1", before)).qualifications == ("nothing is averaged",)


@pytest.mark.parametrize(
    ("dtype", "found", "said"),
    [
        ("fp16", "float32", ("dtype fp16 requested, the model's output was 'float32'",)),
        ("fp16", "float16", ()),
        ("tf32", "float32", ()),
        ("fp32", "bfloat16", ("dtype fp32 requested, the model's output was 'bfloat16'",)),
        ("fp16", None, ()),
    ],
)
def test_a_run_that_computed_in_another_type_than_asked_is_qualified(
    bench: BenchDir, dtype: str, found: str | None, said: tuple[str, ...]
) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"]["dtype"] = dtype
        logs[0]["rank-0.out"] = (
            rank_line(0) + step_lines() + closing(dtype=dtype, output_dtype=found)
        )

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.qualifications == said


@pytest.mark.parametrize(
    ("round_trips", "said"),
    [
        (
            {"node1": 0.001, "node2": 0.2},
            ["node2 answered slowly during the run: in 200 ms, the others in 1.0 ms"],
        ),
        ({"node1": 0.001, "node2": 0.02}, []),
        ({"node1": 0.15, "node2": 0.2}, []),
        ({"node1": 0.2}, []),
    ],
)
def test_a_node_that_answers_far_more_slowly_than_the_others_qualifies_the_number(
    tmp_path: Path, round_trips: dict[str, float], said: list[str]
) -> None:
    answers = {
        host: {"longest_silence_s": 0.6, "round_trip_s": took, "silent": False}
        for host, took in round_trips.items()
    }
    bench = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"]}
    )
    run = build(bench, "r1", lambda planned, logs: planned["outcome"].update(answers=answers))
    result = read_run(run)
    assert (
        result.error is None
        and [text for text in result.qualifications if "slowly" in text] == said
    )
