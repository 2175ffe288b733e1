"""What the samples of nodes become: means and energies over the measured window by each node's
clock, and doubts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from orchestrator.results.hardware import load_notes, slowdown_notes
from orchestrator.results.read import read_run
from orchestrator.results.run import RunResult
from orchestrator.results.summary import summarize
from orchestrator.results.telemetry.doubts import busiest, doubts_by_host, doubts_from, drawing_less
from orchestrator.results.telemetry.over_window import (
    continue_to,
    energy_per_sample,
    growth_over,
    mean_over,
    rate_over,
)
from orchestrator.results.telemetry.utilization import NodeUse
from tests.support.run_folders import BATCH, WORLD, build
from tests.support.sampled_runs import GPU, Column, gpus, telemetry

BEGIN = 901.0
"""Of the window of `run_folders`, by the clock of the first node: two steps of half a second after
900.
"""
SPEED = BATCH * WORLD / 0.5
LATER = 5000.0
"""How far the clock of the second node is ahead."""


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    return BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"]}
    )


Columns = Callable[[int], Mapping[str, Column]]


def sampled(
    bench: BenchDir,
    columns: Columns,
    *,
    times: Sequence[float] = tuple(899.5 + second for second in range(9)),
    events: Mapping[int, Sequence[Mapping[str, Any]]] = {},  # noqa: B006
    change: Callable[[dict[str, Any], list[dict[str, str]]], Any] = lambda planned, logs: None,
    **header: Any,
) -> RunResult:
    """Return the result of a run whose nodes, which start at 899 of the first one's clock, were
    sampled at these times of it. The columns of a node are functions of the first one's clock."""

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        for node, files in enumerate(logs):
            ahead = node * LATER
            of_node = {
                name: lambda at, c=c, ahead=ahead: c(at - ahead)
                for name, c in columns(node).items()
            }  # type: ignore[misc]
            told = [{**event, "t": event["t"] + ahead} for event in events.get(node, ())]
            shifted = [at + ahead for at in times]
            files["telemetry.jsonl"] = telemetry(
                shifted, of_node, told, **{"gpus": [GPU, GPU], **header}
            )
        change(planned, logs)

    def after(records: list[dict[str, Any]]) -> None:
        for node, record in enumerate(records):
            record.update(started_mono_s=899.0 + node * LATER, ended_mono_s=908.0 + node * LATER)

    result = read_run(build(bench, "r1", before, after))
    assert result.error is None
    return result


def test_power_and_energy_are_those_of_the_window_by_each_nodes_own_clock(bench: BenchDir) -> None:
    def watts(node: int) -> Callable[[int, float], float]:
        return lambda gpu, at: (600.0 if 900.5 <= at < 906.5 else 100.0) + 10 * node + gpu

    run = sampled(bench, lambda node: gpus(2, watts(node)))
    assert run.use and [node.host for node in run.use.nodes] == ["node1", "node2"]
    powers = [gpu.power_w for node in run.use.nodes for gpu in node.gpus]
    assert powers == [pytest.approx(power) for power in (600.0, 601.0, 610.0, 611.0)]
    assert all(gpu.energy_is_counted for node in run.use.nodes for gpu in node.gpus)
    numbers = {value.metric: value.number for value in run.values}
    assert numbers["gpu_power"] == pytest.approx(sum(power or 0 for power in powers) / 4)
    assert numbers["energy_per_sample"] == pytest.approx(
        sum(power or 0 for power in powers) / SPEED
    )


def test_power_that_is_read_too_rarely_for_the_window_is_said_and_gives_no_energy(
    bench: BenchDir,
) -> None:
    run = sampled(bench, lambda node: gpus(2), times=(899.5, 904.0, 908.0))
    assert "energy_per_sample" not in {value.metric for value in run.values}
    far = "on node[1-2] their power was read further apart than a quarter of the window of 5 s"
    words, longer = f"no energy of the GPUs: {far}", "; a longer window has it"
    assert doubts_from([run.use]) == [words + longer]
    often = sampled(bench, lambda node: gpus(2))
    assert doubts_from([run.use, often.use, None]) == [f"{words}, in 1 of 3 runs{longer}"]


def test_without_a_counter_of_energy_readings_of_power_are_averaged(bench: BenchDir) -> None:
    run = sampled(
        bench,
        lambda node: {"gpu0.power_w": lambda at: 500.0, "gpu1.power_w": lambda at: 2 * (at - 800)},
    )
    assert run.use
    one, other = run.use.nodes[0].gpus
    assert (one.power_w, one.energy_is_counted) == (500.0, False)
    assert other.power_w == pytest.approx(2 * (BEGIN + 2.5 - 800), rel=1e-3)


@pytest.mark.parametrize("case", ["one GPU less", "shared", "one node less", "unknown"])
def test_there_is_no_energy_unless_the_power_of_every_gpu_is_known(
    bench: BenchDir, case: str
) -> None:
    def without(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        if case == "one node less":
            del logs[1]["telemetry.jsonl"]

    def columns(node: int) -> Mapping[str, Column]:
        whole = gpus(2)
        return {
            name: column
            for name, column in whole.items()
            if case != "unknown" or not (node and name.startswith("gpu1"))
        }

    header = (
        {"gpus": [GPU]}
        if case == "one GPU less"
        else {"gpus": [GPU, {**GPU, "shared": case == "shared"}]}
    )
    run = sampled(bench, columns, change=without, **header)
    assert run.use and {value.metric for value in run.values} == {"samples_per_s"}


def test_a_window_that_was_hardly_sampled_has_no_power(bench: BenchDir) -> None:
    run = sampled(bench, lambda node: gpus(2), times=(899.5, 900.5, 901.5))
    assert run.use and run.use.nodes[0].gpus[0].power_w is None and run.use.gpu_power_w is None


def test_the_window_is_found_by_the_arrival_of_lines_where_the_log_has_no_clock(
    bench: BenchDir,
) -> None:
    def no_clock(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        for name, text in logs[0].items():
            logs[0][name] = text.replace(" t=9", " at=9")
        planned["framework"]["log"] = {
            **planned["framework"]["log"],
            "patterns": [
                r"orch step=(?P<step>[0-9]+) at=[0-9.]+ step_time_s=(?P<step_time_s>[0-9.]+)"
            ],
        }

    run = sampled(bench, lambda node: gpus(2), change=no_clock)
    assert run.use is None, "nothing says when the window was"


def test_a_file_that_cannot_be_read_costs_a_note_and_no_number(bench: BenchDir) -> None:
    def broken(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logs[1]["telemetry.jsonl"] = "rm -rf\n"

    run = sampled(bench, lambda node: gpus(2), change=broken)
    assert run.throughput and run.use and len(run.use.nodes) == 1
    (note,) = run.qualifications
    assert (
        note.startswith("the telemetry of node2 cannot be read: ")
        and "telemetry.jsonl line 1" in note
    )


def test_clocks_are_lowered_for_the_share_of_samples_in_the_window(bench: BenchDir) -> None:
    # Five samples, of which the power limit lowered the clocks in two, and of one GPU only.
    run = sampled(
        bench, lambda node: {"gpu1.reasons": lambda at: 4.0 if 903 < at < 905 and node else 1.0}
    )
    assert run.slowed == {"sw_power_cap": {"node2": (0.4, 0.4, None)}}
    assert slowdown_notes([run]) == [
        "clocks lowered by the power limit: for 40% of the measured window on node2"
    ]


def test_counters_of_the_whole_run_do_not_speak_of_a_window_that_was_sampled(
    bench: BenchDir,
) -> None:
    def after(records: list[dict[str, Any]]) -> None:
        for record in records:
            record.update(started_mono_s=899.0, ended_mono_s=908.0)
            for rank in record["ranks"]:
                rank.update(
                    started_mono_s=899.0, ended_mono_s=908.0, slowed_us={"sw_power_cap": 3_000_000}
                )

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        columns = {"gpu0.reasons": lambda at: 4.0 if at < 901 else 0.0}
        logs[0]["telemetry.jsonl"] = telemetry(
            [900.0 + second for second in range(8)], columns, gpus=[GPU]
        )

    run = read_run(build(bench, "r1", before, after))
    assert list(run.slowed["sw_power_cap"]) == ["node2"], (
        "node1 was sampled: it was before the window"
    )


def test_load_by_others_is_told_with_who_used_most(bench: BenchDir) -> None:
    busy = {"event": "busy", "pid": 7, "name": "make", "user": "bob", "cores": 3.5}
    run = sampled(
        bench,
        lambda node: {},
        events={1: [{**busy, "t": 903.0}, {**busy, "t": 904.0, "name": "vi", "cores": 0.6}]},
    )
    assert busiest([run.use], ["node1", "node2"]) == ", most of it by make of bob"
    assert load_notes([replace(run, loaded={"node2": 0.44})]) == [
        "other processes used 44% of the processors of node2, most of it by make of bob"
    ]
    assert load_notes([replace(run, loaded={"node1": 0.44})]) == [
        "other processes used 44% of the processors of node1"
    ]
    assert busiest([None], ["node1"]) == ""


def test_what_failed_or_used_a_gpu_is_a_doubt_with_its_node_and_how_often(bench: BenchDir) -> None:
    told = [
        {"t": 902.0, "event": "process", "gpu": 1, "pid": 9, "name": "python3", "user": "eve"},
        {"t": 903.0, "event": "xid", "gpu": 0, "code": 79},
        {"t": 907.5, "event": "xid", "gpu": 0, "code": 31},
    ]
    columns: dict[str, Column] = {
        "net0.errors": lambda at: 5.0,
        "port0.errors": lambda at: 2.0 if at > 903 else 0.0,
        "port0.lost": lambda at: 7.0 if at > 903 else 4.0,
        "gpu0.ecc_corrected": lambda at: None if int(at) % 3 else at,
        "gpu1.nvlink_errors": lambda at: 1.0 if at > 907 else 0.0,
    }
    run = sampled(
        bench,
        lambda node: columns if node else {},
        events={1: told},
        interfaces=["eth0"],
        ports=["mlx5_0:1"],
    )
    lost = "mlx5_0:1 (packets lost or sent again)"
    assert run.use and run.use.nodes[1].link_errors == {"mlx5_0:1": 2, lost: 3}
    assert doubts_from([run.use, None, run.use]) == [
        "another process used a GPU of the run: python3 of eve on node2, in 2 of 3 runs",
        "errors of a link, mlx5_0:1 on node2, in 2 of 3 runs",
        f"errors of a link, {lost} on node2, in 2 of 3 runs",
        "errors of a GPU's memory, corrected on node2, in 2 of 3 runs",
        "the driver reported Xid 79, it has fallen off the bus, on node2, in 2 of 3 runs",
    ], "what happened after the window is none of it"
    row = summarize([run]).rows[0]
    assert "errors of a link, mlx5_0:1 on node2" in row.qualifications


@pytest.mark.parametrize(
    ("powers", "less"),
    [
        ([640.0, 525.0], [1]),
        ([640.0, 600.0], []),
        ([640.0, 652.0, 525.0, 648.0], [2]),
        ([640.0, 652.0, 590.0, 648.0], []),
        ([500.0, 600.0, 700.0, 400.0, 650.0], []),
        ([600.0, 600.0, 600.0, 800.0], []),
        ([600.0], []),
        ([-5.0, 0.0, 0.0], []),
        ([], []),
    ],
)
def test_a_node_draws_less_if_it_is_far_below_the_median_of_the_others(
    powers: list[float], less: list[int]
) -> None:
    by_name = {str(place): watts for place, watts in enumerate(powers)}
    assert list(drawing_less(by_name)) == list(map(str, less))


def test_a_node_that_draws_less_is_said_once_and_a_single_gpu_by_its_place(bench: BenchDir) -> None:
    slow_node = sampled(bench, lambda node: gpus(2, lambda gpu, at: 520.0 if node else 640.0))
    assert doubts_from([slow_node.use]) == [
        "the GPUs of node2 draw 19% less than the others: 520 W against 640 W"
    ]


def test_a_gpu_that_draws_less_is_named(bench: BenchDir) -> None:
    run = sampled(
        bench, lambda node: gpus(2, lambda gpu, at: 540.0 if node and gpu else 640.0 + gpu)
    )
    assert doubts_from([run.use]) == [
        "GPU 1 of node2 draws 16% less than the others: 540 W against 640 W"
    ]
    assert run.use
    instances = [
        replace(node, gpus=tuple(replace(gpu, shared=True) for gpu in node.gpus))
        for node in run.use.nodes
    ]
    assert doubts_from([replace(run.use, nodes=tuple(instances))]) == []


@pytest.mark.parametrize(
    ("gib", "said"),
    [
        (
            [13.80, 13.81, 14.43, 13.80],
            "GPU 2 has more memory in use than the others, 14.43 GiB beside 13.80 GiB",
        ),
        ([13.80, 13.81, 13.95, 13.80], ""),  # a rank that keeps a little more
        ([13.8, 12.1, 14.43, 10.4], ""),  # stages of a pipeline
        ([13.8, 14.43], ""),  # which of two is the usual one?
    ],
)
def test_a_gpu_with_far_more_memory_in_use_than_the_others_is_a_doubt(
    bench: BenchDir, gib: list[float], said: str
) -> None:
    use = sampled(bench, lambda node: gpus(2, lambda gpu, at: 640.0)).use
    assert use
    first, *rest = use.nodes
    of_node = tuple(replace(first.gpus[0], memory_bytes=amount * 2**30) for amount in gib)
    found = doubts_from([replace(use, nodes=(replace(first, gpus=of_node), *rest))])
    expected = (
        [f"{said}: another program, or a rank that keeps more, on {first.host}"] if said else []
    )
    assert found == expected


def test_processors_that_a_limit_or_a_hypervisor_keeps_are_a_doubt_about_their_node(
    bench: BenchDir,
) -> None:
    """Of ten periods a second eight are held, of eight processors two are given away: each on one
    node, little on the other.
    """

    def columns(node: int) -> dict[str, Column]:
        held, stolen = (8, 0.1) if node else (0.1, 2)
        return {
            "quota.periods": lambda at: 10 * at,
            "quota.held": lambda at: held * at,
            "stolen_s": lambda at: stolen * at,
        }

    run = sampled(bench, columns)
    assert run.use and [(node.held, node.stolen_cores) for node in run.use.nodes] == [
        (pytest.approx(0.01), pytest.approx(2)),
        (pytest.approx(0.8), pytest.approx(0.1)),
    ]
    limited = "a CPU limit (cpu.max) throttled its processes in 80% of all periods on node2"
    stolen = "a hypervisor gave 25% of the processors to other machines on node1"
    assert doubts_from([run.use]) == [limited, stolen]
    assert doubts_by_host([run.use, None]) == {
        "node2": [f"{limited}, in 1 of 2 runs"],
        "node1": [f"{stolen}, in 1 of 2 runs"],
    }


def test_processors_network_and_packages_are_rates_over_the_window(bench: BenchDir) -> None:
    columns: dict[str, Column] = {
        "busy_s": lambda at: 2 * at,
        "foreign_s": lambda at: 0.5 * at,
        "package_j": lambda at: 300 * at,
        "net0.received": lambda at: 100 * at,
        "net0.sent": lambda at: 200 * at,
        "port0.received": lambda at: 1000 * at,
        "port0.sent": lambda at: 2000 * at,
    }
    run = sampled(
        bench, lambda node: columns, interfaces=["eth0"], ports=["mlx5_0:1"], packages=["package-0"]
    )
    node: NodeUse = run.use.nodes[0] if run.use else pytest.fail("no samples")
    assert (node.busy, node.foreign_cores) == (pytest.approx(0.25), pytest.approx(0.5))
    assert (node.received_bytes_per_s, node.sent_bytes_per_s) == (
        pytest.approx(1100),
        pytest.approx(2200),
    )
    assert {value.metric: value.number for value in run.values}["package_power"] == pytest.approx(
        300
    )
    assert {line.quantity for line in node.lines} == {"busy processors", "network, MB/s"}


def test_a_counter_that_was_set_back_has_no_rate() -> None:
    assert rate_over([(0.0, 5.0), (1.0, 7.0), (2.0, 1.0)], 0.0, 2.0) is None
    assert growth_over([(0.0, 5.0), (2.0, 1.0)], 0.0, 2.0) == 0.0
    assert mean_over([(0.0, 5.0)], 0.0, 1.0) is None and growth_over([], 0.0, 1.0) == 0.0
    assert energy_per_sample([100.0, 300.0], 800.0) == 0.5


def test_the_digest_of_the_samples_is_verified_as_that_of_every_log(bench: BenchDir) -> None:
    def after(records: list[dict[str, Any]]) -> None:
        records[0]["files"]["telemetry.jsonl"] = {
            "bytes": 3,
            "sha256": hashlib.sha256(b"abc").hexdigest(),
        }

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logs[0]["telemetry.jsonl"] = json.dumps({"schema": 1})

    result = read_run(build(bench, "r1", before, after))
    assert result.error and "telemetry.jsonl" in str(result.error)


def joules_of(watts: Callable[[float], float], until: float) -> float:
    """Return the integral of a power from 0, by steps of a millisecond."""
    return math.fsum(watts((step + 0.5) / 1000) for step in range(round(until * 1000))) / 1000


POWERS: dict[str, tuple[Callable[[float], float], float]] = {
    "constant": (lambda _: 600.0, 1e-9),
    "a ramp of 10 W/s": (lambda at: 500.0 + 10.0 * at, 2e-3),
    "a falling ramp": (lambda at: 700.0 - 10.0 * at, 2e-3),
    "a step up early": (lambda at: 400.0 if at < 7.0 else 600.0, 1e-9),
    "a step up before the end": (lambda at: 500.0 if at < 12.5 else 600.0, 1e-2),
}


@pytest.mark.parametrize("begin", [3.1, 3.4, 3.77, 4.0])
@pytest.mark.parametrize("power", POWERS)
def test_energy_is_that_of_the_window_though_the_gpu_is_idle_after_it(
    power: str, begin: float
) -> None:
    of_work, tolerance = POWERS[power]
    end = begin + 10.0
    watts: Callable[[float], float] = lambda at: of_work(at) if at < end else 100.0  # noqa: E731
    times = [1.003 * number for number in range(18)]
    true = (joules_of(watts, end) - joules_of(watts, begin)) / 10.0
    counter = [(at, joules_of(watts, at)) for at in times]
    assert rate_over(continue_to(end, counter, begin, counts=True), begin, end) == pytest.approx(
        true, rel=tolerance
    )
    readings = [(at, watts(at)) for at in times]
    mean = mean_over(continue_to(end, readings, begin, counts=False), begin, end)
    # Where a step lies between two readings is not known.
    assert mean == pytest.approx(true, rel=0.02 if "step" in power else tolerance)
