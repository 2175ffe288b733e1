"""Values that pass without typer's own conversion are those that it would have returned."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from orchestrator.cli import defaults
from orchestrator.cli.conversion import FewConversions
from orchestrator.cli.main import MODULES, whole

NAMES = sorted(name for commands in MODULES.values() for name in commands)
SAMPLES = ("8", "", " a b ", "ä,b", "10.5", "2h", "true", "/tmp/x")


def values(command: Any, words: list[str]) -> Any:
    """Return the values of a command's parameters, or the error that refuses the words."""
    try:
        return command.make_context(command.name, list(words), resilient_parsing=False).params
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_the_value_that_typer_gives_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "_here", dict)
    command = whole().commands[name]
    lines = [["--help"], []]
    for param in command.params:
        texts = [""] if getattr(param, "is_flag", False) else SAMPLES
        for form in (*param.opts, *param.secondary_opts):
            option = form if form.startswith("-") else "--"
            lines += [[option, text] if text or option == "--" else [option] for text in texts]
    ours = [values(command, words) for words in lines]
    monkeypatch.delattr(FewConversions, "get_params")
    command = whole().commands[name]
    theirs = [values(command, words) for words in lines]
    for words, found, expected in zip(lines, ours, theirs, strict=True):
        assert found == expected, words


def test_a_command_that_converts_nothing_does_without_the_library_for_it() -> None:
    code = (
        "import sys; sys.argv = ['orch', 'summarize', '--help']\n"
        "from orchestrator.cli.main import program\n"
        "try: program()()\n"
        "finally: print('pydantic' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False" and "--format" in done.stdout
