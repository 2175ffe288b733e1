"""How far a transfer is, as a person and as a log file see it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from orchestrator.cli.transfer import transfer
from tests.support.judge import LIMIT_S

PROGRAM = """
import time
from orchestrator.cli.transfer import transfer
with transfer("logs") as moved:
    for _ in range(4):
        moved(5_000_000)
        time.sleep(0.3)
print("done")
"""


def test_a_log_file_gets_whole_lines_and_of_a_short_transfer_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with transfer("logs", every_s=0) as moved:
        threads = [threading.Thread(target=moved, args=(1 << 19,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert all(
        re.fullmatch(r"logs: \d+\.\d MiB in \d+ s, \d+\.\d MiB/s", line) for line in lines
    ), lines
    assert sorted(float(line.split()[1]) for line in lines) == [
        0.5 * number for number in range(1, 9)
    ]
    with transfer("logs") as moved:
        moved(1 << 30)
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_bytes_and_rate_and_is_left_clean() -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # a terminal that nobody holds any more
            break
    os.close(ours)
    assert child.wait(LIMIT_S) == 0
    assert re.search(rb"logs .*10\.0 MB.* MB/s", shown), shown
    assert b"\x1b[2K" in shown.partition(b"20.0 MB")[2] and shown.endswith(b"done\r\n"), shown
