"""Work distributed over processes, one per processor, if there is enough of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["shared_out"]

_SHARES = 16
"""Parts into which the work of one process is divided: enough that the others do not wait long for the last one."""

Job = TypeVar("Job")
Result = TypeVar("Result")


def shared_out(work: Callable[[Sequence[Job]], Result], jobs: Sequence[Job], *, worth: bool, most: int = 8) -> Iterator[Result]:
    """Yield the result of ``work`` for each share of the jobs, in order, from ``most`` processes at most.

    Unless ``worth`` is true, yield one result for all jobs, from this process. Jobs and results are pickled; errors that
    ``work`` raises are raised here.
    """
    width = min(most, len(os.sched_getaffinity(0)), len(jobs))
    if not worth or width < 2:
        yield work(jobs)
        return
    share = -(-len(jobs) // (width * _SHARES))
    # Only this process handles Ctrl-C; it then waits just for the shares in progress.
    ignored = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(width, get_context("spawn"), initializer=signal.signal, initargs=ignored) as pool:
        try:
            yield from pool.map(work, (jobs[at : at + share] for at in range(0, len(jobs), share)))
        finally:
            pool.shutdown(cancel_futures=True)
