"""The last log lines about a failure, from the most specific log of its host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import OrchError
from orchestrator.logs import SETUP_LOG
from orchestrator.logs.failures import is_silent, last_output
from orchestrator.record import RunDir
from orchestrator.record.evidence import last_bytes, setup_failed

READ_BYTES = 32768
_BY_ITSELF = re.compile(r" ended with (exit code|SIGABRT\b)")


@dataclass(frozen=True, slots=True)
class Death:
    """A failure with its last log lines (``words``) and the name of the log that holds them; empty
    without any. ``warned``: what NCCL says of failures on the standard output of a rank whose other
    words are on its standard error."""

    error: OrchError
    log: str = ""
    words: Sequence[str] = ()
    warned: Sequence[str] = ()

    @property
    def text(self) -> str:
        """What is diagnosed: the warnings, then the last lines."""
        return "\n".join([*self.warned, *self.words])

    @property
    def is_by_itself(self) -> bool:
        """Return whether the program ended by itself, so that its last lines explain its end."""
        return how_it_ended(self.error) != ""


def read_last_words(error: OrchError, run: RunDir) -> Death:
    """Read the last lines of the most specific log about a failure on its host."""
    rank = rank_of(error)
    streams = () if rank is None else (f"rank-{rank}.err", f"rank-{rank}.out")
    setup = (SETUP_LOG,) if setup_failed(run, error.host) else ()
    for name in (*setup, *streams, "node.err", "node.out"):
        path = run.log_path(error.host, name)
        if path.is_file() and (lines := _last_lines(run, error.host, name)):
            warned: list[str] = []
            output = name.removesuffix(".err") + ".out"
            if output != name and run.log_path(error.host, output).is_file():
                printed = _last_lines(run, error.host, output)
                if is_silent(lines) and last_output(printed, exceptions_only=True):
                    return Death(error, output, printed)
                warned = [line for line in printed if name in streams and "NCCL WARN" in line]
            return Death(error, name, lines, warned)
    return Death(error)


def _last_lines(run: RunDir, host: str, name: str) -> list[str]:
    text = last_bytes(run, host, name, READ_BYTES).decode("utf-8", "replace")
    lines = text.splitlines()  # an empty line ends a sentence
    return lines if any(map(str.strip, lines)) else []


def how_it_ended(error: OrchError) -> str:
    """Return how a program ended by itself: with an "exit code" or "SIGABRT"; empty if it did not."""
    how = _BY_ITSELF.search(error.message)
    return how[1] if how else ""


def rank_of(error: OrchError) -> int | None:
    """Return the rank that an error's message begins with; None if it names none."""
    words = error.message.split()
    if words[:1] == ["rank"] and len(words) > 1 and words[1].isdigit():
        return int(words[1])
    return None
