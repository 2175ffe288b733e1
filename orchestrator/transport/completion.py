"""A command run to its end over a channel that takes all of its output: `run_to_end`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.errors import RunError, TransportError
from orchestrator.inventory import Host
from orchestrator.transport.protocols import Channel, Result


class TakingChannel(Channel, Protocol):
    """A channel that keeps both outputs until the end of the command."""

    def send_until(self, data: bytes, deadline: float | None) -> None:
        """Send by the monotonic ``deadline``, or without one as long as the node accepts data every
        `STALL_S`.
        """

    def read_output(self) -> tuple[bytes, bytes, bool]:
        """Return standard output and standard error, and whether one exceeded the limit."""


def run_to_end(
    host: Host,
    argv: Sequence[str],
    input: bytes,
    timeout_s: float,
    start: Callable[[float], TakingChannel],
    is_alive: Callable[[], bool],
) -> Result:
    """Start a command by a monotonic deadline, send ``input``, wait for its end, close the channel,
    and return the outcome.

    Raises TransportError node_lost if the connection breaks or ``timeout_s`` passes, RunError
    output_limit, and errors of
    ``start``.
    """
    deadline = time.monotonic() + timeout_s
    channel = start(deadline)
    try:
        try:
            channel.send_until(input, deadline)
        except TransportError:
            if not is_alive():
                raise  # otherwise it ended, or closed its input, without reading all of it, which is not an error
        channel.shutdown_write()
        code, signal = channel.ending(max(0.0, deadline - time.monotonic()))
        stdout, stderr, too_much = channel.read_output()
    except TimeoutError:
        text = f"{argv[0]} did not finish within {timeout_s:g} s"
        raise TransportError(text, kind="node_lost", host=host.name) from None
    finally:
        channel.close()
    if too_much:
        raise RunError(
            f"{argv[0]} wrote more output than orch can keep", kind="output_limit", host=host.name
        )
    return Result(code, signal, stdout, stderr)
