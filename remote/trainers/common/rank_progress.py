"""The progress of a rank, for whoever looks at it from outside: its step and phase in a small file,
its stacks at a signal.

Python 3.6 or newer, standard library only. The wrapper of a rank names the file in
``ORCH_PROGRESS``; without that variable all of this does nothing. Another program may write such a
file as well. It has 64 bytes, little-endian: the text ``orchprg1``; the number of marks so far (8
bytes); the step that has begun (8 bytes, signed, 0 before the first one); the monotonic clock at
this mark and at the begin of this step (seconds, 8 bytes each, floating point); the phase (16
bytes, ASCII, filled with zeros); the number of marks again. A reader that sees two different
numbers of marks reads again. Eight more bytes may follow: the phases that were ever marked, a bit
for each of `PHASES`, one for any other, and one that `declare_pauses` sets.

Phases: ``input`` (waiting for the samples of the step), ``compute``, ``collective`` (waiting for
other ranks), ``step`` (both, where a program cannot tell them apart), and those that may take any
time: ``start``, ``compile``, ``checkpoint``, ``evaluate``,
``end``.

At import a thread is started that waits for questions: at one it writes the stacks of all threads,
and the flight recorder of PyTorch's collectives, where the program has any. It holds the
interpreter meanwhile: a handler that reads the stack of a thread which runs Python at that moment
may crash the process. The signal is for programs whose C code keeps the interpreter. An exception
that nobody catches leaves the recorder as well.
"""

import faulthandler
import mmap
import os
import signal
import struct
import sys
import threading
from contextlib import suppress
from time import monotonic
from typing import Any, Optional

RECORD = struct.Struct("<8sQqdd16sQ")
MARKED = struct.Struct("<Q")
PHASES = ("input", "compute", "collective", "step")
ANY_OTHER, DECLARES = 1 << 4, 1 << 7
MAGIC = b"orchprg1"
STACKS_SIGNAL = int(signal.SIGRTMIN) + 14
"""At this signal a rank writes the stacks of its threads; no program that we know of uses it."""


class Progress:
    """The file of one rank, or nothing for an empty ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.record: Optional[mmap.mmap] = None
        self.marks, self.step, self.begun, self.marked = 0, 0, monotonic(), 0
        self.pid = os.getpid()
        self.stacks: Any = None
        if path:
            try:
                self._open()
            except (
                OSError
            ):  # a full disk, or a folder that is gone: the run itself does not need this file
                self.record = None

    def _open(self) -> None:
        handle = os.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            size = RECORD.size + MARKED.size
            os.write(
                handle, bytes(size)
            )  # before it is mapped: a page without a block would be a fatal signal
            self.record = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        self.mark(0, "start")
        self.stacks = open(os.path.splitext(self.path)[0] + ".stacks", "wb")
        faulthandler.register(STACKS_SIGNAL, self.stacks, all_threads=True)
        threading.Thread(target=self._answer, name="orch-answer", daemon=True).start()
        reports, sys.excepthook = sys.excepthook, self._leave
        self.reports: Any = reports

    def mark(self, step: int, phase: str) -> None:
        """Record that a phase of a step begins; takes some microseconds at most."""
        if self.record is None:
            return
        now = monotonic()
        if step != self.step:
            self.step, self.begun = step, now
        self.marks += 1
        RECORD.pack_into(
            self.record, 0, MAGIC, self.marks, step, now, self.begun, phase.encode(), self.marks
        )
        if phase != "start":
            self._note(1 << PHASES.index(phase) if phase in PHASES else ANY_OTHER)

    def declare_pauses(self) -> None:
        """State that every phase of this program that may take long is marked: a hang in any other
        is then ended sooner.
        """
        self._note(DECLARES)

    def _note(self, bits: int) -> None:
        if self.record is not None and self.marked | bits != self.marked:
            self.marked |= bits
            MARKED.pack_into(self.record, RECORD.size, self.marked)

    def _answer(self) -> None:
        """Wait for questions at the pipe ``<rank>.ask``, and answer in ``<rank>.collectives``."""
        base = os.path.splitext(self.path)[0]
        try:
            if hasattr(threading, "get_native_id"):
                with open(base + ".thread", "w") as file:
                    file.write(str(threading.get_native_id()))
            if not os.path.exists(base + ".ask"):
                os.mkfifo(base + ".ask", 0o600)
            while True:
                with open(
                    base + ".ask", "rb", buffering=0
                ) as question:  # waits until somebody opens the other end
                    while question.read(64):
                        pass
                faulthandler.dump_traceback(self.stacks, all_threads=True)
                self._write(collectives())
        except (OSError, RuntimeError):
            return  # nobody gets an answer any more; training goes on

    def _leave(self, *exception: Any) -> None:
        """Leave the flight recorder of a rank that ends with an exception: nobody can ask it any
        more.
        """
        if os.getpid() == self.pid:
            with suppress(OSError, RuntimeError):  # the exception is what matters
                self._write(collectives())
        self.reports(*exception)

    def _write(self, content: bytes) -> None:
        base = os.path.splitext(self.path)[0]
        with open(base + ".collectives.tmp", "wb") as file:
            file.write(content)
        os.rename(base + ".collectives.tmp", base + ".collectives")


def collectives() -> bytes:
    """Return the records of PyTorch's flight recorder on the collectives of this process, as JSON.

    Empty in a program without them, or in a PyTorch without a recorder for its backend. It records
    only where TORCH_FR_BUFFER_SIZE is set, before 2.8 TORCH_NCCL_TRACE_BUFFER_SIZE.
    """
    distributed = sys.modules.get("torch.distributed")
    native = sys.modules.get("torch._C._distributed_c10d")
    if distributed is None or native is None or not distributed.is_initialized():
        return b""
    recorders = (
        "_dump_nccl_trace_json",
        "_dump_fr_trace_json",
    )  # the first is NCCL's own, the second gloo's
    recorder = getattr(native, recorders["nccl" not in distributed.get_backend()], None)
    return bytes(recorder()) if recorder is not None else b""


_own = Progress(os.environ.get("ORCH_PROGRESS", ""))
mark = _own.mark
declare_pauses = _own.declare_pauses
