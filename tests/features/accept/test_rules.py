"""The rules of other tools in `benchmarks/rules.py`."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.rules import RULES, Rule, retested

ALIKE = [[1.0 + 0.001 * (node % 5 - 2)] * 5 for node in range(16)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.says)
def test_a_node_at_two_fifths_of_the_speed_fails_by_every_rule_alone(rule: Rule) -> None:
    speeds = [*ALIKE, [0.4] * 5]
    assert rule.failed(speeds, rule.reduced) == {16}
    assert rule.failed(speeds, median) == {16}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.says)
def test_nodes_that_differ_by_a_thousandth_fail_only_by_a_scatter_of_their_own(rule: Rule) -> None:
    assert bool(rule.failed(ALIKE, rule.reduced)) == (rule.says == "one run 1 SD off the mean")


@pytest.mark.parametrize(
    ("runs", "drained"),
    [([0.92, 1.0], True), ([0.94, 0.95], True), ([0.94, 1.0], False), ([0.97, 0.9], False)],
)
def test_a_node_is_drained_at_once_or_after_a_second_run(runs: list[float], drained: bool) -> None:
    assert (retested(runs) < 0.965) == drained


def test_one_slow_run_of_five_fails_a_rule_of_one_run_and_not_that_of_the_best() -> None:
    speeds = [*ALIKE, [0.9, 1.0, 1.0, 1.0, 1.0]]
    failed = {rule.says: rule.failed(speeds, rule.reduced) for rule in RULES}
    assert failed["one run below 95 % of a reference"] == {16}
    assert failed["the best run below 95 % of a reference"] == set()
