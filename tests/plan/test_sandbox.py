"""Templates by themselves, without a plan around them: `tests/test_render.py` has what the fence keeps out."""

from __future__ import annotations

import doctest
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.plan import sandbox
from orchestrator.plan.sandbox import HostVariables, rendered


def text_of(template: str, target: str = "sh", **context: Any) -> str:
    return rendered("a.j2", {"a.j2": template}, target, context, folder="mine")


def test_the_example_of_the_module_is_true() -> None:
    results = doctest.testmod(sandbox)
    assert results.attempted and not results.failed


@pytest.mark.parametrize(
    ("target", "value", "text"),
    [
        ("sh", "a b", "'a b'"),
        ("sh", ["a", True, None], "a true ''"),
        ("json", ["a", True, None], '["a", true, null]'),
        ("yaml", 'a "b"', r'"a \"b\""'),
    ],
)
def test_a_value_is_quoted_for_the_kind_of_file(target: str, value: Any, text: str) -> None:
    assert text_of("{{ value }}", target, value=value) == text


def test_a_path_in_the_home_of_a_node_is_left_to_the_shell_of_that_node() -> None:
    hosts: Mapping[str, Any] = HostVariables("n1", {"data": "~/set 1", "note": "a~/b", "slots": 4})
    assert text_of("{{ hosts.data }} {{ hosts.note }} {{ hosts.slots }}", hosts=hosts) == "\"$HOME\"/'set 1' 'a~/b' 4"


def test_an_error_names_folder_template_and_line_and_for_a_variable_its_host() -> None:
    with pytest.raises(ConfigError) as caught:
        text_of("a\n{{ hosts.data }}", hosts=HostVariables("n1", {}))
    assert (caught.value.kind, caught.value.where) == ("template_error", "mine/a.j2:2")
    assert caught.value.message == "expected 'data' in vars of n1, found none"
