"""Work distributed over processes, one per processor, if there is enough of it.

The processes end with the one that started them, also if that is killed: `end_with_parent`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import TypeVar

_SHARES = 16
"""Parts into which the work of one process is divided: enough that the others do not wait long for
the last one.
"""

Job = TypeVar("Job")
Result = TypeVar("Result")


def share_out(
    work: Callable[[Sequence[Job]], Result], jobs: Sequence[Job], *, worth: bool, most: int = 8
) -> Iterator[Result]:
    """Yield the result of ``work`` for each share of the jobs, in order, from ``most`` processes at
    most.

    Unless ``worth`` is true, yield one result for all jobs, from this process. Jobs and results are
    pickled; errors that
    ``work`` raises are raised here.
    """
    width = min(most, len(os.sched_getaffinity(0)), len(jobs))
    if not worth or width < 2:
        yield work(jobs)
        return
    share = -(-len(jobs) // (width * _SHARES))
    with ProcessPoolExecutor(width, get_context("spawn"), initializer=_begin) as pool:
        try:
            yield from pool.map(work, (jobs[at : at + share] for at in range(0, len(jobs), share)))
        except BaseException:  # Ctrl-C too: a share of a large site takes half a minute, and nobody wants its result any more
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def end_with_parent(end: Callable[[], object]) -> None:
    """In a process of a pool: call ``end`` in a thread of its own when the parent has ended.

    It is called at once if the parent has already ended.

    A worker whose parent was killed would wait for its next share forever, because it holds both
    ends of the pipe through which shares come. It would also finish the shares that it has, and
    write pages into the folder of the next build of a site.
    """
    # Both look at a pipe whose other end only the parent has. Unlike PR_SET_PDEATHSIG, the pipe shows
    # a parent that ended before this began, and does not mistake the end of the thread that started
    # this process for the end of the parent.
    parent = parent_process()
    assert parent, "not a process of a pool"
    if not parent.is_alive():
        end()

    def wait() -> None:
        parent.join()
        end()

    threading.Thread(target=wait, daemon=True, name="parent").start()


def _begin() -> None:
    # Only the parent handles Ctrl-C; it then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(lambda: os._exit(1))
