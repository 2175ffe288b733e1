"""A program at a terminal of its own: `Terminal` types and reads as a person would."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.judge import LIMIT_S

__all__ = ["Terminal"]


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A program in a session of its own, whose controlling terminal this process holds the other
    end of.
    """

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.text = ""
        self._read = 0

    def wait_for(self, words: str, timeout_s: float = LIMIT_S) -> str:
        """Read until ``words`` appear after what was waited for last; return everything up to and
        including them.
        """
        deadline = time.monotonic() + timeout_s
        while (at := self.text.find(words, self._read)) < 0:
            assert time.monotonic() < deadline and self._more(0.2), f"no {words!r} in: {self.text}"
        before, self._read = self.text[self._read : at + len(words)], at + len(words)
        return before

    def type(self, line: str) -> None:
        """Type a line and Enter."""
        self.press(line + "\r")

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def echoes(self) -> bool:
        """Return whether the terminal echoes typed characters."""
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def end(self, timeout_s: float = LIMIT_S) -> int:
        """Wait for the program's end and return its exit status; ``text`` is then everything that
        it showed.
        """
        deadline = time.monotonic() + timeout_s
        while self._more(0.2):
            assert time.monotonic() < deadline, self.text
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """Hang up, and kill the program if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _more(self, wait_s: float) -> bool:
        """Read what has come; return False at the end."""
        if not select.select([self._ours], [], [], wait_s)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # nobody has the other end open any more
            return False
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)
