"""Collectives: the program under real torchrun over gloo, its lines understood, bandwidths by the
definitions of nccl-tests.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DataError
from orchestrator.features.explain.measured import newest_curve
from orchestrator.logs.parse import parse
from orchestrator.plan.folders import open_framework
from orchestrator.plan.spec import RunSpec, resolve
from orchestrator.record.rundir import BenchDir
from orchestrator.results.links.collectives import (
    METRICS,
    CollectivePoint,
    algorithm_bandwidth,
    bus_bandwidth,
    doubts,
    factor,
    list_sizes,
    points,
    values,
)
from orchestrator.results.parts.transfers import Link
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from orchestrator.results.values import Expected, values_of
from tests.support.ranks import ranks
from tests.support.run_folders import build
from tests.support.trainers import FLAT, needs, torchrun

FRAMEWORK = open_framework("collectives").framework


def spec_of(collective: str, nodes: int = 1, gpus: int = 2, **sets: Any) -> RunSpec:
    choices: dict[str, Any] = {"nodes": nodes, "gpus": gpus}
    choices |= {f"options.{name}": str(value) for name, value in sets.items()}
    return resolve(FRAMEWORK, collective, device="cpu", choices=choices)


# --- the program ----------------------------------------------------------------------------------

SMALL = {"max_bytes": 16384, "factor": 4, "size_seconds": 0.05}


PROGRAM = FLAT / "collectives.py"


def ran(folder: Path, collective: str, nproc: int, *more: str) -> tuple[list[str], RunSpec]:
    """Run the program; return what each rank printed, and the spec of that run. One is under
    torchrun, as in a lab.
    """
    needs("torch")
    flags = [
        word for key, value in SMALL.items() for word in (f"--{key.replace('_', '-')}", str(value))
    ]
    arguments = ["--collective", collective, "--device", "cpu", *flags, *more]
    started_by_torchrun = (collective, nproc) == ("allreduce", 4)
    out = (
        torchrun(arguments, folder, nproc, PROGRAM.name)
        if started_by_torchrun
        else ranks(PROGRAM, arguments, folder, nproc)
    )
    return out, spec_of(collective, gpus=nproc, **SMALL)


@pytest.mark.parametrize(("collective", "nproc", "forms"), [
    ("allreduce", 2, [True]), ("allreduce", 4, [True]), ("reduce_scatter", 2, None),
    ("all_gather", 4, [False, True]), ("broadcast", 2, [True]), ("all_to_all", 2, [False]), ("all_to_all", 3, [False]),
    ("send_recv", 2, [False]), ("send_recv", 3, [False]),
])  # fmt: skip
def test_every_size_is_measured_in_every_form_that_there_is(
    tmp_path: Path, collective: str, nproc: int, forms: list[bool] | None
) -> None:
    """Gloo has no reduce-scatter in old versions (``forms`` None: whatever it says it has)."""
    out, spec = ran(tmp_path, collective, nproc)
    said = parse(out[0].encode(), FRAMEWORK.log)
    assert (
        said.closing and said.closing["world_size"] == nproc and said.closing["backend"] == "gloo"
    )
    found = points(spec, said.readings, said.closing)
    lacking = {bool(one["in_place"]) for one in said.closing["unsupported"]}
    wanted = [form for form in (False, True) if form not in lacking] if forms is None else forms
    sizes = (
        (1008, 4080, 16368) if (collective, nproc) == ("all_to_all", 3) else (1024, 4096, 16384)
    )  # 16 bytes for each rank
    assert [(point.size_bytes, point.in_place) for point in found] == [
        (size, form) for size in sizes for form in wanted
    ]
    assert all(
        0 < point.time_s <= point.max_time_s + 1e-9 and 2 <= point.iterations <= 20
        for point in found
    )
    assert [parse(text.encode(), FRAMEWORK.log).ranks for text in out] == [
        ((rank, nproc),) for rank in range(nproc)
    ]


@pytest.mark.parametrize(("collective", "distance", "busbw"), [
    # The factors of two ranks; those of all four would be 1.5, 0.75, 0.75 and 1.
    ("allreduce", 2, 1.0), ("all_gather", 2, 0.5), ("reduce_scatter", 1, 0.5), ("send_recv", 2, 1.0),
])  # fmt: skip
def test_groups_of_ranks_make_a_call_at_once(
    tmp_path: Path, collective: str, distance: int, busbw: float
) -> None:
    """The program proves each result by the values of a group's ranks: of all ranks, or of other
    groups, they are others.
    """
    groups = {"group_ranks": 2, "group_distance": distance}
    flags = [
        word
        for name, value in groups.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    out, _ = ran(tmp_path, collective, 4, *flags, "--in-place", "both")
    spec = spec_of(collective, gpus=4, **SMALL, **groups)
    said = parse(out[0].encode(), FRAMEWORK.log)
    found = points(spec, said.readings, said.closing or {})
    assert {point.size_bytes for point in found} == {1024, 4096, 16384}
    by_metric = {value.metric: value.number for value in values(spec, found[:1])}
    assert by_metric["busbw"] == pytest.approx(busbw * by_metric["algbw"])


def test_gloo_has_no_call_into_another_buffer_and_that_is_said_not_hidden(tmp_path: Path) -> None:
    out, spec = ran(tmp_path, "allreduce", 2, "--in-place", "both")
    closing = parse(out[0].encode(), FRAMEWORK.log).closing
    assert closing and closing["remarks"] == [
        "out of place was not measured: gloo has no call from one buffer to another"
    ]
    with pytest.raises(AssertionError, match="expected at least one size in one form"):
        _with_form_out(tmp_path, spec)


def _with_form_out(folder: Path, spec: RunSpec) -> None:
    """Measure out of place alone, which leaves nothing; the analysis is what refuses it."""
    arguments = [
        "--collective",
        "allreduce",
        "--device",
        "cpu",
        "--max-bytes",
        "1024",
        "--in-place",
        "out",
    ]
    out = ranks(PROGRAM, arguments, folder, 2)
    said = parse(out[0].encode(), FRAMEWORK.log)
    try:
        points(
            replace(spec, options={**spec.options, "in_place": "out"}),
            said.readings,
            said.closing or {},
        )
    except DataError as error:
        raise AssertionError(error.message) from error


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_types_are_summed_exactly(tmp_path: Path, dtype: str) -> None:
    out, _ = ran(tmp_path, "allreduce", 3, "--dtype", dtype)
    assert out[0].count("orch collective=allreduce") == 3


@pytest.mark.parametrize(("collective", "nproc", "right", "wrong", "said"), [
    ("allreduce", 2, "dist.all_reduce(whole, group=handle)", "dist.all_reduce(whole, op=dist.ReduceOp.MAX)",
     r"allreduce, 1024 bytes, in_place=1, rank \d: element 1: expected 3, got 2"),
    # What an all-gather leaves: the first part of each rank instead of the part that is for this
    # one.
    ("all_to_all", 2, "dist.all_to_all_single(whole, source, group=handle)",
     "dist.all_gather_into_tensor(whole, source[: case.share])",
     r"all_to_all, 1024 bytes, in_place=0, rank 1, part 0: element 0: expected 128, got 0"),
    ("send_recv", 3, "ranks[(place + 1) % len(ranks)], ranks[place - 1]",
     "ranks[place - 1], ranks[(place + 1) % len(ranks)]",
     r"send_recv, 1024 bytes, in_place=0, rank \d: element 0: expected \d, got \d"),
])  # fmt: skip
def test_a_wrong_result_ends_the_run(
    tmp_path: Path, collective: str, nproc: int, right: str, wrong: str, said: str
) -> None:
    """The ranks compute something else: the check against what must come out sees it, and no line
    is printed for that size.
    """
    needs("torch")
    source = PROGRAM.with_name("collective_calls.py").read_text()
    assert source.count(right) == 1
    program = (
        tmp_path / "collectives.py"
    )  # the folder of the program comes first where Python looks
    program.write_text(PROGRAM.read_text())
    (tmp_path / "collective_calls.py").write_text(source.replace(right, wrong))
    arguments = ["--collective", collective, "--device", "cpu", "--max-bytes", "4096"]
    with pytest.raises(AssertionError, match=f"wrong result: {said}"):
        ranks(program, arguments, tmp_path, nproc)


def test_an_all_to_all_has_no_form_in_place_which_is_no_reason_for_a_note(tmp_path: Path) -> None:
    out, _ = ran(tmp_path, "all_to_all", 2)
    closing = parse(out[0].encode(), FRAMEWORK.log).closing
    assert closing and closing["unsupported"] == [
        {"in_place": 1, "why": "all_to_all is from one buffer to another"}
    ]
    assert closing["remarks"] == []


# --- what its lines say ---------------------------------------------------------------------------


def test_the_factors_are_those_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md: 2(n-1)/n, (n-1)/n, (n-1)/n, 1, (n-1)/n, and 1 for a send and a receive,
    here for 8 ranks.
    """
    assert [factor(name, 8) for name in ("all_to_all", "send_recv")] == [0.875, 1.0]
    assert [
        factor(name, 8) for name in ("allreduce", "reduce_scatter", "all_gather", "broadcast")
    ] == [1.75, 0.875, 0.875, 1.0]


@pytest.mark.parametrize(("ranks", "time_us", "algbw", "busbw"), [
    (2, 7460.2, 71.97, 71.97), (4, 4131.40, 129.95, 194.92), (8, 4145.6, 129.50, 226.63), (16, 2387.39, 224.88, 421.65),
])  # fmt: skip
def test_printed_lines_of_nccl_tests_are_reproduced(
    ranks: int, time_us: float, algbw: float, busbw: float
) -> None:
    """What all_reduce_perf printed of 512 MiB on other people's machines, in public logs."""
    point = CollectivePoint("allreduce", 536870912, False, time_s=time_us * 1e-6, iterations=20)
    assert algorithm_bandwidth(point) == pytest.approx(algbw, abs=0.011)
    assert bus_bandwidth(point, ranks) == pytest.approx(busbw, abs=0.011)


@pytest.mark.parametrize(("collective", "ranks", "asked", "sizes"), [
    ("allreduce", 3, {"min_bytes": 1000, "max_bytes": 9000, "factor": 3}, [992, 2992, 8992]),
    ("all_gather", 3, {"sizes": "1,100,1024"}, [48, 96, 1008]),
    ("reduce_scatter", 8, {"sizes": "1,64,128,256"}, [128, 256]),
    ("all_to_all", 3, {"sizes": "1,100,1024"}, [48, 96, 1008]),
    ("send_recv", 3, {"sizes": "1,100,1024"}, [16, 96, 1024]),
    ("broadcast", 64, {"min_bytes": 1024, "max_bytes": 4 << 30}, [1 << power for power in range(10, 33)]),
])  # fmt: skip
def test_sizes_are_rounded_to_16_bytes_for_each_rank(
    collective: str, ranks: int, asked: dict[str, Any], sizes: list[int]
) -> None:
    assert list_sizes(spec_of(collective, gpus=ranks, **asked)) == sizes


SPEC = spec_of("allreduce", nodes=2, gpus=2, min_bytes=1024, max_bytes=4096)


def line(
    size: int, in_place: int = 1, time_s: str = "0.000100000", **changes: str
) -> dict[str, str]:
    told = {
        "collective": "allreduce",
        "size_bytes": str(size),
        "in_place": str(in_place),
        "iterations": "20",
    }
    return told | {"time_s": time_s, "max_time_s": time_s} | changes


WHOLE = [line(size, form) for size in (1024, 2048, 4096) for form in (0, 1)]


def test_a_whole_log_is_its_points_in_order_of_size() -> None:
    found = points(SPEC, WHOLE[::-1], {})
    assert [(point.size_bytes, point.in_place) for point in found] == [
        (size, form) for size in (1024, 2048, 4096) for form in (False, True)
    ]


@pytest.mark.parametrize(("lines", "observed", "message"), [
    (WHOLE[:-1], {}, "4096 bytes in place: expected a line, the log has none; it has 5 of 6"),
    (WHOLE[1:], {}, "1024 bytes out of place: expected a line"),
    ([*WHOLE, WHOLE[0]], {}, "1024 bytes out of place: expected one line, got another"),
    ([*WHOLE, line(8192)], {}, "8192 bytes in place: expected planned sizes only"),
    ([*WHOLE[:-1], line(4096, collective="broadcast")], {}, "expected lines of allreduce, got one of 'broadcast'"),
    ([*WHOLE[:-1], line(4096, time_s="0.0")], {}, "4096 bytes: expected times above 0"),
    ([*WHOLE[:-1], line(4096, time_s="1e9")], {}, "expected size, iterations and times"),
    ([*WHOLE[:-1], line(4096, max_time_s="0.000050000")], {}, "the slowest rank's the longest"),
    (WHOLE, {"left_out_bytes": "all"}, "left_out_bytes: expected a list of whole numbers"),
    (WHOLE, {"unsupported": [{"in_place": 2}]}, "unsupported: expected a list of forms"),
    ([], {"unsupported": [{"in_place": 0}, {"in_place": 1}]}, "the program measured none"),
])  # fmt: skip
def test_a_log_that_is_not_whole_is_an_error_and_no_smaller_table(
    lines: list[dict[str, str]], observed: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        points(SPEC, lines, observed)


def test_what_the_program_left_out_for_a_reason_is_not_missed() -> None:
    observed = {"left_out_bytes": [4096], "unsupported": [{"in_place": 0, "why": "gloo"}]}
    found = points(SPEC, [line(1024), line(2048)], observed)
    assert [point.size_bytes for point in found] == [1024, 2048]


@given(
    st.binary(max_size=400)
    | st.text(max_size=200).map(lambda text: f"orch collective={text}".encode())
)
def test_no_bytes_bring_the_reader_down(noise: bytes) -> None:
    """Damage makes fewer lines or other ones; then the run is an error, never another number of
    rows.
    """
    times = "iterations=20 time_s=0.1 max_time_s=0.1"
    whole = "".join(
        f"orch collective=allreduce size_bytes={one['size_bytes']} in_place={one['in_place']} {times}\n"
        for one in WHOLE
    ).encode()
    for place in (0, len(whole) // 2, len(whole)):
        said = parse(whole[:place] + noise + b"\n" + whole[place:], FRAMEWORK.log)
        try:
            found = points(SPEC, said.readings, said.closing or {})
        except DataError:
            continue
        assert len(found) == 6


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=3), st.integers(2, 64))
def test_values_are_the_bandwidths_and_the_time_of_each_size(
    times: list[float], ranks: int
) -> None:
    read = [
        CollectivePoint("allreduce", 1 << (20 + n), True, time_s, 20, time_s)
        for n, time_s in enumerate(times)
    ]
    found = {
        (value.metric, value.key): value.number
        for value in values(spec_of("allreduce", gpus=ranks), read)
    }
    assert set(found) == {
        (metric.name, (point.size_bytes, "yes")) for metric in METRICS for point in read
    }
    for point in read:
        algbw = point.size_bytes / point.time_s / 1e9
        assert found["algbw", (point.size_bytes, "yes")] == pytest.approx(algbw)
        assert found["busbw", (point.size_bytes, "yes")] == pytest.approx(
            algbw * 2 * (ranks - 1) / ranks
        )
        assert found["time", (point.size_bytes, "yes")] == pytest.approx(point.time_s * 1e6)


def test_a_slow_rank_and_few_calls_are_doubts_about_the_size_that_has_them() -> None:
    both = [
        CollectivePoint("allreduce", 1000000, form, 0.001 * (1 + form), 20, 0.001 * (1 + form))
        for form in (False, True)
    ]
    more = CollectivePoint("allreduce", 2000000, True, 0.004, 2, 0.006)
    repeats = [(1, [*both, more])]
    assert doubts(repeats, (1000000, "no")) == doubts(repeats, (1000000, "yes")) == []
    assert doubts(repeats, (2000000, "yes")) == [
        "one rank took more than 10% longer than the mean of all",
        "fewer than 5 calls were timed in some runs, because they take long",
    ]


# --- runs, benches and the curve that others need -------------------------------------------------


def measured(times: dict[int, str], dtype: str = "fp32", **changes: Any) -> Any:
    """Return what makes a run of `tests.support.run_folders.build` one that measured an all-reduce
    in place.
    """

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        options = {"sizes": ",".join(map(str, times)), "in_place": "in"}
        planned["spec"] |= {
            "framework": "collectives",
            "model": "allreduce",
            "batch_size": 1,
            "loader": "none",
            "steps": 25,
        }
        planned["spec"] |= {"warmup_steps": 5, "dtype": dtype, "options": options} | changes
        log = {**planned["framework"]["log"], "patterns": [], "readings": FRAMEWORK.log.readings}
        planned["framework"] |= {"measures": "collectives", "log": log}
        lines = [text for text in logs[0]["rank-0.out"].splitlines() if "rank=" in text]
        lines += [f"orch collective=allreduce size_bytes={size} in_place=1 iterations=20 time_s={time} max_time_s={time}"
                  for size, time in times.items()]  # fmt: skip
        lines.append(
            "orch done " + json.dumps({"world_size": 4, "ranks": [0, 1, 2, 3], "simulated": False})
        )
        logs[0]["rank-0.out"] = "\n".join(lines) + "\n"

    return change


def bench(root: Path, name: str, changes: list[Any]) -> BenchDir:
    record = {
        "bench_id": name,
        "created": "2025-01-01",
        "runs": [f"{name}-{n}" for n in range(1, len(changes) + 1)],
    }
    made = BenchDir.create(root, record)
    for repeat, change in enumerate(changes, start=1):
        build(made, f"{name}-{repeat}", change, repeat=repeat)
    return made


def test_a_bench_of_runs_becomes_one_table_with_intervals(tmp_path: Path) -> None:
    times = ["0.000010000", "0.000011000", "0.000012100"]
    made = bench(tmp_path, "b", [measured({4096: time}) for time in times])
    summary = summarize([read_run(run) for run in made.runs()])
    assert (summary.sheets, summary.notes) == ((), ())
    busbw, algbw, time = summary.rows
    assert [(row.metric, row.unit, row.better, row.primary) for row in summary.rows] == [
        ("busbw", "GB/s", "higher", True), ("algbw", "GB/s", "higher", False), ("time", "us", "lower", False),
    ]  # fmt: skip
    assert all((row.n, row.failed, row.shape, row.key) == (3, 0, "2n2g", {"size_bytes": 4096, "in_place": "yes"})
               for row in summary.rows)  # fmt: skip
    values = (
        pytest.approx(11.0),
        pytest.approx(4096 / 11e-6 / 1e9),
        pytest.approx(1.5 * 4096 / 11e-6 / 1e9),
    )
    assert (time.value, algbw.value, busbw.value) == values
    # Student's t of two degrees of freedom on logarithms that are ln 1.1 apart: exp(± 4.30265 · ln
    # 1.1 / √3).
    assert busbw.interval and busbw.value
    assert busbw.interval.low == pytest.approx(busbw.value * 1.1 ** (-4.302653 / 3**0.5))
    assert busbw.interval.high == pytest.approx(busbw.value * 1.1 ** (4.302653 / 3**0.5))


def test_the_newest_curve_is_of_this_shape_on_these_hosts(tmp_path: Path) -> None:
    bench(tmp_path, "20250101", [measured({1024: "0.1", 2048: "0.2"})])
    bench(
        tmp_path,
        "20250102",
        [measured({1024: "0.3", 2048: "0.5"}), measured({1024: "0.4", 2048: "0.7"})],
    )
    bench(tmp_path, "20250103", [lambda planned, logs: None])
    damaged = bench(tmp_path, "20250104", [measured({1024: "0.9"})])
    (damaged.run("20250104-1").path / "logs/node1/rank-0.out").write_text("")
    found = newest_curve(tmp_path, "2n2g", {"node2": {}, "node1": {}})
    assert (
        found
        and found.bench_id == "20250102"
        and found.times_s == {1024: pytest.approx(0.35), 2048: pytest.approx(0.6)}
    )
    assert (found.dtype, found.in_place, found.repeats) == ("fp32", True, 2)
    assert newest_curve(tmp_path, "1n4g", {"node1": {}, "node2": {}}) is None
    assert newest_curve(tmp_path, "2n2g", {"node1": {}, "node3": {}}) is None
    assert (
        newest_curve(tmp_path, "2n2g", {"node1": {}, "node2": {}}, link=Link("all_gather")) is None
    )
    assert (
        newest_curve(tmp_path, "2n2g", {"node1": {}, "node2": {}}, link=Link("allreduce", 2))
        is None
    )
    assert newest_curve(tmp_path, "2n2g", {"node1": {}, "node2": {}}, device="cpu") is None


def test_numbers_are_those_that_nccl_tests_prints_for_the_same_times() -> None:
    """Of a log of all_reduce_perf with two ranks: its printed bandwidths, to the digits that it
    prints.
    """
    nccl_tests = open_framework("nccl_tests").framework
    lines = parse((Path(nccl_tests.folder) / "sample.log").read_bytes(), nccl_tests.log).readings
    theirs = {(value.metric, value.key[0]): value.number
              for value in values_of(nccl_tests.log.metrics, {("node1", "node.out"): lines}, Expected(1, 2))}  # fmt: skip
    sizes = sorted({size for _, size in theirs})
    assert len(sizes) == 4
    for form, suffix in ((False, ""), (True, "_in_place")):
        for size in sizes:
            point = CollectivePoint(
                "allreduce", int(size), form, theirs[f"time{suffix}", size] / 1e6, 20
            )
            assert algorithm_bandwidth(point) == pytest.approx(
                theirs[f"algbw{suffix}", size], abs=0.0051
            )
            assert bus_bandwidth(point, world_size=2) == pytest.approx(
                theirs[f"busbw{suffix}", size], abs=0.0051
            )
