"""Values of metrics from the lines of logs: several lines, ranks and nodes, and everything that may
be missing or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DataError
from orchestrator.logs.metrics import Metric
from orchestrator.logs.numbers import NumberForm
from orchestrator.results.values import Expected, Value, values_of

Lines = Sequence[Mapping[str, str]]
TWO_NODES = Expected(nodes=2, ranks=4)


def logs_of_ranks(rates: Sequence[str], **more: str) -> dict[tuple[str, str], Lines]:
    """Return a log for each of four ranks on two nodes, with one line each; an empty text has none."""
    names = [
        ("node1", "rank-0.out"),
        ("node1", "rank-1.out"),
        ("node2", "rank-2.out"),
        ("node2", "rank-3.out"),
    ]
    return {
        name: [{"rate": rate, **more}] if rate else []
        for name, rate in zip(names, rates, strict=True)
    }


def numbers(values: Sequence[Value]) -> dict[tuple[Any, ...], float]:
    return {value.key: value.number for value in values}


@pytest.mark.parametrize(
    ("across", "expected"), [("sum", 10.0), ("mean", 2.5), ("min", 1.0), ("max", 4.0)]
)
def test_values_of_ranks_become_one(across: str, expected: float) -> None:
    metric = Metric("rate", "GB/s", scope="rank", across=across)
    assert values_of([metric], logs_of_ranks(["1", "2", "3", "4"]), TWO_NODES) == (
        Value("rate", (), expected),
    )


def test_values_of_ranks_may_stay_apart() -> None:
    metric = Metric("rate", "GB/s", scope="rank", across="each", keys=("size",))
    found = numbers(values_of([metric], logs_of_ranks(["1", "2", "3", "4"], size="8"), TWO_NODES))
    assert found == {(8, 0): 1.0, (8, 1): 2.0, (8, 2): 3.0, (8, 3): 4.0}


def test_a_line_may_say_of_which_rank_it_is() -> None:
    metric = Metric("rate", "GB/s", scope="rank", across="sum")
    lines = [{"rate": str(rank + 1), "rank": str(rank)} for rank in range(4)]
    assert numbers(values_of([metric], {("node1", "node.out"): lines}, TWO_NODES)) == {(): 10.0}


def test_several_lines_of_a_node_are_combined_before_the_nodes_are() -> None:
    metric = Metric("rate", "GB/s", scope="node", across="sum", over="mean")
    by_log = {
        ("node1", "node.out"): [{"rate": "1"}, {"rate": "3"}],
        ("node2", "node.out"): [{"rate": "10"}],
    }
    assert numbers(values_of([metric], by_log, TWO_NODES)) == {(): 12.0}


@pytest.mark.parametrize("rates", [["1", "2", "3", ""], ["", "2", "3", "4"]])
def test_a_rank_without_a_value_is_an_error_and_no_smaller_sum(rates: list[str]) -> None:
    metric = Metric("rate", "GB/s", scope="rank", across="sum")
    with pytest.raises(DataError, match="expected rate of 4 ranks, got it of 3") as caught:
        values_of([metric], logs_of_ranks(rates), TWO_NODES)
    assert caught.value.kind == "result_invalid" and "log.nodes must be every" in caught.value.hint


def test_a_rank_without_one_of_the_keys_is_named() -> None:
    metric = Metric("rate", "GB/s", scope="rank", across="mean", keys=("size",))
    by_log = {
        name: [*lines, {"rate": "5", "size": "16"}]
        for name, lines in logs_of_ranks(["1"] * 4, size="8").items()
    }
    by_log["node2", "rank-3.out"] = by_log["node2", "rank-3.out"][:1]
    with pytest.raises(
        DataError, match="expected rate at size=16 of 4 ranks, got it of 3; none of rank 3"
    ):
        values_of([metric], by_log, TWO_NODES)


def test_of_a_metric_of_the_run_the_first_log_counts() -> None:
    """Programs whose ranks all print the same: a sum over them would count it several times."""
    assert numbers(
        values_of([Metric("rate", "GB/s")], logs_of_ranks(["7", "7", "7", "7"]), TWO_NODES)
    ) == {(): 7.0}


@pytest.mark.parametrize("rates", [["7", "7", "7", "8"], ["7", "", "9", "7"]])
def test_logs_that_print_different_values_of_the_run_are_about_something_else(
    rates: list[str],
) -> None:
    with pytest.raises(
        DataError,
        match="expected the same rate in all logs, got 7 in node1/rank-0.out and [89] in node2/rank-",
    ) as caught:
        values_of([Metric("rate", "GB/s")], logs_of_ranks(rates), TWO_NODES)
    assert caught.value.kind == "log_unmatched" and "scope: and across:" in caught.value.hint


def test_a_second_line_is_an_error_unless_the_metric_says_what_becomes_of_several() -> None:
    by_log = {("node1", "node.out"): [{"rate": "1", "size": "8"}, {"rate": "2", "size": "8"}]}
    with pytest.raises(
        DataError, match="expected one line with rate at size=8, got another"
    ) as caught:
        values_of([Metric("rate", "GB/s", keys=("size",))], by_log, TWO_NODES)
    assert caught.value.kind == "log_unmatched" and "over:" in caught.value.hint
    assert numbers(
        values_of([Metric("rate", "GB/s", keys=("size",), over="last")], by_log, TWO_NODES)
    ) == {(8,): 2.0}


def test_a_factor_gives_the_unit_and_another_group_the_value() -> None:
    metric = Metric("bandwidth", "GB/s", group="rate", factor=0.001)
    assert numbers(values_of([metric], {("node1", "node.out"): [{"rate": "2500"}]}, TWO_NODES)) == {
        (): pytest.approx(2.5)
    }


def test_lines_of_steps_count_within_the_window_only() -> None:
    lines = [{"step": str(step), "rate": str(10 * step)} for step in range(8)]
    window = Expected(nodes=1, ranks=1, window=(3, 6), shift=1)  # the program counts from 0
    metric = Metric("rate", "tokens/s", over="mean")
    assert numbers(values_of([metric], {("node1", "rank-0.out"): lines}, window)) == {(): 35.0}
    with pytest.raises(DataError, match=r"step 'x' is not a number"):
        values_of([metric], {("node1", "rank-0.out"): [{"step": "x", "rate": "1"}]}, window)


@pytest.mark.parametrize(
    ("over", "expected"), [("sum", 60.0), ("mean", 20.0), ("min", 10.0), ("last", 30.0)]
)
def test_lines_of_an_attempt_before_the_last_complete_one_do_not_count(
    over: str, expected: float
) -> None:
    metric = Metric("rate", "GB/s", keys=("layer",), over=over)
    first = [
        {"step": str(step), "layer": layer, "rate": "1"}
        for step in (4, 5, 6)
        for layer in ("a", "b")
    ]
    last = [
        {"step": str(step), "layer": layer, "rate": str(10 * (step - 4))}
        for step in range(1, 8)
        for layer in ("a", "b")
    ]
    expect = Expected(nodes=1, ranks=1, window=(5, 7))
    assert numbers(values_of([metric], {("node1", "rank-0.out"): [*first, *last]}, expect)) == {
        ("a",): expected,
        ("b",): expected,
    }


def test_ranks_that_print_a_step_into_one_log_in_any_order_are_no_attempts() -> None:
    metric = Metric("rate", "GB/s", over="sum")
    lines = [{"step": step, "rate": "1"} for step in ("1", "2", "1", "2", "3", "3")]
    assert numbers(values_of([metric], {("node1", "node.out"): lines}, Expected(1, 2, (1, 3)))) == {
        (): 6.0
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7,512", "rate '7,512' is not a number"),
        ("nan", "expected a finite rate"),
        ("1e999", "finite"),
    ],
)
def test_what_is_no_finite_number_is_an_error(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        values_of([Metric("rate", "GB/s")], {("node1", "node.out"): [{"rate": text}]}, TWO_NODES)
    assert (caught.value.host, caught.value.where) == ("node1", "node.out")


def test_metrics_without_a_line_are_left_out() -> None:
    metrics = [Metric("rate", "GB/s"), Metric("other", "s")]
    assert values_of(metrics, {("node1", "node.out"): [{"rate": "1"}]}, TWO_NODES) == (
        Value("rate", (), 1.0),
    )
    assert values_of(metrics, {}, TWO_NODES) == ()


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 99)),
        st.floats(-1e9, 1e9),
        max_size=12,
    )
)
def test_every_key_has_its_own_value_whatever_the_order(
    rates: dict[tuple[str, int], float],
) -> None:
    lines = [
        {"rate": repr(rate), "op": op, "size": str(size)} for (op, size), rate in rates.items()
    ]
    metric = Metric("rate", "GB/s", keys=("op", "size"))
    for order in (lines, lines[::-1]):
        assert numbers(values_of([metric], {("node1", "node.out"): order}, TWO_NODES)) == rates


def test_local_ranks_of_two_nodes_are_different_ranks() -> None:
    metric = Metric("rate", "GB/s", scope="rank", across="sum")
    lines = [{"rate": "1", "local_rank": "0"}, {"rate": "2", "local_rank": "1"}]
    by_log = {("node1", "node.out"): lines, ("node2", "node.out"): lines}
    assert numbers(values_of([metric], by_log, TWO_NODES)) == {(): 6.0}


@pytest.mark.parametrize(
    ("texts", "over", "resolution"),
    [
        (["106K"], "only", 1000.0),
        (["106K", "107K"] * 2, "mean", 500.0),
        (["106K"] * 4, "mean", 1000.0),
        (["9.5"], "last", 0.1),
        (["9.5", "12", "12"], "max", 1.0),
        (["9.5", "9", "12.0"], "median", 0.1),
    ],
)
def test_a_value_has_the_resolution_of_the_digits_it_was_computed_from(
    texts: list[str], over: str, resolution: float
) -> None:
    metric = Metric("tps", "tokens/s", over=over)
    expected = Expected(1, 1, form=NumberForm(suffixes={"K": 1000}))
    (value,) = values_of(
        [metric], {("node1", "rank-0.out"): [{"tps": text} for text in texts]}, expected
    )
    assert value.resolution == pytest.approx(resolution)
