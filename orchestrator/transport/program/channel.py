"""One remote command as the standard streams and the exit code of a local program:
`ProgramChannel`.

The program runs in a session of its own, so that Ctrl-C at the terminal does not reach it. If this
process dies, the program's standard input ends, and programs such as ``ssh`` and ``srun`` hand that
on. One thread per channel receives both outputs.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from orchestrator.errors import ConfigError, TransportError
from orchestrator.inventory import Host
from orchestrator.procs import signal_group, start_program
from orchestrator.transport import streams
from orchestrator.transport.receiver import Receiver
from orchestrator.transport.streams import OUTPUT_LIMIT_BYTES, STDERR_TAIL_BYTES, Inbox

_WINDOW_BYTES = 4 << 20
"""Bytes of output that may wait to be read before the program has to wait too."""

_PIECE_BYTES = 256 * 1024
_SET_PIPE_SIZE = 1031
"""Linux's F_SETPIPE_SZ, which the fcntl module has only where it was built with it."""

_PIPE_BYTES = 256 * 1024
"""With the usual 64 KiB, a pull at full speed waits at every turn for the other side to be
scheduled.
"""

_EXIT_S = 2.0
"""A program that has closed both outputs normally exits at once."""

_QUIET_S = 5.0
"""A program whose command is known to be over is killed when nothing has come from it for so long:
kubectl never ends if its command has left input unread.
"""

LEAVE_S = 1.0
"""Time for a program whose channel is closed to end with its standard input, before it is killed.
"""

Outcome = tuple[int | None, str | None] | TransportError
"""Exit code or signal of the remote command; or the error, if the connection to it broke."""


def exit_code(code: int, stderr: bytes) -> Outcome:
    """Return the outcome of a program that always exits with the command's code and that nobody
    else kills.
    """
    if code >= 0:
        return (code, None)
    return TransportError("the connection broke", kind="node_lost")


def shell_ending(code: int) -> tuple[int | None, str | None]:
    """Return how a command ended, from the exit status that a shell or Slurm makes of it: 128 + N
    if the signal N ended it.
    """
    return (None, signal_name(code - 128)) if 128 < code < 128 + signal.NSIG else (code, None)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _LimitedInbox(Inbox):
    """Standard output, which is not received any more while too much of it waits."""

    def __init__(self, keep: int | None, wake_up: Callable[[], None]) -> None:
        super().__init__(keep)
        self._wake_up = wake_up
        self._limit = _WINDOW_BYTES if keep is None else float("inf")
        self._waiting = False

    @property
    def is_full(self) -> bool:
        """Return whether the program must wait until something is read."""
        return len(self) >= self._limit

    def must_wait(self) -> bool:
        """Return `is_full`; if it is, `make_room` will wake up the receiving thread."""
        self._waiting = True  # before the look, so that whoever reads in between sees it
        self._waiting = self.is_full
        return self._waiting

    def make_room(self, size: int) -> None:
        """Let the receiving thread go on."""
        if self._waiting and not self.is_full:
            self._wake_up()


class ProgramChannel(Receiver[_LimitedInbox]):
    """A program that runs. Several threads may use it: the data of one `send` stays together.

    ``outcome`` is called with the program's exit code (negative: a signal ended it) and the end of
    its standard error, once, in the receiving thread, which may wait for it; see `Outcome`. With
    ``take_all`` both streams are received as they arrive, for a caller that reads them when the
    command has ended. ``stderr`` may be an inbox that knows the program's own words.
    """

    def __init__(
        self,
        host: Host,
        argv: Sequence[str],
        outcome: Callable[[int, bytes], Outcome] = exit_code,
        *,
        take_all: bool = False,
        stderr: Inbox | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``argv``. Raises ConfigError if the program cannot be started."""
        stdout = _LimitedInbox(OUTPUT_LIMIT_BYTES if take_all else None, self._wake_up)
        if stderr is None:
            stderr = Inbox(OUTPUT_LIMIT_BYTES if take_all else STDERR_TAIL_BYTES)
        super().__init__(stdout, stderr)
        self._host = host
        self._outcome_of = outcome
        self._outcome: Outcome = (None, None)
        self._sending = threading.Lock()
        self._using = threading.Lock()
        self._over = threading.Event()
        self._closing = False
        self._wake = -1
        pipe = subprocess.PIPE
        try:
            self._process = start_program(
                argv, self._register, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
            )
        except OSError as error:
            raise ConfigError(
                f"{argv[0]} cannot be started: {error.strerror}", where=f"host {host.name}"
            ) from error
        except ValueError as error:
            message = "expected arguments without NUL, got one with it"
            raise ConfigError(message, where="remote command") from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._out, self._err = (
            self._process.stdin,
            self._process.stdout,
            self._process.stderr,
        )
        os.set_blocking(self._stdin.fileno(), False)
        with suppress(OSError):  # above the user's limit
            fcntl.fcntl(self._out.fileno(), _SET_PIPE_SIZE, _PIPE_BYTES)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=self._receive, daemon=True, name=f"{argv[0]} {host.name}"
        )
        self._thread.start()

    def _register(self, process: subprocess.Popen[bytes]) -> None:
        _channels[process] = self

    def send(self, data: bytes) -> None:
        """Send all of ``data`` to the command's standard input. Raises TransportError node_lost if
        the connection broke.

        Also raises node_lost, with another message, if the command ended or closed its input.
        """
        self.send_until(data, None)

    def send_until(self, data: bytes, deadline: float | None) -> None:
        """Send by the monotonic ``deadline``, or without one as long as the node accepts data every
        `STALL_S`.
        """
        with self._sending:
            rest = memoryview(data)
            while rest:
                limit_s = (
                    streams.STALL_S if deadline is None else max(0.001, deadline - time.monotonic())
                )
                try:
                    rest = rest[os.write(self._stdin.fileno(), rest[:_PIECE_BYTES]) :]
                except BlockingIOError:
                    if not self._accepts(limit_s):
                        raise self._lost_error(f"it accepted no data for {limit_s:.0f} s") from None
                except (OSError, ValueError) as error:  # the latter: it is closed on this side
                    raise self._ended_error() from error

    def _accepts(self, limit_s: float) -> bool:
        poll = select.poll()
        poll.register(self._stdin.fileno(), select.POLLOUT)
        return bool(poll.poll(limit_s * 1000))

    @property
    def unread(self) -> bool:
        """Return whether output has arrived that the receiving thread could read now but has not."""
        with self._using:
            if self._out.closed or self._stdout.is_full:
                return False
            poll = select.poll()
            poll.register(self._out.fileno(), select.POLLIN)
            return any(event & select.POLLIN for _, event in poll.poll(0))

    def ending(self, timeout_s: float) -> tuple[int | None, str | None]:
        """Wait for the end of output and command; return its exit code, or the name of the signal
        that ended it.

        Both are None if the program does not tell them. Raises TimeoutError, or TransportError
        node_lost.
        """
        if not self._over.wait(timeout_s):
            raise TimeoutError
        if isinstance(self._outcome, TransportError):
            raise self._ended_error()
        return self._outcome

    def shutdown_write(self) -> None:
        """Close the command's standard input. Does nothing if it is already closed."""
        with self._sending:
            self._stdin.close()

    def close(self) -> None:
        """Close the channel. The program ends with its input, or is killed after a second; nobody
        waits for that.
        """
        self._stdout.ended = self._closing = True
        self._wake_up()

    def abandon(self) -> None:
        """Close the channel because its connection is closed: whoever uses it sees that it broke."""
        self._outcome = TransportError("the connection was closed", kind="node_lost")
        self._closing = True
        self._wake_up()

    def kill(self) -> None:
        """Kill the program and wait for its end; unless the channel is closed, whoever uses it sees
        a connection that broke.
        """
        self._kill_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(LEAVE_S)

    def _kill_all(self) -> None:
        """Kill the program and what it has started in its session, unless it has ended."""
        signal_group(self._process, signal.SIGKILL)

    def _wake_up(self) -> None:
        with self._using:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _ended_error(self) -> TransportError:
        self._over.wait(_EXIT_S)  # a pipe may break before the program has ended
        if isinstance(self._outcome, TransportError):
            return self._lost_error(self._outcome.message, self._outcome.hint)
        return self._lost_error("the command accepts no more input: it ended")

    def _lost_error(self, message: str, hint: str = "") -> TransportError:
        return TransportError(message, kind="node_lost", host=self._host.name, hint=hint)

    # The following methods run in the receiving thread.

    def _receive(self) -> None:
        self._receive_both()
        self._finish()
        del _channels[self._process]

    def _finish(self) -> None:
        try:
            code = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:  # it runs without outputs
            self._stdout.ended = True
            self._stdout.close()
            code = self._process.wait()
        if not self._closing:
            self._outcome = self._outcome_of(code, self.stderr_tail())
        self._stdout.ended = not isinstance(self._outcome, TransportError)
        self._over.set()
        self._stderr.close()
        self._stdout.close()
        with self._sending:
            self._stdin.close()
        with self._using:
            self._out.close()
            self._err.close()
            os.close(self._wake)
            self._wake = -1

    def _receive_both(self) -> None:
        """Receive until both outputs end, or until the channel is closed and the program killed."""
        inboxes: dict[int, Inbox] = {
            self._out.fileno(): self._stdout,
            self._err.fileno(): self._stderr,
        }
        buffer = memoryview(bytearray(_PIECE_BYTES))
        kill_at, is_over = float("inf"), False
        while inboxes:
            if self._closing and kill_at == float("inf"):
                kill_at = time.monotonic() + (LEAVE_S if self._end_input() else 0.0)
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            for handle, inbox in inboxes.items():
                if self._closing or not (isinstance(inbox, _LimitedInbox) and inbox.must_wait()):
                    poll.register(handle, select.POLLIN)
            left_s = kill_at - time.monotonic()
            if is_over and not self._stdout.is_full:
                left_s = min(left_s, _QUIET_S)
            ready = poll.poll(None if left_s == float("inf") else max(0.0, left_s * 1000))
            if not ready and left_s < float("inf"):
                self._kill_all()
                return
            for handle, _ in ready:
                if handle == self._wake:
                    os.eventfd_read(self._wake)
                elif count := os.readv(handle, [buffer]):
                    inboxes[handle].feed(buffer[:count])
                    is_over = is_over or inboxes[handle].command_is_over
                else:
                    del inboxes[handle]

    def _end_input(self) -> bool:
        """Close the command's standard input; return False if a sender is using it."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            self._stdin.close()
        finally:
            self._sending.release()
        return True


_channels: dict[subprocess.Popen[bytes], ProgramChannel] = {}
"""Programs that may still run, by their processes."""


@atexit.register
def _end_programs() -> None:
    """Close all channels of a process that ends, wait for their programs, and kill what is left: the
    threads that would do so end with this one.
    """
    left = tuple(_channels.items())
    for _, channel in left:
        channel.close()
    deadline = time.monotonic() + LEAVE_S
    for process, _ in left:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            signal_group(process, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
