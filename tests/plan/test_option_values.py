"""What people write after an option: what it means, and what is refused in words that name the
option.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.plan.option_values import (
    assignments,
    label,
    numbers,
    quote,
    seconds,
    shapes,
    share,
    shortest,
    single,
    words,
)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("", ()), ("a", ("a",)), (" a ,b", ("a", "b"))])
def test_a_list_has_commas(text: str, value: tuple[str, ...]) -> None:
    assert words(text, "--dtype") == value


@pytest.mark.parametrize("text", [",", "a,", ",a", "a,,b", "a, ,b", " "])
def test_a_list_has_no_empty_words(text: str) -> None:
    assert (
        refusal(lambda: words(text, "--dtype"))
        == f"--dtype: expected a value before and after each comma, got {text!r}"
    )


@given(st.lists(st.integers(-(10**6), 10**6), max_size=9))
def test_numbers_come_back_in_written_order(values: list[int]) -> None:
    assert numbers(",".join(map(str, values)), "--nodes") == tuple(values)


@pytest.mark.parametrize("text", ["two", "1,x", "1.5", "1 2"])
def test_what_is_no_whole_number_is_refused_with_its_option(text: str) -> None:
    message = f"--nodes: expected whole numbers separated by commas, got {text!r}"
    assert refusal(lambda: numbers(text, "--nodes")) == message


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), max_size=5))
def test_a_shape_has_two_spellings(pairs: list[tuple[int, int]]) -> None:
    assert shapes(",".join(f"{nodes}n{gpus}g" for nodes, gpus in pairs)) == tuple(pairs)
    assert shapes(",".join(f"{nodes}x{gpus}" for nodes, gpus in pairs)) == tuple(pairs)


@pytest.mark.parametrize(
    ("text", "word"),
    [("4x8,4-8", "4-8"), ("4n", "4n"), ("4n8", "4n8"), ("4n8g1", "4n8g1"), ("n8g", "n8g")],
)
def test_the_word_that_is_no_shape_is_named(text: str, word: str) -> None:
    assert (
        refusal(lambda: shapes(text)) == f"--shape: expected shapes such as 1n1g,4n8g, got {word!r}"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1h0m5s", 3605),
        ("2d12h", 216000),
        ("90", 90),
        ("0.5", 0.5),
    ],
)
def test_a_duration_has_units_or_is_in_seconds(text: str, value: float) -> None:
    assert seconds(text, "--budget") == value
    assert seconds(shortest(value), "--budget") == value


@pytest.mark.parametrize(
    "text", ["m", "-3m", "1e9s", "٣m", "3 m", "nan%", "", "1h30", "30m1h", "1s1s"]
)
def test_what_is_no_time_and_no_percentage_is_refused_with_its_option(text: str) -> None:
    assert refusal(lambda: seconds(text, "--budget")).startswith(
        "--budget: expected a time such as 90s"
    )
    assert refusal(lambda: share(text, "--until-ci")).startswith(
        "--until-ci: expected a percentage above 0"
    )


def test_a_duration_outside_its_limits_is_refused_with_them() -> None:
    assert seconds("0", "--stop-grace", least=0) == 0
    assert (
        refusal(lambda: seconds("0s", "--budget")) == "--budget: expected a time above 0, got '0s'"
    )
    assert (
        refusal(lambda: seconds("1s", "--lease", least=2))
        == "--lease: expected a time of 2s or more, got '1s'"
    )
    assert refusal(lambda: seconds("9999999999h", "run", least=0)).startswith(
        "run: expected a time of 0s or more, at most "
    )
    over = refusal(lambda: seconds("2d", "--lease", least=2, most=86400))
    assert over == "--lease: expected a time of 2s or more, at most 24h, got '2d'"


def test_a_share_is_a_percentage() -> None:
    assert share("0.5%", "--until-ci") == 0.005
    assert refusal(lambda: share("100%", "--until-ci")).endswith("got '100%'")


def test_an_assignment_may_hold_equals_signs_and_be_repeated_unchanged() -> None:
    pairs = ["note=a=b", "seed=5", "seed=5", "empty="]
    assert assignments(pairs, "--set") == {"note": ("a=b",), "seed": ("5",), "empty": ("",)}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5", ("5",)),
        ("5,10,5", ("5", "10")),
        ("Ring, Tree", ("Ring", "Tree")),
        (" spaces stay ", (" spaces stay ",)),
        ('"1024,4096"', ("1024,4096",)),
        ("'1024,4096',8", ("1024,4096", "8")),
        ('"say ""hi"", twice"', ('say "hi", twice',)),
        ("'it''s'", ("it's",)),
        ('"",on', ("", "on")),
        ('5" disk', ('5" disk',)),
    ],
)
def test_a_comma_separates_values_and_quotes_keep_it(text: str, values: tuple[str, ...]) -> None:
    assert assignments([f"x={text}"], "--set") == {"x": values}


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0\r"), max_size=20),
        min_size=1,
        max_size=5,
        unique=True,
    )
)
def test_quoted_values_are_read_as_they_were(values: list[str]) -> None:
    assert assignments([f"x={','.join(map(quote, values))}"], "--set") == {"x": tuple(values)}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["seed"], "--set: expected key=value, got 'seed'"),
        (["=5"], "--set: expected key=value, got '=5'"),
        (
            ["size=64", "size=32"],
            "--set: size is set twice, to '64' and '32'. to measure both, write --set size=64,32",
        ),
        (
            ["size=64,"],
            "--set size: expected a value before and after each comma, got '64,'. write \"\" for an empty value",
        ),
        (
            ["note='open"],
            '--set note: expected a closing quote and then a comma or the end, got "\'open". '
            "quotes are at both ends of a value; in it, write a quote of the same kind twice",
        ),
    ],
)
def test_an_assignment_that_is_none_and_one_that_contradicts_are_refused(
    pairs: list[str], message: str
) -> None:
    assert refusal(lambda: assignments(pairs, "--set")) == message


def test_a_command_that_takes_one_value_refuses_a_list() -> None:
    assert single({"sizes": ("1024,4096",)}, "--set") == {"sizes": "1024,4096"}
    assert refusal(lambda: single({"sizes": ("1024", "4096")}, "--set")) == (
        "--set sizes: expected one value, got 1024,4096. put quotes around a value that contains a comma"
    )


def test_a_label_is_one_short_line() -> None:
    assert (
        label("  before the driver update ", "--label") == "before the driver update"
        and label("", "--label") == ""
    )
    assert refusal(lambda: label("a\nb", "--label")) == (
        "--label: expected one line of at most 80 printable characters, got 'a\\nb'"
    )
    assert refusal(lambda: label("x" * 81, "--label")).endswith(f"got '{'x' * 80}…'")
