"""Templates by themselves, without a plan around them: `tests/test_render.py` has what the fence
keeps out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.plan import sandbox
from orchestrator.plan.sandbox import HostVariables, render_text


def text_of(template: str, target: str = "sh", **context: Any) -> str:
    return render_text("a.j2", {"a.j2": template}, target, context, folder="mine")


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
    assert (
        text_of("{{ hosts.data }} {{ hosts.note }} {{ hosts.slots }}", hosts=hosts)
        == "\"$HOME\"/'set 1' 'a~/b' 4"
    )


def test_an_error_names_folder_template_and_line_and_for_a_variable_its_host() -> None:
    with pytest.raises(ConfigError) as caught:
        text_of("a\n{{ hosts.data }}", hosts=HostVariables("n1", {}))
    assert (caught.value.kind, caught.value.where) == ("template_error", "mine/a.j2:2")
    assert caught.value.message == "expected 'data' in vars of n1, found none"


def test_a_text_that_was_compiled_for_one_kind_of_file_is_quoted_anew_for_another() -> None:
    # What a template prints literally is quoted when it is compiled.
    for _ in range(2):
        assert [text_of("{{ 'a b' }}", target) for target in ("sh", "json", "yaml")] == [
            "'a b'",
            '"a b"',
            '"a b"',
        ]


def test_a_template_that_was_compiled_for_one_folder_has_the_limits_and_the_neighbours_of_the_next() -> (
    None
):
    main = '{% include "b.j2" %}{% for n in range(600000) %}{% endfor %}'
    for text in ("first", "second"):
        assert render_text("a.j2", {"a.j2": main, "b.j2": text}, "sh", {}, folder="mine") == text
    with pytest.raises(ConfigError) as caught:
        render_text("a.j2", {"a.j2": main}, "sh", {}, folder="mine")
    assert caught.value.where == "mine/a.j2:1"


def test_more_templates_than_are_kept_are_printed_all_the_same() -> None:
    for number in [*range(sandbox._COMPILED_LIMIT + 2), 0]:
        assert text_of(f"{{{{ value }}}} {number}", value="x") == f"x {number}"
    assert len(sandbox._compiled) <= sandbox._COMPILED_LIMIT
