"""The protocol with the node runner, and the connection to the supervisor of a run: framed and
checked.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from orchestrator.errors import DataError, OrchError, RunError, TransportError
from orchestrator.inventory import NO_SECRETS, Host, Redaction
from orchestrator.strictjson import strict_json
from orchestrator.transport import Channel

_LEAVE_S = 1.0
_NOISE_LIMIT = 1 << 20
_LINE_LIMIT = 1 << 24
_NOT_STARTED = ("not found", "No such file", "error: execve(): ")
"""What shells say of a command that there is not, and Slurm of one that it cannot start."""
_HINTS = {
    "no spawner": "the ssh connection must log in as the user of the job: set ssh.user in the inventory",
    "storage_full": "free some space there, or set vars.workdir of this host to another disk",
    "transfer_corrupt": "the node's disk or memory alters bytes, or another process writes to these files",
    "the node's system": "check mount, df and dmesg on the node; -x excludes a host",
    "work directory": "set vars.workdir of this host to a directory that only its login user can write to;"
    " in the template of a pod: an emptyDir, and its path as HOME in env",
}


T = TypeVar("T")
Counted = tuple[int, Callable[[memoryview], Any]]
Reader = Generator[Counted | None, Any, T]
"""Reads an answer. It yields None to be sent the next line, or a number of bytes and a function
that is called with them in pieces; a piece is valid until the function returns."""


class Call:
    """A request and its answer: reads lines and counted bytes from a channel; every wait has a
    timeout.
    """

    def __init__(
        self,
        channel: Channel,
        host: Host,
        timeout_s: float,
        python: str,
        redaction: Redaction = NO_SECRETS,
    ) -> None:
        self.channel = channel
        self.host = host
        self.timeout_s = timeout_s
        self._python = python
        self._redaction = redaction
        self._buffer = bytearray()
        self._spoke = False

    def begin(self, request: bytes, mark: bytes, timeout_s: float) -> None:
        """Send a request and read up to the mark with which its answer begins."""
        self.timeout_s = timeout_s
        with suppress(TransportError):  # if it exits without reading, it prints the reason
            self.send(request)
        self.skip_noise(mark)

    def leave(self) -> None:
        """Signal that there are no more requests, and wait briefly for the runner to exit."""
        self.channel.shutdown_write()
        with suppress(OrchError, TimeoutError):
            self.channel.ending(_LEAVE_S)
        self.channel.close()

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.channel.send(data)

    def skip_noise(self, mark: bytes) -> None:
        """Drop the output of login scripts, up to and including the line that begins the answer."""
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) > _NOISE_LIMIT:
                raise self._broken("more than 1 MiB of text before the answer")
            self._more()
        del self._buffer[: at + len(mark)]
        self._spoke = True

    def line(self) -> dict[str, Any]:
        """Return the next JSON line. Raises the error that a node refuses with."""
        while (value := self.next_line()) is None:
            self._more()
        return value

    def whole_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the complete lines received so far, without waiting."""
        while (value := self.next_line()) is not None:
            yield value

    def lines_with(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Add ``data`` and yield the lines that are complete now. Empty data raises the reason for
        the end of the stream.
        """
        if not data:
            self._more()
        self._buffer += data
        return self.whole_lines()

    def next_line(self, data: bytes = b"") -> dict[str, Any] | None:
        """Add ``data`` and return the first line, None if it is not complete yet. Counted bytes may
        end with an empty line.
        """
        self._buffer += data
        while self._buffer[:1] == b"\n":
            del self._buffer[:1]
        at = self._buffer.find(b"\n")
        if at < 0:
            if len(self._buffer) > _LINE_LIMIT:
                raise self._broken("a line of more than 16 MiB")
            return None
        text = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        try:
            value = strict_json(text, self.host.name)
        except DataError:
            value = None
        if not isinstance(value, dict):
            raise self._broken(repr(self._redaction.data(text)[:80]))
        if "error" in value:
            raise refusal(self._redaction.value(value["error"]), self.host.name)
        return {name: self._redaction.value(part) for name, part in value.items()}

    def read(self, count: int) -> bytes:
        """Return exactly ``count`` bytes."""
        while len(self._buffer) < count:
            self._more()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def follow(self, reader: Reader[T]) -> T:
        """Let ``reader`` read the answer as it arrives, in the connection's own thread; return its
        result.
        """
        reading = _Reading(self, reader)
        data = bytes(self._buffer)
        self._buffer.clear()
        rest = reading.take(memoryview(data))
        if rest is None:
            with self._answering():
                self.channel.pour(reading.take, self.timeout_s)
        else:
            self._buffer += rest
        return reading.result

    def _more(self) -> None:
        with self._answering():
            data = self.channel.recv(self.timeout_s)
            if not data:
                raise EOFError
        self._buffer += data

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise the reason for a missing answer: a timeout, or the runner has exited."""
        try:
            yield
        except TimeoutError:
            raise TransportError(
                f"no answer from the node runner within {self.timeout_s:g} s",
                kind="node_lost",
                host=self.host.name,
            ) from None
        except EOFError:
            raise self._ended_error() from None

    def _ended_error(self) -> OrchError:
        streams = (self.channel.stderr_tail(), bytes(self._buffer))
        texts = (self._redaction.data(stream).decode("utf-8", "replace") for stream in streams)
        words = [line for text in texts for line in text.strip().splitlines()[-3:]]
        output = " / ".join(words) or "it printed nothing"
        if self._spoke:
            return RunError(
                f"the node runner ended before it had answered: {output}",
                kind="node_unfit",
                host=self.host.name,
                hint="check dmesg on the node: the kernel may have killed it for lack of memory",
            )
        if 'File "' not in output and any(words in output for words in _NOT_STARTED):
            return RunError(
                f"no interpreter {self._python!r} for the node runner: {output}",
                kind="node_unfit",
                host=self.host.name,
                hint="install Python 3.6 or newer for every user, or set vars.runner_python of this host in the inventory",
            )
        return RunError(
            f"the node runner ended without an answer: {output}",
            kind="node_unfit",
            host=self.host.name,
            hint=f"does the login shell of {self.host.ssh.user or 'this user'} run commands (getent passwd shows it, "
            "chsh -s /bin/sh changes it), and do its start-up files neither end the session nor read its input?",
        )

    def _broken(self, got: str) -> OrchError:
        return RunError(
            f"expected a line of the node runner, got {got}",
            kind="result_invalid",
            host=self.host.name,
        )


class SupervisorLine:
    """The connection to a run's supervisor: sends orders, receives events in the connection's
    thread. ``hello`` was the first.

    ``via`` names the jump host, if any. ``keep`` is called with the runner of the connection after
    the supervisor has exited at the controller's request.
    """

    def __init__(
        self, call: Call, hello: dict[str, Any], keep: Callable[[Call], None], via: str = ""
    ) -> None:
        self._call = call
        self._keep = keep
        self.via = via
        self.hello = hello
        self.host = call.host
        self._over = threading.Event()
        self._runner_stays = False
        self._deliver: Callable[[str, dict[str, Any]], None] = lambda *_: None

    def start(self, deliver: Callable[[str, dict[str, Any]], None]) -> None:
        """Call ``deliver(host name, event)`` with each event; it must not block. A lost connection
        is the event ``lost``.
        """
        self._deliver = deliver
        self._hand_over(self._call.whole_lines)
        self._call.channel.listen(lambda data: self._hand_over(lambda: self._call.lines_with(data)))

    def send(self, do: str, **fields: Any) -> None:
        """Send one order. A lost connection is reported as the event ``lost``, not here."""
        try:
            self._call.send(json.dumps({**fields, "do": do}).encode() + b"\n")
        except TransportError:
            return

    def close(self, wait_s: float = 0.0) -> None:
        """Close the connection. Before the start signal this makes the supervisor exit without
        starting anything.

        After a goodbye, wait up to ``wait_s`` seconds for the supervisor to exit, so that its
        runner can answer more requests.
        """
        self._over.wait(wait_s)
        if self._runner_stays:
            self._keep(self._call)
        else:
            self._call.channel.close()

    def _hand_over(self, lines: Callable[[], Iterator[dict[str, Any]]]) -> None:
        if self._over.is_set():
            return
        try:
            for event in lines():
                if event.get("event") == "closed":
                    self._call.channel.listen(None)
                    self._runner_stays = True
                    self._over.set()
                    return
                self._deliver(self.host.name, {**event, "line": self, "at": time.monotonic()})
        except OrchError as error:
            self._over.set()
            self._deliver(
                self.host.name,
                {"event": "lost", "line": self, "error": error, "at": time.monotonic()},
            )


class _Reading(Generic[T]):
    """An answer in progress: a `Taker` that gives a reader the lines and bytes it requests."""

    def __init__(self, call: Call, reader: Reader[T]) -> None:
        self.result: T
        self._call = call
        self._reader = reader
        self._left: int
        self._write: Callable[[memoryview], Any] | None
        self._ask(next(reader))

    def take(self, data: memoryview) -> memoryview | None:
        while True:
            line = None
            if self._write:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                self._write(part)
                if self._left:
                    return None
            else:
                text = bytes(data)
                end = text.find(b"\n") + 1 or len(text)
                line, data = self._call.next_line(text[:end]), data[end:]
                if line is None:
                    if data:
                        continue  # after an empty line
                    return None
            try:
                self._ask(self._reader.send(line))
            except StopIteration as end_of_answer:
                self.result = end_of_answer.value
                return data

    def _ask(self, counted: Counted | None) -> None:
        self._left, self._write = counted or (0, None)


def refusal(fields: Any, host: str) -> OrchError:
    """Return the error for a node's refusal."""
    values = fields if isinstance(fields, dict) else {}
    kind = str(values.get("kind", "node_unfit"))
    message = str(values.get("message", "refused without a reason"))
    if values.get("owner"):
        message += f": {owner_words(str(values['owner']))}"
    maker = TransportError if kind in ("transfer_corrupt", "node_lost") else RunError
    hint = next(
        (hint for start, hint in _HINTS.items() if start == kind or message.startswith(start)), ""
    )
    return maker(message, kind=kind, host=host, hint=hint)


def owner_words(text: str) -> str:
    """Return the owner record of a node's lock in words, or unchanged if it has another format.

    Who a process of another user is, the node's kernel says; what run it has, only that process.
    """
    try:
        value = json.loads(text)
        held_by = value.get("held_by", "")
    except (ValueError, AttributeError, RecursionError):
        return text
    try:
        who = f"{value['user']}@{value['controller']}, process {value['process']}"
        run = f"run {value['run_id']} of {who}, since {value['since']}"
    except KeyError:
        run = f"run {value['run_id']}" if held_by and "run_id" in value else text
    if held_by:
        return f"{held_by}, which says that it has {run}"
    return run
