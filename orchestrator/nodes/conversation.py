"""One conversation with the program that speaks for a node, and the line to the keeper of a run: framed and checked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from orchestrator.errors import DataError, OrchError, RunError, TransportError
from orchestrator.inventory import Host
from orchestrator.strictjson import strict_json
from orchestrator.transport.ssh import Channel

__all__ = ["Call", "KeeperLine", "Reader", "owner_words", "refusal"]

_LEAVE_S = 1.0
_NOISE_LIMIT = 1 << 20
_LINE_LIMIT = 1 << 24
_HINTS = {
    "storage_full": "free some space there, or set vars.workdir of this host to another disk",
    "transfer_corrupt": "the node's disk or memory alters bytes, or somebody writes to these files",
    "the node's system": "mount, df and dmesg there may tell more; -x leaves a host out",
    "work directory": "set vars.workdir of this host to a directory that only its login user can write to",
}


T = TypeVar("T")
Counted = tuple[int, Callable[[memoryview], Any]]
Reader = Generator[Counted | None, Any, T]
"""Reads an answer: it yields None for the next line, which it is sent, or a count of bytes and what is given them in pieces,
each good until that returns."""


class Call:
    """One answered request: a reader of lines and counted bytes over a channel, every wait limited."""

    def __init__(self, channel: Channel, host: Host, timeout_s: float, python: str) -> None:
        self.channel = channel
        self.host = host
        self.timeout_s = timeout_s
        self._python = python
        self._buffer = bytearray()
        self._spoke = False

    def begin(self, request: bytes, mark: bytes, timeout_s: float) -> None:
        """Send a request and read up to the mark with which its answer begins."""
        self.timeout_s = timeout_s
        with suppress(TransportError):  # one that ends without reading says why on its way out
            self.send(request)
        self.skip_noise(mark)

    def leave(self) -> None:
        """Say that there will be no more requests, and wait a moment for the runner to go."""
        self.channel.shutdown_write()
        with suppress(OrchError, TimeoutError):
            self.channel.ending(_LEAVE_S)
        self.channel.close()

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.channel.send(data)

    def skip_noise(self, mark: bytes) -> None:
        """Drop what login scripts print, up to and with the line that begins our answer."""
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) > _NOISE_LIMIT:
                raise self._broken("more than 1 MiB of text before the answer")
            self._more()
        del self._buffer[: at + len(mark)]
        self._spoke = True

    def line(self) -> dict[str, Any]:
        """Return the next JSON line. Raises what the node refused."""
        while (value := self.next_line()) is None:
            self._more()
        return value

    def whole_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that have come whole, without waiting."""
        while (value := self.next_line()) is not None:
            yield value

    def lines_with(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Take in ``data`` and yield the lines that are whole now. Where it is empty, raises why nothing more comes."""
        if not data:
            self._more()
        self._buffer += data
        return self.whole_lines()

    def next_line(self, data: bytes = b"") -> dict[str, Any] | None:
        """Take in ``data`` and return the first line, None where it has not come whole."""
        self._buffer += data
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
            raise self._broken(f"{text[:80]!r}") from None
        if not isinstance(value, dict):
            raise self._broken(f"{text[:80]!r}")
        if "error" in value:
            raise refusal(value["error"], self.host.name)
        return value

    def read(self, count: int) -> bytes:
        """Return exactly ``count`` bytes."""
        while len(self._buffer) < count:
            self._more()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def follow(self, reader: Reader[T]) -> T:
        """Have ``reader`` read the answer as it comes, in the connection's own thread; return what it returns."""
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
        """Say why there is no answer: it did not come in time, or the runner is gone."""
        try:
            yield
        except TimeoutError:
            raise TransportError(
                f"no answer from the node runner within {self.timeout_s:g} s", kind="node_lost", host=self.host.name
            ) from None
        except EOFError:
            raise self._ended() from None

    def _ended(self) -> OrchError:
        streams = (self.channel.stderr_tail(), bytes(self._buffer[-8192:]))
        words = [line for stream in streams for line in stream.decode("utf-8", "replace").strip().splitlines()[-3:]]
        said = " / ".join(words) or "it said nothing"
        if self._spoke:
            return RunError(
                f"the node runner ended before it had answered: {said}",
                kind="node_unfit",
                host=self.host.name,
                hint="dmesg there tells whether the kernel killed it, as for memory",
            )
        if '"<string>"' not in said and ("not found" in said or "No such file" in said):
            return RunError(
                f"no interpreter {self._python!r} for the node runner: {said}",
                kind="node_unfit",
                host=self.host.name,
                hint="install Python 3.6 or newer, or set vars.runner_python of this host in the inventory",
            )
        return RunError(
            f"the node runner ended without an answer: {said}",
            kind="node_unfit",
            host=self.host.name,
            hint=f"does the login shell of {self.host.ssh.user or 'this user'} run commands (getent passwd tells which it is, "
            "chsh -s /bin/sh changes it), and does none of its start-up files end the session or read its input?",
        )

    def _broken(self, got: str) -> OrchError:
        return RunError(f"expected a line of the node runner, got {got}", kind="result_invalid", host=self.host.name)


class KeeperLine:
    """The line to one run's keeper: orders go out, events come in, in the thread of the connection. ``hello`` was the first.

    ``via`` names the jump host that it runs through, where there is one. ``keep`` is given the runner that has carried the line
    once the keeper has gone at our word.
    """

    def __init__(self, call: Call, hello: dict[str, Any], keep: Callable[[Call], None], via: str = "") -> None:
        self._call = call
        self._keep = keep
        self.via = via
        self.hello = hello
        self.host = call.host
        self._over = threading.Event()
        self._runner_stays = False
        self._deliver: Callable[[str, dict[str, Any]], None] = lambda *_: None

    def start(self, deliver: Callable[[str, dict[str, Any]], None]) -> None:
        """Hand each event to ``deliver(host name, event)``, which must not wait; a lost line is the event ``lost``."""
        self._deliver = deliver
        self._hand_over(self._call.whole_lines)
        self._call.channel.listen(lambda data: self._hand_over(lambda: self._call.lines_with(data)))

    def send(self, do: str, **fields: Any) -> None:
        """Send one order. A line that is gone shows as the event ``lost``, not here."""
        try:
            self._call.send(json.dumps({**fields, "do": do}).encode() + b"\n")
        except TransportError:
            return

    def close(self, wait_s: float = 0.0) -> None:
        """Close the line. Before the go-word this makes the keeper leave without starting anything.

        After a goodbye there are up to ``wait_s`` seconds for the keeper to go, so that its runner may answer further requests.
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
            self._deliver(self.host.name, {"event": "lost", "line": self, "error": error, "at": time.monotonic()})


class _Reading(Generic[T]):
    """An answer on its way to a reader: a `Taker` that gives it the lines and the bytes that it asks for."""

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
                    return None
            try:
                self._ask(self._reader.send(line))
            except StopIteration as end_of_answer:
                self.result = end_of_answer.value
                return data

    def _ask(self, counted: Counted | None) -> None:
        self._left, self._write = counted or (0, None)


def refusal(fields: Any, host: str) -> OrchError:
    """Return the error that a node's refusal stands for."""
    values = fields if isinstance(fields, dict) else {}
    kind = str(values.get("kind", "node_unfit"))
    message = str(values.get("message", "refused without a reason"))
    if values.get("owner"):
        message += f": {owner_words(str(values['owner']))}"
    maker = TransportError if kind in ("transfer_corrupt", "node_lost") else RunError
    hint = next((hint for start, hint in _HINTS.items() if start == kind or message.startswith(start)), "")
    return maker(message, kind=kind, host=host, hint=hint)


def owner_words(text: str) -> str:
    """Return the owner record of a node's lock in words, or as it stands where it is not one of ours."""
    try:
        value = json.loads(text)
        who = f"{value['user']}@{value['controller']}, process {value['process']}"
        return f"run {value['run_id']} of {who}, since {value['since']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return text
