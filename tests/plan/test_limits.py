"""Limits that no run could keep to are refused where they are made."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.cli.option_rows import option
from orchestrator.errors import ConfigError
from orchestrator.plan import option_values
from orchestrator.plan.limits import Limits


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, -math.inf, 1e10, "60", None, True])
@pytest.mark.parametrize(
    "name", [name for name in Limits.__dataclass_fields__ if name.endswith("_s")]
)
def test_a_time_that_is_none_is_refused_with_its_field(name: str, value: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"^Limits\.{name}: expected a time in seconds from \S+ to \S+, got "
    ) as caught:
        Limits(**{name: value})
    assert str(caught.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    "name", ["beat_s", "lost_s", "lease_s", "first_line_s", "stall_s", "arm_s", "ask_s"]
)
def test_a_time_in_which_something_must_happen_is_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"Limits\.{name}: .*, got 0$"):
        Limits(**{name: 0})
    assert Limits(doubt_s=0, grace_s=0, wait_s=0).grace_s == 0


@pytest.mark.parametrize("name", ["lost_s", "lease_s"])
def test_a_node_is_heard_before_it_is_lost_and_before_its_lease_ends(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"Limits\.{name}: expected more than beat_s=5s, .*, got 4\.5"
    ):
        Limits(**{"beat_s": 5, "lost_s": 20.0, "lease_s": 30.0, name: 4.5})


@pytest.mark.parametrize("value", [0, -1, 1000, 1e9, math.nan, True, "1"])
def test_an_output_without_room_for_a_log_is_refused(value: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"Limits\.output_bytes: expected a whole number of bytes from 1048576 on, got ",
    ):
        Limits(output_bytes=value)


def test_sampling_is_on_or_off() -> None:
    with pytest.raises(ConfigError, match="Limits.telemetry: expected True or False, got 'no'"):
        Limits(telemetry="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flag", "name", "taken", "refused"),
    [
        ("lease", "lease_s", ("2", "1d"), ("1.9", "86401")),
        ("stop-grace", "grace_s", ("0", "10m"), ("601",)),
        ("first-line-timeout", "first_line_s", ("1",), ("0.9", "11575d")),
        ("stall-timeout", "stall_s", ("1",), ("0.9", "11575d")),
    ],
)
def test_an_option_takes_what_its_limit_may_be_and_refuses_the_rest_by_its_own_name(
    flag: str, name: str, taken: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    parse = option(flag.replace("-", "_")).parser
    for text in taken:
        assert getattr(Limits(**{name: parse(text)}), name) == parse(text)
    for text in refused:
        with pytest.raises(
            ConfigError, match=rf"^--{flag}: expected a time of .* or more.*, got '{text}'"
        ):
            parse(text)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("lease", "lease_s"),
        ("stop_grace", "grace_s"),
        ("first_line_timeout", "first_line_s"),
        ("stall_timeout", "stall_s"),
    ],
)
def test_the_help_of_an_option_says_the_default_of_the_limit(row: str, name: str) -> None:
    default = option(row).help.partition("[default: ")[2].rstrip("]")
    assert option_values.seconds(default, "help") == getattr(Limits(), name)


def test_options_that_are_not_given_leave_the_defaults() -> None:
    waiting = {"wait": True, "wait_limit": ""}
    assert Limits.of_options({"wait": False, "wait_limit": "", "lease": None}) == Limits()
    assert Limits.of_options({**waiting, "lease": 5.0, "stop_grace": 0.0}) == Limits(
        lease_s=5.0, grace_s=0.0, wait_s=option_values.MOST_S
    )
    assert Limits.of_options({**waiting, "wait_limit": "2h"}) == Limits(wait_s=7200.0)
    assert Limits.of_options({**waiting, "output_limit": 2}).output_bytes == 2 << 20
