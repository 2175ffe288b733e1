"""Namespaces by which processes are ended must stay the ones they were: the kernel gives a number
again at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from orchestrator.procs import hold_namespaces, namespace
from tests.support import judge

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces")


@contextmanager
def networks(count: int) -> Iterator[list[int]]:
    """Yield the first processes of so many new network namespaces, all there at the same time."""
    argv = ["unshare", "--net", "--", "sleep", "1000"]
    with ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(argv)) for _ in range(count)]
        stack.callback(lambda: [one.kill() for one in started])
        own = namespace(os.getpid(), "net")
        for one in started:
            judge.wait_for(
                lambda pid=one.pid: namespace(pid, "net") not in ("", own), 10, "no network came"
            )
        yield [one.pid for one in started]


def numbers_of_newcomers(count: int) -> set[str]:
    with networks(count) as pids:
        return {namespace(pid, "net") for pid in pids}


def test_the_number_of_a_held_namespace_is_given_to_nobody_else() -> None:
    with networks(8) as pids, hold_namespaces(pids, "net") as held:
        assert held == {namespace(pid, "net") for pid in pids}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        judge.wait_for(
            lambda: not any(namespace(pid, "net") for pid in pids), 10, "they do not end"
        )
        assert not any(held & numbers_of_newcomers(16) for _ in range(4))


def a_number_is_given_again() -> bool:
    with networks(8) as pids:
        ended = {namespace(pid, "net") for pid in pids}
    return bool(ended & numbers_of_newcomers(16))


def test_the_kernel_gives_numbers_again_once_nobody_holds_them() -> None:
    # The fault that holding prevents. Other programs take numbers too, so each try makes its own.
    judge.wait_for(a_number_is_given_again, 60, "the kernel gave no number twice")


def test_a_process_that_is_gone_holds_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with hold_namespaces([gone.pid, 0], "net") as held:
        assert held == frozenset()
