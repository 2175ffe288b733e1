"""Getting bytes to a server's port within a time limit: name, TCP, or the user's ProxyCommand."""

from __future__ import annotations

import errno
import os
import queue
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from typing import Any

from orchestrator.errors import TransportError
from orchestrator.transport.ssh.config import Endpoint

__all__ = ["dial", "greets"]

_DEAD_LINE_MS = 10_000
"""A write that nobody acknowledges ends the connection after this long, instead of after the kernel's quarter of an hour."""

_THIN_LINEAR_TIMEOUTS = 16
"""Linux's TCP_THIN_LINEAR_TIMEOUTS, which the socket module does not name: on a lossy line a beat is sent again every 0.2 s,
where the pause would otherwise double each time until the silence looks like the end of the node. Linux does so for streams
that have left slow start, by a threshold that BBR never sets."""

_AGAIN_S = 0.4
"""Pause between the connections that ask for a greeting. What one of them loses, it sends again only after a second."""
_ASKING = 3
"""So many of them at once: a server refuses more than ten that have not logged in (MaxStartups)."""

_REASONS = {
    errno.ECONNREFUSED: ("connection refused on port {port}", "is sshd running, and on this port?"),
    errno.EHOSTUNREACH: ("no route to the host", "is it switched on, and on this network?"),
    errno.ENETUNREACH: ("no route to its network", "is this machine on the cluster's network, or is a jump host needed?"),
    errno.ECONNRESET: ("connection reset on port {port}", "does a firewall stand in between?"),
}


def dial(endpoint: Endpoint, deadline: float) -> Any:
    """Return a connected socket to the server, or something that behaves like one. ``deadline`` is on the monotonic clock.

    Raises TransportError host_unreachable with the cause in its message.
    """
    if endpoint.proxy_command:
        return _Proxy(endpoint.proxy_command)
    addresses = _addresses(endpoint, deadline)
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        last = index == len(addresses) - 1
        limit_s = (deadline - time.monotonic()) / (len(addresses) - index)  # a dead IPv6 route must leave IPv4 its time
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.05, limit_s))
            sock.connect(address)
            _tune(sock)
        except OSError as error:
            sock.close()
            if last:
                raise _unreachable(endpoint, error) from error
        else:
            return sock
    raise endpoint.error("host_unreachable", "its name has no address")


def greets(endpoint: Endpoint, wanted: Callable[[], bool]) -> bool:
    """Tell whether an SSH server answers there on one of several fresh connections; nothing is said to it.

    Every 0.4 s another connection is made, as long as the answer is ``wanted``. Raises TransportError host_unreachable where
    its name does not resolve.
    """
    addresses = cycle(_addresses(endpoint, time.monotonic() + _AGAIN_S * _ASKING))
    asked: list[socket.socket] = []
    try:
        while wanted():
            family, kind, protocol, _, address = next(addresses)
            sock = socket.socket(family, kind, protocol)
            asked.append(sock)
            sock.setblocking(False)
            sock.connect_ex(address)
            if _one_greets(asked, time.monotonic() + _AGAIN_S):
                return True
            for old in asked[: 1 - _ASKING]:
                old.close()
            del asked[: 1 - _ASKING]
        return False
    finally:
        for sock in asked:
            sock.close()


def _one_greets(asked: list[socket.socket], until: float) -> bool:
    """Wait for a greeting on any of these; one that ends or says something else is not heard any further."""
    with selectors.PollSelector() as waiting:
        for sock in asked:
            waiting.register(sock, selectors.EVENT_READ)
        while (left_s := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                with suppress(OSError):
                    if key.fileobj.recv(4) == b"SSH-":  # type: ignore[union-attr]
                        return True
                waiting.unregister(key.fileobj)
    return False


def _addresses(endpoint: Endpoint, deadline: float) -> list[Any]:
    try:
        return socket.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        pass
    # The resolver knows no time limit, so it works in a thread of its own, which is left behind if it must be.
    box: queue.Queue[list[Any] | Exception] = queue.Queue()

    def ask() -> None:
        try:
            box.put(socket.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            box.put(error)

    threading.Thread(target=ask, daemon=True, name=f"resolve {endpoint.address}").start()
    hint = "check the address in the inventory, or HostName in the ssh configuration"
    try:
        answer = box.get(timeout=max(0.05, deadline - time.monotonic()))
    except queue.Empty:
        text = f"the name {endpoint.address} did not resolve within {endpoint.connect_timeout_s:g} s"
        raise endpoint.error("host_unreachable", text, hint) from None
    if isinstance(answer, Exception):
        cause = answer.strerror if isinstance(answer, OSError) else str(answer)
        raise endpoint.error("host_unreachable", f"the name {endpoint.address} does not resolve ({cause})", hint) from answer
    return answer


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_LINE_MS)
        sock.setsockopt(socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS, 1)
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # always there, and allowed to everybody


def _unreachable(endpoint: Endpoint, error: OSError) -> TransportError:
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        text = f"no answer on port {endpoint.port} within {endpoint.connect_timeout_s:g} s"
        return endpoint.error("host_unreachable", text, "is it switched on, and does a firewall let port and address through?")
    text, hint = _REASONS.get(error.errno or 0, (str(error.strerror or error), ""))
    return endpoint.error("host_unreachable", text.format(port=endpoint.port), hint)


class _Proxy:
    """The standard input and output of a ProxyCommand, as a socket; paramiko's own can only be read by polling."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._sock = ours
        self.send, self.recv_into, self.shutdown = ours.send, ours.recv_into, ours.shutdown
        self.settimeout, self.getpeername, self.fileno = ours.settimeout, ours.getpeername, ours.fileno

    @property
    def _closed(self) -> bool:
        return self._sock.fileno() < 0

    def close(self) -> None:
        """Close the pipe and end the command with everything it started."""
        self._sock.close()
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, 15)
                self._process.wait(1.0)
            except ProcessLookupError:
                self._process.wait()
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, 9)
                self._process.wait()
