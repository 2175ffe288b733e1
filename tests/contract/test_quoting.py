"""`remote_command` through every login shell that is installed here: what goes in comes out, byte
for byte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.transport.ssh import remote_command
from orchestrator.transport.ssh.quoting import COMMAND_LIMIT
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S

SHELLS = ["sh", "dash", "bash", "zsh", "ksh", "csh", "bsd-csh", "tcsh", "fish"]
SHOW = [
    sys.executable,
    "-ISc",
    "import os, sys; sys.stdout.buffer.write(bytes(1).join(os.fsencode(a) for a in sys.argv[1:]))",
]
ODD = [
    "two words",
    "",
    "'",
    '"',
    "\\",
    "a\\",
    "!",
    "!!",
    "a!b",
    "\n",
    "a\nb\n",
    "$HOME",
    "`id`",
    "$(id)",
    "*",
    "~",
    "%s%d%%",
    "\t",
]
ODD += [
    "é☃",
    "\x01\x7f",
    "-n",
    "--",
    ";",
    "&",
    "|",
    "#",
    "{a,b}",
    "=ls",
    "^x^y",
    "\\n",
    "\\041",
    "[a]",
    "?",
    ">x",
    "a=b",
    "\udcff",
]


def shown(shell: str, words: list[str]) -> list[bytes]:
    command = [shell, "-c", remote_command([*SHOW, *words])]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.split(b"\0")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    """Each login shell that a node may have."""
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} here")
    return str(request.param)


def test_odd_words_survive(shell: str) -> None:
    assert shown(shell, ODD) == [os.fsencode(word) for word in ODD]


def test_words_that_need_no_encoding_survive_unencoded(shell: str) -> None:
    words = [word for word in ODD if word.isascii() and not set(word) & set("'\\!\n\t\x01\x7f")]
    assert len(words) > 15
    assert "printf" not in remote_command([*SHOW, *words])
    assert shown(shell, words) == [os.fsencode(word) for word in words]


def test_long_words_and_long_lists_survive(shell: str) -> None:
    assert shown(shell, ["x" * 20_000, "!" * 5_000, "y" * 899]) == [
        b"x" * 20_000,
        b"!" * 5_000,
        b"y" * 899,
    ]
    assert shown(shell, ["plain"] * 3_000) == [b"plain"] * 3_000


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    words=st.lists(
        st.binary(max_size=40).map(lambda text: os.fsdecode(text.replace(b"\0", b""))),
        min_size=1,
        max_size=4,
    )
)
def test_any_words_survive(shell: str, words: list[str]) -> None:
    assert shown(shell, words) == [os.fsencode(word) for word in words]


@given(
    words=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1
    )
)
def test_a_login_shell_sees_plain_words_only(words: list[str]) -> None:
    command = remote_command(["echo", *words])
    assert command.startswith("exec /bin/sh -c '")
    assert command.isascii()
    assert command.isprintable()
    assert "!" not in command
    quoted = command.split("'")[1::2]
    assert not any(word.endswith("\\") for word in quoted)
    assert all(word.strip() in ("", "exec /bin/sh -c") for word in command.split("'")[0::2])


@pytest.mark.parametrize("argv", [[], [""], ["-c", "id"], ["echo", "a\0b"], ["\0"]])
def test_what_cannot_be_a_command_is_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        remote_command(argv)


def test_too_long_a_command_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="standard input"):
        remote_command(["echo", "x" * COMMAND_LIMIT])


@pytest.mark.parametrize("shell", ["csh", "tcsh", "fish"], indirect=True)
def test_a_foreign_login_shell_behind_sshd_runs_the_same(rig: Rig, shell: str) -> None:
    line = rig.connect(rig.serve(f'ForceCommand {shutil.which(shell)} -c "$SSH_ORIGINAL_COMMAND"'))
    result = line.run([*SHOW, *ODD], timeout_s=LIMIT_S)
    assert (result.code, result.stdout.split(b"\0")) == (0, [os.fsencode(word) for word in ODD])
    assert line.run(["sh", "-c", "exit 3"], timeout_s=LIMIT_S).code == 3
