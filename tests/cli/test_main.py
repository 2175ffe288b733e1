"""How the command line ends: exit status, help, no traceback, and nothing of others in the name of
orch.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.main import report
from orchestrator.errors import (
    EXIT_STATUS,
    ConfigError,
    DataError,
    Faults,
    OrchError,
    Regression,
    RunError,
    TransportError,
    Undecided,
    restore_error,
)
from orchestrator.version import __version__
from tests.cli.nowhere import INVENTORY
from tests.support.cli_project import Project
from tests.support.commands import REPOSITORY
from tests.support.judge import LIMIT_S

ORCH = (
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'orch'; from orchestrator.cli.process import run; run()",
)


def test_the_version_and_help_go_to_stdout(project: Project) -> None:
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    started = subprocess.run(
        [*ORCH, "--version"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert (
        (started.stdout, started.stderr)
        == (project.orch("--version").stdout, "")
        == (f"orch {__version__}\n", "")
    )
    helped = project.orch("--help")
    assert (
        helped.returncode == 0 and helped.stderr == "" and "Exit status: 0 success" in helped.stdout
    )
    assert project.orch("-h").stdout == helped.stdout


def test_every_exit_status_is_in_the_help_and_in_the_docs_with_one_meaning(
    project: Project,
) -> None:
    classes = (OrchError, ConfigError, TransportError, DataError, Regression, Undecided, RunError)
    assert {error.exit_code for error in classes} | {0} == set(EXIT_STATUS)
    assert len({error.exit_code for error in classes[1:]}) == len(classes) - 1
    helped = " ".join(project.orch("--help").stdout.split())
    rows = re.findall(
        r"^\| (\d) \| ([^|]+) \|", (REPOSITORY / "docs" / "cluster.md").read_text(), re.MULTILINE
    )
    assert dict(EXIT_STATUS) == {int(code): meaning for code, meaning in rows}
    for code, meaning in EXIT_STATUS.items():
        assert f"{code} {meaning}" in helped, code


def test_who_stops_reading_our_output_gets_no_traceback(project: Project) -> None:
    # In bash, so that the status of the program at the head of the pipe is known.
    script = '"$@" bench resnet50 --ladder --dry-run | head -n 1; exit ${PIPESTATUS[0]}'
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(project.path)}
    argv = ["bash", "-c", script, "bash", *ORCH]
    done = subprocess.run(
        argv,
        cwd=project.path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.endswith("that is chosen when a run starts\n")
        and "Traceback" not in done.stderr
    ), done.stderr


def test_control_characters_in_a_message_are_shown_and_not_sent_to_the_terminal(
    project: Project,
) -> None:
    message = project.refused("bench", "resnet50", "--dtype", "\x1b]0;owned\x07")
    assert "\x1b" not in message and "\x07" not in message and "owned" in message


def test_unreachable_hosts_are_a_matter_of_transport(project: Project) -> None:
    key = project.path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=LIMIT_S
    )
    inventory = project.path / "inventory" / "cluster.yaml"
    inventory.write_text(INVENTORY.replace("{gpus: 8,", f"{{gpus: 8, ssh: {{key: {key}}},"))
    done = project.orch("check", "--only", "reach")
    assert (done.returncode, done.stdout) == (3, "")
    messages = [line for line in done.stderr.splitlines() if line.startswith("orch: ")]
    assert len(messages) == 4 and all("does not resolve" in message for message in messages), (
        done.stderr
    )


LINES = st.text("ab \n\r\x0b\x1c\x85\u2028", max_size=12).map(
    lambda text: text.replace("a", "\norch: all is well")
)


@given(
    st.lists(
        st.tuples(LINES, LINES, LINES, st.sampled_from(["", "n1", "n2"])), min_size=1, max_size=3
    )
)
def test_no_text_of_others_begins_a_line_in_the_name_of_orch(
    texts: list[tuple[str, str, str, str]],
) -> None:
    errors = [
        RunError(message, kind="x", where=where, hint=hint, host=host)
        for message, where, hint, host in texts
    ]
    recorded = [restore_error(error.as_dict(), "r") for error in errors]
    for error in (errors[0], Faults(errors), Faults(recorded)):
        with redirect_stderr(io.StringIO()) as shown:
            report(error)
        lines = shown.getvalue().split("\n")[:-1]
        count = len(
            {
                (str(one), one.host)
                for one in (error.errors if isinstance(error, Faults) else [error])
            }
        )
        assert sum(line.startswith("orch: ") for line in lines) <= count and lines[0].startswith(
            "orch: "
        )
        assert all(
            line.startswith(("orch: ", "  ")) and len(line.splitlines()) == 1 for line in lines
        ), lines
