"""The controller's side of the node runner, ``remote/noderun/``: one request over one channel,
framed, checked, byte-exact.

Nothing has to be installed on a node: the runner's source is sent before the request, and every
value follows as JSON, so a command line contains only an interpreter, a constant program and a
number. A nonce marks the start of the answer; text that login scripts print before it is skipped.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.inventory import NO_SECRETS, Host, Redaction
from orchestrator.nodes.answers import check_answer
from orchestrator.nodes.conversation import Call, Reader, SupervisorLine
from orchestrator.transport import Transport
from orchestrator.transport.slurm import job_of

# What becomes a runner: the arguments of an interpreter, and the leader and the source, which it
# reads first. One line without quotes or exclamation marks, so that no login shell interprets any
# of it. It skips lines up to the end of
# `LEADER`: a start-up file that reads from standard input may consume some of these, and nothing
# else. The alarm ends it if the controller has vanished silently, which the ssh server may not
# notice for hours. Parts (`bundle.BOUNDARY` is byte 12) are compiled one by one, because a process
# keeps the memory that the compiler needed: 12 MB for all parts at once instead of 5, in the runner
# and again in the supervisor. The third word of a part is its file's name.
_BOOT = (
    "import signal,sys;signal.alarm(60);list(zip(range(99),iter(sys.stdin.buffer.readline,bytes([35,10]))));"
    "waiting=dict((part.split()[2][8:-3].decode(),part)for part in sys.stdin.buffer.read(int(sys.argv[1])).split(bytes([12])));"
    "load_part=lambda name:[exec(compile(part,part.split()[2],exec.__name__),globals())"
    "for part in[waiting.pop(name,None)]if part];"
    "load_part(next(iter(waiting)))"
)
LEADER = b"\n" * 16 + b"#\n"
_PIECE_LIMIT, _PACKED_LIMIT = 1 << 24, 1 << 20
_MAX_FILES = 4096
_SAMPLES_BYTES = 48 << 10


_WINDOW = -15
"""For zlib: pieces of logs are compressed in the raw format of RFC 1951."""
Sink = Callable[[str, int], Callable[[memoryview], Any]]
"""Takes the name of a log and an offset. Returns a function that writes bytes from there on and
keeps no reference to them.
"""


def boot_arguments(runner: bytes) -> list[str]:
    """Return the arguments of an interpreter that becomes a node runner when it is sent `LEADER`
    and this source.
    """
    return ["-I", "-S", "-u", "-c", _BOOT, str(len(runner))]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file for a node: ``path`` is relative to the node's work directory.

    ``elsewhere`` is a shell pattern, also relative to it, of other files on the node that may have
    the same content.
    """

    path: str
    content: bytes
    mode: int = 0o600
    elsewhere: str = ""

    @property
    def sha256(self) -> str:
        """Digest of the content as hexadecimal text."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def announcement(self) -> dict[str, Any]:
        """The fields sent to a node before the file's bytes."""
        fields = {
            "path": self.path,
            "bytes": len(self.content),
            "sha256": self.sha256,
            "mode": self.mode,
        }
        if self.elsewhere:
            return {**fields, "elsewhere": self.elsewhere}
        return fields


@dataclass(frozen=True, slots=True)
class Wanted:
    """The result of `Node.fetch`: sizes of the logs on the node in bytes, the raw exit record,
    whether the supervisor is alive, the number of logs beyond the limit, the kernel's boot id of
    the node, and some names that are not logs: links, special files, names that are not allowed."""

    sizes: Mapping[str, int]
    exit_record: bytes
    alive: bool
    left_out: int
    boot_id: str
    odd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recent:
    """The state of a run in progress on a node.

    It has whether its supervisor is alive, the sizes of its logs in bytes, the end of one log
    without secret values, and the first and last lines of ``telemetry.jsonl`` so far.
    """

    lives: bool
    sizes: Mapping[str, int]
    log: bytes
    samples: bytes


class Node:
    """One host, accessed through its node runner over one open connection. Raises OrchError with
    ``host`` set.

    A runner waits ``stay_s`` seconds for the next request.
    """

    def __init__(
        self,
        transport: Transport,
        runner: bytes,
        redaction: Redaction = NO_SECRETS,
        stay_s: int = 60,
    ) -> None:
        self.transport = transport
        self.redaction = redaction
        self.host: Host = transport.host
        self.root = str(self.host.vars.get("workdir", "~/.orch-node"))
        self._runner = runner
        self._stay_s = stay_s
        self.login_s = 0.0
        """Seconds that the last start of the login shell and the runner on the node took."""
        self._keeping = threading.Lock()
        self._idle: list[Call] = []

    def ask(self, op: str, *, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Send one request and return its answer of one line, which has all that it should."""
        with self._call(op, request, timeout_s) as call:
            answer = call.line()
            with self._expecting(f"an answer to {op}"):
                return check_answer(op, answer)

    @property
    def rests(self) -> bool:
        """Whether a runner waits for the next request."""
        return bool(self._idle)

    def put(self, files: Sequence[Upload], *, timeout_s: float) -> int:
        """Send files to the node, except those it already has with this digest. Returns the number
        of bytes sent.

        ``timeout_s`` limits every wait for the node, not the whole transfer. Corrupted files are
        sent once more; raises TransportError transfer_corrupt if that fails too.
        """
        try:
            return self._put(files, timeout_s)
        except TransportError as error:
            if error.kind != "transfer_corrupt":
                raise
        return self._put(files, timeout_s)

    def _put(self, files: Sequence[Upload], timeout_s: float) -> int:
        listing = [file.announcement for file in files]
        with self._call("put", {"files": listing}, timeout_s) as call:
            with self._expecting("the files that the node lacks"):
                missing = [_whole(index, len(files) - 1) for index in call.line()["missing"]]
            for index in missing:
                call.send(files[index].content)
            call.line()
        return sum(len(files[index].content) for index in missing)

    def fetch(
        self,
        run_id: str,
        have: Mapping[str, int],
        sink: Sink,
        *,
        timeout_s: float,
        max_bytes: int,
        max_files: int,
    ) -> Wanted | None:
        """Write every log byte beyond the ``have`` offsets into ``sink``. Returns None if the node
        does not have the run.
        """
        request = {
            "run": run_id,
            "have": dict(have),
            "max_bytes": max_bytes,
            "max_files": max_files,
        }
        with self._call("get", request, timeout_s) as call, self._expecting("a piece of a log"):
            return call.follow(_pieces(sink, have, max_bytes, max_files))

    def tail(self, run_id: str, file: str, *, offset: int, follow: bool) -> Iterator[bytes]:
        """Yield the bytes of a log file as they arrive, until the run ends."""
        with self._call(
            "tail", {"run": run_id, "file": file, "offset": offset, "follow": follow}, 3600.0
        ) as call:
            while not (line := call.line()).get("done"):
                with self._expecting("a piece of a log"):
                    count = _whole(line["bytes"], 1 << 20)
                yield call.read(count)

    def recent(self, run_id: str, file: str, *, most_bytes: int, timeout_s: float) -> Recent | None:
        """Return the end of a log of a run, and of its samples, as they are now; None if the node
        does not have the run.
        """
        margin = (
            self.redaction.reach
        )  # a value that begins before the end that is shown would not be recognised in it
        request = {
            "run": run_id,
            "file": file,
            "most": most_bytes + margin,
            "most_samples": _SAMPLES_BYTES,
        }
        with self._call("recent", request, timeout_s) as call:
            line = call.line()
            if line.get("absent"):
                return None
            with self._expecting("the end of a log"):
                log = call.read(_whole(line["log"], most_bytes + margin))
                samples = call.read(_whole(line["samples"], _PIECE_LIMIT))
                sizes = _sizes(line["sizes"])
            shown = self.redaction.within(log, max(0, len(log) - most_bytes))
            return Recent(line["lives"] is True, sizes, shown, samples)

    def supervisor(self, run_id: str, *, start: bool, timeout_s: float) -> SupervisorLine:
        """Open the connection to a run's supervisor; with ``start``, start one.

        Returns once the supervisor has said hello. Raises TransportError node_lost if none answers.
        """
        request: dict[str, Any] = {
            "run": run_id,
            "start": start,
            "wait_s": timeout_s,
            "stay": self._stay_s,
        }
        if start and (job := job_of(self.host)):
            request["job"] = job
        call = self._begin("line", request, timeout_s)
        try:
            return SupervisorLine(call, call.line(), self._keep, self.transport.via)
        except BaseException:
            call.channel.close()
            raise

    def close(self) -> None:
        """End the runner, wait briefly for its exit, and close the connection."""
        with self._keeping:
            idle = self._idle.pop() if self._idle else None
        if idle:
            idle.leave()
        self.transport.close()

    @contextmanager
    def _expecting(self, what: str) -> Iterator[None]:
        """Raise RunError result_invalid, with the host, if what the node has sent is something
        else.
        """
        try:
            yield
        except (KeyError, TypeError, ValueError, zlib.error) as fault:
            message = f"expected {what}, got something malformed: {fault}"
            raise RunError(message, kind="result_invalid", host=self.host.name) from fault

    @contextmanager
    def _call(self, op: str, request: Mapping[str, Any], timeout_s: float) -> Iterator[Call]:
        """Send one request and yield the call that reads its answer."""
        call = self._begin(op, {**request, "stay": self._stay_s}, timeout_s)
        try:
            yield call
        except BaseException:
            call.channel.close()
            raise
        self._keep(call)

    def _keep(self, call: Call) -> None:
        """Keep the runner that has answered for the next request, a few seconds at most. One is
        enough; others are closed.
        """
        with self._keeping:
            if not self._idle:
                self._idle.append(call)
                return
        call.channel.close()

    def _begin(self, op: str, request: Mapping[str, Any], timeout_s: float) -> Call:
        """Send a request to the idle runner or to a new one; return the call, positioned at the
        start of its answer.
        """
        nonce = secrets.token_hex(8)
        names = {"op": op, "nonce": nonce, "root": self.root, "node": self.host.name}
        header = json.dumps({**request, **names}).encode() + b"\n"
        mark = b"ORCH " + nonce.encode() + b"\n"
        with self._keeping:
            idle = self._idle.pop() if self._idle else None
        if idle:
            try:
                idle.begin(header, mark, timeout_s)
            except OrchError:
                left = (
                    idle.channel.ended
                )  # it exited after a long idle time, before it began with this request
                idle.channel.close()
                if not left:
                    raise
            else:
                return idle
        began = time.monotonic()
        python = self.host.runner_python
        argv = [*python, *boot_arguments(self._runner)]
        channel = self.transport.popen(argv, timeout_s=timeout_s)
        call = Call(channel, self.host, timeout_s, shlex.join(python), self.redaction)
        try:
            call.begin(LEADER + self._runner + header, mark, timeout_s)
        except BaseException:
            call.channel.close()
            raise
        self.login_s = time.monotonic() - began
        return call


def _pieces(
    sink: Sink, have: Mapping[str, int], max_bytes: int, max_files: int
) -> Reader[Wanted | None]:
    """Read the logs that a runner sends, piece by piece; each log continues where the pieces before
    it ended.
    """
    ends: dict[str, int] = {}
    total = 0
    while not (line := (yield None)).get("done"):
        if line.get("absent"):
            return None
        count = _whole(line["bytes"], _PIECE_LIMIT)
        name, offset = str(line["name"]), int(line["offset"])
        size = _whole(line["raw"], _PACKED_LIMIT if line["packed"] else _PIECE_LIMIT)
        begin = ends.get(name, have.get(name, 0))
        if offset != begin:
            raise ValueError(f"bytes of {name!r} from {offset}; those from {begin} are next")
        total += size if name in ends else offset + size
        ends[name] = offset + size
        if not size or len(ends) > max_files or total > max_bytes:
            raise ValueError(
                f"{size} bytes of {name!r} from {offset}; up to {max_files} logs of {max_bytes} bytes may come"
            )
        if line["packed"]:
            packed = bytearray()
            yield count, packed.extend
            sink(name, offset)(memoryview(_unpack(packed, size)))
        else:
            yield _same(count, size), sink(name, offset)
    left_out, boot_id = int(line["left_out"]), str(line.get("boot_id", ""))
    odd = tuple(str(name)[:200] for name in list(line.get("odd", ()))[:20])
    sizes, alive = _sizes(line["sizes"]), bool(line["alive"])
    record = bytearray()
    yield _whole(line["bytes"], _PIECE_LIMIT), record.extend
    return Wanted(sizes, bytes(record), alive, left_out, boot_id, odd)


def _unpack(data: bytes | bytearray, size: int) -> bytes:
    raw = zlib.decompressobj(_WINDOW).decompress(data, size + 1)
    _same(len(raw), size)
    return raw


def _same(count: int, size: int) -> int:
    if count != size:
        raise ValueError(f"{count} bytes for {size}")
    return count


def _sizes(value: Any) -> dict[str, int]:
    if (
        not isinstance(value, dict)
        or len(value) > _MAX_FILES
        or not all(type(size) is int for size in value.values())
    ):
        raise ValueError("the sizes of logs")
    return value


def _whole(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{value!r} in place of a count up to {limit}")
    return value
