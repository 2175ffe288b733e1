"""Lists that are combined into configurations, entries that extend, add or remove some, and a
command line that wins.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.matrix import axis, combine, names_of

FRUIT, ANIMAL = axis("fruit", ["apple", "pear"]), axis("animal", ["cat", "dog"])


@given(
    st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(0, 9), min_size=1, max_size=4))
)
def test_every_combination_is_made_once(values: dict[str, list[int]]) -> None:
    axes = [axis(name, several) for name, several in values.items()]
    count = 1
    for several in values.values():
        count *= len(set(several))
    for made in (combine(axes, [], [], []), combine([], axes, [], [])):
        assert len({tuple(sorted(one.items())) for one in made}) == len(made) == count
        assert all(set(one) == set(values) for one in made)
    assert names_of(axes) == set(values)


def test_the_last_list_varies_fastest_and_an_axis_may_have_two_names() -> None:
    shapes = ({"nodes": 1, "gpus": 1}, {"nodes": 4, "gpus": 8})
    assert combine([], [axis("dtype", ["fp32", "fp16"]), shapes], [], []) == [
        {"dtype": "fp32", "nodes": 1, "gpus": 1}, {"dtype": "fp32", "nodes": 4, "gpus": 8},
        {"dtype": "fp16", "nodes": 1, "gpus": 1}, {"dtype": "fp16", "nodes": 4, "gpus": 8},
    ]  # fmt: skip


def test_entries_extend_and_add_as_in_the_documentation_of_github_actions() -> None:
    # "Workflow syntax for GitHub Actions", jobs.<job_id>.strategy.matrix.include, its own example.
    include = [
        {"color": "green"}, {"color": "pink", "animal": "cat"}, {"fruit": "apple", "shape": "circle"}, {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]  # fmt: skip
    assert combine([FRUIT, ANIMAL], [], include, []) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_an_entry_of_exclude_removes_what_has_all_its_values_and_before_include() -> None:
    assert combine([FRUIT, ANIMAL], [], [], [{"fruit": "pear"}]) == combine(
        [axis("fruit", ["apple"]), ANIMAL], [], [], []
    )
    assert combine([FRUIT], [], [{"fruit": "pear", "color": "green"}], [{"fruit": "pear"}]) == [
        {"fruit": "apple"}, {"fruit": "pear", "color": "green"},
    ]  # fmt: skip
    assert combine([FRUIT], [], [], [{"fruit": "apple"}, {"fruit": "pear"}]) == []


def test_without_lists_each_entry_is_a_configuration() -> None:
    include = [{"fruit": "apple"}, {"animal": "cat"}]
    assert combine([], [], include, []) == include
    assert combine([], [], [], []) == [{}]
    assert combine([], [axis("fruit", ["pear"])], include, []) == [
        {"fruit": "pear"},
        {"animal": "cat", "fruit": "pear"},
    ]


@pytest.mark.parametrize(
    ("given_lists", "expected"),
    [
        ([axis("fruit", ["pear", "fig"])], [{"fruit": "pear", "size": 1}, {"fruit": "fig"}]),
        ([axis("fruit", ["fig"])], [{"fruit": "fig"}]),
        ([axis("size", [7])], [{"fruit": "apple", "size": 7}, {"fruit": "pear", "size": 7}]),
        ([axis("sort", ["a", "b"])], [
            {"fruit": "apple", "sort": "a"}, {"fruit": "apple", "sort": "b"},
            {"fruit": "pear", "size": 1, "sort": "a"}, {"fruit": "pear", "size": 1, "sort": "b"},
        ]),
    ],
)  # fmt: skip
def test_lists_of_the_command_line_replace_those_of_the_file_and_win_against_entries(
    given_lists: list[Any], expected: list[dict[str, Any]]
) -> None:
    assert combine([FRUIT], given_lists, [{"fruit": "pear", "size": 1}], []) == expected


def test_a_new_configuration_is_made_for_each_value_of_the_command_line_that_it_leaves_open() -> (
    None
):
    made = combine(
        [FRUIT],
        [axis("animal", ["cat", "dog"])],
        [{"fruit": "fig"}],
        [{"fruit": "apple"}, {"fruit": "pear"}],
    )
    assert made == [{"fruit": "fig", "animal": "cat"}, {"fruit": "fig", "animal": "dog"}]
