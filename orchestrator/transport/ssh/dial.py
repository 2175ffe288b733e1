"""Connecting to a server's port within a time limit: name resolution, TCP, or the user's
ProxyCommand.
"""

from __future__ import annotations

import errno
import queue
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from typing import Any

from orchestrator.errors import TransportError
from orchestrator.procs import signal_group, start_program
from orchestrator.transport.ssh.config import Endpoint

_DEAD_LINE_MS = 10_000
"""A write without an acknowledgement ends the connection after this time, instead of the kernel's
quarter of an hour.
"""

_THIN_LINEAR_TIMEOUTS = 16
"""Linux's TCP_THIN_LINEAR_TIMEOUTS, which the socket module does not define: on a lossy network a
heartbeat is sent again every 0.2 s; otherwise the pause would double each time, until the silence
looks like the end of the node. Linux applies it to streams that have left slow start, by a
threshold that BBR never sets."""

_AGAIN_S = 0.4
"""Pause between connections that wait for a greeting; a single connection resends a lost packet
only after a second.
"""
_ASKING = 3
"""Maximum number of such connections at once: servers refuse more than ten that have not logged in
(MaxStartups).
"""

_REASONS = {
    errno.ECONNREFUSED: ("connection refused on port {port}", "is sshd running, and on this port?"),
    errno.EHOSTUNREACH: ("no route to the host", "is it switched on, and on this network?"),
    errno.ENETUNREACH: (
        "no route to its network",
        "is this machine on the cluster's network, or is a jump host needed?",
    ),
    errno.ECONNRESET: ("connection reset on port {port}", "is there a firewall in between?"),
}


def dial(endpoint: Endpoint, deadline: float) -> Any:
    """Return a connected socket to the server, or an object that behaves like one. ``deadline`` is
    on the monotonic clock.

    Raises TransportError host_unreachable with the cause in its message.
    """
    if endpoint.proxy_command:
        return _Proxy(endpoint.proxy_command)
    addresses = _addresses(endpoint, deadline)
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        last = index == len(addresses) - 1
        limit_s = (deadline - time.monotonic()) / (
            len(addresses) - index
        )  # a dead IPv6 route must leave time for IPv4
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


def greets(endpoint: Endpoint, is_needed: Callable[[], bool]) -> bool:
    """Return True if an SSH server answers on one of several new connections, to which nothing is
    sent.

    Makes another connection every 0.4 s, as long as ``is_needed`` returns True. Raises
    TransportError host_unreachable if the name does not resolve.
    """
    addresses = cycle(_addresses(endpoint, time.monotonic() + _AGAIN_S * _ASKING))
    sockets: list[socket.socket] = []
    try:
        while is_needed():
            family, kind, protocol, _, address = next(addresses)
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.connect_ex(address)
            if _any_greets(sockets, time.monotonic() + _AGAIN_S):
                return True
            for old in sockets[: 1 - _ASKING]:
                old.close()
            del sockets[: 1 - _ASKING]
        return False
    finally:
        for sock in sockets:
            sock.close()


def _any_greets(sockets: list[socket.socket], until: float) -> bool:
    """Wait for a greeting on any of these sockets; ignore a socket that closes or sends something
    else.
    """
    with selectors.PollSelector() as waiting:
        for sock in sockets:
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
        return socket.getaddrinfo(
            endpoint.address, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except (OSError, UnicodeError):
        pass
    # The resolver has no timeout, so it runs in a thread of its parent_end, which is abandoned if
    # necessary.
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
        text = (
            f"the name {endpoint.address} did not resolve within {endpoint.connect_timeout_s:g} s"
        )
        raise endpoint.error("host_unreachable", text, hint) from None
    if isinstance(answer, Exception):
        cause = answer.strerror if isinstance(answer, OSError) else str(answer)
        raise endpoint.error(
            "host_unreachable", f"the name {endpoint.address} does not resolve ({cause})", hint
        ) from answer
    return answer


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_LINE_MS)
        sock.setsockopt(socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS, 1)
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr"):
            sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"
            )  # always available, and allowed for every user


def _unreachable(endpoint: Endpoint, error: OSError) -> TransportError:
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        text = f"no answer on port {endpoint.port} within {endpoint.connect_timeout_s:g} s"
        return endpoint.error(
            "host_unreachable",
            text,
            "is it switched on, and does a firewall let port and address through?",
        )
    text, hint = _REASONS.get(error.errno or 0, (str(error.strerror or error), ""))
    return endpoint.error("host_unreachable", text.format(port=endpoint.port), hint)


class _Proxy:
    """The standard input and output of a ProxyCommand as a socket; paramiko's parent_end class can
    only be read by polling.
    """

    def __init__(self, command: str) -> None:
        parent_end, child_end = socket.socketpair()
        self._process = start_program(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=child_end.fileno(),
            stdout=child_end.fileno(),
            stderr=subprocess.DEVNULL,
        )
        child_end.close()
        self._sock = parent_end
        self.send, self.recv_into, self.shutdown = (
            parent_end.send,
            parent_end.recv_into,
            parent_end.shutdown,
        )
        self.settimeout, self.getpeername, self.fileno = (
            parent_end.settimeout,
            parent_end.getpeername,
            parent_end.fileno,
        )

    @property
    def _closed(self) -> bool:
        return self._sock.fileno() < 0

    def exit_status(self) -> int | None:
        """Return the exit status of the command, None if it still runs a second after it closed its
        output.
        """
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return None

    def close(self) -> None:
        """Close the socket and end the command with its whole process group."""
        self._sock.close()
        signal_group(self._process, signal.SIGTERM)
        if self.exit_status() is None:
            signal_group(self._process, signal.SIGKILL)
            self._process.wait()
