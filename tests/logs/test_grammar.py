"""Which logs of a node a grammar means."""

from __future__ import annotations

import doctest

import pytest

from orchestrator.logs import SETUP_LOG, grammar, is_named


def test_the_example_of_the_module_is_true() -> None:
    results = doctest.testmod(grammar)
    assert results.attempted and not results.failed


@pytest.mark.parametrize("glob", ["*", "*.out", "s*", "[st]etup.out", SETUP_LOG])
def test_no_glob_names_the_output_of_setup_lines(glob: str) -> None:
    assert not is_named(SETUP_LOG, [glob])
