"""Ports for servers of tests."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port on which nobody listens at this moment.

    Where it can be, it is none of those that the kernel gives to connections, of which another
    test may get it before the server has it.
    """
    count = int(_RANGE.read_text().split()[0]) - _FIRST
    for _ in range(100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((address, _FIRST + secrets.randbelow(count) if count > 1000 else 0))
            return int(probe.getsockname()[1])
    raise AssertionError(f"no port of {address} is free")
