"""The cause of a program's failure, from its last lines: a known cause, the line that shows it, and a remedy.

Lines are of three kinds. A cause explains the failure: no memory, a port in use, a missing library. A symptom is true but
does not explain it: a collective that timed out, a transport to which NCCL fell back. A consequence only reports another
process: a connection that its peer reset. A cause outranks a symptom, and a symptom outranks a consequence; among lines of one
kind the earliest counts, because it usually causes the later ones.

>>> failure = diagnose("step 4\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\\nBroken pipe\\n")
>>> failure.kind, failure.cause, failure.line
('out_of_memory', 'the GPU had no memory left', 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.')

Where no known failure is found, what a program itself said last is shown in place of a cause:

>>> last_output(["Traceback (most recent call last):", '  File "t.py", line 8, in <module>', "ValueError: got 2", "  or 3"])
'last output: ValueError: got 2'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.logs.failure_table import CAUSE, KNOWN
from orchestrator.logs.text import cleaned
from orchestrator.plural import times

__all__ = ["LAST_OUTPUT", "Failure", "diagnose", "is_consequence", "last_output"]

LAST_OUTPUT = "last output: "
"""How a cause begins that is the program's own sentence, which may have hosts, ranks and numbers of one run."""

_LINE_CHARACTERS = 2000
_LINES = 400
_SHOWN_CHARACTERS = 300
_TRACEBACK = "Traceback (most recent call last):"
_RANK_TAG = re.compile(r"\[rank[0-9]{1,9}\]: ?")  # PyTorch's before each line of a traceback
_WHAT = re.compile(r"\s{1,9}what\(\):\s{0,9}(?=\S)")
# What libraries say after a program's own last line, while its process ends.
_AT_EXIT = re.compile(r"\[?W[0-9]{4} |\S{0,300}:[0-9]{1,9}: \w{0,40}Warning: ")


@dataclass(frozen=True, slots=True)
class Failure:
    """A recognised failure: ``kind`` for programs, ``cause`` and ``remedy`` for people, ``line`` the text that shows it.

    ``weight`` as in `orchestrator.logs.failure_table`: a cause weighs most, a consequence least.
    """

    kind: str
    cause: str
    remedy: str
    line: str
    weight: int


def diagnose(text: str, memory_kills: int = 0) -> Failure | None:
    """Return the failure that the text of a log shows, preferably its end; None if no known failure is in it.

    ``memory_kills`` is how often the node's kernel killed for memory what may be the process of this log: no log contains that.
    Reads the last 400 lines, and 2000 characters of each.
    """
    failure: Failure | None = _killed_for_memory(memory_kills)
    for line in text.splitlines()[-_LINES:]:
        in_line = _in_line(line[:_LINE_CHARACTERS])
        if in_line and (failure is None or in_line.weight > failure.weight):
            failure = in_line
    return failure


def is_consequence(text: str) -> bool:
    """Return True if a text only reports that another process ended, and shows no cause of its own."""
    failure = diagnose(text)
    return failure is not None and failure.kind == "ended_elsewhere"


def last_output(lines: Sequence[str], *, exceptions_only: bool = False) -> str:
    """Return the sentence with which a program ended, behind `LAST_OUTPUT`; empty if it has none.

    That is the exception of its last traceback, what a C++ exception says, or else its last line that is not indented and no
    warning. ``exceptions_only``: not that line, as of usual output, which says nothing of the end.
    """
    texts = [_RANK_TAG.sub("", cleaned(line.encode("utf-8", "replace")), 1) for line in lines[-_LINES:]]
    begun = max((place for place, text in enumerate(texts) if text.startswith(_TRACEBACK)), default=None)
    sentences = [] if begun is None else [text for text in texts[begun + 1 :] if _is_said(text)][:1]
    sentences = sentences or [text[match.end() :] for text in texts if (match := _WHAT.match(text))]
    if not sentences and not exceptions_only:
        sentences = [text for text in texts if _is_said(text) and not _AT_EXIT.match(text)]
    return f"{LAST_OUTPUT}{_both_ends(' '.join(sentences[-1].split()))}" if sentences else ""


def _is_said(text: str) -> bool:
    return any(map(str.isalnum, text)) and not text[0].isspace()


def _both_ends(sentence: str) -> str:
    half = _SHOWN_CHARACTERS // 2
    return sentence if len(sentence) <= _SHOWN_CHARACTERS else f"{sentence[:half]} […] {sentence[-half:]}"


def _in_line(line: str) -> Failure | None:
    for entry in KNOWN:
        if entry.pattern.search(line) and not (entry.unless and entry.unless.search(line)):
            return Failure(entry.kind, entry.cause, entry.remedy, _shortened(line.strip()), entry.weight)
    return None


def _shortened(line: str) -> str:
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"


def _killed_for_memory(kills: int) -> Failure | None:
    if kills <= 0:
        return None
    return Failure(
        "host_out_of_memory",
        "the kernel killed a process because the node had no memory left",
        "lower --batch-size or the number of ranks, or raise the memory limit of the node's control group",
        f"the kernel counted an out-of-memory kill {times(kills)} during the run",
        CAUSE,
    )
