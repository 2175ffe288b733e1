"""The controller's side of ``remote/noderun.py``: one request over one channel, framed, checked, byte-exact.

Nothing has to be installed on a node: the runner's source travels in front of the request, and every value travels as JSON
behind it, so that a command line never holds more than an interpreter and a number. Text that login scripts print before the
answer is skipped by a nonce.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.inventory import Host
from orchestrator.transport import Channel, Transport

__all__ = ["KeeperLine", "Node", "Upload", "Wanted", "owner_words"]

# One line without quotes or exclamation marks, so that no login shell finds anything to interpret in it. It passes over lines
# up to the end of `_LEADER`: of that, and of nothing else, a start-up file may take some that reads from standard input.
# The alarm ends it where the controller has vanished without a word, of which its server may hear nothing for hours.
_BOOT = (
    "import signal,sys;signal.alarm(60);list(zip(range(99),iter(sys.stdin.buffer.readline,bytes([35,10]))));"
    "exec(sys.stdin.buffer.read(int(sys.argv[1])))"
)
_LEADER = b"\n" * 16 + b"#\n"
_NOISE_LIMIT = 1 << 20
_LINE_LIMIT = 1 << 24
_MAX_FILES = 4096
_HINTS = {
    "storage_full": "free some space there, or set vars.workdir of this host to another disk",
    "transfer_corrupt": "the node's disk or memory alters bytes, or somebody writes to these files",
    "work directory": "set vars.workdir of this host to a directory that only its login user can write to",
}


@dataclass(frozen=True, slots=True)
class Upload:
    """A file for a node: ``path`` is relative to the node's work directory."""

    path: str
    content: bytes
    mode: int = 0o600

    @property
    def sha256(self) -> str:
        """Digest of the content as hexadecimal text."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `Node.fetch` reports at its end: sizes of the logs on the node, the raw exit record, whether the keeper lives, the
    number of logs that were too many, the kernel's identity of the node's boot, and some names of what is no log: links,
    special files, names that are not allowed."""

    sizes: Mapping[str, int]
    exit_record: bytes
    alive: bool
    left_out: int
    boot_id: str
    odd: tuple[str, ...] = ()


class Node:
    """One host, spoken to through its node runner over one open line. Raises OrchError with ``host`` filled in."""

    def __init__(self, transport: Transport, runner: bytes) -> None:
        self.transport = transport
        self.host: Host = transport.host
        self.root = str(self.host.vars.get("workdir", "~/.orch-node"))
        self.runner_python = str(self.host.vars.get("runner_python", "python3"))
        self._runner = runner

    def ask(self, op: str, *, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Send one request and return the one line that answers it."""
        with self._call(op, request, timeout_s) as call:
            return call.line()

    def put(self, files: Sequence[Upload], *, timeout_s: float) -> int:
        """Bring files to the node; those already there with this digest are not sent. Returns the number of bytes sent.

        ``timeout_s`` bounds every wait for the node, not the whole transfer. What arrives altered is sent once more; raises
        TransportError transfer_corrupt where that is no better.
        """
        try:
            return self._put(files, timeout_s)
        except TransportError as error:
            if error.kind != "transfer_corrupt":
                raise
        return self._put(files, timeout_s)

    def _put(self, files: Sequence[Upload], timeout_s: float) -> int:
        listing = [{"path": file.path, "bytes": len(file.content), "sha256": file.sha256, "mode": file.mode} for file in files]
        with self._call("put", {"files": listing}, timeout_s) as call:
            missing = call.line()["missing"]
            for index in missing:
                call.send(files[index].content)
            call.line()
        return sum(len(files[index].content) for index in missing)

    def fetch(
        self,
        run_id: str,
        have: Mapping[str, int],
        sink: Callable[[str, int, bytes], None],
        *,
        timeout_s: float,
        max_bytes: int,
        max_files: int,
    ) -> Wanted | None:
        """Hand every log byte beyond the ``have`` offsets to ``sink(name, offset, data)``. None where the run is not there."""
        request = {"run": run_id, "have": dict(have), "max_bytes": max_bytes, "max_files": max_files}
        with self._call("get", request, timeout_s) as call:
            names: set[str] = set()
            received = 0
            try:
                while True:
                    line = call.line()
                    if line.get("absent"):
                        return None
                    data = call.read(_whole(line["bytes"], _LINE_LIMIT))
                    if line.get("done"):
                        left_out, boot_id = int(line["left_out"]), str(line.get("boot_id", ""))
                        odd = tuple(str(name)[:200] for name in list(line.get("odd", ()))[:20])
                        return Wanted(_sizes(line["sizes"]), data, bool(line["alive"]), left_out, boot_id, odd)
                    size = _whole(line["raw"], 1 << 20)
                    raw = zlib.decompressobj().decompress(data, size + 1) if line["packed"] else data
                    names.add(str(line["name"]))
                    received += size
                    if len(raw) != size or not size or len(names) > max_files or line["offset"] + received > max_bytes:
                        raise ValueError(f"{len(raw)} bytes for {size} of {line['name']!r}")
                    sink(str(line["name"]), int(line["offset"]), raw)
            except (KeyError, TypeError, ValueError, zlib.error) as fault:
                raise RunError(
                    f"expected a piece of a log, got something malformed: {fault}", kind="result_invalid", host=self.host.name
                ) from fault

    def tail(self, run_id: str, file: str, *, offset: int, follow: bool) -> Iterator[bytes]:
        """Yield the bytes of a log file as they come, until the run ends."""
        with self._call("tail", {"run": run_id, "file": file, "offset": offset, "follow": follow}, 3600.0) as call:
            while not (line := call.line()).get("done"):
                yield call.read(_whole(line["bytes"], 1 << 20))

    def keeper(self, run_id: str, noderun: str, *, start: bool, timeout_s: float) -> KeeperLine:
        """Open the line to a run's keeper, starting one if asked to. ``noderun`` is the runner's staged path.

        Returns once the keeper has said hello. Raises TransportError node_lost where there is none to answer.
        """
        request = {"run": run_id, "noderun": noderun, "start": start, "wait_s": timeout_s}
        call = self._call("line", request, timeout_s)
        try:
            return KeeperLine(call, call.line(), self.transport.via)
        except BaseException:
            call.channel.close()
            raise

    def _call(self, op: str, request: Mapping[str, Any], timeout_s: float) -> _Call:
        nonce = secrets.token_hex(8)
        header = json.dumps({**request, "op": op, "nonce": nonce, "root": self.root}).encode() + b"\n"
        argv = [self.runner_python, "-I", "-S", "-u", "-c", _BOOT, str(len(self._runner))]
        channel = self.transport.popen(argv, timeout_s=timeout_s)
        call = _Call(channel, self.host, timeout_s, self.runner_python)
        try:
            with suppress(TransportError):  # one that ends without reading says why on its way out
                call.send(_LEADER + self._runner + header)
            call.skip_noise(b"ORCH " + nonce.encode() + b"\n")
        except BaseException:
            channel.close()
            raise
        return call


class _Call:
    """One answered request: a reader of lines and counted bytes over a channel, every wait limited."""

    def __init__(self, channel: Channel, host: Host, timeout_s: float, python: str) -> None:
        self.channel = channel
        self.host = host
        self.timeout_s = timeout_s
        self._python = python
        self._buffer = bytearray()

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *_: object) -> None:
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

    def line(self) -> dict[str, Any]:
        """Return the next JSON line. Raises what the node refused."""
        while (at := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _LINE_LIMIT:
                raise self._broken("a line of more than 16 MiB")
            self._more()
        text = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
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

    def _more(self) -> None:
        try:
            data = self.channel.recv(self.timeout_s)
        except TimeoutError:
            raise TransportError(
                f"no answer from the node runner within {self.timeout_s:g} s", kind="node_lost", host=self.host.name
            ) from None
        if not data:
            raise self._ended()
        self._buffer += data

    def _ended(self) -> OrchError:
        streams = (self.channel.stderr_tail(), bytes(self._buffer[-8192:]))
        words = [line for stream in streams for line in stream.decode("utf-8", "replace").strip().splitlines()[-3:]]
        said = " / ".join(words) or "it said nothing"
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
    """The line to one run's keeper: orders go out, events come in from one reader thread. ``hello`` was the first event.

    ``via`` names the jump host that it runs through, where there is one.
    """

    def __init__(self, call: _Call, hello: dict[str, Any], via: str = "") -> None:
        self._call = call
        self.via = via
        self.hello = hello
        self.host = call.host

    def start(self, deliver: Callable[[str, dict[str, Any]], None]) -> None:
        """Read events in the background and hand each to ``deliver(host name, event)``; a lost line is the event ``lost``."""
        threading.Thread(target=self._pump, args=(deliver,), name=f"keeper-{self.host.name}", daemon=True).start()

    def send(self, do: str, **fields: Any) -> None:
        """Send one order. A line that is gone shows as the event ``lost``, not here."""
        try:
            self._call.send(json.dumps({**fields, "do": do}).encode() + b"\n")
        except TransportError:
            return

    def close(self) -> None:
        """Close the line. Before the go-word this makes the keeper leave without starting anything."""
        self._call.channel.close()

    def _pump(self, deliver: Callable[[str, dict[str, Any]], None]) -> None:
        self._call.timeout_s = 3600.0
        while True:
            try:
                event = self._call.line()
            except OrchError as error:
                deliver(self.host.name, {"event": "lost", "line": self, "error": error, "at": time.monotonic()})
                return
            deliver(self.host.name, {**event, "line": self, "at": time.monotonic()})


def refusal(fields: Any, host: str) -> OrchError:
    """Return the error that a node's refusal stands for."""
    values = fields if isinstance(fields, dict) else {}
    kind = str(values.get("kind", "node_unfit"))
    message = str(values.get("message", "refused without a reason"))
    if values.get("owner"):
        message += f": {owner_words(str(values['owner']))}"
    maker = TransportError if kind in ("transfer_corrupt", "node_lost") else RunError
    hint = _HINTS.get("work directory" if message.startswith("work directory") else kind, "")
    return maker(message, kind=kind, host=host, hint=hint)


def owner_words(text: str) -> str:
    """Return the owner record of a node's lock in words, or as it stands where it is not one of ours."""
    try:
        value = json.loads(text)
        who = f"{value['user']}@{value['controller']}, process {value['process']}"
        return f"run {value['run_id']} of {who}, since {value['since']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return text


def _sizes(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > _MAX_FILES or not all(type(size) is int for size in value.values()):
        raise ValueError("the sizes of logs")
    return value


def _whole(value: Any, limit: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= limit:
        raise RunError(f"expected a count up to {limit}, got {value!r}", kind="result_invalid")
    return value
