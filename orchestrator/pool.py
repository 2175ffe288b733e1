"""Work shared out over processes, one for each processor, where there is enough of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["shared_out"]

_SHARES = 16
"""Parts in which a process gets its work: enough of them that none is long the last one."""

Job = TypeVar("Job")
Result = TypeVar("Result")


def shared_out(work: Callable[[Sequence[Job]], Result], jobs: Sequence[Job], *, worth: bool, most: int = 8) -> Iterator[Result]:
    """Yield what ``work`` makes of one share of the jobs after the other, in their order; of all at once where it is not worth
    more processes, ``most`` at most. Everything travels pickled, and what ``work`` raises is raised here."""
    width = min(most, len(os.sched_getaffinity(0)), len(jobs))
    if not worth or width < 2:
        yield work(jobs)
        return
    share = -(-len(jobs) // (width * _SHARES))
    # Ctrl-C is for this process to hear, which then waits for no more than what is being worked at.
    ignored = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(width, get_context("spawn"), initializer=signal.signal, initargs=ignored) as pool:
        try:
            yield from pool.map(work, (jobs[at : at + share] for at in range(0, len(jobs), share)))
        finally:
            pool.shutdown(cancel_futures=True)
