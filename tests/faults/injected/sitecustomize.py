"""Loaded by the Python of a node when its folder is in PYTHONPATH: breaks or pauses a rank that
knows nothing of it.

What happens comes about in a `time.sleep` of the main thread, which is how the simulated trainer
computes: outside of every collective. A fault comes at SIGUSR1, and the file that ``INJECT_FAULT``
names says which one; with ``INJECT_AT_ONCE`` it comes about in the handler, for programs that
compute in C and not in `time.sleep`. Pauses come by themselves, as often and as long as
``INJECT_PAUSES`` says (seconds from one to the next, the shortest, the longest); with
``INJECT_SILENT`` the rank reports no progress, as programs of others do not; with
``INJECT_DECLARED`` it reports the phase of each pause, as our trainers do. The file that
``INJECT_PAUSED`` names gets a line for each begin and end of a pause: rank, monotonic clock, and
its kind or ``over``.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

_sleep = time.sleep
_asked: list[str] = []


def _loop() -> None:
    while True:
        pass


def _asleep() -> None:
    while True:
        _sleep(3600)


def _lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _socket() -> None:
    mine, _theirs = socket.socketpair()
    mine.recv(1)


def _pipe() -> None:
    reader = subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE)
    while True:
        os.write(reader.stdin.fileno(), bytes(65536))  # type: ignore[union-attr]


def _skip() -> None:
    """Leave out every collective from now on."""
    sys.modules["simulated_ring"].Ring.all_reduce = lambda self, step: None  # type: ignore[attr-defined]


def _unsynchronised() -> None:
    """Let DistributedDataParallel average nothing from now on, as in a `no_sync` that was never
    left, and leave out other collectives: gloo ends a rank with an error if it meets one of another
    size."""
    torch = sys.modules["torch"]
    if "lm_steps" in sys.modules:  # which sets the attribute below in every step
        sys.modules["lm_steps"].synchronise = lambda *_: None  # type: ignore[attr-defined]
    torch.distributed.all_reduce = lambda *_, **__: None
    for instance in gc.get_objects():
        if isinstance(instance, torch.nn.parallel.DistributedDataParallel):
            instance.require_backward_grad_sync = False


def _barrier() -> None:
    """Call a collective that no other rank calls."""
    sys.modules["torch"].distributed.barrier()


_FAULTS = {
    "nosync": _unsynchronised,
    "barrier": _barrier,
    "loop": _loop,
    "asleep": _asleep,
    "lock": _lock,
    "socket": _socket,
    "pipe": _pipe,
    "skip": _skip,
}


def _checkpoint(seconds: float) -> None:
    end = time.monotonic() + seconds
    with open("checkpoint", "wb") as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(bytes(1 << 16))
            os.fsync(file.fileno())
            _sleep(0.2)


def _evaluation(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))
        _sleep(0.02)


def _compilation(seconds: float) -> None:
    subprocess.run(["sleep", f"{seconds:.1f}"], check=False)


def _upload(seconds: float) -> None:
    _sleep(seconds)


def _stream(seconds: float) -> None:
    """Write a checkpoint into a program that reads nothing for so long."""
    reader = subprocess.Popen(
        ["sh", "-c", f"sleep {seconds:.1f}; cat > /dev/null"], stdin=subprocess.PIPE
    )
    reader.communicate(bytes(4 << 20))


def _stall(seconds: float) -> None:
    """Wait for samples that come late, half as long as the other pauses."""
    _sleep(seconds / 2)


_PAUSES = {
    _checkpoint: "checkpoint",
    _evaluation: "evaluate",
    _compilation: "compile",
    _upload: "checkpoint",
    _stream: "checkpoint",
    _stall: "input",
}
"""How a rank pauses, and the phase that it is in meanwhile."""


def _pause(chance: random.Random, seconds: float) -> None:
    pause = chance.choice(list(_PAUSES))
    _note(pause.__name__)
    if "INJECT_DECLARED" in os.environ:
        progress: Any = sys.modules["rank_progress"]
        step = progress._own.step
        progress.mark(step, _PAUSES[pause])
        pause(seconds)
        progress.mark(step, "compute")
    else:
        pause(seconds)
    _note("over")


def _note(word: str) -> None:
    if "INJECT_PAUSED" in os.environ:
        with open(os.environ["INJECT_PAUSED"], "a") as file:
            file.write(f"{os.environ['RANK']} {time.monotonic()} {word}\n")


def _ask(*_: Any) -> None:
    with open(os.environ["INJECT_FAULT"]) as file:
        _asked.append(file.read().strip())
    if "INJECT_AT_ONCE" in os.environ:
        _FAULTS[_asked.pop()]()


def _sleep_or_break(seconds: float) -> None:
    if _asked and threading.current_thread() is threading.main_thread():
        _FAULTS[_asked.pop()]()
    _sleep(seconds)


def _pausing() -> Any:
    every_s, least_s, most_s = map(float, os.environ["INJECT_PAUSES"].split())
    chance = random.Random(int(os.environ["RANK"]) + int(os.environ["MASTER_PORT"]))
    due = [time.monotonic() + every_s * chance.uniform(0.5, 1.5)]

    def sleep(seconds: float) -> None:
        if time.monotonic() > due[0]:
            _pause(chance, chance.uniform(least_s, most_s))
            due[0] = time.monotonic() + every_s * chance.uniform(0.5, 1.5)
        _sleep(seconds)

    return sleep


if "RANK" in os.environ and "rank_wrapper.py" not in " ".join(sys.orig_argv):
    if "INJECT_SILENT" in os.environ:
        os.environ.pop("ORCH_PROGRESS", None)
    if "INJECT_PAUSES" in os.environ:
        time.sleep = _pausing()
    elif "INJECT_FAULT" in os.environ:
        time.sleep = _sleep_or_break
        signal.signal(signal.SIGUSR1, _ask)
