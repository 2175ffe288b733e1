"""The progress of a rank, for whoever looks at it from outside: its step and phase in a small file, its stacks at a signal.

Python 3.6 or newer, standard library only. The wrapper of a rank names the file in ``ORCH_PROGRESS``; without that variable all
of this does nothing. Another program may write such a file as well. It has 64 bytes, little-endian: the text ``orchprg1``; the
number of marks so far (8 bytes); the step that has begun (8 bytes, signed, 0 before the first one); the monotonic clock at this
mark and at the begin of this step (seconds, 8 bytes each, floating point); the phase (16 bytes, ASCII, filled with zeros); the
number of marks again. A reader that sees two different numbers of marks reads again.

Phases: ``input`` (waiting for the samples of the step), ``compute``, ``collective`` (waiting for other ranks), ``step`` (both,
where a program cannot tell them apart), and those that may take any time: ``start``, ``compile``, ``checkpoint``, ``evaluate``,
``end``.
"""

import faulthandler
import mmap
import os
import signal
import struct
import threading
from time import monotonic
from typing import Any, Callable, Dict, Optional

RECORD = struct.Struct("<8sQqdd16sQ")
MAGIC = b"orchprg1"
STACKS_SIGNAL = int(signal.SIGRTMIN) + 14
"""At this signal a rank writes the stacks of its threads; no program that we know of uses it."""


class Progress:
    """The file of one rank, or nothing for an empty ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.record: Optional[mmap.mmap] = None
        self.marks, self.step, self.begun = 0, 0, monotonic()
        self.phases: Dict[str, bytes] = {}
        self.stacks: Any = None
        if path:
            try:
                self._open()
            except OSError:  # a full disk, or a folder that is gone: the run itself does not need this file
                self.record = None

    def _open(self) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, bytes(RECORD.size))  # before it is mapped: a page without a block would be a fatal signal
            self.record = mmap.mmap(handle, RECORD.size)
        finally:
            os.close(handle)
        self.mark(0, "start")
        self.stacks = open(os.path.splitext(self.path)[0] + ".stacks", "wb")
        faulthandler.register(STACKS_SIGNAL, self.stacks, all_threads=True)

    def mark(self, step: int, phase: str) -> None:
        """Record that a phase of a step begins; takes some microseconds at most."""
        if self.record is None:
            return
        now = monotonic()
        if step != self.step:
            self.step, self.begun = step, now
        self.marks += 1
        RECORD.pack_into(self.record, 0, MAGIC, self.marks, step, now, self.begun, phase.encode(), self.marks)

    def answer(self, collectives: Callable[[], bytes]) -> None:
        """Let a thread wait for a question at the pipe ``<rank>.ask``, and write what ``collectives`` returns to
        ``<rank>.collectives``: the flight recorder of the collectives of this rank, as JSON."""
        if self.record is not None:
            threading.Thread(target=self._answer, args=(collectives,), name="orch-answer", daemon=True).start()

    def _answer(self, collectives: Callable[[], bytes]) -> None:
        base = os.path.splitext(self.path)[0]
        try:
            os.mkfifo(base + ".ask", 0o600)
            while True:
                with open(base + ".ask", "rb", buffering=0) as question:  # waits until somebody opens the other end
                    while question.read(64):
                        pass
                with open(base + ".collectives.tmp", "wb") as file:
                    file.write(collectives())
                os.rename(base + ".collectives.tmp", base + ".collectives")
        except (OSError, RuntimeError):
            return  # nobody gets an answer any more; training goes on


_own = Progress(os.environ.get("ORCH_PROGRESS", ""))
mark = _own.mark
answer = _own.answer
