"""How the program ends as a process: with its own status, and with 1 where what it printed is lost,
but for a gone reader.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.judge import LIMIT_S

REPOSITORY = Path(__file__).parents[2]


HEAD = "import sys\nfrom orchestrator.cli.process import at_once"
# Without PYTHONUNBUFFERED: what is printed has to wait for the end.
VARIABLES = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}


def ended(body: str, stdout: int) -> int:
    code = f"{HEAD}\ndef main():\n    print('x')\n    {body}\nat_once(main)"
    return subprocess.run(
        [sys.executable, "-c", code], stdout=stdout, timeout=LIMIT_S, check=False, env=VARIABLES
    ).returncode


@pytest.mark.parametrize(
    ("body", "status"), [("pass", 0), ("sys.exit()", 0), ("sys.exit(5)", 5), ("sys.exit('why')", 1)]
)
def test_the_status_is_the_programs_own(body: str, status: int) -> None:
    assert ended(body, subprocess.DEVNULL) == status


@pytest.mark.parametrize(("body", "status"), [("pass", 0), ("sys.exit(5)", 5)])
def test_a_reader_that_has_gone_changes_no_status(body: str, status: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended(body, writer) == status
    finally:
        os.close(writer)


@pytest.mark.parametrize(("body", "status"), [("pass", 1), ("sys.exit(5)", 5)])
def test_text_that_a_full_disk_does_not_take_is_no_success(body: str, status: int) -> None:
    with Path("/dev/full").open("wb") as full:
        assert ended(body, full.fileno()) == status


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("body", "status"),
    [("pass", 0), ("sys.exit(5)", 5), ("open('f', 'w').write('y'); print('x')", 0)],
)
def test_a_stream_that_is_closed_is_output_that_nobody_takes(
    tmp_path: Path, body: str, status: int, closed: str
) -> None:
    code = f"{HEAD}\ndef main():\n    print('x', flush=True)\n    print('x', file=sys.stderr)\n    {body}\nat_once(main)"
    argv = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", code]
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=VARIABLES,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done
    assert [path.read_text() for path in tmp_path.iterdir()] == ["y"] * ("open" in body)


def test_messages_that_nobody_reads_any_more_end_nothing(tmp_path: Path) -> None:
    """A bench whose messages go to `head` goes on, and ends its job."""
    body = "for _ in range(9):\n        print('m', file=sys.stderr)\n        time.sleep(0.01)"
    code = f"{HEAD}\nimport time\ndef main():\n    {body}\n    open('f', 'w').write('done')\nat_once(main)"
    argv = ["bash", "-c", '"$@" 2>&1 | head -1; exit "${PIPESTATUS[0]}"', "bash", sys.executable]
    done = subprocess.run(
        [*argv, "-c", code], cwd=tmp_path, env=VARIABLES, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, (tmp_path / "f").read_text()) == (0, "done")


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", b"a \\xb7 \\u2013\n"),
        ("latin-1", b"a \xb7 \\u2013\n"),
        ("utf-8", "a \xb7 \u2013\n".encode()),
        ("ascii:replace", b"a ? ?\n"),
    ],
)
def test_what_an_encoding_lacks_is_written_as_its_escape(encoding: str, shown: bytes) -> None:
    code = f"{HEAD}\ndef main():\n    print('a \\xb7 \\u2013')\n    print('a \\xb7 \\u2013', file=sys.stderr)\nat_once(main)"
    variables = VARIABLES | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        env=variables,
    )
    assert (done.returncode, done.stdout) == (0, shown), done
    assert encoding == "ascii:replace" or done.stderr == shown


def test_a_disk_that_fills_up_amid_a_command_is_said_in_words() -> None:
    argv = [sys.executable, "-u", "-m", "orchestrator", "schema", "framework"]
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            argv,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=variables,
        )
    assert done.returncode == 1
    assert (
        done.stderr
        == "orch: standard output: expected space for the whole output, got: No space left on device\n"
    )


def test_what_was_left_for_the_end_is_done_and_threads_are_waited_for(tmp_path: Path) -> None:
    left, threaded = tmp_path / "left", tmp_path / "threaded"
    body = (
        f"import atexit, pathlib, threading, time; atexit.register(pathlib.Path({str(left)!r}).touch); "
        f"threading.Thread(target=lambda: (time.sleep(0.3), pathlib.Path({str(threaded)!r}).touch())).start()"
    )
    assert ended(body, subprocess.DEVNULL) == 0
    assert left.exists() and threaded.exists()


BUG = """
import threading
def thread():
    {{}}["in a thread s3cret"]
def main():
    started = threading.Thread(target=thread)
    started.start()
    started.join()
    try:
        {{}}["before s3cret"]
    except KeyError:
        {body}
"""


@pytest.mark.parametrize(
    "body",
    ['raise RuntimeError("s3cret " + "x")', "from orchestrator.cli.main import main; main()"],
)
def test_an_unexpected_exception_is_reported_by_its_place_without_a_value(
    tmp_path: Path, body: str
) -> None:
    """In the main thread and in others, also where the library of the command line reports
    exceptions.
    """
    script = tmp_path / "bug.py"
    broken = (
        "import orchestrator.cli.options as o\ndef broken(*_):\n    raise ValueError('s3' + "
        "'cret')\no.find_bench = broken\n"
    )
    script.write_text(f"{HEAD}\n{broken}{BUG.format(body=body)}\nat_once(main)\n")
    argv = [sys.executable, str(script), "archive"]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=VARIABLES,
        cwd=tmp_path,
    )
    kind = "RuntimeError" if "raise" in body else "ValueError"
    assert done.returncode == 1 and done.stderr.startswith(
        "orch: this is a bug in orch. Traceback:\n"
    ), done.stderr
    assert all(
        part in done.stderr
        for part in (f'File "{script}", line', f"builtins.{kind} (", "builtins.KeyError (")
    )
    assert "s3cret" not in re.sub(r"\n    .*", "", done.stderr), (
        done.stderr
    )  # lines of source text show no values


@pytest.mark.parametrize(("words", "limit"), [((), "0"), (("lab", "up"), "unlimited")])
def test_a_crash_dumps_no_core_with_secrets_but_nodes_of_a_lab_may(
    words: tuple[str, ...], limit: str
) -> None:
    body = f"{HEAD}\ndef main():\n    import subprocess; subprocess.run(['bash', '-c', 'ulimit -S -c'])\nat_once(main)"
    argv = [
        "bash",
        "-c",
        'ulimit -S -c unlimited; exec "$@"',
        "bash",
        sys.executable,
        "-c",
        body,
        *words,
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=VARIABLES
    )
    assert done.stdout.split() == [limit], done


@pytest.mark.parametrize("columns", ["0", "00", ""])
def test_a_terminal_of_no_width_loses_no_output(columns: str) -> None:
    table = "from orchestrator.report.text import stdout_console; stdout_console().print('whole')"
    code = f"{HEAD}\ndef main():\n    {table}\nat_once(main)"
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=LIMIT_S, check=True, env={**VARIABLES, "COLUMNS": columns},
        capture_output=True,
    )  # fmt: skip
    assert done.stdout == b"whole\n"


@pytest.mark.parametrize("when", ["gc.set_threshold", "import typer", "import orchestrator.record"])
def test_an_interrupt_at_any_time_of_the_start_is_one_line(when: str, tmp_path: Path) -> None:
    code = f"""
import gc, os, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if {when!r} == "import " + name:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
if {when!r} == "gc.set_threshold":
    gc.set_threshold = lambda count: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["orch", "status"]
from orchestrator.cli.process import run
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**VARIABLES, "ORCH_PROJECT": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "orch: interrupted\n")


def test_an_interrupt_that_python_ignores_is_repeated() -> None:
    body = "ref = weakref.ref(threading.Event(), lambda _: os.kill(os.getpid(), 2)); time.sleep(60)"
    code = f"{HEAD}\nimport os, threading, time, weakref\ndef main():\n    {body}\nat_once(main)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (130, "orch: interrupted\n")
