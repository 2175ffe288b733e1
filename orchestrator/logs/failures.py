"""What a failed program died of, as far as its last lines tell: a known cause, the line that says so, and a remedy.

Three kinds of lines are told apart. A cause stands for itself: no memory, a port that is taken, a library that is missing. A
symptom is true and says too little: a collective that timed out, a transport that NCCL fell back to. A consequence only
complains of another process: a connection that was reset blames its other end. A cause goes before a symptom and a symptom
before a consequence; among its like the earliest line counts, because what follows it is mostly made by it.

>>> found = diagnose("step 4\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\\nBroken pipe\\n")
>>> found.kind, found.cause, found.line
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
    """A known way to fail: ``kind`` for programs, ``cause`` and ``remedy`` in words, ``line`` the text that it was seen in.

    ``weight``: as in `orchestrator.logs.failure_table`, a cause weighs most and a consequence least.
    """

    kind: str
    cause: str
    remedy: str
    line: str
    weight: int


def diagnose(text: str, memory_kills: int = 0) -> Failure | None:
    """Return what the text of a log, best its end, says the program died of; None where nothing known is in it.

    ``memory_kills`` is how often the node's kernel killed for memory what may be the process of this log: what the kernel did,
    no log tells. Reads the last 400 lines, and 2000 characters of each.
    """
    found: Failure | None = _killed_for_memory(memory_kills)
    for line in text.splitlines()[-_LINES:]:
        seen = _in_line(line[:_LINE_CHARACTERS])
        if seen and (found is None or seen.weight > found.weight):
            found = seen
    return found


def is_consequence(text: str) -> bool:
    """Tell whether a text only complains of another process that went away, and names no cause of its own."""
    found = diagnose(text)
    return found is not None and found.kind == "ended_elsewhere"


def _in_line(line: str) -> Failure | None:
    for known in KNOWN:
        if known.pattern.search(line) and not (known.unless and known.unless.search(line)):
            return Failure(known.kind, known.cause, known.remedy, _shortened(line.strip()), known.weight)
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
        f"the kernel's count of out-of-memory kills rose {times} during the run",
        CAUSE,
    )
