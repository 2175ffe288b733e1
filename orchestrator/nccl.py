"""What NCCL says of itself in its own log: the network that it chose, and over which interface.

The lines, as NCCL 2.4 to 2.28 print them at NCCL_DEBUG=INFO:

    node1:179:179 [0] NCCL INFO NET/IB : No device found.
    node1:179:179 [0] NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>
    node1:179:179 [0] NCCL INFO Using network Socket
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["networks"]

_CHOSEN = re.compile(rb"NCCL INFO Using network (?P<name>[A-Za-z0-9_ -]{1,40}?)\s*$", re.MULTILINE)
_INTERFACE = re.compile(rb"NCCL INFO NET/(?P<name>Socket|IB) : Using \[0\](?P<device>[A-Za-z0-9_.-]{1,32})")


def networks(logs: Iterable[bytes]) -> tuple[str, ...]:
    """Return the distinct networks that NCCL chose, as it names them, with the first interface of each.

    >>> networks([b"n:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>\\nn:1:1 [0] NCCL INFO Using network Socket\\n"])
    ('NET/Socket on eth0',)
    """
    found: dict[str, None] = {}
    for data in logs:
        devices = {match["name"]: match["device"].decode() for match in _INTERFACE.finditer(data)}
        for match in _CHOSEN.finditer(data):
            device = devices.get(match["name"])
            name = match["name"].decode()
            found[f"NET/{name} on {device}" if device else f"NET/{name}"] = None
    return tuple(sorted(found))
