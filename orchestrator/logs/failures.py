"""The cause of a program's failure, from its last lines: a known cause, the line that shows it, and a remedy.

Lines are of three kinds. A cause explains the failure: no memory, a port in use, a missing library. A symptom is true but
does not explain it: a collective that timed out, a transport to which NCCL fell back. A consequence only reports another
process: a connection that its peer reset. A cause outranks a symptom, and a symptom outranks a consequence; among lines of one
kind the earliest counts, because it usually causes the later ones.

>>> failure = diagnose("step 4\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\\nBroken pipe\\n")
>>> failure.kind, failure.cause, failure.line
('out_of_memory', 'the GPU had no memory left', 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.')
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.logs.failure_table import CAUSE, KNOWN

__all__ = ["Failure", "diagnose", "is_consequence"]

_LINE_CHARACTERS = 2000
_LINES = 400
_SHOWN_CHARACTERS = 300


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
    times = "once" if kills == 1 else f"{kills} times"
    return Failure(
        "host_out_of_memory",
        "the kernel killed a process because the node had no memory left",
        "lower --batch-size or the number of ranks, or raise the memory limit of the node's control group",
        f"the kernel counted an out-of-memory kill {times} during the run",
        CAUSE,
    )
