"""What a log says of itself: verdicts, facts, lists of ranks, headers with units, and rows that
contradict themselves.
"""

from __future__ import annotations

import doctest
import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar
from orchestrator.logs.grammar import Agreement, Header
from orchestrator.logs.parse import Parsed, parse
from orchestrator.plan.folders import open_framework
from orchestrator.results.log_checks import verify_statements

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"

ROWS = r"^(?P<size>[0-9]+) +(?P<us>[0-9.]+) +(?P<rate>[0-9.]+)$"
RATE = Agreement("rate", of=("size",), over=("us",), factor=0.001)
UNITS = (Header("^size +us +GB/s$"), Header("^size +ms +GB/s$", {"us": 1000}))


@pytest.mark.parametrize(
    "module",
    [
        "logs.agreements",
        "logs.statements",
        "logs.left_out",
        "logs.micro_batches",
        "results.log_checks",
    ]
    + [f"results.numbers.{name}" for name in ("cumulative", "sampled")],
)
def test_the_examples_hold(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"orchestrator.{module}")).failed == 0


def table(
    *lines: str, headers: tuple[Header, ...] = (), agreements: tuple[Agreement, ...] = ()
) -> Parsed:
    grammar = LogGrammar(("node.out",), readings=(ROWS,), headers=headers, agreements=agreements)
    return parse("".join(f"{line}\n" for line in lines).encode(), grammar)


def test_rows_are_in_the_unit_of_the_header_above_them() -> None:
    parsed = table("size ms GB/s", "1048576 0.163 6.43", headers=UNITS, agreements=(RATE,))

    assert (parsed.readings[0]["us"], parsed.void) == ("163", ())


def test_a_scaled_number_has_no_digits_that_were_not_printed() -> None:
    parsed = table(
        "size GB/s", "65536 1.0 10874.66", headers=(Header("^size GB/s$", {"rate": 0.008388608}),)
    )

    assert parsed.readings[0]["rate"] == "91.22326"


def test_a_later_header_counts_for_the_rows_below_it() -> None:
    parsed = table("size ms GB/s", "1000 0.5 2.0", "size us GB/s", "1000 500 2.0", headers=UNITS)

    assert [row["us"] for row in parsed.readings] == ["500", "500"]


def test_a_row_without_a_header_has_no_unit() -> None:
    parsed = table("1048576 163 6.43", headers=UNITS)

    with pytest.raises(
        DataError, match="no header of log.headers stands above the row '1048576 163 6.43'"
    ):
        verify_statements(parsed, {})


def test_a_line_that_gives_a_number_says_no_unit() -> None:
    numbers = Header("^steps: (?P<steps>[0-9]+)$")
    rows = ("steps: 8", "1048576 163 6.43")

    assert table(*rows, headers=(numbers,)).void == ()
    assert "so that its unit is not known" in table(*rows, headers=(numbers, *UNITS)).void[0]


def test_a_row_that_agrees_with_itself_needs_no_header() -> None:
    assert table("1048576 163.1 6.43", headers=UNITS, agreements=(RATE,)).void == ()


def test_a_bound_says_no_unit() -> None:
    """A latency in cycles is below its maximum, too."""
    bound = Agreement("rate", of=("us",), at="most")
    parsed = table("size cycles GB/s", "1000 163.0 6.43", headers=UNITS, agreements=(bound,))

    assert "its unit is not known" in parsed.void[0]


@pytest.mark.parametrize("number", ["nan", "-nan", "inf", "Infinity"])
def test_a_result_that_is_no_finite_number_voids_a_log(number: str) -> None:
    parsed = table("1048576 163.0 6.43", f"2097152 163.0 {number}", "INFO: no nan here")

    assert parsed.void == (f"expected finite numbers, got '2097152 163.0 {number}'",)


@pytest.mark.parametrize(
    ("row", "agrees"), [("1000000 500 2.0", True), ("1000000 0.5 2.0", False), ("999 3 0.3", True)]
)
def test_a_row_may_differ_from_itself_by_its_digits_only(row: str, agrees: bool) -> None:
    assert (table(row, agreements=(RATE,)).void == ()) is agrees


def refusal(parsed: Parsed, sizes: dict[str, object]) -> str:
    try:
        verify_statements(parsed, sizes)
    except DataError as error:
        return error.message
    return ""


@pytest.mark.parametrize("rate", ["2.0", "1.5", "1.0"])
def test_of_several_agreements_for_one_value_one_has_to_hold(rate: str) -> None:
    shared = replace(RATE, of=("size", "world_size-1"), over=("us", "world_size"))
    parsed = table(f"1000000 500 {rate}", agreements=(RATE, shared))

    assert bool(refusal(parsed, {"world_size": 4})) is (rate == "1.0")


def test_an_agreement_without_one_of_its_numbers_says_nothing() -> None:
    shared = replace(RATE, of=("size", "world_size-1"), over=("us", "world_size"))

    assert not refusal(table("1000000 500 9.0", agreements=(shared,)), {})


def test_an_agreement_may_be_about_some_models() -> None:
    parsed = table("1000000 500 9.0", agreements=(replace(RATE, models=("copy",)),))

    assert refusal(parsed, {"model": "copy"}) and not refusal(parsed, {"model": "add"})


def test_a_row_may_depend_on_a_line_below_it() -> None:
    later = (Header("^size us GB/s$"), Header("^twice (?P<scale>[0-9]+)$"))
    rate = replace(RATE, of=("size", "scale"))
    parsed = table("size us GB/s", "1000000 500 2.0", "twice 2", headers=later, agreements=(rate,))

    assert "rate is 2, but size and scale and us give 4" in refusal(parsed, {})


def test_beside_steps_a_line_without_a_metric_is_only_compared_with_itself() -> None:
    steps = "^step (?P<step>[0-9]+) (?P<step_time_s>[0-9.]+)$"
    grammar = LogGrammar(("node.out",), (steps,), readings=(ROWS,), agreements=(RATE,))
    parsed = parse(b"step 1 0.5\n1000000 500 9.0\n", grammar)

    assert parsed.readings == () and "rate is 9, but size and us give 2" in refusal(parsed, {})


def test_a_verdict_voids_a_log_with_results_and_is_quoted() -> None:
    grammar = LogGrammar(("node.out",), readings=(ROWS,), refuse=("^WRONG",))
    parsed = parse(b"1 2 3\nWRONG in 4 places\n", grammar)

    with pytest.raises(DataError, match="the program says 'WRONG in 4 places'"):
        verify_statements(parsed, {})


@pytest.mark.parametrize(
    ("log", "is_void"), [(b"1 2 3\n", True), (b"1 2 3\nresults are right\n", False), (b"\n", False)]
)
def test_a_log_with_results_needs_the_line_that_confirms_them(log: bytes, is_void: bool) -> None:
    parsed = parse(
        log, LogGrammar(("node.out",), readings=(ROWS,), confirm=("^results are right$",))
    )

    assert bool(parsed.void) is is_void


@pytest.mark.parametrize(
    "folder", ["nccl_tests", "perftest_bw", "perftest_lat", "stream", "hpl", "hpcc", "fio"]
)
def test_a_log_that_is_cut_at_any_line_has_no_result(folder: str) -> None:
    lines = (TEMPLATES / folder / "sample.log").read_bytes().splitlines(keepends=True)
    grammar = open_framework(folder).framework.log
    logs = [parse(b"".join(lines[:count]), grammar) for count in range(len(lines) + 1)]

    complete = next(
        count
        for count, log in enumerate(logs)
        if log.readings == logs[-1].readings and not log.void
    )
    assert logs[-1].readings
    assert all(not log.readings or log.void for log in logs[:complete])
    assert not any(log.void for log in logs[complete:])


def test_an_end_counts_behind_the_last_row_and_without_a_line_end() -> None:
    grammar = LogGrammar((), readings=(r"^(?P<size>\d+) ",), end="^---")
    void = "no line of log.end, '^---', follows the last of them: the log is cut, or its program did not end"
    assert parse(b"---\n4 x\n8 x\n", grammar).void == (void,)
    assert parse(b"4 x\n---\n8 x\n", grammar).void == (void,)
    assert parse(b"---\n4 x\n---", grammar).void == ()
    assert parse(b"nothing\n", grammar).void == ()


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([0, 0], "got 2 of rank 0, none of rank 1: 2 programs that did not find each other"),
        ([0], "got none of rank 1"),
        ([0, 1, 2], "got one of rank 2"),
        ([0, 1, 0, 1], "got 2 of rank 0, 2 of rank 1[.] it holds lines of several runs"),
        ([0, 0, 1], "got 2 of rank 0[.] it holds lines of several runs"),
        ([0, 0, 0], "got 3 of rank 0, none of rank 1[.] it holds lines of several runs"),
    ],
)
def test_a_list_has_each_rank_of_the_run_once(ranks: list[int], said: str) -> None:
    log = "".join(f"# rank {rank} on a\n" for rank in ranks).encode()
    parsed = parse(
        log, LogGrammar(("node.out",), readings=(ROWS,), rank_list="^# rank (?P<rank>[0-9]+) on ")
    )

    with pytest.raises(DataError, match=said):
        verify_statements(parsed, {"world_size": 2})


def test_a_list_that_is_right_and_a_run_of_unknown_size_pass() -> None:
    grammar = LogGrammar(("node.out",), readings=(ROWS,), rank_list="^# rank (?P<rank>[0-9]+) on ")
    parsed = parse(b"# rank 1 on b\n# rank 0 on a\n", grammar)

    verify_statements(parsed, {"world_size": 2})
    verify_statements(parsed, {})


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ("a 0, a 1, b 0, b 1", ""),
        ("a 0, a 1, a 2, a 3", "expected 2 hosts of 2 ranks in the list of ranks, got 4 on a"),
        ("a 0, b 0, c 0, d 0", "got 1 on a, 1 on b, 1 on c and 1 more hosts"),
        ("a 0, a 1, a 2, b 0", "got 3 on a, 1 on b"),
        # Containers of one name, and ranks that see one device each.
        ("a 0, a 1, a 0, a 1", ""),
        ("a 0, a 0, b 0, b 0", ""),
    ],
)
def test_a_list_has_the_ranks_of_each_host(places: str, said: str) -> None:
    log = "".join(f"# rank {rank} on {place}\n" for rank, place in enumerate(places.split(", ")))
    listed = r"^# rank (?P<rank>[0-9]+) on (?P<host>\S+) (?P<device>[0-9]+)$"
    parsed = parse(log.encode(), LogGrammar(("node.out",), readings=(ROWS,), rank_list=listed))

    assert said in refusal(parsed, {"nodes": 2, "gpus": 2, "world_size": 4})


def test_a_fact_may_be_a_product_of_several_numbers() -> None:
    mesh = "pp=(?P<times>[0-9]+) dp=(?P<world_size>[0-9]+)(?: tp=(?P<times_2>[0-9]+))?"
    parsed = parse(b"pp=2 dp=4 tp=3\npp=2 dp=12\n", LogGrammar((), facts=(mesh,)))

    assert list(parsed.facts["world_size"]) == [24]


def test_all_facts_of_another_run_are_said() -> None:
    facts = ("^Model: (?P<model>\\S+)$", "^Batch: (?P<batch_size>[0-9]+)$")
    parsed = parse(b"Model: VGG16\nBatch: 8\n", LogGrammar((), facts=facts))

    assert refusal(parsed, {"model": "vgg16", "batch_size": 8}) == ""
    said = refusal(parsed, {"model": "resnet50", "batch_size": 4})
    assert "expected model resnet50, the log says VGG16: 'Model: VGG16'; expected batch" in said


def test_facts_agree_with_the_run_and_with_each_other() -> None:
    grammar = LogGrammar(
        ("node.out",), facts=(r"^batch (?P<batch_size>[0-9,]+)",), readings=(ROWS,)
    )

    verify_statements(parse(b"batch 1,024\nbatch 1,024\n", grammar), {"batch_size": 1024})
    with pytest.raises(
        DataError, match="expected batch_size 512, the log says 1024: 'batch 1,024'"
    ):
        verify_statements(parse(b"batch 1,024\n", grammar), {"batch_size": 512})
    with pytest.raises(DataError, match="expected one batch_size, the log says 1024 and 512"):
        verify_statements(parse(b"batch 1,024\nbatch 512\n", grammar), {})


def test_rows_that_another_line_has_broken_are_counted() -> None:
    parsed = parse(
        b"Copy:  83539.9  0.0159\nCopy:  8host:1 NCCL INFO ring\nother\nx: Copy:  1.5  0\n",
        LogGrammar(("node.out",), readings=(r"^Copy: +(?P<rate>[0-9.]+) +[0-9.]+$",)),
    )

    assert parsed.warnings == (
        "2 lines begin like those of log.readings[0] and were left out: the first is 'Copy: 8host:1 NCCL INFO ring'",
    )


def test_step_lines_that_are_broken_are_counted_in_blocks_too() -> None:
    log = (
        b"".join(b"iter %d: loss 2.0, time 5 ms\n" % step for step in range(200))
        + b"iter 200: loss 2.NCCL INFO\n"
    )
    grammar = LogGrammar(
        ("node.out",),
        (r"iter (?P<step>[0-9]+): loss (?P<loss>[0-9.]+), time (?P<step_time_s>[0-9.]+) ms",),
    )

    parsed = parse(log, grammar)

    assert len(parsed.samples) == 200
    assert parsed.warnings == (
        "1 line begins like those of log.patterns[0] and was left out: 'iter 200: loss 2.NCCL INFO'",
    )


@pytest.mark.parametrize("steps", [range(1, 161), range(4, 161, 4)])
def test_micro_batches_are_parts_of_steps(steps: range) -> None:
    log = "".join(f"iter {step} in 0.25 s at {step}\n" for step in steps).encode()
    pattern = r"iter (?P<step>[0-9]+) in (?P<step_time_s>[0-9.]+) s at (?P<timestamp>[0-9]+)$"
    parsed = parse(log, LogGrammar(("node.out",), (pattern,), micro_batches=4))

    assert [sample.step for sample in parsed.samples] == list(range(1, 41))
    assert {sample.step_time_s for sample in parsed.samples} == {1.0}
    assert [sample.timestamp for sample in parsed.samples] == list(range(4, 161, 4))
