"""Patterns of log lines: the literal that each of their matches has, and which are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import parse
from orchestrator.logs.patterns import compile_pattern
from tests.logs.programs import grammars
from tests.support.examples import examples


@settings(max_examples=examples(200), deadline=None)
@given(
    st.deferred(
        lambda: st.sampled_from(
            [
                text
                for rules in grammars()
                for text in (*rules.patterns, rules.rank, rules.closing)
                if text
            ]
        )
    ),
    st.data(),
)
def test_the_literal_of_a_pattern_is_in_each_of_its_matches(
    pattern: str, data: st.DataObject
) -> None:
    reader = compile_pattern("x", pattern, tuple(re.compile(pattern).groupindex))
    match = reader.pattern.search(data.draw(st.from_regex(reader.pattern)))
    assert match and reader.literal in match[0]


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"^orch step=(?P<step>\d+) t=", "orch step="),
        (r"abc?(?P<step>x)", "ab"),
        (r"ab{3}c*(?P<step>x)de+?", "a"),
        (r"abc{,2}\[x\](?P<step>.)", "[x]"),
        (r"abc|(?P<step>x)", ""),
        (r"(?i)abc(?P<step>x)", ""),
        (r"\x41bc(?P<step>x)", ""),
        (r"(?P<step>x)\tstep\b\d\s", "step"),
        (r"(?P<step>abc(?:def))[a-z]e", "e"),
        (r"(?#abc)(?P<step>x)é", ""),
    ],
)
def test_a_literal_is_what_must_be_there(pattern: str, literal: str) -> None:
    assert compile_pattern("x", pattern, ("step",)).literal == literal


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"step=(?P<step>[0-9]+", "not a regular expression"),
        (r"step=(?P<stop>[0-9]+)", "got stop"),
        (r"step=[0-9]+", "got none"),
        (r"(?:[0-9]+ )*step=(?P<step>[0-9]+)", "a repeated group contains a repeat"),
        (r"(?:(?:a+)b)+(?P<step>[0-9]+)", "a repeated group contains a repeat"),
        (r"(?:a*){3,}(?P<step>[0-9]+)", "a repeated group contains a repeat"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse(b"", LogGrammar(files=("x",), patterns=(pattern,)))
    assert caught.value.kind == "template_error"
    assert "log.patterns[0]" in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [r"[(+*]+(?P<step>[0-9]+)", r"\(+(?P<step>[0-9]+(?:[.][0-9]+)?)", r"(?P<step>[0-9]{1,9})[]+]*"],
)
def test_a_plain_pattern_is_not_refused(pattern: str) -> None:
    assert parse(b"", LogGrammar(files=("x",), patterns=(pattern,))).samples == ()
