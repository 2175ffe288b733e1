"""Options of commands from the rows of the table."""

from __future__ import annotations

import pytest

from orchestrator.cli.main import GROUPS, MODULES, whole
from orchestrator.options import GROUPS as HEADINGS
from orchestrator.options import OPTIONS, check_names
from tests.support.features import needs

PROGRAM = whole()
OWN = {
    ("tune", "shape"),
    ("tune", "output"),
    ("tune", "dry_run"),
    ("bisect", "dry_run"),
    ("accept", "dry_run"),
}
"""Options that a command describes in place of the row with the same name."""


@pytest.mark.parametrize(
    "command",
    [
        "bench",
        pytest.param("tune", marks=needs("search")),
        pytest.param("bisect", marks=needs("search")),
        pytest.param("accept", marks=needs("accept")),
    ],
)
def test_a_command_has_the_options_whose_rows_name_it(command: str) -> None:
    params = {param.name: param for param in PROGRAM.commands[command].params}
    for name, row in OPTIONS.items():
        is_taken = command == "bench" or command in row.others
        if (command, name) not in OWN:
            assert (name in params) == is_taken, name
            shown = f"{row.help}  [default: {row.shown}]" if row.shown else row.help
            assert not is_taken or params[name].help == shown
            assert not is_taken or params[name].rich_help_panel == row.group


def test_every_option_is_under_a_heading_and_twelve_are_needed_first() -> None:
    assert {row.group for row in OPTIONS.values()} == set(HEADINGS)
    assert sum(row.group == HEADINGS[0] for row in OPTIONS.values()) == 12


def test_every_command_is_under_one_heading() -> None:
    under = [name for names in GROUPS.values() for name in names]
    assert sorted(under) == sorted(name for commands in MODULES.values() for name in commands)


def test_a_name_that_no_option_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="got warm_steps; did you mean 'warmup_steps'"):
        check_names(["steps", "warm_steps"], OPTIONS, "request_of")
