"""What NCCL's own service says of its ranks, asked of a process that listens and answers as NCCL
2.28 does.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import judge
from tests.support.judge import LIMIT_S

REMOTE = Path(__file__).parents[3] / "remote"
STATUS = "NCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n===========\n"


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The part of the node runner."""
    monkeypatch.syspath_prepend(str(REMOTE))
    return importlib.import_module("noderun.stacks")


@contextmanager
def service(
    family: socket.AddressFamily, address: str, pause_s: float
) -> Iterator[tuple[int, list[bytes]]]:
    """Listen as NCCL does; yield the port and the orders that came. The status comes after
    ``pause_s``, and is all.
    """
    orders: list[bytes] = []
    over = threading.Event()
    server = socket.socket(family)
    server.bind((address, 0))
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                orders.append(line)
                if line.startswith(b"timeout "):
                    connection.sendall(b"OK\n")
                else:
                    over.wait(pause_s)
                    with suppress(OSError):  # the other end has not waited
                        connection.sendall(STATUS.encode())
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], orders
    finally:
        over.set()
        thread.join(LIMIT_S)
        server.close()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
)
def test_nccl_is_asked_where_a_rank_listens(
    stacks: Any, monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, address: str
) -> None:
    with service(family, address, 0.0) as (port, orders):
        monkeypatch.setattr(stacks, "RAS_PORT", port)
        assert stacks.RasQuestion([os.getpid()]).words() == STATUS
    assert orders == [b"timeout 1\n", b"verbose status\n"]


def test_an_answer_that_does_not_come_is_not_waited_for(
    stacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(socket.AF_INET, "127.0.0.1", 60.0) as (port, _):
        monkeypatch.setattr(stacks, "RAS_PORT", port)
        monkeypatch.setattr(stacks, "RAS_S", 0.2)
        assert stacks.RasQuestion([os.getpid()]).words() == ""


def test_a_port_of_another_process_is_not_asked(
    stacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(socket.AF_INET, "127.0.0.1", 0.0) as (port, orders):
        monkeypatch.setattr(stacks, "RAS_PORT", port)
        assert stacks.RasQuestion([os.getppid()]).words() == ""
        socket.create_connection(("127.0.0.1", port)).close()
    assert orders == []


def test_the_environment_of_a_rank_says_which_port(stacks: Any, tmp_path: Path) -> None:
    environment = {"NCCL_RAS_ADDR": "localhost:28999", "PATH": os.environ["PATH"]}
    child = os.posix_spawn(
        sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], environment
    )
    try:
        # A process has its environment a moment after it has begun to execute its program.
        judge.wait_for(
            lambda: stacks.ras_port([os.getpid(), child]) == 28999, 5, "its environment is not seen"
        )
        assert stacks.ras_port([os.getpid()]) == stacks.RAS_PORT
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
